"""A compacted log against a model: whatever is appended, cleaned, cut, killed, in whatever order.

Cleanings run in steps, as the cleaner's thread and the loop share them: anything may come between.
"""

from __future__ import annotations

import random

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from broker.log.cleaner import ReplicaFacts
from broker.log.compaction import CompactionConfig
from broker.log.log_directory import LogConfig
from broker.record.batch import BatchHeader
from tests.support.compaction_model import (
    Said,
    Stepped,
    append_keyed,
    check_promises,
    cleaning,
    headers_of,
    producers_of,
    read_all,
)
from tests.support.logs import Life, formatted_disk

RETENTION_MS = 1_000
keys = st.none() | st.integers(0, 5)
values = st.none() | st.integers(0, 9)


class Compacted(RuleBasedStateMachine):
    """One partition of one broker, through many lives."""

    @initialize(segment_bytes=st.sampled_from([600, 2_000]))
    def start(self, segment_bytes: int) -> None:
        compaction = CompactionConfig(delete_retention_ms=RETENTION_MS, segment_bytes=segment_bytes)
        self.config = LogConfig(segment_bytes=segment_bytes, compaction=compaction)
        self.disk = formatted_disk()
        self.said: list[Said] = []
        self.batches: list[BatchHeader] = []
        self.sequences: dict[int, int] = {}
        self.epoch = 1
        self.now_ms = 1_000
        self.everywhere = self.most_everywhere = 0
        self.cleaned: list[tuple[int, int]] = []
        self.planned_to = 0
        self.stepped: Stepped | None = None
        self.open()

    def open(self) -> None:
        interrupted, self.stepped = self.stepped, None
        self.life = Life(self.disk, self.config)
        assert self.life.manager.offline == {}
        self.log = self.life.log()
        if interrupted is not None and self.log.stored is not None:
            noted = (
                self.log.stored.cleaned.cleaned_to
            )  # perhaps on the disk before the process died
            if noted > max((to for to, _ in self.cleaned), default=0):
                assert noted <= self.planned_to
                self.cleaned.append((noted, self.begun_ms))

    def facts(self) -> ReplicaFacts:
        return ReplicaFacts(self.log.high_watermark, self.everywhere)

    @rule(
        pairs=st.lists(st.tuples(keys, values), min_size=1, max_size=4), producer=st.integers(0, 5)
    )
    def append(self, pairs: list[tuple[int | None, int | None]], producer: int) -> None:
        claim = None
        if producer < 2:
            claim = (producer, self.sequences.get(producer, 0))
            self.sequences[producer] = claim[1] + len(pairs)
        append_keyed(self.log, pairs, epoch=self.epoch, now_ms=self.now_ms, producer=claim)
        self.said += [Said(self.epoch, *pair) for pair in pairs]
        self.batches.append(headers_of(self.log)[-1])

    @rule(count=st.integers(5, 15), key=st.integers(0, 5), value=values)
    def append_many(self, count: int, key: int, value: int | None) -> None:
        for _ in range(count):
            self.append([(key, value)], producer=key)
        self.life.flush()

    @rule()
    def flush(self) -> None:
        self.life.flush()

    @rule()
    def new_epoch(self) -> None:
        self.epoch += 1
        self.log.start_epoch(self.epoch)

    @rule(share=st.floats(0, 1), lagging=st.sampled_from([0, 0, 3, 9]))
    def commit(self, share: float, lagging: int) -> None:
        """The high watermark rises; the last replica is somewhere behind."""
        self.life.flush()
        log = self.log
        log.high_watermark = max(log.high_watermark, log.log_end_offset - lagging)
        self.everywhere = max(self.everywhere, int(share * log.high_watermark))
        self.most_everywhere = max(self.most_everywhere, self.everywhere)

    @rule()
    def assign(self) -> None:
        """A replica comes that has nothing yet."""
        self.everywhere = 0

    @rule(passed_ms=st.sampled_from([1, RETENTION_MS // 2, 2 * RETENTION_MS]))
    def pass_time(self, passed_ms: int) -> None:
        self.now_ms += passed_ms

    @precondition(lambda self: self.stepped is None and self.log.stored is not None)
    @rule()
    def begin_cleaning(self) -> None:
        self.begun_ms = self.now_ms
        self.stepped = Stepped(cleaning(self.log, self.now_ms, facts=self.facts))
        self.planned_to = max(self.planned_to, self.log.high_watermark)

    @rule(
        key=st.integers(0, 5),
        value=values,
        share=st.sampled_from([0.1, 0.1, 0.7]),
        lagging=st.sampled_from([0, 9]),
        passed_ms=st.sampled_from([1, 2 * RETENTION_MS]),
        steps=st.sampled_from([3, 6, 9, 1_000]),
    )
    def fill_and_clean(
        self,
        key: int,
        value: int | None,
        share: float,
        lagging: int,
        passed_ms: int,
        steps: int,
    ) -> None:
        """Some segments of news, and a pass that comes some way."""
        self.append_many(5, key, value)
        self.append([((key + n) % 6, None if n % 2 else n) for n in range(4)], producer=5)
        self.append_many(5, (key + 1) % 6, 7)
        self.commit(share, lagging)
        if self.stepped is None:
            self.begin_cleaning()
        self.go_on_cleaning(steps)
        self.pass_time(passed_ms)

    @precondition(lambda self: self.stepped is not None)
    @rule(steps=st.integers(1, 30))
    def go_on_cleaning(self, steps: int) -> None:
        for _ in range(steps):
            if self.stepped is not None:
                self.stepped.step()
                if self.stepped.over:
                    if self.stepped.cleaning.cleaned_to and not self.stepped.void:
                        self.cleaned.append((self.stepped.cleaning.cleaned_to, self.begun_ms))
                    self.stepped = None

    @rule(back=st.integers(0, 5))
    def truncate(self, back: int) -> None:
        end = max(
            self.log.high_watermark, self.log.log_end_offset - back, self.log.log_start_offset
        )
        self.log.truncate_to(end)
        self.forget_behind(self.log.log_end_offset)

    def forget_behind(self, end: int) -> None:
        del self.said[end:]
        self.batches = [batch for batch in self.batches if batch.next_offset <= end]
        self.sequences = {}
        for batch in self.batches:
            if batch.producer_id >= 0:
                after = batch.base_sequence + batch.last_offset_delta + 1
                self.sequences[batch.producer_id] = after

    @rule(share=st.floats(0, 1))
    def delete_records(self, share: float) -> None:
        before = self.log.log_start_offset
        self.log.advance_log_start(
            before + int(share * share * (self.log.high_watermark - before))
            if self.log.high_watermark > before
            else before
        )
        self.life.flush()
        if self.log.stored is not None:
            for path in self.log.stored.remove_below(self.log.log_start_offset, 10):
                self.disk.unlink(path)

    @rule()
    def kill(self) -> None:
        watermark = self.log.high_watermark
        self.disk.kill()
        self.open()
        assert self.log.log_end_offset == len(self.said)
        self.log.high_watermark = watermark

    @rule(seed=st.integers(0, 2**32))
    def cut_power(self, seed: int) -> None:
        durable, watermark = self.log.durable_end, self.log.high_watermark
        self.disk.cut_power(random.Random(seed))
        self.open()
        assert self.log.log_end_offset >= durable
        self.forget_behind(self.log.log_end_offset)
        self.log.high_watermark = watermark

    @invariant()
    def all_is_promised(self) -> None:
        """Latest of each key, order, offsets, all above the clean point; no key comes back (R7)."""
        assert not self.life.failures
        aged = [to for to, at_ms in self.cleaned if at_ms + RETENTION_MS <= self.now_ms]
        check_promises(
            self.log,
            self.said,
            may_drop_below=min(max(aged, default=0), self.most_everywhere),
            unclean_from=self.planned_to,
            max_bytes=700,
        )

    @invariant()
    def batches_are_whole(self) -> None:
        """Invariants L11, L12, T4: epochs, offsets and producers are what they were."""
        kept = headers_of(self.log)
        start = self.log.log_start_offset
        first = kept[0].base_offset if kept else len(self.said)
        live = [batch for batch in self.batches if batch.next_offset > first]
        assert producers_of(kept) == producers_of(live)
        for header in kept:
            assert {one.epoch for one in self.said[header.base_offset : header.next_offset]} == {
                header.leader_epoch
            }
        for epoch in range(self.epoch + 1):
            held = [at for at, one in enumerate(self.said) if one.epoch <= epoch and at >= start]
            if held:
                expected = (self.said[held[-1]].epoch, held[-1] + 1)
                assert self.log.end_of_epoch(epoch) == expected

    @rule(share=st.floats(0, 1))
    def read_from_anywhere(self, share: float) -> None:
        start = self.log.log_start_offset
        offset = start + int(share * (len(self.said) - start))
        whole = read_all(self.log, start, 1 << 20)
        assert read_all(self.log, offset, 100) == {
            at: pair for at, pair in whole.items() if at >= offset
        }


Compacted.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestCompacted = Compacted.TestCase
