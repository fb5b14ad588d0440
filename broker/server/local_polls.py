"""Polls of many partitions that this broker serves, for its own clients and for other brokers.

`PollRouting` and `PeerRequests` call `LocalPolls`. A poll waits with one `PollWatch`, which stands
at each of its replicas; no partition has a task or a timer of its own. A replica that moved is
looked at again; the first that has a page ends the wait, and all rows are then read, in
order.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

from broker.log.log_reader import warm
from broker.log.read_positions import next_epoch
from broker.server import fetch
from broker.server.local_partitions import ServingReplica, read_now
from broker.server.poll_messages import (
    LegPages,
    epochs_between,
    is_final,
)
from broker.server.requests import UNKNOWN_EPOCH, FetchResult, PollPage
from raft_metadata.common.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from broker.config import BrokerConfig
    from broker.record.batch import BatchSlice
    from broker.record.compression import Piece
    from broker.replication.replica import Replica
    from broker.replication.replica_manager import ReplicaManager
    from broker.server.fetch import FollowerReads
    from broker.server.local_partitions import LocalPartitions
    from broker.server.poll_messages import PlacedRow, PollId, PollLeg
    from raft_metadata.common.clock import Clock
    from raft_metadata.common.ids import LeaderEpoch

ROWS_PER_TURN: Final = 200
"""Rows looked at in one turn of the loop: a millisecond."""
BYTES_PER_TURN: Final = 1 << 20
"""Bytes of records read in one turn of the loop."""
RECHECK_MS: Final = 250
"""Time after which rows that could not be served are tried again. A new role or high watermark of
a replica that is here ends it early."""
GATHER_MS: Final = 20
"""Least time between two looks of a poll whose ``min_bytes`` is not there: each look reads them."""


class PollWatch:
    """One waiter of a poll at many replicas; it collects those that moved.

    Owned by the task of the poll. A `replica.ReplicaWaiter`.
    """

    __slots__ = ("_waiter", "is_ended", "moved")

    def __init__(self) -> None:
        self.moved: set[Replica] = set()
        """Replicas that moved since they were last looked at; this watch left each of them."""
        self.is_ended = False
        """True once the poll has to answer with what there is."""
        self._waiter: asyncio.Future[None] | None = None

    def done(self) -> bool:
        return False

    def set_result(self, replica: Replica, /) -> None:
        self.moved.add(replica)
        self._wake()

    def end(self) -> None:
        """Have the poll answer at once."""
        self.is_ended = True
        self._wake()

    async def wait(self, at_most_ms: int) -> None:
        """Wait until a replica has moved or the poll is ended, or for ``at_most_ms``."""
        if self.moved or self.is_ended:
            return
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        timer = loop.call_later(at_most_ms / 1000, self._wake)
        try:
            await self._waiter
        finally:
            timer.cancel()
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class LocalPolls:
    """Legs of polls that this broker serves.

    Owned by the `BrokerServer`, on its loop. It keeps the number of rows that wait here, and the
    watches of other brokers' legs by name.
    """

    def __init__(
        self,
        config: BrokerConfig,
        local: LocalPartitions,
        follower_reads: FollowerReads,
        manager: ReplicaManager,
        clock: Clock,
    ) -> None:
        self.broker_id = config.broker_id
        self._max_rows = config.limits.max_polled_partitions
        self._local = local
        self._follower_reads = follower_reads
        self._manager = manager
        self._clock = clock
        self._rows = 0
        self._watches: dict[PollId, PollWatch] = {}

    @contextlib.contextmanager
    def holding(self, rows: int) -> Iterator[None]:
        """Count the rows of a poll while it is under way here.

        Raises:
            KafkaError: QUEUE_FULL, with these it would be more than ``max_polled_partitions``.
        """
        if self._rows + rows > self._max_rows:
            text = (
                f"{self._rows} partitions are polled here, {rows} more are over "
                f"max_polled_partitions={self._max_rows}"
            )
            raise KafkaError(ErrorCode.QUEUE_FULL, text)
        self._rows += rows
        try:
            yield
        finally:
            self._rows -= rows

    async def serve(self, leg: PollLeg, watch: PollWatch) -> LegPages:
        """Return once a row has a page, ``watch`` is ended, or the wait is over."""
        return await _LocalPoll(self, leg, watch).run()

    async def serve_peer(self, leg: PollLeg, poll_id: PollId) -> LegPages:
        """Serve another broker's leg. Its name is known before anything is awaited."""
        watch = self._watches[poll_id] = PollWatch()
        try:
            with self.holding(len(leg.rows)):
                return await self.serve(leg, watch)
        finally:
            del self._watches[poll_id]

    def end(self, poll_id: PollId) -> None:
        """End the wait of another broker's leg, if it is still under way."""
        watch = self._watches.get(poll_id)
        if watch is not None:
            watch.end()

    def monotonic_ms(self) -> int:
        """Return the time by which deadlines count."""
        return self._clock.monotonic_ms()

    def replica_of(self, row: PlacedRow) -> Replica | None:
        """Return the replica here that a row is about, whatever its role is."""
        return self._manager.replica(row.place)

    def serving(self, row: PlacedRow, *, from_follower: bool) -> ServingReplica:
        """Return the replica that may serve a row now, from its position on.

        Nothing may be awaited between this and the read. Raises KafkaError.
        """
        if from_follower:
            replica, following = self._follower_reads.in_sync(row.place)
            fetch.check_position(replica, row.offset, row.leader_epoch)
            return ServingReplica(replica, following.leader, following.epoch)
        replica, leading = self._local.leading(row.place)
        self._local.check_position(replica, row.offset, row.leader_epoch)
        return ServingReplica(replica, self.broker_id, leading.epoch)


class _LocalPoll:
    """A leg that is served here. Owned by the task that awaits `run`.

    Each row is in ``_to_look_at``, or is watched, or is in ``_unserved``.
    """

    def __init__(self, polls: LocalPolls, leg: PollLeg, watch: PollWatch) -> None:
        self._polls = polls
        self._leg = leg
        self._watch = watch
        self._rows = {row.row: row for row in leg.rows}
        """Rows by number, in the request's order."""
        self._ahead: dict[int, tuple[int, LeaderEpoch]] = {}
        """Row → the offset up to which compaction left no record, and the leader epoch in which
        that was found: in another one the log may hold other records there."""
        self._to_look_at: dict[int, None] = dict.fromkeys(self._rows)
        self._watched: dict[Replica, int] = {}
        """Replica at which the watch stands → the row that is about it."""
        self._unserved: dict[int, KafkaError] = {}

    async def run(self) -> LegPages:
        deadline_ms = self._polls.monotonic_ms() + self._leg.max_wait_ms
        try:
            while True:
                has_page = await self._find_news()
                left_ms = deadline_ms - self._polls.monotonic_ms()
                if has_page or self._watch.is_ended or left_ms <= 0:
                    answer = await self._collect()
                    if answer.pages or self._watch.is_ended or left_ms <= 0:
                        return answer
                    if self._leg.from_follower and answer.unserved:
                        return answer  # their leader has to be asked
                    for row in self._unserved:
                        self._to_look_at.pop(row, None)
                    if self._to_look_at:
                        continue
                await self._watch.wait(min(left_ms, RECHECK_MS) if self._unserved else left_ms)
                if self._leg.min_bytes > 1 and not self._watch.is_ended:
                    await asyncio.sleep(min(GATHER_MS, max(0, left_ms)) / 1000)
                self._take_moved()
        finally:
            for replica in self._watched:
                replica.forget_waiter(self._watch)

    def _take_moved(self) -> None:
        """Have the rows that moved looked at again, and those that could not be served."""
        moved, self._watch.moved = self._watch.moved, set()
        for replica in moved:
            row = self._watched.pop(replica, None)
            if row is not None:
                self._to_look_at[row] = None
        self._to_look_at |= dict.fromkeys(self._unserved)

    async def _find_news(self) -> bool:
        """Look at rows until one ends the wait; watch those that have no page."""
        for count, row in enumerate(list(self._to_look_at), 1):
            if await self._has_news(row):
                return True
            del self._to_look_at[row]
            if count % ROWS_PER_TURN == 0:
                await asyncio.sleep(0)
                if self._watch.is_ended:
                    return True
        return False

    async def _has_news(self, number: int) -> bool:
        """Return whether a row ends the wait; if not, it is watched from this turn on."""
        leg, is_warm = self._leg, False
        while True:
            try:
                now, offset = self._serving(number)
                log, end = now.replica.log, now.replica.partition.high_watermark
                if offset < end:
                    if leg.news_only or leg.min_bytes == 1:
                        return True
                    cold = None if is_warm else log.cold_range(offset, leg.min_bytes)
                    if cold is not None:
                        is_warm = True
                        await warm(cold)
                        continue
                    found = log.read(offset, leg.min_bytes, end)
                    size = sum(len(piece.lines) for piece in found)
                    if size >= leg.min_bytes or (found and found[-1].next_offset < end):
                        return True  # it is cut before the record that would be too much
                self._unserved.pop(number, None)
            except (KafkaError, OSError) as raised:
                error = _as_kafka_error(raised)
                if is_final(error) or leg.from_follower:
                    return True
                self._unserved[number] = error
            self._start_watching(self._rows[number])
            return False

    def _start_watching(self, row: PlacedRow) -> None:
        replica = self._polls.replica_of(row)
        if replica is not None and replica not in self._watched:
            replica.wait(self._watch)
            self._watched[replica] = row.row

    async def _collect(self) -> LegPages:
        """Return the pages of all rows as they are now, in order, as far as the room goes."""
        pages: list[PollPage] = []
        room = self._leg.max_bytes
        count = turn_bytes = 0
        for number in list(self._rows):
            try:
                page = await self._page_of(number, room)
                self._unserved.pop(number, None)
            except (KafkaError, OSError) as raised:
                error, page = _as_kafka_error(raised), None
                if is_final(error) and not self._leg.from_follower:
                    page = PollPage(number, self._rows[number].place.topic_id, error)
                else:
                    self._unserved[number] = error
            count += 1
            size = 0 if page is None else page.size
            turn_bytes += size
            if size > room < self._leg.max_bytes:
                room, page = 0, None  # as in `pages_in_room`
            if page is not None:
                room -= size
                pages.append(page)
            if count >= ROWS_PER_TURN or turn_bytes >= BYTES_PER_TURN:
                count = turn_bytes = 0
                await asyncio.sleep(0)
        return LegPages(pages=pages, unserved=dict(self._unserved))

    async def _page_of(self, number: int, room: int) -> PollPage | None:
        """Return the page of a row; None if nothing is new, or no room is left.

        Raises:
            KafkaError: why the row can't be read.
        """
        leg, is_warm = self._leg, False
        while True:
            now, offset = self._serving(number)
            log, partition = now.replica.log, now.replica.partition
            end, topic_id = partition.high_watermark, self._rows[number].place.topic_id
            if offset >= end or (room <= 0 and not leg.news_only):
                return None
            if leg.news_only:
                epochs = epochs_between(log.epoch_entries, offset, end)
                return PollPage(number, topic_id, self._result(now, end), tuple(epochs))
            size = min(leg.max_partition_bytes, room)
            cold = None if is_warm else log.cold_range(offset, size)
            if cold is not None:
                is_warm = True  # only once: pages evicted again are read on the loop
                await warm(cold)
                continue
            slices, frames = read_now(log, offset, size, partition, packed=leg.packed)
            if not slices and not frames:  # no record is left in between (rule R7)
                self._ahead[number] = (end, now.epoch)
                return None
            following = (slices or frames)[-1].next_offset
            found = self._result(now, following, slices=slices, packed=frames)
            return PollPage(number, topic_id, found)

    def _serving(self, number: int) -> tuple[ServingReplica, int]:
        """Return the replica that may serve a row now, and the offset to read from."""
        row, from_follower = self._rows[number], self._leg.from_follower
        if number in self._ahead:
            offset, epoch = self._ahead[number]
            ahead = row._replace(offset=offset, leader_epoch=UNKNOWN_EPOCH)
            with contextlib.suppress(KafkaError):
                now = self._polls.serving(ahead, from_follower=from_follower)
                if now.epoch == epoch:
                    return now, offset
            del self._ahead[number]
        return self._polls.serving(row, from_follower=from_follower), row.offset

    def _result(
        self,
        now: ServingReplica,
        next_offset: int,
        slices: Sequence[BatchSlice] = (),
        packed: Sequence[Piece] = (),
    ) -> FetchResult:
        log = now.replica.log
        return FetchResult(
            slices=slices,
            packed=packed,
            high_watermark=now.replica.partition.high_watermark,
            log_start_offset=log.log_start_offset,
            next_offset=next_offset,
            next_leader_epoch=next_epoch(log, next_offset),
            leader_id=now.leader,
            leader_epoch=now.epoch,
            served_by=self._polls.broker_id if self._leg.from_follower else None,
        )


def _as_kafka_error(raised: KafkaError | OSError) -> KafkaError:
    """Return the error of a row, so that a disk's failure fails this row only."""
    if isinstance(raised, KafkaError):
        return raised
    return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"the log can't be read: {raised}")
