"""The clock that is passed to every component that needs time.

Timers use monotonic time only; wall time is data, for records and for people. Components take a
`Clock` as an argument, so that simulations supply their own; only `SystemClock` reads the
machine's.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """A source of monotonic and wall time, supplied by the node or by a simulation."""

    def monotonic_ms(self) -> int:
        """Return milliseconds that never decrease; comparable inside one process only."""
        ...

    def wall_ms(self) -> int:
        """Return milliseconds since 1970-01-01 UTC; the value may jump."""
        ...


class SystemClock:
    """The machine's own clocks: the only place in the product that reads them."""

    def monotonic_ms(self) -> int:
        """Return the machine's monotonic clock in milliseconds."""
        return time.monotonic_ns() // 1_000_000

    def wall_ms(self) -> int:
        """Return the machine's wall clock in milliseconds since 1970-01-01 UTC."""
        return time.time_ns() // 1_000_000


def suspended_ms() -> int:
    """Return the milliseconds that this machine has been suspended since it was started.

    Monotonic time leaves them out. 0 where the system has no CLOCK_BOOTTIME.
    """
    if not hasattr(time, "CLOCK_BOOTTIME"):
        return 0
    slept_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.monotonic_ns()
    return slept_ns // 1_000_000
