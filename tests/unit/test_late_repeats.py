"""A batch that was written, sent again when its topic would not take it any more."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.record.batch import RecordFormat
from broker.record.lines import decode_records
from broker.server.broker_apis import RoutedBrokerApis
from broker.server.peer_codec import PeerRequestKind
from broker.server.peer_requests import PeerRequests
from broker.server.requests import ProduceRequest
from broker.server.topics import TopicRequests
from raft_metadata.common.clock import SystemClock
from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome
from raft_metadata.common.ids import BrokerId, Claim, PartitionId, TopicName
from raft_metadata.image.metadata_image import MetadataImage
from raft_metadata.records.records import ResourceType
from tests.support.one_broker import HERE, ME, OTHER, TOPIC, Here, image, one_broker

NOW = 1_000_000
BEFORE = {"message.timestamp.before.max.ms": "500"}
JSON = RecordFormat.JSON


class Brokers:
    """The leader, over a real log, and another one that forwards to it."""

    def __init__(self, here: Here, directory: Path) -> None:
        self.here = here
        self.now_ms = NOW
        self.kinds: list[int] = []
        """The leader is of a version that does not know the question."""
        nothing: Any = None
        self.services = PeerRequests(here.local, here.manager, *[nothing] * 8)
        self.leader = self._apis(directory, ME)
        self.other = self._apis(directory, OTHER)
        self.learn({})

    def _apis(self, directory: Path, me: BrokerId) -> RoutedBrokerApis:
        config = dataclasses.replace(self.here.config, broker_id=me)
        nothing: Any = None
        loader: Any = self
        lifecycle: Any = SimpleNamespace(
            controller_clock=SimpleNamespace(wall_ms=lambda: self.now_ms)
        )
        return RoutedBrokerApis(
            config, self.here.local, loader, lifecycle, nothing, loader,
            lambda _: cast("Any", SimpleNamespace(groups=None)),
            nothing, nothing, nothing, SystemClock(), lambda count: bytes(range(count)),
        )  # fmt: skip

    def learn(self, configs: dict[str, str]) -> None:
        led = dataclasses.replace(image(1, (ME,)), configs={(ResourceType.TOPIC, TOPIC): configs})
        self.image: MetadataImage = led
        self.here.manager.on_metadata_update(led)

    def post(self, *_: object) -> None:
        """No connection is open: what is posted is called."""

    async def changed(self) -> None:
        """Never."""

    async def call(self, to: BrokerId, peer: str, kind: int, body: bytes, ms: int) -> bytes:
        assert to == ME
        self.kinds.append(kind)
        return await self.services.answer(kind, body, ms)

    @property
    def log_end(self) -> int:
        return self.here.local.leading(HERE)[0].log.log_end_offset


@pytest.fixture
async def brokers(tmp_path: Path) -> AsyncIterator[Brokers]:
    async with one_broker(tmp_path) as here:
        yield Brokers(here, tmp_path)


def request(sequence: int, record: bytes = b'{"value":1,"timestamp":999800}') -> ProduceRequest:
    return ProduceRequest(
        topic=TopicName("t"),
        records=decode_records(b'{"records":[{"key":1,"value":1},%b]}' % record),
        key_format=JSON,
        value_format=JSON,
        partition=PartitionId(0),
        claim=Claim(7, 0, sequence),
    )


async def offsets(apis: RoutedBrokerApis, asked: ProduceRequest) -> list[int | None]:
    results = await apis.produce(asked)
    assert [result.error for result in results] == [None] * len(results)
    return [result.offset for result in results]


@pytest.mark.parametrize("through", ["leader", "other"])
@pytest.mark.parametrize(
    ("configs", "later_ms", "code"),
    [
        (BEFORE, 10_000, ErrorCode.INVALID_TIMESTAMP),
        ({"max.message.bytes": "4"}, 0, ErrorCode.MESSAGE_TOO_LARGE),
        ({"cleanup.policy": "compact"}, 0, ErrorCode.INVALID_RECORD),
    ],
    ids=["too old by now", "too large by now", "compacted by now"],
)
async def test_invariant_t2_a_repeat_has_its_first_offsets_whatever_the_topic_takes_by_now(
    brokers: Brokers, through: str, configs: dict[str, str], later_ms: int, code: ErrorCode
) -> None:
    apis: RoutedBrokerApis = getattr(brokers, through)
    assert await offsets(apis, request(0)) == [0, 1]
    brokers.learn(configs)
    brokers.now_ms += later_ms
    assert await offsets(apis, request(0)) == [0, 1]
    with pytest.raises(KafkaError, match=r"record [01]: .*all are refused with it") as refused:
        await apis.produce(request(2))
    assert (refused.value.code, refused.value.outcome) == (code, Outcome.NOT_WRITTEN)
    assert brokers.log_end == 2
    assert await offsets(apis, request(0)) == [0, 1], "and still"


async def test_invariant_t2_what_may_have_been_written_is_not_called_refused(
    brokers: Brokers,
) -> None:
    """Older than the last five: the leader can't tell, so it doesn't."""
    for number in range(6):
        await offsets(brokers.leader, request(2 * number))
    brokers.learn(BEFORE)
    brokers.now_ms += 10_000
    for apis in (brokers.leader, brokers.other):
        with pytest.raises(KafkaError) as old:
            await apis.produce(request(0))
        assert (old.value.code, old.value.outcome) == (
            ErrorCode.DUPLICATE_SEQUENCE_NUMBER,
            Outcome.UNKNOWN,
        )


async def test_invariant_t2_a_perhaps_replaced_leader_refuses_for_now_only(
    brokers: Brokers,
) -> None:
    """A newer leader may hold the first attempt: only a leader proven to lead refuses for good."""
    brokers.learn(BEFORE)
    brokers.now_ms += 10_000
    brokers.here.proven[0] = False
    for apis in (brokers.leader, brokers.other):
        for result in await apis.produce(dataclasses.replace(request(2), timeout_ms=1)):
            assert result.error is not None
            assert (result.error.code, result.error.outcome) == (
                ErrorCode.LEADER_NOT_AVAILABLE,
                Outcome.NOT_WRITTEN,
            )
            assert result.error.code.retriable
    brokers.here.proven[0] = True
    with pytest.raises(KafkaError) as refused:
        await brokers.other.produce(request(2))
    assert refused.value.outcome is Outcome.NOT_WRITTEN
    assert brokers.log_end == 0


async def test_a_leader_is_not_asked_to_append_what_is_refused(brokers: Brokers) -> None:
    assert await offsets(brokers.other, request(0)) == [0, 1]
    brokers.learn(BEFORE)
    brokers.now_ms += 10_000
    with pytest.raises(KafkaError) as refused:
        await brokers.other.produce(request(2))
    assert refused.value.code is ErrorCode.INVALID_TIMESTAMP
    assert brokers.log_end == 2
    assert brokers.kinds == [PeerRequestKind.APPEND_CLAIMED, PeerRequestKind.REPEAT_CLAIMED]


async def test_one_partition_that_is_not_there_refuses_all_and_nothing_is_written(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def found(*_: object) -> None:
        """Nothing newer is known."""

    monkeypatch.setattr(TopicRequests, "catch_up_with", found)
    asked = dataclasses.replace(
        request(0, b'{"value":2,"partition":1}'), partition=None, claim=None
    )
    with pytest.raises(KafkaError, match="no partition 1: it has 1, numbered from 0") as refused:
        await brokers.leader.produce(asked)
    assert refused.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert brokers.log_end == 0
