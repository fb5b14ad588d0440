"""What a row of the table of configs is: a name, a kind with its range, where it can be set.

Kinds are numbers, ratios, words and flags. A value is text wherever it is stored or sent; ``parse``
reads it and ``text`` writes it, always in the same words.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from typing_extensions import override

from raft_metadata.common.errors import ErrorCode, KafkaError

ConfigValue: TypeAlias = bool | int | float | str

_WHOLE_NUMBER = re.compile(r"-?[0-9]{1,20}")
_FRACTION = re.compile(r"[0-9]{1,3}(\.[0-9]{1,17})?")
_SHOWN_CHARS_MAX = 80


class Scope(Enum):
    """Where an operator can set a config while the cluster runs."""

    TOPIC = "topic"
    CLUSTER = "cluster"
    """The default of every topic, or a setting of all brokers and controllers."""
    BROKER = "broker"
    """On one broker, over the cluster's."""


class Section(Enum):
    """The section of config.toml a node reads the value from at its start."""

    DEFAULTS = "defaults"
    LIMITS = "limits"
    TIMEOUTS = "timeouts"


class Update(Enum):
    """What it takes until a new value is in force."""

    LIVE = "live"
    RESTART = "restart"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    name: str
    """Kafka's way: ``min.insync.replicas``."""
    meaning: str
    section: Section | None = None
    """Where config.toml has it; None: it has not, and can only be set live."""
    scopes: frozenset[Scope] = frozenset()

    @property
    def key(self) -> str:
        """Its key in config.toml: the name with underscores."""
        return self.name.replace(".", "_")

    @property
    def update(self) -> Update:
        """A config that can't be set while the cluster runs is read once, at start."""
        return Update.LIVE if self.scopes else Update.RESTART

    @property
    def expected(self) -> str:
        """What a value must be, for messages and documents."""
        raise NotImplementedError

    def refusal(self, value: object) -> KafkaError:
        """INVALID_CONFIG, with what was expected."""
        shown = repr(value)
        if len(shown) > _SHOWN_CHARS_MAX:
            shown = shown[:_SHOWN_CHARS_MAX] + "…"
        message = f"invalid value {shown} for {self.name}: expected {self.expected}"
        return KafkaError(ErrorCode.INVALID_CONFIG, message)


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberConfig(_Row):
    """A whole number within ``minimum .. maximum``, both included."""

    default: int
    minimum: int
    maximum: int

    @property
    @override
    def expected(self) -> str:
        """See `_Row`."""
        return f"a whole number from {self.minimum} to {self.maximum}"

    def allows(self, value: object) -> bool:
        """Whether a typed value is one of this config's."""
        return type(value) is int and self.minimum <= value <= self.maximum

    def parse(self, text: str) -> int:
        """The number. INVALID_CONFIG names the range."""
        if _WHOLE_NUMBER.fullmatch(text):
            number = int(text)
            if self.allows(number):
                return number
        raise self.refusal(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class RatioConfig(_Row):
    """A share: a number from 0 to 1, written as a decimal fraction."""

    default: float

    @property
    @override
    def expected(self) -> str:
        """See `_Row`."""
        return "a number from 0 to 1"

    def allows(self, value: object) -> bool:
        """Whether a typed value is one of this config's."""
        return isinstance(value, int | float) and type(value) is not bool and 0 <= value <= 1

    def parse(self, text: str) -> float:
        """The share. INVALID_CONFIG names the range."""
        if _FRACTION.fullmatch(text):
            share = float(text)
            if self.allows(share):
                return share
        raise self.refusal(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class WordConfig(_Row):
    """One of a few words."""

    default: str
    choices: tuple[str, ...]

    @property
    @override
    def expected(self) -> str:
        """See `_Row`."""
        return " or ".join(self.choices)

    def allows(self, value: object) -> bool:
        """Whether a typed value is one of this config's."""
        return value in self.choices

    def parse(self, text: str) -> str:
        """The word itself. INVALID_CONFIG names the choices."""
        if text in self.choices:
            return text
        raise self.refusal(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class FlagConfig(_Row):
    """True or false."""

    default: bool

    @property
    @override
    def expected(self) -> str:
        """See `_Row`."""
        return "true or false"

    def allows(self, value: object) -> bool:
        """Whether a typed value is one of this config's."""
        return isinstance(value, bool)

    def parse(self, text: str) -> bool:
        """The flag, in any case of letters. INVALID_CONFIG names the two words."""
        found = {"true": True, "false": False}.get(text.lower())
        if found is None:
            raise self.refusal(text)
        return found


ConfigRow: TypeAlias = NumberConfig | RatioConfig | WordConfig | FlagConfig


def text_of(value: ConfigValue) -> str:
    """How a value is stored and shown: ``true``, ``1048576``, ``0.5``, ``ack``."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return format(value, ".17f").rstrip("0").rstrip(".") if "e" in repr(value) else repr(value)
    return str(value)
