"""Grammar of values that people type: partitions, positions, times, durations, sizes, brokers.

The command line parses its arguments with these functions, the HTTP doors their `offset` parameter,
so that one text means the same in both places. Each function takes one text and returns a value or
raises `GrammarError`, whose message names the text, what is expected and an example. Nothing here
reads a clock or does I/O: positions that depend on a log are resolved by the caller.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from fractions import Fraction
from typing import NamedTuple

from typing_extensions import override

OFFSET_MAX = (1 << 63) - 1
"""Largest offset, and largest timestamp in milliseconds: signed 64-bit integers in a log."""
PARTITION_MAX = (1 << 31) - 1
BROKER_ID_MAX = (1 << 31) - 1
SHOWN_CHARS_MAX = 60
"""Longest part of a wrong text that an error repeats."""
NEAREST_CUTOFF = 0.6
"""Least similarity, from 0 to 1, of a word that is suggested for an unknown one."""


class GrammarError(ValueError):
    """A text that the grammar does not take; the message is complete without its context."""

    def __init__(self, text: str, expected: str) -> None:
        shown = text if len(text) <= SHOWN_CHARS_MAX else f"{text[:SHOWN_CHARS_MAX]}…"
        super().__init__(f"{shown!r}: expected {expected}")


# Topics and partitions

_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_NUMBER = re.compile(r"[0-9]+")
_TOPIC_EXPECTED = "a topic name: 1 to 249 letters, digits, '.', '_' and '-', as in orders"
_PARTITIONS_EXPECTED = "TOPIC:PARTITION[,PARTITION…], as in orders:0 or orders:0,1"
_PARTITION_EXPECTED = "TOPIC:PARTITION, as in orders:0"
_RECORD_EXPECTED = "TOPIC:PARTITION:OFFSET, as in orders:0:17"
_SELECTION_EXPECTED = "TOPIC or TOPIC:PARTITION[,PARTITION…], as in orders or orders:0,1"


@dataclass(frozen=True, slots=True)
class TopicPartitions:
    """A topic and some of its partitions, in the order named; all of them if None."""

    topic: str
    partitions: tuple[int, ...] | None

    @override
    def __str__(self) -> str:
        if self.partitions is None:
            return self.topic
        return f"{self.topic}:{','.join(map(str, self.partitions))}"


def parse_topic(text: str) -> str:
    """Return a topic name."""
    if _TOPIC.fullmatch(text) is None or text in {".", ".."}:
        raise GrammarError(text, _TOPIC_EXPECTED)
    return text


def parse_selection(text: str) -> TopicPartitions:
    """Return the topic and partitions of ``TOPIC`` or ``TOPIC:P[,P…]``."""
    return _parse_partitions(text, _SELECTION_EXPECTED)


def parse_partitions(text: str) -> TopicPartitions:
    """Return the topic and partitions of ``TOPIC:P[,P…]``; partitions are never None."""
    found = _parse_partitions(text, _PARTITIONS_EXPECTED)
    if found.partitions is None:
        raise GrammarError(text, _PARTITIONS_EXPECTED)
    return found


def parse_partition(text: str) -> tuple[str, int]:
    """Return the topic and the one partition of ``TOPIC:P``."""
    found = _parse_partitions(text, _PARTITION_EXPECTED)
    if found.partitions is None or len(found.partitions) != 1:
        raise GrammarError(text, _PARTITION_EXPECTED)
    return found.topic, found.partitions[0]


class RecordPlace(NamedTuple):
    """The place of one record."""

    topic: str
    partition: int
    offset: int


def parse_record(text: str) -> RecordPlace:
    """Return the place of one record, ``TOPIC:PARTITION:OFFSET``."""
    where, _, offset = text.rpartition(":")
    try:
        found = _parse_partitions(where, _RECORD_EXPECTED)
    except GrammarError:
        raise GrammarError(text, _RECORD_EXPECTED) from None
    if found.partitions is None or len(found.partitions) != 1:
        raise GrammarError(text, _RECORD_EXPECTED)
    if _NUMBER.fullmatch(offset) is None or len(offset) > len(str(OFFSET_MAX)):
        raise GrammarError(text, _RECORD_EXPECTED)
    if int(offset) > OFFSET_MAX:
        raise GrammarError(text, f"an offset from 0 to {OFFSET_MAX}, as in orders:0:17")
    return RecordPlace(found.topic, found.partitions[0], int(offset))


def _parse_partitions(text: str, expected: str) -> TopicPartitions:
    topic, colon, numbers = text.partition(":")
    if _TOPIC.fullmatch(topic) is None or topic in {".", ".."}:
        raise GrammarError(text, expected)
    if not colon:
        return TopicPartitions(topic, None)
    partitions = tuple(_partition_number(number, text, expected) for number in numbers.split(","))
    if len(set(partitions)) < len(partitions):
        raise GrammarError(text, f"each partition once, as in {topic}:0,1")
    return TopicPartitions(topic, partitions)


def _partition_number(number: str, text: str, expected: str) -> int:
    if _NUMBER.fullmatch(number) is None or len(number) > len(str(PARTITION_MAX)):
        raise GrammarError(text, expected)
    if int(number) > PARTITION_MAX:
        raise GrammarError(text, f"partitions from 0 to {PARTITION_MAX}, as in orders:0")
    return int(number)


# Positions


@dataclass(frozen=True, slots=True)
class Earliest:
    """The first offset of a partition's log."""


@dataclass(frozen=True, slots=True)
class Latest:
    """The high watermark: the offset of the next record that can be read."""


@dataclass(frozen=True, slots=True)
class AtOffset:
    """An offset, 0 or larger."""

    offset: int


@dataclass(frozen=True, slots=True)
class LastRecords:
    """The offset ``count`` below the high watermark, but not below the first offset."""

    count: int


@dataclass(frozen=True, slots=True)
class FromTime:
    """The first record at or after a time in milliseconds since 1970."""

    timestamp_ms: int


Position = Earliest | Latest | AtOffset | LastRecords | FromTime

POSITION_EXPECTED = (
    "earliest, latest, an offset, -N for the last N, @MILLISECONDS or a time with its zone, "
    "as in 2026-01-31T12:00:00Z"
)
_POSITION_WORDS: dict[str, Position] = {
    "earliest": Earliest(),
    "beginning": Earliest(),
    "latest": Latest(),
    "end": Latest(),
}
_OFFSET = re.compile(r"-?[0-9]{1,19}")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}")


def parse_position(text: str) -> Position:
    """Return a position in a partition: where to read from, or where a group goes on."""
    word = _POSITION_WORDS.get(text)
    if word is not None:
        return word
    if text.startswith("@") or _DATE.match(text):
        return FromTime(parse_time_ms(text))
    if _OFFSET.fullmatch(text) is None or abs(int(text)) > OFFSET_MAX:
        raise GrammarError(text, POSITION_EXPECTED)
    if not text.startswith("-"):
        return AtOffset(int(text))
    if int(text) == 0:
        raise GrammarError(text, "a count from 1 on behind the -, as in -10")
    return LastRecords(-int(text))


# Times and durations

TIME_EXPECTED = "@MILLISECONDS since 1970 or a time with its zone, as in 2026-01-31T12:00:00Z"
_MILLISECONDS = re.compile(r"@[0-9]{1,19}")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def parse_time_ms(text: str) -> int:
    """Return milliseconds since 1970 from ``@MILLISECONDS`` or an ISO 8601 time with its zone."""
    if _MILLISECONDS.fullmatch(text):
        timestamp_ms = int(text[1:])
        if timestamp_ms > OFFSET_MAX:
            raise GrammarError(text, TIME_EXPECTED)
        return timestamp_ms
    if _DATE.match(text) is None:
        raise GrammarError(text, TIME_EXPECTED)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise GrammarError(text, TIME_EXPECTED) from None
    if moment.tzinfo is None:
        raise GrammarError(text, "a zone behind the time, as in 2026-01-31T12:00:00Z or …+01:00")
    if moment < _EPOCH:
        raise GrammarError(text, "a time from 1970 on, as in 2026-01-31T12:00:00Z")
    since = moment - _EPOCH
    # Rounded up: no record before the time may be found by it.
    return since.days * 86_400_000 + since.seconds * 1_000 + -(-since.microseconds // 1_000)


_DURATION_UNITS_MS = {
    "ms": 1,
    "s": 1_000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
}
_SIZE_UNITS_BYTES = {
    "B": 1,
    "KB": 1_000,
    "MB": 1_000_000,
    "GB": 1_000_000_000,
    "TB": 1_000_000_000_000,
    "KiB": 1 << 10,
    "MiB": 1 << 20,
    "GiB": 1 << 30,
    "TiB": 1 << 40,
}
_QUANTITY = re.compile(r"([0-9]{1,19}(?:\.[0-9]{1,9})?)\s?([A-Za-z]*)")
DURATION_EXPECTED = "a duration like 500ms, 10s, 5m, 1h or 7d"
SIZE_EXPECTED = "a size like 512B, 64KiB, 1MiB or 10GB"


def parse_duration_ms(text: str, *, bare_unit_ms: int | None = 1_000) -> int:
    """Return a duration in whole milliseconds.

    ``bare_unit_ms`` is the unit of a number without one (1,000: seconds); None refuses such a text.
    """
    return _quantity(text, _DURATION_UNITS_MS, bare_unit_ms, DURATION_EXPECTED)


def parse_size_bytes(text: str) -> int:
    """Return a size in bytes; a number without a unit counts bytes. Units ignore case."""
    return _quantity(text, _SIZE_UNITS_BYTES, 1, SIZE_EXPECTED)


def _quantity(text: str, units: dict[str, int], bare_unit: int | None, expected: str) -> int:
    found = _QUANTITY.fullmatch(text)
    if found is None:
        raise GrammarError(text, expected)
    by_lower_case = {name.lower(): size for name, size in units.items()}
    unit = by_lower_case.get(found[2].lower()) if found[2] else bare_unit
    if unit is None:
        raise GrammarError(text, f"{expected}; units are {', '.join(units)}")
    exact = Fraction(found[1]) * unit
    if exact.denominator != 1:
        raise GrammarError(text, f"a whole number of {next(iter(units))}: {expected}")
    if exact > OFFSET_MAX:
        raise GrammarError(text, f"at most {OFFSET_MAX} {next(iter(units))}: {expected}")
    return int(exact)


def expand_config_value(name: str, value: str) -> str:
    """Return a config's value with its unit expanded: ``1h`` of ``retention.ms`` is ``3600000``.

    A value without a unit, or of a config that counts neither time nor bytes, is returned as it is:
    the cluster checks it. Raises `GrammarError` for a wrong unit or a fraction that is not whole.
    """
    found = _QUANTITY.fullmatch(value)
    if found is None or not found[2]:
        return value
    kind = re.split(r"[._]", name)[-1]
    if kind == "bytes":
        return str(parse_size_bytes(value))
    bare_ms = {"ms": 1, "seconds": 1_000, "minutes": 60_000, "hours": 3_600_000}.get(kind)
    if bare_ms is None:
        return value
    exact = Fraction(parse_duration_ms(value), bare_ms)
    if exact.denominator != 1:
        raise GrammarError(value, f"a whole number of {kind}")
    return str(int(exact))


# Brokers

_BROKER = re.compile(r"(?:broker-)?([0-9]{1,10})")
_BROKER_EXPECTED = "a broker id, as in 1 or broker-1"


def parse_broker(text: str) -> int:
    """Return the id of a broker from ``1`` or ``broker-1``."""
    found = _BROKER.fullmatch(text)
    if found is None or int(found[1]) > BROKER_ID_MAX:
        raise GrammarError(text, _BROKER_EXPECTED)
    return int(found[1])


def parse_brokers(text: str, separator: str = ",") -> tuple[int, ...]:
    """Return the ids in a list of brokers, each named once."""
    expected = f"different broker ids, as in {separator.join('123')}"
    try:
        found = tuple(parse_broker(part) for part in text.split(separator))
    except GrammarError:
        raise GrammarError(text, expected) from None
    if len(set(found)) < len(found):
        raise GrammarError(text, expected)
    return found


# Words


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that an unknown one was most likely meant to be, or None."""
    found = difflib.get_close_matches(word[:100], list(known), n=1, cutoff=NEAREST_CUTOFF)
    return found[0] if found else None
