"""Requests for partitions that this broker leads: append, fetch, offsets. Never forwards."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from broker.replication.parked import Fate, Parked
from broker.replication.partition_state import LeaderState
from broker.server.reads import Reads, Standing, read_now
from broker.server.requests import (
    ACKS_ALL,
    ACKS_NONE,
    FetchResult,
    OffsetsResult,
)
from broker.server.slices import Slices
from broker.server.time_lookups import TimeLookups
from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome

if TYPE_CHECKING:
    from broker.config import BrokerConfig
    from broker.log.producer_state import RememberedBatch
    from broker.record.batch import BatchSlice, RecordFormat
    from broker.record.compression import Piece
    from broker.record.lines import ProduceRecord
    from broker.replication.replica import Replica
    from broker.replication.replica_manager import ReplicaManager
    from raft_metadata.common.clock import Clock
    from raft_metadata.common.ids import Claim, LeaderEpoch, PartitionId, TopicIdPartition


class Alike(NamedTuple):
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
        self._answers = Slices()
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
        self, alike: Alike, records: Sequence[ProduceRecord], waiting: Sequence[Waiting]
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
        asked: Append | Alike,
        requests: int,
        tell: Callable[[KafkaError | None], None],
    ) -> None:
        """Have so many requests told what becomes of an entry: its epoch, first and last offset."""

        def resolved(fate: Fate) -> None:
            self._parked_produces -= requests
            tell(None if fate is Fate.OK else self._no_success(replica, fate))

        deadline_ms = self._clock.monotonic_ms() + asked.timeout_ms
        self._parked_produces += requests
        all_replicas = asked.acks == ACKS_ALL
        self._manager.park(replica, Parked(*entry, all_replicas, deadline_ms, resolved))

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

    def _no_success(self, replica: Replica, fate: Fate) -> KafkaError:
        if fate is Fate.NOT_WRITTEN:
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

        def standing() -> Standing:
            replica, role = self.leading(request.partition)
            return Standing(replica, self._config.broker_id, role.epoch)

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
