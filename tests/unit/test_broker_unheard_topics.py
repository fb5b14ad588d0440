"""A broker that hears no controller does not call a topic or a partition unknown."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast
from unittest.mock import MagicMock

import pytest

from broker.config import BrokerConfig
from broker.coordinator import group_messages
from broker.coordinator.group_messages import CommitGroup, GroupOffset, GroupOffsets
from broker.coordinator.records import OFFSETS_TOPIC
from broker.ports import ControllerChannel, PeerChannel
from broker.record.batch import RecordFormat
from broker.record.lines import ProduceRecord
from broker.server import topics
from broker.server.broker_apis import RoutedBrokerApis
from broker.server.metadata_loader import MetadataLoader
from broker.server.requests import FetchRequest, ProduceRequest
from broker.server.topics import TopicRequests
from raft_metadata.common.clock import SystemClock
from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome
from raft_metadata.common.ids import GroupId, PartitionId, TopicName
from raft_metadata.image.metadata_image import MetadataImage
from tests.unit.test_group_door import FakeLoader, door

NAME = TopicName("orders")


async def no_controller_answers() -> None:
    raise KafkaError(ErrorCode.NOT_CONTROLLER, "nobody is active")


async def an_active_controller() -> int:
    return 7


async def nothing_newer(_: object) -> None:
    """Return at once: this image is the newest."""


def requests(
    *,
    loaded: bool,
    controllers: object = None,
    newest_offset: Callable[[], Awaitable[object]] = no_controller_answers,
    wait_for: Callable[[object], Awaitable[None]] = nothing_newer,
) -> TopicRequests:
    loader = SimpleNamespace(
        image=MetadataImage(),
        loaded=asyncio.Event(),
        newest_offset=newest_offset,
        wait_for=wait_for,
    )
    if loaded:
        loader.loaded.set()
    nobody = MagicMock()
    return TopicRequests(
        cast("BrokerConfig", nobody),
        cast("MetadataLoader", loader),
        cast("ControllerChannel", controllers or nobody),
        cast("PeerChannel", nobody),
        SystemClock(),
        bytes,
    )


async def test_a_broker_that_has_just_started_calls_no_topic_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A 404 would send a reader back to the start, or make a writer create it (pause-kill)."""
    monkeypatch.setattr(topics, "CATCH_UP_MS", 10)
    with pytest.raises(KafkaError) as refused:
        await requests(loaded=False).catch_up_with(NAME)
    assert refused.value.code is ErrorCode.LEADER_NOT_AVAILABLE
    assert refused.value.outcome is Outcome.NOT_WRITTEN
    await requests(loaded=True, newest_offset=an_active_controller).catch_up_with(NAME)


ZERO, BEHIND_THE_LAST = PartitionId(0), PartitionId(12)
"""Partitions of topics that have at most 12."""
DOORS: dict[str, Callable[[RoutedBrokerApis, TopicName, PartitionId], Awaitable[object]]] = {
    "fetch": lambda apis, topic, partition: apis.fetch(
        FetchRequest(topic=topic, partition=partition, offset=0, max_wait_ms=0)
    ),
    "offsets": lambda apis, topic, partition: apis.offsets(topic, partition),
    "delete_records": lambda apis, topic, partition: apis.delete_records(topic, partition, 1),
    "produce": lambda apis, topic, partition: apis.produce(
        ProduceRequest(
            topic=topic, records=[ProduceRecord()], key_format=RecordFormat.JSON,
            value_format=RecordFormat.JSON, partition=partition, timeout_ms=1_000,
        )
    ),
    "commit": lambda apis, topic, partition: apis.group(
        CommitGroup(group=GroupId("g"), offsets=(GroupOffset(topic, partition, 1),))
    ),
}  # fmt: skip


@pytest.mark.parametrize("hears_controllers", [True, False])
@pytest.mark.parametrize(
    ("topic", "partition"), [("orders", ZERO), ("flights", BEHIND_THE_LAST)], ids=["topic", "grown"]
)
@pytest.mark.parametrize("name", DOORS)
async def test_rule_r8_a_broker_that_hears_no_controller_calls_nothing_unknown_at_any_door(
    name: str,
    topic: str,
    partition: PartitionId,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    hears_controllers: bool,
) -> None:
    """Another broker made it since. Spark took the 404 for its loss, and skipped its records."""
    monkeypatch.setattr(topics, "CATCH_UP_MS", 10)
    monkeypatch.setattr(topics.LiveConfigs, "auto_create", lambda *_: False)
    apis, _, _, _ = door(tmp_path, [], topics={OFFSETS_TOPIC: 12, "flights": 2})
    if not hears_controllers:
        monkeypatch.setattr(FakeLoader, "newest_offset", lambda _: no_controller_answers())
    with pytest.raises(KafkaError) as refused:
        await DOORS[name](apis, TopicName(topic), partition)
    unknown, unproven = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.LEADER_NOT_AVAILABLE
    assert refused.value.code is (unknown if hears_controllers else unproven)
    assert refused.value.outcome is Outcome.NOT_WRITTEN


@pytest.mark.parametrize("hears_controllers", [True, False])
async def test_rule_r8_a_broker_that_hears_no_controller_does_not_say_that_there_are_no_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, hears_controllers: bool
) -> None:
    """A member took "no offsets" for a new group, and its reset policy skipped records."""
    monkeypatch.setattr(topics, "CATCH_UP_MS", 10)
    apis, _, _, _ = door(tmp_path, [], topics={})
    if hears_controllers:
        assert await apis.group(GroupOffsets(group=GroupId("g"))) == ()
        assert await apis.list_groups() == []
        return
    monkeypatch.setattr(FakeLoader, "newest_offset", lambda _: no_controller_answers())
    for asked in (apis.group(GroupOffsets(group=GroupId("g"))), apis.list_groups()):
        with pytest.raises(KafkaError) as refused:
            await asked
        assert refused.value.code is ErrorCode.LEADER_NOT_AVAILABLE


async def test_a_commit_waits_once_for_what_is_missing_and_not_for_each_partition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic half made when the controllers were lost: 10,000 offsets waited 1 s each."""
    apis, peers, controllers, _ = door(
        tmp_path, [group_messages.encode_answer(None)], topics={OFFSETS_TOPIC: 12, NAME: 100}
    )
    made = apis.image.topics[apis.image.topic_ids[NAME]]
    half = replace(made, partitions=made.partitions[:50])
    now = {**apis.image.topics, made.topic_id: half}
    controllers.loader.image = replace(apis.image, topics=now)
    asked: list[None] = []

    async def newest_offset(_: object) -> int:
        asked.append(None)
        raise KafkaError(ErrorCode.NOT_CONTROLLER, "nobody is active")

    monkeypatch.setattr(topics, "CATCH_UP_MS", 10)
    monkeypatch.setattr(FakeLoader, "newest_offset", newest_offset)
    rows = tuple(GroupOffset(NAME, PartitionId(number), 1) for number in range(50))
    await apis.group(CommitGroup(group=GroupId("g"), offsets=rows))
    assert (len(peers.sent), len(asked)) == (1, 0)


class _Controllers:
    """Creates nothing, and says why once it is let."""

    def __init__(self, failure: KafkaError) -> None:
        self.failure = failure
        self.asked = 0
        self.asked_once = asyncio.Event()
        self.go = asyncio.Event()

    async def execute(self, *_: object) -> None:
        self.asked += 1
        self.asked_once.set()
        await self.go.wait()
        raise self.failure


def creating(
    failure: KafkaError, monkeypatch: pytest.MonkeyPatch
) -> tuple[TopicRequests, _Controllers]:
    monkeypatch.setattr(topics, "CATCH_UP_MS", 10)
    monkeypatch.setattr(topics, "id_from_bytes", lambda _: "id")
    monkeypatch.setattr(topics, "LiveConfigs", MagicMock())
    controllers = _Controllers(failure)
    return requests(loaded=True, controllers=controllers), controllers


@pytest.mark.parametrize(
    ("failure", "told"),
    [
        (KafkaError(ErrorCode.NOT_CONTROLLER, "nobody"), ErrorCode.LEADER_NOT_AVAILABLE),
        (KafkaError(ErrorCode.OUTCOME_UNKNOWN, "lost"), ErrorCode.LEADER_NOT_AVAILABLE),
        (KafkaError(ErrorCode.REQUEST_TIMED_OUT, "no leader"), ErrorCode.LEADER_NOT_AVAILABLE),
        (KafkaError(ErrorCode.INVALID_REPLICATION_FACTOR, "1 of 3"), ErrorCode.NOT_ENOUGH_REPLICAS),
        (KafkaError(ErrorCode.POLICY_VIOLATION, "no"), ErrorCode.POLICY_VIOLATION),
    ],
    ids=lambda each: each.code.name if isinstance(each, KafkaError) else "",
)
async def test_all_who_wait_for_a_creation_that_fails_hear_that_nothing_was_written(
    monkeypatch: pytest.MonkeyPatch, failure: KafkaError, told: ErrorCode
) -> None:
    """Produces that only waited were answered with 404, which no client tries again."""
    made, controllers = creating(failure, monkeypatch)
    asked = [asyncio.ensure_future(made.for_produce(NAME, 10**15)) for _ in range(3)]
    async with asyncio.timeout(10):
        await controllers.asked_once.wait()
        await asyncio.sleep(0.05)  # the others wait for it by now
        asked[2].cancel()
        await asyncio.sleep(0)
        controllers.go.set()
        answers = await asyncio.gather(*asked, return_exceptions=True)
    assert isinstance(answers.pop(), asyncio.CancelledError)
    for answer in answers:
        assert isinstance(answer, KafkaError)
        assert (answer.code, answer.outcome) == (told, Outcome.NOT_WRITTEN)
        assert failure.message in answer.message
    assert controllers.asked == 1


async def test_a_first_produce_waits_for_its_topic_no_longer_than_it_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A produce waited for a controller (5 s) and leaders (15 s), whatever its timeout was."""
    monkeypatch.setattr(topics, "AUTO_CREATE_MS_MIN", 50)
    failure = KafkaError(ErrorCode.NOT_CONTROLLER, "nobody")
    made, controllers = creating(failure, monkeypatch)
    now_ms = SystemClock().monotonic_ms()
    async with asyncio.timeout(10):
        first = asyncio.ensure_future(made.for_produce(NAME, now_ms + 50))
        await controllers.asked_once.wait()
        patient = asyncio.ensure_future(made.for_produce(NAME, now_ms + 60_000))
        short = asyncio.ensure_future(made.for_produce(NAME, now_ms + 50))
        for hasty in (first, short):
            with pytest.raises(KafkaError) as refused:
                await hasty
            assert refused.value.code is ErrorCode.LEADER_NOT_AVAILABLE
            assert refused.value.outcome is Outcome.NOT_WRITTEN
            assert "in time" in refused.value.message
        assert not patient.done()  # it asks itself, now that the first one gave up
        controllers.go.set()
        with pytest.raises(KafkaError, match="nobody"):
            await patient
    assert controllers.asked == 2


async def test_a_topic_is_unknown_only_once_an_active_controller_had_time_to_say_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While a controller was elected what another broker had just created was a 404 at once."""
    monkeypatch.setattr(topics, "LOOK_AGAIN_S", 0.001)
    asked: list[object] = []

    async def elected_at_the_third() -> int:
        asked.append(None)
        if len(asked) < 3:
            raise KafkaError(ErrorCode.NOT_CONTROLLER, "nobody is active")
        return 7

    async def wait_for(offset: object) -> None:
        asked.append(offset)

    made = requests(loaded=True, newest_offset=elected_at_the_third, wait_for=wait_for)
    async with asyncio.timeout(10):
        await made.catch_up_with(NAME)
    assert asked[-1] == 7


async def test_while_a_controller_is_elected_one_asks_again_for_all_who_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each of them asked all controllers ten times a second, which had to elect one meanwhile."""
    monkeypatch.setattr(topics, "LOOK_AGAIN_S", 0.001)
    asked = 0
    elected = asyncio.Event()

    async def newest_offset() -> int:
        nonlocal asked
        asked += 1
        if asked == 100 + 10:
            elected.set()
        if not elected.is_set():
            raise KafkaError(ErrorCode.NOT_CONTROLLER, "nobody is active")
        return 7

    heard: list[object] = []

    async def wait_for(offset: object) -> None:
        heard.append(offset)

    made = requests(loaded=True, newest_offset=newest_offset, wait_for=wait_for)
    async with asyncio.timeout(10):
        await asyncio.gather(*(made.catch_up_with(NAME) for _ in range(100)))
        assert heard == [7] * 100
        assert asked == 100 + 10
        await made.catch_up_with(NAME)  # what they heard is no answer to who comes later
    assert asked == 100 + 10 + 1
