"""JSON shapes of configs in the v3 API: a value, its source, and the other values that were set.

``meaning``, ``expected`` and ``update`` (live | restart) extend Confluent's fields: the purpose of
a config, its allowed values, and what brings a new value into force.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from http_api.contract.v3 import Links

JsonObject = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigFacts:
    """A config of a resource, named as in the API."""

    name: str
    value: str
    source: str
    is_default: bool
    is_read_only: bool
    synonyms: Sequence[tuple[str, str]]
    """(value, source) of every place where the config is set; the value in force comes first."""
    meaning: str
    expected: str
    update: str


@dataclass(frozen=True, slots=True)
class ConfigOwner:
    """Resource that owns configs, and the names that its configs' resources get."""

    kind: str
    path: tuple[str | int, ...]
    """Path below the cluster, without the config's name."""
    crn: str
    """Resource name up to the config's name."""
    fields: tuple[tuple[str, str | int], ...]
    """Fields of a config that name its owner."""
    shown: str
    """Name of the owner in a message, in Kafka's form: ``TOPIC flights``."""


def topic_owner(name: str) -> ConfigOwner:
    """Return a topic as the owner of configs."""
    return ConfigOwner(
        "KafkaTopicConfig",
        ("topics", name, "configs"),
        f"topic={name}/config=",
        (("topic_name", name),),
        f"TOPIC {name}",
    )


def broker_owner(broker_id: int) -> ConfigOwner:
    """Return a broker as the owner of configs."""
    return ConfigOwner(
        "KafkaBrokerConfig",
        ("brokers", broker_id, "configs"),
        f"broker={broker_id}/config=",
        (("broker_id", broker_id),),
        f"BROKER {broker_id}",
    )


CLUSTER_OWNER = ConfigOwner(
    "KafkaClusterConfig",
    ("broker-configs",),
    "broker-config=",
    (("config_type", "BROKER"),),
    "BROKER ",
)
"""Owner of the configs of all brokers and controllers, and of the defaults of topics."""


def config(links: Links, owner: ConfigOwner, facts: ConfigFacts) -> JsonObject:
    """Return a config of a topic, a broker or the cluster."""
    return {
        "kind": owner.kind,
        "metadata": links.metadata(owner.crn + facts.name, *owner.path, facts.name),
        "cluster_id": links.cluster_id,
        **dict(owner.fields),
        "name": facts.name,
        "value": facts.value,
        "is_default": facts.is_default,
        "is_read_only": facts.is_read_only,
        "is_sensitive": False,
        "source": facts.source,
        "synonyms": [
            {"name": facts.name, "value": value, "source": source}
            for value, source in facts.synonyms
        ],
        "meaning": facts.meaning,
        "expected": facts.expected,
        "update": facts.update,
    }
