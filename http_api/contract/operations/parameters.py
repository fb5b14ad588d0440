"""Query parameters and request headers of operations: their declarations, which read the values.

A declaration states name, values, default and meaning once. Routes read a value with the
declaration's `read`, which words the refusal of a wrong one; `document.py` renders the same
declaration into ``/openapi.json``. Where a bound is configured, the declaration holds the name of
the limit (a field of the broker's limits), and its value is looked up when it is needed.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import override

from http_api.contract.errors import RestCode, RestError, excerpt

if TYPE_CHECKING:
    from collections.abc import Mapping

INT32_MAX: Final = 2**31 - 1
"""Largest partition number, broker id or epoch."""
OFFSET_MAX: Final = 10**18 - 1
"""Largest offset or timestamp that any path takes."""
_INTEGER = re.compile(r"-?[0-9]{1,18}")
"""At most 18 digits, which always fit into 64 bits."""
_FLAGS = {"true": True, "false": False}

Bound = int | str
"""A number, or the name of a limit."""


def bad_parameter(name: str, value: str | None, expected: str) -> RestError:
    """Return the 400 for a query parameter; ``value`` None: the parameter is missing."""
    got = "is missing" if value is None else f"is '{excerpt(value)}'"
    return RestError(
        400, RestCode.KAFKA_BAD_REQUEST, f"Parameter '{name}' {got}: expected {expected}"
    )


def parse_integer(raw: str) -> int | None:
    """Return the number that ``raw`` spells in decimal (at most 18 digits), or None."""
    return int(raw) if _INTEGER.fullmatch(raw) else None


def bound_value(bound: Bound, limits: object) -> int:
    """Return a bound as a number; a name is looked up in ``limits``."""
    return bound if isinstance(bound, int) else int(getattr(limits, bound))


@dataclass(frozen=True, slots=True)
class Parameter(ABC):
    """Query parameter or request header of an operation. Immutable; shared by operations."""

    name: str
    _: KW_ONLY
    description: str
    """Sentences for the reader of the document; the first begins with a capital letter."""
    example: str | int | bool
    is_needed: bool = False
    """A request without it is refused."""

    @abstractmethod
    def schema(self, limits: object) -> dict[str, Any]:
        """Return the JSON Schema of its values, with configured bounds as in ``limits``."""


@dataclass(frozen=True, slots=True)
class IntegerParameter(Parameter):
    """Integer in decimal within bounds."""

    _: KW_ONLY
    minimum: int = 0
    maximum: Bound = OFFSET_MAX
    default: int | None = None
    """Value where the parameter is absent; one above `maximum` means the maximum."""

    def read(self, query: Mapping[str, str], limits: object = None) -> int:
        """Return the value, or the default.

        Raises:
            RestError: 400/40002 for a value out of bounds, or none where there is no default.
        """
        value = self.read_optional(query, limits)
        if value is not None:
            return value
        if self.default is None:
            raise self._refusal(None, limits)
        return self.default_value(limits)

    def read_optional(self, query: Mapping[str, str], limits: object = None) -> int | None:
        """Return the value, None if it is absent; raises as `read` for a wrong one."""
        raw = query.get(self.name)
        if raw is None:
            return None
        value = parse_integer(raw)
        if value is None or not self.minimum <= value <= bound_value(self.maximum, limits):
            raise self._refusal(raw, limits)
        return value

    def default_value(self, limits: object = None) -> int:
        """Return the default, at most the maximum. The declaration must have one."""
        assert self.default is not None, f"parameter {self.name} has no default"
        return min(self.default, bound_value(self.maximum, limits))

    def _refusal(self, raw: str | None, limits: object) -> RestError:
        high = bound_value(self.maximum, limits)
        return bad_parameter(self.name, raw, f"an integer from {self.minimum} to {high}")

    @override
    def schema(self, limits: object) -> dict[str, Any]:
        high = bound_value(self.maximum, limits)
        found = {"type": "integer", "format": "int64", "minimum": self.minimum, "maximum": high}
        return found if self.default is None else found | {"default": self.default_value(limits)}


@dataclass(frozen=True, slots=True)
class ClampedParameter(Parameter):
    """Integer that is clamped to its bounds, as in Confluent's proxy; negative means absent."""

    _: KW_ONLY
    minimum: int
    maximum: Bound

    def read_optional(self, query: Mapping[str, str], limits: object) -> int | None:
        """Return the value within its bounds; None: absent or negative.

        Raises:
            RestError: 400/40002 for a value that is no integer.
        """
        raw = query.get(self.name)
        if raw is None:
            return None
        value = parse_integer(raw)
        if value is None:
            raise bad_parameter(self.name, raw, "an integer")
        if value < 0:
            return None
        return max(self.minimum, min(value, bound_value(self.maximum, limits)))

    @override
    def schema(self, limits: object) -> dict[str, Any]:
        return {"type": "integer", "format": "int64"}


@dataclass(frozen=True, slots=True)
class WordParameter(Parameter):
    """One of a few words."""

    _: KW_ONLY
    words: tuple[str, ...]
    default: str | None = None

    def read(self, query: Mapping[str, str]) -> str:
        """Return the word, or the default.

        Raises:
            RestError: 400/40002 for another word, or none where there is no default.
        """
        word = self.read_optional(query)
        if word is not None:
            return word
        if self.default is None:
            raise self._refusal(None)
        return self.default

    def read_optional(self, query: Mapping[str, str]) -> str | None:
        """Return the word, None if it is absent; raises as `read` for another word."""
        raw = query.get(self.name)
        if raw is not None and raw not in self.words:
            raise self._refusal(raw)
        return raw

    def _refusal(self, raw: str | None) -> RestError:
        *others, last = self.words
        expected = f"{', '.join(others)} or {last}" if others else last
        return bad_parameter(self.name, raw, expected)

    @override
    def schema(self, limits: object) -> dict[str, Any]:
        found: dict[str, Any] = {"type": "string", "enum": list(self.words)}
        return found if self.default is None else found | {"default": self.default}


@dataclass(frozen=True, slots=True)
class FlagParameter(Parameter):
    """``true`` or ``false``; absent is false."""

    def read(self, query: Mapping[str, str]) -> bool:
        """Return the flag.

        Raises:
            RestError: 400/40002 for another word.
        """
        raw = query.get(self.name, "false")
        value = _FLAGS.get(raw.lower())
        if value is None:
            raise bad_parameter(self.name, raw, "true or false")
        return value

    @override
    def schema(self, limits: object) -> dict[str, Any]:
        return {"type": "boolean", "default": False}


@dataclass(frozen=True, slots=True)
class TextParameter(Parameter):
    """Text whose grammar the reader of the value knows; its length is bounded here if stated."""

    _: KW_ONLY
    length_max: int | None = None
    pattern: str | None = None
    """Regular expression of JSON Schema for the document; the reader of the value checks it."""

    def read(self, query: Mapping[str, str]) -> str | None:
        """Return the text, None if it is absent.

        Raises:
            RestError: 400/40002 for an empty text, or one longer than `length_max`.
        """
        raw = query.get(self.name)
        longest = self.length_max
        if raw is not None and longest is not None and not 0 < len(raw) <= longest:
            raise bad_parameter(self.name, raw[:20], f"1 to {longest} characters")
        return raw

    @override
    def schema(self, limits: object) -> dict[str, Any]:
        found: dict[str, Any] = {"type": "string"}
        if self.length_max is not None:
            found |= {"minLength": 1, "maxLength": self.length_max}
        return found if self.pattern is None else found | {"pattern": self.pattern}
