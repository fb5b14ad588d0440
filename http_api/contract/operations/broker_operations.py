"""Operations on brokers: v3 list, describe, drain, unregister, replicas."""

from __future__ import annotations

from typing import Final

from http_api.contract import v3
from http_api.contract.operations.declaration import (
    CLUSTER,
    Body,
    Operation,
    no_content,
    reply,
)
from http_api.contract.operations.parameters import WordParameter
from http_api.contract.operations.partition_operations import PARTITION
from http_api.contract.operations.shared import FROM_CONTROLLER, LINKS, listing, resource
from http_api.contract.resources import BrokerInfo, DrainProgress, StuckPartition

_TAG: Final = "Brokers"
_BROKERS: Final = "/brokers"
_ONE: Final = "/brokers/{broker_id}"
_ROW: Final = v3.broker(
    LINKS,
    BrokerInfo(
        broker_id=1,
        url="http://127.0.0.1:8082",
        rack="a",
        state="unfenced",
        broker_epoch=17,
        drain="leaders",
        leader_count=2,
        replica_count=6,
    ),
)
_EXAMPLE: Final = _ROW | {
    "drain_progress": v3.drain_progress(
        DrainProgress(
            is_done=False,
            leaders_left=2,
            replicas_left=6,
            stuck=(StuckPartition(topic="orders", partition=0, reason="no other live replica"),),
        )
    ),
    "shutdown_blocked_by": None,
}

INCLUDE: Final = WordParameter(
    "include",
    words=("live", "all"),
    default="live",
    description="`all`: every registered broker, the fenced ones, too.",
    example="all",
)
LIST: Final = listing(_BROKERS, _TAG, "List the brokers", _ROW, parameters=(INCLUDE,))
DESCRIBE: Final = resource(
    _ONE,
    _TAG,
    "Describe a broker, live or not",
    _EXAMPLE,
    description=(
        "`drain_progress` is there while it is drained, `shutdown_blocked_by` while it shuts down."
    ),
)
UNREGISTER: Final = Operation(
    "DELETE",
    CLUSTER + _ONE,
    tag=_TAG,
    summary="Forget a broker that is down and holds no replicas",
    replies=(no_content("The broker is not registered any more."),),
    errors=FROM_CONTROLLER,
)
DRAIN: Final = Operation(
    "POST",
    CLUSTER + _ONE + ":drain",
    tag=_TAG,
    summary="Move leaderships or replicas away from a broker",
    description="It lasts over restarts, until the scope is `none` again.",
    body=Body(
        fields={
            "scope": {
                "enum": ["none", "leaders", "replicas"],
                "description": "`none` ends a drain.",
            }
        },
        needed=("scope",),
        example={"scope": "leaders"},
    ),
    replies=(reply(_EXAMPLE, "The broker, with the progress so far."),),
    errors=FROM_CONTROLLER,
)
REPLICAS: Final = listing(
    _ONE + "/partition-replicas",
    _TAG,
    "List the replicas that a broker holds",
    v3.replica(LINKS, PARTITION, 1),
)
