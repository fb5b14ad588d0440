"""Records of a home: the newest position of each transactional id, and the numbers of its rows.

They stand in `__transaction_state`, and beside the groups' records in `__consumer_offsets`, as JSON
records under array keys, so that compaction by key keeps the newest fact of each. In the offsets
topic the group stands in front of the id. Rows that a decision carries keep the client's text (rule
R12): it is written and read as it is, never parsed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import msgspec
import orjson

from broker.record.batch import RecordFormat
from broker.transactions.messages import (
    NO_GROUP,
    LogPlace,
    LostRows,
    PlacedRows,
    TargetRows,
    TransactionalId,
    TransactionState,
)
from raft_metadata.common.ids import GroupId, PartitionId, TopicId

OTHERS_KEPT = 8
"""Runs that came later for a number and are remembered with it (rule S7)."""


class TransactionKey(NamedTuple):
    """Key of the newest position of an id."""

    group: GroupId
    name: str

    @property
    def id(self) -> TransactionalId:
        """The id itself."""
        return TransactionalId(self.group, self.name)


class EpochKey(NamedTuple):
    """Key of the present epoch of a producer's id."""

    group: GroupId
    name: str

    @property
    def id(self) -> TransactionalId:
        """The id itself."""
        return TransactionalId(self.group, self.name)


class NextKey(NamedTuple):
    """Key of the number of the next row that a home decides for a target (rule S4)."""

    numbering: int
    topic_id: TopicId
    partition: PartitionId

    @property
    def group(self) -> GroupId:
        """`NO_GROUP`: it belongs to the home as a whole."""
        return NO_GROUP

    @property
    def target(self) -> Target:
        """The partition that gets the rows."""
        return Target(self.topic_id, self.partition)


class HorizonKey(NamedTuple):
    """Key of a stage's horizon, a `LogPlace`: no decision names a chunk below it (rule S10)."""

    stage: PartitionId

    @property
    def group(self) -> GroupId:
        """`NO_GROUP`: it belongs to the home as a whole."""
        return NO_GROUP


class FloorKey(NamedTuple):
    """Key of the highest epoch of an id that was forgotten (rule S6)."""

    name: str = ""

    @property
    def group(self) -> GroupId:
        """`NO_GROUP`: it belongs to the home as a whole."""
        return NO_GROUP


HomeKey = TransactionKey | EpochKey | NextKey | HorizonKey | FloorKey
HOME_KEYS = (TransactionKey, EpochKey, NextKey, HorizonKey, FloorKey)


class StagedPlace(NamedTuple):
    """The record of a stage that holds rows for one target."""

    stage: PartitionId
    at: LogPlace


class Target(NamedTuple):
    """A partition that gets rows."""

    topic_id: TopicId
    partition: PartitionId


class Unit(NamedTuple):
    """Rows that one decision has for one target in one piece (rule S4)."""

    topic_id: TopicId
    partition: PartitionId
    number: int
    """Number of its first row among all that this home decided for the target."""
    rows: int
    after: int
    """The number behind the unit before it: below ``number`` only where sequences wrap."""
    source: int | StagedPlace | None
    """Its index in `TransactionValue.inline`, or its place in a stage. Null: its rows are lost, so
    it is never sent any more (rule S10)."""

    @property
    def is_lost(self) -> bool:
        """True if an unclean election of its stage took its rows."""
        return self.source is None

    @property
    def target(self) -> Target:
        """The partition that gets the rows."""
        return Target(self.topic_id, self.partition)


class OtherRun(NamedTuple):
    """A run of a numbered id that came later, and what it brought: discarded, remembered (S7)."""

    run_id: str
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionValue:
    """The newest position of an id, and all that its completion needs."""

    epoch: int
    """Of a producer; 0 for numbered ids and keys."""
    number: int
    state: TransactionState
    digest: str = ""
    """Digest of the content that was decided; empty for an abort."""
    run_id: str | None = None
    """The run whose content was decided; None but for numbered ids."""
    input: str | None = None
    others: tuple[OtherRun, ...] = ()
    """The last `OTHERS_KEPT` runs that came later."""
    numbering: int = 0
    """The reserved producer id under which the rows are numbered."""
    metadata_offset: int = 0
    """Offset of the image by which it was decided: deletions are judged by no older one (S11)."""
    units: tuple[Unit, ...] = ()
    """In the order of numbers for each target; empty once complete."""
    inline: tuple[TargetRows, ...] = ()
    """The rows themselves, unless they were staged; empty once complete."""
    placed: tuple[PlacedRows, ...] = ()
    """Once complete: the place of the rows in each target."""
    dropped: tuple[Target, ...] = ()
    """Once complete: targets whose topic was deleted behind the decision."""
    lost: tuple[LostRows, ...] = ()
    """Once complete: rows that are nowhere."""
    decided_ms: int | None = None
    """Wall time of the decision; None if this broker's clock was not trusted then."""
    completed_ms: int | None = None
    """Once complete or aborted: wall time of that; None if the clock was not trusted then."""
    layout: int = 0
    """See `TransactionOutcome.layout`."""

    @property
    def at(self) -> tuple[int, int]:
        """The position: epoch and number."""
        return (self.epoch, self.number)

    @property
    def is_open(self) -> bool:
        """True if it is decided and not recorded as complete."""
        return self.state is TransactionState.COMMITTING

    @property
    def inline_bytes(self) -> int:
        """Bytes of the rows that it carries."""
        return sum(len(each.records) for each in self.inline)


@dataclass(frozen=True, slots=True)
class EpochValue:
    """The present epoch of a producer's id."""

    epoch: int
    used_ms: int | None = None
    """Wall time at which it was given; None if this broker's clock was not trusted then."""


@dataclass(frozen=True, slots=True)
class NextValue:
    """The number of the next row that a home decides for a target."""

    number: int
    metadata_offset: int
    """Offset of the image by which the rows before it were decided, as in `TransactionValue`."""


@dataclass(frozen=True, slots=True)
class NumberValue:
    """A number: of a floor's epoch."""

    number: int


HomeValue = TransactionValue | EpochValue | NextValue | NumberValue | LogPlace


class HomeRecord(NamedTuple):
    """A fact of a home. ``value`` None: the fact no longer holds."""

    key: HomeKey
    value: HomeValue | None


HOME_KINDS: dict[str, tuple[type[HomeKey], type[HomeValue]]] = {
    "txn": (TransactionKey, TransactionValue),
    "epoch": (EpochKey, EpochValue),
    "next": (NextKey, NextValue),
    "horizon": (HorizonKey, LogPlace),
    "floor": (FloorKey, NumberValue),
}
_NAMES = {key: name for name, (key, _) in HOME_KINDS.items()}


def encode_home_key(key: HomeKey) -> bytes:
    """Return the key as JSON text."""
    parts = tuple(key)
    if isinstance(key, TransactionKey | EpochKey) and key.group == NO_GROUP:
        parts = parts[1:]
    return orjson.dumps([_NAMES[type(key)], *parts])


def decode_home_key(kind: str, parts: list[str | int]) -> HomeKey:
    """Return the key of a kind of `HOME_KINDS`; raise `ValueError` if it has another shape."""
    key_type = HOME_KINDS[kind][0]
    if key_type in {TransactionKey, EpochKey} and len(parts) == 1:
        parts = [NO_GROUP, *parts]
    return msgspec.convert(parts, key_type)


class _InlineText(msgspec.Struct, kw_only=True):
    """`TargetRows` as they stand in a record: the rows are text that is passed through."""

    topic_id: TopicId
    partition: PartitionId
    key_format: int
    value_format: int
    rows: int
    records: msgspec.Raw


_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_inline = msgspec.json.Decoder(list[_InlineText]).decode
_decode_transaction = msgspec.json.Decoder(TransactionValue).decode


def encode_target_rows(rows: TargetRows) -> bytes:
    """Return rows as JSON text around their own text."""
    head = orjson.dumps(
        {
            "topic_id": rows.topic_id,
            "partition": rows.partition,
            "key_format": int(rows.key_format),
            "value_format": int(rows.value_format),
            "rows": rows.rows,
        }
    )
    return b'%b,"records":%b}' % (head[:-1], rows.records)


def decode_target_rows(text: bytes) -> TargetRows:
    """Return the rows that `encode_target_rows` encoded; raise `ValueError` for another shape."""
    return _rows_of(msgspec.json.decode(text, type=_InlineText))


def decode_rows_array(text: bytes) -> tuple[TargetRows, ...]:
    """Return the rows of a JSON array of `encode_target_rows`; raise `ValueError` if malformed."""
    return tuple(map(_rows_of, _decode_inline(text)))


def _rows_of(found: _InlineText) -> TargetRows:
    return TargetRows(
        topic_id=found.topic_id,
        partition=found.partition,
        key_format=RecordFormat(found.key_format),
        value_format=RecordFormat(found.value_format),
        rows=found.rows,
        records=bytes(found.records),
    )


def encode_home_value(value: HomeValue | None) -> bytes:
    """Return the value as JSON text."""
    if not isinstance(value, TransactionValue) or not value.inline:
        return orjson.dumps(value, default=_plain)
    text = orjson.dumps(replace(value, inline=()), default=_plain)
    rows = b",".join(encode_target_rows(each) for each in value.inline)
    before, after = text.split(b'"inline":[]', 1)
    return b'%b"inline":[%b]%b' % (before, rows, after)


def decode_home_value(kind: str, text: bytes) -> HomeValue | None:
    """Return the value of a kind of `HOME_KINDS`; raise `ValueError` if it has another shape."""
    if text == b"null":
        return None
    value_type = HOME_KINDS[kind][1]
    if value_type is not TransactionValue:
        return msgspec.json.decode(text, type=value_type)
    fields = _decode_fields(text)
    inline = _decode_inline(fields.pop("inline", msgspec.Raw(b"[]")))
    if not inline:
        return _decode_transaction(text)
    found = _decode_transaction(msgspec.json.encode(fields))
    return replace(found, inline=tuple(map(_rows_of, inline)))


def _plain(value: object) -> object:
    if isinstance(value, tuple):
        return list(value)
    raise TypeError(f"{type(value).__name__} is not a field of a home's record")
