"""Operations on topics: v3 list, create, describe, grow, delete."""

from __future__ import annotations

from typing import Final

from http_api.contract import v3
from http_api.contract.errors import RestCode
from http_api.contract.operations.declaration import (
    CLUSTER,
    Body,
    Header,
    Operation,
    no_content,
    reply,
)
from http_api.contract.operations.parameters import INT32_MAX, FlagParameter
from http_api.contract.operations.shared import (
    CONFIG_VALUE,
    FROM_CONTROLLER,
    LINKS,
    NAME_SCHEMA,
    NOT_PROVEN_MISSING,
    TOPIC,
    TOPIC_ID,
    VALIDATE_ONLY,
    listing,
    resource,
)

_TAG = "Topics"
_TOPICS = "/topics"
_ONE = "/topics/{topic_name}"
_EXAMPLE = v3.topic(LINKS, TOPIC, TOPIC_ID, 3, 6)
_UNKNOWN = (RestCode.UNKNOWN_TOPIC_OR_PARTITION, NOT_PROVEN_MISSING)
AUTO_CREATE: Final = "auto_create"
"""Field of a new topic: create it as a produce would."""
_WITHOUT_RULES = "Confluent's; without access rules it has no effect."

_PARTITIONS = {"type": ["integer", "null"], "minimum": 1, "maximum": INT32_MAX}
_ASSIGNMENTS = {
    "type": ["object", "null"],
    "description": "Broker ids of each partition, the preferred leader first.",
    "patternProperties": {
        "^[0-9]{1,9}$": {"type": "array", "items": {"type": "integer", "format": "int32"}}
    },
    "additionalProperties": False,
}

LIST_OPERATIONS: Final = FlagParameter(
    "includeAuthorizedOperations", description=_WITHOUT_RULES, example=False
)
DESCRIBE_OPERATIONS: Final = FlagParameter(
    "include_authorized_operations", description=_WITHOUT_RULES, example=False
)
LIST: Final = listing(
    _TOPICS,
    _TAG,
    "List the topics",
    _EXAMPLE,
    parameters=(LIST_OPERATIONS,),
    description="Internal topics are marked with `is_internal`.",
)
DESCRIBE: Final = resource(
    _ONE,
    _TAG,
    "Describe a topic",
    _EXAMPLE,
    parameters=(DESCRIBE_OPERATIONS,),
    errors=_UNKNOWN,
)
CREATE: Final = Operation(
    "POST",
    CLUSTER + _TOPICS,
    tag=_TAG,
    summary="Create a topic",
    body=Body(
        fields={
            "topic_name": NAME_SCHEMA,
            "partitions_count": _PARTITIONS,
            "replication_factor": {"type": ["integer", "null"], "minimum": 1, "maximum": INT32_MAX},
            "replicas_assignments": _ASSIGNMENTS,
            "configs": {
                "type": ["array", "null"],
                "items": {
                    "type": "object",
                    "properties": {"name": {"type": "string"}, "value": CONFIG_VALUE},
                    "required": ["name"],
                },
            },
            "validate_only": VALIDATE_ONLY,
            AUTO_CREATE: {
                "type": ["boolean", "null"],
                "description": (
                    "Create it as a first produce does, by the defaults, unless it is there. No "
                    "other field may stand beside it."
                ),
            },
        },
        needed=("topic_name",),
        example={
            "topic_name": TOPIC,
            "partitions_count": 6,
            "replication_factor": 3,
            "configs": [{"name": "retention.ms", "value": "3600000"}],
        },
    ),
    replies=(
        reply(
            _EXAMPLE,
            "The topic; each of its partitions has a ready leader.",
            201,
            headers=(Header("Location", "URL of the topic.", LINKS.url("topics", TOPIC)),),
        ),
        reply(
            _EXAMPLE,
            "With `validate_only`: the topic that would be created. With `auto_create`: the topic "
            "that is there.",
        ),
    ),
    errors=(RestCode.TOPIC_NOT_FOUND, *FROM_CONTROLLER),
)
GROW: Final = Operation(
    "PATCH",
    CLUSTER + _ONE,
    tag=_TAG,
    summary="Add partitions to a topic",
    body=Body(
        fields={
            "partitions_count": {"type": "integer", "minimum": 1, "maximum": INT32_MAX},
            "replicas_assignments": _ASSIGNMENTS,
            "validate_only": VALIDATE_ONLY,
        },
        needed=("partitions_count",),
        example={"partitions_count": 12},
    ),
    replies=(reply(_EXAMPLE, "The topic; each new partition has a ready leader."),),
    errors=(*_UNKNOWN, *FROM_CONTROLLER),
)
DELETE: Final = Operation(
    "DELETE",
    CLUSTER + _ONE,
    tag=_TAG,
    summary="Delete a topic with all of its records",
    replies=(no_content("The topic is gone."),),
    errors=(*_UNKNOWN, *FROM_CONTROLLER),
)
