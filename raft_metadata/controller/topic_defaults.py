"""What the cluster says of topics that say nothing themselves: config files and live defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from raft_metadata.common.configs.layers import ConfigLayers
from raft_metadata.common.configs.rows import text_of
from raft_metadata.common.configs.table import (
    DEFAULT_REPLICATION_FACTOR,
    FLUSH,
    MIN_INSYNC_REPLICAS,
    NUM_PARTITIONS,
    UNCLEAN_LEADER_ELECTION_ENABLE,
)
from raft_metadata.common.internal_topics import INTERNAL_TOPICS
from raft_metadata.image.config_layers import cluster_layers, topic_layers
from raft_metadata.image.metadata_image import MetadataImage, TopicImage


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDefaults:
    """The defaults and limits for topics, from the controllers' config files (rule M8)."""

    num_partitions: int = 1
    default_replication_factor: int = 1
    min_insync_replicas: int = 1
    flush: str = "ack"
    unclean_leader_election_enable: bool = False
    partitions_per_topic_max: int = 10_000
    partitions_max: int = 200_000
    """All partitions of the cluster: Kafka's own guideline for one cluster (KIP-578)."""
    partitions_per_batch_max: int = 1_000
    """Partitions recorded by one batch: 270 KB of them at three replicas."""

    def static(self) -> Mapping[str, str]:
        """What the config files say, by config name."""
        return {
            NUM_PARTITIONS: text_of(self.num_partitions),
            DEFAULT_REPLICATION_FACTOR: text_of(self.default_replication_factor),
            MIN_INSYNC_REPLICAS: text_of(self.min_insync_replicas),
            FLUSH: self.flush,
            UNCLEAN_LEADER_ELECTION_ENABLE: text_of(self.unclean_leader_election_enable),
        }

    def in_force(self, image: MetadataImage) -> TopicDefaults:
        """With what was set live for the whole cluster on top."""
        return self.under(image.cluster_configs())

    def under(self, cluster: Mapping[str, str]) -> TopicDefaults:
        """With these cluster configs on top."""
        if not cluster:
            return self
        layers = ConfigLayers(cluster=cluster, static=self.static())
        return replace(
            self,
            num_partitions=layers.number(NUM_PARTITIONS),
            default_replication_factor=layers.number(DEFAULT_REPLICATION_FACTOR),
            min_insync_replicas=layers.number(MIN_INSYNC_REPLICAS),
            flush=layers.word(FLUSH),
            unclean_leader_election_enable=layers.flag(UNCLEAN_LEADER_ELECTION_ENABLE),
        )


def defaults_in_books(image: MetadataImage, defaults: TopicDefaults) -> Mapping[str, str]:
    """What nodes' files say, as the books of eligible replicas must take it (invariant P3).

    Brokers acknowledge by their own files, which may say less than a controller's. So the least min
    ISR of any registered broker counts: whoever counts as eligible under it holds what any of them
    acknowledged. It never counts for more than that, and not at all where one is set live.
    """
    told = [
        broker.min_insync_replicas
        for broker in image.brokers.values()
        if broker.min_insync_replicas is not None
    ]
    least = min([defaults.min_insync_replicas, *told])
    return {**defaults.static(), MIN_INSYNC_REPLICAS: text_of(least)}


def may_elect_unclean(image: MetadataImage, topic: TopicImage, defaults: TopicDefaults) -> bool:
    """Whether a topic prefers a leader that may lack acknowledged records to none.

    The cluster's own topics never do: a default for everybody was not meant for them.
    """
    if topic.name in INTERNAL_TOPICS:
        return False
    static = {UNCLEAN_LEADER_ELECTION_ENABLE: text_of(defaults.unclean_leader_election_enable)}
    return topic_layers(image, topic.topic_id, static).flag(UNCLEAN_LEADER_ELECTION_ENABLE)


def cluster_flag(image: MetadataImage, name: str) -> bool:
    """A flag of the whole cluster that no config file holds."""
    return cluster_layers(image, {}).flag(name)


def cluster_number(image: MetadataImage, name: str) -> int:
    """A number of the whole cluster that no config file holds."""
    return cluster_layers(image, {}).number(name)
