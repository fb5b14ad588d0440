"""The shape every checker answers in."""

from __future__ import annotations

from dataclasses import dataclass

MAX_EXAMPLES = 5
"""Examples kept per verdict: enough to start looking, few enough to read."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One line of the report: what was checked, whether it held, with which figures."""

    name: str
    passed: bool
    figures: str
    examples: tuple[str, ...] = ()


def verdict(name: str, figures: str, faults: list[str]) -> Verdict:
    """Passed where there are no faults; otherwise the first few are the examples."""
    return Verdict(name, not faults, figures, tuple(faults[:MAX_EXAMPLES]))


def shown(text: bytes, width: int = 60) -> str:
    """A record's text, short enough for a line."""
    decoded = text.decode(errors="replace")
    return decoded if len(decoded) <= width else decoded[: width - 1] + "…"
