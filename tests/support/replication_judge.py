"""What happened in a simulated partition, and whether it may: gathers plain values for the checks.

The history is one for all replicas: what was ever exposed (below any leader's high watermark), what
each client was told, each reign's log. An unclean election that the topic allows ends one history
and begins another with what its leader holds.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from broker.replication.delayed_produces import AppendOutcome
from broker.replication.frames import Ack, Diverging, Open, Valid
from broker.replication.isr_state import COMMITTED, IsrChange
from broker.replication.leader_state import LeaderState
from broker.replication.partition import Following, OpenSession, Partition
from raft_metadata.common.ids import BrokerId
from raft_metadata.image.metadata_image import PartitionRegistration
from raft_metadata.records.commands import AlterPartition
from raft_metadata.records.records import BrokerState
from tests.support import replication_invariants as check
from tests.support.replica_stores import DiskStore
from tests.support.replication_controller import MIN_ISR
from tests.support.replication_invariants import Entry, Tally, Violation
from tests.support.replication_keys import KeyJudge

if TYPE_CHECKING:
    from tests.support.replication_broker import Broker
    from tests.support.replication_lives import BrokerLife
    from tests.support.replication_world import World

JUDGED = (
    *(f"L{number}" for number in range(1, 28)),
    "L11 rebuilt",
    "P6",
    "T1",
    "T4",
    "rule R5",
    "rule G3",
    "rule R10",
    "L20 whole",
    "sent",
)
"""Everything that has to be judged in a run of many seeds."""
JUDGED_OF_SOME = (
    *("rule R7", "rule R7 read", "rule R7 below", "rule R7 replicated", "rule R7 tombstones"),
    "rule R10 age",
    *("rule Q5 counts nowhere", "rule Q5 last copy", "rule R4 behind its epoch"),
)
"""The same, where topics are compacted or keep their records for a time."""


class Judge:
    """Owned by one world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.tally: Tally = Counter()
        self.contents: dict[tuple[int, int], int] = {}
        self.exposed: list[Entry | None] = []
        """None: compacted away in a history that an unclean election brought back."""
        self.exposed_in: list[int] = []
        """The reign in which each was exposed first."""
        self.where: dict[int, int] = {}
        self.deleted_from: dict[int, int] = {}
        """The first place of what was deleted and sent again: who remembers it may say so."""
        self.answers: dict[int, AppendOutcome] = {}
        self.start = 0
        """Up to where records were deleted, as decided by a leader."""
        self.reigns: dict[int, list[Entry | None]] = {}
        self.latest_heard = (-1, 0)
        """The highest leader epoch that a client has heard of, and the latest offset."""
        self.unclean_epoch = -1
        self.unclean_pending = False
        self.unclean_elections = 0
        self.keys = KeyJudge(world, self.tally)
        self._known_ends: dict[BrokerId, tuple[int, ...]] = {}
        self._known: dict[BrokerId, tuple[Any, ...]] = {}
        """What each replica's log was when it was last held against what was seen."""

    # appends and cuts

    def appended(self, entry: Entry, offset: int) -> None:
        check.l25_offset_has_one_content(self.tally, self.contents, entry, offset)

    def produced(self, broker: Broker, epoch: int, base: int, values: list[int]) -> None:
        """By a leader."""
        reign = self.reigns.get(epoch)
        if reign is None or len(reign) != base:
            raise Violation("L15", f"leader {broker.id} of {epoch} appends at {base}")
        reign.extend((epoch, value) for value in values)
        if self.world.topic is not None:
            self.keys.produced(broker, values)

    def cut(self, broker: Broker, end: int) -> None:
        partition = broker.partition
        if partition is None:
            return
        if broker.unclean_cut:
            self.tally["unclean cuts"] += 1
        else:
            check.l13_no_cut_below_high_watermark(
                self.tally, end, partition.high_watermark, broker.id
            )
        leads = isinstance(partition.role, LeaderState)
        check.l15_leader_never_cuts(self.tally, broker.id, leads=leads)

    # roles

    def leads(self, broker: Broker) -> None:
        """A broker has begun to lead."""
        assert broker.partition is not None
        epoch = broker.partition.role.epoch
        mirror = list(broker.store.mirror)
        if self.reigns.setdefault(epoch, mirror) is not mirror:
            raise Violation("P14", f"epoch {epoch} has two leaders, {broker.id} is the second")
        if self.unclean_pending and epoch >= self.unclean_epoch:
            self._begin_again(broker)
        self.check_leader(broker)

    def check_leader(self, broker: Broker) -> None:
        """L4: the leader of an epoch has all that was exposed in epochs up to its own."""
        assert broker.partition is not None
        epoch = broker.partition.role.epoch
        if self.unclean_pending or epoch < self.unclean_epoch:
            return
        must = max((n for n, by in enumerate(self.exposed_in, 1) if by <= epoch), default=0)
        check.l4_leader_completeness(
            self.tally, broker.store.mirror, self.exposed[:must], self.start, broker.id, epoch
        )

    def trimmed(self, leader: Broker, offset: int) -> None:
        """A leader has decided to delete what is below this offset."""
        assert leader.partition is not None
        if not self.of_a_lost_history(leader.partition.role.epoch):
            check.l24_start_below_high_watermark(self.tally, offset, len(self.exposed), leader.id)
            self.start = max(self.start, offset)

    def elected_uncleanly(self, epoch: int) -> None:
        """By the controller, as the topic allows: somebody leads who may lack anything."""
        self.unclean_epoch, self.unclean_pending = epoch, True
        self.unclean_elections += 1

    def _begin_again(self, broker: Broker) -> None:
        """What the new leader lacks is lost; what was refused for good may be in its log."""
        if isinstance(broker.store, DiskStore):
            broker.store.relieve()
        for _ in range(2):  # not even what it shows is promised before: it has time, and room
            broker.store.flush_all()
        mirror = broker.store.mirror
        kept = 0
        while kept < min(len(mirror), len(self.exposed)):
            if mirror[kept] not in (None, self.exposed[kept]):
                break
            kept += 1
        lost = self.keys.forget_from(kept, mirror)
        del self.exposed[kept:], self.exposed_in[kept:]
        self.where = {value: at for value, at in self.where.items() if at < kept and at not in lost}
        self.answers = {
            value: fate
            for value, fate in self.answers.items()
            if fate is AppendOutcome.UNKNOWN or (fate is AppendOutcome.OK and value in self.where)
        }
        self.start = min(self.start, kept)
        self.latest_heard = (self.latest_heard[0], min(self.latest_heard[1], kept))
        self.unclean_pending = False
        self._see_again(broker)

    def _see_again(self, leader: Broker) -> None:
        """Damaged, it could not follow meanwhile: what was seen of its log is read at once."""
        assert leader.partition is not None
        epoch, end = leader.partition.role.epoch, leader.partition.high_watermark
        for entry in leader.store.mirror[len(self.exposed) : end]:
            if entry is not None:
                self.where[entry[1]] = len(self.exposed)
                if self.world.topic is not None:
                    self.keys.exposed(entry[1], len(self.exposed))
            self.exposed.append(entry)
            self.exposed_in.append(epoch)

    def of_a_lost_history(self, epoch: int) -> bool:
        """Of a reign that an unclean election has ended, whether it has heard so or not."""
        return self.unclean_pending or epoch < self.unclean_epoch

    def is_of_the_present(self, broker: Broker) -> bool:
        """Whether its high watermark speaks of the one history there is, as far as it can know."""
        partition = broker.partition
        if partition is None or self.of_a_lost_history(partition.role.epoch):
            return False
        return max(partition.agreed_epoch, partition.log.last_epoch) >= self.unclean_epoch

    # the stream

    def opened(self, leader: Broker, follower: BrokerId, message: Open, answer: object) -> None:
        """A leader has answered a follower that says where its log is."""
        assert leader.partition is not None
        role = leader.partition.role
        if not isinstance(answer, Valid):
            return
        known = leader.image.brokers[follower].broker_epoch
        said, present = (message.leader_epoch, message.broker_epoch), (role.epoch, known)
        check.l17_other_epochs_are_refused(self.tally, said, present, leader.id)

    def acknowledged(self, leader: Broker, message: Ack, before: object, after: object) -> None:
        """Whatever an acknowledgement changed, it was of this epoch."""
        assert leader.partition is not None
        if before != after:
            said, present = (message.leader_epoch, 0), (leader.partition.role.epoch, 0)
            check.l17_other_epochs_are_refused(self.tally, said, present, leader.id)

    def diverged(self, broker: Broker, answer: Diverging, before: object, after: object) -> None:
        """A diverging answer was given, or taken."""
        check.l16_divergence_changes_nothing(self.tally, before, after, broker.id)

    def follows(self, broker: Broker) -> None:
        """Its leader said that this log is a prefix of its own, or it has appended since."""
        assert broker.partition is not None
        role = broker.partition.role
        reign = self.reigns.get(role.epoch)
        is_open = isinstance(role, Following) and isinstance(role.session, OpenSession)
        if is_open and reign is not None:
            check.l14_follower_is_a_prefix(
                self.tally, broker.store.mirror, reign, broker.id, role.epoch
            )

    def proposed(self, leader: Broker, proposal: IsrChange) -> None:
        """A leader asks for another ISR: who joins has what it takes, on its platters."""
        assert leader.partition is not None
        role = leader.partition.role
        assert isinstance(role, LeaderState)
        present = role.epoch == self.world.controller.partition.leader_epoch
        for replica, epoch in proposal.isr:
            if replica in role.isr or not present:
                continue
            joiner = self.world.brokers[replica]
            state = role.followers.get(replica)
            if state is None or state.broker_epoch != epoch:
                raise Violation("L18", f"{replica} joins in {epoch}, heard of was {state}")
            if joiner.broker_epoch == epoch and joiner.up and not self.world.lost(replica):
                durable = len(joiner.promised())
                high_watermark = leader.partition.high_watermark
                check.l18_joins_caught_up(
                    self.tally, durable, high_watermark, role.epoch_start, replica
                )

    def joined(self, command: AlterPartition) -> None:
        """The controller accepts an ISR: who joins lives, in the life that the leader saw."""
        image, before = self.world.controller.image, self.world.controller.partition
        for member in command.new_isr:
            if member.broker_id not in before.isr:
                known = image.brokers[member.broker_id]
                living = known.state is BrokerState.UNFENCED
                present = known.broker_epoch == member.broker_epoch
                check.p6_joins_in_its_present_life(
                    self.tally, member.broker_id, living=living, present=present
                )

    # high watermarks and answers

    def expose(self, broker: Broker) -> None:
        """Consumers may now read below this broker's high watermark: it must never change."""
        partition = broker.partition
        assert partition is not None
        role, log, end = partition.role, broker.store.mirror, partition.high_watermark
        if self.of_a_lost_history(role.epoch):
            return
        if isinstance(role, LeaderState):
            check.l9_enough_in_sync(self.tally, len(role.isr), MIN_ISR, broker.id)
        check.l7_seen_never_changes(self.tally, log, self.exposed, end, broker.id)
        if end <= len(self.exposed):
            return
        newest = max((entry[0] for entry in self.exposed[-1:] if entry is not None), default=-1)
        check.l19_zombie_commits_nothing(self.tally, role.epoch, newest, broker.id)
        for entry in log[len(self.exposed) : end]:
            if entry is None and not self.unclean_elections:
                raise Violation("rule R7", f"broker {broker.id} compacted what nobody has seen")
            if entry is None:
                self.exposed.append(None)
                self.exposed_in.append(role.epoch)
                continue
            if self.answers.get(entry[1]) is AppendOutcome.NOT_WRITTEN:
                check.r5_not_written_is_nowhere(self.tally, (entry[1],), entry[1])
            if self.where.get(entry[1], self.start) < self.start:
                # Deleted, but no replica that may lead forgets the producer (rule S5).
                if not self.unclean_elections:
                    raise Violation("rule S5", f"{entry[1]} is appended again after its deletion")
                self.tally["sent again after its deletion"] += 1
                self.deleted_from[entry[1]] = self.where.pop(entry[1])
            check.t1_once(self.tally, self.where, entry[1], len(self.exposed))
            self.where[entry[1]] = len(self.exposed)
            if self.world.topic is not None:
                self.keys.exposed(entry[1], len(self.exposed))
            self.exposed.append(entry)
            self.exposed_in.append(role.epoch)
        for other in self.world.brokers:
            newer = other.role
            if other.up and isinstance(newer, LeaderState) and newer.epoch > role.epoch:
                self.check_leader(other)

    def answer(
        self, values: list[int], fate: AppendOutcome, offset: int, epoch: int, acks: str
    ) -> None:
        """A client learns the fate of what it sent, in this order from this offset on."""
        if self.of_a_lost_history(epoch):
            return
        for at, value in enumerate(values, offset):
            if fate is AppendOutcome.OK and acks == "leader":
                continue  # what one broker holds may be lost with it: docs say so
            self.answers[value] = fate
            if fate is AppendOutcome.OK and self.deleted_from.get(value) != at:
                check.l10_acknowledged_is_read(self.tally, self.where, value, at, "when answered")
            elif fate is AppendOutcome.NOT_WRITTEN:
                check.r5_not_written_is_nowhere(self.tally, self.where.keys(), value)

    # after every event

    def after_event(self) -> None:
        world, t = self.world, self.tally
        seen, start = self.exposed, self.start
        p = world.controller.partition
        for broker in world.brokers:
            partition = broker.partition
            if not broker.up or partition is None:
                continue
            self._check_ends(broker, partition)
            if isinstance(partition.role, LeaderState):
                self._check_reign(broker, partition.role, p)
        if world.topic is not None:
            self.keys.saw_ends()
        if self.unclean_pending:
            return
        for b in world.ids:
            if (b not in p.isr and b not in p.elr) or world.lost(b):
                continue
            broker = world.brokers[b]
            if self._is_known(broker, b in p.isr):
                continue
            if b in p.isr:
                check.l2_strong_isr(t, broker.promised(), seen, start, b)
            elif not check.holds(broker.promised(), seen, start):
                raise Violation("L3", f"eligible {b} lacks on its platters what was seen")
            if broker.up and broker.partition is not None:
                check.l3_candidate_completeness(t, broker.store.mirror, seen, start, b)
            if world.topic is not None:
                self.keys.check_replica(broker)

    def _check_ends(self, broker: Broker, partition: Partition) -> None:
        t, seen, start = self.tally, len(self.exposed), self.start
        log: Any = getattr(partition.log, "product_log", partition.log)
        log_start, high_watermark = log.log_start_offset, partition.high_watermark
        ends = (high_watermark, log.durable_end, log.log_end_offset)
        standing = (partition.role.epoch, partition.agreed_epoch, log.last_epoch)
        unclean = (self.unclean_epoch, self.unclean_pending)
        known = (log_start, *ends, *standing, *unclean, seen, start)
        if self._known_ends.get(broker.id) == known:
            return  # as it was when it was last looked at
        self._known_ends[broker.id] = known
        check.l8_ends_in_order(t, log_start, *ends, broker.id)
        if self.is_of_the_present(broker):
            check.l20_reads_are_seen(t, high_watermark, seen, broker.id)
            check.l24_start_below_high_watermark(t, log_start, seen, broker.id)
            if self.unclean_epoch < 0:
                check.r10_decided_by_a_leader(t, log_start, start, broker.id)

    def _is_known(self, broker: Broker, is_member: bool) -> bool:
        """Whether nothing has changed since this replica was last looked at."""
        promised, mirror = broker.promised(), broker.store.mirror
        here = broker.up and broker.partition is not None
        log_start = 0 if broker.partition is None else broker.partition.log.log_start_offset
        ends = (len(promised), len(mirror), len(self.exposed))
        facts = (*ends, broker.changes, self.start, log_start)
        known = (promised, mirror, here, is_member, facts)
        before = self._known.get(broker.id)
        self._known[broker.id] = known
        return (
            before is not None
            and before[0] is promised
            and before[1] is mirror
            and before[2:] == known[2:]
        )

    def _check_reign(self, broker: Broker, role: LeaderState, p: PartitionRegistration) -> None:
        t, partition = self.tally, broker.partition
        assert partition is not None
        maximal = role.maximal_isr()
        if role.isr_state is COMMITTED:
            check.l6_settled_isr(t, maximal, role.isr)
        if self.of_a_lost_history(role.epoch):
            return
        if role.epoch == p.leader_epoch and len(role.isr) >= MIN_ISR:
            on_the_way: set[int] = set()
            for _, what, args, _ in (*self.world.net, *self.world.late):
                if what == "alter_partition":
                    command: AlterPartition = args[1]
                    now = (p.leader, p.leader_epoch, p.partition_epoch)
                    if now == (command.broker_id, command.leader_epoch, command.partition_epoch):
                        on_the_way.update(member.broker_id for member in command.new_isr)
            check.l5_maximal_isr_covers(t, maximal, {*p.isr, *p.elr}, on_the_way)
        if partition.high_watermark >= role.epoch_start:
            before = sum(by < role.epoch for by in self.exposed_in)
            check.l21_latest_is_the_latest(t, partition.high_watermark, before, broker.id)

    def who_went(self, before: PartitionRegistration) -> None:
        """G3: nobody who lives is taken out of the ISR while it takes itself for the leader.

        A fence is behind the last proof of its broker, so is a registration (``Lifecycle``).
        """
        now = self.world.controller.partition
        self.tally["rule G3"] += 1
        for b in set(before.isr) - set(now.isr):
            alive = self.world.controller.image.brokers[b].state is BrokerState.UNFENCED
            broker = self.world.brokers[b]
            if alive and broker.up and isinstance(broker.role, LeaderState):
                raise Violation("rule G3", f"{b} leads in {broker.role.epoch}, {before}, {now}")

    def emptied(self, broker: BrokerLife, took_part: int) -> None:
        """A damaged log was set aside just now; what is filled in its place begins empty.

        ``took_part``: the newest leader epoch in which it did, -1: in none of this life.
        """
        world, t, b = self.world, self.tally, broker.id
        p = world.controller.partition
        check.q5_emptied_counts_nowhere(t, b, {*p.isr, *p.elr, p.leader})
        check.r4_emptied_behind_its_epoch(t, b, took_part, p.leader_epoch)
        for _, what, args, _ in (*world.net, *world.late):
            if what == "alter_partition":
                command: AlterPartition = args[1]
                now = (p.leader, p.leader_epoch, p.partition_epoch)
                then = (command.broker_id, command.leader_epoch, command.partition_epoch)
                life = world.controller.image.brokers[b].broker_epoch
                back = any(m.broker_id == b and m.broker_epoch == life for m in command.new_isr)
                check.r4_nothing_puts_it_back(t, b, then if back else None, now)
        if self.unclean_pending or world.features.unclean or world.features.flush:
            return  # more than one disk may be lost
        keep = [other for other in (*p.isr, *p.elr) if world.intact(other)]
        kept = [world.brokers[other].promised() for other in keep]
        check.q5_last_copy_stays(t, b, kept, self.exposed, self.start)

    # readers

    def served(self, broker: Broker, start: int, entries: list[Entry | None]) -> None:
        """A consumer was given these."""
        if not self.is_of_the_present(broker):
            return
        check.l22_served_is_sound(self.tally, entries, self.exposed, start, broker.id)
        for at, entry in enumerate(entries, start):
            if entry is not None and self.answers.get(entry[1]) is AppendOutcome.OK:
                check.l10_acknowledged_is_read(self.tally, self.where, entry[1], at, "when read")

    # the end

    def drained(self, leader: Broker) -> None:
        """Every ok value is where it was acknowledged; no not_written value; none twice."""
        place: dict[int, int] = {}
        for at, entry in enumerate(leader.store.mirror):
            if entry is not None:
                check.somebody_sent_it(self.tally, entry[1], self.world.numbers, leader.id)
            if entry is not None and at >= self.start:
                check.t1_once(self.tally, place, entry[1], at)
                place[entry[1]] = at
        for value, fate in self.answers.items():
            at = self.where.get(value, -1)
            gone = self.world.topic is not None and at >= 0 and leader.store.mirror[at] is None
            if fate is AppendOutcome.OK and self.where[value] >= self.start and not gone:
                check.l10_acknowledged_is_read(
                    self.tally, place, value, self.where[value], "at the end"
                )
            if fate is AppendOutcome.NOT_WRITTEN:
                check.r5_not_written_is_nowhere(self.tally, place.keys(), value)
        if self.world.topic is not None:
            self.keys.check_reader(leader)
        self.all_pairs()

    def all_pairs(self) -> None:
        """L1 and L11 of the replicas as they are now."""
        replicas = [
            self.world.brokers[b]
            for b in self.world.controller.partition.replicas
            if self.world.brokers[b].up and self.world.brokers[b].partition is not None
        ]
        for broker in replicas:
            assert broker.partition is not None
            log = broker.partition.log
            check.l11_cache_is_the_logs(
                self.tally, log.epoch_entries, broker.store.mirror, log.log_start_offset, broker.id
            )
            for other in replicas:
                assert other.partition is not None
                if other.id > broker.id:
                    low = min(broker.partition.high_watermark, other.partition.high_watermark)
                    check.l1_log_matching(self.tally, broker.store.mirror, other.store.mirror, low)
