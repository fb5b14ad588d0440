"""Partitions of the keyless rows of a write that has a name: the same for its repeats."""

from __future__ import annotations

import pytest

from broker.server.row_targets import seeded_keyless
from raft_metadata.common.ids import TopicName
from raft_metadata.common.record_placement import Partitioner
from raft_metadata.image.metadata_image import TopicImage
from tests.support.fake_broker_apis import FakeBrokerApis


def topic(*leaderless: int) -> TopicImage:
    apis = FakeBrokerApis()
    apis.add_topic("t", 6)
    for number in leaderless:
        apis.change_partition("t", number, leader=-1)
    found = apis.image.topic(TopicName("t"))
    assert found is not None
    return found


def places(name: str, partitioner: Partitioner, image: TopicImage) -> list[int]:
    following = seeded_keyless(name, partitioner)(image)
    return [following() for _ in range(12)]


@pytest.mark.parametrize("partitioner", Partitioner)
def test_a_repeat_gives_its_rows_the_same_partitions(partitioner: Partitioner) -> None:
    assert places("key:a", partitioner, topic()) == places("key:a", partitioner, topic())


def test_one_partition_or_each_in_turn() -> None:
    assert len(set(places("key:a", Partitioner.STICKY, topic()))) == 1
    assert sorted(places("key:a", Partitioner.ROUND_ROBIN, topic())) == sorted([*range(6)] * 2)
    chosen = {places(f"key:{n}", Partitioner.STICKY, topic())[0] for n in range(60)}
    assert chosen == set(range(6)), "writes spread"


@pytest.mark.parametrize("partitioner", Partitioner)
def test_a_partition_without_a_leader_is_passed_by(partitioner: Partitioner) -> None:
    image = topic(0, 2, 3)
    for number in range(40):
        assert set(places(f"key:{number}", partitioner, image)) <= {1, 4, 5}
