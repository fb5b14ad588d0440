"""Produces for partitions led by other brokers: the I/O around the pure `SequencedSender`.

`ProduceRouting` and `DirectRequests` hand produces over. Each partition has one sender for acks=all
and one for the rest: records acknowledged with less than acks=all can be lost with their leader,
and would leave a gap in the sequence of the others. A sender numbers its batches under a producer
id, so that a leader recognises one that is sent again (rule F1). Requests of one turn of the event
loop for one broker leave as one write. Producer ids come in blocks from the controllers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from broker.ports import PeerRequest
from broker.record.batch import RecordFormat
from broker.record.lines import BATCH_BYTES_MAX, decode_records, encode_lines
from broker.server import peer_codec
from broker.server.local_partitions import Append
from broker.server.peer_codec import PeerRequestKind
from broker.server.requests import ACKS_ALL
from broker.server.router import DEPOSED_GRACE_MS
from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome
from raft_metadata.common.sequenced_sender import (
    Done,
    InFlightBatch,
    PendingProduce,
    SequencedSender,
)
from raft_metadata.records.commands import AllocateProducerIds

if TYPE_CHECKING:
    from broker.ports import ControllerChannel, PeerCall, PeerChannel
    from broker.record.lines import ProduceRecord
    from broker.server.lifecycle import Lifecycle
    from broker.server.local_partitions import LocalPartitions
    from broker.server.router import LeaderRouter
    from raft_metadata.common.clock import Clock
    from raft_metadata.common.ids import BrokerId, LeaderEpoch, TopicIdPartition
    from raft_metadata.image.metadata_image import MetadataImage


ATTEMPT_MS_MIN = 250
ATTEMPT_MS_MAX = 2_000
ATTEMPTS = 3
"""Attempts that the time left to the deadline is meant for: each gets that part of it, within the
bounds above, so that a lost answer leaves time for another attempt. A repeat is cheap for the
leader, which recognises it."""
LATE_GRACE_MS = 100
"""Time beyond the deadline for the leader's answer: it has the same deadline, and then reports
whether the records are written."""
EXPIRY_STEP_MS = 10
"""Longest delay of an expiry: with 20,000 produces waiting, a look at all of them takes 2 ms."""
POSTED_BYTES_MAX = 65_536
"""Size of a request from which it is sent at once, with those gathered for its broker: the
connection then shows whether it can take more."""
PAUSE_UNKNOWN_S = 0.02
PAUSE_REFUSED_S = 0.1
"""Pauses before the first batch of a queue is sent again, after an unknown outcome and after a
refusal; a new image ends them at once."""
WAITING_MAX = 20_000
WAITING_BYTES_MAX = 268_435_456
"""Requests and bytes over all queues: as many as one connection between brokers holds."""
ID_TIMEOUT_S = 0.5
"""Time that the first forward waits for a producer id; after that it is sent without one."""
ID_RETRY_S = 5.0

_log = logging.getLogger("broker.forwards")


class PlacedRecords(NamedTuple):
    """Outcome of some consecutive records of a request: their first offset, or an error."""

    records: int
    base_offset: int
    error: KafkaError | None = None


class LeaderQueue:
    """Produces of one partition that wait for its leader: sender, timers and posted batches.

    Owned by `ForwardedProduces`, until the topic is deleted.
    """

    __slots__ = ("asks_id", "calls", "channel", "expiry", "partition", "pause")

    def __init__(self, partition: TopicIdPartition, producer_id: int) -> None:
        self.partition = partition
        self.channel = SequencedSender(producer_id)
        self.calls: dict[InFlightBatch, tuple[PeerCall, LeaderEpoch]] = {}
        """Posted batches without an answer, each with the leader epoch that it was sent to."""
        self.pause: asyncio.TimerHandle | None = None
        """Timer that ends the pause before the next attempt; None: batches may be sent."""
        self.expiry: _Expiry | None = None
        """Timer of the earliest deadline; None: no produce waits."""
        self.asks_id = False
        """A producer id is requested, or the last request failed less than `ID_RETRY_S` ago."""

    def stop_timers(self) -> None:
        """Cancel all timers, because nothing is sent any more."""
        if self.pause is not None:
            self.pause.cancel()
        if self.expiry is not None:
            self.expiry.timer.cancel()
        self.pause = self.expiry = None


class _Expiry(NamedTuple):
    """Timer of a queue's earliest deadline, on the monotonic clock."""

    timer: asyncio.TimerHandle
    deadline_ms: int


class _Posting(NamedTuple):
    """A request that leaves with the others of its turn for the same leader."""

    queue: LeaderQueue
    batch: InFlightBatch
    may_begin: bool
    epoch: LeaderEpoch
    request: PeerRequest


class ForwardedProduces:
    """Produces for partitions led elsewhere. Owned by `RoutedBrokerApis`, on the broker's loop.

    Requests for one broker in one turn of the loop leave as one write. An attempt is a task of
    `run` only if that is not possible: no connection, no known leader, or a partition that is led
    here by now.
    """

    def __init__(
        self,
        broker_id: BrokerId,
        image: Callable[[], MetadataImage],
        local: LocalPartitions,
        ids: ProducerIds,
        router: LeaderRouter,
        peers: PeerChannel,
        clock: Clock,
    ) -> None:
        self._broker_id = broker_id
        self._image = image
        self._local = local
        self._ids = ids
        self._router = router
        self._peers = peers
        self._clock = clock
        self._tasks: asyncio.TaskGroup | None = None
        self._queues: dict[tuple[TopicIdPartition, bool], LeaderQueue] = {}
        self._added: dict[LeaderQueue, None] = {}
        """Queues that may have something to send at the end of this turn of the loop."""
        self._postings: dict[tuple[BrokerId, str], list[_Posting]] = {}
        """Requests of this turn, by broker and its address."""
        self.waiting = 0
        """Produces that are not answered yet; at most `WAITING_MAX`."""
        self.waiting_bytes = 0
        """Bytes of their records; at most `WAITING_BYTES_MAX`."""
        self._producer_ids: dict[bool, int] = {}
        self._ask_again_s = 0.0

    async def run(self) -> None:
        """Own the tasks of attempts until cancelled; else `acquire_producer_id` returns False."""
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                await asyncio.get_running_loop().create_future()
        finally:
            self._tasks = None
            for queue in self._queues.values():
                queue.channel.give_up()
                queue.stop_timers()

    async def acquire_producer_id(self, acks: int) -> bool:
        """Return whether forwards can be numbered now; wait up to `ID_TIMEOUT_S` for the first id.

        A producer id must be available.
        """
        if self._tasks is None:
            return False
        strong = acks == ACKS_ALL
        if strong not in self._producer_ids:
            now = asyncio.get_running_loop().time()
            if now < self._ask_again_s:
                return False
            try:
                async with asyncio.timeout(ID_TIMEOUT_S):
                    self._producer_ids.setdefault(strong, await self._ids.next())
            except (KafkaError, TimeoutError) as error:
                # A first failure is normal after a start and in a change of controllers.
                level = logging.WARNING if self._ask_again_s else logging.INFO
                self._ask_again_s = now + ID_RETRY_S
                _log.log(level, "forwards are not numbered, no producer id error=%r", error)
                return False
            self._ask_again_s = 0.0
        return True

    async def append(self, request: Append, deadline_ms: int) -> list[PlacedRecords]:
        """Forward the records behind all earlier ones of their partition and await the outcome.

        They are sent in pieces of at most one batch, each with its own outcome. Raises QUEUE_FULL,
        and only if nothing was taken.
        """
        queue = self._queue_of(request.partition, request.acks)
        texts = _encode_arrays(request.records)
        size = sum(len(text) for text, _ in texts)
        if self.waiting >= WAITING_MAX or self.waiting_bytes + size > WAITING_BYTES_MAX:
            said = f"{self.waiting} produces wait to be forwarded ({self.waiting_bytes} bytes)"
            raise KafkaError(ErrorCode.QUEUE_FULL, said)
        loop = asyncio.get_running_loop()
        futures = []
        for text, count in texts:
            future: asyncio.Future[PlacedRecords] = loop.create_future()
            futures.append(future)
            answered = partial(_resolve_placed, future, count)
            self._add(queue, request, text, count, deadline_ms + LATE_GRACE_MS, answered)
        return [await future for future in futures]

    def take(self, request: Append, answered: Done, text: bytes | None = None) -> bool:
        """Forward like `append`, without a task; call ``answered(base offset, error)`` once.

        ``answered`` must not raise, nor call this object. Returns False if nothing was done,
        because forwards are not numbered (yet), too many wait, or the records are more than one
        batch. ``text``: the records as elements of a JSON array, on one line, if they need not be
        encoded anew.
        """
        if self._tasks is None:
            return False
        if (request.acks == ACKS_ALL) not in self._producer_ids:
            return False
        count = len(request.records)
        if text is None or len(text) > BATCH_BYTES_MAX:
            ((text, _), *more) = _encode_arrays(request.records)
            if more:
                return False
        if self.waiting >= WAITING_MAX or self.waiting_bytes + len(text) > WAITING_BYTES_MAX:
            return False
        deadline_ms = self._clock.monotonic_ms() + request.timeout_ms + LATE_GRACE_MS
        queue = self._queue_of(request.partition, request.acks)
        self._add(queue, request, text, count, deadline_ms, answered)
        return True

    def _add(
        self,
        queue: LeaderQueue,
        request: Append,
        text: bytes,
        count: int,
        deadline_ms: int,
        answered: Done,
    ) -> None:
        """Queue a produce, to be sent with all others at the end of this turn of the loop."""

        def done(base_offset: int, error: KafkaError | None) -> None:
            self.waiting -= 1
            self.waiting_bytes -= len(text)
            try:
                answered(base_offset, error)
            except Exception:  # noqa: BLE001 a bug: those behind it get their answers
                _log.exception("result of a forward not delivered partition=%s", queue.partition)

        self.waiting += 1
        self.waiting_bytes += len(text)
        kind = (request.key_format, request.value_format, request.acks)
        queue.channel.add(PendingProduce(text, count, kind, deadline_ms, done))
        if queue.expiry is None or deadline_ms < queue.expiry.deadline_ms:
            self._expire_at(queue, deadline_ms)
        self._pump_soon(queue)

    def _pump_soon(self, queue: LeaderQueue) -> None:
        if not self._added:
            asyncio.get_running_loop().call_soon(self._pump_added)
        self._added[queue] = None

    def _pump_added(self) -> None:
        added, self._added = self._added, {}
        tasks = self._tasks
        if tasks is None:
            return  # stopped: `run` has given up all produces
        for queue in added:
            self._pump(queue, tasks)
        for broker_id, peer in list(self._postings):
            self._post_all(broker_id, peer, tasks)

    def _queue_of(self, partition: TopicIdPartition, acks: int) -> LeaderQueue:
        key = (partition, acks == ACKS_ALL)
        queue = self._queues.get(key)
        if queue is None:
            self._forget_deleted()
            queue = self._queues[key] = LeaderQueue(partition, self._producer_ids[acks == ACKS_ALL])
        return queue

    def _forget_deleted(self) -> None:
        topics = self._image().topics
        if len(self._queues) % 64 == 63:
            self._queues = {
                key: queue
                for key, queue in self._queues.items()
                if key[0].topic_id in topics or not queue.channel.is_idle
            }

    # time and images

    def image_changed(self) -> None:
        """Resume queues that wait for a leader; shorten the wait for answers of deposed leaders.

        A look at 20,000 queues takes 0.8 ms.
        """
        image = self._image()
        for queue in self._queues.values():
            if queue.pause is not None:
                self._resume(queue)
            if not queue.calls:
                continue
            registration = image.partition(*queue.partition)
            for call, epoch in queue.calls.values():
                if registration is not None and registration.leader_epoch > epoch:
                    call.hasten(DEPOSED_GRACE_MS)

    def _resume(self, queue: LeaderQueue) -> None:
        if queue.pause is not None:
            queue.pause.cancel()
            queue.pause = None
        self._pump_soon(queue)

    def _expire_at(self, queue: LeaderQueue, deadline_ms: int) -> None:
        if queue.expiry is not None:
            queue.expiry.timer.cancel()
        delay_s = max(EXPIRY_STEP_MS, deadline_ms - self._clock.monotonic_ms()) / 1000
        timer = asyncio.get_running_loop().call_later(delay_s, self._expire, queue)
        queue.expiry = _Expiry(timer, deadline_ms)

    def _expire(self, queue: LeaderQueue) -> None:
        if queue.expiry is not None:
            queue.expiry.timer.cancel()
            queue.expiry = None
        queue.channel.expire(self._clock.monotonic_ms())
        following = queue.channel.next_deadline_ms()
        if following is not None:
            self._expire_at(queue, following)
        self._pump_soon(queue)

    # sending

    def _pump(self, queue: LeaderQueue, tasks: asyncio.TaskGroup) -> None:
        """Send all batches of a queue that may be sent now."""
        if queue.pause is not None:
            return
        while queue.pause is None and (batch := queue.channel.due()) is not None:
            may_begin = queue.channel.is_head(batch)
            if not self._prepare_post(queue, batch, tasks, may_begin=may_begin):
                tasks.create_task(self._send(queue, batch, may_begin=may_begin))
        if queue.channel.needs_producer_id and not queue.asks_id:
            queue.asks_id = True
            tasks.create_task(self._request_spare_id(queue))

    async def _request_spare_id(self, queue: LeaderQueue) -> None:
        try:
            queue.channel.spare_producer_id = await self._ids.next()
        except KafkaError as error:
            _log.warning("no further producer id for forwards error=%s", error)
            await asyncio.sleep(ID_RETRY_S)
        queue.asks_id = False
        self._expire(queue)

    def _prepare_post(
        self,
        queue: LeaderQueue,
        batch: InFlightBatch,
        tasks: asyncio.TaskGroup,
        *,
        may_begin: bool,
    ) -> bool:
        """Have a batch posted at the end of this turn; return False if it can't be posted."""
        image = self._image()
        registration = image.partition(*queue.partition)
        if registration is None or registration.leader == self._broker_id:
            return False
        leader = image.brokers.get(registration.leader)
        if leader is None:
            return False
        append = self._request(queue.partition, batch, may_begin=may_begin)
        frame = peer_codec.encode_claimed(append, *_body(batch))
        answered = partial(self._take_answer, queue, batch)
        request = PeerRequest(PeerRequestKind.APPEND_CLAIMED, frame, append.timeout_ms, answered)
        posting = _Posting(queue, batch, may_begin, registration.leader_epoch, request)
        self._postings.setdefault((leader.broker_id, leader.peer), []).append(posting)
        if len(frame) >= POSTED_BYTES_MAX:
            self._post_all(leader.broker_id, leader.peer, tasks)
        return True

    def _post_all(self, broker_id: BrokerId, peer: str, tasks: asyncio.TaskGroup) -> None:
        postings = self._postings.pop((broker_id, peer))
        requests = [posting.request for posting in postings]
        try:
            calls = self._peers.post(broker_id, peer, requests)
        except Exception as error:  # noqa: BLE001 as in `_send`: these fail, the others go on
            for queue, batch, *_ in postings:
                self._finish_attempt(queue, batch, -1, self._unexpected_error(queue, error))
            return
        if calls is None:
            for queue, batch, may_begin, *_ in postings:
                tasks.create_task(self._send(queue, batch, may_begin=may_begin))
            return
        for posting, call in zip(postings, calls, strict=True):
            posting.queue.calls[posting.batch] = (call, posting.epoch)

    def _take_answer(
        self, queue: LeaderQueue, batch: InFlightBatch, body: bytes, error: KafkaError | None
    ) -> None:
        """Take the answer to a posted batch."""
        queue.calls.pop(batch, None)
        if self._tasks is None:
            return  # stopped: `run` has given up all produces
        base_offset = -1
        try:
            if error is None:
                base_offset = peer_codec.decode_base_offset(body)
        except Exception as failure:  # noqa: BLE001 as in `_send`
            error = self._unexpected_error(queue, failure)
        self._finish_attempt(queue, batch, base_offset, error)

    async def _send(self, queue: LeaderQueue, batch: InFlightBatch, *, may_begin: bool) -> None:
        base_offset, failed = -1, None
        try:
            base_offset = await self._attempt(queue.partition, batch, may_begin=may_begin)
        except KafkaError as error:
            failed = error
        except Exception as error:  # noqa: BLE001 one request fails, the others go on
            failed = self._unexpected_error(queue, error)
        self._finish_attempt(queue, batch, base_offset, failed)

    def _finish_attempt(
        self, queue: LeaderQueue, batch: InFlightBatch, base_offset: int, error: KafkaError | None
    ) -> None:
        """Report the outcome of an attempt to the sender of its queue."""
        if error is None:
            queue.channel.succeeded(batch, base_offset)
        else:
            is_deleted = queue.partition.topic_id not in self._image().topics
            queue.channel.failed(batch, error, is_final=is_deleted)
            self._pause(queue, error)
        self._pump_soon(queue)

    @staticmethod
    def _unexpected_error(queue: LeaderQueue, error: Exception) -> KafkaError:
        _log.error("forward failed partition=%s", queue.partition, exc_info=error)
        text = f"this broker met {type(error).__name__}"
        return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, text)

    def _pause(self, queue: LeaderQueue, error: KafkaError) -> None:
        """Delay the next attempt of the first batch, unless it gets a new number."""
        if queue.pause is None and queue.channel.has_failed:
            unknown = error.outcome is Outcome.UNKNOWN
            pause_s = PAUSE_UNKNOWN_S if unknown else PAUSE_REFUSED_S
            queue.pause = asyncio.get_running_loop().call_later(pause_s, self._resume, queue)

    async def _attempt(
        self, partition: TopicIdPartition, batch: InFlightBatch, *, may_begin: bool
    ) -> int:
        """Send a batch to the present leader and return the base offset.

        Raises KafkaError, with outcome NOT_WRITTEN only if this attempt surely did nothing.
        """
        image = self._image()
        registration = image.partition(*partition)
        if registration is None and partition.topic_id not in image.topics:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "the topic was deleted")
        if registration is None or not registration.has_leader:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, "the partition has no leader")
        append = self._request(partition, batch, may_begin=may_begin)
        if registration.leader == self._broker_id:
            records = decode_records(b"".join(_body(batch)))
            return await self._local.append(replace(append, records=records))
        frame = peer_codec.encode_claimed(append, *_body(batch))
        kind = PeerRequestKind.APPEND_CLAIMED
        answer = await self._router.forward(partition, registration, kind, frame, append.timeout_ms)
        return peer_codec.decode_base_offset(answer)

    def _request(
        self, partition: TopicIdPartition, batch: InFlightBatch, *, may_begin: bool
    ) -> Append:
        """Return the append to request from a leader, without its records."""
        left_ms = batch.deadline_ms - LATE_GRACE_MS - self._clock.monotonic_ms()
        share_ms = min(max(left_ms // ATTEMPTS, ATTEMPT_MS_MIN), ATTEMPT_MS_MAX)
        key_format, value_format, acks = batch.first.kind
        return Append(
            partition=partition,
            records=(),
            key_format=RecordFormat(key_format),
            value_format=RecordFormat(value_format),
            acks=acks,
            timeout_ms=max(1, min(left_ms, share_ms)),
            claim=batch.claim,
            may_begin=may_begin,
        )


def _body(batch: InFlightBatch) -> tuple[bytes, bytes, bytes]:
    """Return the body of a produce request, in pieces."""
    return b'{"records":[', batch.text, b"]}"


def is_refused_for_producers(error: KafkaError) -> bool:
    """Return whether a leader refused a producer id for the number of producers.

    The records were not written and may be sent without a producer id.
    """
    return error.code is ErrorCode.POLICY_VIOLATION and error.outcome is Outcome.NOT_WRITTEN


def _resolve_placed(
    future: asyncio.Future[PlacedRecords], count: int, base_offset: int, error: KafkaError | None
) -> None:
    if not future.done():
        future.set_result(PlacedRecords(count, base_offset, error))


def _encode_arrays(records: Sequence[ProduceRecord]) -> list[tuple[bytes, int]]:
    """Return the records as elements of JSON arrays, one for each batch, each with their number."""
    for record in records:
        record.partition, record.offset = None, -1
    text = encode_lines(records)[:-1].replace(b"\n", b",")
    if len(text) <= BATCH_BYTES_MAX or len(records) == 1:
        return [(text, len(records))]
    half = len(records) // 2
    return [*_encode_arrays(records[:half]), *_encode_arrays(records[half:])]


class ProducerIds:
    """Producer ids out of blocks from the controllers, each handed out once. On the broker's loop.

    A block belongs to one broker incarnation and is kept in memory only. The rest of it is lost
    with the process, and a lost answer wastes a block; so no id is ever handed out twice (invariant
    T5).
    """

    def __init__(
        self, broker_id: BrokerId, lifecycle: Lifecycle, controllers: ControllerChannel
    ) -> None:
        self._broker_id = broker_id
        self._lifecycle = lifecycle
        self._controllers = controllers
        self._next = self._end = 0
        self._refilling = asyncio.Lock()

    async def next(self) -> int:
        """Return a producer id that no other producer has, or will have.

        Raises:
            KafkaError: no active controller gave a block; nothing was handed out.
        """
        while self._next == self._end:
            async with self._refilling:
                if self._next == self._end:
                    await self._refill()
        self._next += 1
        return self._next - 1

    async def _refill(self) -> None:
        epoch = self._lifecycle.broker_epoch
        if epoch is None:
            raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, "this broker is not registered yet")
        command = AllocateProducerIds(broker_id=self._broker_id, broker_epoch=epoch)
        try:
            block = await self._controllers.execute(command)
        except KafkaError as error:
            text = f"no producer ids from the active controller: {error.message}"
            raise KafkaError(error.code, text, outcome=Outcome.NOT_WRITTEN) from error
        self._next = block.first_producer_id
        self._end = block.first_producer_id + block.count
        _log.info("producer ids received first=%d count=%d", self._next, block.count)
