"""What a log remembers of producers, against a plain reading of its batches (invariants T1-T4)."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from broker.log.checkpoints import decode_checkpoint
from broker.log.producer_snapshot import encode_snapshot
from broker.log.producer_state import ProducerState, ProducerStates, RememberedBatch
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import BATCHES_REMEMBERED, SEQUENCES, Claim, next_sequence

EXPIRATION_MS = 1_000
MOST = 3


class Batch(NamedTuple):
    claim: Claim
    first_offset: int
    last_offset: int
    append_ms: int


def replay(log: list[Batch]) -> dict[int, tuple[int, list[RememberedBatch]]]:
    """The state by its definition, from the first batch on."""
    newest_ms = 0
    known: dict[int, tuple[int, int, list[RememberedBatch]]] = {}
    for claim, first, last, append_ms in log:
        newest_ms = max(newest_ms, append_ms)
        epoch, seen_ms, batches = known.get(claim.producer_id, (claim.epoch, newest_ms, []))
        if epoch != claim.epoch or newest_ms - seen_ms > EXPIRATION_MS:
            batches = []
        last_sequence = (claim.sequence + last - first) % SEQUENCES
        batches = [*batches, RememberedBatch(claim.sequence, last_sequence, first, last)]
        known[claim.producer_id] = (claim.epoch, newest_ms, batches[-BATCHES_REMEMBERED:])
    return {
        producer_id: (epoch, batches)
        for producer_id, (epoch, seen_ms, batches) in known.items()
        if newest_ms - seen_ms <= EXPIRATION_MS
    }


def remembered(batch: Batch) -> RememberedBatch:
    last = (batch.claim.sequence + batch.last_offset - batch.first_offset) % SEQUENCES
    return RememberedBatch(batch.claim.sequence, last, batch.first_offset, batch.last_offset)


def part_of(batch: RememberedBatch, sequence: int, count: int) -> RememberedBatch | None:
    """Return where these records stand in the batch, None unless all of them do: one by one."""
    numbers = range(batch.first_offset, batch.last_offset + 1)
    offsets = {(batch.first_sequence + at) % SEQUENCES: offset for at, offset in enumerate(numbers)}
    found = [offsets.get((sequence + at) % SEQUENCES) for at in range(count)]
    first, last = found[0], found[-1]
    if first is None or last is None or None in found or last - first != count - 1:
        return None
    return RememberedBatch(sequence, (sequence + count - 1) % SEQUENCES, first, last)


def restored(data: bytes) -> ProducerStates:
    content = decode_checkpoint(data, "snapshot")
    assert isinstance(content, dict)
    return ProducerStates(
        expiration_ms=EXPIRATION_MS,
        most=MOST,
        end_offset=content["offset"],
        newest_ms=content["newest_ms"],
        producers=[
            (pid, ProducerState(epoch, ms, tuple(RememberedBatch(*batch) for batch in batches)))
            for pid, epoch, ms, batches in content["producers"]
        ],
    )


def shown(states: ProducerStates) -> dict[int, tuple[int, list[RememberedBatch]]]:
    return {pid: (each.epoch, list(each.batches)) for pid, each in states.items()}


class ProducersOfOneLog(RuleBasedStateMachine):
    """Producers that retry, skip, wrap and bump; a log that is cut and opened again."""

    def __init__(self) -> None:
        super().__init__()
        self.states = ProducerStates(expiration_ms=EXPIRATION_MS, most=MOST)
        self.log: list[Batch] = []
        self.committed = 0
        self.now_ms = 10_000
        self.sent: Counter[tuple[int, int, int]] = Counter()
        self.start: dict[int, int] = {}

    @property
    def end(self) -> int:
        return self.log[-1].last_offset + 1 if self.log else 0

    @initialize(start=st.sampled_from([0, SEQUENCES - 7, SEQUENCES - 1]))
    def begin(self, start: int) -> None:
        self.start = dict.fromkeys(range(5), start)

    @rule(
        pid=st.integers(0, 4),
        bump=st.sampled_from([0, 0, 0, 0, 1, -1]),
        skip=st.sampled_from([0, 0, 0, 1, -1, -3, -9]),
        count=st.integers(1, 4),
    )
    def produce(self, pid: int, bump: int, skip: int, count: int) -> None:
        known = replay(self.log).get(pid)
        epoch, batches = known or (0, [])
        expected = next_sequence(batches[-1].last_sequence) if batches else self.start[pid]
        sequence = (expected + skip) % SEQUENCES if not bump else max(0, skip)
        self.attempt(Claim(pid, epoch + bump, sequence), count)

    @precondition(lambda self: self.log)
    @rule(back=st.integers(1, 12), data=st.data())
    def retry(self, back: int, data: st.DataObject) -> None:
        """Any batch of this log, newest first, or a part of it, is sent once more."""
        batch = self.log[-min(back, len(self.log))]
        count = batch.last_offset - batch.first_offset + 1
        skipped = data.draw(st.integers(0, count - 1))
        claim = batch.claim._replace(sequence=next_sequence(batch.claim.sequence, skipped))
        self.attempt(claim, data.draw(st.integers(1, count - skipped)))

    def attempt(self, claim: Claim, count: int) -> None:
        known = {
            pid: row
            for pid, row in replay([*self.log, Batch(Claim(99, 0, 0), 0, 0, self.now_ms)]).items()
            if pid != 99
        }
        epoch, batches = known.get(claim.producer_id, (None, []))
        same = [part for each in batches if (part := part_of(each, claim.sequence, count))]
        try:
            found = self.states.check(claim, count, self.now_ms)
        except KafkaError as error:
            if error.code is ErrorCode.POLICY_VIOLATION:
                assert epoch is None
                assert len(known) >= MOST
            elif error.code is ErrorCode.INVALID_PRODUCER_EPOCH:
                assert epoch is not None
                assert claim.epoch < epoch  # invariant T3
            else:
                assert epoch is not None
                assert not (claim.epoch == epoch and same)
                expected = next_sequence(batches[-1].last_sequence) if claim.epoch == epoch else 0
                assert claim.sequence != expected  # invariant T2
            return
        if found is not None:  # a duplicate: answered with where it stands
            assert found in [
                part_of(remembered(each), claim.sequence, count)
                for each in self.log
                if each.claim[:2] == claim[:2]
            ]
            assert epoch is None or (claim.epoch == epoch and found in same)  # None: expired
            return
        assert not (claim.epoch == epoch and same)
        if epoch is not None:
            expected = next_sequence(batches[-1].last_sequence) if claim.epoch == epoch else 0
            assert claim.sequence == expected
            assert claim.epoch >= epoch
        first = self.end
        batch = Batch(claim, first, first + count - 1, self.now_ms)
        self.states.note(*batch, self.committed)
        self.log.append(batch)

    @rule(ms=st.sampled_from([0, 1, 400, 700, EXPIRATION_MS + 1, -300]))
    def time_passes(self, ms: int) -> None:
        """A new leader's clock may be behind the old one's."""
        self.now_ms += ms

    @rule(part=st.floats(0, 1))
    def commit(self, part: float) -> None:
        self.committed = max(self.committed, int(self.end * part))

    @rule(keep=st.integers(0, 30), unclean=st.booleans())
    def truncate(self, keep: int, unclean: bool) -> None:
        keep = min(keep, len(self.log))
        end = self.log[keep - 1].last_offset + 1 if keep else 0
        if end < self.committed and not unclean:
            return
        self.committed = min(self.committed, end)
        del self.log[keep:]
        if not self.states.truncate_to(end):
            self.states = ProducerStates(expiration_ms=EXPIRATION_MS, most=MOST)
            for batch in self.log:
                self.states.note(*batch, 0)

    @rule()
    def restart(self) -> None:
        """From the snapshot of a clean close."""
        self.states = restored(encode_snapshot(self.states, self.end))

    @invariant()
    def state_is_the_replay_of_the_log(self) -> None:
        assert shown(self.states) == replay(self.log)  # invariant T4


TestInvariantT4ProducersOfOneLog = ProducersOfOneLog.TestCase
TestInvariantT4ProducersOfOneLog.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None
)
