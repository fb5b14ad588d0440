"""A forwarding broker, three replicas that elect each other, and a network that loses answers.

Drives the product's own `SequencedSender` and `ProducerStates`. What a client is told must be true
in the committed log: *ok* is there once, *not written* never, *unknown* at most once (rule F1).
tests/support/seeds.py describes which seeds run and how to replay one.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

import pytest

from broker.log.producer_state import ProducerStates
from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome
from raft_metadata.common.ids import Claim
from raft_metadata.common.sequenced_sender import InFlightBatch, PendingProduce, SequencedSender
from tests.support.seeds import Counts, Seeds

STEPS = 160
PATIENT_MS = 100_000


class Entry(NamedTuple):
    epoch: int
    claim: Claim
    values: tuple[bytes, ...]
    offset: int


@dataclass
class Replica:
    log: list[Entry] = field(default_factory=list)
    states: ProducerStates = field(default_factory=ProducerStates)

    @property
    def end(self) -> int:
        return self.log[-1].offset + len(self.log[-1].values) if self.log else 0

    def take(self, entry: Entry) -> None:
        self.log.append(entry)
        last = entry.offset + len(entry.values) - 1
        self.states.note(entry.claim, entry.offset, last, 0, 0)

    def cut(self, keep: int) -> None:
        del self.log[keep:]
        if not self.states.truncate_to(self.end):
            self.states = ProducerStates()
            for entry in self.log:
                last = entry.offset + len(entry.values) - 1
                self.states.note(entry.claim, entry.offset, last, 0, 0)


class Frame(NamedTuple):
    call: Call
    claim: Claim
    values: tuple[bytes, ...]
    head: bool


@dataclass
class Call:
    crossing: InFlightBatch
    open: bool = True


class DelayedProduce(NamedTuple):
    call: Call
    epoch: int
    base: int
    end: int


class World:
    def __init__(self, seed: int, *, rebuilt: bool = True) -> None:
        self.random = Random(seed)
        self.rebuilt = rebuilt
        self.replicas = [Replica() for _ in range(3)]
        self.leader, self.epoch, self.committed = 0, 0, 0
        self.channel = SequencedSender(7)
        self.network: list[list[Frame]] = [[]]
        """Per connection, in order: the last one is in use, the others are zombies."""
        self.target = 0
        self.parked: list[DelayedProduce] = []
        self.open: list[Call] = []
        self.now_ms = 0
        self.told: dict[bytes, str] = {}
        self.made = 0
        self.patient: set[bytes] = set()
        """Values whose client waits until everything is well again."""

    # the client and the forwarder

    def produce(self) -> None:
        for _ in range(self.random.choice([1, 1, 2, 8])):
            value = b"v%d" % self.made
            self.made += 1
            patience = self.random.choice([20, 100, PATIENT_MS])
            if patience == PATIENT_MS:
                self.patient.add(value)
            deadline = self.now_ms + patience

            def done(base: int, error: KafkaError | None, value: bytes = value) -> None:
                assert value not in self.told, "told twice"
                self.told[value] = "ok" if error is None else error.outcome.value
                if error is None:
                    self.offsets[value] = base

            self.channel.add(PendingProduce(value, 1, (), deadline, done))

    offsets: dict[bytes, int]

    def send(self) -> None:
        while (crossing := self.channel.due()) is not None:
            call = Call(crossing)
            if self.random.random() < 0.05:
                unreachable = KafkaError(ErrorCode.NETWORK_EXCEPTION, outcome=Outcome.NOT_WRITTEN)
                self.channel.failed(crossing, unreachable)
                return
            self.open.append(call)
            values = tuple(crossing.text.split(b","))
            head = self.channel.is_head(crossing)
            self.network[-1].append(Frame(call, crossing.claim, values, head))

    def answer(self, call: Call, base: int, error: KafkaError | None = None) -> None:
        if not call.open:
            return
        if self.random.random() < 0.15:
            return  # lost on the way back: the attempt's own time will end
        self.finish(call, base, error)

    def finish(self, call: Call, base: int, error: KafkaError | None) -> None:
        call.open = False
        self.open.remove(call)
        if error is None:
            self.channel.succeeded(call.crossing, base)
        else:
            self.channel.failed(call.crossing, error)

    def time_out(self) -> None:
        if self.open:
            call = self.random.choice(self.open)
            self.finish(call, -1, KafkaError(ErrorCode.REQUEST_TIMED_OUT, "no answer"))

    def lose_connection(self) -> None:
        """Everything under way is unknown; what was sent may still arrive, late or never."""
        self.network.append([])
        for call in list(self.open):
            self.finish(call, -1, KafkaError(ErrorCode.NETWORK_EXCEPTION, "lost"))

    # the leader

    def deliver(self) -> None:
        busy = [frames for frames in self.network if frames]
        if not busy:
            return
        frames = self.random.choice(busy)
        call, claim, values, head = frames.pop(0)
        if frames is not self.network[-1] and self.random.random() < 0.3:
            return
        if self.target != self.leader:
            self.answer(call, -1, KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
            return
        replica = self.replicas[self.leader]
        if self.random.random() < 0.04:
            self.answer(call, -1, KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS))
            return
        try:
            found = replica.states.check(claim, len(values), 0, may_begin=head)
        except KafkaError as error:
            self.answer(call, -1, error)
            return
        if found is None:
            entry = Entry(self.epoch, claim, values, replica.end)
            replica.take(entry)
            base, end, epoch = entry.offset, replica.end, self.epoch
        else:
            base, end = found.first_offset, found.last_offset + 1
            epoch = next(each.epoch for each in replica.log if each.offset == base)
        self.parked.append(DelayedProduce(call, epoch, base, end))
        self.resolve()

    def replicate(self) -> None:
        leader = self.replicas[self.leader]
        for number, replica in enumerate(self.replicas):
            if number == self.leader or self.random.random() < 0.5:
                continue
            same = 0
            for mine, theirs in zip(replica.log, leader.log, strict=False):
                if mine[:2] != theirs[:2] or mine.offset != theirs.offset:
                    break
                same += 1
            if same < len(replica.log):
                assert replica.log[same].offset >= self.committed
                replica.cut(same)
            if same < len(leader.log):
                replica.take(leader.log[same])
        while (following := self.next_commit()) is not None:
            self.committed = following
        self.resolve()

    def next_commit(self) -> int | None:
        for entry in self.replicas[self.leader].log:
            if entry.offset >= self.committed:
                everywhere = all(entry in replica.log for replica in self.replicas)
                return entry.offset + len(entry.values) if everywhere else None
        return None

    def resolve(self) -> None:
        """Rule R5: by (epoch, offset), and only once committed."""
        for parked in list(self.parked):
            if parked.end <= self.committed:
                self.parked.remove(parked)
                log = self.replicas[self.leader].log
                if any(e.offset == parked.base and e.epoch == parked.epoch for e in log):
                    self.answer(parked.call, parked.base)
                else:
                    sure = KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
                    self.answer(parked.call, -1, sure)

    def elect(self) -> None:
        """Any replica: all are in sync. The old leader keeps its tail until it follows."""
        self.leader = self.random.randrange(3)
        self.epoch += 1
        if not self.rebuilt:
            self.replicas[self.leader].states = ProducerStates()
        if self.random.random() < 0.7:
            self.lose_connection()
        self.target = self.leader

    def heard(self) -> None:
        self.target = self.leader

    def time_passes(self) -> None:
        self.now_ms += self.random.choice([1, 10, 40])
        self.channel.expire(self.now_ms)

    def run(self) -> None:
        self.offsets = {}
        acts = [
            *[self.produce] * 3, *[self.deliver] * 8, *[self.replicate] * 6, *[self.time_out] * 2,
            self.lose_connection, self.elect, self.heard, *[self.time_passes] * 2,
        ]  # fmt: skip
        for _ in range(STEPS):
            self.random.choice(acts)()
            self.send()
        self.heal()
        self.judge()

    def heal(self) -> None:
        """No more faults: what is still awaited comes true."""
        self.random.random = lambda: 0.99  # type: ignore[method-assign]
        self.heard()
        for _ in range(400):
            self.send()
            self.deliver()
            self.replicate()
            if not any(self.network) and self.open:  # the attempts' own time ends
                self.lose_connection()
            if self.channel.is_idle and not any(self.network):
                return
        if not self.channel.is_idle:
            self.now_ms += 2 * PATIENT_MS
            self.channel.expire(self.now_ms)

    def judge(self) -> None:
        log = self.replicas[self.leader].log
        placed = [(v, e.offset + at) for e in log for at, v in enumerate(e.values)]
        for number in range(self.made):
            value = b"v%d" % number
            copies = [offset for each, offset in placed if each == value]
            said = self.told[value]
            assert len(copies) <= 1, f"{value!r} is there {len(copies)} times"
            if said == "ok":
                assert copies == [self.offsets[value]], f"{value!r} was acknowledged elsewhere"
            if said == "not_written":
                assert not copies, f"{value!r} was called not written"


def simulate(seed: int) -> World:
    world = World(seed)
    world.run()
    assert "unknown" not in {world.told[value] for value in world.patient}
    return world


def counts_of(world: World) -> Counts:
    return {}, Counter(
        f"{said} patient" if value in world.patient else said for value, said in world.told.items()
    )


seeds_run = Seeds(
    module=__name__, simulate_one=simulate, counts=counts_of, everyday=600, per_test=150
)
pytest_generate_tests = seeds_run.parametrize


@pytest.mark.simulate
def test_rule_f1_what_is_forwarded_is_there_once_whatever_is_lost(seeds: list[int]) -> None:
    """And whoever waits until all is well again is told the truth, not *unknown*."""
    seeds_run.run_all(seeds)


def test_rule_f1_patient_clients_are_rarely_refused() -> None:
    seeds_run.number()
    told = seeds_run.happened
    assert told["ok patient"] > 10 * told["not_written patient"], told


def test_mutant_m22_a_leader_that_does_not_know_its_producers_repeats() -> None:
    """The dedupe cache is not rebuilt on failover: the same seeds show copies."""
    caught = 0
    for seed in range(60):
        try:
            World(seed, rebuilt=False).run()
        except AssertionError as error:
            caught += "times" in str(error) or "elsewhere" in str(error)
    assert caught > 0
