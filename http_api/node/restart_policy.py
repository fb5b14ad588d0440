"""Delay before an ended node is started again. Pure."""

from __future__ import annotations

from dataclasses import dataclass

FIRST_DELAY_MS = 200
LAST_DELAY_MS = 5_000
SETTLED_AFTER_MS = 10_000
"""Lifetime after which a node counts as healthy: the next delay is the first one again."""


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """The delay before the next start: 0.2 s doubling to 5 s; the number of starts is unlimited."""

    next_delay_ms: int = FIRST_DELAY_MS

    def after_death(self, lived_ms: int) -> tuple[int, RestartPolicy]:
        """Return the delay (ms) before the next start, and the policy for the start after it."""
        delay_ms = FIRST_DELAY_MS if lived_ms >= SETTLED_AFTER_MS else self.next_delay_ms
        return delay_ms, RestartPolicy(min(2 * delay_ms, LAST_DELAY_MS))
