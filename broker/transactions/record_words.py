"""Records of transactions in words, for who reads the log files of a broker. Pure.

`quorumlog log dump` shows them: decisions and numbers of homes, in `__transaction_state` and among
the groups' records in `__consumer_offsets`, and chunks in `__staged`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import orjson

from broker.record.numbering import home_of
from broker.record.render import split_line
from broker.transactions.chunk_records import ChunkHead, decode_head
from broker.transactions.home_records import (
    HOME_KINDS,
    EpochKey,
    EpochValue,
    FloorKey,
    HomeKey,
    HomeValue,
    HorizonKey,
    NextKey,
    NextValue,
    NumberValue,
    StagedPlace,
    TransactionKey,
    TransactionValue,
    Unit,
    decode_home_key,
    decode_home_value,
)
from broker.transactions.messages import NO_GROUP, LogPlace, TransactionalId
from raft_metadata.common.errors import CorruptionError
from raft_metadata.common.internal_topics import OFFSETS_TOPIC, STAGED_TOPIC, TRANSACTIONS_TOPIC

SHOWN_MAX: Final = 5
"""Most targets of a decision that are named; the others are counted."""


def words_of(topic: str, line: bytes) -> str | None:
    """Return a stored line in words; None for records of another kind, or of an unknown shape."""
    try:
        if topic == STAGED_TOPIC:
            head = decode_head(line)
            return "probe: its leader proved that it leads" if head is None else _chunk(head)
        if topic not in {OFFSETS_TOPIC, TRANSACTIONS_TOPIC}:
            return None
        _, _, _, key, value = split_line(line)
        kind, *parts = orjson.loads(bytes(key))
        if kind not in HOME_KINDS:
            return None
        return _fact(decode_home_key(kind, parts), decode_home_value(kind, bytes(value)))
    except (CorruptionError, ValueError, TypeError):
        return None


def _chunk(head: ChunkHead) -> str:
    key = head.key
    record = f", record {head.part + 1} of {head.parts}" if head.parts > 1 else ""
    copy = "" if head.since_ms is None else ", moved here"
    return (
        f"chunk {key.sequence} of attempt {key.attempt_id} of {_id(key.id)} "
        f"position {key.epoch}.{key.number}{record}: {head.target.rows} rows "
        f"({head.size_bytes} bytes) for {head.target.topic_id}:{head.target.partition}{copy}"
    )


def _fact(key: HomeKey, value: HomeValue | None) -> str:
    match key, value:
        case TransactionKey(), TransactionValue():
            return f"{_id(key.id)} position {value.epoch}.{value.number} {_position(value)}"
        case TransactionKey(), _:
            return f"{_id(key.id)}: its last position is forgotten"
        case EpochKey(), EpochValue(epoch):
            return f"{_id(key.id)} has epoch {epoch}"
        case EpochKey(), _:
            return f"{_id(key.id)}: its epoch is forgotten"
        case NextKey(), NextValue(number):
            return f"{_numbered(key)}: the next row is {number}"
        case NextKey(), _:
            return f"{_numbered(key)}: its numbers are forgotten"
        case HorizonKey(), LogPlace():
            return f"nothing below {_place(value)} of {STAGED_TOPIC}-{key.stage} will be decided"
        case FloorKey(), NumberValue(number):
            return f"ids with epochs up to {number} may be forgotten"
        case _:
            return f"{type(key).__name__} holds no longer"


def _id(id_: TransactionalId) -> str:
    name = orjson.dumps(id_.name).decode()
    return name if id_.group == NO_GROUP else f"{name} of group {orjson.dumps(id_.group).decode()}"


def _numbered(key: NextKey) -> str:
    home = home_of(key.numbering) or f"reserved producer {key.numbering}"
    return f"rows that {home} decides for {key.topic_id}:{key.partition}"


def _position(value: TransactionValue) -> str:
    run = "" if value.run_id is None else f" by run {value.run_id}"
    parts = [f"{value.state.value}{run}"]
    parts += _some([_unit(unit) for unit in value.units])
    parts += _some(
        [
            f"{one.rows} rows in {one.topic_id}:{one.partition}"
            + ("" if one.base_offset is None else f" from offset {one.base_offset}")
            for one in value.placed
        ]
    )
    parts += _some([f"{topic_id}:{number} was deleted" for topic_id, number in value.dropped])
    parts += _some(
        [f"{one.rows} rows of {one.topic_id}:{one.partition} are lost" for one in value.lost]
    )
    return ", ".join(parts)


def _unit(unit: Unit) -> str:
    source, where = unit.source, "in this record"
    if source is None:
        where = "lost with their stage"
    elif isinstance(source, StagedPlace):
        where = f"staged at {STAGED_TOPIC}-{source.stage} {_place(source.at)}"
    last = unit.number + unit.rows - 1
    return f"rows {unit.number}..{last} for {unit.topic_id}:{unit.partition} {where}"


def _place(at: LogPlace) -> str:
    return f"offset {at.offset} of epoch {at.leader_epoch}"


def _some(texts: Sequence[str]) -> list[str]:
    left = len(texts) - SHOWN_MAX
    return [*texts[:SHOWN_MAX], *([f"and {left} more"] if left > 0 else [])]
