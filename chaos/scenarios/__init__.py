"""Scenarios: declarations of faults and of what must hold; `chaos/runner.py` runs each of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chaos.scenarios.disk_faults import DISK_BREAKS, DISK_FULL, DISK_HANGS, DISK_ROTS
from chaos.scenarios.isolation import (
    CONTROLLER_CUT,
    COORDINATOR_CUT,
    FOLLOWERS_CUT,
    LEADER_CUT,
    ONE_WAY_CONTROLLER,
)
from chaos.scenarios.lost_replies import NEVER_TWICE, REPLIES_LOST
from chaos.scenarios.moving_money import (
    MONEY,
    MONEY_APPLY_LOST,
    MONEY_HOME_CUT,
    MONEY_PAUSED,
)
from chaos.scenarios.power_loss import PART_KILL, PAUSE_KILL, POWER_CUT
from chaos.scenarios.storm import STORM

if TYPE_CHECKING:
    from chaos.scenarios.scenario import Scenario

SCENARIOS: dict[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        LEADER_CUT,
        FOLLOWERS_CUT,
        CONTROLLER_CUT,
        REPLIES_LOST,
        ONE_WAY_CONTROLLER,
        COORDINATOR_CUT,
        NEVER_TWICE,
        STORM,
        DISK_FULL,
        DISK_HANGS,
        DISK_BREAKS,
        DISK_ROTS,
        POWER_CUT,
        PAUSE_KILL,
        PART_KILL,
        MONEY,
        MONEY_HOME_CUT,
        MONEY_PAUSED,
        MONEY_APPLY_LOST,
    )
}
"""Every scenario by name, in the order shown by ``quorumlog chaos list``."""
