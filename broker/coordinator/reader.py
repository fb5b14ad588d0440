"""Reads of consumer instances: fetch assigned partitions, render records, move positions once.

The `GroupCoordinator` calls `InstanceReader.poll` for each poll. A `_Read` plans the partitions,
fetches a few at a time, renders them (`answer_parts`), and waits while there is too little. A
record that can't be shown stops its partition and no other (`blocked`). It delivers
only with proof that this broker still leads, in one step that moves the positions (rule G3). The
ports name what it needs of the broker; ``broker.server`` implements them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, Protocol

from broker.coordinator import instances
from broker.coordinator.answer_parts import (
    ANSWER_BYTES_MAX,
    Part,
    at_most,
    bytes_of,
    door_of,
    fill_part,
    join_bodies,
    unreadable_error,
)
from broker.coordinator.blocked import blocked_records, note_read, stepped_over
from broker.coordinator.end_watches import EndWatches, WakeUp, WatchedEnd
from broker.coordinator.group_messages import (
    MOVES_REPORTED_MAX,
    BlockedPlace,
    Move,
    OffsetReset,
    Poll,
    PolledRecords,
    UnreadableRecords,
)
from broker.coordinator.group_state import (
    BlockedRecord,
    GroupsState,
    Instance,
    Session,
    Topics,
    of_present_life,
)
from broker.coordinator.positions import (
    OffsetAndEpoch,
    ReadPosition,
    joined,
    move_of,
    place_after,
)
from broker.coordinator.read_tokens import DeliveredPart, Held
from broker.coordinator.records import InstanceKey, StoredRecord
from broker.coordinator.shard import Shard
from broker.log.leader_epoch_cache import NO_EPOCH
from broker.log.read_positions import PositionTruncatedError
from broker.record.batch import BatchSlice
from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome
from raft_metadata.common.ids import TopicId, TopicName, TopicPartition

if TYPE_CHECKING:
    from raft_metadata.common.clock import Clock


_log = logging.getLogger("broker.coordinator")


class Fetched(NamedTuple):
    """Stored records below the high watermark, and the offset behind them."""

    slices: Sequence[BatchSlice]
    next_offset: int


class Ends(NamedTuple):
    """The log start of a partition, and the next offset that a reader gets with its epoch."""

    beginning: int
    end: int
    end_epoch: int = NO_EPOCH

    @property
    def latest(self) -> OffsetAndEpoch:
        """The place that ``latest`` means."""
        return OffsetAndEpoch(self.end, self.end_epoch)

    def nearest(self, offset: int) -> OffsetAndEpoch:
        """Return the end that is nearer to an offset outside of the log, else the offset."""
        if offset >= self.end:
            return self.latest
        return OffsetAndEpoch(max(offset, self.beginning))


class DataReader(Protocol):
    """Port to the data of any partition, wherever it is led. Its methods raise `KafkaError`."""

    async def fetch(
        self,
        partition: TopicPartition,
        place: OffsetAndEpoch,
        topic_id: TopicId,
        max_bytes: int,
        max_wait_ms: int,
    ) -> Fetched:
        """Return records of the topic with this id from a place on.

        Raises:
            KafkaError: OFFSET_OUT_OF_RANGE outside the log, a `PositionTruncatedError` if the log
                does not hold what was before the place, TOPIC_CHANGED.
        """
        ...

    async def ends(self, partition: TopicPartition) -> Ends:
        """Return both ends of a partition."""
        ...

    async def offset_at(self, partition: TopicPartition, timestamp_ms: int) -> int:
        """Return the first offset at or after this time; the end if there is none."""
        ...

    async def catch_up_with_topic(self, topic: TopicName) -> None:
        """Wait at most a second for an image that contains the topic."""
        ...


POLL_BYTES_DEFAULT = 4_194_304
POLL_BYTES_MAX = 16_777_216
"""Most bytes of stored records in one read."""
PARKED_POLLS_MAX = 5_000
"""Most reads in progress on one broker; QUEUE_FULL beyond."""
WAVE = 4
"""Partitions fetched together; twice as many in the next step if none had records."""
WATCHED_MAX = 64
"""Most partitions that a waiting read watches at once; it takes the next ones after `WATCH_MS`."""
WATCH_MS = 500
PATIENCE_MS = 400
"""Time after which a partition is left out if its leader does not answer."""
MOVES_FOLLOWED_MAX = 3
"""Times that a read collects again because positions were moved, even if its time is over."""
RETRY_MS = 100
"""Pause before a watched partition is fetched again after an error or an empty answer."""


class InstanceReader:
    """Reads of all consumer instances here, at most one of each instance at a time.

    Owned by the `GroupCoordinator`, on its event loop. A newer read of an instance ends the older
    one.
    """

    def __init__(
        self,
        door: DataReader,
        clock: Clock,
        topics: Callable[[], Topics],
        prove: Callable[[Shard], Awaitable[None]],
        poll_wait_ms_max: int,
    ) -> None:
        """Prepare; ``prove`` raises if this broker may not lead any more (rule G3)."""
        self._door = door
        self._clock = clock
        self._topics = topics
        self._prove = prove
        self._poll_wait_ms_max = poll_wait_ms_max
        self._locks: dict[Session, asyncio.Lock] = {}
        self._newest: dict[Session, _Read] = {}
        self._reading = 0
        self.watches = EndWatches(self._until_records)
        """Waits for the reads that have read their partitions to the end."""

    async def poll(self, shard: Shard, request: Poll) -> PolledRecords:
        """Wait for records and return some; positions move behind them.

        Raises:
            KafkaError: nothing was delivered, and no position moved.
        """
        if self._reading >= PARKED_POLLS_MAX:
            raise KafkaError(ErrorCode.QUEUE_FULL, "max_parked_polls is reached")
        try:
            return await self._poll(shard, request)
        except KafkaError as error:
            if error.outcome is not Outcome.UNKNOWN:
                raise
            # The unknown outcome is that of an automatic commit: nothing was delivered.
            text = f"the read was given up: {error.message}"
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, text) from None

    async def _poll(self, shard: Shard, request: Poll) -> PolledRecords:
        read = _Read(self, shard, request)
        self._reading += 1
        read.session.calls += 1
        try:
            earlier = self._newest.get(read.session)
            if earlier is not None:
                earlier.give_way()
            self._newest[read.session] = read
            lock = self._locks.setdefault(read.session, asyncio.Lock())
            async with lock:
                answer = await read.run()
            return answer if answer is not None else await read.wait_for_deadline()
        finally:
            self._reading -= 1
            read.release_session()
            if self._newest.get(read.session) is read:
                del self._newest[read.session]
            if read.session.ended or not read.session.calls:
                self._locks.pop(read.session, None)

    # for `_Read`

    def wall_ms(self) -> int:
        """Return the wall time in milliseconds."""
        return self._clock.wall_ms()

    def now_ms(self) -> int:
        """Return the monotonic time in milliseconds."""
        return self._clock.monotonic_ms()

    def topics(self) -> Topics:
        """Return the topics of the present image."""
        return self._topics()

    async def prove(self, shard: Shard) -> None:
        """Wait for proof that this broker still leads; raise KafkaError without it (rule G3)."""
        await self._prove(shard)

    def wait_ms(self, request: Poll, instance: Instance) -> int:
        """Return the longest wait of a read, in milliseconds."""
        wanted = request.timeout_ms
        if wanted is None:
            wanted = instance.value.settings.request_timeout_ms
        return max(0, min(wanted, self._poll_wait_ms_max))

    async def fetch(
        self,
        partition: TopicPartition,
        place: OffsetAndEpoch,
        topic_id: TopicId,
        max_bytes: int,
        max_wait_ms: int,
    ) -> Fetched | None:
        """Read one partition; return None if no broker serves it now.

        Raises:
            KafkaError: OFFSET_OUT_OF_RANGE or LOG_TRUNCATED, from which only the reader recovers.
        """
        try:
            async with asyncio.timeout((max_wait_ms + PATIENCE_MS) / 1000):
                return await self._door.fetch(partition, place, topic_id, max_bytes, max_wait_ms)
        except TimeoutError:
            return None
        except KafkaError as error:
            if error.code in {ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.LOG_TRUNCATED}:
                raise
            return None

    async def _until_records(self, end: WatchedEnd, waits_until: Callable[[], int]) -> None:
        """Wait until there are records at an end, or a read would fail there.

        A fetch waits no longer than the reads that it is for: at a leader elsewhere it goes on
        though they leave, and counts there.
        """
        place = OffsetAndEpoch(end.offset)
        while True:
            began_ms = self.now_ms()
            left_ms = max(0, waits_until() - began_ms)
            try:
                found = await self.fetch(end.partition, place, end.topic_id, 1, left_ms)
            except KafkaError:
                await asyncio.sleep(RETRY_MS / 1000)
                return
            if found is not None and found.slices:
                return
            if self.now_ms() - began_ms < RETRY_MS:
                await asyncio.sleep(RETRY_MS / 1000)

    async def ends(self, partition: TopicPartition) -> Ends:
        """Return both ends of a partition."""
        return await self._door.ends(partition)

    async def resolve(
        self, partitions: list[TopicPartition], reset: OffsetReset
    ) -> dict[TopicPartition, OffsetAndEpoch]:
        """Return the place that ``earliest`` or ``latest`` means now, for each partition.

        The caller records it before it is used (rule G2).
        """
        found: dict[TopicPartition, OffsetAndEpoch] = {}
        for at in range(0, len(partitions), WATCHED_MAX):
            wave = partitions[at : at + WATCHED_MAX]
            ends = await asyncio.gather(*(self.ends(partition) for partition in wave))
            for partition, end in zip(wave, ends, strict=True):
                latest = reset is OffsetReset.LATEST
                found[partition] = end.latest if latest else OffsetAndEpoch(end.beginning)
        return found


class _Read:
    """The state of a read from its request to its answer."""

    def __init__(self, reader: InstanceReader, shard: Shard, request: Poll) -> None:
        self._reader = reader
        self._shard = shard
        self._request = request
        self._key = InstanceKey(request.group, request.instance)
        self._generation = shard.generation
        key, topics = self._key, reader.topics()
        self._held = shard.decide(
            lambda state: instances.acknowledge_answer(state, key, request.after), self._generation
        )
        self.session = shard.decide(
            lambda state: instances.begin_call(state, key, topics), self._generation
        )
        _, instance, _ = self._state().find(key)
        self._settings = instance.value.settings
        self._door = door_of(self._settings.format, request.accepted)
        self._deadline_ms = reader.now_ms() + reader.wait_ms(request, instance)
        wanted = request.max_bytes if request.max_bytes is not None else POLL_BYTES_DEFAULT
        self._has_moved = False
        """True if a position was moved while the last partitions were collected."""
        self._max_bytes = max(1, min(wanted, POLL_BYTES_MAX))
        self._marks = self._settings.unreadable_records is UnreadableRecords.MARK
        self._is_overtaken = False
        self._changed: WakeUp | None = None
        """Set when a watched partition or the group changes, which ends a wait; None before
        `run`."""

    def give_way(self) -> None:
        """End this read without a result, because a newer read of the instance has come.

        The client that sent this one may have ended, so it must deliver nothing.
        """
        self._is_overtaken = True
        if self._changed is not None:
            self._changed.set()

    def _gives_way(self) -> bool:
        """Return True once a newer read of the instance has come."""
        return self._is_overtaken

    async def wait_for_deadline(self) -> PolledRecords:
        """Return nothing at the deadline.

        If it returned at once, two clients of one instance would repeat their reads without a
        pause.
        """
        await asyncio.sleep(self._remaining_ms / 1000)
        return self._answer(b"[]", 0, self.session.tokens.acknowledged)

    def _answer(
        self, body: bytes, count: int, token: str, moved: tuple[Move, ...] = ()
    ) -> PolledRecords:
        return PolledRecords(
            body=body,
            count=count,
            format=self._settings.format,
            token=token,
            is_resumed=self._held is Held.FOREIGN,
            moved=moved,
            blocked=tuple(BlockedPlace(*place, found.offset) for place, found in self._blocked()),
        )

    def _blocked(self) -> list[tuple[TopicPartition, BlockedRecord]]:
        """Return the records at which the instance stands, sorted by partition."""
        state, topics = self._state(), self._reader.topics()
        group, instance, _ = state.find(self._key)
        return [
            (place, found)
            for place, found in blocked_records(group, instance, self.session, topics)
            if found.position.next == found.offset
        ]

    def release_session(self) -> None:
        """Let the session age again, which a read keeps alive while it is in progress or waits."""
        self.session.calls -= 1
        with suppress(KafkaError):
            self.session.heard_ms = self._state().judge_ms

    def _state(self) -> GroupsState:
        return self._shard.state(self._generation)

    def _instance(self) -> Instance:
        """Return the instance; raise UNKNOWN_MEMBER_ID if it was removed meanwhile."""
        _, instance, session = self._state().find(self._key)
        if session is not self.session:
            text = f"Consumer instance {self._key.instance} was deleted while it read."
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, text)
        return instance

    @property
    def _remaining_ms(self) -> int:
        return max(0, self._deadline_ms - self._reader.now_ms())

    async def run(self) -> PolledRecords | None:
        """Collect and deliver; try again while there is time. None: a newer read has come."""
        if self._gives_way():
            return None
        self._instance()
        topics = self._reader.topics()
        self._shard.decide(lambda state: instances.begin_read(state, self._key, topics))
        follows = 0
        while True:
            self._changed = changed = self._shard.watch(self._key.group)
            try:
                if self._gives_way():
                    return None
                self._give_up_revoked()
                plan = await self._plan()
                self._has_moved = False
                parts = await self._collect(plan)
                if self._has_moved and not parts and follows < MOVES_FOLLOWED_MAX:
                    follows += 1  # a read without time gets what is at the new positions, too
                    continue
                ends = self._open_ends(plan, parts)
                is_stopped = bool(plan) and not ends
                if self._is_enough(parts) or is_stopped or not self._remaining_ms:
                    answer = await self._deliver(parts, is_stopped=is_stopped)
                    if answer is not None:
                        return answer
                    continue
                watched, wait_ms = self._ends_to_watch(plan, ends)
                del plan, parts, ends  # thousands of reads may wait
                await self._wait(watched, wait_ms, changed)
            finally:
                self._shard.unwatch(self._key.group, changed)

    def _is_enough(self, parts: Sequence[Part]) -> bool:
        """Return True if the read need not wait for more records."""
        size = sum(part.size for part in parts)
        least = self._settings.fetch_min_bytes
        if size >= self._max_bytes or self._records_left(parts) == 0:
            return True
        return size >= max(least, 1) and least >= 0

    @staticmethod
    def _count(parts: Iterable[Part]) -> int:
        return sum(part.count for part in parts)

    def _open_ends(
        self, plan: Mapping[TopicPartition, ReadPosition], parts: Iterable[Part]
    ) -> dict[TopicPartition, int]:
        """Return where each partition goes on, without those whose next record can't be shown."""
        ends = {partition: position.next for partition, position in plan.items()}
        ends.update({part.partition: part.next for part in parts})
        for partition, found in self.session.blocked.items():
            if found.position is plan.get(partition) and ends.get(partition) == found.offset:
                del ends[partition]
        return ends

    def _give_up_revoked(self) -> None:
        """Give up partitions beyond the target: this read counts as a new call."""
        instance = self._instance()
        if not instance.owned <= instance.target:
            topics = self._reader.topics()
            self._shard.decide(lambda state: instances.begin_call(state, self._key, topics))

    async def _plan(self) -> dict[TopicPartition, ReadPosition]:
        """Return the positions to read at, beginning behind the last partition returned before.

        A partition without a start here appeared after the subscription or assignment, under an old
        topic name. All its records are new, so ``latest`` must not skip them (rule G2).
        """
        topics = self._reader.topics()
        instance = self._instance()
        reset = self._settings.auto_offset_reset
        missing = [
            partition
            for partition in sorted(instance.assignment)
            if partition.topic in topics
            and instances.position_of(self._state(), self._key, partition, topics) is None
        ]
        if missing and reset is OffsetReset.NONE:
            text = f"no committed offset for partition {missing[0].topic}-{missing[0].partition}"
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, f"{text}, auto.offset.reset is none")
        if missing:
            starts = await self._reader.resolve(missing, OffsetReset.EARLIEST)
            before, topics = topics, self._reader.topics()
            starts = of_present_life(starts, before, topics)
            self._shard.decide(
                lambda state: instances.record_starts(state, self._key, starts, topics),
                self._generation,
            )
            instance = self._instance()
        owned = sorted(instance.assignment)
        if owned:
            first = self.session.rotation % len(owned)
            owned = owned[first:] + owned[:first]
        plan = {}
        for partition in owned:
            position = instances.position_of(self._state(), self._key, partition, topics)
            if position is not None and partition.topic in topics:
                plan[partition] = position
        return plan

    async def _collect(self, plan: dict[TopicPartition, ReadPosition]) -> list[Part]:
        """Fetch a few partitions at a time until there is enough to return.

        A partition that no broker serves takes `PATIENCE_MS`. A read that has records, or whose own
        time is over, leaves further partitions to the next read.
        """
        parts: list[Part] = []
        places = list(plan.items())
        patient_until_ms = self._reader.now_ms() + PATIENCE_MS
        at, width = 0, WAVE
        while at < len(places):
            room = self._max_bytes - sum(part.size for part in parts)
            if room <= 0 or self._is_full(parts):
                break
            if self._reader.now_ms() > patient_until_ms and (parts or not self._remaining_ms):
                self.session.rotation += at
                break
            wave = places[at : at + width]
            share = max(1, room // len(wave))
            found = await asyncio.gather(
                *(self._fetch(partition, position, share) for partition, position in wave)
            )
            for (partition, position), (begin, result) in zip(wave, found, strict=True):
                if result is not None and not result.slices:
                    note_read(self.session, partition, position, begin + 1)
                elif result is not None and not self._is_full(parts):
                    part = self._rendered(Part(partition, position, begin), result, parts)
                    if part.count:
                        parts.append(part)
                    else:
                        self._pass_over(part)
            at += len(wave)
            width = width if parts else min(2 * width, WATCHED_MAX)
        return parts

    def _records_left(self, parts: Iterable[Part]) -> int | None:
        """Return how many records the answer may still take; None: any number."""
        limit = self._settings.max_poll_records
        return None if limit is None else max(0, limit - self._count(parts))

    def _is_full(self, parts: list[Part]) -> bool:
        return bytes_of(parts) >= ANSWER_BYTES_MAX or self._records_left(parts) == 0

    def _rendered(self, part: Part, result: Fetched, parts: list[Part]) -> Part:
        """Render fetched records; note the one that can't be shown, or that there is none."""
        slices, end = at_most(result.slices, self._records_left(parts))
        fill_part(
            part,
            slices,
            result.next_offset if end is None else end,
            self._door,
            mark=self._marks,
            passed_over=self._passed_over(part.partition),
        )
        note_read(
            self.session,
            part.partition,
            part.position,
            part.next,
            part.stopped_by,
            self._reader.wall_ms(),
        )
        return part

    def _passed_over(self, partition: TopicPartition) -> frozenset[StoredRecord]:
        group, _, _ = self._state().find(self._key)
        return stepped_over(group, partition, self._reader.topics())

    def _pass_over(self, part: Part) -> None:
        """Move a position over records that are stepped over, so that a commit covers them.

        No answer has them, so this needs no proof: a newer coordinator has the same fact.
        """
        position = part.position
        is_mine = self.session.positions.get(part.partition) is position
        if is_mine and position.next == part.begin < part.next:
            position.next = part.next
            position.sent = max(position.sent, part.next)
            position.delivered = True
            position.spans = joined(position.spans, part.spans)

    async def _fetch(
        self, partition: TopicPartition, position: ReadPosition, max_bytes: int
    ) -> tuple[int, Fetched | None]:
        begin = position.next
        place = OffsetAndEpoch(begin, position.epoch_of(begin))
        found = self.session.blocked.get(partition)
        is_known = found is not None and found.position is position and found.offset == begin
        if found is not None and is_known and found.record not in self._passed_over(partition):
            max_bytes = 1  # to see whether it is still there
        try:
            return begin, await self._reader.fetch(
                partition, place, position.topic_id, max_bytes, 0
            )
        except KafkaError as error:
            await self._move(partition, position, place, error)
            return begin, None

    async def _move(
        self,
        partition: TopicPartition,
        position: ReadPosition,
        place: OffsetAndEpoch,
        error: KafkaError,
    ) -> None:
        """Move a position that the log does not hold any more, and note it for the client.

        Of a log that was cut or replaced `place_after` says where reading goes on; a position out
        of range goes to the nearer end. No record that is there is skipped.
        """
        if self._settings.auto_offset_reset is OffsetReset.NONE:
            raise error
        if isinstance(error, PositionTruncatedError):
            target = place_after(error)
        else:
            try:
                ends = await self._reader.ends(partition)
            except KafkaError:
                return
            target = ends.nearest(place.offset)
            if target.offset == place.offset:
                return  # it is in range by now
        if position.next != place.offset:
            return
        topics = self._reader.topics()
        if self.session.position(partition, topics) is not position:
            return
        now_ms = self._reader.wall_ms()
        move = move_of(self._key.instance, partition, place.offset, target.offset, error, now_ms)
        self._shard.decide(
            lambda state: instances.follow_move(
                state, self._key, move, target.leader_epoch, topics
            ),
            self._generation,
        )
        self._has_moved = True
        _log.warning(
            "position moved group=%s instance=%s partition=%s-%d from=%d to=%d cause=%s",
            *self._key, *partition, move.from_offset, move.to_offset, move.cause,
        )  # fmt: skip

    async def _deliver(self, parts: list[Part], *, is_stopped: bool) -> PolledRecords | None:
        """Move the positions and return the answer, once committed and proven (rule G3).

        None: nothing could be delivered, and there is time to try again. ``is_stopped``: each
        partition stands at a record that can't be shown, so waiting for others is of no use.

        Raises:
            KafkaError: UNREADABLE_RECORD if there is nothing but such records.

        All decisions that the answer depends on must be committed. From the check of the assignment
        to the move of the positions there is no ``await``.
        """
        await self._shard.settled()
        await self._reader.prove(self._shard)
        instance, topics = self._instance(), self._reader.topics()
        mine = [
            part
            for part in parts
            if not self._gives_way()
            and part.partition in instance.assignment
            and self.session.position(part.partition, topics) is part.position
            and part.position.next == part.begin
        ]
        is_last = not self._remaining_ms
        if not parts and (is_stopped or is_last) and not self._gives_way():
            for place, found in self._blocked():
                raise unreadable_error(place, found.offset, found.message, self._key.group)
        if not mine and not is_last:
            return None
        for part in mine:
            repeat_end = part.next if part.next < part.position.sent else None
            part.position.next = part.next
            part.position.sent = max(part.position.sent, part.next)
            part.position.delivered = True
            part.position.spans = joined(part.position.spans, part.spans, repeat_end)
        token = self.session.tokens.note(
            DeliveredPart(part.partition, part.position, part.begin, part.next) for part in mine
        )
        if mine:
            owned = sorted(instance.assignment)
            self.session.rotation = owned.index(mine[-1].partition) + 1
        moves: tuple[Move, ...] = ()
        if not self._gives_way():  # else the newer read reports them to the client
            kept_for = token if instance.value.is_token_reader else None
            moves = self.session.moves_to_report(MOVES_REPORTED_MAX, kept_for)
        return self._answer(join_bodies(mine), self._count(mine), token, moves)

    def _ends_to_watch(
        self, plan: Mapping[TopicPartition, ReadPosition], ends: Mapping[TopicPartition, int]
    ) -> tuple[list[WatchedEnd], int]:
        """Return the ends at which this read waits next, and for how many milliseconds."""
        wait_ms = self._remaining_ms
        watched = [WatchedEnd(place, plan[place].topic_id, end) for place, end in ends.items()]
        if len(watched) <= WATCHED_MAX:
            return watched, wait_ms
        self.session.rotation += WATCHED_MAX
        return watched[:WATCHED_MAX], min(wait_ms, WATCH_MS)

    async def _wait(self, watched: Sequence[WatchedEnd], wait_ms: int, changed: WakeUp) -> None:
        """Wait until a watched partition has records, the group changed, or time is over."""
        watches, until_ms = self._reader.watches, self._reader.now_ms() + wait_ms
        for end in watched:
            watches.join(end, changed, until_ms)
        try:
            async with asyncio.timeout(wait_ms / 1000):
                await changed.wait()
        except TimeoutError:
            pass
        finally:
            for end in watched:
                watches.leave(end, changed)
