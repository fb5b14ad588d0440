"""The configs of a topic that decide on elections and on the minimum of in-sync replicas."""

from __future__ import annotations

from raft_metadata.common.configs.layers import ConfigLayers
from raft_metadata.common.configs.table import FLUSH
from raft_metadata.controller.topic_defaults import (
    TopicDefaults,
    defaults_in_books,
    may_elect_unclean,
)
from raft_metadata.image.config_layers import topic_layers
from raft_metadata.image.metadata_image import MetadataImage, TopicImage

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
            static = defaults_in_books(self._image, self._defaults)
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
        """True with ``unclean.leader.election.enable``: a leader matters more than each record."""
        return may_elect_unclean(self._image, self._topic, self._defaults)
