"""Calls that operate brokers: drain, unregister; and ``metadata.version`` (v3, our own paths)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from http_api.client.admin import CREATE_TIMEOUT_S, BrokerInfo, broker_of, v3_path
from http_api.client.calls import Call, Request


@dataclass(frozen=True, slots=True, kw_only=True)
class StuckPartition:
    """A partition that a drain has not moved yet, and why."""

    topic: str
    partition: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainProgress:
    """How far a drain is."""

    is_done: bool
    leaders_left: int
    replicas_left: int
    stuck: tuple[StuckPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerDetails:
    """One registered broker; ``progress`` is None while nothing is drained."""

    info: BrokerInfo
    progress: DrainProgress | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """``metadata.version``: where it is, and how far each broker could follow."""

    metadata_version: int
    supported_min: int
    supported_max: int
    brokers: Mapping[int, int]
    metadata_version_before: int | None = None
    """Set by an upgrade."""


def broker(cluster_id: str, broker_id: int) -> Call[BrokerDetails]:
    """One registered broker, alive or not; `ApiError` 404 if there is none."""
    request = Request(method="GET", path=v3_path(cluster_id, "brokers", broker_id))
    return Call(request, lambda answer: _details(answer.json()))


def drain(cluster_id: str, broker_id: int, scope: str) -> Call[BrokerDetails]:
    """Rid a broker of its ``leaders`` or ``replicas``, or (``none``) end that.

    It goes on after the answer; `broker` tells how far.
    """
    request = Request(
        method="POST",
        path=v3_path(cluster_id, "brokers", f"{broker_id}:drain"),
        body=orjson.dumps({"scope": scope}),
        timeout_s=CREATE_TIMEOUT_S,
    )
    return Call(request, lambda answer: _details(answer.json()))


def unregister(cluster_id: str, broker_id: int) -> Call[None]:
    """Take a broker out for good; `ApiError` 40002 while it lives or holds replicas."""
    request = Request(
        method="DELETE",
        path=v3_path(cluster_id, "brokers", broker_id),
        timeout_s=CREATE_TIMEOUT_S,
    )
    return Call(request, lambda _: None)


def features(cluster_id: str) -> Call[Features]:
    """``metadata.version`` as it is."""
    request = Request(method="GET", path=v3_path(cluster_id, "features"))
    return Call(request, lambda answer: _features(answer.json()))


def upgrade(
    cluster_id: str, level: int | None = None, *, validate_only: bool = False
) -> Call[Features]:
    """Raise it; None: as far as every node can follow. It is never lowered."""
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
