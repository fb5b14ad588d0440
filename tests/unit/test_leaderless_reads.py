"""How long a read waits for a leader: as long as it said, never longer than a named grace."""

from __future__ import annotations

import asyncio
import dataclasses
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from typing_extensions import override

from broker.config import BrokerConfig
from broker.server import fetch, peer_codec
from broker.server.broker_apis import RoutedBrokerApis
from broker.server.fetch import LEADER_MOVE_MS, LEADER_WAIT_MS
from broker.server.requests import FetchRequest
from broker.server.router import REROUTE_PAUSE_MS
from raft_metadata.common.clock import SystemClock
from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome
from raft_metadata.common.ids import (
    NO_LEADER,
    BrokerId,
    ClusterId,
    DirectoryId,
    MetadataOffset,
    PartitionId,
    TopicName,
)
from tests.support.fake_broker_apis import FakeBrokerApis

if TYPE_CHECKING:
    from pathlib import Path

    from raft_metadata.image.metadata_image import MetadataImage

T, ZERO = TopicName("flights"), PartitionId(0)
LEADER = BrokerId(1)
ENDS = peer_codec.join_body({"beginning_offset": 3, "end_offset": 9, "end_leader_epoch": 1})


class SetClock(SystemClock):
    now_ms = 5_000

    @override
    def monotonic_ms(self) -> int:
        return self.now_ms


@dataclass
class Loader:
    """An image that changes when it is said, and time that passes while it is waited for."""

    image: MetadataImage
    clock: SetClock
    then: dict[int, MetadataImage] = field(default_factory=dict)
    """By the time at which it comes."""

    async def changed(self) -> None:
        self.clock.now_ms += REROUTE_PAUSE_MS
        for at_ms, image in self.then.items():
            if at_ms <= self.clock.now_ms:
                self.image = image

    async def newest_offset(self) -> MetadataOffset:
        return self.image.next_offset


@dataclass
class Peers:
    """Answers what it is told to, or never."""

    clock: SetClock
    answer: bytes | None = None
    asked: list[int] = field(default_factory=list)

    def post(self, *_: object) -> None:
        """No connection is open."""

    async def call(self, broker: BrokerId, peer: str, kind: int, body: bytes, ms: int) -> bytes:
        self.asked.append(ms)
        if self.answer is None:
            self.clock.now_ms += ms
            await asyncio.get_running_loop().create_future()
        assert self.answer is not None
        return self.answer


@dataclass
class Door:
    apis: RoutedBrokerApis
    loader: Loader
    clock: SetClock
    peers: Peers


def images() -> tuple[MetadataImage, MetadataImage]:
    """(without a leader, with one) of the same topic."""
    fake = FakeBrokerApis()
    fake.add_topic(T, 1)
    led = fake.image
    topic = led.topic(T)
    assert topic is not None
    [registration] = topic.partitions
    left = dataclasses.replace(registration, leader=NO_LEADER)
    gone = dataclasses.replace(topic, partitions=(left,))
    return dataclasses.replace(led, topics={topic.topic_id: gone}), led


def door(directory: Path, image: MetadataImage, answer: bytes | None = None) -> Door:
    clock = SetClock()
    peers = Peers(clock, answer)
    loader = Loader(image, clock)
    config = BrokerConfig(
        broker_id=BrokerId(2),
        cluster_id=ClusterId("c"),
        directory_id=DirectoryId("d" * 22),
        data_dir=directory,
        advertised_http="127.0.0.1:1",
        advertised_peer="127.0.0.1:2",
    )
    nobody = cast("Any", None)
    apis = RoutedBrokerApis(
        config, nobody, cast("Any", loader), nobody, nobody, cast("Any", peers),
        lambda _: cast("Any", SimpleNamespace(groups=None)), nobody, nobody, nobody, clock,
        lambda count: bytes(range(count)),
    )  # fmt: skip
    return Door(apis, loader, clock, peers)


@pytest.mark.parametrize("timeout_ms", [0, 1, 1_000, 4_000, 60_000])
async def test_a_fetch_waits_for_a_leader_as_long_as_it_said(
    tmp_path: Path, timeout_ms: int
) -> None:
    """And so long as a planned move of a leader takes, where it said less."""
    here = door(tmp_path, images()[0])
    began = here.clock.now_ms
    with pytest.raises(KafkaError) as failure:
        await here.apis.fetch(
            FetchRequest(topic=T, partition=ZERO, offset=0, max_wait_ms=timeout_ms)
        )
    assert (failure.value.code, failure.value.outcome) == (
        ErrorCode.LEADER_NOT_AVAILABLE,
        Outcome.NOT_WRITTEN,
    )
    waited = here.clock.now_ms - began
    assert timeout_ms <= waited <= max(timeout_ms, LEADER_MOVE_MS) + REROUTE_PAUSE_MS
    assert not here.peers.asked


async def test_ends_are_waited_for_as_long_as_an_election_takes(tmp_path: Path) -> None:
    here = door(tmp_path, images()[0])
    began = here.clock.now_ms
    with pytest.raises(KafkaError) as failure:
        await here.apis.offsets(T, ZERO)
    assert failure.value.code is ErrorCode.LEADER_NOT_AVAILABLE
    assert here.clock.now_ms - began == LEADER_WAIT_MS


async def test_a_leader_that_comes_in_time_is_asked(tmp_path: Path) -> None:
    without, led = images()
    here = door(tmp_path, without, ENDS)
    here.loader.then = {here.clock.now_ms + LEADER_WAIT_MS - REROUTE_PAUSE_MS: led}
    ends = await here.apis.offsets(T, ZERO)
    assert (ends.beginning_offset, ends.end_offset) == (3, 9)


async def test_a_leader_that_hangs_holds_a_read_up_for_a_named_grace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "ANSWER_GRACE_MS", 20)
    here = door(tmp_path, images()[1])
    for read, at_most_ms in (
        (
            here.apis.fetch(FetchRequest(topic=T, partition=ZERO, offset=0, max_wait_ms=1_000)),
            1_000 + 20,
        ),
        (here.apis.offsets(T, ZERO), LEADER_WAIT_MS + 20),
    ):
        began = here.clock.now_ms
        with pytest.raises(KafkaError, match="broker 1, the leader, did not answer within") as late:
            await read
        assert late.value.outcome is Outcome.NOT_WRITTEN
        assert here.clock.now_ms - began <= at_most_ms + REROUTE_PAUSE_MS
