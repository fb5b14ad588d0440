"""Writing without repeats: a producer whose requests may be sent again whatever became of them.

Each partition has a sender of its own (`raft_metadata.common.sequenced_sender`): up to five
requests are under way, in order; one whose answer was lost is sent again under its number, and the log knows
it (invariants T1 to T3). What can't be found out until its deadline is told *unknown*, and the
writes behind it go on in the producer's next epoch. acks=all always: what is acknowledged with less
can be lost by a new leader, which would leave a gap in the sequence.

`AsyncProducer` has several requests under way; `Producer` waits for each.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from types import TracebackType
from typing import TYPE_CHECKING, Self

from http_api.client.admin import cluster, v3_path
from http_api.client.calls import (
    Answer,
    ApiError,
    Call,
    ClientError,
    ProtocolError,
    Request,
    UnreachableError,
    path_of,
)
from http_api.client.producer import (
    RETRIABLE_CODE,
    NewRecord,
    RecordOutcome,
    produce,
    send,
)
from http_api.client.transport import DEFAULT_RETRY_S, Client
from http_api.contract.errors import RestCode
from http_api.contract.media_types import V2
from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome
from raft_metadata.common.sequenced_sender import InFlightBatch, PendingProduce, SequencedSender

if TYPE_CHECKING:
    from http_api.client.async_client import AsyncClient

ATTEMPT_MS_MIN = 500
ATTEMPT_MS_MAX = 5_000
ATTEMPTS = 3
"""A request gets this part of what is left of its deadline: so a lost answer leaves time to ask."""
PAUSE_S = 0.05
"""Before a failed request is sent again."""
WAITING_MAX = 10_000
"""Records' sends that wait in one producer."""
_REFUSALS = {
    int(RestCode.OUT_OF_ORDER_SEQUENCE): ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    int(RestCode.INVALID_PRODUCER_EPOCH): ErrorCode.INVALID_PRODUCER_EPOCH,
    int(RestCode.OLD_SEQUENCE): ErrorCode.DUPLICATE_SEQUENCE_NUMBER,
}

Partitioner = Callable[[NewRecord, int], int]
"""The partition of a record among so many."""


def new_producer_id(cluster_id: str) -> Call[int]:
    """An id that nobody else has or will have. Its epochs begin with 0. A lost one is no harm."""
    path = v3_path(cluster_id, "producer-ids")
    request = Request(method="POST", path=path, body=b"{}", repeatable=True)
    return Call(request, lambda answer: int(answer.json()["producer_id"]))


def partition_count(topic: str) -> Call[int]:
    """How many partitions a topic has."""

    def parse(answer: Answer) -> int:
        rows = answer.json()
        if not isinstance(rows, list):
            msg = f"expected the partitions of {topic}, got {answer.body[:100]!r}"
            raise ProtocolError(msg)
        return len(rows)

    path = path_of("topics", topic, "partitions")
    return Call(Request(method="GET", path=path, accept=V2), parse)


class Sequencer:
    """What a producer has under way, partition by partition. Decisions only; both shells use it."""

    def __init__(
        self, topic: str, producer_id: int, partitions: int, partitioner: Partitioner | None = None
    ) -> None:
        self._topic = topic
        self._producer_id = producer_id
        self._partitions = partitions
        self._partitioner = partitioner
        self._rotation = count()
        self._channels: dict[int, SequencedSender] = {}
        self._waiting = 0

    def place(self, records: Sequence[NewRecord]) -> dict[int, list[int]]:
        """The indexes of the records of each partition, in order.

        A record's own partition, else the documented partitioner's: crc32 of the key's bytes view.
        Keyless ones go to one partition, rotating with each send.
        """
        groups: dict[int, list[int]] = {}
        keyless = next(self._rotation) % self._partitions
        for index, record in enumerate(records):
            if record.partition is not None:
                number = record.partition
            elif self._partitioner is not None:
                number = self._partitioner(record, self._partitions)
            elif record.key is None or record.key == b"null":
                number = keyless
            else:
                number = zlib.crc32(record.key) % self._partitions
            groups.setdefault(number, []).append(index)
        return groups

    def add(
        self,
        partition: int,
        records: Sequence[NewRecord],
        deadline_s: float,
        done: Callable[[list[RecordOutcome]], None],
    ) -> SequencedSender:
        """Queue records of one partition; the channel has something for `SequencedSender.due`.

        Raises:
            RuntimeError: too much is waiting already.
        """
        if self._waiting >= WAITING_MAX:
            msg = f"{self._waiting} sends are waiting: await some of them first"
            raise RuntimeError(msg)
        channel = self._channels.get(partition)
        if channel is None:
            channel = SequencedSender(self._producer_id, can_batch=False)
            self._channels[partition] = channel
        self._waiting += 1

        def told(base: int, error: KafkaError | None) -> None:
            self._waiting -= 1
            if error is None:
                done([RecordOutcome(partition, base + at) for at in range(len(records))])
            else:
                done([_outcome(error)] * len(records))

        text = b",".join(replace(record, partition=None).to_json() for record in records)
        channel.add(
            PendingProduce(text, len(records), (partition,), round(deadline_s * 1000), told)
        )
        return channel

    def call(self, crossing: InFlightBatch, now_s: float) -> Call[list[RecordOutcome]]:
        """One attempt at a request that `due` gave out."""
        left_ms = crossing.deadline_ms - round(now_s * 1000)
        share_ms = min(max(left_ms // ATTEMPTS, ATTEMPT_MS_MIN), ATTEMPT_MS_MAX)
        timeout_ms = max(1, min(left_ms, share_ms))
        (partition,) = crossing.first.kind
        made = produce(self._topic, (), partition=partition, timeout_ms=timeout_ms)
        body = b'{"records":[' + crossing.text + b"]}"
        return Call(replace(made.request, body=body, claim=crossing.claim), made.parse)

    @staticmethod
    def took(
        channel: SequencedSender, crossing: InFlightBatch, outcomes: Sequence[RecordOutcome]
    ) -> None:
        """An answer came: one batch, so all rows say the same."""
        row = outcomes[0]
        if row.is_written and row.offset is not None:
            channel.succeeded(crossing, row.offset)
            return
        code = ErrorCode.LEADER_NOT_AVAILABLE if row.retriable else ErrorCode.INVALID_REQUEST
        channel.failed(crossing, KafkaError(code, row.error, outcome=row.outcome))

    @staticmethod
    def failed(channel: SequencedSender, crossing: InFlightBatch, error: ClientError) -> None:
        """The request failed as a whole."""
        code, outcome = ErrorCode.LEADER_NOT_AVAILABLE, error.outcome
        if isinstance(error, ApiError) and error.status < 500:
            code = _REFUSALS.get(error.code, ErrorCode.INVALID_REQUEST)
        elif isinstance(error, UnreachableError):
            outcome = Outcome.NOT_WRITTEN
        channel.failed(crossing, KafkaError(code, str(error), outcome=outcome))


def _outcome(error: KafkaError) -> RecordOutcome:
    code = RETRIABLE_CODE
    if error.code is ErrorCode.INVALID_REQUEST:
        code = int(RestCode.KAFKA_BAD_REQUEST)
    return RecordOutcome(None, None, code, error.message, error.outcome, error.code.retriable)


class Producer:
    """Blocking, one request under way; one thread at a time.

    ``idempotent`` False: as `http_api.client.producer.send`, which repeats only what surely was not
    written.
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
        self, records: Sequence[NewRecord], *, retry_s: float = DEFAULT_RETRY_S
    ) -> list[RecordOutcome]:
        """Write and say what became of each; tried again until it is known, or for ``retry_s``."""
        if not self._idempotent:
            return send(self._client, self._topic, records, retry_s=retry_s)
        if self._sequencer is None:
            self._cluster_id = self._client.run(cluster()).cluster_id
            self._sequencer = Sequencer(
                self._topic,
                self._client.run(new_producer_id(self._cluster_id)),
                self._client.run(partition_count(self._topic)),
                self._partitioner,
            )
        outcomes: list[RecordOutcome | None] = [None] * len(records)
        for partition, indexes in self._sequencer.place(records).items():
            for index, outcome in zip(
                indexes, self._write(partition, [records[i] for i in indexes], retry_s), strict=True
            ):
                outcomes[index] = outcome
        return [outcome for outcome in outcomes if outcome is not None]

    def _write(
        self, partition: int, records: Sequence[NewRecord], retry_s: float
    ) -> list[RecordOutcome]:
        sequencer = self._sequencer
        assert sequencer is not None
        told: list[list[RecordOutcome]] = []
        deadline_s = time.monotonic() + retry_s
        channel = sequencer.add(partition, records, deadline_s, told.append)
        while not told:
            if channel.needs_producer_id:
                # Not now, then later: there are 100 epochs left, and what waits must be answered.
                with contextlib.suppress(ClientError):
                    call = new_producer_id(self._cluster_id)
                    channel.spare_producer_id = self._client.run(call, retry_s=0.0)
            crossing = channel.due()
            if crossing is not None:
                attempt = sequencer.call(crossing, time.monotonic())
                try:
                    outcomes = self._client.run(attempt, retry_s=0.0)
                except ClientError as error:
                    sequencer.failed(channel, crossing, error)
                else:
                    sequencer.took(channel, crossing, outcomes)
            if not told:
                channel.expire(round(time.monotonic() * 1000))
                if not told and (channel.has_failed or crossing is None):
                    time.sleep(PAUSE_S)
        return told[0]


class AsyncProducer:
    """Up to five requests under way per partition; an ``async with`` owns them."""

    def __init__(
        self, client: AsyncClient, topic: str, *, partitioner: Partitioner | None = None
    ) -> None:
        self._client = client
        self._topic = topic
        self._partitioner = partitioner
        self._cluster_id = ""
        self._sequencer: Sequencer | None = None
        self._tasks: asyncio.TaskGroup | None = None
        self._asking: set[SequencedSender] = set()

    async def __aenter__(self) -> Self:
        self._cluster_id = (await self._client.run(cluster())).cluster_id
        self._sequencer = Sequencer(
            self._topic,
            await self._client.run(new_producer_id(self._cluster_id)),
            await self._client.run(partition_count(self._topic)),
            self._partitioner,
        )
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
        self, records: Sequence[NewRecord], *, retry_s: float = DEFAULT_RETRY_S
    ) -> list[RecordOutcome]:
        """As `Producer.send`. Sends of one partition are written in the order of their calls."""
        sequencer = self._sequencer
        if sequencer is None or self._tasks is None:
            msg = "use AsyncProducer as an async context"
            raise RuntimeError(msg)
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + retry_s
        parts = []
        for partition, indexes in sequencer.place(records).items():
            future: asyncio.Future[list[RecordOutcome]] = loop.create_future()

            def done(
                outcomes: list[RecordOutcome],
                future: asyncio.Future[list[RecordOutcome]] = future,
            ) -> None:
                if not future.done():
                    future.set_result(outcomes)

            channel = sequencer.add(partition, [records[i] for i in indexes], deadline_s, done)
            loop.call_at(deadline_s + 0.001, self._expire, channel)
            self._pump(channel)
            parts.append((indexes, future))
        outcomes: list[RecordOutcome | None] = [None] * len(records)
        for indexes, future in parts:
            for index, outcome in zip(indexes, await future, strict=True):
                outcomes[index] = outcome
        return [outcome for outcome in outcomes if outcome is not None]

    def _expire(self, channel: SequencedSender) -> None:
        channel.expire(round(asyncio.get_running_loop().time() * 1000))
        self._pump(channel)

    def _pump(self, channel: SequencedSender) -> None:
        while self._tasks is not None and (crossing := channel.due()) is not None:
            self._tasks.create_task(self._attempt(channel, crossing))
        if self._tasks is not None and channel.needs_producer_id and channel not in self._asking:
            self._asking.add(channel)
            self._tasks.create_task(self._spare_id(channel))

    async def _spare_id(self, channel: SequencedSender) -> None:
        """Its epochs are nearly used up: it goes on under another id. Asked again if that fails."""
        try:
            channel.spare_producer_id = await self._client.run(new_producer_id(self._cluster_id))
        except ClientError:
            await asyncio.sleep(PAUSE_S)
        self._asking.discard(channel)
        self._expire(channel)

    async def _attempt(self, channel: SequencedSender, crossing: InFlightBatch) -> None:
        sequencer = self._sequencer
        assert sequencer is not None
        call = sequencer.call(crossing, asyncio.get_running_loop().time())
        try:
            outcomes = await self._client.run(call, retry_s=0.0)
        except ClientError as error:
            sequencer.failed(channel, crossing, error)
            if channel.has_failed:
                await asyncio.sleep(PAUSE_S)
        else:
            sequencer.took(channel, crossing, outcomes)
        self._pump(channel)
