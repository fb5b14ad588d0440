"""Operations on the answering broker: readiness, its state and events, the API's description."""

from __future__ import annotations

from typing import Final

from http_api.contract.errors import RestCode
from http_api.contract.media_types import JSON, TEXT, V2
from http_api.contract.operations.declaration import Header, Operation, Reply, reply
from http_api.contract.operations.parameters import (
    INT32_MAX,
    FlagParameter,
    IntegerParameter,
    TextParameter,
)
from http_api.contract.operations.shared import CLUSTER_ID, TOPIC, TOPIC_ID

_TAG: Final = "This broker"

ROOT: Final = Operation(
    "GET",
    "/",
    tag=_TAG,
    summary="Answer an empty object",
    replies=(reply({}, content_type=V2),),
)
HEALTHZ: Final = Operation(
    "GET",
    "/healthz",
    tag=_TAG,
    summary="Answer while the process lives",
    replies=(reply("ok\n", content_type=TEXT),),
)
READYZ: Final = Operation(
    "GET",
    "/readyz",
    tag=_TAG,
    summary="Tell if the broker serves requests",
    replies=(
        reply("[+]registered ok\n", "Ready, with a line for each reason.", content_type=TEXT),
        reply("[-]registered\n", "Not ready; `[-]` marks why.", 503, content_type=TEXT),
    ),
)

STATE_TOPIC: Final = TextParameter(
    "topic", description="Only the replicas of this topic.", example=TOPIC
)
STATE_PARTITION: Final = IntegerParameter(
    "partition",
    maximum=INT32_MAX,
    description="Only the replica of this partition; `topic` is required beside it.",
    example=0,
)
STATE_AFTER: Final = TextParameter(
    "after",
    description="Behind which replica the answer begins: `next` of an earlier one.",
    example=f"{TOPIC}:0",
)
STATE_LIMIT: Final = IntegerParameter(
    "limit",
    default=500,
    minimum=1,
    maximum=2_000,
    description="Most replicas of the answer; 2,000 make 2 MB.",
    example=100,
)
CHAIN: Final = FlagParameter(
    "chain",
    description="Adds one number over all batches of one partition, which must be named.",
    example=True,
)
CHAIN_FROM: Final = IntegerParameter("from", description="First offset of the chain.", example=0)
CHAIN_TO: Final = IntegerParameter("to", description="End of the chain, exclusive.", example=1_024)
_LIFE: Final = {
    "broker_id": 1,
    "incarnation_id": "b9rHhM4cQvS0dV0Yw2s6uQ",
    "monotonic_ms": 52_000,
    "wall_ms": 1_795_354_422_224,
}
_NONE: Final = {"count": 0, "partitions": []}
STATE: Final = Operation(
    "GET",
    "/broker/v1/state",
    tag=_TAG,
    summary="Read the broker's state, replica by replica",
    parameters=(
        STATE_TOPIC,
        STATE_PARTITION,
        STATE_AFTER,
        STATE_LIMIT,
        CHAIN,
        CHAIN_FROM,
        CHAIN_TO,
    ),
    replies=(
        reply(
            {
                **_LIFE,
                "cluster_id": CLUSTER_ID,
                "directory_id": "Zk0cV0vZQ8yqPp0l5mYx3A",
                "broker_epoch": 17,
                "state": "unfenced",
                "metadata_offset": 1_043,
                "log_directory_error": None,
                "flush_rounds": 12,
                "open_segments": 3,
                "fetched": {"cached_bytes": 4_096, "cold_bytes": 0},
                "events": {"sequence": 40, "dropped": 0},
                "replicas": 1,
                "leaders": 1,
                "offline": _NONE,
                "unclean": _NONE,
                "damaged": _NONE,
                "partitions": [{"topic": TOPIC, "topic_id": TOPIC_ID, "partition": 0}],
                "next": f"{TOPIC}:0",
            }
        ),
    ),
    errors=(RestCode.UNKNOWN_TOPIC_OR_PARTITION, RestCode.BROKER_NOT_AVAILABLE),
)
EVENTS_AFTER: Final = IntegerParameter(
    "after", default=0, description="Sequence number behind which the answer begins.", example=0
)
EVENTS_LIMIT: Final = IntegerParameter(
    "limit",
    default=1_000,
    minimum=1,
    maximum=10_000,
    description="Most events of the answer; 10,000 make 4 MB.",
    example=100,
)
EVENTS: Final = Operation(
    "GET",
    "/broker/v1/events",
    tag=_TAG,
    summary="Read the events of the broker's replicas, oldest first",
    parameters=(EVENTS_AFTER, EVENTS_LIMIT),
    replies=(
        reply(
            {
                **_LIFE,
                "next": 40,
                "events": [
                    {
                        "sequence": 40,
                        "incarnation_id": "b9rHhM4cQvS0dV0Yw2s6uQ",
                        "monotonic_ms": 51_000,
                        "wall_ms": 1_795_354_421_224,
                        "kind": "became_leader",
                        "topic": TOPIC,
                        "topic_id": TOPIC_ID,
                        "partition": 0,
                        "leader_epoch": 5,
                        "facts": {},
                    }
                ],
            }
        ),
    ),
)

# The API itself: its document, and the page that shows it

HTML: Final = "text/html; charset=utf-8"
CSP: Final = Header(
    "Content-Security-Policy",
    "Nothing is loaded from elsewhere.",
    "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:",
    is_constant=True,
)

OPENAPI: Final = Operation(
    "GET",
    "/openapi.json",
    tag=_TAG,
    summary="Read this document",
    replies=(
        reply(
            {
                "openapi": "3.1.0",
                "info": {"title": "quorumlog", "version": "0.1.0"},
                "servers": [{"url": "http://127.0.0.1:8082"}],
                "paths": {},
            }
        ),
    ),
)
DOCS: Final = Operation(
    "GET",
    "/docs",
    tag=_TAG,
    summary="Show this document as a page",
    description="Swagger UI where it is installed, else a plain list.",
    replies=(reply("<!doctype html>…", "The page.", content_type=HTML, headers=(CSP,)),),
    error_type=JSON,
)
DOCS_FILE: Final = Operation(
    "GET",
    "/docs/{file_name}",
    tag=_TAG,
    summary="Read a file of the page",
    replies=(
        Reply(
            200,
            "The file.",
            {
                "text/css": ".swagger-ui{}",
                "text/javascript": "start()",
                "image/png": "…",
            },
        ),
    ),
    errors=(RestCode.NOT_FOUND,),
    error_type=JSON,
)
