"""Requests for partitions that this broker leads: append, fetch, offsets. Never forwards.

`BrokerApis`, the fast lane and the peer server call it. A produce with acks=all waits in the
partition's delayed produces; a fetch waits for records below the high watermark; a look-up by time
goes in steps, so that it does not hold the event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from broker.log.log_reader import TimeSearch, warm
from broker.record.compression import PackedSlice
from broker.replication.delayed_produces import AppendOutcome, DelayedProduce
from broker.replication.leader_state import LeaderState
from broker.server.requests import (
    ACKS_ALL,
    ACKS_NONE,
    FetchResult,
    OffsetsResult,
    PartitionProgress,
)
from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome

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
    from raft_metadata.common.ids import BrokerId, Claim, LeaderEpoch, PartitionId, TopicIdPartition


CALLS_PER_TURN = 200
"""Each writes an answer of about 25 µs: 5 ms, then others have their turn."""


class TurnBudget:
    """Owned by whoever calls, on the loop. What is called first is called first.

    The first `CALLS_PER_TURN` of a turn are called at once: those few that are due as a rule wait
    for nothing.
    """

    __slots__ = ("_left", "_scheduled", "_waiting")

    def __init__(self) -> None:
        self._left = CALLS_PER_TURN
        self._scheduled = False
        self._waiting: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()

    def call(self, function: Callable[..., None], *arguments: Any) -> None:
        """Now, or in a turn that has room for it."""
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
    """A replica that may serve now, and under whom."""

    replica: Replica
    leader: BrokerId
    epoch: LeaderEpoch


class Reads:
    """Owned by whoever serves. Stateless but for the count of those that wait, which is bounded."""

    def __init__(self, max_parked_fetches: int, clock: Clock) -> None:
        self._max_parked = max_parked_fetches
        self._clock = clock
        self._parked = 0

    async def read(
        self,
        offset: int,
        max_bytes: int,
        deadline_ms: int,
        standing: Callable[[], ServingReplica],
        check: Callable[[Replica, int], None],
        *,
        packed: bool = False,
    ) -> FetchResult:
        """Records from an offset on, or none at the deadline.

        ``standing`` raises where nothing may be served any more, ``check`` where this offset may
        not: both are asked anew after every wait, and between them and the read is no ``await``.
        ``packed``: see `FetchResult.packed`.
        """
        now = standing()
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
                    is_warm = True  # asked once: who is evicted again meanwhile is read here
                    await warm(cold)
                    now = standing()
                    continue
                slices, frames = read_now(log, offset, max_bytes, partition, packed=packed)
                if not slices and not frames:
                    offset = partition.high_watermark  # rule R7: no record is left in between
            remaining_ms = deadline_ms - self._clock.monotonic_ms()
            if slices or frames or remaining_ms <= 0:
                last = (slices or frames)[-1:]
                return FetchResult(
                    slices=slices,
                    packed=frames,
                    high_watermark=partition.high_watermark,
                    log_start_offset=log.log_start_offset,
                    next_offset=last[0].next_offset if last else offset,
                    leader_id=leader,
                    leader_epoch=epoch,
                )
            await self.wait(replica, remaining_ms)
            now = standing()

    async def wait(self, replica: Replica, at_most_ms: int) -> None:
        """Until its high watermark or its role has changed."""
        if self._parked >= self._max_parked:
            raise KafkaError(ErrorCode.QUEUE_FULL, "max_parked_fetches is reached")
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        timer = loop.call_later(at_most_ms / 1000, _finish, waiter)
        replica.wait(waiter)
        self._parked += 1
        try:
            await waiter
        finally:
            self._parked -= 1
            timer.cancel()
            replica.wait_no_more(waiter)


def read_now(
    log: PartitionLog, offset: int, max_bytes: int, partition: Partition, *, packed: bool
) -> tuple[Sequence[BatchSlice], Sequence[Piece]]:
    """What is below the high watermark, as (`FetchResult.slices`, `FetchResult.packed`)."""
    if packed:
        return parted(log.read_packed(offset, max_bytes, partition.high_watermark))
    return log.read(offset, max_bytes, partition.high_watermark), ()


def parted(found: Sequence[Piece]) -> tuple[Sequence[BatchSlice], Sequence[Piece]]:
    """These pieces as (`FetchResult.slices`, `FetchResult.packed`): one of the two is empty."""
    for piece in found:
        if isinstance(piece, PackedSlice):
            return (), found
    return cast("Sequence[BatchSlice]", found), ()


def _finish(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


LOOKUPS_MAX = 100
"""That wait for their turn: the longer ones take turns, each may hold a batch of 65 MB."""
LOOKUP_TIMEOUT_MS = 30_000
"""A log whose times go up and down may have to be looked through: some 500,000 batches a second.
The wait for a turn counts: those before it end by theirs, so nobody waits longer than this."""


class TimeLookups:
    """Owned by who serves reads. Most look-ups are over in one step and wait for nothing."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._turn = asyncio.Lock()
        self._waiting = 0

    async def offset_of(self, timestamp_ms: int, standing: Callable[[], ServingReplica]) -> int:
        """The first offset of this time or later; the high watermark where all is older.

        ``standing`` raises where nothing may be served any more. It is asked before each step, and
        between the last one and the return is no ``await``.

        Raises:
            KafkaError: what ``standing`` raises; NOT_LEADER_OR_FOLLOWER, the leader epoch changed;
                OFFSET_NOT_AVAILABLE, this leader does not know yet where what is committed ends;
                KAFKA_STORAGE_ERROR, a batch is damaged; QUEUE_FULL; REQUEST_TIMED_OUT.
        """
        search = TimeSearch(timestamp_ms)
        first = standing()
        if first.replica.log.step_time_search(search):
            return _answer(search, first)
        if self._waiting >= LOOKUPS_MAX:
            raise KafkaError(ErrorCode.QUEUE_FULL, f"{LOOKUPS_MAX} look-ups by time wait here")
        self._waiting += 1
        deadline_ms = self._clock.monotonic_ms() + LOOKUP_TIMEOUT_MS
        try:
            async with self._turn:
                return await self._look(search, first, standing, deadline_ms)
        finally:
            self._waiting -= 1

    async def _look(
        self,
        search: TimeSearch,
        first: ServingReplica,
        standing: Callable[[], ServingReplica],
        deadline_ms: int,
    ) -> int:
        while True:
            if search.work is None:
                await asyncio.sleep(0)
            else:
                await asyncio.to_thread(search.work)
            now = standing()
            if now.epoch != first.epoch or now.replica is not first.replica:
                raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the leader epoch changed")
            if now.replica.log.step_time_search(search):
                return _answer(search, now)
            if self._clock.monotonic_ms() >= deadline_ms:
                text = f"no record of that time was found within {LOOKUP_TIMEOUT_MS} ms"
                raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, text)


def _answer(search: TimeSearch, now: ServingReplica) -> int:
    """Rule R8: below the high watermark, or with an end that may be believed."""
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
    """What requests must have in common to be written, and to wait, as one."""

    place: TopicIdPartition
    stored_as: RecordFormat
    acks: int
    timeout_ms: int


Waiting = tuple[int, "Callable[[PartitionId, int, KafkaError | None], None]"]
"""A request among others: how many records stand before its own, and whom to tell
(partition, base offset, error)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Append:
    """Records for one partition, in order."""

    partition: TopicIdPartition
    records: Sequence[ProduceRecord]
    key_format: RecordFormat
    value_format: RecordFormat
    acks: int
    timeout_ms: int
    claim: Claim | None = None
    """Who writes, and which of its batches this is: one that is here already is not written again
    (invariants T1 to T3)."""
    may_begin: bool = True
    """Nothing of this producer is under way before it: see `ProducerStates.check`."""
    refused: KafkaError | None = None
    """Under a claim: what the topic's configs say against its records. They may have been written
    when that was not so yet, and a repeat is answered as the first one (invariant T2); nothing
    else is appended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """Exactly one of ``offset`` and ``timestamp_ms`` is set."""

    partition: TopicIdPartition
    offset: int | None
    timestamp_ms: int | None
    max_bytes: int
    max_wait_ms: int
    packed: bool = False
    """See `FetchResult.packed`."""


class LocalPartitions:
    """Stateless between requests but for the counts of what is parked."""

    def __init__(
        self,
        config: BrokerConfig,
        manager: ReplicaManager,
        clock: Clock,
        is_proven: Callable[[], bool],
    ) -> None:
        """``is_proven``: an active controller knew this broker less than a session ago."""
        self._config = config
        self._manager = manager
        self._clock = clock
        self._is_proven = is_proven
        self._parked_produces = 0
        self._answers = TurnBudget()
        self._reads = Reads(config.limits.max_parked_fetches, clock)
        self._lookups = TimeLookups(clock)

    def leading(self, partition: TopicIdPartition) -> tuple[Replica, LeaderState]:
        """The replica of a partition that is led here, or NOT_LEADER_OR_FOLLOWER."""
        replica = self._manager.replica(partition)
        if replica is None or not isinstance(replica.partition.role, LeaderState):
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return replica, replica.partition.role

    def leads(self, partition: TopicIdPartition) -> bool:
        """Whether it is led here."""
        return self._manager.led_epoch(partition) is not None

    def damaged(self) -> Mapping[TopicIdPartition, str]:
        """The replicas here whose logs are damaged, with the reason."""
        return self._manager.repairs.reasons()

    async def append(self, request: Append) -> int:
        """Append and wait as ``acks`` says; the base offset, or -1 for acks=0."""
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def done(base: int, error: KafkaError | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(base)
            else:
                future.set_exception(error)

        self.append_directly(request, done)
        return await future

    def append_directly(
        self, request: Append, done: Callable[[int, KafkaError | None], None]
    ) -> None:
        """`append` without a task: ``done(base offset, error)`` is called once, perhaps at once.

        ``done`` must not raise, nor come back here: it is called where a high watermark moves.

        Raises:
            KafkaError: it was refused, or could not be written; then ``done`` is not called.
        """
        replica, _ = self.leading(request.partition)
        if request.claim is not None:
            found = self._repeated(replica, request, request.claim)
            if found is not None:
                self._answer_again(replica, found, request, done)
                return
            if request.refused is not None:
                raise self._sure_refusal(request.refused)
        role = self._check_may_append(replica, request.acks, 1)
        info = replica.log.append_as_leader(
            request.records,
            key_format=request.key_format,
            value_format=request.value_format,
            leader_epoch=role.epoch,
            now_ms=self._clock.wall_ms(),
            **_claimed(request.claim),
        )
        base, last = info.base_offset, info.last_offset
        self._manager.appended(replica, base, last + 1, info.raw)
        if not _waits(replica, request.acks):
            done(-1 if request.acks == ACKS_NONE else base, None)
            return
        tell = partial(self._answers.call, done, base)
        self._park(replica, (role.epoch, base, last), request, 1, tell)

    def append_together(
        self, alike: AppendBatchKey, records: Sequence[ProduceRecord], waiting: Sequence[Waiting]
    ) -> None:
        """Append the records of several requests as one; tell each where its first one stands.

        Who waits is called as `append_directly` calls ``done``.

        Raises:
            KafkaError: all were refused, or could not be written; then nobody is called.
        """
        replica, _ = self.leading(alike.place)
        role = self._check_may_append(replica, alike.acks, len(waiting))
        info = replica.log.append_as_leader(
            records,
            key_format=alike.stored_as,
            value_format=alike.stored_as,
            leader_epoch=role.epoch,
            now_ms=self._clock.wall_ms(),
        )
        number, base, last = alike.place.partition, info.base_offset, info.last_offset
        self._manager.appended(replica, base, last + 1, info.raw)
        if not _waits(replica, alike.acks):
            for first, answered in waiting:
                at = -1 if alike.acks == ACKS_NONE else base + first
                self._answers.call(answered, number, at, None)
            return

        def tell(error: KafkaError | None) -> None:
            for first, answered in waiting:
                self._answers.call(answered, number, base + first, error)

        self._park(replica, (role.epoch, base, last), alike, len(waiting), tell)

    def _check_may_append(self, replica: Replica, acks: int, requests: int) -> LeaderState:
        role = replica.partition.check_may_append(all_replicas=acks == ACKS_ALL)
        if self._parked_produces + requests > self._config.limits.max_parked_produces:
            raise KafkaError(ErrorCode.QUEUE_FULL, "max_parked_produces is reached")
        return role

    def _park(
        self,
        replica: Replica,
        entry: tuple[int, int, int],
        asked: Append | AppendBatchKey,
        requests: int,
        tell: Callable[[KafkaError | None], None],
    ) -> None:
        """Have so many requests told what becomes of an entry: its epoch, first and last offset."""

        def resolved(fate: AppendOutcome) -> None:
            self._parked_produces -= requests
            tell(None if fate is AppendOutcome.OK else self._no_success(replica, fate))

        deadline_ms = self._clock.monotonic_ms() + asked.timeout_ms
        self._parked_produces += requests
        all_replicas = asked.acks == ACKS_ALL
        self._manager.park(replica, DelayedProduce(*entry, all_replicas, deadline_ms, resolved))

    def _repeated(self, replica: Replica, request: Append, claim: Claim) -> RememberedBatch | None:
        """Asked before whether there are enough replicas: what is written needs no second copy."""
        count, now_ms = len(request.records), self._clock.wall_ms()
        return replica.log.repeated(claim, count, now_ms, may_begin=request.may_begin)

    def _sure_refusal(self, refused: KafkaError) -> KafkaError:
        """Invariant T2: who was deposed and has not heard of it may lack what is repeated here."""
        if self._is_proven():
            return refused
        text = f"not known to lead, so whether this is a repeat is not certain: {refused.message}"
        return KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, text, outcome=Outcome.UNKNOWN)

    def _answer_again(
        self,
        replica: Replica,
        found: RememberedBatch,
        request: Append,
        done: Callable[[int, KafkaError | None], None],
    ) -> None:
        """A repeat is answered as the first one: not before it is certain to stay (rule R5)."""
        base, last = found.first_offset, found.last_offset
        if not _waits(replica, request.acks) or last < replica.partition.high_watermark:
            done(-1 if request.acks == ACKS_NONE else base, None)
            return
        if self._parked_produces >= self._config.limits.max_parked_produces:
            text = "written, and max_parked_produces is reached: nobody waits for it"
            raise KafkaError(ErrorCode.QUEUE_FULL, text, outcome=Outcome.UNKNOWN)
        entry = (replica.log.epoch_at(last), base, last)
        self._park(replica, entry, request, 1, partial(self._answers.call, done, base))

    def _no_success(self, replica: Replica, fate: AppendOutcome) -> KafkaError:
        if fate is AppendOutcome.NOT_WRITTEN:
            return KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                "a newer leader's records stand in this place",
                outcome=Outcome.NOT_WRITTEN,
            )
        return self._unknown(replica)

    def _unknown(self, replica: Replica) -> KafkaError:
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
    ) -> FetchResult | None:
        """`fetch`, of records that are here now; None where there is anything else to be said."""
        replica = self._manager.replica(place)
        if replica is None:
            return None
        partition, log, role = replica.partition, replica.log, replica.partition.role
        if not isinstance(role, LeaderState):
            return None
        high_watermark = partition.high_watermark
        if not log.log_start_offset <= offset < high_watermark:
            return None
        if log.cold_range(offset, max_bytes) is not None:
            return None  # waited for elsewhere
        slices: Sequence[BatchSlice] = ()
        frames: Sequence[Piece] = ()
        lines: Sequence[bytes | memoryview] = ()
        if bare and not packed:
            lines, following = log.read_lines(offset, max_bytes, high_watermark)
        else:
            slices, frames = read_now(log, offset, max_bytes, partition, packed=packed)
            following = (slices or frames)[-1].next_offset if slices or frames else offset
        if following == offset:
            return None  # rule R7: no record is left from there on
        return FetchResult(
            slices=slices,
            packed=frames,
            lines=lines,
            high_watermark=high_watermark,
            log_start_offset=log.log_start_offset,
            next_offset=following,
            leader_id=self._config.broker_id,
            leader_epoch=role.epoch,
        )

    async def fetch(self, request: Read) -> FetchResult:
        """Read below the high watermark; wait for the first record as long as asked."""
        deadline_ms = self._clock.monotonic_ms() + request.max_wait_ms

        def standing() -> ServingReplica:
            replica, role = self.leading(request.partition)
            return ServingReplica(replica, self._config.broker_id, role.epoch)

        offset = request.offset
        if offset is None:
            offset = await self._lookups.offset_of(request.timestamp_ms or 0, standing)
        found = await self._reads.read(
            offset,
            request.max_bytes,
            deadline_ms,
            standing,
            self._check_range,
            packed=request.packed,
        )
        if request.offset is None and found.next_offset > found.high_watermark:
            # Rule R8: what was found is not committed, and another leader may put records before.
            return replace(found, next_offset=found.high_watermark)
        return found

    def _check_range(self, replica: Replica, offset: int) -> None:
        log = replica.log
        if offset > log.log_end_offset and not self._is_proven():
            # Rule R8: a deposed leader that has not heard of it may lack what another exposed.
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
        """Until everything below ``offset`` is committed. Another epoch: NOT_LEADER_OR_FOLLOWER."""
        while True:
            replica, role = self.leading(partition)
            if role.epoch != epoch:
                raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the leader epoch changed")
            if replica.partition.high_watermark >= offset:
                return
            await self._reads.wait(replica, self._config.limits.max_fetch_wait_ms)

    def offsets(self, partition: TopicIdPartition) -> OffsetsResult:
        """Both ends; withheld until the high watermark reached this epoch's start (rule R8)."""
        replica, role = self.leading(partition)
        high_watermark = replica.partition.high_watermark
        if high_watermark < role.epoch_start:
            raise KafkaError(ErrorCode.OFFSET_NOT_AVAILABLE)
        return OffsetsResult(
            beginning_offset=replica.log.log_start_offset, end_offset=high_watermark
        )


def _waits(replica: Replica, acks: int) -> bool:
    """Whether an append is answered later: once it is proven by as many as ``acks`` says."""
    return acks == ACKS_ALL or (acks != ACKS_NONE and replica.partition.settings.by_durable)


def _claimed(claim: Claim | None) -> dict[str, int]:
    """What the batch header says of its producer."""
    if claim is None:
        return {}
    return {
        "producer_id": claim.producer_id,
        "producer_epoch": claim.epoch,
        "base_sequence": claim.sequence,
    }


def local_progress(local: LocalPartitions, place: TopicIdPartition) -> PartitionProgress | None:
    """The progress of a partition that is led here, else None."""
    try:
        replica, role = local.leading(place)
    except KafkaError:
        return None
    return PartitionProgress(
        log_end_offset=replica.log.log_end_offset,
        high_watermark=replica.partition.high_watermark,
        follower_ends={broker: follower.log_end for broker, follower in role.followers.items()},
    )
