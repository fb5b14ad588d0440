"""Scenario controller-cut: the active controller is cut off, then killed.

Another controller must take over, and the first must notice the loss of its leadership.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chaos.checkers.gaps import check_metadata_gap, windows
from chaos.checkers.rule import check_stepped_down
from chaos.net.links import Faults, both_ways
from chaos.scenarios.stage import FELT_DEADLINE_S, Gauge, Scenario

if TYPE_CHECKING:
    from chaos.checkers.verdict import Verdict
    from chaos.history import Reading
    from chaos.scenarios.stage import Stage

METADATA_GAP_LIMIT_MS = 5000
"""Longest gap in metadata writes after a controller falls silent: the followers' longest election
timeout is 1 s, a broker's attempt at the old one 1.5 s; the rest allows for a slow machine."""
STEPPED_DOWN = "cut-off controller stepped down after ms"
STEP_DOWN_LIMIT_MS = 5000
"""Longest time to step down: `raft_step_down_ms` is 1 s, which holds on an idle machine; five allow
for one that runs other tests."""


async def _break(stage: Stage) -> None:
    """Cut off the active controller, wait for a successor, and kill the first."""
    await stage.felt_within(FELT_DEADLINE_S, lambda: stage.watch.active is not None)
    active = stage.watch.active
    assert active is not None, "there is an active controller before anything is broken"
    pid = stage.cluster.read().node(active).pid
    lives = {pid}

    def lives_seen() -> int:
        now = stage.cluster.read().node(active).pid
        if now is not None:
            lives.add(now)
        return len(lives)

    gauges = [stage.term(), Gauge(f"lives of controller {active}", lives_seen)]
    faults = Faults(both_ways([active], stage.others(active)))
    async with stage.broken(
        "active controller cut off, then killed", f"controller {active}", faults, gauges
    ):
        began = stage.clock.monotonic_ms()
        await stage.felt_within(FELT_DEADLINE_S, lambda: active not in stage.watch.believers)
        stage.told[STEPPED_DOWN] = stage.clock.monotonic_ms() - began
        await stage.felt_within(FELT_DEADLINE_S, lambda: stage.watch.active not in (None, active))
        stage.kill(active)


def _own_checks(stage: Stage, _reading: Reading) -> list[Verdict]:
    history = stage.history
    gaps = [
        check_metadata_gap(history, fault, until_ms, METADATA_GAP_LIMIT_MS)
        for fault, until_ms in windows(history)
    ]
    took = stage.told.get(STEPPED_DOWN)
    return [*gaps, check_stepped_down(took, STEP_DOWN_LIMIT_MS)]


CONTROLLER_CUT = Scenario(
    name="controller-cut",
    summary="the active controller is cut off, then killed while it still is",
    break_it=_break,
    own_checks=_own_checks,
)
