"""The value of a config that is in force, and the source of every value that is set.

Layers, the strongest first: the topic's own, this broker's, the cluster's, the node's config.toml,
the default. Brokers and controllers build a `ConfigLayers` per resource and read from it. Pure; the
mappings hold only values that were *set* in that layer, by name, as text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType

from raft_metadata.common.configs.rows import (
    ConfigKind,
    ConfigRow,
    FlagConfig,
    ListConfig,
    NumberConfig,
    RatioConfig,
    Update,
    V,
    WordConfig,
    text_of,
)
from raft_metadata.common.configs.table import MIN_INSYNC_REPLICAS, row_of

_NO_VALUES: Mapping[str, str] = MappingProxyType({})


class ConfigSource(Enum):
    """The layer a value came from, in the words of Confluent's REST API."""

    DYNAMIC_TOPIC_CONFIG = "DYNAMIC_TOPIC_CONFIG"
    DYNAMIC_BROKER_CONFIG = "DYNAMIC_BROKER_CONFIG"
    DYNAMIC_DEFAULT_BROKER_CONFIG = "DYNAMIC_DEFAULT_BROKER_CONFIG"
    """Set by an operator for the whole cluster."""
    STATIC_BROKER_CONFIG = "STATIC_BROKER_CONFIG"
    """The node's config.toml, environment or ``--set``."""
    DEFAULT_CONFIG = "DEFAULT_CONFIG"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigSynonym:
    """A value that one layer sets for a config."""

    name: str
    value: str
    source: ConfigSource


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedConfig:
    """A config as it is shown to operators."""

    name: str
    value: str
    source: ConfigSource
    is_read_only: bool
    synonyms: tuple[ConfigSynonym, ...]
    """The values of all layers that set one, and the default; the one in force first."""

    @property
    def is_default(self) -> bool:
        """True if no layer sets this config."""
        return self.source is ConfigSource.DEFAULT_CONFIG


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigLayers:
    """The values that each layer sets for one resource; omit layers that don't apply."""

    topic: Mapping[str, str] = field(default_factory=lambda: _NO_VALUES)
    broker: Mapping[str, str] = field(default_factory=lambda: _NO_VALUES)
    cluster: Mapping[str, str] = field(default_factory=lambda: _NO_VALUES)
    static: Mapping[str, str] = field(default_factory=lambda: _NO_VALUES)

    def strongest_value(self, name: str) -> str | None:
        """Return the value of the strongest layer that sets this config, or None."""
        for layer in (self.topic, self.broker, self.cluster, self.static):
            value = layer.get(name)
            if value is not None:
                return value
        return None

    def number(self, name: str) -> int:
        """Return the number in force."""
        return self._in_force(row_of(name, NumberConfig))

    def ratio(self, name: str) -> float:
        """Return the share in force, from 0 to 1."""
        return self._in_force(row_of(name, RatioConfig))

    def word(self, name: str) -> str:
        """Return the word in force."""
        return self._in_force(row_of(name, WordConfig))

    def flag(self, name: str) -> bool:
        """Return the flag in force."""
        return self._in_force(row_of(name, FlagConfig))

    def items(self, name: str) -> tuple[str, ...]:
        """Return the items of the list in force."""
        return ListConfig.split(self._in_force(row_of(name, ListConfig)))

    def _in_force(self, row: ConfigKind[V]) -> V:
        value = self.strongest_value(row.name)
        return row.default if value is None else row.parse(value)

    def min_isr(self, replication_factor: int) -> int:
        """Return the min in-sync replicas of a topic with this replication factor.

        A default is capped by the replication factor, so that a topic with one replica can be
        written to in a cluster whose default is two. A topic's own value is never capped: one above
        its replication factor is refused when it is set (rule M8). The result never depends on
        which brokers are alive.
        """
        wanted = self.number(MIN_INSYNC_REPLICAS)
        if MIN_INSYNC_REPLICAS in self.topic:
            return wanted
        return max(1, min(wanted, replication_factor))

    def describe(self, row: ConfigRow, *, replication_factor: int | None = None) -> DescribedConfig:
        """Return the value in force, with the values of all layers.

        ``replication_factor``: that of the topic this is for; caps the default of its min ISR.
        """
        synonyms = tuple(self._synonyms(row))
        value = synonyms[0].value
        if row.name == MIN_INSYNC_REPLICAS and replication_factor is not None:
            value = text_of(self.min_isr(replication_factor))
        return DescribedConfig(
            name=row.name,
            value=value,
            source=synonyms[0].source,
            is_read_only=row.update is Update.RESTART,
            synonyms=synonyms,
        )

    def _synonyms(self, row: ConfigRow) -> Iterator[ConfigSynonym]:
        for layer, source in (
            (self.topic, ConfigSource.DYNAMIC_TOPIC_CONFIG),
            (self.broker, ConfigSource.DYNAMIC_BROKER_CONFIG),
            (self.cluster, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
            (self.static, ConfigSource.STATIC_BROKER_CONFIG),
        ):
            value = layer.get(row.name)
            if value is not None:
                yield ConfigSynonym(name=row.name, value=value, source=source)
        default = text_of(row.default)
        yield ConfigSynonym(name=row.name, value=default, source=ConfigSource.DEFAULT_CONFIG)
