"""The config layers of a topic, a broker or the cluster, taken from an image.

``common.configs.layers`` chooses between the layers. ``static`` holds the values of the calling
node's own config.toml, by config name: a broker passes ``BrokerConfig.static``, a controller
``TopicDefaults.static``.
"""

from __future__ import annotations

from collections.abc import Mapping

from raft_metadata.common.configs.layers import ConfigLayers
from raft_metadata.common.ids import BrokerId, TopicId
from raft_metadata.common.internal_topics import INTERNAL_DEFAULTS, INTERNAL_TOPICS
from raft_metadata.image.metadata_image import MetadataImage


def topic_layers(
    image: MetadataImage,
    topic_id: TopicId,
    static: Mapping[str, str],
    broker_id: BrokerId | None = None,
) -> ConfigLayers:
    """Return the layers of a topic, on this broker if one is given, else without broker configs."""
    broker = {} if broker_id is None else image.broker_configs(broker_id)
    topic = image.topic_configs(topic_id)
    known = image.topics.get(topic_id)
    if known is not None and known.name in INTERNAL_TOPICS:
        topic = {**INTERNAL_DEFAULTS, **topic}
    return ConfigLayers(
        topic=topic,
        broker=broker,
        cluster=image.cluster_configs(),
        static=static,
    )


def broker_layers(
    image: MetadataImage, broker_id: BrokerId, static: Mapping[str, str]
) -> ConfigLayers:
    """Return the layers of a broker."""
    return ConfigLayers(
        broker=image.broker_configs(broker_id), cluster=image.cluster_configs(), static=static
    )


def cluster_layers(image: MetadataImage, static: Mapping[str, str]) -> ConfigLayers:
    """Return the layers of the cluster."""
    return ConfigLayers(cluster=image.cluster_configs(), static=static)
