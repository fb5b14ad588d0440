"""A partition log whose start moves, against a model, with kills and power cuts at 4 KiB pages.

Beyond what `test_log_power_loss` promises: a log start that has shown never comes back lower, what
lies at or behind it is there, and a log that starts over is the old one or the new one after any
crash (invariants L8 and L11, and what L24 and KAFKA-9491 are about).
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from broker.log.log_directory import LogConfig
from tests.support.logs import append, formatted_disk, values_of
from tests.support.stepped_log import SteppedLog


@dataclass
class Model:
    """What the log holds: (epoch, value) by offset; below ``start`` nothing can be read."""

    records: list[tuple[int, str]]
    start: int = 0
    wanted: int = 0
    durable: int = 0
    floor: int = 0
    """Where the log may still begin after a crash."""

    def values(self, start: int, end: int) -> list[str]:
        return [value for _, value in self.records[start:end]]


class Lifecycle(SteppedLog):
    """One partition of one broker, through many lives."""

    @initialize(
        segment_bytes=st.sampled_from([1_500, 9_000, 1 << 30]), files_max=st.sampled_from([0, 100])
    )
    def start(self, segment_bytes: int, files_max: int) -> None:
        self.files_max = files_max
        self.disk = formatted_disk()
        self.config = LogConfig(segment_bytes=segment_bytes, flush_before_ack=False)
        self.models = [Model([])]
        self.epoch = 1
        self.count = 0
        self.open()

    @property
    def model(self) -> Model:
        return self.models[-1]

    @rule(sizes=st.lists(st.integers(0, 3000), min_size=1, max_size=3))
    def append(self, sizes: list[int]) -> None:
        values = []
        for size in sizes:
            self.count += 1
            values.append(f"{self.count}:" + "x" * size)
        append(self.log, values, epoch=self.epoch, now_ms=self.count)
        self.model.records += [(self.epoch, value) for value in values]

    @rule()
    def roll(self) -> None:
        self.log.roll()

    @rule()
    def background_flush(self) -> None:
        self.life.manager.flush_dirty()
        self.log.request_flush()

    @rule(share=st.floats(0, 1))
    def advance(self, share: float) -> None:
        model = self.model
        offset = model.start + int(share * (len(model.records) - model.start))
        shown = self.log.log_start_offset
        assert self.log.advance_log_start(offset) == (offset > model.wanted)
        model.wanted = max(model.wanted, offset)
        assert self.log.log_start_offset == shown, "it shows only once it is durable"

    @rule(unlink=st.booleans())
    def remove(self, unlink: bool) -> None:
        removals = self.life.manager.removals
        removals.rename_some()
        removals.unlink(removals.take_due(100_000 if unlink else 0))

    @rule(share=st.floats(0, 1))
    def truncate(self, share: float) -> None:
        model = self.model
        end = model.start + int(share * (len(model.records) - model.start))
        shown = self.log.log_start_offset
        self.log.truncate_to(end)
        assert self.log.log_end_offset <= end or end == model.start
        del model.records[self.log.log_end_offset :]
        model.durable = min(model.durable, self.log.durable_end)
        start = self.log.log_start_offset
        if start > shown:  # inside the batch of a start that was not durable yet
            model.wanted = shown
            self.models.append(
                Model(model.records.copy(), start, start, model.durable, model.floor)
            )
        else:
            model.wanted = self.log.requested_log_start

    @rule(gap=st.integers(0, 5))
    def start_over_ahead(self, gap: int) -> None:
        """The leader's log begins at or behind this one's end."""
        offset = len(self.model.records) + gap
        self.log.start_over(offset)
        if gap:
            model = Model([(-1, "gone")] * offset, offset, offset, floor=offset)
        else:  # what follows continues what was there, if that comes back
            old = self.model
            model = Model(old.records.copy(), offset, offset, old.durable, old.floor)
        self.models.append(model)
        assert (self.log.log_start_offset, self.log.log_end_offset) == (offset, offset)

    @precondition(lambda self: self.model.records)
    @rule(share=st.floats(0, 0.99))
    def start_over_below(self, share: float) -> None:
        """An unclean leader's log ends before this one's start, or end."""
        offset = int(share * len(self.model.records))
        self.log.start_over(offset)
        gone = [(-1, "gone")] * offset
        self.models.append(Model(gone, offset, offset, self.log.durable_end, offset))

    def settle_model(self) -> None:
        """After a crash: one of the states that can be on the disk, the newest that fits."""
        log = self.log
        for model in reversed(self.models):
            end = log.log_end_offset
            fits = model.floor <= log.log_start_offset <= model.wanted and (
                model.durable <= end <= len(model.records)
            )
            if fits and values_of(log, log.log_start_offset) == model.values(
                log.log_start_offset, end
            ):
                model.start = model.wanted = model.floor = log.log_start_offset
                del model.records[end:]
                self.models = [model]
                break
        else:
            raise AssertionError(f"{log.log_start_offset} {log.log_end_offset} {self.models}")
        assert log.durable_end == log.log_end_offset

    @rule()
    def kill(self) -> None:
        lost_nothing = len(self.models) == 1
        self.disk.kill()
        self.open()
        assert not lost_nothing or self.log.log_end_offset == len(self.model.records)
        self.settle_model()

    @rule(seed=st.integers(0, 2**32))
    def cut_power(self, seed: int) -> None:
        self.disk.cut_power(random.Random(seed))
        self.open()
        self.settle_model()

    @rule()
    def close_and_open(self) -> None:
        if self.flusher.tokens:
            self.flusher.report()
        self.life.close()
        self.disk.kill()
        self.open()
        model = self.model
        assert (self.log.log_start_offset, self.log.log_end_offset) == (
            model.wanted, len(model.records),
        )  # fmt: skip
        self.settle_model()

    @invariant()
    def ends_in_order(self) -> None:
        log, model = self.log, self.model
        assert not self.life.failures
        if log.durable_end >= log.log_start_offset:
            self.models = [model]  # what was there before is gone for good
            model.durable = log.durable_end
            model.start = model.floor = log.log_start_offset
        assert log.log_end_offset == len(model.records)
        assert log.log_start_offset <= log.log_end_offset
        assert model.start <= log.log_start_offset <= model.wanted

    @invariant()
    def readable_from_the_start_on(self) -> None:
        log = self.log
        assert values_of(log, log.log_start_offset) == self.model.values(
            log.log_start_offset, log.log_end_offset
        )

    @invariant()
    def invariant_l11_epochs_match(self) -> None:
        log = self.log
        start = log.log_start_offset
        for epoch in range(self.epoch + 2):
            held = [
                (of, offset + 1)
                for offset, (of, _) in enumerate(self.model.records)
                if offset >= start and of <= epoch
            ]
            assert log.end_of_epoch(epoch) == (held[-1] if held else (-1, start))


Lifecycle.TestCase.settings = settings(
    max_examples=100,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestLifecycle = Lifecycle.TestCase
