"""The configs that decide on elections and on the minimum of in-sync replicas, and their defaults.

`TopicDefaults` holds the values of the controllers' config files, with live cluster configs applied
by `in_force`. `TopicRules` answers for one topic of one image; deciders make it once for many of
the topic's partitions.
"""

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
from raft_metadata.image.metadata_image import (
    MetadataImage,
    TopicImage,
    cluster_layers,
    topic_layers,
)


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


def eligibility_defaults(image: MetadataImage, defaults: TopicDefaults) -> Mapping[str, str]:
    """Return the static configs that decide on eligible leader replicas (invariant P3).

    Brokers acknowledge by their own config files, whose min ISR may be lower than a controller's.
    So the lowest min ISR of any registered broker counts: a replica that is eligible under it holds
    every record that any broker acknowledged. A min ISR that is set live overrides it.
    """
    registered = (broker.min_insync_replicas for broker in image.brokers.values())
    least = min((defaults.min_insync_replicas, *registered))
    return {**defaults.static(), MIN_INSYNC_REPLICAS: text_of(least)}


def cluster_flag(image: MetadataImage, name: str) -> bool:
    """Return a flag of the whole cluster that is in no config file."""
    return cluster_layers(image, {}).flag(name)


def cluster_number(image: MetadataImage, name: str) -> int:
    """Return a number of the whole cluster that is in no config file."""
    return cluster_layers(image, {}).number(name)


_PAGE_CACHE = "os"


class TopicRules:
    """The rules of one topic in one image, made once for many of its partitions.

    A value set on the topic is in force, else the cluster's, else that of the config files.
    Computed lazily, because most partitions need none.
    """

    __slots__ = ("_defaults", "_image", "_layers_or_none", "_min_isrs", "_topic")

    def __init__(self, image: MetadataImage, topic: TopicImage, defaults: TopicDefaults) -> None:
        self._image = image
        self._topic = topic
        self._defaults = defaults
        self._layers_or_none: ConfigLayers | None = None
        self._min_isrs: dict[int, int] = {}

    @property
    def _layers(self) -> ConfigLayers:
        layers = self._layers_or_none
        if layers is None:
            static = eligibility_defaults(self._image, self._defaults)
            layers = topic_layers(self._image, self._topic.topic_id, static)
            self._layers_or_none = layers
        return layers

    def min_isr(self, replication_factor: int) -> int:
        """Return the min in-sync replicas in force for a partition with this many replicas."""
        known = self._min_isrs.get(replication_factor)
        if known is None:
            known = self._min_isrs[replication_factor] = self._layers.min_isr(replication_factor)
        return known

    @property
    def has_page_cache_rule(self) -> bool:
        """True with ``flush=os``: users accept that a power failure may lose records."""
        return self._layers.word(FLUSH) == _PAGE_CACHE

    @property
    def may_elect_unclean(self) -> bool:
        """True with ``unclean.leader.election.enable``: a leader matters more than each record.

        Never for internal topics: a default for all topics is not meant for them.
        """
        if self._topic.name in INTERNAL_TOPICS:
            return False
        return self._layers.flag(UNCLEAN_LEADER_ELECTION_ENABLE)
