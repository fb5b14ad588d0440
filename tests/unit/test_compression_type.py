"""``compression.type``: set where every broker reads what it stores, and refused by name else."""

from __future__ import annotations

import pytest

from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.records.commands import AlterConfigs, ConfigChange
from raft_metadata.records.feature_levels import COMPRESSED_BATCHES_LEVEL
from raft_metadata.records.records import FeatureLevelRecord, ResourceType
from tests.support.metadata_world import BROKERS, World, registration

NAME = "compression.type"
PLACES = {ResourceType.TOPIC: "t", ResourceType.CLUSTER: ""}


def at_level(level: int) -> World:
    world = World()
    world.append([FeatureLevelRecord(level=level)])
    for broker in BROKERS:
        world.register(registration(broker))
    world.pass_time(200)
    world.create(assignments={0: (1, 2, 3)})
    return world


def alter(world: World, kind: ResourceType, value: str | None) -> None:
    change = ConfigChange(resource_type=kind, resource_name=PLACES[kind], name=NAME, value=value)
    world.ask(AlterConfigs(changes=(change,)))


@pytest.mark.parametrize("kind", PLACES)
def test_zstd_waits_until_every_node_runs_a_version_that_reads_it(kind: ResourceType) -> None:
    world = at_level(COMPRESSED_BATCHES_LEVEL - 1)
    for ask in (
        lambda: alter(world, kind, "zstd"),
        lambda: world.create("u", 2, assignments={0: (1, 2, 3)}, configs={NAME: "zstd"}),
    ):
        before = world.image
        with pytest.raises(
            KafkaError, match=r"needs metadata\.version 4, the cluster is at 3"
        ) as no:
            ask()
        assert no.value.code is ErrorCode.POLICY_VIOLATION
        assert world.image is before
    alter(world, kind, "producer")
    alter(world, kind, None)
    world.append([FeatureLevelRecord(level=COMPRESSED_BATCHES_LEVEL)])
    alter(world, kind, "zstd")
    world.create("u", 2, assignments={0: (1, 2, 3)}, configs={NAME: "zstd"})


@pytest.mark.parametrize("value", ["gzip", "lz4", "snappy", "none", "ZSTD", ""])
def test_other_codecs_are_refused_with_what_is_taken(value: str) -> None:
    world = at_level(COMPRESSED_BATCHES_LEVEL)
    with pytest.raises(KafkaError, match="expected uncompressed or producer or zstd") as no:
        alter(world, ResourceType.TOPIC, value)
    assert no.value.code is ErrorCode.INVALID_CONFIG
