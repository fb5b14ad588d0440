"""``compression.type``: the values that are taken, and others refused by name."""

from __future__ import annotations

import pytest

from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.records.commands import AlterConfigs, ConfigChange
from raft_metadata.records.feature_levels import SUPPORTED_FEATURE_LEVEL
from raft_metadata.records.records import FeatureLevelRecord, ResourceType
from tests.support.metadata_world import BROKERS, World, registration

NAME = "compression.type"
PLACES = {ResourceType.TOPIC: "t", ResourceType.CLUSTER: ""}


def running() -> World:
    world = World()
    world.append((FeatureLevelRecord(level=SUPPORTED_FEATURE_LEVEL),))
    for broker in BROKERS:
        world.register(registration(broker))
    world.pass_time(200)
    world.create(assignments={0: (1, 2, 3)})
    return world


def alter(world: World, kind: ResourceType, value: str | None) -> None:
    change = ConfigChange(resource_type=kind, resource_name=PLACES[kind], name=NAME, value=value)
    world.ask(AlterConfigs(changes=(change,)))


@pytest.mark.parametrize("kind", PLACES)
def test_zstd_and_producer_are_taken_everywhere(kind: ResourceType) -> None:
    world = running()
    for value in ("producer", None, "zstd"):
        alter(world, kind, value)
    world.create("u", 2, assignments={0: (1, 2, 3)}, configs={NAME: "zstd"})


@pytest.mark.parametrize("value", ["gzip", "lz4", "snappy", "none", "ZSTD", ""])
def test_other_codecs_are_refused_with_what_is_taken(value: str) -> None:
    world = running()
    with pytest.raises(KafkaError, match="expected uncompressed or producer or zstd") as no:
        alter(world, ResourceType.TOPIC, value)
    assert no.value.code is ErrorCode.INVALID_CONFIG
