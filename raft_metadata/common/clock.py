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


_STEADY_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""The monotonic clock that goes on while the machine is suspended, where the system has one: else
a deadline and a lease would outlive it by as long as the machine slept (rules G3, S12)."""


class SystemClock:
    """The machine's own clocks: the only place in the product that reads them."""

    def monotonic_ms(self) -> int:
        """Return the machine's monotonic clock in milliseconds, suspended time included."""
        return time.clock_gettime_ns(_STEADY_CLOCK) // 1_000_000

    def wall_ms(self) -> int:
        """Return the machine's wall clock in milliseconds since 1970-01-01 UTC."""
        return time.time_ns() // 1_000_000
