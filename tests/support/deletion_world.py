"""The world of `replication_world`, in which leaders delete records and answer.

The leader answers, after every event, what it could answer with the records it has deleted so far.
From then on every clean leader, and every replica that may become one, begins at or behind that
offset: through lost and late frames, kills, power cuts, full disks, reassignments, ISRs of one, and
fences.
"""

from __future__ import annotations

from collections import Counter

from typing_extensions import override

from broker.replication import partition as replication
from broker.replication.leader_state import LeaderState
from tests.support.replication_invariants import Violation
from tests.support.replication_world import World

STEPS = 400
TRIMS, ROUNDS = 0.1, 0.15
"""How likely an event is followed by a deletion at the leader, or by a turn of everybody."""
FEATURES = {"on_disk": True, "trims": True, "unclean": False, "rots": False}


class DeletionWorld(World):
    """Judges the answers, too."""

    def __init__(self, seed: int, **features: bool) -> None:
        self.answered = 0
        self.answers = 0
        self.looked_at: Counter[str] = Counter()
        super().__init__(seed, **(FEATURES | features))
        self.kinds["rot"] = 0  # nobody can tell a rotten last batch from a torn one

    @override
    def step(self) -> None:
        super().step()
        chance = self.rng.random()
        if chance < TRIMS:
            self._fault_trim(self.rng.choice(self.brokers))
        elif chance < TRIMS + ROUNDS:  # else nearly every deletion waits for ever
            self.calm_round(self.rng.randrange(8), fair=False)
            for broker in self.brokers:
                if broker.up and not broker.paused:
                    self.act(broker, broker.acknowledge)
        for broker in self.brokers:
            role, partition = broker.role, broker.partition
            if not broker.up or broker.paused or partition is None:
                continue
            start = partition.log.log_start_offset
            self._judge(broker.id, start, leads=isinstance(role, LeaderState))
            if isinstance(role, LeaderState) and start > self.answered:
                known = broker.image.partition(*partition.id)
                if not replication.replicas_that_may_restore(role, known, partition.log, start):
                    self.answered, self.answers = start, self.answers + 1

    def _judge(self, broker: int, start: int, *, leads: bool) -> None:
        present = self.controller.partition
        what = "leader" if leads and present.leader == broker else "candidate"
        if broker in present.isr or broker in present.elr:
            self.looked_at[what] += self.answered > 0
            if start < self.answered and not self.lost(self.ids[broker]):
                raise Violation("R10", f"{what} {broker} begins at {start}", self.answered)


def run(seed: int) -> DeletionWorld:
    """Run one seed; raise `Violation` at the first broken promise."""
    world = DeletionWorld(seed)
    for _ in range(STEPS):
        world.step()
    world.finish()
    return world
