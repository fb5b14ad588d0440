"""A log on a simulated disk whose flusher is an actor of its own, for state machines."""

from __future__ import annotations

from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from broker.log.log_directory import LogConfig
from broker.log.partition_log import PartitionLog
from tests.support.doors.log import StepFlusher, log_directory_of, open_files_of
from tests.support.logs import Life
from tests.support.simulated_disk import SimulatedDisk


def step_by_step(life: Life, disk: SimulatedDisk) -> StepFlusher:
    """The flusher that this life has from now on."""
    shared = log_directory_of(life.manager)
    shared.flusher.close()
    flusher = StepFlusher(disk, shared.root, life.failures.append)
    shared.flusher = flusher
    return flusher


class SteppedLog(RuleBasedStateMachine):
    """One partition of one broker, through many lives. Who begins sets all but the last three."""

    disk: SimulatedDisk
    config: LogConfig
    files_max: int
    """How many dirty files a round syncs one by one; above, the whole file system."""
    epoch: int
    life: Life
    flusher: StepFlusher
    log: PartitionLog

    def open(self) -> None:
        """A new process: nothing it holds is broken."""
        self.life = Life(self.disk, self.config)
        open_files_of(
            self.life.manager
        ).indexes.limit_bytes = 0  # none but the last used one is kept
        self.flusher = step_by_step(self.life, self.disk)
        self.flusher.sync_files_max = self.files_max
        assert self.life.manager.offline == {}
        self.log = self.life.log()

    @rule()
    def new_epoch(self) -> None:
        self.epoch += 1
        self.log.start_epoch(self.epoch)

    @precondition(lambda self: not self.flusher.tokens)
    @rule()
    def flush_begin(self) -> None:
        self.flusher.begin()

    @precondition(lambda self: self.flusher.tokens)
    @rule()
    def flush_work(self) -> None:
        self.flusher.work()

    @precondition(lambda self: self.flusher.tokens)
    @rule()
    def flush_report(self) -> None:
        self.flusher.report()
