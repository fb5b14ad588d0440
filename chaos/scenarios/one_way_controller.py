"""Scenario one-way-controller: the active controller can send but not receive, then the reverse.

In both cases metadata writes must continue, with few elections.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chaos.checkers.gaps import check_metadata_gap, windows
from chaos.checkers.rule import check_churn
from chaos.net.links import Faults, Flow
from chaos.scenarios.controller_cut import METADATA_GAP_LIMIT_MS
from chaos.scenarios.stage import FELT_DEADLINE_S, Scenario

if TYPE_CHECKING:
    from chaos.checkers.verdict import Verdict
    from chaos.history import Reading
    from chaos.scenarios.stage import Stage

TERMS_MAX = 3
"""Most new terms per fault: one election, and two more by split votes."""
BETWEEN_S = 1.0


async def _one_way(stage: Stage, name: str, *, deaf: bool) -> None:
    await stage.felt_within(FELT_DEADLINE_S, lambda: stage.watch.active is not None)
    active = stage.watch.active
    assert active is not None, "there is an active controller before anything is broken"
    others = [controller for controller in stage.controllers if controller != active]
    silent = frozenset(Flow(other, active) if deaf else Flow(active, other) for other in others)
    async with stage.broken(name, f"controller {active}", Faults(silent), [stage.term()]):
        pass


async def _break(stage: Stage) -> None:
    await _one_way(stage, "active controller deaf", deaf=True)
    await stage.felt_within(BETWEEN_S, lambda: False)
    await _one_way(stage, "active controller mute", deaf=False)


def _own_checks(stage: Stage, _reading: Reading) -> list[Verdict]:
    history = stage.history
    gaps = [
        check_metadata_gap(history, fault, until_ms, METADATA_GAP_LIMIT_MS)
        for fault, until_ms in windows(history)
    ]
    return [*gaps, *(check_churn(history, fault, TERMS_MAX) for fault in history.faults)]


ONE_WAY_CONTROLLER = Scenario(
    name="one-way-controller",
    summary="the active controller hears no other controller, then is heard by none",
    break_it=_break,
    own_checks=_own_checks,
)
