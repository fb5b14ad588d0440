"""A partition log against a model, with kills and power cuts at 4 KiB pages.

Promises: what was durable is there, what is there is a prefix of what was written, and no crash
is ever taken for corruption.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from broker.log.log_directory import LogConfig
from tests.support.logs import append, formatted_disk, values_of
from tests.support.stepped_log import SteppedLog


class PowerLoss(SteppedLog):
    """One partition of one broker, through many lives."""

    @initialize(
        segment_bytes=st.sampled_from([2_000, 12_000, 1 << 30]),
        ack=st.booleans(),
        files_max=st.sampled_from([0, 3, 100]),
    )
    def start(self, segment_bytes: int, ack: bool, files_max: int) -> None:
        self.files_max = files_max
        self.disk = formatted_disk()
        self.config = LogConfig(segment_bytes=segment_bytes, flush_before_ack=ack)
        self.model: list[tuple[int, str]] = []
        self.epoch = 1
        self.count = 0
        self.open()

    @rule(sizes=st.lists(st.integers(0, 6000), min_size=1, max_size=3), data=st.booleans())
    def append(self, sizes: list[int], data: bool) -> None:
        values = []
        for size in sizes:
            self.count += 1
            values.append(f"{self.count}:" + ("x" if data else "é") * size)
        append(self.log, values, epoch=self.epoch, now_ms=self.count)
        self.model += [(self.epoch, value) for value in values]

    @rule()
    def roll_by_age(self) -> None:
        """The next append is later than segment.ms allows."""
        self.count += self.config.segment_ms + 1

    @rule()
    def request_flush(self) -> None:
        self.log.request_flush()

    @rule(share=st.floats(0, 1))
    def truncate(self, share: float) -> None:
        """To any offset: inside a batch the whole batch goes."""
        end = int(share * len(self.model))
        self.log.truncate_to(end)
        assert self.log.log_end_offset <= max(end, 0) or end == len(self.model)
        del self.model[self.log.log_end_offset :]

    @rule()
    def kill(self) -> None:
        self.disk.kill()
        self.open()
        assert self.log.log_end_offset == len(self.model)
        self.check_opened()

    @rule(seed=st.integers(0, 2**32))
    def cut_power(self, seed: int) -> None:
        durable = self.log.durable_end
        self.disk.cut_power(random.Random(seed))
        self.open()
        assert self.log.log_end_offset >= durable
        del self.model[self.log.log_end_offset :]
        self.check_opened()

    @rule()
    def close_and_open(self) -> None:
        if self.flusher.tokens:
            self.flusher.report()
        self.life.close()
        self.disk.kill()
        self.open()
        assert self.life.manager.clean_broker_epoch is not None
        assert self.log.log_end_offset == len(self.model)
        self.check_opened()

    def check_opened(self) -> None:
        """Rule Q1: what is open is synced; and it holds just what was written."""
        assert self.log.durable_end == self.log.log_end_offset
        assert values_of(self.log, max_bytes=7000) == [value for _, value in self.model]

    @invariant()
    def ends_in_order(self) -> None:
        log = self.log
        assert log.log_start_offset <= log.durable_end <= log.log_end_offset == len(self.model)
        assert not self.life.failures

    @invariant()
    def epochs_match(self) -> None:
        """Invariant L11: the cache is what the records say."""
        assert self.log.last_epoch == (self.model[-1][0] if self.model else -1)
        for epoch in range(self.epoch + 2):
            held = [index for index, (of, _) in enumerate(self.model) if of <= epoch]
            expected = (self.model[held[-1]][0], held[-1] + 1) if held else (-1, 0)
            assert self.log.end_of_epoch(epoch) == expected


PowerLoss.TestCase.settings = settings(
    max_examples=120,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestPowerLoss = PowerLoss.TestCase


@pytest.mark.parametrize("seed", range(20))
def test_rule_q1_what_was_synced_in_the_first_life_outlives_a_power_cut(seed: int) -> None:
    world = PowerLoss()
    world.start(segment_bytes=2_000, ack=True, files_max=100)
    world.append(sizes=[0], data=False)
    world.flush_begin()
    world.flush_report()
    assert world.log.durable_end == 1
    world.cut_power(seed)
    assert world.log.log_end_offset == 1
