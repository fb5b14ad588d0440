"""Three simulated voters under writes, and somebody at the fuse box (rules Q1, Q2, Q5, Q6).

Real journals, votes, meta files and snapshots on one disk stand-in that loses its power at page
granularity, remembered over any number of restarts.
"""

from __future__ import annotations

import random

from raft_metadata.common.ids import NodeId
from tests.support.quorum_sim import CLOCK, Answer, Sim
from tests.support.simulated_disk import Killed


class Rack:
    """Three voters under writes, and somebody at the fuse box."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.sim = Sim(seed=seed, snapshot_min_entries=40)
        self.sim.flush_steps = lambda: self.rng.choice((0, 0, 1, 5))
        self.sent: dict[bytes, Answer] = {}
        self.cuts = 0

    def arm(self, victims: list[NodeId]) -> None:
        left = {f"{self.sim.directory(node)}": self.rng.randint(1, 40) for node in victims}
        only = self.rng.choice(("journal", "journal", ""))

        def hook(operation: str, path: str) -> None:
            if operation == "create":
                return  # what is made is also truncated, new or not
            for directory in [d for d in left if path == d or path.startswith(d + "/")]:
                left[directory] -= 1
                due = operation.startswith("sync") and only in path.rpartition("/")[2]
                if left[directory] <= 0 and (due or left[directory] < -200):
                    raise Killed

        self.sim.disk.before = hook

    def write(self, seconds: float) -> None:
        end = CLOCK.time + seconds
        while CLOCK.time < end:
            for node in self.sim.leaders:
                for _ in range(self.rng.choice((0, 0, 1, 9))):
                    size = self.rng.choice((5, 100, 3000, 3000))
                    payload = b"%d" % len(self.sent) + b"." * size
                    self.sent[payload] = self.sim.up[node].submit(payload)
            self.sim.step()

    def power_cut(self, node: NodeId) -> None:
        self.cuts += 1
        keep = self.rng.choice((0.2, 0.5, 0.8))
        self.sim.disk.cut_power(self.rng, keep, under=str(self.sim.directory(node)))

    def crash(self) -> None:
        down = [node for node in self.sim.ids if node not in self.sim.up]
        if len(down) == len(self.sim.ids) or self.rng.random() < 0.1:
            self.sim.kill()
            down = self.sim.ids
            for node in down:
                self.power_cut(node)
        else:
            for node in down:
                if self.rng.random() < 0.6:
                    self.power_cut(node)

    def start(self) -> None:
        for node in [node for node in self.sim.ids if node not in self.sim.up]:
            if self.rng.random() < 0.3:
                self.arm([node])
            while node not in self.sim.up:
                try:
                    self.sim.start(node)
                except Killed:
                    self.sim.disk.before = None
                    self.sim.disk.kill(str(self.sim.directory(node)))
                    if self.rng.random() < 0.6:
                        self.power_cut(node)
            self.sim.disk.before = None

    def one_round(self) -> None:
        """Writes, a crash of some at any call, power cuts of those, and their restart."""
        victims = self.rng.sample(self.sim.ids, self.rng.choice((1, 1, 2, 3)))
        self.arm(victims if self.rng.random() < 0.9 else [])
        self.write(self.rng.uniform(0.2, 2))
        self.sim.disk.before = None
        self.crash()
        self.start()

    def settled(self) -> list[bytes]:
        """What every voter holds, once all agree; asserts that nothing acknowledged is missing."""
        sim = self.sim
        assert sim.active_leader(20) is not None
        voters = list(sim.up.values())
        sim.pass_time(0.5)
        assert sim.until(lambda: len({voter.raft.applied_index for voter in voters}) == 1, 10)
        payloads: list[bytes] = voters[0].machine.payloads
        assert all(voter.machine.applied == voters[0].machine.applied for voter in voters)
        assert len(payloads) == len(set(payloads)), "applied twice"
        lost = self.acknowledged() - set(payloads)
        assert not lost, f"{len(lost)} acknowledged are gone"
        return payloads

    def acknowledged(self) -> set[bytes]:
        return {payload for payload, answer in self.sent.items() if answer.acknowledged}
