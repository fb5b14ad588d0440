"""A log on a simulated disk whose flusher is an actor of its own, for state machines."""

from __future__ import annotations

from hypothesis.stateful import RuleBasedStateMachine, precondition, rule
from typing_extensions import override

from broker.log.flusher import Flushable, FlushToken, LogFlusher
from broker.log.log_directory import LogConfig
from broker.log.partition_log import PartitionLog
from tests.support.logs import Life
from tests.support.simulated_disk import SimulatedDisk


class StepFlusher(LogFlusher):
    """The thread as an actor: a round begins, syncs and reports in separate steps."""

    worked = False
    result: BaseException | None = None

    def begin(self) -> None:
        self._in_flight = self._take()
        self.worked = False

    def work(self) -> None:
        if self._in_flight and not self.worked:
            self.result = self._work(self._in_flight)
            self.worked = True

    def report(self) -> None:
        self.work()
        tokens, self._in_flight = self._in_flight, []
        self._finish(tokens, self.result)

    @override
    def drain(self, log: Flushable) -> None:
        self._wanted.pop(log, None)
        if any(token.log is log for token in self._in_flight):
            self.work()

    @property
    def tokens(self) -> list[FlushToken]:
        return self._in_flight


def step_by_step(life: Life, disk: SimulatedDisk) -> StepFlusher:
    """The flusher that this life has from now on."""
    shared = life.manager._opened()
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
        self.life.manager._files.indexes.limit_bytes = 0  # none but the last used one is kept
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
