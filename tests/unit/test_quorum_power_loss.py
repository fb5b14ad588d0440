"""Rules Q1, Q2, Q5, Q6 over a whole cluster: SIGKILL or power cut of one or of all voters, at any
call, also while they open; journals, votes, meta files and snapshots on one disk stand-in."""

from __future__ import annotations

import random

import pytest

from tests.support.quorum_rack import Rack
from tests.support.quorum_sim import Sim, quorum_world

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
    assert all(rack.sim.disk.exists(f"{rack.sim.directory(n)}/snapshot") for n in rack.sim.ids)


@pytest.mark.parametrize("victim", [0, 2], ids=["leader", "follower"])
@pytest.mark.parametrize("cut", [False, True], ids=["kill", "power"])
def test_rule_q1_a_snapshot_may_be_ahead_of_a_journal_whose_disk_hung(
    victim: int, cut: bool
) -> None:
    """The voter applied entries that the others hold, and saved them before its own journal."""
    sim = Sim(seed=3, snapshot_min_entries=8)
    sim.start()
    sim.lead(sim.ids[0])
    sim.commit(sim.ids[0], b"first")
    node = sim.ids[victim]
    voter = sim.up[node]
    voter.flusher.steps = lambda: 10**9
    answers = {}
    for number in range(60):
        answers[b"%d" % number] = sim.up[sim.ids[0]].submit(b"%d" % number)
        sim.step()
    sim.pass_time(0.3)
    assert voter.raft.snapshots.index > voter.raft.journal.durable_index
    assert all(answer.acknowledged for answer in answers.values())
    sim.kill(node)
    if cut:
        sim.disk.cut_power(random.Random(3), 0.5, under=str(sim.directory(node)))
    assert sim.active_leader(10)
    sim.start(node)
    sim.pass_time(1)
    sim.kill(sim.ids[1])
    leader = sim.active_leader(20)
    assert leader is not None
    assert sim.commit(leader.node_id, b"last").acknowledged
    sim.pass_time(0.5)
    for its in sim.up.values():
        assert its.machine.payloads == [b"first", *answers, b"last"]
