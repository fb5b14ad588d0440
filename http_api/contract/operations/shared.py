"""Parts that several declarations share: path segments, pages of lists, groups of error codes.

Examples of resources are made by the functions that make the answers, with `LINKS` and the names
below, so that an example has the fields of the answer by construction.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from http_api.contract.errors import RestCode
from http_api.contract.operations.declaration import CLUSTER, Header, Operation, reply
from http_api.contract.operations.parameters import (
    INT32_MAX,
    IntegerParameter,
    Parameter,
    TextParameter,
    WordParameter,
)
from http_api.contract.v3 import JsonObject, Links

if TYPE_CHECKING:
    from collections.abc import Mapping

TOPIC: Final = "orders"
GROUP: Final = "billing"
INSTANCE: Final = "worker-1"
CLUSTER_ID: Final = "rZ0vV1mQTDm4kqLrJ8sC2g"
TOPIC_ID: Final = "35asiJtYzHQGSYRuJbFriA"
BASE_URL: Final = "http://127.0.0.1:8082"
LINKS: Final = Links(BASE_URL, CLUSTER_ID)
"""Links of the examples."""


@dataclass(frozen=True, slots=True)
class PathSegment:
    """Variable segment of paths."""

    description: str
    example: str | int
    schema: Mapping[str, Any]


NAME_SCHEMA: Final[Mapping[str, Any]] = {
    "type": "string",
    "minLength": 1,
    "maxLength": 249,
    "pattern": "^[A-Za-z0-9._-]+$",
}
_NUMBER: Final[Mapping[str, Any]] = {
    "type": "integer",
    "format": "int32",
    "minimum": 0,
    "maximum": INT32_MAX,
}
_WORD: Final[Mapping[str, Any]] = {"type": "string", "minLength": 1}

SEGMENTS: Final[Mapping[str, PathSegment]] = {
    "cluster_id": PathSegment("Id of this cluster.", CLUSTER_ID, _WORD),
    "topic_name": PathSegment("Name of a topic.", TOPIC, NAME_SCHEMA),
    "partition_id": PathSegment("Number of a partition.", 0, _NUMBER),
    "broker_id": PathSegment("Id of a broker.", 1, _NUMBER),
    "config_name": PathSegment("Name of a config.", "retention.ms", _WORD),
    "consumer_group_id": PathSegment("Name of a consumer group.", GROUP, NAME_SCHEMA),
    "consumer_id": PathSegment("Name of a member of the group.", INSTANCE, NAME_SCHEMA),
    "group_name": PathSegment("Name of a consumer group.", GROUP, NAME_SCHEMA),
    "instance": PathSegment("Name of a consumer instance.", INSTANCE, NAME_SCHEMA),
    "transactional_id": PathSegment(
        "Transactional id, or `key:` and a key.",
        "billing-1",
        {"type": "string", "pattern": "^(key:[!-~]{1,128}|[A-Za-z0-9._:-]{1,320})$"},
    ),
    "file_name": PathSegment("Name of a file of the page.", "swagger-ui.css", _WORD),
    **{
        f"part_{number}": PathSegment("Name of a place, one level below.", example, _WORD)
        for number, example in enumerate(("topics", TOPIC, "partitions", "0", "isr", "1"))
    },
}
"""Every variable segment of a path, by the name that it has in all paths. Where a path takes ``-``
for all, the operation says so."""

# Fields of bodies

VALIDATE_ONLY: Final = {
    "type": ["boolean", "null"],
    "description": "Check the request and change nothing.",
}
CONFIG_VALUE: Final = {"type": ["string", "number", "boolean", "null"]}

# Groups of error codes

FROM_LEADER: Final = (RestCode.BROKER_NOT_AVAILABLE, RestCode.KAFKA_RETRIABLE_ERROR)
"""Codes of asking another broker: none answers, or its log can't be read at present."""
FROM_CONTROLLER: Final = (RestCode.BROKER_NOT_AVAILABLE, RestCode.KAFKA_RETRIABLE_ERROR)
"""Codes of a change that the active controller decides: no controller, or overtaken by another."""
FROM_COORDINATOR: Final = (RestCode.BROKER_NOT_AVAILABLE, RestCode.KAFKA_RETRIABLE_ERROR)
"""Codes of asking a group's coordinator: none answers, or it is just loading."""

NOT_PROVEN_MISSING: Final = RestCode.BROKER_NOT_AVAILABLE
"""Code in place of a topic's or partition's 404 while no controller answers: it may exist."""

RETRY_AFTER: Final = Header("Retry-After", "Seconds to wait before the request is sent again.", 1)
"""Header of a 503."""

# Epochs of readers

SEEN_EPOCH: Final = IntegerParameter(
    "seen_epoch",
    maximum=INT32_MAX,
    description=(
        "The largest `Quorumlog-Leader-Epoch` that the reader has seen: a broker that knows only "
        "a lower one catches up first."
    ),
    example=5,
)

# Isolation of reads

ISOLATION: Final = WordParameter(
    "isolation",
    words=("read_uncommitted", "read_committed"),
    default="read_uncommitted",
    description="Kafka's; both words mean the same: only committed records are ever read.",
    example="read_committed",
)

# Pages of lists

PAGE_ROWS_MAX: Final = 10_000
"""Most rows of a page: as many as a topic may have partitions."""
PAGE_SIZE: Final = IntegerParameter(
    "page_size",
    minimum=1,
    maximum=PAGE_ROWS_MAX,
    description="Most rows of the answer. Without it the answer holds all of them.",
    example=100,
)
PAGE_TOKEN: Final = TextParameter(
    "page_token",
    length_max=4_096,
    description="Where the page begins: from `metadata.next` of the page before.",
    example="WyJvcmRlcnMiXQ",
)


def resource(
    path: str,
    tag: str,
    summary: str,
    example: Any,
    *,
    parameters: tuple[Parameter, ...] = (),
    errors: tuple[RestCode, ...] = (),
    description: str = "",
) -> Operation:
    """Return the declaration of a GET that answers a resource; ``path`` is below the cluster's."""
    return Operation(
        "GET",
        CLUSTER + path,
        tag=tag,
        summary=summary,
        replies=(reply(example),),
        parameters=parameters,
        errors=errors,
        description=description,
    )


def listing(
    path: str,
    tag: str,
    summary: str,
    row: JsonObject,
    *,
    kind: str | None = None,
    parameters: tuple[Parameter, ...] = (),
    errors: tuple[RestCode, ...] = (),
    description: str = "",
) -> Operation:
    """Return the declaration of a GET that answers a list in pages; ``row`` is an example of one.

    ``kind`` names its rows where they don't do so themselves; see `resource` for the others.
    """
    return resource(
        path,
        tag,
        summary,
        collection(row, path, kind),
        parameters=(*parameters, PAGE_SIZE, PAGE_TOKEN),
        errors=errors,
        description=description,
    )


def collection(row: JsonObject, path: str, kind: str | None = None) -> JsonObject:
    """Return an example of a list with one row, at a path below the cluster."""
    segments = [
        str(SEGMENTS[part[1:-1]].example) if part.startswith("{") else part
        for part in path.strip("/").split("/")
    ]
    return LINKS.collection(kind or row["kind"], [row], *segments)
