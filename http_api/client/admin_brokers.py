"""Calls that operate brokers (describe, drain, unregister) and raise ``metadata.version``.

Used by `quorumlog broker` and `quorumlog cluster`. The paths extend the v3 API and are
quorumlog's own. Each function returns a `Call`; nothing here does I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from http_api.client.admin import CREATE_TIMEOUT_S, BrokerInfo, broker_of, v3_path
from http_api.client.calls import Call, Request


@dataclass(frozen=True, slots=True, kw_only=True)
class StuckPartition:
    """A partition that a drain could not move yet, and the reason."""

    topic: str
    partition: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainProgress:
    """Leaderships and replicas that a drain still has to move off its broker."""

    is_done: bool
    leaders_left: int
    replicas_left: int
    stuck: tuple[StuckPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerDetails:
    """A registered broker; ``progress`` is None unless the broker is being drained."""

    info: BrokerInfo
    progress: DrainProgress | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """The finalized ``metadata.version``, and the highest level that each broker supports."""

    metadata_version: int
    supported_min: int
    supported_max: int
    brokers: Mapping[int, int]
    metadata_version_before: int | None = None
    """Level before an upgrade; None in the answer to any other call."""


def broker(cluster_id: str, broker_id: int) -> Call[BrokerDetails]:
    """Return the call that reads a registered broker, live or not; `ApiError` 404 if unknown."""
    request = Request(method="GET", path=v3_path(cluster_id, "brokers", broker_id))
    return Call(request, lambda answer: _details(answer.json()))


def drain(cluster_id: str, broker_id: int, scope: str) -> Call[BrokerDetails]:
    """Return the call that starts or ends the drain of a broker.

    ``scope`` is ``leaders`` or ``replicas``, the partitions to move away, or ``none``, which ends
    the drain. The moves continue after the answer; `broker` reports their progress.
    """
    request = Request(
        method="POST",
        path=v3_path(cluster_id, "brokers", f"{broker_id}:drain"),
        body=orjson.dumps({"scope": scope}),
        timeout_s=CREATE_TIMEOUT_S,
    )
    return Call(request, lambda answer: _details(answer.json()))


def unregister(cluster_id: str, broker_id: int) -> Call[None]:
    """Return the call that removes a broker for good.

    Raises `ApiError` 40002 if the broker is live or holds replicas.
    """
    request = Request(
        method="DELETE",
        path=v3_path(cluster_id, "brokers", broker_id),
        timeout_s=CREATE_TIMEOUT_S,
    )
    return Call(request, lambda _: None)


def features(cluster_id: str) -> Call[Features]:
    """Return the call that reads ``metadata.version`` and the levels that the brokers support."""
    request = Request(method="GET", path=v3_path(cluster_id, "features"))
    return Call(request, lambda answer: _features(answer.json()))


def upgrade(
    cluster_id: str, level: int | None = None, *, validate_only: bool = False
) -> Call[Features]:
    """Return the call that raises ``metadata.version`` to ``level``; the level is never lowered.

    None raises it to the highest level that every node supports. ``validate_only`` changes nothing.
    """
    request = Request(
        method="PATCH",
        path=v3_path(cluster_id, "features"),
        body=orjson.dumps({"metadata_version": level, "validate_only": validate_only}),
        timeout_s=CREATE_TIMEOUT_S,
    )
    return Call(request, lambda answer: _features(answer.json()))


def _details(row: Mapping[str, Any]) -> BrokerDetails:
    progress = row.get("drain_progress")
    return BrokerDetails(
        info=broker_of(row), progress=None if progress is None else _progress(progress)
    )


def _progress(row: Mapping[str, Any]) -> DrainProgress:
    return DrainProgress(
        is_done=row["is_done"],
        leaders_left=row["leaders_left"],
        replicas_left=row["replicas_left"],
        stuck=tuple(
            StuckPartition(
                topic=one["topic_name"], partition=one["partition_id"], reason=one["reason"]
            )
            for one in row["stuck"]
        ),
    )


def _features(row: Mapping[str, Any]) -> Features:
    return Features(
        metadata_version=row["metadata_version"],
        supported_min=row["supported_min"],
        supported_max=row["supported_max"],
        brokers={one["broker_id"]: one["supported_max"] for one in row["brokers"]},
        metadata_version_before=row.get("metadata_version_before"),
    )
