"""JSON shapes of configs, as Confluent's: a value, where it comes from, and what else was said.

``meaning``, ``expected`` and ``update`` (live | restart) are ours: what a config is for, what it
may be, and what it takes until a new value is in force.
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
    """A config of one resource, in the words of the API."""

    name: str
    value: str
    source: str
    is_default: bool
    is_read_only: bool
    synonyms: Sequence[tuple[str, str]]
    """(value, source) of every place that says something, the one in force first."""
    meaning: str
    expected: str
    update: str


@dataclass(frozen=True, slots=True)
class ConfigOwner:
    """Whose configs they are: how their resources are named."""

    kind: str
    path: tuple[str | int, ...]
    """Below the cluster, without the config's name."""
    crn: str
    """Up to the config's name."""
    fields: tuple[tuple[str, str | int], ...]
    """What a resource says of its owner."""
    shown: str
    """Kafka's way to name it in a message: ``TOPIC flights``."""


def topic_owner(name: str) -> ConfigOwner:
    """A topic."""
    return ConfigOwner(
        "KafkaTopicConfig",
        ("topics", name, "configs"),
        f"topic={name}/config=",
        (("topic_name", name),),
        f"TOPIC {name}",
    )


def broker_owner(broker_id: int) -> ConfigOwner:
    """A broker."""
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
"""All brokers and controllers, and the defaults of topics."""


def config(links: Links, owner: ConfigOwner, facts: ConfigFacts) -> JsonObject:
    """One config of a topic, a broker or the cluster."""
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
