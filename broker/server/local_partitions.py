"""Requests for partitions that this broker leads: append, fetch, offsets. Never forwards.

`RoutedBrokerApis`, `DirectRequests` and `PeerRequests` call `LocalPartitions`. A produce with
acks=all waits in the partition's delayed produces; a fetch waits for records below the high
watermark; a look-up by time goes in steps, so that it does not hold the event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from broker.log.log_reader import TimeSearch, warm
from broker.log.read_positions import PositionTruncatedError, find_divergence, next_epoch
from broker.record.compression import PackedSlice
from broker.replication.delayed_produces import AppendOutcome, DelayedProduce
from broker.replication.leader_state import LeaderState
from broker.server.requests import (
    ACKS_ALL,
    ACKS_NONE,
    UNKNOWN_EPOCH,
    FetchResult,
    OffsetsResult,
    PartitionProgress,
)
from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome
from raft_metadata.common.ids import PartitionId

if TYPE_CHECKING:
    from broker.config import BrokerConfig
    from broker.log.partition_log import PartitionLog
    from broker.log.producer_state import RememberedBatch
    from broker.record.batch import BatchSlice, RecordFormat
    from broker.record.compression import Piece
    from broker.record.lines import ProduceRecord
    from broker.replication.partition import Partition
    from broker.replication.replica import Replica
    from broker.replication.replica_manager import ReplicaManager
    from raft_metadata.common.clock import Clock
    from raft_metadata.common.ids import BrokerId, Claim, LeaderEpoch, TopicIdPartition


LOOKUPS_MAX = 100
"""Look-ups that wait for their turn. Long ones take turns: each may hold a batch of 65 MB."""
LOOKUP_TIMEOUT_MS = 30_000
"""Time for a look-up, including its wait for a turn: those before it end by their own time-outs, so
none takes longer. A log whose times go up and down may have to be read through, at some 500,000
batches a second."""
CALLS_PER_TURN = 200
"""Calls in one turn of the loop. Each writes an answer in about 25 µs: 5 ms in all."""


class TurnBudget:
    """Calls in order, at most `CALLS_PER_TURN` of them in one turn of the loop.

    Owned by the caller, on the loop. Calls within the limit are made at once, so that few calls
    never wait.
    """

    __slots__ = ("_left", "_scheduled", "_waiting")

    def __init__(self) -> None:
        self._left = CALLS_PER_TURN
        self._scheduled = False
        self._waiting: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()

    def call(self, function: Callable[..., None], *arguments: Any) -> None:
        """Call the function now, or in the next turn that has room for it."""
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._next_turn)
        if self._left > 0 and not self._waiting:
            self._left -= 1
            function(*arguments)
        else:
            self._waiting.append((function, arguments))

    def _next_turn(self) -> None:
        self._scheduled, self._left = False, CALLS_PER_TURN
        if not self._waiting:
            return
        self._scheduled = True
        asyncio.get_running_loop().call_soon(self._next_turn)
        while self._waiting and self._left > 0:
            self._left -= 1
            function, arguments = self._waiting.popleft()
            function(*arguments)


class ServingReplica(NamedTuple):
    """A replica that may serve reads now, with its leader and leader epoch."""

    replica: Replica
    leader: BrokerId
    epoch: LeaderEpoch


class Reads:
    """Reads that wait for records, in bounded number.

    Owned by `LocalPartitions` and by `FollowerReads`. Stateless but for the number of reads that
    wait.
    """

    def __init__(self, max_parked_fetches: int, clock: Clock) -> None:
        self._max_parked = max_parked_fetches
        self._clock = clock
        self._parked = 0

    async def read(
        self,
        offset: int,
        max_bytes: int,
        deadline_ms: int,
        serving_replica: Callable[[], ServingReplica],
        check: Callable[[Replica, int], None],
        *,
        leader_epoch: int = UNKNOWN_EPOCH,
        packed: bool = False,
    ) -> FetchResult:
        """Return records from an offset on, or none at the deadline.

        ``leader_epoch``: that of the offset, as the reader knows it. An answer above the high
        watermark repeats it: the record before such an offset may still be replaced by another one.
        ``serving_replica`` raises if the replica may not serve any more, ``check`` if this offset
        may not be read. Both are called again after every wait, and nothing is awaited between them
        and the read. ``packed``: see `FetchResult.packed`.
        """
        now = serving_replica()
        first_epoch = now.epoch
        is_warm = False
        while True:
            replica, leader, epoch = now
            if epoch != first_epoch:
                raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the leader epoch changed")
            check(replica, offset)
            partition, log = replica.partition, replica.log
            slices: Sequence[BatchSlice] = ()
            frames: Sequence[Piece] = ()
            if offset < partition.high_watermark:
                cold = None if is_warm else log.cold_range(offset, max_bytes)
                if cold is not None:
                    is_warm = True  # only once: pages evicted again are read on the loop
                    await warm(cold)
                    now = serving_replica()
                    continue
                slices, frames = read_now(log, offset, max_bytes, partition, packed=packed)
                if not slices and not frames:
                    offset = partition.high_watermark  # no record is left in between (rule R7)
            remaining_ms = deadline_ms - self._clock.monotonic_ms()
            if slices or frames or remaining_ms <= 0:
                last = (slices or frames)[-1:]
                following = last[0].next_offset if last else offset
                is_committed = following <= partition.high_watermark
                return FetchResult(
                    slices=slices,
                    packed=frames,
                    high_watermark=partition.high_watermark,
                    log_start_offset=log.log_start_offset,
                    next_offset=following,
                    next_leader_epoch=next_epoch(log, following) if is_committed else leader_epoch,
                    leader_id=leader,
                    leader_epoch=epoch,
                )
            await self.wait(replica, remaining_ms)
            now = serving_replica()

    async def wait(self, replica: Replica, at_most_ms: int) -> None:
        """Wait until the replica's high watermark or role has changed, or for `at_most_ms`."""
        if self._parked >= self._max_parked:
            raise KafkaError(ErrorCode.QUEUE_FULL, "max_parked_fetches is reached")
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[Replica | None] = loop.create_future()
        timer = loop.call_later(at_most_ms / 1000, _finish, waiter)
        replica.wait(waiter)
        self._parked += 1
        try:
            await waiter
        finally:
            self._parked -= 1
            timer.cancel()
            replica.forget_waiter(waiter)


def read_now(
    log: PartitionLog, offset: int, max_bytes: int, partition: Partition, *, packed: bool
) -> tuple[Sequence[BatchSlice], Sequence[Piece]]:
    """Return the records below the high watermark, as (`slices`, `packed`) of a `FetchResult`."""
    if packed:
        return split_packed(log.read_packed(offset, max_bytes, partition.high_watermark))
    return log.read(offset, max_bytes, partition.high_watermark), ()


def split_packed(found: Sequence[Piece]) -> tuple[Sequence[BatchSlice], Sequence[Piece]]:
    """Return the pieces as (`slices`, `packed`) of a `FetchResult`; one of the two is empty."""
    for piece in found:
        if isinstance(piece, PackedSlice):
            return (), found
    return cast("Sequence[BatchSlice]", found), ()


def _finish(waiter: asyncio.Future[Replica | None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class TimeLookups:
    """Look-ups of offsets by time, of which the long ones take turns.

    Owned by `LocalPartitions`. Most look-ups are over in one step and wait for nothing.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._turn = asyncio.Lock()
        self._waiting = 0

    async def offset_of(
        self, timestamp_ms: int, serving_replica: Callable[[], ServingReplica]
    ) -> int:
        """Return the first offset at or after `timestamp_ms`; the high watermark if all is older.

        ``serving_replica`` raises if the replica may not serve any more. It is called before each
        step, and nothing is awaited between the last call and the return.

        Raises: KafkaError: the error of ``serving_replica``; NOT_LEADER_OR_FOLLOWER, the leader
            epoch changed;
                OFFSET_NOT_AVAILABLE, this leader does not know yet where what is committed ends;
                KAFKA_STORAGE_ERROR, a batch is damaged; QUEUE_FULL; REQUEST_TIMED_OUT.
        """
        search = TimeSearch(timestamp_ms)
        first = serving_replica()
        if first.replica.log.step_time_search(search):
            return _answer(search, first)
        if self._waiting >= LOOKUPS_MAX:
            raise KafkaError(ErrorCode.QUEUE_FULL, f"{LOOKUPS_MAX} look-ups by time wait here")
        self._waiting += 1
        deadline_ms = self._clock.monotonic_ms() + LOOKUP_TIMEOUT_MS
        try:
            async with self._turn:
                return await self._search_in_turns(search, first, serving_replica, deadline_ms)
        finally:
            self._waiting -= 1

    async def _search_in_turns(
        self,
        search: TimeSearch,
        first: ServingReplica,
        serving_replica: Callable[[], ServingReplica],
        deadline_ms: int,
    ) -> int:
        while True:
            if search.work is None:
                await asyncio.sleep(0)
            else:
                await asyncio.to_thread(search.work)
            now = serving_replica()
            if now.epoch != first.epoch or now.replica is not first.replica:
                raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the leader epoch changed")
            if now.replica.log.step_time_search(search):
                return _answer(search, now)
            if self._clock.monotonic_ms() >= deadline_ms:
                text = f"no record of that time was found within {LOOKUP_TIMEOUT_MS} ms"
                raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, text)


def _answer(search: TimeSearch, now: ServingReplica) -> int:
    """Return the offset that a search found; raise OFFSET_NOT_AVAILABLE if it is not certain.

    It is certain below the high watermark, or once the high watermark has reached the start of this
    leader's epoch (rule R8).
    """
    partition = now.replica.partition
    found = partition.high_watermark if search.found is None else search.found
    role = partition.role
    if (
        isinstance(role, LeaderState)
        and partition.high_watermark < role.epoch_start
        and found >= partition.high_watermark
    ):
        raise KafkaError(ErrorCode.OFFSET_NOT_AVAILABLE)
    return found


class AppendBatchKey(NamedTuple):
    """Properties that requests must share to be appended, and to wait, as one batch."""

    place: TopicIdPartition
    stored_as: RecordFormat
    acks: int
    timeout_ms: int


Answered = Callable[[PartitionId, int, KafkaError | None], None]
"""The function that takes the answer to a produce: (partition, base offset, error)."""
GatheredProduce = tuple[int, Answered]
"""A request in a batch: the number of records before its own, and its function."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Append:
    """Records to append to one partition, in order."""

    partition: TopicIdPartition
    records: Sequence[ProduceRecord]
    key_format: RecordFormat
    value_format: RecordFormat
    acks: int
    timeout_ms: int
    claim: Claim | None = None
    """Producer id, epoch and sequence: a batch that is here already is not written again
    (invariants T1 to T3)."""
    may_begin: bool = True
    """True if no earlier batch of this producer is under way: see `ProducerStates.check`."""
    refused: KafkaError | None = None
    """Under a claim: the refusal of the records by the topic's configs. They may have been written
    before the configs changed, and a repeat is answered as the first one (invariant T2); anything
    else is refused."""
    whole: bool = False
    """True if all records must be one batch, which no replica has in part (rule S1). At most
    `BATCH_LINES_MAX` bytes of lines, else MESSAGE_TOO_LARGE."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """A read of one partition. Exactly one of ``offset`` and ``timestamp_ms`` is set."""

    partition: TopicIdPartition
    offset: int | None
    timestamp_ms: int | None
    max_bytes: int
    max_wait_ms: int
    packed: bool = False
    """See `FetchResult.packed`."""
    leader_epoch: int = UNKNOWN_EPOCH
    """See `FetchRequest.leader_epoch`."""
    seen_epoch: int = UNKNOWN_EPOCH
    """See `FetchRequest.seen_epoch`."""


class LocalPartitions:
    """Appends to and reads of the partitions that this broker leads.

    Owned by the `BrokerServer`, on its loop. Stateless between requests but for the number of
    produces and fetches that wait.
    """

    def __init__(
        self,
        config: BrokerConfig,
        manager: ReplicaManager,
        clock: Clock,
        check_proof: Callable[[], bool],
    ) -> None:
        """Take ``check_proof``: an active controller knew this broker less than a session ago."""
        self._config = config
        self._manager = manager
        self._clock = clock
        self._is_proven = check_proof
        self.parked_produces = 0
        """Requests whose answers wait for other replicas; at most `max_parked_produces`."""
        self._answers = TurnBudget()
        self._reads = Reads(config.limits.max_parked_fetches, clock)
        self._lookups = TimeLookups(clock)

    def leading(self, partition: TopicIdPartition) -> tuple[Replica, LeaderState]:
        """Return the replica and the role of a partition led here; NOT_LEADER_OR_FOLLOWER."""
        replica = self._manager.replica(partition)
        if replica is None or not isinstance(replica.partition.role, LeaderState):
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return replica, replica.partition.role

    def check_parking(self) -> None:
        """Raise QUEUE_FULL if no further answer may wait for other replicas."""
        if self.parked_produces >= self._config.limits.max_parked_produces:
            raise KafkaError(ErrorCode.QUEUE_FULL, "max_parked_produces is reached")

    def leads(self, partition: TopicIdPartition) -> bool:
        """Return whether the partition is led here."""
        return self._manager.led_epoch(partition) is not None

    def damaged(self) -> Mapping[TopicIdPartition, str]:
        """Return the replicas here whose logs are damaged, with the reason."""
        return self._manager.repairs.reasons()

    async def append(self, request: Append) -> int:
        """Append, wait as ``acks`` requires, and return the base offset; -1 for acks=0."""
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def answered(_: PartitionId, base: int, error: KafkaError | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(base)
            else:
                future.set_exception(error)

        self.append_directly(request, [(0, answered)])
        return await future

    def append_directly(self, request: Append, waiting: Sequence[GatheredProduce]) -> None:
        """Append the records of one or several requests as one batch, without a task.

        Each function in ``waiting`` is called once, perhaps at once, with its own base offset. It
        must not raise, nor call this object: it is called where a high watermark moves. Only a
        single request may have a claim.

        Raises:
            KafkaError: the records were refused or could not be written; no function is called.
        """
        replica, _ = self.leading(request.partition)
        if request.claim is not None:
            found = self._find_repeat(replica, request, request.claim)
            if found is not None:
                self._answer_repeat(replica, found, request, waiting)
                return
            if request.refused is not None:
                raise self._certain_refusal(request.refused)
        role = replica.partition.check_may_append(all_replicas=request.acks == ACKS_ALL)
        if self.parked_produces + len(waiting) > self._config.limits.max_parked_produces:
            raise KafkaError(ErrorCode.QUEUE_FULL, "max_parked_produces is reached")
        info = replica.log.append_as_leader(
            request.records,
            key_format=request.key_format,
            value_format=request.value_format,
            leader_epoch=role.epoch,
            now_ms=self._clock.wall_ms(),
            claim=request.claim,
            whole=request.whole,
        )
        base, last = info.base_offset, info.last_offset
        self._manager.appended(replica, base, last + 1, info.raw)
        if _awaits_replicas(replica, request.acks):
            self._delay_answers(replica, (role.epoch, base, last), request, waiting)
        else:
            self._answer_now(request, waiting, base)

    def _answer_now(self, request: Append, waiting: Sequence[GatheredProduce], base: int) -> None:
        for first, answered in waiting:
            at = -1 if request.acks == ACKS_NONE else base + first
            self._answers.call(answered, request.partition.partition, at, None)

    def _delay_answers(
        self,
        replica: Replica,
        entry: tuple[int, int, int],
        request: Append,
        waiting: Sequence[GatheredProduce],
    ) -> None:
        """Delay the answers until the outcome of an entry is known.

        ``entry``: leader epoch, first and last offset.
        """
        epoch, base, last = entry
        number = request.partition.partition  # the records are not kept for the answers

        def resolved(append_outcome: AppendOutcome) -> None:
            self.parked_produces -= len(waiting)
            error = None
            if append_outcome is not AppendOutcome.OK:
                error = self.error_of_outcome(replica, append_outcome)
            for first, answered in waiting:
                self._answers.call(answered, number, base + first, error)

        deadline_ms = self._clock.monotonic_ms() + request.timeout_ms
        self.parked_produces += len(waiting)
        all_replicas = request.acks == ACKS_ALL
        self._manager.add_delayed_produce(
            replica, DelayedProduce(epoch, base, last, all_replicas, deadline_ms, resolved)
        )

    def _find_repeat(
        self, replica: Replica, request: Append, claim: Claim
    ) -> RememberedBatch | None:
        """Return the batch that this append repeats, or None.

        Checked before the number of in-sync replicas: a repeat appends nothing.
        """
        count, now_ms = len(request.records), self._clock.wall_ms()
        return replica.log.repeated(claim, count, now_ms, may_begin=request.may_begin)

    def _certain_refusal(self, refused: KafkaError) -> KafkaError:
        """Return the refusal, or a passing error if this broker may be deposed.

        A leader that was deposed and does not know it may lack the batch that is repeated
        (invariant T2). The outcome is that of this attempt, which wrote nothing.
        """
        if self._is_proven():
            return refused
        text = f"not known to lead, so whether this is a repeat is not certain: {refused.message}"
        return KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, text, outcome=Outcome.NOT_WRITTEN)

    def _answer_repeat(
        self,
        replica: Replica,
        found: RememberedBatch,
        request: Append,
        waiting: Sequence[GatheredProduce],
    ) -> None:
        """Answer a repeat as the first append: not before it is certain to stay (rule R5)."""
        base, last = found.first_offset, found.last_offset
        if not _awaits_replicas(replica, request.acks) or last < replica.partition.high_watermark:
            self._answer_now(request, waiting, base)
            return
        if self.parked_produces >= self._config.limits.max_parked_produces:
            text = "written, and max_parked_produces is reached: its replication is not awaited"
            raise KafkaError(ErrorCode.QUEUE_FULL, text, outcome=Outcome.UNKNOWN)
        entry = (replica.log.epoch_at(last), base, last)
        self._delay_answers(replica, entry, request, waiting)

    def error_of_outcome(self, replica: Replica, append_outcome: AppendOutcome) -> KafkaError:
        """Return the error of an append that is not committed, or not known to be."""
        if append_outcome is AppendOutcome.NOT_WRITTEN:
            return KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                "a newer leader's records stand in this place",
                outcome=Outcome.NOT_WRITTEN,
            )
        return self._unknown_outcome(replica)

    def _unknown_outcome(self, replica: Replica) -> KafkaError:
        role = replica.partition.role
        if isinstance(role, LeaderState) and len(role.isr) < role.min_isr:
            return KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
        return KafkaError(
            ErrorCode.REQUEST_TIMED_OUT, "appended, not acknowledged by every in-sync replica"
        )

    def fetch_directly(
        self,
        place: TopicIdPartition,
        offset: int,
        max_bytes: int,
        *,
        packed: bool = False,
        bare: bool = False,
        leader_epoch: int = UNKNOWN_EPOCH,
        seen_epoch: int = UNKNOWN_EPOCH,
    ) -> FetchResult | None:
        """Fetch records that are here now; return None if that takes a wait or an error."""
        replica = self._manager.replica(place)
        if replica is None:
            return None
        partition, log, role = replica.partition, replica.log, replica.partition.role
        if not isinstance(role, LeaderState):
            return None
        high_watermark = partition.high_watermark
        if not log.log_start_offset <= offset < high_watermark or seen_epoch > role.epoch:
            return None
        if leader_epoch != UNKNOWN_EPOCH and next_epoch(log, offset) not in {leader_epoch, -1}:
            return None
        if log.cold_range(offset, max_bytes) is not None:
            return None  # not in the page cache: `fetch` reads it from disk
        slices: Sequence[BatchSlice] = ()
        frames: Sequence[Piece] = ()
        lines: Sequence[bytes | memoryview] = ()
        if bare and not packed:
            lines, following = log.read_lines(offset, max_bytes, high_watermark)
        else:
            slices, frames = read_now(log, offset, max_bytes, partition, packed=packed)
            following = (slices or frames)[-1].next_offset if slices or frames else offset
        if following == offset:
            return None  # no record is left from there on (rule R7)
        return FetchResult(
            slices=slices,
            packed=frames,
            lines=lines,
            high_watermark=high_watermark,
            log_start_offset=log.log_start_offset,
            next_offset=following,
            next_leader_epoch=next_epoch(log, following),
            leader_id=self._config.broker_id,
            leader_epoch=role.epoch,
        )

    async def fetch(self, request: Read) -> FetchResult:
        """Read below the high watermark; wait for the first record as long as requested."""
        deadline_ms = self._clock.monotonic_ms() + request.max_wait_ms

        def serving_replica() -> ServingReplica:
            replica, role = self.leading(request.partition)
            check_seen(role.epoch, request.seen_epoch)
            return ServingReplica(replica, self._config.broker_id, role.epoch)

        def check(replica: Replica, at: int) -> None:
            epoch = request.leader_epoch if at == request.offset else UNKNOWN_EPOCH
            self.check_position(replica, at, epoch)

        offset = request.offset
        if offset is None:
            offset = await self._lookups.offset_of(request.timestamp_ms or 0, serving_replica)
        found = await self._reads.read(
            offset,
            request.max_bytes,
            deadline_ms,
            serving_replica,
            check,
            leader_epoch=request.leader_epoch,
            packed=request.packed,
        )
        if request.offset is None and found.next_offset > found.high_watermark:
            # The record found is not committed; another leader may append others before (rule R8).
            return replace(found, next_offset=found.high_watermark, next_leader_epoch=UNKNOWN_EPOCH)
        return found

    def unchanged_since(self, place: TopicIdPartition, found: FetchResult) -> Replica | None:
        """Return the replica if a read would find no more than ``found``, so that it may wait."""
        replica = self._manager.replica(place)
        if replica is None or replica.partition.high_watermark != found.high_watermark:
            return None
        return replica if self._manager.led_epoch(place) == found.leader_epoch else None

    def wait(self, replica: Replica, at_most_ms: int) -> Coroutine[Any, Any, None]:
        """Wait until the replica's high watermark or role has changed, or for `at_most_ms`."""
        return self._reads.wait(replica, at_most_ms)

    def check_position(self, replica: Replica, offset: int, epoch: int) -> None:
        """Raise the reason why a read may not begin at this offset, behind a record of that epoch.

        Raises:
            KafkaError: `PositionTruncatedError`; OFFSET_OUT_OF_RANGE, naming both ends;
                OFFSET_NOT_AVAILABLE if this broker may be deposed without knowing it.
        """
        self._check_epoch(replica, offset, epoch)
        self._check_range(replica, offset)

    def _check_epoch(self, replica: Replica, offset: int, epoch: int) -> None:
        """Raise `PositionTruncatedError` if a position with this epoch is not one of the log.

        Only a leader that is proven to lead reports it: a deposed one may lack what its
        successor served (rule R8).
        """
        if epoch == UNKNOWN_EPOCH:
            return
        divergence = find_divergence(replica.log, offset, epoch)
        if divergence is None:
            return
        if not self._is_proven():
            raise KafkaError(ErrorCode.OFFSET_NOT_AVAILABLE)
        raise PositionTruncatedError(offset, epoch, divergence)

    def _check_range(self, replica: Replica, offset: int) -> None:
        log = replica.log
        if offset > log.log_end_offset and not self._is_proven():
            # A deposed leader that does not know it may lack what its successor served (rule R8).
            raise KafkaError(ErrorCode.OFFSET_NOT_AVAILABLE)
        if not log.log_start_offset <= offset <= log.log_end_offset:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} is out of range: log start offset {log.log_start_offset}, "
                f"high watermark {replica.partition.high_watermark}, "
                f"log end offset {log.log_end_offset}",
            )

    async def until_high_watermark(
        self, partition: TopicIdPartition, epoch: LeaderEpoch, offset: int
    ) -> None:
        """Wait until all below ``offset`` is committed; NOT_LEADER_OR_FOLLOWER in another epoch."""
        while True:
            replica, role = self.leading(partition)
            if role.epoch != epoch:
                raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the leader epoch changed")
            if replica.partition.high_watermark >= offset:
                return
            await self._reads.wait(replica, self._config.limits.max_fetch_wait_ms)

    def offsets(
        self, partition: TopicIdPartition, seen_epoch: int = UNKNOWN_EPOCH
    ) -> OffsetsResult:
        """Return both ends of a partition.

        Withheld with OFFSET_NOT_AVAILABLE until the high watermark has reached the start of this
        leader's epoch (rule R8). ``seen_epoch``: see `FetchRequest`.
        """
        replica, role = self.leading(partition)
        check_seen(role.epoch, seen_epoch)
        high_watermark = replica.partition.high_watermark
        if high_watermark < role.epoch_start:
            raise KafkaError(ErrorCode.OFFSET_NOT_AVAILABLE)
        return OffsetsResult(
            beginning_offset=replica.log.log_start_offset,
            end_offset=high_watermark,
            end_leader_epoch=next_epoch(replica.log, high_watermark),
        )


def check_seen(leader_epoch: LeaderEpoch, seen_epoch: int) -> None:
    """Raise UNKNOWN_LEADER_EPOCH if a reader has seen a newer leader than this one (rule R8)."""
    if seen_epoch > leader_epoch:
        text = f"seen_epoch={seen_epoch}: this leader knows leader epoch {leader_epoch} only"
        raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH, text)


def _awaits_replicas(replica: Replica, acks: int) -> bool:
    """Return whether an append is answered later, once proven as ``acks`` requires."""
    return acks == ACKS_ALL or (acks != ACKS_NONE and replica.partition.settings.by_durable)


def local_progress(local: LocalPartitions, place: TopicIdPartition) -> PartitionProgress | None:
    """Return the progress of a partition that is led here, else None."""
    try:
        replica, role = local.leading(place)
    except KafkaError:
        return None
    return PartitionProgress(
        log_end_offset=replica.log.log_end_offset,
        high_watermark=replica.partition.high_watermark,
        follower_ends={broker: follower.log_end for broker, follower in role.followers.items()},
    )
