"""How far this broker's wall clock is from the active controller's (rule R10).

Retention goes by append times, so a clock that jumped a year ahead would delete everything. Each
heartbeat answer of the active controller carries its wall clock; half the round trip is the error.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from raft_metadata.common.clock import Clock

MEASUREMENT_AGE_MAX_MS = 60_000
"""An older measurement says nothing: no active controller has answered since."""
_log = logging.getLogger("broker.lifecycle")


class ControllerClock:
    """Owned by the `BrokerServer`, on its loop."""

    def __init__(self, clock: Clock, difference_max_ms: int) -> None:
        self._clock = clock
        self._difference_max_ms = difference_max_ms
        self._measured_ms = -MEASUREMENT_AGE_MAX_MS - 1
        self._ahead_ms = 0
        """Own wall clock minus the controller's, when it was measured."""
        self._wall_at_zero_ms = 0
        """Own wall clock minus monotonic time, then: a step since shows in it."""

    def heard(self, controller_wall_ms: int, sent_ms: int) -> None:
        """An answer of the active controller to a heartbeat sent at ``sent_ms``, monotonic.

        0: that controller is of an older version and does not say.
        """
        if not controller_wall_ms:
            return
        now_ms, wall_ms = self._clock.monotonic_ms(), self._clock.wall_ms()
        error_ms = max(now_ms - sent_ms, 0) // 2
        ahead_ms = wall_ms - error_ms - controller_wall_ms
        # As near as the round trip allows: a slow answer alone accuses no clock.
        self._ahead_ms = max(abs(ahead_ms) - error_ms, 0) * (1 if ahead_ms > 0 else -1)
        self._measured_ms = now_ms
        self._wall_at_zero_ms = wall_ms - now_ms

    def ahead_ms(self) -> int | None:
        """How far this clock is ahead of the controller's now; None: nobody knows."""
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._measured_ms > MEASUREMENT_AGE_MAX_MS:
            return None
        stepped_ms = self._clock.wall_ms() - now_ms - self._wall_at_zero_ms
        return self._ahead_ms + stepped_ms

    def is_trusted(self) -> bool:
        """Whether append times can be compared with this clock."""
        ahead_ms = self.ahead_ms()
        return ahead_ms is not None and abs(ahead_ms) <= self._difference_max_ms
