"""Every scenario by name, in the order shown by ``quorumlog chaos list``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chaos.scenarios.controller_cut import CONTROLLER_CUT
from chaos.scenarios.coordinator_cut import COORDINATOR_CUT
from chaos.scenarios.disk_breaks import DISK_BREAKS
from chaos.scenarios.disk_full import DISK_FULL
from chaos.scenarios.disk_hangs import DISK_HANGS
from chaos.scenarios.disk_rots import DISK_ROTS
from chaos.scenarios.followers_cut import FOLLOWERS_CUT
from chaos.scenarios.leader_cut import LEADER_CUT
from chaos.scenarios.never_twice import NEVER_TWICE
from chaos.scenarios.one_way_controller import ONE_WAY_CONTROLLER
from chaos.scenarios.pause_kill import PART_KILL, PAUSE_KILL
from chaos.scenarios.power_cut import POWER_CUT
from chaos.scenarios.replies_lost import REPLIES_LOST
from chaos.scenarios.storm import STORM

if TYPE_CHECKING:
    from chaos.scenarios.stage import Scenario

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
    )
}
