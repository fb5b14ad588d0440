"""The rows of the table of configs: a name, a kind with its range, the scopes it can be set in.

Kinds are numbers, ratios, words, flags and lists. A value is text wherever it is stored or sent;
``parse`` reads it and `text_of` writes it, always in the same form.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeAlias, TypeVar

from typing_extensions import override

from raft_metadata.common.errors import ErrorCode, KafkaError

ConfigValue: TypeAlias = bool | int | float | str

_WHOLE_NUMBER = re.compile(r"-?[0-9]{1,20}")
_FRACTION = re.compile(r"[0-9]{1,3}(\.[0-9]{1,17})?")
_UNITS = {
    ".ms": "milliseconds",
    ".bytes": "bytes",
    ".size": "bytes",
    ".bytes.per.second": "bytes per second",
    ".rate": "bytes per second",
}
"""End of a config's name → the unit of its number."""
_SHOWN_CHARS_MAX = 80


class Scope(Enum):
    """A kind of resource on which an operator can set a config while the cluster runs."""

    TOPIC = "topic"
    CLUSTER = "cluster"
    """The default of every topic, or a setting of all brokers and controllers."""
    BROKER = "broker"
    """On one broker, overriding the cluster's value."""


class Section(Enum):
    """The section of config.toml that a node reads the value from at its start."""

    DEFAULTS = "defaults"
    LIMITS = "limits"
    TIMEOUTS = "timeouts"


class Update(Enum):
    """The step after which a new value is in force: none, or a restart of the node."""

    LIVE = "live"
    RESTART = "restart"


V = TypeVar("V", bound=ConfigValue)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigKind(Generic[V]):
    """A row with values of type ``V``; each kind defines which of them are allowed."""

    name: str
    """The name in Kafka's spelling: ``min.insync.replicas``."""
    meaning: str
    section: Section | None = None
    """Its section of config.toml; None: it is not in that file and can only be set live."""
    scopes: frozenset[Scope] = frozenset()
    default: V

    @property
    def key(self) -> str:
        """The key in config.toml: the name with underscores."""
        return self.name.replace(".", "_")

    @property
    def update(self) -> Update:
        """LIVE if the config can be set while the cluster runs, else RESTART."""
        return Update.LIVE if self.scopes else Update.RESTART

    @property
    def expected(self) -> str:
        """A description of the allowed values, for messages and documents."""
        raise NotImplementedError

    def parse(self, text: str) -> V:
        """Return the value of a text; raise INVALID_CONFIG, which names what is allowed."""
        raise NotImplementedError

    def refusal(self, value: object) -> KafkaError:
        """Return INVALID_CONFIG with the value (80 characters at most) and what is allowed."""
        shown = repr(value)
        if len(shown) > _SHOWN_CHARS_MAX:
            shown = shown[:_SHOWN_CHARS_MAX] + "…"
        message = f"invalid value {shown} for {self.name}: expected {self.expected}"
        return KafkaError(ErrorCode.INVALID_CONFIG, message)


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberConfig(ConfigKind[int]):
    """A whole number within ``minimum .. maximum``, both included."""

    minimum: int
    maximum: int

    @property
    @override
    def expected(self) -> str:
        """The range in words, with the unit."""
        text = f"a whole number from {self.bounds}"
        return text if self.unit is None else f"{text}, in {self.unit}"

    @property
    def bounds(self) -> str:
        """The least and the largest value."""
        return f"{self.minimum} to {self.maximum}"

    @property
    def unit(self) -> str | None:
        """The unit of the number, by the end of the config's name; None: it counts items."""
        return next((unit for end, unit in _UNITS.items() if self.name.endswith(end)), None)

    def allows(self, value: object) -> bool:
        """Return True for an int within the range."""
        return type(value) is int and self.minimum <= value <= self.maximum

    @override
    def parse(self, text: str) -> int:
        if _WHOLE_NUMBER.fullmatch(text):
            number = int(text)
            if self.allows(number):
                return number
        raise self.refusal(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class RatioConfig(ConfigKind[float]):
    """A share: a number from 0 to 1, written as a decimal fraction."""

    @property
    @override
    def expected(self) -> str:
        """The range in words."""
        return "a number from 0 to 1"

    def allows(self, value: object) -> bool:
        """Return True for a number from 0 to 1 that is not a bool."""
        return isinstance(value, int | float) and type(value) is not bool and 0 <= value <= 1

    @override
    def parse(self, text: str) -> float:
        if _FRACTION.fullmatch(text):
            share = float(text)
            if self.allows(share):
                return share
        raise self.refusal(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class WordConfig(ConfigKind[str]):
    """A choice among a few fixed words."""

    choices: tuple[str, ...]

    @property
    @override
    def expected(self) -> str:
        """The choices in words."""
        return " or ".join(self.choices)

    def allows(self, value: object) -> bool:
        """Return True for one of the choices."""
        return value in self.choices

    @override
    def parse(self, text: str) -> str:
        if text in self.choices:
            return text
        raise self.refusal(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class FlagConfig(ConfigKind[bool]):
    """A flag: true or false."""

    @property
    @override
    def expected(self) -> str:
        """The two accepted words, for refusals."""
        return "true or false"

    def allows(self, value: object) -> bool:
        """Return True for a bool."""
        return isinstance(value, bool)

    @override
    def parse(self, text: str) -> bool:
        """Return the flag, in any letter case."""
        found = {"true": True, "false": False}.get(text.lower())
        if found is None:
            raise self.refusal(text)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class ListConfig(ConfigKind[str]):
    """A list of items with commas between them; empty by default."""

    item: str
    """Regular expression of an item."""
    items_max: int
    items: str
    """The items in words, for messages and documents."""

    @property
    @override
    def expected(self) -> str:
        """The items in words, with their limit."""
        return f"at most {self.items_max} {self.items}, with commas between them, or nothing"

    def allows(self, value: object) -> bool:
        """Return True for a text that `parse` accepts."""
        if not isinstance(value, str):
            return False
        found = self.split(value)
        return len(found) <= self.items_max and all(re.fullmatch(self.item, one) for one in found)

    @override
    def parse(self, text: str) -> str:
        """Return the items without spaces around them."""
        if not self.allows(text):
            raise self.refusal(text)
        return ",".join(self.split(text))

    @staticmethod
    def split(text: str) -> tuple[str, ...]:
        """Return the items of a text."""
        return tuple(one.strip() for one in text.split(",")) if text.strip() else ()


ConfigRow: TypeAlias = NumberConfig | RatioConfig | WordConfig | FlagConfig | ListConfig


def text_of(value: ConfigValue) -> str:
    """Return a value as it is stored and shown: ``true``, ``1048576``, ``0.5``, ``ack``."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return format(value, ".17f").rstrip("0").rstrip(".") if "e" in repr(value) else repr(value)
    return str(value)
