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
from broker.transactions.messages import LogPlace, TargetRows, TransactionalId
from broker.transactions.stage_index import ChunkHome, ChunkPlace, StageIndex
from broker.transactions.stage_messages import StatusQuestion, Word
from raft_metadata.common.ids import GroupId, LeaderEpoch, PartitionId, TopicId

HOMES = 2
TOPIC = TopicId("T" * 22)


def home_of(id_: TransactionalId) -> ChunkHome:
    return ChunkHome(False, PartitionId(ord(id_.name[-1]) % HOMES))


def place_at(offset: int, epoch: int = 1) -> LogPlace:
    return LogPlace(LeaderEpoch(epoch), offset)


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
        self.lines: list[tuple[bytes, int, LeaderEpoch]] = []
        """Stored lines from the start on, with the append times and epochs of their batches."""
        self.high_watermark = 0
        self.epoch = LeaderEpoch(1)

    @property
    def end(self) -> int:
        return self.start + len(self.lines)

    def append(self, new: RowsChunk, now_ms: int) -> LogPlace:
        base = self.end
        for number, (key, value) in enumerate(encode_chunk(new)):
            record = ProduceRecord(key=make_raw(key), value=make_raw(value))
            record.offset = base + number
            self.lines.append((encode_lines([record])[:-1], now_ms, self.epoch))
        return LogPlace(self.epoch, base)

    def cut(self, end: int) -> None:
        del self.lines[end - self.start :]

    def trim(self, start: int) -> None:
        del self.lines[: start - self.start]
        self.start = start

    def load(self) -> StageIndex:
        index = StageIndex(home_of)
        for offset, (line, appended_ms, epoch) in enumerate(self.lines, self.start):
            head = decode_head(line)
            assert head is not None
            index.fold(head, LogPlace(epoch, offset), appended_ms)
        return index

    def records_at(self, at: LogPlace) -> bytes | None:
        """The rows of the record at a place; None if another one stands there, or none."""
        if not self.start <= at.offset < self.end:
            return None
        line, _, epoch = self.lines[at.offset - self.start]
        return rows_in(line).records if epoch == at.leader_epoch else None

    def chunk_at(self, place: ChunkPlace) -> RowsChunk:
        at = place.base - self.start
        return chunk_in([line for line, *_ in self.lines[at : at + len(place.targets)]])


@dataclass
class OpenDecision:
    """A decision and the places that it names; empty once it is complete."""

    at: tuple[int, int]
    sources: list[LogPlace] = field(default_factory=list)


@dataclass
class ModelHome:
    """Words of a home about a stage's places, and the records before them (rule S10)."""

    newest: dict[TransactionalId, OpenDecision] = field(default_factory=dict)
    epochs: dict[TransactionalId, int] = field(default_factory=dict)
    horizon: LogPlace = LogPlace(LeaderEpoch(0), 0)

    def decide(self, key: ChunkKey, sources: list[LogPlace]) -> bool:
        """Decide, unless a place may be gone; whether it was decided."""
        if any(source < self.horizon for source in sources):
            return False
        self.newest[key.id] = OpenDecision((key.epoch, key.number), list(sources))
        return True

    def status(self, question: StatusQuestion) -> Word:
        last = self.newest.get(question.id)
        at = (question.epoch, question.number)
        here = [question.place.moved(by) for by in range(question.records)]
        if last is not None and any(source in here for source in last.sources):
            if question.copy is None:
                return Word.KEEP
            there = [question.copy.moved(by) for by in range(question.records)]
            copies = dict(zip(here, there, strict=True))
            last.sources = [copies.get(one, one) for one in last.sources]
            return Word.GONE
        over = last is not None and at <= last.at
        fenced = question.epoch < self.epochs.get(question.id, 0)
        if over or fenced or question.place < self.horizon:
            return Word.GONE
        if question.copy is None and not question.is_aged:
            return Word.KEEP
        self.horizon = question.place.moved(question.records)
        return Word.GONE
