"""Operations on the cluster: v3 features, access rules, producer ids, quorum, health, metadata."""

from __future__ import annotations

from typing import Final

from http_api.contract import v3
from http_api.contract.idempotence import producer_id
from http_api.contract.media_types import JSON, NDJSON
from http_api.contract.operations.declaration import (
    CLUSTER,
    OF_A_CLUSTER,
    Body,
    Header,
    Operation,
    reply,
)
from http_api.contract.operations.parameters import IntegerParameter, TextParameter
from http_api.contract.operations.schemas import AnyValue
from http_api.contract.operations.shared import (
    FROM_CONTROLLER,
    LINKS,
    PAGE_SIZE,
    PAGE_TOKEN,
    VALIDATE_ONLY,
    resource,
)
from http_api.contract.resources import Features

_TAG: Final = "Cluster"
_METADATA: Final = "Metadata"
_CLUSTER: Final = v3.cluster(LINKS, 101)
_FEATURES: Final = v3.features(
    LINKS,
    Features(metadata_version=7, supported_min=1, supported_max=7, brokers={1: 7, 2: 7, 3: 7}),
)

LIST: Final = Operation(
    "GET",
    "/v3/clusters",
    tag=_TAG,
    summary="List the clusters: this one",
    replies=(reply(v3.clusters(LINKS.base_url, [_CLUSTER])),),
    parameters=(PAGE_SIZE, PAGE_TOKEN),
    errors=OF_A_CLUSTER,
)
DESCRIBE: Final = resource("", _TAG, "Describe the cluster", _CLUSTER)
FEATURES: Final = resource("/features", _TAG, "Read the features and their levels", _FEATURES)
UPGRADE: Final = Operation(
    "PATCH",
    CLUSTER + "/features",
    tag=_TAG,
    summary="Raise metadata.version",
    description="It is never lowered. Null: the highest level that every node can follow.",
    body=Body(
        fields={
            "metadata_version": {"type": ["integer", "null"], "minimum": 1},
            "validate_only": VALIDATE_ONLY,
        },
        needed=("metadata_version",),
        example={"metadata_version": None, "validate_only": True},
    ),
    replies=(reply(_FEATURES | {"metadata_version_before": 6}),),
    errors=FROM_CONTROLLER,
)
PRODUCER_ID: Final = Operation(
    "POST",
    CLUSTER + "/producer-ids",
    tag="Records",
    summary="Get a producer id that was never given before",
    body=Body(fields={}, example={}, is_optional=True),
    replies=(reply(producer_id(LINKS, 4_000)),),
    errors=FROM_CONTROLLER,
)

# Access rules, which do not exist yet: Confluent's parameters get the refusal that names the reason

_RULE_PARAMETERS: Final = tuple(
    TextParameter(name, description="Confluent's, without an effect.", example=example)
    for name, example in (
        ("resource_type", "TOPIC"),
        ("resource_name", "orders"),
        ("pattern_type", "LITERAL"),
        ("principal", "User:alice"),
        ("host", "*"),
        ("operation", "READ"),
        ("permission", "ALLOW"),
    )
)
ACCESS_RULES: Final = (
    *(
        Operation(
            method,
            CLUSTER + "/acls",
            tag="Access rules",
            summary="Refused: there are no access rules",
            replies=(),
            parameters=_RULE_PARAMETERS,
            error_type=JSON,
        )
        for method in ("GET", "POST", "PUT", "PATCH", "DELETE")
    ),
    Operation(
        "POST",
        CLUSTER + "/acls:batch",
        tag="Access rules",
        summary="Refused: there are no access rules",
        replies=(),
        error_type=JSON,
    ),
)

# Quorum, health, metadata

NEXT_OFFSET: Final = Header(
    "Quorumlog-Next-Offset", "Where the next read goes on.", 1_043, is_constant=True
)
END_OFFSET: Final = Header("Quorumlog-End-Offset", "End of the log.", 1_043, is_constant=True)
_VOTER: Final = {
    "voter_id": 101,
    "directory_id": "Zk0cV0vZQ8yqPp0l5mYx3A",
    "url": "http://127.0.0.1:10082",
    "is_leader": True,
    "is_connected": True,
    "log_end_index": 1_044,
    "lag": 0,
    "feature_level_max": 7,
    "last_fetch_timestamp": 1_795_354_422_224,
    "last_caught_up_timestamp": 1_795_354_422_224,
    "contact_age_ms": 12,
    "caught_up_age_ms": 12,
    "is_reachable": True,
    "fence": "none",
}
_OBSERVER: Final = {
    "broker_id": 1,
    "broker_epoch": 17,
    "state": "unfenced",
    "log_end_offset": 1_043,
    "lag": 0,
    "last_fetch_timestamp": 1_795_354_422_224,
    "last_caught_up_timestamp": 1_795_354_422_224,
    "contact_age_ms": 40,
    "caught_up_age_ms": 40,
}
QUORUM: Final = resource(
    "/quorum",
    _METADATA,
    "Describe the metadata quorum",
    LINKS.resource("KafkaQuorum", "quorum", "quorum")
    | {
        "leader_id": 101,
        "leader_epoch": 3,
        "high_watermark": 1_043,
        "commit_index": 1_044,
        "log_end_index": 1_044,
        "feature_level": 7,
        "told_by": 101,
        "is_from_leader": True,
        "voters": [_VOTER],
        "observers": [_OBSERVER],
    },
    errors=FROM_CONTROLLER,
)
HEALTH: Final = resource(
    ":health",
    _METADATA,
    "Judge the cluster's health",
    v3.health(
        LINKS,
        "degraded",
        [
            v3.health_reason(
                "UNDER_REPLICATED",
                "degraded",
                "a replica is out of sync",
                1,
                ["orders:0"],
            )
        ],
        {"brokers": 3, "under_replicated_partitions": 1},
        101,
        1_043,
    ),
    description="Always 200: poor health is no failed request.",
)
LOG_OFFSET: Final = IntegerParameter(
    "offset", default=0, description="First metadata record of the answer.", example=0
)
LOG_TIMEOUT: Final = IntegerParameter(
    "timeout",
    default=0,
    maximum=30_000,
    description="Milliseconds to wait for the first record.",
    example=1_000,
)
LOG_MAX: Final = IntegerParameter(
    "max",
    default=10_000,
    minimum=1,
    maximum=100_000,
    description="Most records of the answer; a snapshot is sent whole.",
    example=100,
)
LOG: Final = Operation(
    "GET",
    CLUSTER + "/metadata/log",
    tag=_METADATA,
    summary="Read the metadata log, a fact a line",
    replies=(
        reply(
            '{"offset":1042,"epoch":3,"time":1795354422224,"type":"topic","name":"orders"}\n',
            headers=(NEXT_OFFSET, END_OFFSET),
            content_type=NDJSON,
        ),
    ),
    parameters=(LOG_OFFSET, LOG_TIMEOUT, LOG_MAX),
    error_type=JSON,
    errors=FROM_CONTROLLER,
)
IMAGE_DEPTH_MAX: Final = 6
"""Most segments of a path into the image; the deepest is ``topics/orders/partitions/0/isr/1``."""
IMAGE: Final = tuple(
    Operation(
        "GET",
        CLUSTER + "/metadata/image" + "".join(f"/{{part_{number}}}" for number in range(depth)),
        tag=_METADATA,
        summary="Read the metadata image" + (f" at a path of {depth} segments" if depth else ""),
        replies=(
            reply(AnyValue({}), "The value there, with all below it.", headers=(NEXT_OFFSET,)),
        ),
    )
    for depth in range(IMAGE_DEPTH_MAX + 1)
)
