"""A broker's membership: registration, heartbeats, unfencing, controlled shutdown; and its clock.

The `BrokerServer` makes and runs `Lifecycle`, which owns the session with the controllers: it
registers this incarnation, keeps the content of heartbeats current, and reports to other parts
whether the broker may have been replaced. `ControllerClock` stamps records, as far as the
controllers' clocks and this broker's own agree (rule R10).

`DiskStallWatch` finds a disk that has stopped answering, so that this broker stops leading. A
leader drops followers whose disks are silent from the ISR, but nothing drops the leader, whose own
durable end then holds the high watermark back. A broker whose disk is silent while a partition that
it leads waits for a sync therefore withholds its heartbeats until the disk answers: its session
ends, and another replica leads. A voter of the quorum does the same (decision 0006). While nothing
waits (``flush=os``) a long sync does not concern the session: all brokers may have one at the same
time. Logs sync through `WatchedDisk`.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from itertools import count
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from typing_extensions import override

from broker.replication.leader_state import LeaderState
from raft_metadata.common.disk import Disk
from raft_metadata.common.errors import KafkaError
from raft_metadata.common.ids import UNKNOWN_BROKER_EPOCH, BrokerEpoch, NodeId
from raft_metadata.records.commands import (
    BrokerHeartbeat,
    DamagedReplica,
    HeartbeatAnswer,
    RegisterBroker,
)
from raft_metadata.records.feature_levels import SUPPORTED_FEATURE_LEVEL
from raft_metadata.records.records import BrokerState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from broker.config import BrokerConfig
    from broker.ports import ControllerChannel
    from broker.replication.replica import Replica
    from broker.server.metadata_loader import MetadataLoader
    from raft_metadata.common.clock import Clock
    from raft_metadata.common.ids import IncarnationId
    from raft_metadata.records.partition_set import PartitionSet


REGISTER_RETRY_MS = 200
PROGRESS_MS = 50
"""Interval at which the loop shows the heartbeats its progress and that of the image (rule M7)."""
PROOF_MARGIN_MS = 1_000
"""Time before the end of a session at which a proof ends; in very short sessions a proof lasts for
a sixth of the session (rule G3)."""
MEASUREMENT_AGE_MAX_MS = 60_000
"""Age up to which a measurement may decide on deletions; no active controller has answered since an
older one."""
CARRIED_MAX_MS = 43_200_000
"""Silence after which a controller's clock is not used any more: half a day of the worst crystal
(0.05 %) is 22 s."""
MAJORITY_OF = 3
"""Clocks of which one may be wrong; with fewer controllers this broker's own clock counts too."""
LOOK_AGAIN_MS = 50
"""Time for which a clock that was right is not compared again, so that an append reads one clock. A
smaller step of the clock shows that much later."""
ONLY_ONE = NodeId(0)
"""Id for a controller that did not name itself."""

_log = logging.getLogger("broker.lifecycle")

T = TypeVar("T")


def waits_for_sync(replicas: Iterable[Replica]) -> bool:
    """Return whether a partition led here has records that count only once synced (rule R1)."""
    return any(
        isinstance(replica.partition.role, LeaderState)
        and replica.partition.settings.by_durable
        and replica.log.durable_end < replica.log.log_end_offset
        for replica in replicas
    )


class WatchedDisk(Disk):
    """Real files, with a note of each sync under way. Used by the loop and the flusher's thread."""

    def __init__(self) -> None:
        self._numbers = count()
        self._under_way: dict[int, int] = {}

    def oldest_sync(self) -> int | None:
        """Return the number of the sync under way that began first; None if there is none."""
        return min(list(self._under_way.values()), default=None)

    @override
    def sync_data(self, fd: int) -> None:
        self._watched(super().sync_data, fd)

    @override
    def sync_file(self, fd: int) -> None:
        self._watched(super().sync_file, fd)

    @override
    def sync_filesystem(self, fd: int) -> None:
        self._watched(super().sync_filesystem, fd)

    @override
    def sync_names(self, fd: int) -> None:
        self._watched(super().sync_names, fd)

    def _watched(self, sync: Callable[[T], None], what: T) -> None:
        thread = threading.get_ident()
        self._under_way[thread] = next(self._numbers)
        try:
            sync(what)
        finally:
            del self._under_way[thread]


class DiskStallWatch:
    """Detector of a silent disk, polled by the `Lifecycle` many times a second, on the loop.

    A process that stood still must not blame its disk (rule M7): of the time between two polls at
    most ``look_max_ms`` counts.
    """

    def __init__(
        self,
        oldest_sync: Callable[[], int | None],
        silence_max_ms: int,
        look_max_ms: int,
        clock: Clock,
        matters: Callable[[], bool] = lambda: True,
    ) -> None:
        """Watch the oldest sync; ``matters`` returns whether something waits for the disk.

        ``matters`` is not called again while a silence lasts: a broker that was replaced leads
        nothing that waits, but its disk is still silent.
        """
        self._oldest_sync = oldest_sync
        self._silence_max_ms = silence_max_ms
        self._look_max_ms = look_max_ms
        self._clock = clock
        self._matters = matters
        self._is_silent = False
        self._sync: int | None = None
        self._looked_ms = clock.monotonic_ms()
        self._silent_ms = 0

    def check_silence(self) -> bool:
        """Return whether one sync has lasted for too long while something waits for it."""
        now_ms = self._clock.monotonic_ms()
        passed_ms = min(now_ms - self._looked_ms, self._look_max_ms)
        self._looked_ms = now_ms
        sync = self._oldest_sync()
        if sync is None or sync != self._sync:
            self._sync, self._silent_ms = sync, 0
        else:
            self._silent_ms += passed_ms
        is_long = self._silent_ms > self._silence_max_ms
        self._is_silent = is_long and (self._is_silent or self._matters())
        return self._is_silent


class _Measurement(NamedTuple):
    """This machine's wall clock compared with the active controller's."""

    at_ms: int
    """Monotonic time."""
    ahead_ms: int
    """Own wall clock minus the controller's."""
    own_offset_ms: int
    """Own wall clock minus monotonic time: a later step of the clock shows in it."""


class ControllerClock:
    """A `Clock` whose wall time stamps records, corrected if it is far from the controllers'.

    Owned by the `Lifecycle`, on the broker's loop. Offsets are wall clocks minus this machine's
    monotonic time; a change of this machine's wall clock does not change the controllers' offsets.
    """

    def __init__(self, clock: Clock, difference_max_ms: int) -> None:
        self.monotonic_ms: Callable[[], int] = clock.monotonic_ms
        """This machine's monotonic time in milliseconds."""
        self._clock = clock
        self._own_wall_ms = clock.wall_ms
        self._difference_max_ms = difference_max_ms
        self._measurement: _Measurement | None = None
        """The active controller's last one."""
        self._offset_by_controller: dict[NodeId, tuple[int, int]] = {}
        """(offset, monotonic time of the measurement) of each controller."""
        self._offsets: list[int] = []
        """The controllers' offsets, ascending."""
        self._agreed: int | None = None
        """The own offset when it last was near the active controller's; None: never yet."""
        self._near_offsets = range(0)
        """Own offsets that need no correction."""
        self._right_times = range(0)
        """Own wall clock times at which the clock is not compared again."""
        self._is_corrected = False

    def note_controller_time(
        self,
        controller_wall_ms: int,
        sent_ms: int,
        controller: NodeId = ONLY_ONE,
        *,
        is_active: bool = True,
    ) -> None:
        """Take the wall time in a controller's answer to a heartbeat sent at ``sent_ms``.

        ``sent_ms`` is monotonic.
        """
        now_ms, wall_ms = self._clock.monotonic_ms(), self._clock.wall_ms()
        error_ms = max(now_ms - sent_ms, 0) // 2
        ahead_ms = wall_ms - error_ms - controller_wall_ms
        # The least difference that the round trip allows: a slow answer alone shows no wrong clock.
        ahead_ms = max(abs(ahead_ms) - error_ms, 0) * (1 if ahead_ms > 0 else -1)
        own = wall_ms - now_ms
        if is_active:
            self._measurement = _Measurement(now_ms, ahead_ms, own)
            if abs(ahead_ms) <= self._difference_max_ms:
                self._agreed = own
        self._offset_by_controller[controller] = (own - ahead_ms, now_ms)
        self._offset_by_controller = {
            node: measurement
            for node, measurement in self._offset_by_controller.items()
            if now_ms - measurement[1] <= CARRIED_MAX_MS
        }
        self._judge()

    def ahead_ms(self) -> int | None:
        """Return how far this clock is ahead of the active controller's now; None: not known."""
        measured, now_ms = self._measurement, self._clock.monotonic_ms()
        if measured is None or now_ms - measured.at_ms > MEASUREMENT_AGE_MAX_MS:
            return None
        stepped_ms = self._clock.wall_ms() - now_ms - measured.own_offset_ms
        return measured.ahead_ms + stepped_ms

    def is_trusted(self) -> bool:
        """Return whether append times can be compared with this clock."""
        ahead_ms = self.ahead_ms()
        if ahead_ms is None or abs(ahead_ms) > self._difference_max_ms:
            return False
        if len(self._offsets) < MAJORITY_OF:
            return True
        # The active controller may be on this machine, and share its clock.
        own = self._clock.wall_ms() - self._clock.monotonic_ms()
        return abs(own - self._offsets[len(self._offsets) // 2]) <= self._difference_max_ms

    # as a Clock

    def wall_ms(self) -> int:
        """Return the time for stamps: this clock's, or the majority's if this one is far off."""
        wall_ms = self._own_wall_ms()
        if wall_ms in self._right_times:
            return wall_ms
        now_ms = self._clock.monotonic_ms()
        if wall_ms - now_ms not in self._near_offsets:
            return self._corrected(wall_ms, now_ms)
        self._right_times = range(wall_ms, wall_ms + LOOK_AGAIN_MS)
        return wall_ms

    # inside

    def _corrected(self, wall_ms: int, now_ms: int) -> int:
        own = wall_ms - now_ms
        clocks = self._offsets
        if len(clocks) < MAJORITY_OF:
            clocks = sorted([*clocks, own, *([] if self._agreed is None else [self._agreed])])
        middle = clocks[len(clocks) // 2]
        is_off = abs(own - middle) > self._difference_max_ms
        if is_off is not self._is_corrected:
            self._is_corrected = is_off
            if is_off:
                _log.warning(
                    "the clock differs from the other nodes', append times follow theirs ms=%d",
                    own - middle,
                )
            else:
                _log.info("the clock agrees with the other nodes' again ms=%d", own - middle)
        return now_ms + middle if is_off else wall_ms

    def _judge(self) -> None:
        """Compute the range of own offsets that need no correction.

        It is near the middle of three controllers' offsets or more, or near each of fewer.
        """
        self._right_times = range(0)
        offsets = self._offsets = sorted(
            offset for offset, _ in self._offset_by_controller.values()
        )
        middle = offsets[len(offsets) // 2]
        few = len(offsets) < MAJORITY_OF
        lowest, highest = (offsets[0], offsets[-1]) if few else (middle, middle)
        most = self._difference_max_ms
        # A clock under correction is compared each time, so that its recovery is logged.
        near = range(highest - most, lowest + most + 1)
        self._near_offsets = range(0) if self._is_corrected else near


class Lifecycle:
    """The broker's session with the controllers.

    Owned by the `BrokerServer`, on its loop; ``run`` is its one task.
    """

    def __init__(
        self,
        config: BrokerConfig,
        incarnation_id: IncarnationId,
        controllers: ControllerChannel,
        loader: MetadataLoader,
        unclean_partitions: Callable[[], PartitionSet],
        clock: Clock,
        disk_is_silent: Callable[[], bool] = lambda: False,
        failed_replicas: Callable[[], tuple[DamagedReplica, ...]] = tuple,
    ) -> None:
        self.broker_epoch: BrokerEpoch | None = None
        """Broker epoch of the controller's answer; replicas take their roles from the image."""
        self.may_stop = asyncio.Event()
        self.controller_clock = ControllerClock(clock, config.timeouts.clock_difference_max_ms)
        self.shutdown_blocked_by = ""
        self._clock = clock
        self.proven_ms: int | None = None
        """Monotonic time of the last heartbeat that an active controller acknowledged."""
        self._config = config
        self._incarnation_id = incarnation_id
        self._controllers = controllers
        self._loader = loader
        self._unclean_partitions = unclean_partitions
        self._disk_is_silent = disk_is_silent
        self._was_silent = False
        self._failed_replicas = failed_replicas
        self._content_number = 0
        """Number of the newest heartbeat content; a controller ignores one that was overtaken."""
        self._want_shutdown = False
        self._heartbeat_wanted = asyncio.Event()
        self._answer_received = asyncio.Event()
        """Set, and replaced by a new one, at every answer."""

    @property
    def state(self) -> BrokerState | None:
        """State of this incarnation in the image, or None if the image does not have it."""
        registration = self._loader.image.brokers.get(self._config.broker_id)
        if registration is None or registration.incarnation_id != self._incarnation_id:
            return None
        return registration.state

    @property
    def is_settled(self) -> bool:
        """True once all that this incarnation reported at registration is recorded (rule M4)."""
        registration = self._loader.image.brokers.get(self._config.broker_id)
        mine = registration is not None and registration.incarnation_id == self._incarnation_id
        return mine and registration is not None and registration.settled

    @property
    def proof_age_max_ms(self) -> int:
        """Greatest age of a proof that this broker has not been replaced (rule G3).

        It is well within the session, and within the grace after a lost connection too: a
        controller that acknowledged a heartbeat and then lost the connection fences the broker
        after that grace.
        """
        timeouts = self._config.timeouts
        session_ms = timeouts.broker_session_timeout_ms
        margin_ms = max(session_ms - PROOF_MARGIN_MS, session_ms // 6)
        return min(margin_ms, timeouts.broker_disconnect_grace_ms * 2 // 3)

    def check_proof(self) -> bool:
        """Return whether no other replica can have been elected in this broker's place.

        An active controller must have acknowledged a heartbeat that was *sent* no longer ago than
        `proof_age_max_ms`. During a controlled shutdown nothing is proven: leaderships move
        although the broker lives. If the answer is False, the next heartbeat is sent at once (rules
        G3, R8).
        """
        if self.proven_ms is not None and not self._want_shutdown:
            age_ms = self._clock.monotonic_ms() - self.proven_ms
            if age_ms < self.proof_age_max_ms:
                if 2 * age_ms >= self.proof_age_max_ms:
                    self._heartbeat_wanted.set()  # renew the proof before it ends
                return True
        self._heartbeat_wanted.set()
        return False

    async def prove(self, timeout_ms: int) -> bool:
        """Wait up to `timeout_ms` for a heartbeat that proves `check_proof`; return the result."""
        deadline_ms = self._clock.monotonic_ms() + timeout_ms
        while not self.check_proof():
            remaining_ms = deadline_ms - self._clock.monotonic_ms()
            if remaining_ms <= 0 or self._want_shutdown:
                return False
            try:
                async with asyncio.timeout(remaining_ms / 1000):
                    await self._answer_received.wait()
            except TimeoutError:
                return False
        return True

    def want_shutdown(self) -> None:
        """Request a controlled shutdown; ``may_stop`` is set once it is granted (rule R11)."""
        self._want_shutdown = True
        self._heartbeat_wanted.set()

    async def run(self) -> None:
        """Register and send heartbeats; register again if the registration ends meanwhile.

        It ends when another process registers under this id, or an operator unregisters a broker
        that still runs. During a controlled shutdown there is nothing more to hand over then, and
        the broker may stop.
        """
        await self._loader.loaded.wait()
        while not self.may_stop.is_set():
            self.broker_epoch = await self._register()
            await self._heartbeat_while_registered(self.broker_epoch)
            if self._want_shutdown:
                self.may_stop.set()

    async def _register(self) -> BrokerEpoch:
        refusals = 0
        while True:
            known = self._loader.image.brokers.get(self._config.broker_id)
            command = RegisterBroker(
                broker_id=self._config.broker_id,
                cluster_id=self._config.cluster_id,
                incarnation_id=self._incarnation_id,
                directory_id=self._config.directory_id,
                http=self._config.advertised_http,
                peer=self._config.advertised_peer,
                rack=self._config.rack,
                unclean_ranges=self._unclean_partitions().ranges,
                last_broker_epoch=known.broker_epoch if known else UNKNOWN_BROKER_EPOCH,
                feature_level_max=SUPPORTED_FEATURE_LEVEL,
                min_insync_replicas=self._config.defaults.min_insync_replicas,
            )
            try:
                registered = await self._controllers.execute(command)
            except KafkaError as error:
                refusals += 1
                level = logging.INFO if refusals % 10 == 1 else logging.DEBUG
                _log.log(level, "registration not accepted yet error=%s %s", error.code.name, error)
                await asyncio.sleep(REGISTER_RETRY_MS / 1000)
                continue
            _log.info("registered broker_epoch=%d", registered.broker_epoch)
            return registered.broker_epoch

    async def _heartbeat_while_registered(self, epoch: BrokerEpoch) -> None:
        """Keep the content of the heartbeats current until the registration has ended."""
        at_once = True
        last_report: tuple[tuple[DamagedReplica, ...], int] = ((), 0)
        with self._controllers.heartbeats(self._take_answer) as heartbeats:
            while not self._has_registration_ended(epoch):
                self._heartbeat_wanted.clear()  # a request from here on gets a heartbeat of its own
                self._content_number += 1
                command = BrokerHeartbeat(
                    broker_id=self._config.broker_id,
                    broker_epoch=epoch,
                    metadata_offset=self._loader.image.next_offset,
                    want_shutdown=self._want_shutdown,
                    failed=self._failed_replicas(),
                    number=self._content_number,
                )
                if command.failed:  # the controller's decisions wait for this report
                    news = (command.failed, command.metadata_offset)
                    at_once, last_report = at_once or news != last_report, news
                if not self._withholds_heartbeats():
                    heartbeats.set_content(command, at_once=at_once)
                at_once = await self._wait_for_request(PROGRESS_MS)

    def _withholds_heartbeats(self) -> bool:
        """Return whether heartbeats are withheld because the disk hangs.

        What is led here then moves to replicas whose disks answer.
        """
        silent = self._disk_is_silent()
        if silent and not self._was_silent:
            _log.warning("the disk does not answer, heartbeats wait for it")
        elif self._was_silent and not silent:
            _log.info("the disk answers again, heartbeats go on")
        self._was_silent = silent
        return silent

    def _take_answer(self, answer: HeartbeatAnswer, sent_ms: int) -> None:
        """Take an answer, on the loop and only here, so that the newest image judges it."""
        self.controller_clock.note_controller_time(
            answer.wall_ms, sent_ms, answer.controller_id, is_active=answer.is_active
        )
        if answer.is_active:
            if self._proves(answer):
                self.proven_ms = max(sent_ms, self.proven_ms or sent_ms)
            self._loader.note_committed(answer.committed_offset)
            self.shutdown_blocked_by = answer.shutdown_blocked_by
            if answer.should_shut_down and self._want_shutdown:
                self.may_stop.set()
        self._announce_answer()

    def _has_registration_ended(self, epoch: BrokerEpoch) -> bool:
        """Return whether the image has passed this registration and shows another one, or none."""
        image = self._loader.image
        known = image.brokers.get(self._config.broker_id)
        if known is None:
            # The offset of the registration's record is its broker epoch.
            if image.next_offset > epoch:
                _log.warning("unregistered broker_epoch=%d", epoch)
                return True
            return False
        if known.broker_epoch <= epoch or known.incarnation_id == self._incarnation_id:
            return False
        _log.warning("another process registered broker_epoch=%d", known.broker_epoch)
        return True

    def _announce_answer(self) -> None:
        self._answer_received.set()
        self._answer_received = asyncio.Event()

    def _proves(self, answer: HeartbeatAnswer) -> bool:
        """Return whether an answer proves that this broker has not been replaced.

        The broker must not be fenced, and its image must be as new as the answer. The controller
        must not have been replaced itself: a broker and a controller that are cut off together
        would trust each other for a second after both were replaced.
        """
        if not answer.majority_answers:
            return False
        alive = answer.state in (BrokerState.UNFENCED, BrokerState.CONTROLLED_SHUTDOWN)
        return alive and self._loader.image.next_offset >= answer.committed_offset

    async def _wait_for_request(self, timeout_ms: int) -> bool:
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._heartbeat_wanted.wait()
        except TimeoutError:
            return False
        return True
