"""Seeded histories of three and five voters under cut links, lost messages, kills and snapshots.

Checked throughout: one leader per term, equal logs where applied, nothing applied twice; at the
end, after healing: everything acknowledged is there, and the cluster works again.
tests/support/seeds.py describes which seeds run and how to replay one.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from raft_metadata.common.errors import Outcome
from raft_metadata.common.ids import NodeId
from tests.support.quorum_sim import Answer, Sim, Voter, quorum_world
from tests.support.seeds import Seeds

__all__ = ["quorum_world"]
pytestmark = pytest.mark.usefixtures("quorum_world")

ROUNDS = 15


class History:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.sim = Sim(voters=self.rng.choice((3, 5)), seed=seed, snapshot_min_entries=30)
        self.sent: dict[bytes, Answer] = {}
        self.leader_of: dict[int, NodeId] = {}
        self.applied: dict[int, tuple[int, bytes]] = {}
        self.checked: dict[Voter, int] = {}
        self.loss = 0.0
        self.elections = 0
        self.sim.drop = self._lose
        self.slow = 0
        self.sim.flush_steps = self._flush_steps

    def _lose(self, _sender: NodeId, _to: NodeId, _message: dict[str, Any]) -> bool:
        return self.rng.random() < self.loss

    def _flush_steps(self) -> int:
        """The flusher is an actor: its work and its news come at any later step (rule Q3)."""
        return self.rng.choice((0, 1, self.slow)) if self.slow else 0

    def fault(self) -> None:
        rng, sim = self.rng, self.sim
        pairs = [(a, b) for a in sim.ids for b in sim.ids if a < b]
        match rng.choice(("cut", "isolate", "lose", "kill", "slow", "heal", "start")):
            case "cut":
                sim.cut = {frozenset(pair) for pair in pairs if rng.random() < 0.4}
            case "isolate":
                alone = rng.choice(sim.leaders or sim.ids)
                sim.cut = {frozenset(pair) for pair in pairs if alone in pair}
            case "lose":
                self.loss = rng.choice((0.05, 0.3))
            case "kill" if len(sim.up) > 1:
                sim.kill(rng.choice(list(sim.up)))
            case "slow":
                self.slow = rng.choice((2, 10, 40))
            case "start":
                self.start_all()
            case _:
                sim.cut, self.loss, self.slow = set(), 0.0, 0

    def start_all(self) -> None:
        for node in self.sim.ids:
            if node not in self.sim.up:
                self.sim.start(node)

    def write(self) -> None:
        for node in self.sim.leaders:
            for _ in range(self.rng.choice((0, 0, 1, 5))):
                size = self.rng.choice((5, 3000))
                payload = b"%d" % len(self.sent) + b"." * size
                self.sent[payload] = self.sim.up[node].submit(payload)

    def check(self) -> None:
        for node, voter in self.sim.up.items():
            if voter.leads:
                self.elections += voter.term not in self.leader_of
                assert self.leader_of.setdefault(voter.term, node) == node, "two in one term"
            applied = voter.machine.applied
            for index, term, payload in applied[self.checked.get(voter, 0) :]:
                assert self.applied.setdefault(index, (term, payload)) == (term, payload)
            self.checked[voter] = len(applied)

    def run(self, seconds: float) -> None:
        for _ in range(int(seconds * 100)):
            self.write()
            self.sim.step()
            self.check()


def simulate(seed: int) -> History:
    history = History(seed)
    sim = history.sim
    sim.start()
    for _ in range(ROUNDS):
        history.fault()
        history.run(history.rng.uniform(0.1, 1.5))
    sim.cut, history.loss, history.slow = set(), 0.0, 0
    history.start_all()
    assert sim.active_leader(20) is not None
    history.run(0.5)
    voters = list(sim.up.values())
    sim.pass_time(0.5)
    assert sim.until(lambda: len({voter.raft.applied_index for voter in voters}) == 1, 10)
    history.check()
    payloads = voters[0].machine.payloads
    assert all(voter.machine.applied == voters[0].machine.applied for voter in voters)
    assert len(payloads) == len(set(payloads))
    acknowledged = {payload for payload, answer in history.sent.items() if answer.acknowledged}
    assert not acknowledged - set(payloads)
    refused = {payload for payload, answer in history.sent.items() if surely_not_written(answer)}
    assert not refused & set(payloads), "NOT_CONTROLLER, and yet it is there (rule M3)"
    # Enough must have happened for this to prove anything.
    assert len(acknowledged) > 50  # the least of 400 histories: 87
    assert history.elections > 0
    return history


seeds_run = Seeds(module=__name__, simulate_one=simulate, everyday=5, per_test=1, one_in=50)
pytest_generate_tests = seeds_run.parametrize


@pytest.mark.simulate
def test_rule_q7_no_history_loses_or_doubles_what_was_acknowledged(seeds: list[int]) -> None:
    seeds_run.run_all(seeds)


def surely_not_written(answer: Answer) -> bool:
    return answer.error is not None and answer.error.outcome is Outcome.NOT_WRITTEN
