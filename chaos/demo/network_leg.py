"""Network leg of the demo: one scenario of a broken network, on a new cluster with proxies."""

from __future__ import annotations

from random import SystemRandom
from typing import TYPE_CHECKING

from chaos.history import History
from chaos.proxied_cluster import ProxiedCluster
from chaos.run import HISTORY_FILE, Run
from chaos.runner import RunOptions, ScenarioRun
from chaos.scenarios.isolation import LEADER_CUT

if TYPE_CHECKING:
    from chaos.demo.context import DemoContext

DURATION_S = 5.0
FOLDER = "network"


async def play(stage: DemoContext) -> None:
    """Play the scenario leader-cut as `quorumlog chaos run` does; its verdicts join the demo's."""
    seed = SystemRandom().randrange(1 << 32)
    directory = stage.directory / FOLDER
    directory.mkdir()
    cluster = ProxiedCluster(directory)
    stage.clean_up.callback(cluster.leave_nothing)
    again = f"quorumlog chaos run {LEADER_CUT.name} --seed {seed} --duration {DURATION_S:g}"
    stage.screen.say(f"{LEADER_CUT.summary} (the same again: {again})")
    with (directory / HISTORY_FILE).open("wb") as file:
        part = Run(directory, History([], file.write), stage.screen)
        options = RunOptions(seed=seed, duration_s=DURATION_S)
        try:
            await ScenarioRun(LEADER_CUT, cluster, part, options).play()
        finally:
            stage.run.verdicts.extend(part.verdicts)
