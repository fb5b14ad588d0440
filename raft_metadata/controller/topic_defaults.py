"""The cluster's defaults for topics: controllers' config files and live cluster configs."""

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
    """Partitions of the cluster in all: Kafka's own guideline for one cluster (KIP-578)."""
    partitions_per_batch_max: int = 1_000
    """Partitions recorded by one batch: 270 KB with three replicas each."""

    def static(self) -> Mapping[str, str]:
        """Return the values of the config files, by config name."""
        return {
            NUM_PARTITIONS: text_of(self.num_partitions),
            DEFAULT_REPLICATION_FACTOR: text_of(self.default_replication_factor),
            MIN_INSYNC_REPLICAS: text_of(self.min_insync_replicas),
            FLUSH: self.flush,
            UNCLEAN_LEADER_ELECTION_ENABLE: text_of(self.unclean_leader_election_enable),
        }

    def in_force(self, image: MetadataImage) -> TopicDefaults:
        """Return the defaults with the image's live cluster configs applied."""
        return self.under(image.cluster_configs())

    def under(self, cluster: Mapping[str, str]) -> TopicDefaults:
        """Return the defaults with these cluster configs applied."""
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
    """Return the static configs that decide on eligible leader replicas (invariant P3).

    Brokers acknowledge by their own config files, whose min ISR may be lower than a controller's.
    So the lowest min ISR of any registered broker counts: a replica that is eligible under it holds
    every record that any broker acknowledged. A min ISR that is set live overrides it.
    """
    told = [
        broker.min_insync_replicas
        for broker in image.brokers.values()
        if broker.min_insync_replicas is not None
    ]
    least = min([defaults.min_insync_replicas, *told])
    return {**defaults.static(), MIN_INSYNC_REPLICAS: text_of(least)}


def may_elect_unclean(image: MetadataImage, topic: TopicImage, defaults: TopicDefaults) -> bool:
    """Return True if the topic allows unclean elections.

    Internal topics never do: a default for all topics is not meant for them.
    """
    if topic.name in INTERNAL_TOPICS:
        return False
    static = {UNCLEAN_LEADER_ELECTION_ENABLE: text_of(defaults.unclean_leader_election_enable)}
    return topic_layers(image, topic.topic_id, static).flag(UNCLEAN_LEADER_ELECTION_ENABLE)


def cluster_flag(image: MetadataImage, name: str) -> bool:
    """Return a flag of the whole cluster that is in no config file."""
    return cluster_layers(image, {}).flag(name)


def cluster_number(image: MetadataImage, name: str) -> int:
    """Return a number of the whole cluster that is in no config file."""
    return cluster_layers(image, {}).number(name)
