"""JSON shapes of transactions in the v3 API, written from `transaction_resources`.

An id stands below the group whose offsets it may commit, or directly below the cluster; the same
name in two such places is two ids.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from http_api.contract.group_shapes import GROUPS

if TYPE_CHECKING:
    from http_api.contract.transaction_resources import (
        AbortResult,
        DecidedPosition,
        DroppedPartition,
        LostPartition,
        PlacedPartition,
        ProducerLife,
        TransactionInfo,
        TransactionResult,
        WaitingPartition,
    )
    from http_api.contract.v3 import JsonObject, Links

TRANSACTIONS = "transactions"
KIND = "KafkaTransaction"
ID_KIND = "KafkaTransactionalId"


def transactions_path(group: str | None) -> tuple[str, ...]:
    """Return the path of the transactions of a group, or of those without one."""
    return (GROUPS, group, TRANSACTIONS) if group else (TRANSACTIONS,)


def result(links: Links, found: TransactionResult) -> JsonObject:
    """Return the answer to a commit."""
    return _resource(links, KIND, found.transaction_id, found.group) | {
        "epoch": found.epoch,
        "number": found.number,
        "state": found.state,
        "already": found.already,
        "rows": found.rows,
        "partitions": _placed(found.partitions),
        "pending": _waiting(found.pending),
        "dropped": _dropped(found.dropped),
        "lost": _lost(found.lost),
    }


def abort(found: AbortResult) -> JsonObject:
    """Return the answer to an abort."""
    return {"state": found.state, "lost": _lost(found.lost)}


def life(links: Links, found: ProducerLife) -> JsonObject:
    """Return the answer to an init."""
    return _resource(links, ID_KIND, found.transaction_id, found.group) | {
        "epoch": found.epoch,
        "last": _last(found.last),
        "forgotten_to_epoch": found.forgotten_to_epoch,
        "chunk_max_bytes": found.chunk_max_bytes,
    }


def info(links: Links, found: TransactionInfo) -> JsonObject:
    """Return a transactional id with what is known of it."""
    return _resource(links, KIND, found.transaction_id, found.group) | {
        "epoch": found.epoch,
        "last": _last(found.last),
        "state": found.state,
        "decided_ms": found.decided_ms,
        "member_id": found.member_id,
        "partitions": _placed(found.partitions),
        "pending": _waiting(found.pending),
        "dropped": _dropped(found.dropped),
        "lost": _lost(found.lost),
        "attempts": [
            {
                "attempt_id": one.attempt_id,
                "epoch": one.epoch,
                "number": one.number,
                "chunks": one.chunks,
                "rows": one.rows,
                "bytes": one.bytes,
                "age_ms": one.age_ms,
            }
            for one in found.attempts
        ],
        "home": {
            "topic_name": found.home_topic,
            "partition_id": found.home_partition,
            "leader_id": found.leader,
        },
    }


def _resource(links: Links, kind: str, id_: str, group: str | None) -> JsonObject:
    of_group = f"consumer-group={group}/" if group else ""
    name = quote(id_, safe=":")
    path = (*transactions_path(group), name)
    return links.resource(kind, f"{of_group}transaction={name}", *path) | {
        "transaction_id": id_,
        "group_id": group,
    }


def _last(found: DecidedPosition | None) -> JsonObject | None:
    if found is None:
        return None
    return {
        "epoch": found.epoch,
        "number": found.number,
        "state": found.state,
        "lost_rows": found.lost_rows,
    }


def _placed(found: tuple[PlacedPartition, ...]) -> list[dict[str, Any]]:
    return [
        {
            "topic_name": one.topic,
            "topic_id": one.topic_id,
            "partition_id": one.partition,
            "base_offset": one.base_offset,
            "rows": one.rows,
        }
        for one in found
    ]


def _waiting(found: tuple[WaitingPartition, ...]) -> list[dict[str, Any]]:
    return [
        {"topic_name": one.topic, "partition_id": one.partition, "reason": one.reason}
        for one in found
    ]


def _dropped(found: tuple[DroppedPartition, ...]) -> list[dict[str, Any]]:
    return [{"topic_id": one.topic_id, "partition_id": one.partition} for one in found]


def _lost(found: tuple[LostPartition, ...]) -> list[dict[str, Any]]:
    return [
        {
            "topic_name": one.topic,
            "topic_id": one.topic_id,
            "partition_id": one.partition,
            "rows": one.rows,
        }
        for one in found
    ]
