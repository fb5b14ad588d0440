"""Controllers of a simulated cluster: the product's own voters and their machines, by one clock."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from raft_metadata.common.ids import NodeId
from raft_metadata.controller.controller import ControllerConfig
from raft_metadata.controller.topic_rules import TopicDefaults
from raft_metadata.image.metadata_state_machine import (
    Accepted,
    MetadataStateMachine,
    Rejected,
)
from raft_metadata.quorum.active_controller import ActiveController
from raft_metadata.quorum.metadata_quorum import MetadataQuorum
from raft_metadata.quorum.raft_node import ListenerEvents
from raft_metadata.quorum.wire import Codec
from tests.support.doors.quorum import install_voter
from tests.support.metadata_witness import SESSION_S, Witness
from tests.support.metadata_world import CLUSTER as METADATA_CLUSTER
from tests.support.quorum_sim import CLOCK, Sim, Voter
from tests.support.simulated_disk import Killed

if TYPE_CHECKING:
    from tests.support.metadata_sim import MetadataSim

RAFT_TICK_S = 0.025
CONTROLLER_TICK_S = 0.05
GRACE_S = 0.3
FALLBACK_S = 0.3
MIN_ISR = 2
RAFT = {
    "heartbeat_ms": 100,
    "election_timeout_ms": 301,
    "leader_fallback_ms": int(FALLBACK_S * 1000),
}
CONFIG = ControllerConfig(
    cluster_id=METADATA_CLUSTER,
    defaults=TopicDefaults(
        num_partitions=1,
        default_replication_factor=3,
        min_insync_replicas=MIN_ISR,
        partitions_per_batch_max=2,
    ),
    broker_session_timeout_ms=int(SESSION_S * 1000),
    broker_disconnect_grace_ms=int(GRACE_S * 1000),
    election_timeout_ms=400,
    fetch_wait_max_ms=300,
    changes_per_batch_max=2,
    leader_returned_ms=300,
)


class VirtualLoop(asyncio.BaseEventLoop):
    """An event loop that never waits: `turn` runs what is ready at the simulation's time."""

    def __init__(self) -> None:
        super().__init__()
        self._selector = _NothingToSelect()

    def time(self) -> float:
        return CLOCK.time

    def _process_events(self, events: object) -> None:
        pass

    def _write_to_self(self) -> None:
        pass

    def turn(self) -> None:
        while self._is_due():
            self._run_once()

    def _is_due(self) -> bool:
        return bool(self._ready or (self._scheduled and self._scheduled[0].when() <= CLOCK.time))


class _NothingToSelect:
    def select(self, _timeout: float | None) -> list[object]:
        return []


class SimClock:
    """The controllers' clock."""

    def monotonic_ms(self) -> int:
        return int(CLOCK.time * 1000)

    def wall_ms(self) -> int:
        return int(CLOCK.time * 1000)


class WatchedMachine(MetadataStateMachine):
    """The state machine of one life, with the witness beside it."""

    def __init__(self, life: ControllerLife, witness: Witness) -> None:
        # A short history: brokers are often sent snapshots.
        super().__init__(history_batches_max=12)
        self._life, self._witness = life, witness

    def apply(self, index: int, term: int, payload: bytes) -> Accepted | Rejected:
        before = self.image
        result = super().apply(index, term, payload)
        self._witness.applied(self._life, index, term, payload, before)
        return result

    def restore(self, chunks: Any, index: int, term: int) -> None:
        super().restore(chunks, index, term)
        self._witness.restored(self._life, index, self.image)


class WatchedQuorum(MetadataQuorum):
    """The door of one life; what it is given to append is seen."""

    life: ControllerLife

    def submit(self, payload: bytes, term: int) -> asyncio.Future[object]:
        self.life.world.witness.submitting(self.life, payload, term)
        return super().submit(payload, term)


class ControllerLife(Voter):
    """One life of one controller process."""

    def __init__(self, raft: ControllerSim, node: NodeId) -> None:
        self.world = world = raft.world
        self.number = world.lives = world.lives + 1
        self.is_dead = self.is_paused = False
        self.paused_at = 0.0
        self.inbox: list[Callable[[], None]] = []
        self.tasks: set[asyncio.Task[None]] = set()
        self.connections: set[tuple[int, int]] = set()
        self.raft_tick_due: float = 0
        self.controller_tick_due: float = 0
        self.started = CLOCK.time
        super().__init__(raft, node, partial(world.write_snapshot, self))
        install_voter(self.quorum, self.raft, self.disk, world.loop)
        world.witness.started(self)

    def make_machine(self) -> MetadataStateMachine:
        world = self.world
        machine = WatchedMachine(self, world.witness)
        self.quorum = WatchedQuorum(world.raft.config(self.node_id), machine, _Faults())
        self.quorum.life = self
        self.controller = ActiveController(
            machine,
            CONFIG,
            self.quorum,
            clock=SimClock(),
            random_source=world.rng.randbytes,
            faults=_Faults(),
        )
        self.controller_events = ListenerEvents(self.controller, _Faults())
        return machine

    # ListenerEvents

    def activated(self, term: int, index: int) -> None:
        self.controller_events.activated(term, index)
        self.world.witness.activated(self, term, index)

    def deactivated(self) -> None:
        self.controller_events.deactivated()

    def applied(self) -> None:
        self.controller_events.applied()

    def request_tick(self) -> None:
        self.world.tick_raft_at(self, CLOCK.time + 0.0005)


class _Faults:
    def fatal(self, what: str, error: BaseException | None = None) -> None:
        raise AssertionError(what) from error


class WorldFlusher:
    """A disk that takes its time: work and its news are events of the world (rule Q3)."""

    def __init__(self, life: ControllerLife) -> None:
        self.life = life
        self.jobs: deque[list[Callable[[], None] | None]] = deque()
        self.clear_at = 0.0

    def start(self, work: Callable[[], None], done: Callable[[], None]) -> None:
        world = self.life.world
        seconds = world.disk_delay(self.life.node_id)
        if not seconds and not self.jobs:
            work()
            done()
            return
        job: list[Callable[[], None] | None] = [work, done]
        self.jobs.append(job)
        self.clear_at = max(CLOCK.time + seconds, self.clear_at)
        early = world.rng.random() * (self.clear_at - CLOCK.time)
        world.after(early, partial(self._reached, job, news=False))
        world.at(self.clear_at, partial(self._reached, job, news=True))

    def _reached(self, job: list[Callable[[], None] | None], *, news: bool) -> None:
        life = self.life
        if life.is_dead or job not in self.jobs:
            return
        if life.is_paused:
            life.inbox.append(partial(self._reached, job, news=news))
            return
        try:
            self._work_up_to(job)
        except Killed:
            life.world.kill(life.node_id)
            return
        if news:
            while (done := self.jobs.popleft()) is not job:
                life.world.on_controller(life, done[1])
            life.world.on_controller(life, job[1])

    def _work_up_to(self, last: list[Callable[[], None] | None] | None) -> None:
        for job in self.jobs:
            work, job[0] = job[0], None
            if work is not None:
                work()
            if job is last:
                return

    def wait(self) -> None:
        self._work_up_to(None)

    def close(self) -> None:
        self.wait()
        self.jobs.clear()


class ControllerSim(Sim):
    """The simulated quorum with controllers as voters; messages are the world's events."""

    def __init__(self, world: MetadataSim, voters: int, seed: int, **config: Any) -> None:
        self.world = world
        self.link_clear_at: dict[tuple[int, int], float] = {}
        self.on_its_way: Counter[tuple[int, int]] = Counter()
        super().__init__(voters, seed, **config)

    def make_voter(self, node: NodeId) -> Voter:
        return ControllerLife(self, node)

    def make_flusher(self, voter: Voter) -> WorldFlusher:
        return WorldFlusher(voter)  # type: ignore[arg-type]

    def post(self, sender: NodeId, to: NodeId, message: dict[str, Any]) -> bool:
        world = self.world
        receiver = self.up.get(to)
        if receiver is None:
            return False
        life = self.up.get(sender)
        if life is None:  # it is just being made
            return False
        world.witness.said(life, to, message)
        if world.is_lost(sender, to):
            return True
        # One connection: nothing overtakes.
        link = (sender, to)
        when = max(CLOCK.time + world.delay(), self.link_clear_at.get(link, 0.0))
        self.link_clear_at[link] = when
        data = Codec.dumps(message)
        self.on_its_way[link] += len(data)
        world.at(when, partial(self._arrive, life, receiver, data))
        return True

    def backlog(self, sender: NodeId, to: NodeId) -> int:
        return self.on_its_way[sender, to]

    def _arrive(self, sender: ControllerLife, receiver: ControllerLife, data: bytes) -> None:
        self.on_its_way[sender.node_id, receiver.node_id] -= len(data)
        # The connection ends with either end.
        if sender.is_dead or receiver.is_dead:
            return
        self.world.on_controller(receiver, partial(self._hear, sender, receiver, data))

    def _hear(self, sender: ControllerLife, receiver: ControllerLife, data: bytes) -> None:
        message = Codec.loads(data)
        self.world.witness.heard(receiver, sender.node_id, message)
        receiver.raft.transport.on_message(sender.node_id, message)
        receiver.request_tick()
