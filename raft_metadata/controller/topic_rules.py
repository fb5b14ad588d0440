"""What a topic's configs mean for who may lead, and what counts as enough in-sync replicas."""

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
    """Of one topic in one image; made once for many of its partitions. Asked for little, so lazy.

    What a topic says itself is in force, else what the cluster says, else the configuration.
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
        """The effective min in-sync replicas of a partition with this many replicas."""
        known = self._min_isrs.get(replication_factor)
        if known is None:
            known = self._min_isrs[replication_factor] = self._layers.min_isr(replication_factor)
        return known

    @property
    def has_page_cache_rule(self) -> bool:
        """``flush=os``: what was acknowledged may be gone with the power, and its users know."""
        return self._layers.word(FLUSH) == _PAGE_CACHE

    @property
    def may_elect_unclean(self) -> bool:
        """``unclean.leader.election.enable``: its users want a leader rather than every record."""
        return may_elect_unclean(self._image, self._topic, self._defaults)
