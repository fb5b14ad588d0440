"""Records, commands and answers as JSON bytes, and back.

A record is ``{"type": …, "v": 0, …fields}``. An unknown field is ignored, so that an older node can
read records of a newer one at the same feature level; an unknown type or version is refused,
because a node that skipped it would have another image than the others. A batch is encoded once:
the bytes in the metadata log are the bytes that every broker is sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, fields, replace
from typing import Any, TypeVar, cast

import msgspec
import orjson

from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import ControllerEpoch, MetadataOffset, NodeId
from raft_metadata.records.commands import FetchMetadataAnswer, MetadataBatch, MetadataSnapshot
from raft_metadata.records.feature_levels import check_supported
from raft_metadata.records.records import (
    AclRecord,
    BrokerDrainRecord,
    BrokerRegistrationChangeRecord,
    ClientQuotaRecord,
    ConfigRecord,
    FeatureLevelRecord,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    PartitionsCountRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RemoveAclRecord,
    RemoveTopicRecord,
    RemoveUserScramRecord,
    TopicRecord,
    UnregisterBrokerRecord,
    UserScramRecord,
)

T = TypeVar("T")

RECORD_VERSION = 0

RECORD_TYPES: Mapping[str, type[MetadataRecord]] = {
    "feature_level": FeatureLevelRecord,
    "register_broker": RegisterBrokerRecord,
    "broker_registration_change": BrokerRegistrationChangeRecord,
    "broker_drain": BrokerDrainRecord,
    "unregister_broker": UnregisterBrokerRecord,
    "topic": TopicRecord,
    "partitions_count": PartitionsCountRecord,
    "remove_topic": RemoveTopicRecord,
    "partition": PartitionRecord,
    "partition_change": PartitionChangeRecord,
    "config": ConfigRecord,
    "producer_ids": ProducerIdsRecord,
    "client_quota": ClientQuotaRecord,
    "acl": AclRecord,
    "remove_acl": RemoveAclRecord,
    "user_scram": UserScramRecord,
    "remove_user_scram": RemoveUserScramRecord,
}
_HEADS: Mapping[type[MetadataRecord], bytes] = {
    cls: b'{"type":"%b","v":%d,' % (name.encode(), RECORD_VERSION)
    for name, cls in RECORD_TYPES.items()
}
_OPTIONS = orjson.OPT_NON_STR_KEYS

_PARTITION_FIELDS: Mapping[type[MetadataRecord], tuple[str, ...]] = {
    cls: tuple(field.name for field in fields(cls))
    for cls in (PartitionRecord, PartitionChangeRecord)
}
_OMITTED_DEFAULTS: Mapping[str, object] = {
    field.name: field.default
    for cls in _PARTITION_FIELDS
    for field in fields(cls)
    if field.default is not MISSING
}
"""Defaults that are left out of a partition's JSON; nearly every record saves 90 bytes by it."""


class UnreadableMetadataError(ValueError):
    """A record of a type or version that this node does not know, or a value that is no record."""


def encode_record(record: MetadataRecord) -> bytes:
    """Return one record as JSON. Fields of a partition that have their default are left out."""
    kind = type(record)
    if kind is PartitionChangeRecord or kind is PartitionRecord:
        fields = {name: getattr(record, name) for name in _PARTITION_FIELDS[kind]}
        said = {
            name: fields[name] for name in fields if fields[name] != _OMITTED_DEFAULTS.get(name)
        }
        return _HEADS[kind] + _dumps(said)[1:]
    return _HEADS[kind] + _dumps(record)[1:]


def decode_record(value: object) -> MetadataRecord:
    """Return the record of a parsed JSON value.

    Raises `UnreadableMetadataError`, and `NewerVersionError` for a feature level above the
    supported one.
    """
    if not isinstance(value, dict):
        raise UnreadableMetadataError(f"a record is an object, got {type(value).__name__}")
    cls = RECORD_TYPES.get(value.get("type", ""))
    if cls is None or value.get("v") != RECORD_VERSION:
        kind = f"type={value.get('type')!r} v={value.get('v')!r}"
        raise UnreadableMetadataError(f"unknown record {kind}: is this node too old?")
    try:
        record = msgspec.convert(value, cls)
    except msgspec.ValidationError as error:
        raise UnreadableMetadataError(f"{value['type']}: {error}") from error
    if isinstance(record, FeatureLevelRecord):
        # It precedes every record that it allows, so the log is refused before those are read.
        check_supported(record.level)
    return record


def join_batch(
    base_offset: int, epoch: int, records: Iterable[bytes], *, time_ms: int = 0
) -> bytes:
    """Return the JSON of a batch from its encoded records."""
    head = b'{"base_offset":%d,"epoch":%d,"time_ms":%d,"records":[' % (base_offset, epoch, time_ms)
    return head + b",".join(records) + b"]}"


def encode_batch(
    base_offset: int, epoch: int, records: Sequence[MetadataRecord], *, time_ms: int = 0
) -> bytes:
    """Return a batch as it is stored in the metadata log: a `MetadataBatch` in JSON."""
    return join_batch(base_offset, epoch, map(encode_record, records), time_ms=time_ms)


def decode_batch(payload: bytes) -> MetadataBatch:
    """Return the batch of this JSON; keeps ``payload`` so that it is never encoded again.

    Raises `UnreadableMetadataError`.
    """
    try:
        return replace(_batch(orjson.loads(payload)), encoded=payload)
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise UnreadableMetadataError(f"not a batch of records: {error!r}") from error


def encode_snapshot(snapshot: MetadataSnapshot) -> bytes:
    """Return a `MetadataSnapshot` as JSON."""
    head = b'{"next_offset":%d,"epoch":%d,"records":[' % (snapshot.next_offset, snapshot.epoch)
    return head + b",".join(map(encode_record, snapshot.records)) + b"]}"


def to_json(value: object) -> bytes:
    """Return a command or an answer as JSON; encoded parts are embedded unchanged."""
    match value:
        case FetchMetadataAnswer():
            return _encode_answer(value)
        case MetadataBatch():
            return value.encoded or encode_batch(
                value.base_offset, value.epoch, value.records, time_ms=value.time_ms
            )
        case MetadataSnapshot():
            return value.encoded or encode_snapshot(value)
        case _:
            return _dumps(value)


def from_json(payload: bytes, cls: type[T]) -> T:
    """Return the value of this JSON; the inverse of `to_json`.

    Unknown fields are ignored. Raises INVALID_REQUEST with the reason.
    """
    try:
        if cls is FetchMetadataAnswer:
            return cast(T, _decode_answer(payload))
        value = orjson.loads(payload)
        if not isinstance(value, dict):
            raise TypeError(f"expected an object, got {type(value).__name__}")
        if cls is MetadataBatch:
            return cast(T, _batch(value))
        if cls is MetadataSnapshot:
            return cast(T, _snapshot(value))
        return msgspec.convert(value, cls, str_keys=True)
    except (ValueError, KeyError, TypeError) as error:
        # Covers orjson.JSONDecodeError, msgspec.ValidationError and UnreadableMetadataError.
        message = f"malformed {cls.__name__}: {error}"
        raise KafkaError(ErrorCode.INVALID_REQUEST, message) from error


def _dumps(value: object) -> bytes:
    return orjson.dumps(value, default=_named_tuple, option=_OPTIONS)


def _named_tuple(value: object) -> object:
    """Return a named tuple as a list; orjson calls this for types it can't encode."""
    if isinstance(value, tuple):
        return list(value)
    raise TypeError(f"{type(value).__name__} is not a field of a record, command or answer")


def _encode_answer(answer: FetchMetadataAnswer) -> bytes:
    snapshot = answer.snapshot
    return orjson.dumps(
        {
            "leader_id": answer.leader_id,
            "epoch": answer.epoch,
            "leader_contact_age_ms": answer.leader_contact_age_ms,
            "end_offset": answer.end_offset,
            "batches": [orjson.Fragment(to_json(batch)) for batch in answer.batches],
            "snapshot": None if snapshot is None else orjson.Fragment(to_json(snapshot)),
        }
    )


class _RawRecords(msgspec.Struct):
    """A batch or a snapshot whose records are still JSON."""

    epoch: int
    records: list[msgspec.Raw]
    base_offset: int = -1
    next_offset: int = -1
    time_ms: int = 0

    def decoded(self) -> tuple[MetadataRecord, ...]:
        return tuple(decode_record(msgspec.json.decode(record)) for record in self.records)


class _RawFetchAnswer(msgspec.Struct):
    """A `FetchMetadataAnswer` whose records are still JSON."""

    leader_id: int | None
    epoch: int
    leader_contact_age_ms: int
    end_offset: int
    batches: list[_RawRecords] = []
    snapshot: _RawRecords | None = None


def _decode_answer(payload: bytes) -> FetchMetadataAnswer:
    """Return the answer of this JSON, decoded record by record.

    Decoding 30 MB in one call would block every thread of a broker for half a second.
    """
    parts = msgspec.json.decode(payload, type=_RawFetchAnswer)
    batches = [
        MetadataBatch(
            base_offset=MetadataOffset(_offset(batch.base_offset, "base_offset")),
            epoch=ControllerEpoch(batch.epoch),
            time_ms=batch.time_ms,
            records=batch.decoded(),
        )
        for batch in parts.batches
    ]
    snapshot = None
    if parts.snapshot is not None:
        snapshot = MetadataSnapshot(
            next_offset=MetadataOffset(_offset(parts.snapshot.next_offset, "next_offset")),
            epoch=ControllerEpoch(parts.snapshot.epoch),
            records=parts.snapshot.decoded(),
        )
    return FetchMetadataAnswer(
        leader_id=None if parts.leader_id is None else NodeId(parts.leader_id),
        epoch=ControllerEpoch(parts.epoch),
        leader_contact_age_ms=parts.leader_contact_age_ms,
        end_offset=MetadataOffset(parts.end_offset),
        batches=tuple(batches),
        snapshot=snapshot,
    )


def _offset(value: int, name: str) -> int:
    """Return the offset; raise KeyError with the field's name if it was absent."""
    if value < 0:
        raise KeyError(name)
    return value


def _batch(value: dict[str, Any]) -> MetadataBatch:
    return MetadataBatch(
        base_offset=MetadataOffset(msgspec.convert(value["base_offset"], int)),
        epoch=ControllerEpoch(msgspec.convert(value["epoch"], int)),
        time_ms=msgspec.convert(value["time_ms"], int),
        records=tuple(map(decode_record, value["records"])),
    )


def _snapshot(value: dict[str, Any]) -> MetadataSnapshot:
    return MetadataSnapshot(
        next_offset=MetadataOffset(msgspec.convert(value["next_offset"], int)),
        epoch=ControllerEpoch(msgspec.convert(value["epoch"], int)),
        records=tuple(map(decode_record, value["records"])),
    )
