"""The interpreters of the transcripts: each drives one core of the product by its own functions."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

from typing_extensions import override

from broker.coordinator.rebalance import retarget
from broker.replication import partition as replication
from broker.replication.frames import Open
from broker.replication.isr_state import (
    IsrChange,
    OvertakenIsr,
    PendingIsr,
    UnresolvedIsr,
    may_propose,
)
from broker.replication.leader_state import LeaderState, Settings
from raft_metadata.common.errors import KafkaError
from raft_metadata.common.ids import (
    BrokerEpoch,
    BrokerId,
    LeaderEpoch,
    NodeId,
    PartitionEpoch,
    TopicName,
)
from tests.support.group_world import BY_HAND, EARLIEST, GroupWorld, facts
from tests.support.memory_log import MemoryLog
from tests.support.quorum_sim import Sim
from tests.support.transcripts import Block, Interpreter, listed, numbers


class Elections(Interpreter):
    """Voters of the metadata quorum: real nodes over a simulated network, disk and clock."""

    def __init__(self) -> None:
        self.sim = Sim(seed=3)

    def log(self, node: str, *, term: str, entries: str) -> None:
        """Write a voter's log before it is started: its term and the terms of its entries."""
        self.sim.write_log(NodeId(int(node)), int(term), numbers(entries))

    def start(self, *nodes: str) -> None:
        self.sim.start(*(NodeId(int(node)) for node in nodes))

    def kill(self, *nodes: str) -> None:
        self.sim.kill(*(NodeId(int(node)) for node in nodes))

    def cut(self, *links: str) -> None:
        """Cut links like 1-2; none hears the other."""
        self.sim.cut = {frozenset(NodeId(int(node)) for node in link.split("-")) for link in links}

    def wait(self, seconds: str) -> None:
        self.sim.pass_time(float(seconds.removesuffix("s")))

    def elect(self) -> Iterable[str]:
        """Wait for an active leader of the highest term."""
        leader = self.sim.active_leader()
        return [f"elected {'none' if leader is None else leader.node_id}"]

    def lead(self, node: str) -> None:
        """Have a voter stand first, until it leads."""
        self.sim.lead(NodeId(int(node)))

    def commit(self, node: str, payload: str) -> Iterable[str]:
        answer = self.sim.commit(NodeId(int(node)), payload.encode())
        if answer.acknowledged:
            return [f"committed {payload}"]
        return [f"not acknowledged: {'no answer' if answer.code is None else answer.code.name}"]

    @override
    def state(self) -> Iterable[str]:
        for node in self.sim.ids:
            voter = self.sim.up.get(node)
            if voter is None:
                yield f"{node}: down"
                continue
            payloads = " ".join(payload.decode() for payload in voter.machine.payloads)
            last = voter.raft.journal.last
            yield f"{node}: {voter.raft.role} term={voter.term} last={last[2]}/{last[1]}" + (
                f" applied: {payloads}" if payloads else ""
            )


class IsrChanges(Interpreter):
    """The leader of one partition: broker 1, whose followers are 2 and 3."""

    LAG_MAX_MS = 1_000

    def __init__(self) -> None:
        self.now_ms = self.end = self.high_watermark = self.attempts = 0
        self.role: LeaderState

    def lead(
        self, *, isr: str, end: str, replicas: str = "1,2,3", min_isr: str = "2", flush: str = "ack"
    ) -> None:
        """Begin leader epoch 5 at a log end; nothing is known of the followers."""
        self.end = int(end)
        self.role = LeaderState(
            me=BrokerId(1),
            epoch=LeaderEpoch(5),
            epoch_start=self.end,
            replicas=map(BrokerId, numbers(replicas)),
            isr=map(BrokerId, numbers(isr)),
            partition_epoch=PartitionEpoch(7),
            settings=Settings(min_isr=int(min_isr), by_durable=flush == "ack"),
            now_ms=self.now_ms,
        )

    def append(self, count: str) -> None:
        """Append and sync that many records here."""
        self.role.appended(self.end, self.now_ms)
        self.end += int(count)

    def open(self, broker: str, *, end: str, durable: str | None = None) -> None:
        """Begin a session of a follower, whose log was found to be a prefix of the leader's."""
        ends = (int(end), int(durable or end), 0)
        follower = BrokerId(int(broker))
        self.role.opened(follower, BrokerEpoch(9), 1, ends, self.end, self.now_ms)

    def ack(self, broker: str, *, end: str, durable: str | None = None) -> None:
        """Acknowledge the follower's log end and, if less is synced, its durable end."""
        ends = (int(end), int(durable or end), 0)
        self.role.acknowledged(BrokerId(int(broker)), 1, ends, self.end, self.now_ms)

    def wait(self, ms: str) -> None:
        self.now_ms += int(ms.removesuffix("ms"))

    def propose(self) -> Iterable[str]:
        """Have the leader look who joins and who is late; show the attempt that it sends."""
        role = self.role
        absent = role.replicas - role.isr
        epoch = BrokerEpoch(9)
        joiners = [one for one in absent if role.may_join(one, self.high_watermark, epoch)]
        late = role.laggards(self.end, self.now_ms, self.LAG_MAX_MS)
        self.attempts += 1
        if not may_propose(role.isr_state, self.now_ms):
            return [self._shown(None)]
        return [self._shown(role.propose(self.attempts, joiners, late, lambda _: epoch))]

    @staticmethod
    def _shown(proposal: IsrChange | None) -> str:
        if proposal is None:
            return "proposes nothing"
        members = listed(broker for broker, _ in proposal.isr)
        return f"attempt {proposal.attempt} proposes isr={members} ({proposal.reason})"

    def committed(self, isr: str) -> None:
        """Have an image or an answer show a committed ISR, with the next partition epoch."""
        epoch = PartitionEpoch(self.role.partition_epoch + 1)
        self.role.adopt(epoch, map(BrokerId, numbers(isr)))

    def answered(self, attempt: str) -> None:
        """End an attempt whose answer, an ISR, was shown by `committed`."""
        self.role.refused(int(attempt))

    def refused(self, attempt: str) -> None:
        self.role.refused(int(attempt))

    def unknown(self, attempt: str) -> None:
        """Have an attempt end without a certain answer: it may be committed yet."""
        self.role.unknown(int(attempt), self.now_ms)

    def _state_of_isr(self) -> str:
        match self.role.isr_state:
            case PendingIsr(change):
                return f" pending {change.kind.name.lower()}"
            case UnresolvedIsr():
                return " unresolved"
            case OvertakenIsr():
                return " overtaken"
            case _:
                return ""

    @override
    def state(self) -> Iterable[str]:
        role = self.role
        self.high_watermark = role.high_watermark(self.end, self.high_watermark)
        yield (
            f"isr={listed(role.isr)} maximal={listed(role.maximal_isr())} "
            f"end={self.end} high_watermark={self.high_watermark}{self._state_of_isr()}"
        )


class Truncation(Interpreter):
    """The logs of a leader and a follower, written as runs ``EPOCH:RECORDS``."""

    def __init__(self) -> None:
        self.logs: dict[str, Any] = {}
        self._named: list[str] = []
        """The replicas that this block's commands name."""

    @override
    def run(self, block: Block) -> Block:
        words = [word for command in block.commands for word in command.split()[1:]]
        self._named = list(dict.fromkeys(word for word in words if word.isalpha()))
        return super().run(block)

    def replica(self, name: str, *runs: str) -> None:
        """Make a replica with so many records of each leader epoch, oldest first."""
        log = MemoryLog()
        for run in runs:
            epoch, count = run.split(":")
            for _ in range(int(count)):
                log.append((int(epoch), 0))
        where = SimpleNamespace(topic_id="t", partition=0)
        self.logs[name] = SimpleNamespace(id=where, log=log, high_watermark=0)

    def epoch_without_records(self, name: str, epoch: str) -> None:
        """Have a replica lead an epoch in which it writes nothing."""
        self.logs[name].log.start_epoch(int(epoch))

    def append(self, name: str, run: str) -> None:
        epoch, count = run.split(":")
        for _ in range(int(count)):
            self.logs[name].log.append((int(epoch), 0))

    def follow(self, follower: str, leader: str) -> Iterable[str]:
        """Open sessions until the follower's log is a prefix of the leader's."""
        here, there = self.logs[follower], self.logs[leader].log
        for request in range(1, 10):
            log = here.log
            epoch = LeaderEpoch(there.last_epoch)
            message = Open(request, epoch, 1, log.last_epoch, log.log_end_offset, log.durable_end)
            asked = f"open: ends at {log.log_end_offset} in epoch {log.last_epoch}"
            answer = replication.divergence(there, epoch, message)
            if answer is None:
                yield f"{asked}; valid"
                return
            end = replication.truncation_point(log, answer)
            yield (
                f"{asked}; diverging: epoch {answer.at_epoch} ends at {answer.end}; "
                f"truncates to {end}"
            )
            replication.truncate_to_leader(here, answer, end)

    @override
    def state(self) -> Iterable[str]:
        for name in self._named:
            replica = self.logs[name]
            counts: dict[int, int] = {}
            for epoch, _ in replica.log.entries:
                counts[epoch] = counts.get(epoch, 0) + 1
            runs = " ".join(f"{epoch}:{count}" for epoch, count in counts.items())
            yield f"{name}: {runs or 'empty'}"


class Rebalancing(Interpreter):
    """One group over one topic, and the coordinator's decisions about it (KIP-848)."""

    def __init__(self) -> None:
        self.world = GroupWorld()

    def topic(self, name: str, *, partitions: str) -> None:
        """Grow the topic, as a new image shows it to the coordinator."""
        world = self.world
        world.topics = {TopicName(name): facts(int(partitions))}
        retarget(world.state, world.group, world.topics)
        world.write()

    def join(self, name: str, *, auto_commit: str = "true") -> None:
        self.world.join(name, EARLIEST if auto_commit == "true" else BY_HAND)

    def leave(self, name: str) -> None:
        self.world.delete(name)

    def call(self, name: str) -> None:
        """Have an instance call; it has processed what it was given before."""
        self.world.call(name)

    def read(self, name: str, count: str) -> Iterable[str]:
        """Give an instance that many records of each partition it owns."""
        for number, (first, end) in self.world.read(name, int(count)).items():
            yield f"{name} reads {number}: {first}..{end - 1}"

    def commit(self, name: str, number: str, offset: str) -> Iterable[str]:
        try:
            self.world.commit(name, int(number), int(offset))
        except KafkaError as error:
            return [f"refused: {error.message}"]
        return []

    def wait(self, ms: str) -> Iterable[str]:
        expired = self.world.pass_time(int(ms.removesuffix("ms")))
        return [f"expired {key.instance}" for key in expired]

    def fail_over(self) -> None:
        """Have another coordinator load the group's records; positions are gone."""
        self.world.fail_over()

    @override
    def state(self) -> Iterable[str]:
        group = self.world.group
        committed = {
            place.partition: value.offset for place, value in sorted(group.offsets.items())
        }
        offsets = " ".join(f"{number}:{offset}" for number, offset in committed.items())
        yield f"group epoch {group.epoch}, committed {offsets or 'nothing'}"
        for name, one in sorted(group.instances.items()):
            owned = listed(place.partition for place in one.owned)
            target = listed(place.partition for place in one.target)
            yield f"{name}: epoch {one.member_epoch}, owns {owned}, target {target}"
