"""A log's producers are the replay of its batches, through rolls, cuts, restarts and power cuts.

Invariant T4, on the product's own log over a disk that loses unsynced pages and names.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

import pytest

from broker.log.log_directory import LogConfig
from broker.log.partition_log import PartitionLog
from broker.log.producer_snapshot import snapshot_name, snapshot_offsets
from broker.log.producer_state import ProducerState, ProducerStates
from broker.record.batch import BatchHeader, RecordFormat, walk
from raft_metadata.common.ids import Claim, next_sequence
from tests.support.logs import Life, records
from tests.support.simulated_disk import SimulatedDisk
from tests.support.stepped_log import step_by_step

SEEDS = 200
STEPS = 60
FOLDER = "/data/log/orders-0"
END = 1 << 40


def batches_of(log: PartitionLog) -> list[BatchHeader]:
    found = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        for _, header in walk(log.read_raw(offset, 1 << 20, END)):
            found.append(header)
            offset = header.next_offset
    return found


def replayed(headers: Iterable[BatchHeader]) -> dict[int, ProducerState]:
    states = ProducerStates()
    for header in headers:
        if header.producer_id >= 0:
            states.applied(header)
    return dict(states.items())


def known(log: PartitionLog) -> dict[int, ProducerState]:
    return {} if log.producers is None else dict(log.producers.items())


class World:
    """One replica's log, written by leaders of ever newer epochs."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.disk = SimulatedDisk()
        self.config = LogConfig(segment_bytes=self.random.choice([700, 3_000, 1 << 30]))
        self.epoch, self.now_ms = 1, 1_000
        self.kinds: set[str] = set()
        self.keeps_little = self.random.choice([0, 0, 2])
        self.plain = self.retains = False
        self.history: list[BatchHeader] = []
        """All batches of the log, also those that retention took."""
        self.open()

    def open(self) -> None:
        self.life = Life(self.disk, self.config)
        self.flusher = step_by_step(self.life, self.disk)
        assert self.life.manager.offline == {}
        self.log = self.life.log()
        self.log.high_watermark = 0

    def append(self) -> None:
        count = self.random.randint(1, 4)
        pid = -1 if self.plain else self.random.randint(-1, 3)
        claim: Claim | None = None
        if pid >= 0:
            before = known(self.log).get(pid)
            epoch = 0 if before is None else before.epoch
            sequence = 0 if before is None else next_sequence(before.last_sequence)
            if self.random.random() < 0.1:
                epoch, sequence = epoch + 1, 0
            claim = Claim(pid, epoch, sequence)
            assert self.log.repeated(claim, count, self.now_ms) is None
        self.now_ms += 1
        values = ["x" * self.random.randint(0, 40) for _ in range(count)]
        json = RecordFormat.JSON
        self.log.append_as_leader(
            records(values), key_format=json, value_format=json,
            leader_epoch=self.epoch, now_ms=self.now_ms, claim=claim,
        )  # fmt: skip

    def follow(self) -> None:
        """The same batches reach another replica as bytes: it knows the same."""
        other = self.life.manager.get_or_create(
            self.log.topic, type(self.log.partition)(9), self.log.topic_id
        )
        if self.retains:
            return  # a replica that is filled now never saw what is gone
        other.truncate_to(0)
        while other.log_end_offset < self.log.log_end_offset:
            other.append_as_follower(self.log.read_raw(other.log_end_offset, 1 << 20, END))
        assert known(other) == known(self.log)

    def truncate(self) -> None:
        self.epoch += 1
        back = self.random.choice([1, 3, 10, 10_000])
        end = max(0, self.log.log_end_offset - self.random.randint(0, back))
        self.log.truncate_to(end)
        if not known(self.log) and not batches_of(self.log):
            self.history = []  # it starts over, and knows no producer

    def commit(self) -> None:
        self.log.high_watermark = self.random.randint(0, self.log.log_end_offset)

    def change(self) -> None:
        """From now on nobody says who it is, or everybody does again."""
        self.plain = not self.plain

    def retain(self) -> None:
        """The log start moves; a producer's last batch may be gone, what is known of it stays."""
        self.retains = True
        self.log.high_watermark = self.log.log_end_offset
        self.log.advance_log_start(self.random.randint(0, self.log.log_end_offset))
        self.flusher.report()
        self.life.flush()
        if self.log.stored is not None:
            for path in self.log.stored.remove_below(self.log.log_start_offset, 10):
                self.disk.unlink(path)

    def begin(self) -> None:
        if not self.flusher.tokens:
            self.flusher.begin()

    def work(self) -> None:
        self.flusher.work()

    def report(self) -> None:
        self.flusher.report()

    def close(self) -> None:
        self.flusher.report()
        self.life.flush()
        self.life.close()
        self.open()

    def kill(self) -> None:
        self.disk.kill()
        self.open()

    def cut_power(self) -> None:
        self.disk.cut_power(self.random)
        self.open()

    def rot(self) -> None:
        """A snapshot that is damaged is no longer believed: what is in the log is read there."""
        if self.retains:
            return
        for offset in snapshot_offsets(self.disk, FOLDER) if self.disk.exists(FOLDER) else ():
            if self.random.random() < 0.5:
                fd = self.disk.open(f"{FOLDER}/{snapshot_name(offset)}")
                self.disk.write(fd, b"?", 12)
                self.disk.sync_file(fd)
                self.disk.close(fd)
        self.kill()

    def run(self) -> None:
        acts = [
            *[self.append] * 12, *[self.begin] * 3, *[self.work] * 2, *[self.report] * 3,
            self.truncate, self.commit, self.close, self.kill, self.cut_power, self.rot,
            self.follow, *[self.change] * 2, *[self.retain] * self.keeps_little,
        ]  # fmt: skip
        for _ in range(STEPS):
            act = self.random.choice(acts)
            act()
            self.epoch = max(self.epoch, self.log.last_epoch)
            if known(self.log) or self.plain:
                self.kinds.add(act.__name__)
            self.keep_history()
            assert known(self.log) == replayed(self.history), act.__name__

    def keep_history(self) -> None:
        now = batches_of(self.log)
        start = self.log.log_start_offset
        if not now and start == 0:
            self.history = []
        before = [each for each in self.history if each.base_offset < start]
        if before and before[-1].next_offset > start:
            now = now[1:]  # the log begins inside this batch: it is read without its front
        self.history = before + now


@pytest.mark.parametrize("block", range(4))
def test_invariant_t4_producers_are_the_replay_of_the_log(block: int) -> None:
    kinds: set[str] = set()
    for seed in range(block, SEEDS, 4):
        world = World(seed)
        try:
            world.run()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        kinds |= world.kinds
    assert {"truncate", "close", "kill", "cut_power", "rot", "follow", "retain"} <= kinds
