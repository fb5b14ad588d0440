"""Requests to a home and to its targets, and their encoding between brokers. Pure.

A body is the u32 length of a JSON head, the head, then rows as a JSON array in the client's text
(rule R12). A `HomeRequest` goes to the leader of the home, an `ApplyUnits` from there to the leader
of a target.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec
import orjson

from broker.transactions.home_records import (
    StagedPlace,
    Target,
    decode_rows_array,
    encode_target_rows,
)
from broker.transactions.messages import (
    AttemptNamed,
    KeyPosition,
    LastPosition,
    NumberedPosition,
    OffsetMove,
    Position,
    ProducerInitialized,
    ProducerPosition,
    TargetRows,
    TransactionalId,
    TransactionDescription,
    TransactionOutcome,
    TransactionState,
)
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import InstanceId, PartitionId

A = TypeVar("A")
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class HomeRequest(Generic[A]):
    """A request about one id, to the leader of its home."""

    id: TransactionalId
    timeout_ms: int
    """Time left for it: it is dropped behind it (rule S12)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InitId(HomeRequest[ProducerInitialized]):
    """Request for the next epoch of a producer's id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitPosition(HomeRequest[TransactionOutcome]):
    """Request to decide a position. Its rows are ``inline``, or staged under ``attempts``."""

    position: Position
    digest: str
    inline: tuple[TargetRows, ...] = ()
    attempts: tuple[AttemptNamed, ...] = ()
    offsets: tuple[OffsetMove, ...] = ()
    member_id: InstanceId | None = None
    member_epoch: int | None = None
    layout: int = 0
    """See `TransactionOutcome.layout`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortPosition(HomeRequest[LastPosition]):
    """Request to abort a producer's position, or to hear what was decided before."""

    position: ProducerPosition


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeId(HomeRequest[TransactionDescription]):
    """Request for the description of an id; TRANSACTIONAL_ID_NOT_FOUND."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetId(HomeRequest[None]):
    """Request to forget a numbered id or a key."""


_ANSWERS: Mapping[type[HomeRequest[Any]], Any] = {
    InitId: ProducerInitialized,
    CommitPosition: TransactionOutcome,
    AbortPosition: LastPosition,
    DescribeId: TransactionDescription,
    ForgetId: None,
}
_REQUESTS: Mapping[str, type[HomeRequest[Any]]] = {cls.__name__: cls for cls in _ANSWERS}
_LENGTH = struct.Struct("<I")


def encode_home_request(request: HomeRequest[Any]) -> bytes:
    """Return the body of a TXN request between brokers."""
    fields = {name: getattr(request, name) for name in request.__dataclass_fields__}
    rows: Sequence[TargetRows] = fields.pop("inline", ())
    head = orjson.dumps({"request": [type(request).__name__, fields]}, default=_plain)
    return _join(head, rows)


def decode_home_request(body: bytes) -> HomeRequest[Any]:
    """Return the request of a TXN body; raise INVALID_REQUEST, which describes the defect."""
    try:
        head, rows = _parted(body)
        name, fields = head["request"]
        cls = _REQUESTS[name]
        if "position" in fields:
            fields["position"] = _position_in(fields["position"])
        if cls is not CommitPosition:
            return _converted(cls, fields)
        position = fields.pop("position")
        found = _converted(_CommitFields, fields)
        known = {one: getattr(found, one) for one in found.__dataclass_fields__}
        return CommitPosition(**known, position=position, inline=rows)
    except (struct.error, ValueError, KeyError, TypeError) as error:
        text = f"malformed request to a home: {error}"
        raise KafkaError(ErrorCode.INVALID_REQUEST, text) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class _CommitFields:
    """The fields of a `CommitPosition` that msgspec converts as they are."""

    id: TransactionalId
    timeout_ms: int
    digest: str
    attempts: tuple[AttemptNamed, ...]
    offsets: tuple[OffsetMove, ...]
    member_id: InstanceId | None
    member_epoch: int | None
    layout: int


def _converted(cls: type[T], fields: dict[str, Any]) -> T:
    return msgspec.convert(fields, cls)


def _position_in(fields: dict[str, Any] | list[Any]) -> Position:
    if isinstance(fields, list):
        return msgspec.convert(fields, ProducerPosition)
    return NumberedPosition(**fields) if fields else KeyPosition()


def encode_home_answer(answer: object) -> bytes:
    """Return the body of the answer to a home's request."""
    return _join(orjson.dumps({"answer": answer}, default=_plain), ())


def decode_home_answer(request: HomeRequest[A], body: bytes) -> A:
    """Return the answer to ``request`` of a body made by `encode_home_answer`."""
    cls = _ANSWERS[type(request)]
    found = _parted(body)[0]["answer"]
    answer: Any = None if cls is None else msgspec.convert(found, cls)
    return answer  # type: ignore[no-any-return]


def encode_list(partition: PartitionId, state: TransactionState | None) -> bytes:
    """Return the body of a request for all ids of one home in a state, or in any."""
    wanted = None if state is None else state.value
    return _join(orjson.dumps({"partition": partition, "state": wanted}), ())


def decode_list(body: bytes) -> tuple[PartitionId, TransactionState | None]:
    """Return the home's partition and the state of a body made by `encode_list`."""
    head, _ = _parted(body)
    wanted = head["state"]
    return head["partition"], None if wanted is None else TransactionState(wanted)


def decode_descriptions(body: bytes) -> tuple[TransactionDescription, ...]:
    """Return the answer to a request for all ids of a home."""
    return msgspec.convert(_parted(body)[0]["answer"], tuple[TransactionDescription, ...])


# to targets


class UnitRows(NamedTuple):
    """A unit on its way to its target: its number, and its rows or where they are staged."""

    number: int
    rows: int
    source: TargetRows | StagedPlace


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyUnits:
    """Units of one home for one target, in the order of their numbers (rule S4).

    The target takes them if its end for the numbering is ``after``.
    """

    target: Target
    numbering: int
    after: int
    units: tuple[UnitRows, ...]


@dataclass(frozen=True, slots=True)
class UnitsApplied:
    """All units are committed in the target; their base offsets, null where not known any more."""

    base_offsets: tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class GapFound:
    """The target ends at another number than the units follow on: it lost some (rule S5)."""

    end: int


@dataclass(frozen=True, slots=True)
class SourceGone:
    """Units whose rows are gone for good from the places that were named; nothing was appended.

    Their stages' leaders prove that, and the target's leader that it does not have the units. The
    home has named other places by now, or the rows are lost (rule S10).
    """

    numbers: tuple[int, ...]


ApplyAnswer = UnitsApplied | GapFound | SourceGone
_APPLY_ANSWERS: Mapping[str, type[ApplyAnswer]] = {
    cls.__name__: cls for cls in (UnitsApplied, GapFound, SourceGone)
}


def encode_apply(request: ApplyUnits) -> bytes:
    """Return the body of an APPLY request between brokers."""
    rows = [unit.source for unit in request.units if isinstance(unit.source, TargetRows)]
    places = (
        unit.source if isinstance(unit.source, StagedPlace) else None for unit in request.units
    )
    head = {
        "target": request.target,
        "numbering": request.numbering,
        "after": request.after,
        "units": [
            (unit.number, unit.rows, place)
            for unit, place in zip(request.units, places, strict=True)
        ],
    }
    return _join(orjson.dumps(head, default=_plain), rows)


def decode_apply(body: bytes) -> ApplyUnits:
    """Return the request of an APPLY body; raise INVALID_REQUEST if it is malformed."""
    try:
        head, inline = _parted(body)
        left = iter(inline)
        units = tuple(
            UnitRows(number, rows, next(left) if place is None else _place_in(place))
            for number, rows, place in head["units"]
        )
        return ApplyUnits(
            target=Target(*head["target"]),
            numbering=head["numbering"],
            after=head["after"],
            units=units,
        )
    except (struct.error, ValueError, KeyError, TypeError, StopIteration) as error:
        text = f"malformed request to a target: {error}"
        raise KafkaError(ErrorCode.INVALID_REQUEST, text) from error


def _place_in(fields: list[Any]) -> StagedPlace:
    return msgspec.convert(fields, StagedPlace)


def encode_apply_answer(answer: ApplyAnswer) -> bytes:
    """Return the body of the answer to an APPLY."""
    return _join(orjson.dumps([type(answer).__name__, answer], default=_plain), ())


def decode_apply_answer(body: bytes) -> ApplyAnswer:
    """Return the answer of a body made by `encode_apply_answer`."""
    (name, fields), _ = _parted(body)
    return msgspec.convert(fields, _APPLY_ANSWERS[name])


def _join(head: bytes, rows: Sequence[TargetRows]) -> bytes:
    texts = b",".join(encode_target_rows(each) for each in rows)
    return b"%b%b[%b]" % (_LENGTH.pack(len(head)), head, texts)


def _parted(body: bytes) -> tuple[Any, tuple[TargetRows, ...]]:
    (length,) = _LENGTH.unpack_from(body)
    end = _LENGTH.size + length
    return orjson.loads(body[_LENGTH.size : end]), decode_rows_array(body[end:])


def _plain(value: object) -> object:
    if isinstance(value, tuple):
        return list(value)
    raise TypeError(f"{type(value).__name__} is not a field of a request between brokers")
