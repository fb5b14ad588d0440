"""When a dead node is started again: a pure decision over what was seen."""

from __future__ import annotations

from dataclasses import dataclass

FIRST_DELAY_MS = 200
LAST_DELAY_MS = 5_000
SETTLED_AFTER_MS = 10_000
"""A node that lived this long was well: its next death starts from the first delay again."""


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """How long to wait before the next start: 0.2 s doubling to 5 s, without a limit in number."""

    next_delay_ms: int = FIRST_DELAY_MS

    def after_death(self, lived_ms: int) -> tuple[int, RestartPolicy]:
        """The delay before the next start, and the policy for the death after that."""
        delay_ms = FIRST_DELAY_MS if lived_ms >= SETTLED_AFTER_MS else self.next_delay_ms
        return delay_ms, RestartPolicy(min(2 * delay_ms, LAST_DELAY_MS))
