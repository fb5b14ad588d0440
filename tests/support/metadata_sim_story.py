"""What goes wrong in a `metadata_sim`, when, and that all comes back: one seed from end to end."""

from __future__ import annotations

import gc
import logging
from dataclasses import dataclass
from functools import partial

from raft_metadata.common.ids import BrokerId, NodeId
from raft_metadata.image.metadata_image import MetadataImage
from raft_metadata.records.records import BrokerState
from tests.support import metadata_invariants as invariant
from tests.support.doors.quorum import fetches_waiting
from tests.support.metadata_sim import MetadataSim
from tests.support.metadata_sim_clients import RACKS, Broker
from tests.support.metadata_sim_lives import SESSION_S
from tests.support.metadata_sim_operators import Operator
from tests.support.metadata_witness import Witness
from tests.support.quorum_sim import CLOCK
from tests.support.raising_faults import Died
from tests.support.simulated_disk import Killed

HEAL_LEADER_S = 3.0
HEAL_ALL_S = 8.0
ONE_WAY_S = 2.0
ONE_WAY_CHANGES_MAX = 1


@dataclass(frozen=True)
class Length:
    """How long a seed's history is."""

    trouble_s: float
    brokers: int
    extras: bool
    """Also judge how soon a dead broker is fenced, and how often the leader changes under a
    one-way cut."""


LONG_EVERY = 16
SHORT = Length(1.2, 3, extras=False)
LONG = Length(6.0, 5, extras=True)


class Story:
    """One seed: trouble, healing, judgement."""

    def __init__(self, seed: int, length: Length) -> None:
        CLOCK.time, CLOCK.calls = 1000.0, 0
        self.length = length
        first = seed % 7
        self.world = world = MetadataSim(
            seed, voters=5 if first == 3 and length.extras else 3, compact_every=12 + seed % 20
        )
        self.rng = world.rng
        world.sloppiness = 0.15
        world.brokers = [
            Broker(world, 11 + number, RACKS[number % len(RACKS)])
            for number in range(length.brokers)
        ]
        self.operator = Operator(world)
        self.is_over = False

    @property
    def witness(self) -> Witness:
        return self.world.witness

    # ---- the run

    def tell(self) -> Witness:
        world, length = self.world, self.length
        try:
            for node in world.raft.ids:
                world.start(node)
            for broker in world.brokers:
                broker.start()
            world.run(0.7)
            self._operate()
            self._trouble()
            world.run(length.trouble_s)
            self.heal()
            if length.extras:
                self.cut_one_way()
                self.lose_a_broker()
            self.judge_the_end()
        finally:
            world.close()
        return self.witness

    def _operate(self) -> None:
        if not self.is_over:
            self.operator.act()
            self.world.after(self.rng.uniform(0.01, 0.12), self._operate)

    def _trouble(self) -> None:
        if not self.is_over:
            self.fault()
            self.world.after(self.rng.uniform(0.02, 0.3), self._trouble)

    # ---- faults

    def fault(self) -> None:
        choice = self.rng.choice
        kind = choice(
            (
                self.cut_links,
                self.cut_links,
                self.isolate,
                self.isolate,
                self.lose_messages,
                self.slow_disks,
                self.hang_a_disk,
                self.mend_links,
                self.kill_controller,
                self.kill_controller,
                self.cut_power,
                self.die_at_the_disk,
                self.die_at_the_disk,
                self.start_controllers,
                self.start_controllers,
                self.pause_controller,
                self.pause_all,
                self.make_zombie,
                self.part_and_kill,
                self.part_and_kill,
                self.replace_disk,
                self.kill_broker,
                self.kill_broker,
                self.cut_power_of_brokers,
                self.start_brokers,
                self.start_brokers,
                self.pause_broker,
                self.shut_broker_down,
                self.intrude,
            )
        )
        self.witness.counts[kind.__name__] += 1
        kind()

    def _everybody(self) -> list[int]:
        return [*self.world.raft.ids, *(int(broker.broker_id) for broker in self.world.brokers)]

    def cut_links(self) -> None:
        rng, blocked = self.rng, self.world.blocked
        everybody = self._everybody()
        for _ in range(rng.choice((1, 2, 4))):
            a, b = rng.sample(everybody, 2)
            blocked.add((a, b))
            if rng.random() < 0.5:
                blocked.add((b, a))

    def isolate(self) -> None:
        """Cut one off from all, or one direction of it: a leader gladly."""
        rng, world = self.rng, self.world
        leaders = world.raft.leaders
        alone = (
            rng.choice(leaders) if leaders and rng.random() < 0.7 else rng.choice(world.raft.ids)
        )
        among = world.raft.ids if rng.random() < 0.5 else self._everybody()
        out, into = rng.choice(((True, True), (True, True), (True, False), (False, True)))
        for other in among:
            if other != alone:
                world.blocked |= {(alone, other)} if out else set()
                world.blocked |= {(other, alone)} if into else set()

    def mend_links(self) -> None:
        self.world.blocked.clear()
        self.world.loss = self.world.slow = self.world.slow_disk = 0.0
        self.world.hung_disks.clear()

    def lose_messages(self) -> None:
        self.world.loss = self.rng.choice((0.0, 0.02, 0.1, 0.3))
        self.world.slow = self.rng.choice((0.0, 0.02, 0.1))

    def slow_disks(self) -> None:
        self.world.slow_disk = self.rng.choice((0.0, 0.1, 0.4))

    def hang_a_disk(self) -> None:
        """What is appended stays in memory for long; what is heard is answered late."""
        node = self._a_controller()
        if node is not None:
            self.world.hung_disks.add(node)
            self.world.after(
                self.rng.uniform(0.3, 1.0), partial(self.world.hung_disks.discard, node)
            )

    def _a_controller(self) -> NodeId | None:
        up = list(self.world.up)
        leaders = self.world.raft.leaders
        if leaders and self.rng.random() < 0.5:
            return self.rng.choice(leaders)
        return self.rng.choice(up) if up else None

    def kill_controller(self) -> None:
        node = self._a_controller()
        if node is not None:
            self.world.kill(node)
            self._back_soon(node)

    def cut_power(self) -> None:
        """Of one, or of all at once."""
        world, rng = self.world, self.rng
        nodes = list(world.raft.ids) if rng.random() < 0.2 else [self._a_controller()]
        for node in nodes:
            if node is not None:
                world.power_cut(node, rng.choice((0.0, 0.0, 0.5)))
                self._back_soon(node)

    def die_at_the_disk(self) -> None:
        """SIGKILL at one of the next operations on a disk; half of the time the power goes too."""
        world, rng = self.world, self.rng
        node = self._a_controller()
        if node is None:
            return
        home, left = f"{world.raft.directory(node)}", [rng.randint(1, 12)]

        def hook(operation: str, path: str) -> None:
            if operation == "create" or not (path == home or path.startswith(home + "/")):
                return  # what is made is also truncated, new or not
            left[0] -= 1
            if left[0] == 0:
                world.raft.disk.before = None
                if rng.random() < 0.6:
                    world.after(0.0, partial(self._then_no_power, node))
                self._back_soon(node)
                raise Killed

        world.raft.disk.before = hook

    def _then_no_power(self, node: NodeId) -> None:
        if node not in self.world.up:
            self.witness.counts["power cut at the disk"] += 1
            self.world.power_cut(node, self.rng.choice((0.0, 0.5)))

    def _back_soon(self, node: NodeId) -> None:
        if self.rng.random() < 0.7:
            self.world.after(self.rng.uniform(0.02, 0.5), partial(self._start, node))

    def _start(self, node: NodeId) -> None:
        if node not in self.world.up:
            self.world.start(node)

    def start_controllers(self) -> None:
        for node in self.world.raft.ids:
            self._start(node)

    def pause_controller(self) -> None:
        node = self._a_controller()
        if node is not None:
            self.world.pause(node, self.rng.choice((0.05, 0.3, 0.7, 1.5)))

    def pause_all(self) -> None:
        """The whole machine stands still."""
        seconds = self.rng.choice((0.3, 0.8, 1.3))
        for node in list(self.world.up):
            self.world.pause(node, seconds)
        for broker in self.world.brokers:
            broker.is_paused = True
            self.world.after(seconds, broker.resume)

    def make_zombie(self) -> None:
        """A leader sleeps through its own deposition, and wakes up where no voter can tell it."""
        world, leaders = self.world, self.world.raft.leaders
        if leaders:
            node = self.rng.choice(leaders)
            for other in world.raft.ids:
                if other != node:
                    world.blocked |= {(node, other), (other, node)}
            seconds = self.rng.choice((0.7, 0.9, 1.2))
            world.pause(node, seconds)
            world.after(seconds - 0.01, partial(self.operator.ask_one_that_sleeps, node))

    def part_and_kill(self) -> None:
        """A minority is cut off; what the others commit meanwhile must outlive one of them.

        The power of one of the majority is cut, or its disk lost; the rest of it stands still;
        the minority comes back: together with the one that forgot it must not be enough.
        """
        world, rng = self.world, self.rng
        leaders = world.raft.leaders
        if len(leaders) != 1 or len(world.up) < len(world.raft.ids) or self.is_any_fenced():
            return
        ids = [node for node in world.raft.ids if node != leaders[0]]
        rng.shuffle(ids)
        forgetful, parted = ids[0], ids[1 : 1 + len(ids) // 2]
        world.blocked.clear()
        for node in parted:
            for other in (leaders[0], forgetful, *ids[1 + len(parted) :]):
                world.blocked |= {(node, other), (other, node)}
        world.after(rng.uniform(0.1, 0.3), partial(self._forget, forgetful, parted))

    def _forget(self, forgetful: NodeId, parted: list[NodeId]) -> None:
        world, rng = self.world, self.rng
        if self.is_over or forgetful not in world.up:
            return
        if rng.random() < 0.5 and not self.is_any_fenced():
            world.lose_disk(forgetful)
        else:
            world.power_cut(forgetful, 0.0)
        for node in list(world.up):
            if node not in parted:
                world.pause(node, 1.2)
        world.blocked.clear()
        world.after(rng.uniform(0.0, 0.1), partial(self._start, forgetful))
        self.witness.counts["a minority and one that forgot"] += 1

    def replace_disk(self) -> None:
        """Within the loss budget: no other voter is without its disk (rule Q4)."""
        world = self.world
        if self.rng.random() < 0.6 or self.is_any_fenced():
            return
        node = self.rng.choice(world.raft.ids)
        if node in world.up:
            world.lose_disk(node)
            world.after(self.rng.uniform(0.02, 0.3), partial(self._start, node))

    def is_any_fenced(self) -> bool:
        world = self.world
        if len(world.up) < len(world.raft.ids) or world.owed_accepts:
            return True
        return any(life.disk.home.fenced for life in world.up.values())

    def _a_broker(self) -> Broker:
        return self.rng.choice(self.world.brokers)

    def kill_broker(self) -> None:
        """It comes back as it was, with partitions it can't vouch for, or on another disk."""
        rng, broker = self.rng, self._a_broker()
        if broker.process is None:
            return
        held = broker.held()
        unclean = tuple(where for where in held if rng.random() < 0.4)
        if rng.random() < 0.25:
            broker.lose_disk()
        else:
            broker.kill()
        if rng.random() < 0.8:
            some = unclean if rng.random() < 0.4 else ()
            self.world.after(rng.uniform(0.02, 1.0), partial(self._start_broker, broker, some))

    def cut_power_of_brokers(self) -> None:
        """Of all at once: none of them can vouch for what it holds."""
        for broker in self.world.brokers:
            held = tuple(broker.held())
            broker.kill()
            some = held if self.rng.random() < 0.9 else ()
            when = self.rng.uniform(0.02, 0.5)
            self.world.after(when, partial(self._start_broker, broker, some))

    def _start_broker(self, broker: Broker, unclean: tuple = ()) -> None:
        if broker.process is None:
            broker.start(unclean)

    def start_brokers(self) -> None:
        for broker in self.world.brokers:
            self._start_broker(broker)

    def pause_broker(self) -> None:
        broker = self._a_broker()
        broker.is_paused = True
        self.world.after(self.rng.choice((0.2, 0.5, 1.0)), broker.resume)

    def shut_broker_down(self) -> None:
        self._a_broker().shut_down()

    def intrude(self) -> None:
        """A second machine with the id of a broker that lives: it must wait its turn."""
        broker = self._a_broker()
        if broker.process is None or broker.process.epoch is None:
            return
        old = broker.process
        broker.lives += 1
        broker.disks += 1
        double = Broker(self.world, broker.broker_id, broker.rack)
        double.lives, double.disks = broker.lives, broker.disks
        double.thorough = False
        double.start()
        double.process.image = old.image
        double.process.is_loaded = True
        double.register(double.process)
        self.world.after(self.rng.uniform(0.1, 0.4), double.kill)

    # ---- healing

    def heal(self) -> None:
        """All up, all links whole; from here on what may last is bounded."""
        world = self.world
        self.is_over = True
        world.sloppiness = 0.0
        self.mend_links()
        world.raft.disk.before = None
        for node in list(world.up):
            world.resume(world.up[node])
        self.start_controllers()
        for broker in world.brokers:
            broker.is_paused = False
        self.start_brokers()
        found = world.run_until(lambda: world.active is not None, HEAL_LEADER_S)
        invariant.r17_a_leader_soon_after_healing(self.witness.tally, found, HEAL_LEADER_S)
        world.run_until(self.is_at_rest, HEAL_ALL_S)
        self.judge_rest()

    def is_at_rest(self) -> bool:
        world = self.world
        self.start_brokers()
        active = world.active
        if active is None or not self.operator.end_drains():
            return False
        image = active.machine.image
        return (
            not any(life.tasks for life in world.up.values() if self._commands(life))
            and all(
                life.machine.image.next_offset == image.next_offset for life in world.up.values()
            )
            and all(self._is_well(broker, image) for broker in world.brokers)
            and all(topic.is_complete for topic in image.topics.values())
            and self._isrs_full(image)
            and not active.controller.status()["batches_in_flight"]
        )

    def _commands(self, life: object) -> int:
        """Commands under way: all calls but long polls."""
        return len(life.tasks) - fetches_waiting(life.controller)  # type: ignore[attr-defined]

    def _is_well(self, broker: Broker, image: MetadataImage) -> bool:
        process, known = broker.process, image.brokers.get(broker.broker_id)
        return (
            process is not None
            and known is not None
            and known.broker_epoch == process.epoch
            and known.state is BrokerState.UNFENCED
            and process.image.next_offset == image.next_offset
        )

    def _isrs_full(self, image: MetadataImage) -> bool:
        return all(
            set(partition.isr) == set(partition.replicas) and not partition.is_reassigning
            if partition.has_leader
            else True
            for topic in image.topics.values()
            for partition in topic.partitions
        )

    def judge_rest(self) -> None:
        world, t = self.world, self.witness.tally
        image = self.witness.reference.image
        waiting = [life.node_id for life in world.up.values() if self._commands(life) > 0]
        invariant.r18_every_command_is_answered(t, waiting)
        alive = [broker.broker_id for broker in world.brokers]
        invariant.c14_every_live_broker_comes_back(t, image, alive, HEAL_ALL_S)
        offsets = {
            broker.broker_id: broker.process.image.next_offset
            for broker in world.brokers
            if broker.process is not None
        }
        invariant.p13_brokers_converge(t, offsets, image.next_offset)
        invariant.p12_isrs_fill_up_again(t, image, alive)

    # ---- after healing

    def cut_one_way(self) -> None:
        """One direction of one link, or of all links of one voter, and nothing else."""
        world = self.world
        ids, leaders = world.raft.ids, world.raft.leaders
        one = leaders[0] if leaders and self.rng.random() < 0.8 else self.rng.choice(ids)
        others = [node for node in ids if node != one]
        if self.rng.random() < 0.5:
            others = [self.rng.choice(others)]
        speaks = self.rng.random() < 0.5
        before = len(self.witness.leaders)
        world.blocked = {(one, other) if speaks else (other, one) for other in others}
        world.run(ONE_WAY_S)
        changes = len(self.witness.leaders) - before
        self.witness.counts[f"{changes} changes under a one-way cut"] += 1
        invariant.r19_few_leader_changes_under_a_one_way_cut(
            self.witness.tally, changes, ONE_WAY_CHANGES_MAX
        )
        world.blocked = set()
        world.run_until(lambda: world.active is not None, HEAL_LEADER_S)
        world.run_until(self.is_at_rest, HEAL_ALL_S)

    def lose_a_broker(self) -> None:
        world, broker = self.world, self._a_broker()
        image = self.witness.reference
        broker_id = BrokerId(broker.broker_id)
        broker.kill()
        began, within = CLOCK.time, SESSION_S + 0.3

        def is_fenced() -> bool:
            return image.image.brokers[broker_id].state is BrokerState.FENCED

        found = world.run_until(is_fenced, 2.0, every=0.02)
        took = CLOCK.time - began if found else None
        invariant.c6_a_dead_broker_is_fenced_in_time(self.witness.tally, took, within)
        world.run(0.3)

    def judge_the_end(self) -> None:
        self.witness.final()


def length_of(seed: int) -> Length:
    """Most seeds are short; a history grows strange ways only with time."""
    return LONG if seed % LONG_EVERY == 0 else SHORT


def tell(seed: int, length: Length | None = None) -> Witness:
    """Run one seed; raises at the first broken promise."""
    length = length or length_of(seed)
    # A world is one knot of cycles: collecting while it runs finds nothing and costs a third.
    gc.disable()
    logging.disable(logging.CRITICAL)
    try:
        return Story(seed, length).tell()
    except Died as death:
        # A state machine that raises ends its process: the witness stood inside.
        broken = death.__cause__
        raise broken if isinstance(broken, invariant.InvariantError) else death from None
    finally:
        logging.disable(logging.NOTSET)
        gc.enable()
