"""A cluster of real `RaftNode`s in one process: virtual clock, in-memory network and disk.

The library, our filters, journal, snapshots and elections are the real ones; only sockets, time
and the platter are stood in for. Use inside the fixture `quorum_world`.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pysyncobj.syncobj
import pytest

from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import ClusterId, DirectoryId, NodeId
from raft_metadata.quorum.config import QuorumConfig
from raft_metadata.quorum.data_dir import (
    Identity,
    VoterDisk,
    format_raft_dir,
    format_rejoining_raft_dir,
    open_voter_disk,
)
from raft_metadata.quorum.raft_node import RaftNode, RaftParts
from raft_metadata.quorum.wire import Codec
from tests.support.raising_faults import RaisingFaults
from tests.support.simulated_disk import Killed, SimulatedDisk

CLUSTER = ClusterId("cluster-of-the-test")
STEP_S = 0.01


class VirtualClock:
    def __init__(self) -> None:
        self.time = 1000.0
        self.calls = 0

    def __call__(self) -> float:
        self.calls += 1
        if self.calls > 300:  # the library's send loop spins until the clock says stop
            self.time += 0.001
        return self.time


CLOCK = VirtualClock()


class Answer:
    """A future without a loop."""

    def __init__(self) -> None:
        self.result: object = None
        self.error: KafkaError | None = None
        self.is_done = False

    def done(self) -> bool:
        return self.is_done

    def cancelled(self) -> bool:
        return False

    def set_result(self, result: object) -> None:
        self.result, self.is_done = result, True

    def set_exception(self, error: KafkaError) -> None:
        self.error, self.is_done = error, True

    @property
    def code(self) -> ErrorCode | None:
        return None if self.error is None else self.error.code

    @property
    def acknowledged(self) -> bool:
        return self.is_done and self.error is None


class Machine:
    """Remembers every payload with its index and term."""

    def __init__(self) -> None:
        self.applied: list[tuple[int, int, bytes]] = []

    def apply(self, index: int, term: int, payload: bytes) -> object:
        self.applied.append((index, term, payload))
        return len(self.applied)

    def capture(self) -> object:
        return tuple(self.applied)

    def chunks(self, captured: object) -> Iterator[bytes]:
        yield b"state"
        yield msgspec.json.encode(captured)

    def restore(self, chunks: Sequence[bytes], index: int, term: int) -> None:
        assert chunks[0] == b"state"
        decoded = msgspec.json.decode(chunks[1], type=list[tuple[int, int, bytes]])
        assert not decoded or decoded[-1][0] <= index
        self.applied = decoded

    @property
    def payloads(self) -> list[bytes]:
        return [payload for _, _, payload in self.applied]


class SimLinks:
    """`transport.Links` over the simulated network."""

    def __init__(self, voter: Voter) -> None:
        self._voter = voter

    def send(self, node: NodeId, message: dict[str, Any]) -> bool:
        return self._voter.sim.post(self._voter.node_id, node, message)

    def drop(self, node: NodeId) -> None:
        self._voter.sim.relink(self._voter.node_id, node)

    def backlog_bytes(self, node: NodeId) -> int:
        return self._voter.sim.backlog(self._voter.node_id, node)


class SimFlusher:
    """A disk that takes its time: work and its news are events of the simulation (rule Q3).

    `steps` draws how many steps the news take; 0 is a disk that is never waited for. The work
    itself is done at some step before.
    """

    def __init__(self, sim: Sim) -> None:
        self._sim = sim
        self.steps = sim.flush_steps
        self.jobs: deque[list[Any]] = deque()  # [steps to the work, steps to the news, both]

    def start(self, work: Callable[[], None], done: Callable[[], None]) -> None:
        steps = self.steps()
        if steps == 0 and not self.jobs:
            work()
            done()
            return
        self.jobs.append([self._sim.flush_rng.randint(0, steps), steps, work, done])

    def step(self) -> None:
        for job in list(self.jobs):
            job[0] -= 1
            job[1] -= 1
            if job[0] < 0:
                self._work(job)
        while self.jobs and self.jobs[0][1] < 0:
            self.jobs.popleft()[3]()

    @staticmethod
    def _work(job: list[Any]) -> None:
        work, job[2] = job[2], None
        if work is not None:
            work()

    def wait(self) -> None:
        for job in self.jobs:
            self._work(job)

    def close(self) -> None:
        self.wait()
        self.jobs.clear()


class Voter:
    """One life of one voter process."""

    def __init__(self, sim: Sim, node: NodeId, run: Callable[[Callable[[], None]], None]) -> None:
        self.sim, self.node_id = sim, node
        self.machine, self.faults = self.make_machine(), RaisingFaults()
        self.activations: list[tuple[int, int]] = []
        self.events: list[str] = []
        config = sim.config(node)
        self.flusher = sim.make_flusher(self)
        self.disk: VoterDisk = open_voter_disk(
            config, self.machine, self.faults, sim.disk, run=run, flusher=self.flusher
        )
        self.raft: Any = RaftNode(
            RaftParts(
                config=config,
                home=self.disk.home,
                journal=self.disk.journal,
                snapshots=self.disk.snapshots,
                machine=self.machine,
                events=self,
                faults=self.faults,
                links=SimLinks(self),
                request_tick=self.request_tick,
                now=CLOCK,
                rng=random.Random(sim.seed * 1000 + node),
            )
        )

    def make_machine(self) -> Any:
        """What the log is applied to; another simulation may put a real one here."""
        return Machine()

    def request_tick(self) -> None:
        """Something can go on at once; here all tick anyway."""

    # ListenerEvents
    def activated(self, term: int, index: int) -> None:
        self.activations.append((term, index))
        self.events.append(f"activated {term}")

    def deactivated(self) -> None:
        self.activations.clear()
        self.events.append("deactivated")

    def applied(self) -> None:
        pass

    @property
    def leads(self) -> bool:
        return bool(self.raft.role == "leader")

    @property
    def term(self) -> int:
        return int(self.raft.raftCurrentTerm)

    def hear(self, sender: NodeId, message: dict[str, Any]) -> None:
        """A message as it comes from the wire."""
        self.receive(sender, Codec.dumps(message))

    def receive(self, sender: NodeId, data: bytes) -> None:
        """The bytes of one frame."""
        self.raft.transport.on_message(sender, Codec.loads(data))

    def submit(self, payload: bytes, term: int | None = None) -> Answer:
        answer = Answer()
        self.raft.submit(payload, self.term if term is None else term, answer)
        return answer


class Sim:
    """Voters 1..n. `cut` holds pairs that hear nothing of each other; `drop` may swallow."""

    def __init__(self, voters: int = 3, seed: int = 1, **config: Any) -> None:
        random.seed(seed)  # the library draws its election time-outs there
        self.seed, self.settings = seed, config
        self.disk = SimulatedDisk()
        self.ids = [NodeId(node) for node in range(1, voters + 1)]
        self.directory_ids = {node: DirectoryId(f"disk-{node}") for node in self.ids}
        self.up: dict[NodeId, Voter] = {}
        self.queue: deque[tuple[NodeId, NodeId, bytes]] = deque()
        self.cut: set[frozenset[NodeId]] = set()
        self.drop: Callable[[NodeId, NodeId, dict[str, Any]], bool] = lambda *_: False
        self.said: list[tuple[NodeId, NodeId, dict[str, Any]]] = []
        self.flush_rng = random.Random(seed)
        self.flush_steps: Callable[[], int] = lambda: 0
        self.run_snapshot: Callable[[Callable[[], None]], None] = lambda write: write()
        for node in self.ids:
            self.format(node)

    def directory(self, node: NodeId) -> Path:
        return Path(f"/node-{node}")

    def config(self, node: NodeId) -> QuorumConfig:
        settings: dict[str, Any] = {
            "snapshot_min_entries": 10**9,
            "snapshot_max_interval_ms": 10**12,
            "reserve_bytes": 0,
            **self.settings,
        }
        return QuorumConfig(
            node_id=node,
            cluster_id=CLUSTER,
            directory_id=self.directory_ids[node],
            raft_dir=self.directory(node),
            bind="127.0.0.1:1",
            voters={voter: f"127.0.0.1:{voter}" for voter in self.ids},
            **settings,
        )

    def format(self, node: NodeId, *, rejoin: bool = False) -> None:
        identity = Identity(cluster_id=CLUSTER, node_id=node, directory_id=self.directory_ids[node])
        if rejoin:
            others = {v: d for v, d in self.directory_ids.items() if v != node}
            format_rejoining_raft_dir(self.directory(node), identity, others, disk=self.disk)
        else:
            format_raft_dir(self.directory(node), identity, self.directory_ids, disk=self.disk)

    def write_log(self, node: NodeId, term: int, terms: Sequence[int]) -> None:
        """A log written in an earlier life: the terms of entries 2, 3, …"""
        faults, machine = RaisingFaults(), Machine()
        disk = open_voter_disk(self.config(node), machine, faults, self.disk)
        disk.journal.set_vote(term, None)
        disk.journal.add(b"\1", 1, 0)
        for index, entry_term in enumerate(terms, 2):
            disk.journal.add(b"\0x", index, entry_term)
        disk.journal.sync()
        disk.close()

    # -- life and death

    def start(self, *nodes: NodeId) -> None:
        for node in nodes or self.ids:
            voter = self.make_voter(node)
            for other, its in self.up.items():
                self._link(its, node, up=True)
                self._link(voter, other, up=True)
            self.up[node] = voter

    def make_voter(self, node: NodeId) -> Voter:
        """A new life of this voter."""
        return Voter(self, node, self._snapshot)

    def make_flusher(self, voter: Voter) -> Any:
        return SimFlusher(self)

    def _snapshot(self, write: Callable[[], None]) -> None:
        self.run_snapshot(write)

    def stamp(self, sender: int, to: int) -> list[str]:
        """What a message from one to the other carries."""
        ids = {int(node): str(directory) for node, directory in self.directory_ids.items()}
        return [CLUSTER, ids[sender], ids[to]]

    def _link(self, voter: Voter, other: NodeId, *, up: bool) -> None:
        transport = voter.raft.transport
        (transport.on_connected if up else transport.on_disconnected)(other)

    def relink(self, one: NodeId, other: NodeId) -> None:
        """A connection is closed, and made again at once."""
        both = [(self.up[a], b) for a, b in ((one, other), (other, one)) if {a, b} <= set(self.up)]
        for up in (False, True):
            for voter, peer in both:
                self._link(voter, peer, up=up)

    def backlog(self, sender: NodeId, to: NodeId) -> int:
        """What is on its way from one to the other."""
        return sum(len(data) for a, b, data in self.queue if (a, b) == (sender, to))

    def kill(self, *nodes: NodeId) -> None:
        for node in nodes or list(self.up):
            self.up.pop(node)
            self.disk.kill(str(self.directory(node)))
            for its in self.up.values():
                self._link(its, node, up=False)

    def lose_disk(self, node: NodeId, directory_id: str) -> None:
        """Kill it, give it an empty disk, formatted to rejoin."""
        if node in self.up:
            self.kill(node)
        self.disk.wipe(str(self.directory(node)))
        self.directory_ids[node] = DirectoryId(directory_id)
        self.format(node, rejoin=True)

    def accept(self, node: NodeId, *by: NodeId) -> None:
        for other in by or [other for other in self.up if other != node]:
            self.up[other].raft.accept_voter(node, self.directory_ids[node])

    # -- the network

    def post(self, sender: NodeId, to: NodeId, message: dict[str, Any]) -> bool:
        if self.drop(sender, to, message):
            return True
        self.said.append((sender, to, message))
        if to not in self.up or frozenset((sender, to)) in self.cut:
            return False
        self.queue.append((sender, to, Codec.dumps(message)))
        return True

    def _deliver(self) -> None:
        while self.queue:
            sender, to, data = self.queue.popleft()
            if to in self.up:
                self._guard(to, partial(self.up[to].receive, sender, data))

    def _guard(self, node: NodeId, call: Callable[[], None]) -> None:
        try:
            call()
        except Killed:
            self.kill(node)

    # -- time

    def step(self) -> None:
        CLOCK.time += STEP_S
        CLOCK.calls = 0
        for node, voter in list(self.up.items()):
            self._guard(node, partial(voter.raft.doTick, 0.0))
            if node in self.up:
                self._guard(node, voter.flusher.step)
        self._deliver()

    def until(self, condition: Callable[[], object], seconds: float) -> bool:
        end = CLOCK.time + seconds
        while CLOCK.time < end:
            if condition():
                return True
            self.step()
        return bool(condition())

    def pass_time(self, seconds: float) -> None:
        self.until(lambda: False, seconds)

    @property
    def leaders(self) -> list[NodeId]:
        return [node for node, voter in self.up.items() if voter.leads]

    def active_leader(self, seconds: float = 10.0) -> Voter | None:
        """The leader of the highest term, once some leader is active."""

        def active() -> list[Voter]:
            return [voter for voter in self.up.values() if voter.leads and voter.activations]

        if not self.until(active, seconds):
            return None
        return max(active(), key=lambda voter: voter.term)

    def lead(self, node: NodeId) -> Voter:
        """Make it the one active leader."""
        for other, voter in self.up.items():
            voter.raft.election_deadline = CLOCK.time + (0 if other == node else 2)
        voter = self.up[node]
        assert self.until(lambda: self.leaders == [node] and voter.activations, 20), "no leader"
        return voter

    def commit(self, node: NodeId, payload: bytes, seconds: float = 3.0) -> Answer:
        answer = self.up[node].submit(payload)
        self.until(answer.done, seconds)
        return answer


def indexes(entries: Iterable[tuple[bytes, int, int]]) -> list[int]:
    """Return the indexes of journal entries."""
    return [entry[1] for entry in entries]


@pytest.fixture
def quorum_world(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library under the virtual clock."""
    monkeypatch.setattr(CLOCK, "time", 1000.0)
    monkeypatch.setattr(pysyncobj.syncobj, "monotonicTime", CLOCK)
