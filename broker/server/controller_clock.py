"""What time it is, as far as the controllers' clocks and this broker's own tell (rule R10).

Retention goes by append times, so a clock that jumped a year ahead would delete everything, and
what a clock a year behind stamped is deleted by the next leader. Every heartbeat answer carries its
controller's wall clock; half the round trip is the error.

Two questions are answered. `is_trusted`: may something be deleted for its age by this clock? Not
while the active controller's, or the controllers' middle one, is farther than
``clock.difference.max.ms``. `wall_ms`: what is stamped? This clock, while it is that near; else the
middle one of all there are, so that no single clock, a controller's neither, moves a log's time.
Where only one or two controllers answer, the broker's own clock counts with them, and the time
those last agreed on, carried on by monotonic time: a clock that is set wrong stands alone then. Of
two that never agreed the later counts: what is kept too long is better than what is gone.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from raft_metadata.common.clock import suspended_ms
from raft_metadata.common.ids import NodeId

if TYPE_CHECKING:
    from collections.abc import Callable

    from raft_metadata.common.clock import Clock

MEASUREMENT_AGE_MAX_MS = 60_000
"""An older measurement deletes nothing: no active controller has answered since."""
CARRIED_MAX_MS = 43_200_000
"""A controller that is silent for longer is no clock any more: half a day of the worst crystal
(0.05 %) is 22 s."""
MAJORITY_OF = 3
"""Clocks of which one may be wrong: fewer controllers, and this broker's own counts too."""
LOOK_AGAIN_MS = 50
"""Own time in which a clock that was right a moment ago is so without a look at the others': what
is appended needs no second clock then. A step that is smaller shows that much later."""
ONLY_ONE = NodeId(0)
"""A controller that did not say which it is."""
_log = logging.getLogger("broker.lifecycle")


class ControllerClock:
    """A `Clock` whose wall time is to be stamped with. Owned by the `BrokerServer`, on its loop.

    Offsets are wall clocks minus this machine's monotonic time: they stay, whatever is set here.
    """

    def __init__(
        self, clock: Clock, difference_max_ms: int, suspended: Callable[[], int] = suspended_ms
    ) -> None:
        """``suspended``: how long this machine slept, which monotonic time leaves out."""
        self.monotonic_ms: Callable[[], int] = clock.monotonic_ms
        """See `Clock`."""
        self._clock = clock
        self._own_wall_ms = clock.wall_ms
        self._difference_max_ms = difference_max_ms
        self._suspended = suspended
        self._slept_ms = suspended()
        self._measured_ms = -MEASUREMENT_AGE_MAX_MS - 1
        """When the active controller's was, monotonic."""
        self._ahead_ms = 0
        """Own wall clock minus the active controller's, when it was measured."""
        self._wall_at_zero_ms = 0
        """Own wall clock minus monotonic time, then: a step since shows in it."""
        self._heard: dict[NodeId, tuple[int, int]] = {}
        """(offset, when measured) of each controller."""
        self._offsets: list[int] = []
        """Theirs, ascending."""
        self._agreed: int | None = None
        """The own offset when it last was near the active controller's."""
        self._near = (1, 0)
        """The own offsets, from and to, that need no second look."""
        self._right_from_ms = self._right_until_ms = 0
        """Between these own wall clocks it need not be looked at again."""
        self._is_corrected = False

    def heard(
        self,
        controller_wall_ms: int,
        sent_ms: int,
        controller: NodeId = ONLY_ONE,
        *,
        is_active: bool = True,
    ) -> None:
        """A controller's answer to a heartbeat sent at ``sent_ms``, monotonic.

        0: that controller is of an older version and does not say.
        """
        if not controller_wall_ms:
            return
        self._wake()
        now_ms, wall_ms = self._clock.monotonic_ms(), self._clock.wall_ms()
        error_ms = max(now_ms - sent_ms, 0) // 2
        ahead_ms = wall_ms - error_ms - controller_wall_ms
        # As near as the round trip allows: a slow answer alone accuses no clock.
        ahead_ms = max(abs(ahead_ms) - error_ms, 0) * (1 if ahead_ms > 0 else -1)
        own = wall_ms - now_ms
        if is_active:
            self._ahead_ms, self._measured_ms, self._wall_at_zero_ms = ahead_ms, now_ms, own
            if abs(ahead_ms) <= self._difference_max_ms:
                self._agreed = own
        self._heard[controller] = (own - ahead_ms, now_ms)
        self._heard = {
            node: said for node, said in self._heard.items() if now_ms - said[1] <= CARRIED_MAX_MS
        }
        self._judge()

    def ahead_ms(self) -> int | None:
        """How far this clock is ahead of the active controller's now; None: nobody knows."""
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._measured_ms > MEASUREMENT_AGE_MAX_MS:
            return None
        stepped_ms = self._clock.wall_ms() - now_ms - self._wall_at_zero_ms
        return self._ahead_ms + stepped_ms

    def is_trusted(self) -> bool:
        """Whether append times can be compared with this clock."""
        ahead_ms = self.ahead_ms()
        if ahead_ms is None or abs(ahead_ms) > self._difference_max_ms:
            return False
        if len(self._offsets) < MAJORITY_OF:
            return True
        # The active controller may be on this machine, and share its clock.
        own = self._clock.wall_ms() - self._clock.monotonic_ms()
        return abs(own - self._offsets[len(self._offsets) // 2]) <= self._difference_max_ms

    # as a Clock

    def wall_ms(self) -> int:
        """What to stamp with: this clock, or what most say where it is far from them."""
        wall_ms = self._own_wall_ms()
        if self._right_from_ms <= wall_ms < self._right_until_ms:
            return wall_ms
        now_ms = self._clock.monotonic_ms()
        first, last = self._near
        if not first <= wall_ms - now_ms <= last:
            return self._corrected(wall_ms, now_ms)
        self._right_from_ms, self._right_until_ms = wall_ms, wall_ms + LOOK_AGAIN_MS
        return wall_ms

    # inside

    def _corrected(self, wall_ms: int, now_ms: int) -> int:
        self._wake()
        own = wall_ms - now_ms
        clocks = self._offsets
        if len(clocks) < MAJORITY_OF:
            clocks = sorted([*clocks, own, *([] if self._agreed is None else [self._agreed])])
        middle = clocks[len(clocks) // 2]
        is_off = abs(own - middle) > self._difference_max_ms
        if is_off is not self._is_corrected:
            self._is_corrected = is_off
            if is_off:
                _log.warning("the clock is off, append times go by the others ms=%d", own - middle)
            else:
                _log.info("the clock is right again ms=%d", own - middle)
        return now_ms + middle if is_off else wall_ms

    def _judge(self) -> None:
        """Near the middle of three or more, or near each of fewer, is near enough."""
        self._right_until_ms = 0
        offsets = self._offsets = sorted(offset for offset, _ in self._heard.values())
        middle = offsets[len(offsets) // 2]
        few = len(offsets) < MAJORITY_OF
        lowest, highest = (offsets[0], offsets[-1]) if few else (middle, middle)
        most = self._difference_max_ms
        # One that was off is looked at until it is found right: then that is said.
        self._near = (1, 0) if self._is_corrected else (highest - most, lowest + most)

    def _wake(self) -> None:
        """While this machine slept its monotonic time stood still, and everybody's clock went."""
        slept_ms = self._suspended()
        more, self._slept_ms = slept_ms - self._slept_ms, slept_ms
        if not more:
            return
        self._heard = {node: (offset + more, at) for node, (offset, at) in self._heard.items()}
        if self._agreed is not None:
            self._agreed += more
        if self._heard:
            self._judge()
