"""What a compacted log must show, said again in plain dictionaries; and steps of a cleaning."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable
from typing import NamedTuple

import orjson

from broker.log.cleaner import CleanerLimits, Cleaning, CleaningStopped, ReplicaFacts
from broker.log.partition_log import PartitionLog
from broker.log.producer_state import ProducerStates
from broker.record.batch import NO_PRODUCER_ID, BatchHeader, RecordFormat, verify_run, walk
from broker.record.lines import ProduceRecord, make_raw
from raft_metadata.common.ids import Claim

LIMITS = CleanerLimits(dedupe_buffer_bytes=1 << 20)


class Said(NamedTuple):
    """A record as it was appended."""

    epoch: int
    key: int | None
    value: int | None


def no_pace(_size: int) -> None:
    pass


def record_of(key: int | None, value: int | str | None) -> ProduceRecord:
    return ProduceRecord(key=make_raw(orjson.dumps(key)), value=make_raw(orjson.dumps(value)))


def append_keyed(
    log: PartitionLog,
    pairs: Iterable[tuple[int | None, int | str | None]],
    *,
    epoch: int = 1,
    now_ms: int = 1000,
    producer: tuple[int, int] | None = None,
) -> None:
    log.append_as_leader(
        [record_of(*pair) for pair in pairs],
        key_format=RecordFormat.JSON,
        value_format=RecordFormat.JSON,
        leader_epoch=epoch,
        now_ms=now_ms,
        claim=None if producer is None else Claim(producer[0], 0, producer[1]),
    )


def cleaning(
    log: PartitionLog,
    now_ms: int,
    *,
    replicated_to: int | None = None,
    facts: Callable[[], ReplicaFacts] | None = None,
    limits: CleanerLimits = LIMITS,
) -> Cleaning:
    """One pass. Everything below the high watermark is on every replica, unless said otherwise."""

    def everywhere() -> ReplicaFacts:
        end = log.high_watermark if replicated_to is None else replicated_to
        return ReplicaFacts(log.high_watermark, end)

    stored, config = log.stored, log.config.compaction
    assert stored is not None
    assert config is not None
    return Cleaning(log, stored, config, facts or everywhere, limits, now_ms, no_pace)


def run_here(steps: Generator[Callable[[], None]]) -> None:
    """Run a pass on this thread, to its end."""
    with contextlib.closing(steps):
        for work in steps:
            work()


def clean(log: PartitionLog, now_ms: int = 10_000, **options: int) -> Cleaning:
    """A whole pass, at once."""
    one = cleaning(log, now_ms, replicated_to=options.get("replicated_to"))
    run_here(one.steps())
    return one


class Stepped:
    """A pass as two actors: the thread runs one piece of work, the loop takes it and goes on."""

    def __init__(self, one: Cleaning) -> None:
        self.cleaning = one
        self._steps = one.steps()
        self.over = self.void = False
        self._work: Callable[[], None] | None = None
        self._advance()

    def step(self) -> None:
        """The next half: the thread's, else the loop's."""
        try:
            if self._work is not None:
                work, self._work = self._work, None
                work()
            else:
                self._advance()
        except (CleaningStopped, FileNotFoundError):
            self.void = self.over = True
            self._steps.close()

    def _advance(self) -> None:
        try:
            self._work = next(self._steps, None)
        except CleaningStopped:
            self.void = True
            self._work = None
        self.over = self._work is None


def read_all(log: PartitionLog, from_offset: int, max_bytes: int) -> dict[int, tuple[object, ...]]:
    """(key, value) by offset, as a reader collects them; each answer makes progress."""
    found: dict[int, tuple[object, ...]] = {}
    offset, end = from_offset, log.log_end_offset
    while offset < end:
        slices = log.read(offset, max_bytes, end)
        if not slices:
            break  # no record is left
        for piece in slices:
            lines = bytes(piece.lines).split(b"\n")[:-1]
            assert len(lines) == piece.count > 0
            for line in lines:
                record = orjson.loads(line)
                assert offset <= record["offset"] < piece.next_offset
                offset = record["offset"] + 1
                found[record["offset"]] = (record["key"], record["value"])
            offset = piece.next_offset
    return found


def headers_of(log: PartitionLog) -> list[BatchHeader]:
    """Every batch of the log; contiguous from its first segment on (invariant L12)."""
    raw = b""
    offset = first = log.segments[0].base_offset if log.segments else log.log_end_offset
    log_start, log.log_start_offset = log.log_start_offset, min(first, log.log_start_offset)
    try:
        while offset < log.log_end_offset:
            piece = log.read_raw(offset, 5_000, log.log_end_offset)
            assert piece
            raw += piece
            *_, (_, last) = walk(raw)
            offset = last.next_offset
    finally:
        log.log_start_offset = log_start
    return verify_run(raw, first, -1)


def producers_of(headers: Iterable[BatchHeader]) -> dict[int, object]:
    """What producers' states are, made of these batches."""
    states = ProducerStates()
    for header in headers:
        if header.producer_id != NO_PRODUCER_ID:
            states.applied(header)
    return dict(states.items())


def check_promises(
    log: PartitionLog, said: list[Said], *, may_drop_below: int, unclean_from: int, max_bytes: int
) -> None:
    """What Kafka promises of a compacted log.

    Args:
        said: every record, by offset.
        may_drop_below: tombstones from here on are all there, as long as nothing newer is.
        unclean_from: every record from here on is there.
    """
    start = log.log_start_offset
    shown = read_all(log, start, max_bytes)
    assert list(shown) == sorted(shown)
    latest: dict[int, int] = {}
    for offset, one in enumerate(said):
        if one.key is not None:
            latest[one.key] = offset
    for offset, pair in shown.items():
        assert pair == (said[offset].key, said[offset].value), offset
    newest_shown: dict[object, int] = {key: at for at, (key, _) in shown.items() if key is not None}
    for offset in range(start, len(said)):
        one = said[offset]
        if one.key is None or offset >= unclean_from:
            assert offset in shown, f"{offset} is neither superseded nor compacted yet"
        elif latest[one.key] == offset and offset not in shown:
            assert one.value is None, f"the newest of key {one.key}, {offset}, is gone"
            assert offset < may_drop_below, f"tombstone {offset} went too early"
            assert one.key not in newest_shown, f"key {one.key} came back (rule R7)"
