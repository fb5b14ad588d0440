"""Rules Q1, Q2, Q5, Q6 over a whole cluster: SIGKILL or power cut of one or of all voters, at any
call, also while they open; journals, votes, meta files and snapshots on one disk stand-in."""

from __future__ import annotations

import pytest

from tests.support.quorum_rack import Rack
from tests.support.quorum_sim import quorum_world

__all__ = ["quorum_world"]
pytestmark = pytest.mark.usefixtures("quorum_world")

ROUNDS = 20


@pytest.mark.parametrize("seed", [11, 12])
def test_rules_q1_q5_q6_power_cuts_of_a_cluster_lose_nothing_acknowledged(seed: int) -> None:
    rack = Rack(seed)
    rack.sim.start()
    for _ in range(ROUNDS):
        rack.one_round()
    rack.settled()
    # Enough must have happened for this to prove anything.
    assert rack.cuts > ROUNDS // 2
    assert len(rack.acknowledged()) > 5 * ROUNDS
    assert all(rack.sim.disk.exists(rack.sim.directory(n) / "snapshot") for n in rack.sim.ids)
