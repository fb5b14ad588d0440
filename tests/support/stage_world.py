"""A stage's log in memory, and a home in ten lines, for the real index and its trimming."""

from __future__ import annotations

from dataclasses import dataclass, field

from broker.record.batch import RecordFormat
from broker.record.lines import ProduceRecord, encode_lines, make_raw
from broker.transactions.chunk_records import (
    ChunkKey,
    RowsChunk,
    chunk_in,
    decode_head,
    encode_chunk,
    rows_in,
)
from broker.transactions.messages import TargetRows, TransactionalId
from broker.transactions.stage_index import ChunkHome, ChunkPlace, StageIndex
from broker.transactions.stage_messages import StatusQuestion, Word
from raft_metadata.common.ids import GroupId, PartitionId, TopicId

HOMES = 2
TOPIC = TopicId("T" * 22)


def home_of(id_: TransactionalId) -> ChunkHome:
    return ChunkHome(False, PartitionId(ord(id_.name[-1]) % HOMES))


def rows_for(partition: int, values: list[bytes]) -> TargetRows:
    return TargetRows(
        topic_id=TOPIC,
        partition=PartitionId(partition),
        key_format=RecordFormat.JSON,
        value_format=RecordFormat.JSON,
        rows=len(values),
        records=b"[" + b",".join(b'{"key":null,"value":%b}' % value for value in values) + b"]",
    )


def chunk(
    name: str,
    sequence: int = 0,
    *,
    number: int = 0,
    epoch: int = 1,
    attempt: str | None = None,
    rows: int = 1,
    targets: int = 1,
    digest: str = "d",
    since_ms: int | None = None,
) -> RowsChunk:
    """A chunk of ``targets`` records, each with this many rows."""
    return RowsChunk(
        key=ChunkKey(
            TransactionalId(GroupId(""), name),
            epoch,
            number,
            f"{epoch}.{number}" if attempt is None else attempt,
            sequence,
        ),
        targets=tuple(
            rows_for(partition, [b'"%b %d"' % (name.encode(), sequence)] * rows)
            for partition in range(targets)
        ),
        digest=digest,
        layout=targets,
        since_ms=since_ms,
    )


class StageLog:
    """The records of a stage; appended, cut and trimmed as a log is."""

    def __init__(self) -> None:
        self.start = 0
        self.lines: list[tuple[bytes, int]] = []
        """Stored lines from the start on, with the append times of their batches."""
        self.high_watermark = 0

    @property
    def end(self) -> int:
        return self.start + len(self.lines)

    def append(self, new: RowsChunk, now_ms: int) -> int:
        base = self.end
        for number, (key, value) in enumerate(encode_chunk(new)):
            record = ProduceRecord(key=make_raw(key), value=make_raw(value))
            record.offset = base + number
            self.lines.append((encode_lines([record])[:-1], now_ms))
        return base

    def cut(self, end: int) -> None:
        del self.lines[end - self.start :]

    def trim(self, start: int) -> None:
        del self.lines[: start - self.start]
        self.start = start

    def load(self) -> StageIndex:
        index = StageIndex(home_of)
        for offset, (line, appended_ms) in enumerate(self.lines, self.start):
            head = decode_head(line)
            assert head is not None
            index.fold(head, offset, appended_ms)
        return index

    def records_at(self, offset: int) -> bytes:
        """The rows of the record at an offset."""
        return rows_in(self.lines[offset - self.start][0]).records

    def chunk_at(self, place: ChunkPlace) -> RowsChunk:
        at = place.base - self.start
        return chunk_in([line for line, _ in self.lines[at : at + len(place.targets)]])


@dataclass
class OpenDecision:
    """A decision and the places that it names; empty once it is complete."""

    at: tuple[int, int]
    sources: list[int] = field(default_factory=list)


@dataclass
class ModelHome:
    """Words of a home about a stage's places, and the records before them (rule S10)."""

    newest: dict[TransactionalId, OpenDecision] = field(default_factory=dict)
    epochs: dict[TransactionalId, int] = field(default_factory=dict)
    horizon: int = 0

    def decide(self, key: ChunkKey, sources: list[int]) -> bool:
        """Decide, unless a place may be gone; whether it was decided."""
        if any(source < self.horizon for source in sources):
            return False
        self.newest[key.id] = OpenDecision((key.epoch, key.number), list(sources))
        return True

    def status(self, question: StatusQuestion) -> Word:
        last = self.newest.get(question.id)
        at = (question.epoch, question.number)
        here = range(question.place, question.place + question.records)
        if last is not None and any(source in here for source in last.sources):
            if question.copy is None:
                return Word.KEEP
            moved = question.copy - question.place
            last.sources = [one + moved if one in here else one for one in last.sources]
            return Word.GONE
        over = last is not None and at <= last.at
        fenced = question.epoch < self.epochs.get(question.id, 0)
        if over or fenced or question.place < self.horizon:
            return Word.GONE
        if question.copy is None and not question.is_aged:
            return Word.KEEP
        self.horizon = question.place + question.records
        return Word.GONE
