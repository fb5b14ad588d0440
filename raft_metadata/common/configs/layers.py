"""Which of several values of a config is in force, and where each of them came from.

The strongest first: the topic's own, this broker's, the cluster's, the node's config.toml, the
default. Pure; the mappings hold what was *set* there, by name, as text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType

from raft_metadata.common.configs.rows import (
    ConfigRow,
    FlagConfig,
    NumberConfig,
    RatioConfig,
    Update,
    WordConfig,
    text_of,
)
from raft_metadata.common.configs.table import CONFIGS, MIN_INSYNC_REPLICAS

_NOTHING: Mapping[str, str] = MappingProxyType({})


class ConfigSource(Enum):
    """Where a value came from, in the words of Confluent's REST API."""

    DYNAMIC_TOPIC_CONFIG = "DYNAMIC_TOPIC_CONFIG"
    DYNAMIC_BROKER_CONFIG = "DYNAMIC_BROKER_CONFIG"
    DYNAMIC_DEFAULT_BROKER_CONFIG = "DYNAMIC_DEFAULT_BROKER_CONFIG"
    """Set for the whole cluster."""
    STATIC_BROKER_CONFIG = "STATIC_BROKER_CONFIG"
    """The node's config.toml, environment or ``--set``."""
    DEFAULT_CONFIG = "DEFAULT_CONFIG"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigSynonym:
    """One of the values that a config has in several places."""

    name: str
    value: str
    source: ConfigSource


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedConfig:
    """A config as operators are shown it."""

    name: str
    value: str
    source: ConfigSource
    is_read_only: bool
    synonyms: tuple[ConfigSynonym, ...]
    """All places that say something, the one in force first."""

    @property
    def is_default(self) -> bool:
        """Whether nobody has said anything."""
        return self.source is ConfigSource.DEFAULT_CONFIG


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigLayers:
    """What the places say that one resource's configs come from. Leave out what does not count."""

    topic: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    broker: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    cluster: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    static: Mapping[str, str] = field(default_factory=lambda: _NOTHING)

    def said(self, name: str) -> str | None:
        """The strongest value that anybody said, or None."""
        for layer in (self.topic, self.broker, self.cluster, self.static):
            value = layer.get(name)
            if value is not None:
                return value
        return None

    def number(self, name: str) -> int:
        """The number in force."""
        row = CONFIGS[name]
        assert isinstance(row, NumberConfig), name
        value = self.said(name)
        return row.default if value is None else row.parse(value)

    def ratio(self, name: str) -> float:
        """The share in force."""
        row = CONFIGS[name]
        assert isinstance(row, RatioConfig), name
        value = self.said(name)
        return row.default if value is None else row.parse(value)

    def word(self, name: str) -> str:
        """The word in force."""
        row = CONFIGS[name]
        assert isinstance(row, WordConfig), name
        value = self.said(name)
        return row.default if value is None else row.parse(value)

    def flag(self, name: str) -> bool:
        """The flag in force."""
        row = CONFIGS[name]
        assert isinstance(row, FlagConfig), name
        value = self.said(name)
        return row.default if value is None else row.parse(value)

    def min_isr(self, replication_factor: int) -> int:
        """The min in-sync replicas of a topic, of which there are so many.

        A default is capped by the replication factor, so that a topic with one replica can be
        written to in a cluster whose default is two; what a topic says itself is never bent, and
        refused above its replication factor when it is set (rule M8). Never depends on who lives.
        """
        wanted = self.number(MIN_INSYNC_REPLICAS)
        if MIN_INSYNC_REPLICAS in self.topic:
            return wanted
        return max(1, min(wanted, replication_factor))

    def describe(self, row: ConfigRow, *, replication_factor: int | None = None) -> DescribedConfig:
        """The value in force, with all that was said.

        ``replication_factor``: of the topic this is for, whose default min ISR it caps.
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
