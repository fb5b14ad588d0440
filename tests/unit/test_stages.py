"""Stages as homes and targets reach them: by a peer's answer, in order, and gone where trimmed."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest

from broker.coordinator.home import Missing
from broker.server import stage_leader
from broker.server.peer_codec import join_body, split_body
from broker.server.stages import StageRequests, Stages
from broker.transactions.chunk_records import stage_partition_of
from broker.transactions.home_records import StagedPlace
from broker.transactions.messages import AttemptNamed, TransactionalId
from broker.transactions.stage_messages import StageChunk, encode_stage
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import BrokerId, GroupId, PartitionId
from raft_metadata.common.internal_topics import STAGED_TOPIC
from raft_metadata.image.metadata_image import MetadataImage
from tests.support.one_broker import ME, OTHER, TOPIC, one_broker
from tests.support.one_broker import image as plain_image
from tests.support.stage_world import chunk, place_at
from tests.support.waiting import until
from tests.unit.test_stage_leader import Stage

STAGE = PartitionId(0)
ID = TransactionalId(GroupId(""), "a")


def image(epoch: int, leader: BrokerId = ME) -> MetadataImage:
    """`__staged` with one partition, led here and alone in sync unless another leads."""
    isr = (ME,) if leader == ME else (ME, OTHER)
    plain = plain_image(epoch, isr, leader)
    topic = dataclasses.replace(plain.topics[TOPIC], name=STAGED_TOPIC)
    return dataclasses.replace(plain, topics={TOPIC: topic}, topic_ids={STAGED_TOPIC: TOPIC})


class Peers:
    """A router by which every stage is led by another broker: the one of the test."""

    def __init__(self, stages: Stages) -> None:
        self.stages = stages
        self.kinds: list[int] = []

    async def routed(self, place: Any, attempt: Any, deadline_ms: int, **_: Any) -> Any:
        registration = dataclasses.replace(image(1).topics[TOPIC].partitions[0], leader=OTHER)
        return await attempt(registration, 5_000)

    async def forward(self, _place: Any, _to: Any, kind: int, body: bytes, _ms: int) -> bytes:
        self.kinds.append(kind)
        return join_body(*await self.stages.answer(kind, *split_body(body)))


class Asker:
    """A broker that reads stages, and the one that leads them."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.stages = Stages(stage.ports, stage.here.manager.led_epoch)
        self.peers = Peers(self.stages)
        self.image = image(1)
        self.has_disk = False
        """True: the broker that asks has a replica of the stage, too."""
        self.requests = StageRequests(
            stage.here.config,
            cast("Any", self.peers),
            self.stages,
            cast("Any", self),  # the loader: `image`
            cast("Any", self),  # internal topics: `existing`
            cast("Any", None),
            cast("Any", self),  # the replica manager: `replica`
            stage.times,
        )

    async def existing(self, _name: str) -> Any:
        return self.image.topics[TOPIC]

    def replica(self, place: Any) -> Any:
        return self.stage.here.manager.replica(place) if self.has_disk else None

    def follow(self, new: MetadataImage) -> None:
        self.stage.here.manager.on_metadata_update(new)
        self.stages.on_metadata_update(new)

    async def put(self, sequence: int, targets: int = 1, attempt: str = "1.0") -> None:
        new = chunk("a", sequence, targets=targets, attempt=attempt)
        request = StageChunk(partition=STAGE, chunk=new, timeout_ms=5_000)
        body = join_body(*encode_stage(request))
        answer = await self.peers.forward(None, None, 21, body, 0)
        assert split_body(answer)[0] == {"layout": targets}


@pytest.fixture
async def asker(tmp_path: Path) -> AsyncIterator[Asker]:
    async with one_broker(tmp_path) as here:
        asker = Asker(Stage(here))
        asker.follow(asker.image)
        running = asyncio.create_task(asker.stages.run())
        await until(lambda: asker.stages.find(STAGE).is_ready)
        yield asker
        running.cancel()
        await asyncio.wait([running])


async def test_rule_s9_parts_come_in_the_order_of_attempts_sequences_and_targets(
    asker: Asker,
) -> None:
    await asker.put(1, targets=2)
    await asker.put(0)
    await asker.put(0, attempt="b")
    assert stage_partition_of(ID, "b", 1) == STAGE
    parts = await asker.requests.parts(
        ID, (1, 0), [AttemptNamed("b", 1, 1), AttemptNamed("1.0", 2, 3)], 1_000
    )
    assert not isinstance(parts, Missing)
    assert [(part.source, part.target.partition, part.rows) for part in parts.parts] == [
        (StagedPlace(STAGE, place_at(3)), 0, 1),
        (StagedPlace(STAGE, place_at(2)), 0, 1),
        (StagedPlace(STAGE, place_at(0)), 0, 1),
        (StagedPlace(STAGE, place_at(1)), 1, 1),
    ]
    assert parts.size_bytes == 4 * chunk("a").size_bytes
    lacking = await asker.requests.parts(ID, (1, 0), [AttemptNamed("1.0", 3, 3)], 1_000)
    assert isinstance(lacking, Missing)
    assert "2 of 3 chunks" in lacking.reason


async def test_rule_s10_rows_come_from_the_stages_leader_and_are_gone_where_it_is_trimmed(
    asker: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    for sequence in range(3):
        await asker.put(sequence, targets=2)
    monkeypatch.setattr(stage_leader, "ANSWER_BYTES_MAX", 1)  # each answer holds one record
    places = [StagedPlace(STAGE, place_at(offset)) for offset in (5, 0, 3, 0)]
    before = len(asker.peers.kinds)
    rows = await asker.requests.rows_of(places)
    assert len(asker.peers.kinds) - before == 3
    wanted = [chunk("a", offset // 2, targets=2).targets[offset % 2] for offset in (5, 0, 3, 0)]
    assert list(rows) == wanted
    asker.stage.ports.trimming.move_log_start(
        asker.stages.find(STAGE).place, asker.stages.find(STAGE).epoch, 2
    )
    await asker.stage.start_at(2)
    rows = await asker.requests.rows_of(places)
    assert [one is None for one in rows] == [False, True, False, True]
    with pytest.raises(KafkaError) as caught:
        await asker.requests.rows_of([StagedPlace(STAGE, place_at(6))])
    assert caught.value.code is ErrorCode.OFFSET_NOT_AVAILABLE


async def test_a_place_that_holds_no_rows_any_more_is_an_error_that_may_be_asked_again(
    asker: Asker,
) -> None:
    """An unclean election put something else there: no broker ends because of that."""
    asker.stage.proof.proven = False
    await asker.requests.parts(ID, (1, 0), [AttemptNamed("1.0", 1, 1)], 1_000)  # writes a probe
    with pytest.raises(KafkaError) as caught:
        await asker.requests.rows_of([StagedPlace(STAGE, place_at(0))])
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR


@pytest.mark.parametrize("has_disk", [False, True])
async def test_invariant_t7_another_record_at_the_offset_of_a_lost_one_is_not_taken_for_it(
    asker: Asker, has_disk: bool
) -> None:
    """An unclean election gave the offset to a chunk that may not be decided."""
    asker.follow(image(2))
    await until(lambda: asker.stages.find(STAGE).is_ready)
    await asker.put(0)
    asker.has_disk = has_disk
    before = len(asker.peers.kinds)
    rows = await asker.requests.rows_of(
        [StagedPlace(STAGE, place_at(0)), StagedPlace(STAGE, place_at(0, epoch=2))]
    )
    assert list(rows) == [None, chunk("a", 0).targets[0]]
    assert len(asker.peers.kinds) - before == 1


async def test_attempts_of_all_stages_are_listed(asker: Asker) -> None:
    await asker.put(0)
    ((id_, found),) = await asker.requests.attempts()
    assert (id_, found.attempt_id, found.chunks, found.rows) == (ID, "1.0", 1, 1)


async def test_a_stage_is_led_by_the_newest_image(asker: Asker) -> None:
    await asker.put(0)
    first = asker.stages.find(STAGE)
    asker.follow(image(2))
    second = asker.stages.find(STAGE)
    assert (second is first, first.is_ready, int(second.epoch)) == (False, False, 2)
    await until(lambda: second.is_ready)
    assert len(second.attempts()) == 1
    asker.follow(image(3, OTHER))
    with pytest.raises(KafkaError) as caught:
        asker.stages.find(STAGE)
    assert caught.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_a_malformed_request_of_a_broker_is_refused(asker: Asker) -> None:
    for kind, head in ((21, {"key": []}), (24, {"partition": 0, "places": ["x"]})):
        with pytest.raises(KafkaError) as caught:
            await asker.stages.answer(kind, head, b"")
        assert caught.value.code is ErrorCode.INVALID_REQUEST
