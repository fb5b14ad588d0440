"""A replicated log without bytes on disk, for homes, targets and stages in a simulated world.

A `ReplicatedLog` is what is true: which batches are committed, and who leads in which epoch. A
`LogView` is a leader's copy in its epoch; a deposed one lives on, appends to a copy of its own and
commits nothing. An election keeps all that is committed and any part of the tail.
"""

from __future__ import annotations

import asyncio
import random
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NamedTuple

from broker.coordinator.records import ShardRecord, UndecodableRecord
from broker.log.producer_state import ProducerState, ProducerStates
from broker.record.lines import ProduceRecord, encode_lines
from broker.replication.delayed_produces import AppendOutcome, DelayedProduce
from broker.server.local_partitions import Append
from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome
from raft_metadata.common.ids import Claim, TopicIdPartition

COMMIT_S = 0.02
"""Most time that an append takes to reach the in-sync replicas."""
APPEND_TIMEOUT_S = 2.0


class LogBatch(NamedTuple):
    """Records that were appended together."""

    base: int
    count: int
    epoch: int
    payload: Any
    """Records of a decision, or stored lines."""
    claim: Claim | None
    append_ms: int

    @property
    def end(self) -> int:
        """Return the offset behind the last record."""
        return self.base + self.count


@dataclass(eq=False)
class _Parked:
    end: int
    done: Callable[[bool], None]


class LogView:
    """A leader's copy of a log in one epoch. Serves as replica, log, partition and role at once."""

    def __init__(self, log: ReplicatedLog, batches: list[LogBatch], high_watermark: int) -> None:
        self.of = log
        self.name = log.name
        self.epoch = log.epoch
        self.batches = batches
        self.high_watermark = high_watermark
        self.log_end_offset = self.epoch_start = batches[-1].end if batches else log.start
        self.producers = log.producers_of(batches)
        self.failed = None
        self.is_over = False
        self._parked: list[_Parked] = []
        self._is_scheduled = False
        self.log = self.partition = self

    @property
    def is_live(self) -> bool:
        """Return whether no newer leader was elected."""
        return self.of.view is self

    # ---- as a log

    @property
    def log_start_offset(self) -> int:
        """Return the log start, which only moves over what is committed."""
        return self.of.start

    requested_log_start = log_start_offset

    def epoch_at(self, offset: int) -> int:
        """Return the leader epoch of a record, -1 if there is none."""
        return next((one.epoch for one in self.batches if one.base <= offset < one.end), -1)

    def cold_range(self, offset: int, size: int) -> None:
        """Everything is in memory."""

    def append_as_leader(
        self, records: Sequence[ProduceRecord], *, now_ms: int, claim: Claim | None = None,
        **_: object,
    ) -> Any:  # fmt: skip
        """Append records as one batch."""
        base = self.log_end_offset
        for number, record in enumerate(records):
            record.offset = base + number
        lines = encode_lines(records)
        self.append(lines, len(records), now_ms, claim)
        last = self.log_end_offset - 1
        return SimpleNamespace(base_offset=base, last_offset=last, raw=lines)

    def append(
        self, payload: Any, count: int, now_ms: int = 0, claim: Claim | None = None
    ) -> LogBatch:
        """Append a batch; it is committed a little later, if this view is the leader's."""
        batch = LogBatch(self.log_end_offset, count, self.epoch, payload, claim, now_ms)
        self.batches.append(batch)
        self.log_end_offset = batch.end
        if claim is not None:
            self.producers.note(claim, batch.base, batch.end - 1, now_ms, self.high_watermark)
        self.schedule()
        return batch

    def read(self, offset: int, _size: int, up_to: int) -> list[Any]:
        """Return the next pieces, as the reader of a log gets them."""
        if offset < self.log_start_offset:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
        pieces = []
        first = bisect_right(self.batches, offset, key=lambda one: one.end)
        for batch in self.batches[first:]:
            if batch.base >= up_to or len(pieces) >= 20:
                break
            lines = batch.payload.split(b"\n")[:-1]
            begin, end = max(batch.base, offset), min(batch.end, up_to)
            piece = lines[begin - batch.base : end - batch.base]
            pieces.append(
                SimpleNamespace(
                    lines=b"".join(line + b"\n" for line in piece),
                    first_offset=begin,
                    next_offset=end,
                    header=SimpleNamespace(
                        append_timestamp=batch.append_ms, leader_epoch=batch.epoch
                    ),
                )
            )
        return pieces

    # ---- as a partition

    def check_may_append(self, *, all_replicas: bool = True) -> LogView:
        """Refuse while replicas are missing; a deposed leader does not know it."""
        if self.is_over:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if self.of.is_short and all_replicas:
            raise KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)
        return self

    def schedule(self) -> None:
        """Let the in-sync replicas fetch what is here now."""
        if not self._is_scheduled and not self.is_over:
            self._is_scheduled = True
            delay_s = self.of.chance.random() * COMMIT_S
            asyncio.get_running_loop().call_later(delay_s, self._advance)

    def _advance(self) -> None:
        self._is_scheduled = False
        if not self.is_live or self.is_over:
            return
        if self.of.is_stuck:
            self.schedule_later()
            return
        self.of.commit(self.log_end_offset)
        self.high_watermark = self.log_end_offset
        due = [one for one in self._parked if one.end <= self.high_watermark]
        self._parked = [one for one in self._parked if one.end > self.high_watermark]
        for one in due:
            one.done(True)

    def schedule_later(self) -> None:
        """Look again whether the replicas fetch."""
        self._is_scheduled = True
        asyncio.get_running_loop().call_later(0.1, self._advance)

    def when_committed(self, end: int, done: Callable[[bool], None]) -> _Parked | None:
        """Call ``done`` once all below ``end`` is committed: False if this view ends before."""
        if end <= self.high_watermark:
            done(True)
            return None
        if self.is_over:
            done(False)
            return None
        parked = _Parked(end, done)
        self._parked.append(parked)
        return parked

    def expire(self, parked: _Parked | None) -> None:
        """End a wait by its deadline."""
        if parked is not None and parked in self._parked:
            self._parked.remove(parked)
            parked.done(False)

    async def until_committed(self, end: int, timeout_s: float | None = None) -> bool:
        """Wait until all below ``end`` is committed; False at the deadline or the view's end."""
        if end <= self.high_watermark:
            return True
        loop = asyncio.get_running_loop()
        found: asyncio.Future[bool] = loop.create_future()
        parked = self.when_committed(
            end, lambda is_in: None if found.done() else found.set_result(is_in)
        )
        if timeout_s is not None:
            loop.call_later(timeout_s, self.expire, parked)
        return await found

    def resign(self) -> None:
        """Hear of a newer leader: every wait ends."""
        self.is_over = True
        parked, self._parked = self._parked, []
        for one in parked:
            one.done(False)


@dataclass(eq=False)
class ReplicatedLog:
    """The facts of one partition's log."""

    name: str
    chance: random.Random
    on_commit: Callable[[ReplicatedLog, LogBatch], None]
    on_trim: Callable[[ReplicatedLog, Sequence[LogBatch]], None]
    committed: int = 0
    epoch: int = 0
    unclean_epoch: int = -1
    start: int = 0
    told: dict[int, ProducerState] = field(default_factory=dict)
    """Producers as of the log start: what who starts over is told of (rule S5)."""
    is_short: bool = False
    """True while too few replicas are in sync, by what everybody knows."""
    is_stuck: bool = False
    """True while the replicas fetch nothing, and nobody knows it yet."""
    view: LogView = field(init=False)

    def __post_init__(self) -> None:
        self.view = LogView(self, [], 0)

    def producers_of(self, batches: Sequence[LogBatch]) -> ProducerStates:
        """Return the fold of the batches behind the table at the log start."""
        states = ProducerStates(end_offset=self.start, producers=self.told.items())
        for one in batches:
            if one.claim is not None:
                states.note(one.claim, one.base, one.end - 1, one.append_ms, 0)
        return states

    def elect(self, lost: int = 0) -> LogView:
        """Elect a leader that has all that is committed, but for ``lost`` batches (uncleanly)."""
        old = self.view
        kept = [one for one in old.batches if one.end <= self.committed]
        tail = [one for one in old.batches if one.end > self.committed]
        kept += tail[: self.chance.randint(0, len(tail))]
        if lost:
            kept = [one for one in kept if one.end <= self.committed]
            del kept[max(0, len(kept) - lost) :]
            self.committed = kept[-1].end if kept else self.start
        self.epoch += 1
        if lost:
            self.unclean_epoch = self.epoch
        low = self.chance.randint(self.start, self.committed)
        bounds = [self.start, *(one.end for one in kept if one.end <= low)]
        self.view = LogView(self, kept, bounds[-1])
        self.view.schedule()
        return self.view

    def commit(self, end: int) -> None:
        """Note that all below ``end`` is on every in-sync replica."""
        due = []
        for one in reversed(self.view.batches):
            if one.end <= self.committed:
                break
            due.append(one)
        for batch in reversed(due):
            self.committed = batch.end
            self.on_commit(self, batch)
        self.committed = max(self.committed, end)

    def trim(self, start: int) -> None:
        """Move the log start; whoever starts over is told of the producers below it."""
        start = min(start, self.view.high_watermark)  # a leader trims what it knows is committed
        if start <= self.start:
            return
        known = self.view.producers.as_of(self.view.high_watermark)
        if known is not None:
            self.told = dict(known.items())
        self.start = start
        self.on_trim(self, [one for one in self.view.batches if one.end <= start])
        self.view.batches[:] = [one for one in self.view.batches if one.end > start]


class HomeLog:
    """`broker.coordinator.runtime.ShardLog` over a view: one offset a decision."""

    def __init__(self, view: LogView) -> None:
        self.view = view

    def _check(self) -> None:
        if self.view.is_over:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    @property
    def bounds(self) -> tuple[int, int]:
        """Log start and log end."""
        self._check()
        return self.view.log_start_offset, self.view.log_end_offset

    def read(
        self, from_offset: int, up_to_offset: int
    ) -> tuple[list[ShardRecord | UndecodableRecord], int]:
        """Return the records of some decisions."""
        self._check()
        end = min(from_offset + 50, up_to_offset)
        found = [record for one in self.view.batches[from_offset:end] for record in one.payload]
        return found, end

    async def until_committed(self, offset: int) -> None:
        """Wait for the end of the load."""
        if not await self.view.until_committed(max(offset, self.view.epoch_start)):
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def check_leads(self) -> None:
        """Raise once this broker has heard of a newer leader."""
        self._check()

    def check_may_append(self) -> None:
        """Raise if an append would be refused."""
        self.view.check_may_append()

    async def append(self, decisions: Sequence[Sequence[ShardRecord]]) -> None:
        """Append each decision as a batch, and wait."""
        self.view.check_may_append()
        for decision in decisions:
            self.view.append(tuple(decision), 1)
        if not await self.view.until_committed(self.view.log_end_offset, APPEND_TIMEOUT_S):
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT)


class ViewsOfBroker:
    """Stand-in for the local partitions and the replica manager of one broker."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self.views: dict[str, LogView] = {}
        self.parked_produces = 0
        self._now_ms = now_ms

    def leading(self, place: TopicIdPartition) -> tuple[Any, Any]:
        """Return replica and role of a partition that this broker thinks it leads."""
        view = self.views.get(name_of(place))
        if view is None or view.is_over:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return view, view

    def check_parking(self) -> None:
        """There is room."""

    def appended(self, *_: object) -> None:
        """Wake readers: there are none."""

    def add_delayed_produce(self, replica: LogView, waiting: DelayedProduce) -> None:
        """Answer a produce once it is committed, or at its deadline."""

        def done(is_committed: bool) -> None:
            waiting.done(AppendOutcome.OK if is_committed else AppendOutcome.UNKNOWN)

        parked = replica.when_committed(waiting.offset + 1, done)
        left_s = max(0, waiting.deadline_ms - self._now_ms()) / 1000
        asyncio.get_running_loop().call_later(left_s, replica.expire, parked)

    def error_of_outcome(self, _replica: LogView, _outcome: AppendOutcome) -> KafkaError:
        """Return the error of a produce that is not known to be committed."""
        return KafkaError(ErrorCode.REQUEST_TIMED_OUT)

    def append_directly(self, append: Append, waiting: Sequence[tuple[int, Any]]) -> None:
        """Append records of a stage with acks=all."""
        view, _ = self.leading(append.partition)
        view.check_may_append()
        info = view.append_as_leader(append.records, now_ms=self._now_ms())

        def done(is_committed: bool) -> None:
            error = None if is_committed else KafkaError(ErrorCode.REQUEST_TIMED_OUT)
            for first, answered in waiting:
                answered(append.partition.partition, info.base_offset + first, error)

        parked = view.when_committed(info.last_offset + 1, done)
        timeout_s = append.timeout_ms / 1000
        asyncio.get_running_loop().call_later(timeout_s, view.expire, parked)

    async def until_high_watermark(self, place: TopicIdPartition, epoch: int, end: int) -> None:
        """Wait until all below ``end`` is committed in a leader's epoch."""
        view, _ = self.leading(place)
        if view.epoch != epoch or not await view.until_committed(end):
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, outcome=Outcome.NOT_WRITTEN)

    def move_log_start(self, place: TopicIdPartition, epoch: int, start: int) -> None:
        """Trim a log that is led here."""
        view, _ = self.leading(place)
        if view.epoch == epoch and view.is_live:
            view.of.trim(start)


def name_of(place: TopicIdPartition) -> str:
    """Return the name of a partition's log."""
    return f"{place.topic_id}-{place.partition}"
