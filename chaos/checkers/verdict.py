"""The result type of every check."""

from __future__ import annotations

from dataclasses import dataclass

MAX_EXAMPLES = 5
"""Most examples kept per verdict."""
SHOWN_CHARS_MAX = 60


@dataclass(frozen=True, slots=True)
class Verdict:
    """A line of the report: the check's name, its result, figures, and examples of failures."""

    name: str
    passed: bool
    figures: str
    examples: tuple[str, ...] = ()


def verdict(name: str, figures: str, faults: list[str]) -> Verdict:
    """Return a verdict that passes without faults.

    Otherwise the first few faults are its examples.
    """
    return Verdict(name, not faults, figures, tuple(faults[:MAX_EXAMPLES]))


def shown(text: bytes) -> str:
    """Return a record's text, shortened to `SHOWN_CHARS_MAX` characters."""
    decoded = text.decode(errors="replace")
    return decoded if len(decoded) <= SHOWN_CHARS_MAX else decoded[: SHOWN_CHARS_MAX - 1] + "…"
