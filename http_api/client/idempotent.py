"""Idempotent producers: any request may be sent again, and no record is written twice.

Programs use `Producer` (blocking, waits for each request) or `AsyncProducer` (several requests
under way). Both share `Sequencer`, which keeps a `SequencedSender`
(`raft_metadata.common.sequenced_sender`) per partition: up to five requests are under way, in
order, and a request whose answer was lost is sent again with its sequence, which the log recognizes
(invariants T1 to T3). A write that is still in doubt at its deadline has the outcome *unknown*; the
writes behind it continue in the producer's next epoch. Writes always use acks=all: a record
acknowledged with less can be lost with its leader, which would leave a gap in the sequence.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Self

from http_api.client.admin import cluster, partition_leaders
from http_api.client.calls import Call, Request, read_one, v3_path
from http_api.client.client_errors import ApiError, QuorumlogError, UnreachableError
from http_api.client.producer import (
    RETRIABLE_CODE,
    JsonRecord,
    RecordOutcome,
    produce,
    send,
)
from http_api.client.transport import DEFAULT_RETRY_S, Client
from http_api.contract.errors import RestCode
from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome
from raft_metadata.common.record_placement import (
    KeylessRotation,
    keyless_candidates,
    partition_of,
)
from raft_metadata.common.sequenced_sender import InFlightBatch, PendingProduce, SequencedSender

if TYPE_CHECKING:
    from http_api.client.async_client import AsyncClient

ATTEMPT_MS_MIN = 500
ATTEMPT_MS_MAX = 5_000
ATTEMPTS = 3
"""An attempt may take one part in so many of the time left, so that a retry can follow it."""
PAUSE_S = 0.05
"""Seconds between a failed request and the next attempt."""
PENDING_SENDS_MAX = 10_000
"""Sends of a partition's records that may wait in one producer."""
LEADERS_AGE_S = 5.0
"""Seconds after which a send with keyless records looks up again which partitions have leaders."""
_REFUSAL_CODES = {
    int(RestCode.OUT_OF_ORDER_SEQUENCE): ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    int(RestCode.INVALID_PRODUCER_EPOCH): ErrorCode.INVALID_PRODUCER_EPOCH,
    int(RestCode.OLD_SEQUENCE): ErrorCode.DUPLICATE_SEQUENCE_NUMBER,
}

Partitioner = Callable[[JsonRecord, int], int]
"""Chooses the partition of a record, given the number of partitions."""


def new_producer_id(cluster_id: str) -> Call[int]:
    """Return the call that allocates a producer id that is never given out again.

    Its epochs begin with 0. An id whose answer is lost stays unused, which does no harm.
    """
    path = v3_path(cluster_id, "producer-ids")
    request = Request(method="POST", path=path, body=b"{}", repeatable=True)
    return read_one(request, lambda body: int(body["producer_id"]))


class Sequencer:
    """Requests of a producer that are queued or under way, by partition.

    Decides only, without I/O; owned by one `Producer` or `AsyncProducer`.
    """

    def __init__(
        self,
        topic: str,
        producer_id: int,
        has_leader: Sequence[bool],
        now_s: float,
        partitioner: Partitioner | None = None,
    ) -> None:
        """Prepare to write to a topic.

        ``has_leader``: whether each of its partitions has a leader at ``now_s``.
        """
        self._topic = topic
        self._producer_id = producer_id
        self._partitions = len(has_leader)
        self._partitioner = partitioner
        self._rotation = KeylessRotation(producer_id)
        self.learn_leaders(has_leader, now_s)
        self._senders: dict[int, SequencedSender] = {}
        self._pending_sends = 0

    def needs_leaders(self, records: Sequence[JsonRecord], now_s: float) -> bool:
        """Return True if these records are placed by leaders that were learned too long ago.

        Then the caller looks them up, or calls `postpone_leaders`.
        """
        if now_s < self._leaders_due_s or self._partitioner is not None:
            return False
        return any(record.partition is None and record.has_no_key for record in records)

    def learn_leaders(self, has_leader: Sequence[bool], now_s: float) -> None:
        """Note which partitions have leaders; the number of partitions stays that of the start."""
        self._candidates = keyless_candidates(has_leader[: self._partitions])
        self.postpone_leaders(now_s)

    def postpone_leaders(self, now_s: float) -> None:
        """Keep what is known about leaders for `LEADERS_AGE_S`."""
        self._leaders_due_s = now_s + LEADERS_AGE_S

    def group_by_partition(self, records: Sequence[JsonRecord]) -> dict[int, list[int]]:
        """Return the indexes of the records of each partition, in order.

        A record goes to its own ``partition``, else to the one that the partitioner returns, else
        where `partition_of` puts it: by its key's JSON text; records without a key all go to the
        same partition with a leader, which rotates with each call.
        """
        groups: dict[int, list[int]] = {}
        next_keyless = self._rotation.for_batch(self._candidates)
        for index, record in enumerate(records):
            named, key = record.partition, None if record.has_no_key else record.key
            if named is None and self._partitioner is not None:
                named = self._partitioner(record, self._partitions)
            number = partition_of(named, key, self._partitions, next_keyless)
            groups.setdefault(number, []).append(index)
        return groups

    def add(
        self,
        partition: int,
        records: Sequence[JsonRecord],
        deadline_s: float,
        done: Callable[[list[RecordOutcome]], None],
    ) -> SequencedSender:
        """Queue records of a partition; the returned sender then has a request for `due`.

        Args:
            partition: Partition that all the records are written to.
            records: Records to write as one batch.
            deadline_s: Monotonic time after which the outcome is reported even if unknown.
            done: Called once, with one outcome per record.

        Raises:
            RuntimeError: `PENDING_SENDS_MAX` sends are waiting already.
        """
        if self._pending_sends >= PENDING_SENDS_MAX:
            msg = f"{self._pending_sends} sends are waiting: await some of them first"
            raise RuntimeError(msg)
        sender = self._senders.get(partition)
        if sender is None:
            sender = SequencedSender(self._producer_id, can_batch=False)
            self._senders[partition] = sender
        self._pending_sends += 1

        def report(base: int, error: KafkaError | None) -> None:
            self._pending_sends -= 1
            if error is None:
                done([RecordOutcome(partition, base + at) for at in range(len(records))])
            else:
                done([_outcome(error)] * len(records))

        text = b",".join(replace(record, partition=None).to_json() for record in records)
        sender.add(
            PendingProduce(text, len(records), (partition,), round(deadline_s * 1000), report)
        )
        return sender

    def call(self, batch: InFlightBatch, now_s: float) -> Call[list[RecordOutcome]]:
        """Return the call for an attempt at a request that `SequencedSender.due` returned."""
        left_ms = batch.deadline_ms - round(now_s * 1000)
        share_ms = min(max(left_ms // ATTEMPTS, ATTEMPT_MS_MIN), ATTEMPT_MS_MAX)
        timeout_ms = max(1, min(left_ms, share_ms))
        (partition,) = batch.first.kind
        made = produce(self._topic, (), partition=partition, timeout_ms=timeout_ms)
        body = b'{"records":[' + batch.text + b"]}"
        return Call(replace(made.request, body=body, claim=batch.claim), made.parse)

    @staticmethod
    def receive_outcomes(
        sender: SequencedSender, batch: InFlightBatch, outcomes: Sequence[RecordOutcome]
    ) -> None:
        """Pass an answer to the sender; all rows of one batch have the same outcome."""
        row = outcomes[0]
        if row.is_written and row.offset is not None:
            sender.succeeded(batch, row.offset)
            return
        code = ErrorCode.LEADER_NOT_AVAILABLE if row.retriable else ErrorCode.INVALID_REQUEST
        sender.failed(batch, KafkaError(code, row.error, outcome=row.outcome))

    @staticmethod
    def report_failure(
        sender: SequencedSender, batch: InFlightBatch, error: QuorumlogError
    ) -> None:
        """Pass the failure of a whole request to the sender."""
        code, outcome = ErrorCode.LEADER_NOT_AVAILABLE, error.outcome
        if isinstance(error, ApiError) and error.status < 500:
            code = _REFUSAL_CODES.get(error.code or 0, ErrorCode.INVALID_REQUEST)
        elif isinstance(error, UnreachableError):
            outcome = Outcome.NOT_WRITTEN
        sender.failed(batch, KafkaError(code, str(error), outcome=outcome))


def _in_order(parts: Iterable[tuple[list[int], list[RecordOutcome]]]) -> list[RecordOutcome]:
    """Return the outcomes by the indexes of their records, given those of each partition."""
    by_index = {
        index: outcome
        for indexes, outcomes in parts
        for index, outcome in zip(indexes, outcomes, strict=True)
    }
    return [by_index[index] for index in range(len(by_index))]


def _outcome(error: KafkaError) -> RecordOutcome:
    code = RETRIABLE_CODE
    if error.code is ErrorCode.INVALID_REQUEST:
        code = int(RestCode.KAFKA_BAD_REQUEST)
    return RecordOutcome(None, None, code, error.message, error.outcome, error.code.retriable)


class Producer:
    """Blocking producer with one request under way; used by one thread at a time.

    With ``idempotent`` False it writes like `http_api.client.producer.send`, which repeats only
    requests that certainly wrote nothing.
    """

    def __init__(
        self,
        client: Client,
        topic: str,
        *,
        idempotent: bool = True,
        partitioner: Partitioner | None = None,
    ) -> None:
        self._client = client
        self._topic = topic
        self._idempotent = idempotent
        self._partitioner = partitioner
        self._cluster_id = ""
        self._sequencer: Sequencer | None = None

    def send(
        self, records: Sequence[JsonRecord], *, retry_s: float = DEFAULT_RETRY_S
    ) -> list[RecordOutcome]:
        """Write records and return one outcome per record, in order.

        An attempt is repeated until its outcome is known, or for ``retry_s`` seconds.
        """
        if not self._idempotent:
            return send(self._client, self._topic, records, retry_s=retry_s)
        if self._sequencer is None:
            self._cluster_id = self._client.run(cluster()).cluster_id
            self._sequencer = Sequencer(
                self._topic,
                self._client.run(new_producer_id(self._cluster_id)),
                self._client.run(partition_leaders(self._topic)),
                time.monotonic(),
                self._partitioner,
            )
        elif self._sequencer.needs_leaders(records, time.monotonic()):
            self._sequencer.postpone_leaders(time.monotonic())
            with contextlib.suppress(QuorumlogError):  # the records find out by themselves
                has_leader = self._client.run(partition_leaders(self._topic), retry_s=0.0)
                self._sequencer.learn_leaders(has_leader, time.monotonic())
        return _in_order(
            (indexes, self._write(partition, [records[i] for i in indexes], retry_s))
            for partition, indexes in self._sequencer.group_by_partition(records).items()
        )

    def _write(
        self, partition: int, records: Sequence[JsonRecord], retry_s: float
    ) -> list[RecordOutcome]:
        sequencer = self._sequencer
        assert sequencer is not None
        report: list[list[RecordOutcome]] = []
        deadline_s = time.monotonic() + retry_s
        sender = sequencer.add(partition, records, deadline_s, report.append)
        while not report:
            if sender.needs_producer_id:
                # A failure can be retried later: there are 100 epochs left, and sends are waiting.
                with contextlib.suppress(QuorumlogError):
                    call = new_producer_id(self._cluster_id)
                    sender.spare_producer_id = self._client.run(call, retry_s=0.0)
            batch = sender.due()
            if batch is not None:
                attempt = sequencer.call(batch, time.monotonic())
                try:
                    outcomes = self._client.run(attempt, retry_s=0.0)
                except QuorumlogError as error:
                    sequencer.report_failure(sender, batch, error)
                else:
                    sequencer.receive_outcomes(sender, batch, outcomes)
            if not report:
                sender.expire(round(time.monotonic() * 1000))
                if not report and (sender.has_failed or batch is None):
                    time.sleep(PAUSE_S)
        return report[0]


class AsyncProducer:
    """Producer with up to five requests under way per partition; an async context owns it."""

    def __init__(
        self, client: AsyncClient, topic: str, *, partitioner: Partitioner | None = None
    ) -> None:
        self._client = client
        self._topic = topic
        self._partitioner = partitioner
        self._cluster_id = ""
        self._sequencer: Sequencer | None = None
        self._tasks: asyncio.TaskGroup | None = None
        self._senders_awaiting_id: set[SequencedSender] = set()

    async def __aenter__(self) -> Self:
        self._cluster_id = (await self._client.run(cluster())).cluster_id
        producer_id = await self._client.run(new_producer_id(self._cluster_id))
        has_leader = await self._client.run(partition_leaders(self._topic))
        now_s = asyncio.get_running_loop().time()
        self._sequencer = Sequencer(self._topic, producer_id, has_leader, now_s, self._partitioner)
        self._tasks = asyncio.TaskGroup()
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._tasks is not None
        tasks, self._tasks = self._tasks, None
        await tasks.__aexit__(kind, error, traceback)

    async def send(
        self, records: Sequence[JsonRecord], *, retry_s: float = DEFAULT_RETRY_S
    ) -> list[RecordOutcome]:
        """Write records as `Producer.send` does, per partition in the order of the calls."""
        sequencer = self._sequencer
        if sequencer is None or self._tasks is None:
            msg = "use AsyncProducer as an async context"
            raise RuntimeError(msg)
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + retry_s
        if sequencer.needs_leaders(records, loop.time()):
            sequencer.postpone_leaders(loop.time())
            self._tasks.create_task(self._learn_leaders(sequencer))
        parts = []
        for partition, indexes in sequencer.group_by_partition(records).items():
            future: asyncio.Future[list[RecordOutcome]] = loop.create_future()

            def done(
                outcomes: list[RecordOutcome],
                future: asyncio.Future[list[RecordOutcome]] = future,
            ) -> None:
                if not future.done():
                    future.set_result(outcomes)

            sender = sequencer.add(partition, [records[i] for i in indexes], deadline_s, done)
            loop.call_at(deadline_s + 0.001, self._expire, sender)
            self._pump(sender)
            parts.append((indexes, future))
        return _in_order([(indexes, await future) for indexes, future in parts])

    async def _learn_leaders(self, sequencer: Sequencer) -> None:
        """Learn the leaders beside the sends, whose order this must not change."""
        with contextlib.suppress(QuorumlogError):
            has_leader = await self._client.run(partition_leaders(self._topic), retry_s=0.0)
            sequencer.learn_leaders(has_leader, asyncio.get_running_loop().time())

    def _expire(self, sender: SequencedSender) -> None:
        sender.expire(round(asyncio.get_running_loop().time() * 1000))
        self._pump(sender)

    def _pump(self, sender: SequencedSender) -> None:
        while self._tasks is not None and (batch := sender.due()) is not None:
            self._tasks.create_task(self._attempt(sender, batch))
        if (
            self._tasks is not None
            and sender.needs_producer_id
            and sender not in self._senders_awaiting_id
        ):
            self._senders_awaiting_id.add(sender)
            self._tasks.create_task(self._fetch_spare_id(sender))

    async def _fetch_spare_id(self, sender: SequencedSender) -> None:
        """Fetch the producer id that follows once the sender's epochs are used up.

        After a failure the next call of `_pump` tries again.
        """
        try:
            sender.spare_producer_id = await self._client.run(new_producer_id(self._cluster_id))
        except QuorumlogError:
            await asyncio.sleep(PAUSE_S)
        self._senders_awaiting_id.discard(sender)
        self._expire(sender)

    async def _attempt(self, sender: SequencedSender, batch: InFlightBatch) -> None:
        sequencer = self._sequencer
        assert sequencer is not None
        call = sequencer.call(batch, asyncio.get_running_loop().time())
        try:
            outcomes = await self._client.run(call, retry_s=0.0)
        except QuorumlogError as error:
            sequencer.report_failure(sender, batch, error)
            if sender.has_failed:
                await asyncio.sleep(PAUSE_S)
        else:
            sequencer.receive_outcomes(sender, batch, outcomes)
        self._pump(sender)
