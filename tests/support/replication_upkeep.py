"""What a simulated process does to its log by itself: compaction and retention, by its own clock.

The product's `LogCleaner` and `LogTrimming`, `ControllerClock` as their judge of time. The
cleaner's thread is an actor: a piece of its work and what the loop makes of it are two turns, and
other turns come between them, and within a piece wherever it would let go of the interpreter.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from broker.log.compaction import ENTRY_BYTES
from broker.log.swap import StateChange
from broker.replication.cleaning import make_cleaner
from broker.replication.leader_state import LeaderState
from broker.replication.log_start_manager import LogTrimming
from broker.server.lifecycle import ControllerClock
from tests.support.doors.log import drive_cleaner, set_pace_of_cleaner
from tests.support.doors.replication import skip_waits_for_durability
from tests.support.replication_hosted import Clock, Hosted
from tests.support.replication_invariants import Violation
from tests.support.replication_topics import CLOCK_DIFFERENCE_MS
from tests.support.simulated_disk import Killed

if TYPE_CHECKING:
    from broker.log.partition_log import PartitionLog
    from tests.support.replication_broker import Broker

Work = Callable[[], None]


class Turn:
    """Awaited by a pass: this is to be run before it goes on."""

    def __init__(self, work: Work) -> None:
        self.work = work

    def __await__(self) -> Generator[Work, None, None]:
        yield self.work


class Upkeep:
    """Of one life of a broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._world = broker.world
        topic, store = self._world.topic, broker.store
        assert topic is not None
        clock = Clock(broker)
        self.clock_guard = ControllerClock(clock, CLOCK_DIFFERENCE_MS)
        hosted: Any = Hosted(broker)
        manager: Any = store.manager
        limits = replace(
            store.config.limits, log_cleaner_dedupe_buffer_size=topic.keys_per_pass * ENTRY_BYTES
        )
        config = replace(store.config, limits=limits)
        trusted = self.is_clock_trusted
        self.cleaner = make_cleaner(config, manager, hosted, clock, trusted)
        set_pace_of_cleaner(self.cleaner, self._pace)
        drive_cleaner(self.cleaner, _drive)
        self.trimming = LogTrimming(config, hosted, manager, clock, trusted)
        skip_waits_for_durability(self.trimming)
        self._pass: Coroutine[Work, None, None] | None = None
        self._work: Work | None = None
        self._error: Exception | None = None
        self._began_ms = 0
        self._busy = self._over = self._ending = False

    def is_clock_trusted(self) -> bool:
        return self.clock_guard.is_trusted()

    def append_ms(self) -> int:
        """Return the append time (rule R10); a leader has an answer of a controller."""
        if self.clock_guard.ahead_ms() is None:
            self.hear_controller()
        return self.clock_guard.wall_ms()

    def hear_controller(self) -> None:
        """An answer to a heartbeat."""
        self.clock_guard.note_controller_time(self._world.now_ms, self._world.now_ms)

    # retention

    def retain(self) -> None:
        """A look at the log, as every broker has one at all of its logs now and then."""
        log = self._broker.store.log
        if self._broker.partition is None or log is None:
            return
        before, segments = log.requested_log_start, [(s.next_offset, s.size) for s in log.segments]
        leads = isinstance(self._broker.role, LeaderState)
        with suppress(StopIteration):
            self.trimming.look_at_all().send(None)
        if log.requested_log_start > before and leads:
            self._world.counts["retained"] += 1
            self._world.judge.keys.retained(self._broker, before, log.requested_log_start, segments)

    # the cleaner

    def clean(self) -> None:
        """The next turn of the cleaner: of its thread, if that has work, else of the loop."""
        if self._busy or self._broker.store.log is None:
            return
        self._busy = True
        try:
            if self._work is not None:
                work, self._work = self._work, None
                self._run(work)
            else:
                self._continue_reading()
        finally:
            self._busy = False

    def clean_some(self, turns: int) -> None:
        """So many turns, or until there is nothing to clean."""
        for _ in range(turns):
            self.clean()
            if self._pass is None or self._over:
                return

    def _run(self, work: Work) -> None:
        try:
            work()
        except Killed:
            return
        except Exception as error:  # noqa: BLE001 for the pass to make of it what it will
            if self._over:
                return
            self._error = error

    def _continue_reading(self) -> None:
        store, log = self._broker.store, self._broker.store.log
        before = list(log.segments)
        if self._pass is None:
            self._pass, self._began_ms = self.cleaner.clean_dirty_logs(), self._world.now_ms
        error, self._error = self._error, None
        try:
            self._work = self._pass.throw(error) if error else self._pass.send(None)
        except StopIteration:
            self._pass = None
        finally:
            if store.log is log and store.manager is not None and log.segments != before:
                self._replaced(log)
        cleaned_to = state_under_way(log)
        if cleaned_to:
            store.covered.append((cleaned_to, self._began_ms))
            self._world.counts["cleanings"] += 1
        left_alone = [why for other, _, why in self.cleaner.skipped_logs.values() if other is log]
        if left_alone and not store.has_rotted:
            raise Violation("L22", f"broker {self._broker.id}: {left_alone}")

    def _replaced(self, log: PartitionLog) -> None:
        self._world.counts["segments replaced"] += 1
        self._world.judge.keys.compacted(self._broker, self._broker.store.compacted())

    def _pace(self, _size: int) -> None:
        """Called by the thread amid its work: others have their turn."""
        if not self._ending:
            self._world.meanwhile()
        if self._over:
            raise Killed

    def end(self) -> None:
        """The process is no more; its descriptors are closed already."""
        self._over = True
        if self._pass is not None:
            self._pass.close()
        self._pass = None

    def cancel(self) -> None:
        """A shutdown in good order: what the thread is at comes to its end."""
        self._ending = True  # the loop waits for it
        work, self._work = self._work, None
        if work is not None and self._world.rng.random() < 0.5:
            self._run(work)
        if self._pass is not None:
            self._pass.close()
        self._pass = None
        self._over = True


async def _drive(steps: Iterator[Work]) -> None:
    for work in steps:
        await Turn(work)


def state_under_way(log: PartitionLog) -> int:
    """How far a pass that is being noted as done has cleaned the log; 0: none is."""
    pending = None if log.stored is None else log.stored.pending
    known = 0 if log.stored is None else log.stored.cleaned.cleaned_to
    if isinstance(pending, StateChange) and pending.state.cleaned_to > known:
        return pending.state.cleaned_to
    return 0
