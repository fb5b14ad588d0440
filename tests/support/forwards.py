"""`ForwardedProduces` without a network: a leader elsewhere that answers as it is told."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Container, Sequence
from typing import Any

from broker.ports import PeerCall, PeerRequest
from broker.record.batch import RecordFormat
from broker.record.lines import decode_records
from broker.server import peer_codec
from broker.server.forwarded_produce import ForwardedProduces, PlacedRecords
from broker.server.local_partitions import Append
from broker.server.peer_codec import PeerRequestKind
from broker.server.requests import ACKS_ALL
from raft_metadata.common.clock import SystemClock
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import BrokerId
from raft_metadata.image.metadata_image import MetadataImage
from tests.support.one_broker import HERE, ME, OTHER, image

LOST = KafkaError(ErrorCode.NETWORK_EXCEPTION, "the reply is lost")


class Leader:
    """Elsewhere: notes what it is sent, answers as it is told."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.texts: list[bytes] = []
        self.answers: list[KafkaError | None] = []
        self.end = 0
        self.gate: asyncio.Event | None = None
        self.gated: Container[int] = range(100)
        """Partitions whose answers wait for the gate."""
        self.local: list[Append] = []
        self.posts: list[tuple[BrokerId, int]] = []
        """To whom, and how many requests together."""
        self.refuses_posts = False
        self.hastened: list[int] = []
        self.answering: set[asyncio.Task[None]] = set()

    def post(
        self, broker_id: BrokerId, _peer: str, requests: Sequence[PeerRequest]
    ) -> Sequence[PeerCall] | None:
        """As a connection would: each is answered alone, later."""
        if self.refuses_posts:
            return None
        self.posts.append((broker_id, len(requests)))
        for request in requests:
            task = asyncio.get_running_loop().create_task(self._answer(request))
            self.answering.add(task)
            task.add_done_callback(self.answering.discard)
        return [self] * len(requests)

    async def _answer(self, request: PeerRequest) -> None:
        try:
            body = await self.forward(None, None, request.kind, request.body, request.timeout_ms)
        except KafkaError as error:
            request.answered(b"", error)
        else:
            request.answered(body, None)

    def hasten(self, left_ms: int) -> None:
        self.hastened.append(left_ms)

    async def forward(
        self, _partition: object, _registration: object, kind: int, body: bytes, _timeout_ms: int
    ) -> bytes:
        head, text = peer_codec.split_body(body)
        assert kind == PeerRequestKind.APPEND_CLAIMED
        self.sent.append(head)
        self.texts.append(text)
        if self.gate is not None and head["partition"] in self.gated:
            await self.gate.wait()
        error = self.answers.pop(0) if self.answers else None
        if error is not None:
            raise error
        base, self.end = self.end, self.end + len(decode_records(text))
        return peer_codec.join_body({"base_offset": base})

    async def append(self, request: Append) -> int:
        self.local.append(request)
        return 77

    async def next(self) -> int:
        return 40

    @property
    def claims(self) -> list[tuple[int, int]]:
        return [tuple(head["claim"][1:]) for head in self.sent]


class Shell:
    def __init__(self, leader: Leader) -> None:
        self.leader = leader
        self.image: MetadataImage = image(1, (OTHER,), leader=OTHER)
        fake: Any = leader
        self.forwards = ForwardedProduces(
            ME, lambda: self.image, fake, fake, fake, fake, SystemClock()
        )

    def lead(self, *leaders: BrokerId, epoch: int = 1) -> None:
        """As many partitions, led by these."""
        [topic] = image(epoch, (OTHER,), leader=OTHER).topics.values()
        [one] = topic.partitions
        led = tuple(dataclasses.replace(one, leader=leader) for leader in leaders)
        grown = dataclasses.replace(topic, partitions_count=len(led), partitions=led)
        self.image = dataclasses.replace(self.image, topics={topic.topic_id: grown})

    async def append(
        self, count: int = 1, timeout_ms: int = 5_000, **more: Any
    ) -> list[PlacedRecords]:
        body = b'{"records":[' + b",".join([b'{"value":1}'] * count) + b"]}"
        body = more.pop("body", body)
        fields: dict[str, Any] = {
            "partition": HERE, "records": decode_records(body), "acks": ACKS_ALL,
        } | more  # fmt: skip
        json = RecordFormat.JSON
        append = Append(key_format=json, value_format=json, timeout_ms=timeout_ms, **fields)
        assert await self.forwards.acquire_producer_id(append.acks)
        return await self.forwards.append(append, SystemClock().monotonic_ms() + timeout_ms)


async def settled(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 no event
            await asyncio.sleep(0.001)
