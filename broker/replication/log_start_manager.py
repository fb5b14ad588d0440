"""Log starts of led partitions: retention, and deletions that operators request (rule R10).

`LogTrimming` is a task of the `BrokerServer`. In rounds it rolls old segments and moves the log
start of each led partition as retention requires; followers take the start from their leader. An
operator's deletion (`Deletion`) is answered once no clean election can bring the records back:
every replica that may lead next has the new start on its disk.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from broker.log import retention
from broker.replication import partition
from broker.replication.leader_state import LeaderState
from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome
from raft_metadata.common.ids import TopicIdPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from broker.config import BrokerConfig
    from broker.log.log_manager import LogManager
    from broker.log.partition_log import PartitionLog
    from broker.replication.replica import Replica
    from broker.replication.replica_manager import ReplicaManager
    from raft_metadata.common.clock import Clock
    from raft_metadata.common.ids import BrokerId, LeaderEpoch


DELETION_CHECK_S = 0.01
"""Interval of a deletion's checks. Followers receive the new start with the next tick (50 ms) and
then sync it."""


class Deletion:
    """The deletion of one partition's records below an offset, in one role of the leader.

    Created and awaited by `LogTrimming`; holds no state afterwards.
    """

    def __init__(
        self,
        manager: ReplicaManager,
        replica: Replica,
        role: LeaderState,
        clock: Clock,
        deadline_ms: int,
    ) -> None:
        """Prepare a deletion. It fails if ``replica`` leaves ``role``, its present leader state."""
        self._manager = manager
        self._replica = replica
        self._role = role
        self._clock = clock
        self._deadline_ms = deadline_ms
        self._outcome = Outcome.NOT_WRITTEN
        """Outcome of an error raised from now on."""

    async def run(self, before_offset: int) -> int:
        """Delete the records below ``before_offset``; return the new log start offset.

        Errors are those of `LogTrimming.delete_records`.
        """
        offset = await self._decide(before_offset)
        log = self._replica.log
        if offset > log.log_start_offset:
            if offset == log.log_end_offset:
                log.roll()  # so that the files of deleted records can be unlinked
            log.advance_log_start(offset)
        self._outcome = Outcome.UNKNOWN
        if not await self._until(lambda: not self._replicas_that_may_restore(offset)):
            replicas_that_may_restore = self._replicas_that_may_restore(offset)
            if self._role.me in replicas_that_may_restore:
                raise self._not_yet("the new log start is not on the disk yet", offset)
            late = ", ".join(str(broker) for broker in sorted(replicas_that_may_restore))
            text = (
                f"the log begins at {log.log_start_offset} on its leader, broker {self._role.me}, "
                f"but that is not known of broker {late}, which may lead next and show older "
                "records again"
            )
            raise self._not_yet(text, offset)
        return log.log_start_offset

    async def _decide(self, before_offset: int) -> int:
        """Return the first offset to keep, once this leader knows what is committed (rule R8)."""
        partition, log = self._replica.partition, self._replica.log
        if not await self._until(lambda: partition.high_watermark >= self._role.epoch_start):
            raise KafkaError(ErrorCode.OFFSET_NOT_AVAILABLE)
        offset = partition.high_watermark if before_offset == -1 else before_offset
        if not 0 <= offset <= partition.high_watermark:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"can't delete up to offset {before_offset}: log start offset "
                f"{log.log_start_offset}, high watermark {partition.high_watermark}",
            )
        return offset

    def _replicas_that_may_restore(self, offset: int) -> frozenset[BrokerId]:
        registration = self._manager.image.partition(*self._replica.partition.id)
        return partition.replicas_that_may_restore(
            self._role, registration, self._replica.log, offset
        )

    async def _until(self, done: Callable[[], bool]) -> bool:
        """Wait until ``done`` returns True; return False at the deadline.

        Raises KafkaError if this replica stops leading or its log goes offline.
        """
        while True:
            if self._replica.partition.role is not self._role:
                text = "another broker became the leader meanwhile"
                raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, text, outcome=self._outcome)
            failed = self._replica.log.failed
            if failed is not None:
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(failed), outcome=self._outcome)
            if done():
                return True
            if self._clock.monotonic_ms() >= self._deadline_ms:
                return False
            await asyncio.sleep(DELETION_CHECK_S)

    def _not_yet(self, what: str, offset: int) -> KafkaError:
        text = f"{what}: delete up to {offset} again, as often as you like, until it is answered"
        return KafkaError(ErrorCode.REQUEST_TIMED_OUT, text, outcome=Outcome.UNKNOWN)


LOGS_PER_TURN = 200
"""Logs that are checked before other tasks have a turn: about 1 ms."""
STARTS_AT_ONCE = 4
"""Log starts made durable in one round of the flusher. Each replaces a file, which delays produces
by 1 to 4 ms."""
DELETIONS_MAX = 100
"""Most deletions that wait at once. Each checks a hundred times a second, and a stuck follower
makes them wait for ten seconds; a thousand used a third of the processor."""
DURABLE_WAIT_MS = 5_000
"""Longest wait of retention for `STARTS_AT_ONCE` log starts; a full disk may take longer."""
UNKNOWN_MS = 60_000
"""Time without a controller's clock after which the pause of retention is logged."""
_log = logging.getLogger("broker.log")


def may_go_up_to(role: LeaderState, adding: Iterable[BrokerId], high_watermark: int) -> int:
    """Return the highest log start for retention: it must not overtake a replica being added.

    ``adding``: replicas that a reassignment adds. One that is not connected holds nothing back,
    because it may never connect (invariant L24).
    """
    connected = (role.followers.get(broker) for broker in adding)
    ends = [state.log_end for state in connected if state is not None and state.session >= 0]
    return min([high_watermark, *ends])


class LogTrimming:
    """Retention and deletion of records for all partitions that this broker leads.

    Owned by the `BrokerServer`, on its event loop; `run` is its one task.
    """

    def __init__(
        self,
        config: BrokerConfig,
        manager: ReplicaManager,
        logs: LogManager,
        clock: Clock,
        is_clock_trusted: Callable[[], bool],
        is_clock_known: Callable[[], bool] = lambda: True,
    ) -> None:
        """Prepare retention; nothing runs until `run`.

        ``is_clock_trusted``: True while this broker's wall clock is near the active controller's.
        ``is_clock_known``: True while an active controller has sent its time recently.
        """
        self._manager = manager
        self._logs = logs
        self._clock = clock
        self._is_clock_trusted = is_clock_trusted
        self._is_clock_known = is_clock_known
        self._clock_error_max_ms = config.timeouts.clock_difference_max_ms
        self._doubted = retention.DoubtedTimes(self._clock_error_max_ms)
        self._check_interval_ms = config.timeouts.log_retention_check_interval_ms
        self._waiting: dict[PartitionLog, asyncio.Event] = {}
        self._deletions = 0
        self.paused = False
        """True while retention by time waits for a trusted clock; shown to operators."""
        self._paused_ms = 0
        self._is_pause_logged = False
        logs.on_log_start = self._moved

    # deletions by operators

    async def delete_records(
        self, partition: TopicIdPartition, before_offset: int, timeout_ms: int
    ) -> int:
        """Delete the records below an offset (-1: the high watermark); return the log start.

        On return no clean election can bring them back.

        Raises:
            KafkaError: NOT_LEADER_OR_FOLLOWER; OFFSET_OUT_OF_RANGE, naming both ends of the log;
                KAFKA_STORAGE_ERROR; OFFSET_NOT_AVAILABLE or QUEUE_FULL if nothing was deleted;
                REQUEST_TIMED_OUT if the records are or will be deleted, but some replica that may
                lead next is not known to have the new start.
        """
        replica = self._manager.replica(partition)
        role = None if replica is None else replica.partition.role
        if replica is None or not isinstance(role, LeaderState):
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        deadline_ms = self._clock.monotonic_ms() + timeout_ms
        if self._deletions >= DELETIONS_MAX:
            text = f"{DELETIONS_MAX} deletions wait here: nothing was deleted"
            raise KafkaError(ErrorCode.QUEUE_FULL, text, outcome=Outcome.NOT_WRITTEN)
        deletion = Deletion(self._manager, replica, role, self._clock, deadline_ms)
        self._deletions += 1
        try:
            return await deletion.run(before_offset)
        finally:
            self._deletions -= 1

    def move_log_start(self, partition: TopicIdPartition, epoch: LeaderEpoch, offset: int) -> None:
        """Let the log of a partition begin at an offset, as its leader in this epoch decides.

        It moves once that is durable, not behind the high watermark, and not past a replica that is
        being added; followers take the start from their leader.

        Raises:
            KafkaError: NOT_LEADER_OR_FOLLOWER; KAFKA_STORAGE_ERROR, the log is offline.
        """
        replica = self._manager.replica(partition)
        role = None if replica is None else replica.partition.role
        if replica is None or not isinstance(role, LeaderState) or role.epoch != epoch:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        registration = self._manager.image.partition(*partition)
        adding = () if registration is None else registration.adding
        log = replica.log
        start = min(offset, may_go_up_to(role, adding, replica.partition.high_watermark))
        if start <= log.requested_log_start:
            return
        if start == log.log_end_offset:
            log.roll()  # so that the files of what is gone can be unlinked
        log.advance_log_start(start)

    # retention

    async def run(self) -> None:
        """Run rounds over all logs, with the configured interval in between. Endless."""
        while True:
            await asyncio.sleep(self._check_interval_ms / 1000)
            await self.look_at_all()

    async def look_at_all(self) -> None:
        """Run one round of retention over all logs of this broker."""
        trusted = self._is_clock_trusted()
        if self.paused is trusted:
            self.paused, self._is_pause_logged = not trusted, False
            self._paused_ms = self._clock.monotonic_ms()
        if self.paused and not self._is_pause_logged:
            self._log_pause()
        moving: list[PartitionLog] = []
        for number, replica in enumerate(list(self._manager.replicas())):
            if number % LOGS_PER_TURN == LOGS_PER_TURN - 1:
                await asyncio.sleep(0)
            try:
                if self._look_at(replica):
                    moving.append(replica.log)
            except (KafkaError, ValueError, OSError) as error:
                _log.warning("retention postponed log=%s error=%s", replica.log.name, error)
            if len(moving) == STARTS_AT_ONCE:
                await self._durable(moving, DURABLE_WAIT_MS)
                moving = []
                if self.paused is self._is_clock_trusted():
                    return  # the clock was set meanwhile; the next round decides anew
        if moving:
            await self._durable(moving, DURABLE_WAIT_MS)
        if not self.paused:
            self._doubted.forget_others()

    def _log_pause(self) -> None:
        if self._is_clock_known():
            why = "the clock is not near the active controller's"
        elif self._clock.monotonic_ms() - self._paused_ms >= UNKNOWN_MS:
            why = "no active controller has said what time it is"
        else:
            return  # usual for a short time after a start
        self._is_pause_logged = True
        _log.warning("retention paused: %s", why)

    def _look_at(self, replica: Replica) -> bool:
        """Roll an old segment and move the log start; return True if it is not durable."""
        log = replica.log
        segments = log.segments
        if not segments or log.failed is not None:
            return False
        if self._manager.replica(replica.partition.id) is not replica:
            return False  # deleted meanwhile: another log may have its name
        active = segments[-1]
        now_ms = self._clock.wall_ms()
        config = log.config.retention
        by_time = not self.paused
        is_old = now_ms - active.first_append_ms > log.config.segment_ms
        is_ahead = active.newest_append_ms - now_ms > self._clock_error_max_ms
        if by_time and active.size and (is_old or is_ahead):
            log.roll()
        role = replica.partition.role
        if config is None:
            return False
        ages: Mapping[str, int] = {}
        if by_time:  # in every role: a follower may lead later and then needs the ages
            ages = self._doubted.ages(log.segments, now_ms, self._clock.monotonic_ms())
        if not isinstance(role, LeaderState):
            return False
        if not by_time:
            config = config._replace(retention_ms=retention.UNLIMITED)
        registration = self._manager.image.partition(*replica.partition.id)
        adding = () if registration is None else registration.adding
        end = may_go_up_to(role, adding, replica.partition.high_watermark)
        found = retention.decide(log.segments, log.log_start_offset, end, config, now_ms, ages)
        if found is None:
            return False
        if found.roll_first:
            log.roll()
        _log.info(
            "log start moves log=%s from=%d to=%d of=%d reason=%s",
            log.name, log.log_start_offset, found.log_start, log.log_end_offset, found.why,
        )  # fmt: skip
        return log.advance_log_start(found.log_start)

    # durability

    def _moved(self, log: PartitionLog) -> None:
        """End the waits for a durable log start; followers receive it with the next tick."""
        waiter = self._waiting.pop(log, None)
        if waiter is not None:
            waiter.set()
        self._manager.log_start_moved(TopicIdPartition(log.topic_id, log.partition))

    async def _durable(self, logs: list[PartitionLog], timeout_ms: int) -> bool:
        """Wait until these log starts are durable; return False after ``timeout_ms``."""
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                for log in logs:
                    while log.is_start_moving:
                        await self._waiting.setdefault(log, asyncio.Event()).wait()
        except TimeoutError:
            return False
        finally:
            for log in logs:
                if not log.is_start_moving:
                    self._waiting.pop(log, None)
        return True
