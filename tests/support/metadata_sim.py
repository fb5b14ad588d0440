"""Real controllers over a simulated network and disks, under one seeded scheduler.

A controller is all of it: `ActiveController`, `MetadataStateMachine`, `MetadataQuorum`'s door and
a `RaftNode` with its journal, snapshots and filter. Stood in for are sockets, time, the platter
and the event loop's waiting. Everything that happens is an event in one heap, drawn from one seed.
Controllers: ``metadata_sim_lives``; brokers, operators: ``metadata_sim_clients``; what goes wrong
when: ``metadata_sim_story``.
"""

from __future__ import annotations

import asyncio
import heapq
import random
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from raft_metadata.common.errors import ErrorCode, KafkaError, StorageError
from raft_metadata.common.ids import DirectoryId, NodeId
from tests.support.doors.event_loop import set_running_loop
from tests.support.doors.quorum import take_wake
from tests.support.metadata_invariants import InvariantError
from tests.support.metadata_sim_lives import (
    CONFIG,
    CONTROLLER_TICK_S,
    RAFT,
    RAFT_TICK_S,
    ControllerLife,
    ControllerSim,
    VirtualLoop,
)
from tests.support.metadata_witness import Witness
from tests.support.quorum_sim import CLOCK
from tests.support.simulated_disk import Killed


class MetadataSim:
    """One seed's world. Raises `metadata_witness.InvariantError` at the first broken promise."""

    def __init__(self, seed: int, *, voters: int = 3, compact_every: int = 25) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.loop = VirtualLoop()
        set_running_loop(self.loop)
        self.lives = 0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0
        self.witness = Witness(self)
        self.defaults = CONFIG.defaults
        self.blocked: set[tuple[int, int]] = set()
        """(from, to) that hear nothing; controllers are 1, 2, …, brokers 11, 12, …"""
        self.loss = 0.0
        self.slow = 0.0
        """Chance of a message that takes a tenth of a second and more."""
        self.slow_disk = 0.0
        """Chance of a sync that does."""
        self.hung_disks: set[NodeId] = set()
        self.errors: list[BaseException] = []
        self.raft = ControllerSim(self, voters, seed, snapshot_min_entries=compact_every, **RAFT)
        self.owed_accepts: set[tuple[NodeId, NodeId, DirectoryId]] = set()
        self.sloppiness = 0.0
        self.brokers: list[Any] = []

    # ---- time

    def at(self, when: float, call: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._heap, (when, self._number, call))

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        self.at(CLOCK.time + seconds, call)

    def step(self) -> None:
        when, _, call = heapq.heappop(self._heap)
        CLOCK.time, CLOCK.calls = max(CLOCK.time, when), 0
        call()
        self.loop.turn()
        if self.errors:
            raise self.errors[0]

    def run(self, seconds: float) -> None:
        end = CLOCK.time + seconds
        while self._heap[0][0] <= end:
            self.step()
        CLOCK.time = end

    def run_until(self, condition: Callable[[], bool], seconds: float, every: float = 0.05) -> bool:
        end = CLOCK.time + seconds
        while CLOCK.time < end:
            if condition():
                return True
            self.run(every)
        return condition()

    # ---- the network

    def is_lost(self, sender: int, to: int) -> bool:
        return (sender, to) in self.blocked or (self.loss > 0 and self.rng.random() < self.loss)

    def delay(self) -> float:
        if self.slow and self.rng.random() < self.slow:
            return self.rng.uniform(0.05, 0.4)
        return self.rng.uniform(0.0005, 0.006)

    def disk_delay(self, node: NodeId) -> float:
        chance = self.rng.random()
        if node in self.hung_disks:
            return self.rng.uniform(0.2, 0.6)
        if chance < self.slow_disk:
            return self.rng.uniform(0.02, 0.25)
        return 0.0 if chance < 0.6 else self.rng.uniform(0.0002, 0.003)

    # ---- controllers

    @property
    def up(self) -> dict[NodeId, ControllerLife]:
        return self.raft.up  # type: ignore[return-value]

    def start(self, node: NodeId) -> None:
        try:
            self.raft.start(node)
        except Killed:  # while it was opening its files
            self.raft.disk.kill(str(self.raft.directory(node)))
            self.raft.disk.before = None
            return
        except StorageError as error:  # nothing rots here: whatever is missing was promised
            raise InvariantError("R16", f"voter {node} can't start", error) from error
        life = self.up[node]
        self.tick_raft_at(life, CLOCK.time + self.rng.uniform(0, RAFT_TICK_S))
        self.tick_controller_at(life, CLOCK.time + self.rng.uniform(0, CONTROLLER_TICK_S))
        for owed in sorted(self.owed_accepts):
            if owed[0] == node:
                self._accept(*owed)

    def kill(self, node: NodeId) -> None:
        life = self.up[node]
        life.is_dead = True
        self.raft.disk.before = None
        for task in life.tasks:
            task.cancel()
        self.raft.kill(node)
        self.witness.killed(life)

    def power_cut(self, node: NodeId, keep: float) -> None:
        if node in self.up:
            self.kill(node)
        self.raft.disk.cut_power(self.rng, keep, str(self.raft.directory(node)))

    def lose_disk(self, node: NodeId) -> None:
        """Rule Q4: an empty disk, and an operator who says so to every other voter."""
        if node in self.up:
            self.kill(node)
        self.raft.lose_disk(node, f"disk-{node}-{self.lives}-{CLOCK.time:.3f}")
        self.witness.disk_lost(node)
        for other in self.raft.ids:
            if other != node:
                owed = (other, node, self.raft.directory_ids[node])
                self.owed_accepts = {
                    old for old in self.owed_accepts if (old[0], old[1]) != (other, node)
                } | {owed}
                if other in self.up:
                    self.after(self.rng.uniform(0, 0.2), partial(self._accept, *owed))

    def _accept(self, other: NodeId, node: NodeId, directory: DirectoryId) -> None:
        life = self.up.get(other)
        if life is None or (other, node, directory) not in self.owed_accepts:
            return
        if life.is_paused:
            self.after(0.05, partial(self._accept, other, node, directory))
            return
        self.owed_accepts.discard((other, node, directory))
        try:
            life.raft.accept_voter(node, directory)
        except Killed:
            self.owed_accepts.add((other, node, directory))
            self.kill(other)

    def pause(self, node: NodeId, seconds: float) -> None:
        life = self.up[node]
        if not life.is_paused:
            life.is_paused = True
            life.paused_at = CLOCK.time
            self.after(seconds, partial(self.resume, life))

    def resume(self, life: ControllerLife) -> None:
        if life.is_dead or not life.is_paused:
            return
        life.is_paused = False
        waiting, life.inbox = life.inbox, []
        life.floor = (
            CLOCK.time
        )  # what it could not know while it stood still is not held against it
        # What came meanwhile and the timers that are late: either may be first.
        timers = [lambda: life.raft.doTick(0.0), life.controller.tick]
        self.rng.shuffle(timers)
        late = self.rng.random() < 0.5
        for call in (*waiting, *timers) if late else (*timers, *waiting):
            self.on_controller(life, call)
        life.raft_tick_due = life.controller_tick_due = 0
        self.tick_raft_at(life, CLOCK.time)
        self.tick_controller_at(life, CLOCK.time)

    def on_controller(self, life: ControllerLife, call: Callable[[], None]) -> None:
        """Something happens in a controller's process: now, or when it is no longer paused."""
        if life.is_dead:
            return
        if life.is_paused:
            life.inbox.append(call)
            return
        try:
            call()
            self.loop.turn()
        except Killed:
            self.kill(life.node_id)
            return
        if life.is_dead:
            return
        self.witness.look(life)
        if take_wake(life.controller):
            self.tick_controller_at(life, CLOCK.time + 0.0005)

    def tick_raft_at(self, life: ControllerLife, when: float) -> None:
        if not life.raft_tick_due or when < life.raft_tick_due:
            life.raft_tick_due = when
            self.at(when, partial(self._tick_raft, life, when))

    def _tick_raft(self, life: ControllerLife, when: float) -> None:
        if life.is_dead or life.raft_tick_due != when or life.is_paused:
            return
        life.raft_tick_due = 0
        self.on_controller(life, lambda: life.raft.doTick(0.0))
        self.tick_raft_at(life, CLOCK.time + RAFT_TICK_S)

    def tick_controller_at(self, life: ControllerLife, when: float) -> None:
        if not life.controller_tick_due or when < life.controller_tick_due:
            life.controller_tick_due = when
            self.at(when, partial(self._tick_controller, life, when))

    def _tick_controller(self, life: ControllerLife, when: float) -> None:
        if life.is_dead or life.controller_tick_due != when or life.is_paused:
            return
        life.controller_tick_due = 0
        self.on_controller(life, life.controller.tick)
        self.tick_controller_at(life, CLOCK.time + CONTROLLER_TICK_S)

    def write_snapshot(self, life: ControllerLife, write: Callable[[], None]) -> None:
        """A thread beside the loop: done some time later, or never."""
        if self.rng.random() < 0.5:
            write()
            return

        def later() -> None:
            if life.is_dead:
                return
            try:
                write()
            except Killed:
                self.kill(life.node_id)

        self.after(self.rng.uniform(0, 0.06), later)

    # ---- calls from brokers and operators

    def call(
        self,
        sender: int,
        node: NodeId,
        ask: Callable[[ControllerLife], Coroutine[Any, Any, Any] | Any],
        answered: Callable[[Any], None],
        timeout: float = 1.0,
        command: object = None,
    ) -> None:
        """Ask a controller over the network; `answered` hears its answer or a KafkaError, once."""
        call = _Call(self, sender, node, ask, answered)
        call.command = command
        self.after(timeout, call.time_out)
        if not self.is_lost(sender, node):
            self.after(self.delay(), call.arrive)

    def broker(self, broker_id: int) -> Any:
        return next(broker for broker in self.brokers if broker.broker_id == broker_id)

    @property
    def active(self) -> ControllerLife | None:
        """The active controller of the highest term, as an omniscient one sees it."""
        found = [life for life in self.up.values() if life.controller.is_active]
        return max(found, key=lambda life: life.term, default=None)

    # ---- the end

    def close(self) -> None:
        for life in self.up.values():
            for task in life.tasks:
                task.cancel()
        self.errors.clear()
        self._heap.clear()
        self.loop.turn()
        set_running_loop(None)
        self.loop.close()


class _Call:
    """One request on its way, answered once: by the controller, or by the time-out."""

    def __init__(
        self,
        world: MetadataSim,
        sender: int,
        node: NodeId,
        ask: Callable[[ControllerLife], Any],
        answered: Callable[[Any], None],
    ) -> None:
        self.world, self.sender, self.node = world, sender, node
        self.ask, self.answered = ask, answered
        self.is_done = False
        self.command: object = None
        self.arrived_at = 0.0

    def end(self, answer: object) -> None:
        if not self.is_done:
            self.is_done = True
            self.answered(answer)

    def time_out(self) -> None:
        self.end(KafkaError(ErrorCode.REQUEST_TIMED_OUT))

    def arrive(self) -> None:
        life = self.world.up.get(self.node)
        if life is None:
            self.end(KafkaError(ErrorCode.BROKER_NOT_AVAILABLE))  # refused: surely not written
            return
        self.arrived_at = CLOCK.time
        self.world.witness.arrived(life, self.command)
        self.world.on_controller(life, partial(self._serve, life))

    def _serve(self, life: ControllerLife) -> None:
        self.world.witness.read(life, self.command, self.arrived_at)
        try:
            answer = self.ask(life)
        except KafkaError as error:
            answer = error
        if not asyncio.iscoroutine(answer):
            self.reply(life, answer)
            return
        task = self.world.loop.create_task(self._wait(life, answer))
        life.tasks.add(task)
        task.add_done_callback(life.tasks.discard)

    async def _wait(self, life: ControllerLife, coroutine: Coroutine[Any, Any, Any]) -> None:
        try:
            answer = await coroutine
        except KafkaError as error:
            answer = error
        except Exception as error:  # noqa: BLE001 the world ends with it
            self.world.errors.append(error)
            return
        self.reply(life, answer)

    def reply(self, life: ControllerLife, answer: object) -> None:
        if life.is_paused:
            life.inbox.append(partial(self.reply, life, answer))
        elif not life.is_dead and not self.world.is_lost(self.node, self.sender):
            self.world.after(self.world.delay(), partial(self.end, answer))
