"""Any sequence of changes of configs: what is in force equals a plain model of it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from raft_metadata.common.configs.rows import (
    ListConfig,
    NumberConfig,
    RatioConfig,
    Scope,
    WordConfig,
    text_of,
)
from raft_metadata.common.configs.table import (
    CONFIGS,
    DEFAULT_REPLICATION_FACTOR,
    MIN_INSYNC_REPLICAS,
)
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import BrokerId
from raft_metadata.image.metadata_image import topic_layers
from raft_metadata.image.snapshot import image_from_records, image_records
from raft_metadata.records.commands import AlterConfigs, ConfigChange
from raft_metadata.records.records import ResourceType
from tests.support.metadata_world import BROKERS, World, topic_id

LIVE = sorted(row.name for row in CONFIGS.values() if row.scopes)
REPLICAS = {"one": 1, "three": 3}
"""Topics, by how many replicas they have."""
PLACES = [
    (ResourceType.TOPIC, "one"),
    (ResourceType.TOPIC, "three"),
    (ResourceType.BROKER, "1"),
    (ResourceType.CLUSTER, ""),
]
SCOPES = {
    ResourceType.TOPIC: Scope.TOPIC,
    ResourceType.BROKER: Scope.BROKER,
    ResourceType.CLUSTER: Scope.CLUSTER,
}


def values(name: str) -> st.SearchStrategy[str | None]:
    row = CONFIGS[name]
    wrong = st.sampled_from(["", "x", "-1", "1e9"])
    if name in {MIN_INSYNC_REPLICAS, DEFAULT_REPLICATION_FACTOR}:
        right: st.SearchStrategy[str] = st.integers(1, 4).map(str)
    elif isinstance(row, NumberConfig):
        right = st.integers(row.minimum, row.maximum).map(str)
    elif isinstance(row, RatioConfig):
        right = st.sampled_from(["0", "0.25", "1.0", "1"])
    elif isinstance(row, WordConfig):
        right = st.sampled_from(row.choices)
    elif isinstance(row, ListConfig):
        right = st.sampled_from(["*", "http://a, https://b:8443", "http://[::1]"])
        right = right if row.name == "cors.allowed.origins" else st.sampled_from(["a", "a, b"])
        wrong = st.sampled_from(["a b", ",", "\x00"])
    else:
        right = st.sampled_from(["true", "false", "TRUE"])
    return st.none() | right | right | right | wrong


changes = st.sampled_from(LIVE).flatmap(
    lambda name: st.tuples(st.sampled_from(PLACES), st.just(name), values(name))
)


class Configs(RuleBasedStateMachine):
    """The model: per place a dict, folded change by change, and the rules said again in words."""

    @initialize()
    def begin(self) -> None:
        self.world = World()
        self.world.decide_all()
        self.world.join(*BROKERS)
        self.world.create("one", 1, assignments={0: (1,)})
        self.world.create("three", 2, assignments={0: (1, 2, 3)})
        self.model: dict[Any, dict[str, str]] = {place: {} for place in PLACES}
        self.static = {k: str(v) for k, v in self.world.config.defaults.static().items()}

    @rule(asked=st.lists(changes, min_size=1, max_size=4), validate_only=st.booleans())
    def alter(self, asked: list[Any], validate_only: bool) -> None:
        command = AlterConfigs(
            changes=tuple(
                ConfigChange(resource_type=kind, resource_name=of, name=name, value=value)
                for (kind, of), name, value in asked
            ),
            validate_only=validate_only,
        )
        after = self.expected(asked)
        before = self.world.image
        if after is None:
            with pytest.raises(KafkaError) as refused:
                self.world.ask(command)
            assert refused.value.code in {ErrorCode.INVALID_CONFIG, ErrorCode.INVALID_REQUEST}
            assert self.world.image is before
            return
        self.world.ask(command)
        if not validate_only:
            self.model = after

    @rule(broker=st.sampled_from(BROKERS[1:]))
    def a_broker_dies_and_comes_back(self, broker: BrokerId) -> None:
        self.world.kill(broker)
        self.world.join(broker, life=str(self.world.now_ms))

    def expected(self, asked: list[Any]) -> dict[Any, dict[str, str]] | None:
        """The model after these changes; None where one of them must be refused."""
        if len({(place, name) for place, name, _ in asked}) < len(asked):
            return None
        after = {place: dict(configs) for place, configs in self.model.items()}
        for place, name, value in asked:
            row = CONFIGS[name]
            if SCOPES[place[0]] not in row.scopes:
                return None
            after[place].pop(name, None)
            if value is not None:
                try:
                    after[place][name] = text_of(row.parse(value))
                except KafkaError:
                    return None
        touched = {place for place, _, _ in asked}
        for topic, replicas in REPLICAS.items():
            own = after[ResourceType.TOPIC, topic].get(MIN_INSYNC_REPLICAS)
            if own is not None and int(own) > replicas:
                return None
        cluster = self.static | after[ResourceType.CLUSTER, ""]
        wrong = int(cluster[MIN_INSYNC_REPLICAS]) > int(cluster[DEFAULT_REPLICATION_FACTOR])
        return None if wrong and (ResourceType.CLUSTER, "") in touched else after

    @invariant()
    def what_is_in_force_is_what_the_model_says(self) -> None:
        if not hasattr(self, "world"):
            return
        for number, (topic, replicas) in enumerate(REPLICAS.items(), 1):
            layers = topic_layers(self.world.image, topic_id(number), self.static, BrokerId(1))
            own = self.model[ResourceType.TOPIC, topic]
            chain = self.static | self.model[ResourceType.CLUSTER, ""]
            chain = chain | self.model[ResourceType.BROKER, "1"] | own
            for row in CONFIGS.values():
                if Scope.TOPIC in row.scopes:
                    assert layers.describe(row).value == chain.get(row.name, text_of(row.default))
            wanted = int(chain[MIN_INSYNC_REPLICAS])
            capped = wanted if MIN_INSYNC_REPLICAS in own else min(wanted, replicas)
            assert layers.min_isr(replicas) == capped

    @invariant()
    def a_snapshot_is_the_same_image(self) -> None:
        if hasattr(self, "world"):
            image = self.world.image
            again = image_from_records(image_records(image), image.next_offset, image.epoch)
            assert again == image


TestConfigs = Configs.TestCase
TestConfigs.settings = settings(max_examples=25, stateful_step_count=15, deadline=None)
