"""Time comes in as an argument. Timers use monotonic time only; wall time is data."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Where time comes from."""

    def monotonic_ms(self) -> int:
        """Milliseconds that never go back; comparable inside one process only."""
        ...

    def wall_ms(self) -> int:
        """Milliseconds since 1970-01-01 UTC; may jump."""
        ...


class SystemClock:
    """The machine's own clocks: the one place that reads them."""

    def monotonic_ms(self) -> int:
        """See `Clock`."""
        return time.monotonic_ns() // 1_000_000

    def wall_ms(self) -> int:
        """See `Clock`."""
        return time.time_ns() // 1_000_000


def suspended_ms() -> int:
    """How long this machine has slept since it was started: what monotonic time leaves out.

    0 where the system can't tell.
    """
    if not hasattr(time, "CLOCK_BOOTTIME"):
        return 0
    slept_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.monotonic_ns()
    return slept_ns // 1_000_000
