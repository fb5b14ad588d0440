"""Subscriptions by pattern: a regular expression over whole topic names, kept harmless. Pure.

Clients write patterns and the broker's one loop runs them, so what could backtrack for seconds is
refused: a repeat inside a repeat, references back, and more than a few repeats in a row.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable

from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import TopicName

PATTERN_CHARS_MAX = 256
PATTERN_REPEATS_MAX = 3
"""Names have at most 249 characters: three repeats try at most 249^3 / 6 = 2.6 million ways."""
INTERNAL_PREFIX = "__"

_REPEAT = re.compile(r"[*+{]")
_CLASS = re.compile(r"\[\^?\]?[^\]]*\]")
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_REPEATED_GROUP = re.compile(r"\)\s*[*+{?]")


@functools.lru_cache(maxsize=1_024)
def compiled_pattern(pattern: str) -> re.Pattern[str]:
    """The expression, or INVALID_REQUEST with the reason."""
    if len(pattern) > PATTERN_CHARS_MAX:
        raise _refusal(pattern, f"longer than {PATTERN_CHARS_MAX} characters")
    if re.search(r"\\[1-9]|\(\?P=", pattern):
        raise _refusal(pattern, "references back are not supported")
    plain = _CLASS.sub("c", _ESCAPE.sub("e", pattern))
    if _REPEATED_GROUP.search(plain):
        raise _refusal(pattern, "a group can't be repeated")
    if len(_REPEAT.findall(plain)) > PATTERN_REPEATS_MAX:
        raise _refusal(pattern, f"more than {PATTERN_REPEATS_MAX} of * + {{")
    try:
        return re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise _refusal(pattern, str(error)) from None


@functools.lru_cache(maxsize=65_536)
def _matches(pattern: str, name: str) -> bool:
    return compiled_pattern(pattern).fullmatch(name) is not None


def matched_topics(pattern: str, names: Iterable[TopicName]) -> frozenset[TopicName]:
    """The topics it names; internal ones only by their own name."""
    return frozenset(
        name for name in names if not name.startswith(INTERNAL_PREFIX) and _matches(pattern, name)
    )


def _refusal(pattern: str, reason: str) -> KafkaError:
    text = f"invalid topic pattern {pattern[:PATTERN_CHARS_MAX]!r}: {reason}"
    return KafkaError(ErrorCode.INVALID_REQUEST, text)
