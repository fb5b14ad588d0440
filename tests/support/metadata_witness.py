"""Who sees all that happens in a `metadata_sim` and has the invariants judged on it.

It keeps what no node keeps: what was ever told, voted, acknowledged, committed; and its own replay
of the committed log, entry by entry, which every controller's and broker's image must equal.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec

from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome
from raft_metadata.common.ids import BrokerId, NodeId, PartitionId, TopicId, TopicIdPartition
from raft_metadata.controller.topic_rules import TopicRules
from raft_metadata.controller.topics import live_brokers
from raft_metadata.image.metadata_delta import MetadataDelta
from raft_metadata.image.metadata_image import (
    BrokerRegistration,
    MetadataImage,
    PartitionRegistration,
    TopicImage,
)
from raft_metadata.image.metadata_state_machine import MetadataStateMachine
from raft_metadata.quorum.data_dir import read_raft_meta
from raft_metadata.quorum.journal import JOURNAL_FILE
from raft_metadata.quorum.journal_format import parse_journal
from raft_metadata.quorum.pysyncobj_internals import REGULAR
from raft_metadata.quorum.snapshots import SNAPSHOT_FILE, SnapshotHeader, unframe
from raft_metadata.quorum.voter_node import voter_address
from raft_metadata.records.commands import AlterPartition, BrokerHeartbeat, PartitionAltered
from raft_metadata.records.records import (
    BrokerRegistrationChangeRecord,
    BrokerState,
    RegisterBrokerRecord,
)
from raft_metadata.records.serde import decode_batch
from tests.support import metadata_invariants as invariant
from tests.support.quorum_sim import CLOCK

if TYPE_CHECKING:
    from tests.support.metadata_sim import ControllerLife, MetadataSim

NEVER = float("-inf")
LEADER_SILENCE_MAX_S = 0.3 + 0.06
"""Fall-back of a leader, and two of its ticks."""


class Witness:
    def __init__(self, world: MetadataSim) -> None:
        self.world = world
        self.tally: invariant.Tally = Counter()
        self.counts: Counter[str] = Counter()
        """What happened, for the floor under the whole run."""
        # Raft: what was ever said
        self.leaders: dict[int, NodeId] = {}
        self.votes: dict[tuple[Any, int], NodeId] = {}
        self.told_vote: dict[tuple[Any, int], NodeId] = {}
        self.told_term: dict[tuple[NodeId, str], int] = {}
        self.acked: dict[tuple[NodeId, str], tuple[int, int]] = {}
        self.committed: dict[int, tuple[int, bytes]] = {}
        self.newest_committed = (1, 0)  # every log begins with it
        # the log, replayed
        self.reference = MetadataStateMachine()
        self.indexes: list[int] = [0]
        self.offsets: list[int] = [0]
        self.images: dict[int, MetadataImage] = {0: self.reference.image}
        self.batches: dict[int, bytes] = {}
        self.epochs: list[tuple[int, int]] = []
        """(base offset, epoch) of each batch."""
        self.history: dict[
            tuple[TopicIdPartition, int],
            tuple[MetadataImage, PartitionRegistration, PartitionRegistration],
        ] = {}
        self.registered: dict[int, str] = {}
        """Broker epoch → incarnation."""
        self.created_at: dict[TopicId, list[int]] = {}
        self.topics_ever: dict[TopicId, str] = {}
        self.broker_epochs: dict[BrokerId, int] = {}
        self.partition_leaders: dict[Any, BrokerId] = {}
        self.full: dict[TopicIdPartition, tuple[int, set[BrokerId], set[BrokerId]]] = {}
        """Partitions whose ISR was full once: the min ISR then, who lost data since, and who of
        them with the whole disk."""
        self.before_moves: dict[TopicIdPartition, tuple[BrokerId, ...]] = {}
        """Replicas before the reassignment under way."""
        self.reported_unclean: dict[BrokerId, set[TopicIdPartition]] = {}
        self.debts: dict[BrokerId, set[TopicIdPartition]] = {}
        """What a registration not yet settled says is lost."""
        # clients
        self.asked: dict[TopicId, tuple[int, bool]] = {}
        """Replication factor of each creation, and whether the controller places it."""
        self.grown: set[tuple[TopicId, int]] = set()
        self.unclean_asked: set[TopicId] = set()
        """Topics where somebody wanted a leader rather than every record."""
        self.followed: dict[str, int] = {}
        """Incarnation → metadata offset it has applied."""
        self.producer_ids: dict[int, object] = {}
        self.quotas: dict[float, bool] = {}
        """Values that operators set, each once: acknowledged, or surely not written."""
        self.not_written: list[TopicId] = []
        self.created: list[TopicId] = []
        self.reference.add_publisher(self)

    # ---- a controller's process

    def started(self, life: ControllerLife) -> None:
        """It has opened its disk and said nothing yet."""
        t, node, journal = self.tally, life.node_id, life.disk.journal
        life.heard = {}
        life.closed = {}
        life.peers_heard = {}
        life.seen_term = life.seen_commit = 0
        life.led_term = -1
        life.seen_first = 0
        life.floor = CLOCK.time
        key = (node, str(life.disk.home.meta.directory_id))
        life.key = key
        vote = journal.vote
        told = self.told_term.get(key, 0)
        invariant.r2_term_never_decreases(t, node, told, vote.term)
        invariant.r16_promises_survive_the_power(
            t, node, "term", told, vote.term, kept=vote.term >= told
        )
        if vote.term == told and (key, told) in self.told_vote:
            promised = voter_address(self.told_vote[key, told])
            invariant.r16_promises_survive_the_power(
                t, node, "vote", promised, vote.voted_for, kept=vote.voted_for == promised
            )
        header = life.disk.snapshots.header
        if key in self.acked:
            index, term = self.acked[key]
            entry = journal.at(index)
            below = header is not None and index <= header.last[1]
            kept = below or (entry is not None and entry[2] == term)
            last = journal.entries[-1][1:] if journal.entries else None
            invariant.r16_promises_survive_the_power(
                t, node, "acknowledged entry", (index, term), last, kept=kept
            )
        persisted = 0 if header is None else header.last[1]
        invariant.r5_commit_never_decreases(t, node, persisted, life.raft.raftCommitIndex)
        self._watch_truncation(life)
        self.look(life)
        self.counts["controller starts"] += 1

    def _watch_truncation(self, life: ControllerLife) -> None:
        journal = life.disk.journal
        cut = journal.delete_from

        def delete_from(position: int) -> None:
            dropped = [(index, term) for _, index, term in journal.entries[position:]]
            terms = {index: self.committed.get(index, (0, b""))[0] for index, _ in dropped}
            invariant.r7_no_truncation_below_commit(self.tally, life.node_id, dropped, terms)
            cut(position)

        journal.delete_from = delete_from

    def killed(self, life: ControllerLife) -> None:
        self.counts["controller kills"] += 1

    def disk_lost(self, node: NodeId) -> None:
        self.counts["controller disks lost"] += 1

    # ---- what voters say

    def said(self, life: ControllerLife, to: NodeId, message: dict[str, Any]) -> None:
        node, kind = life.node_id, message["type"]
        if not hasattr(life, "key"):
            return
        term = message.get("term", 0)
        if term > self.told_term.get(life.key, 0):
            self.told_term[life.key] = term
        if kind == "response_vote":
            self._voted(life, term, to)
        elif kind == "request_vote":
            self._voted(life, term, node)
        elif kind == "next_node_idx" and message["success"]:
            index = message["next_node_idx"] - 1
            entry = life.raft.journal.at(index)
            if entry is not None and index >= self.acked.get(life.key, (0, 0))[0]:
                self.acked[life.key] = (index, entry[2])

    def _voted(self, life: ControllerLife, term: int, candidate: NodeId) -> None:
        invariant.r3_one_vote_per_term(self.tally, self.votes, life.node_id, term, candidate)
        self.told_vote[life.key, term] = candidate

    def heard(self, life: ControllerLife, sender: NodeId, message: dict[str, Any]) -> None:
        if message["type"] == "next_node_idx" and message["term"] == life.term:
            life.peers_heard[sender] = CLOCK.time

    def look(self, life: ControllerLife) -> None:
        """After every event in a controller's process."""
        raft, t, node = life.raft, self.tally, life.node_id
        term, commit = raft.raftCurrentTerm, raft.raftCommitIndex
        if term != life.seen_term:
            invariant.r2_term_never_decreases(t, node, life.seen_term, term)
            life.seen_term = term
        if raft.role == "leader":
            self._look_at_leader(life, term)
        if commit != life.seen_commit:
            self._committed(life, commit)
        journal = raft.journal
        if journal.entries[0][1] != life.seen_first:
            life.seen_first = journal.entries[0][1]
            snapshot = self._snapshot_on_disk(life.node_id)
            invariant.r10_log_starts_at_its_snapshot(t, node, life.seen_first, snapshot, commit)
        if life.key in self.acked:
            self._acked_is_kept(life)

    def _look_at_leader(self, life: ControllerLife, term: int) -> None:
        t, node, raft = self.tally, life.node_id, life.raft
        if life.led_term != term:
            life.led_term, life.floor = term, CLOCK.time
            life.peers_heard = {}
            invariant.r1_one_leader_per_term(t, self.leaders, term, node)
            self.counts["elections"] += 1
            index, committed_term = self.newest_committed
            # One elected by late votes, while a later term's leader commits, holds what it may.
            if index and term >= committed_term:

                def holds(index: int) -> int | None:
                    entry = raft.journal.at(index)
                    below = index < raft.journal.entries[0][1]
                    return committed_term if below else entry and entry[2]

                invariant.r8_leader_holds_what_is_committed(t, node, index, committed_term, holds)
        times = sorted(life.peers_heard.values(), reverse=True)
        needed = len(self.world.raft.ids) // 2
        contact = times[needed - 1] if len(times) >= needed else NEVER
        silence = CLOCK.time - max(contact, life.floor)
        invariant.r13_leader_without_majority_steps_down(t, node, silence, LEADER_SILENCE_MAX_S)

    def _committed(self, life: ControllerLife, commit: int) -> None:
        t, node, journal = self.tally, life.node_id, life.raft.journal
        invariant.r5_commit_never_decreases(t, node, life.seen_commit, commit)
        for index in range(life.seen_commit + 1, commit + 1):
            entry = journal.at(index)
            if entry is not None:
                found = (entry[2], entry[0])
                invariant.r4_committed_prefixes_identical(t, self.committed, node, index, found)
        life.seen_commit = commit
        if commit > self.newest_committed[0] and commit in self.committed:
            self.newest_committed = (commit, self.committed[commit][0])
            holders = self._holders(commit, self.committed[commit][0])
            invariant.r6_committed_is_on_a_majority(t, commit, holders, len(self.world.raft.ids))

    def _holders(self, index: int, term: int) -> list[NodeId]:
        """Voters that hold this entry; the disks of dead ones are read only if it matters."""
        found = []
        world = self.world
        for node in sorted(world.raft.ids, key=lambda node: node not in world.up):
            if 2 * len(found) > len(world.raft.ids):
                break
            if node in world.up:
                journal = world.up[node].raft.journal
                entry = journal.at(index)
                holds = index < journal.entries[0][1] or (
                    entry is not None and entry[2] == term and index <= journal.durable_index
                )
            else:
                holds = self._on_disk(node, index, term)
            if holds or self._held_by_a_lost_disk(node, index):
                found.append(node)
        return found

    def _held_by_a_lost_disk(self, node: NodeId, index: int) -> bool:
        """Acknowledged, then lost: its new disk helps nobody win who lacks it (rule Q4)."""
        meta = read_raft_meta(self.world.raft.directory(node), files=self.world.raft.disk)
        if meta is None or meta.fence == "none":
            return False
        return any(key[0] == node and acked[0] >= index for key, acked in self.acked.items())

    def _on_disk(self, node: NodeId, index: int, term: int) -> bool:
        disk, home = self.world.raft.disk, self.world.raft.directory(node)
        snapshot = self._snapshot_on_disk(node)
        if snapshot is not None and snapshot[1] >= index:
            return True
        if not disk.exists(home / JOURNAL_FILE):
            return False
        path = home / JOURNAL_FILE
        entries = parse_journal(disk.read(path), path).entries
        return any(entry[1:] == (index, term) for entry in entries)

    def _snapshot_on_disk(self, node: NodeId) -> tuple[int, int] | None:
        path = self.world.raft.directory(node) / SNAPSHOT_FILE
        if not self.world.raft.disk.exists(path):
            return None
        header = snapshot_header(self.world.raft.disk.read(path))
        return header.previous[1], header.last[1]

    def _acked_is_kept(self, life: ControllerLife) -> None:
        """An acknowledged entry may go only if it was never committed (invariant R7)."""
        index, term = self.acked[life.key]
        journal = life.raft.journal
        entry = journal.at(index)
        if index < journal.entries[0][1] or (entry is not None and entry[2] == term):
            return
        terms = {index: self.committed.get(index, (0, b""))[0]}
        invariant.r7_no_truncation_below_commit(self.tally, life.node_id, [(index, term)], terms)
        self.acked[life.key] = (min(index, journal.last[1]), journal.last[2])

    # ---- what controllers apply

    def applied(
        self, life: ControllerLife, index: int, term: int, payload: bytes, before: MetadataImage
    ) -> None:
        if index > self.indexes[-1]:
            base = self.reference.image.next_offset
            self.reference.apply(index, term, payload)
            image = self.reference.image
            self.indexes.append(index)
            self.offsets.append(image.next_offset)
            if image.next_offset > base:
                self.images[image.next_offset] = image
                self.batches[base] = payload
                self.epochs.append((base, term))
        known = self.image_at_index(index)
        after = life.machine.image
        invariant.r12_same_state_at_the_same_index(
            self.tally, f"controller {life.node_id}", before, after, known
        )

    def image_at_index(self, index: int) -> MetadataImage:
        at = bisect_right(self.indexes, index) - 1
        return self.images[self.offsets[at]]

    def thawed(self, life: ControllerLife, index: int, image: MetadataImage) -> None:
        replayed = self.image_at_index(index)
        invariant.r11_snapshot_and_suffix_equal_replay(self.tally, life.node_id, image, replayed)
        self.counts["snapshots installed"] += 1

    def activated(self, life: ControllerLife, term: int, index: int) -> None:
        newest, reign = self.newest_committed, life.raft.raftCurrentTerm
        if newest[1] < reign:  # what was committed before its reign is in it
            index = max(index, newest[0])
        replayed = self.image_at_index(index)
        image = life.controller._speculation.image
        invariant.c11_a_new_controller_is_the_replayed_log(
            self.tally, life.node_id, image, replayed
        )
        self.counts["activations"] += 1

    def submitting(self, life: ControllerLife, payload: bytes, term: int) -> None:
        """Judge what a controller decides about others at the moment it does."""
        fences = b'"fenced"' in payload
        if not fences and b'"register_broker"' not in payload:
            return
        image = life.controller._speculation.image
        for record in decode_batch(payload).records:
            match record:
                case BrokerRegistrationChangeRecord(state=BrokerState.FENCED):
                    if image.brokers[record.broker_id].state is not BrokerState.FENCED:
                        silence = self._silence(life, record.broker_id, record.broker_epoch)
                        who = f"broker {record.broker_id} epoch {record.broker_epoch}"
                        invariant.c5_no_false_fencing(self.tally, who, silence, 0.6)
                        self.counts["fences"] += 1
                case RegisterBrokerRecord():
                    old = image.brokers.get(record.broker_id)
                    if old is not None:
                        silence = self._silence(life, old.broker_id, old.broker_epoch)
                        new = BrokerRegistration(**_registration(record))
                        invariant.c2_one_live_incarnation(self.tally, old, new, silence, 0.6)

    def _silence(self, life: ControllerLife, broker_id: BrokerId, epoch: int) -> float:
        """Seconds since this process heard of a registration; endless once it hung up."""
        heard = life.heard.get((broker_id, epoch), NEVER)
        closed = life.closed.get((broker_id, epoch))
        if closed is not None and closed > heard and CLOCK.time - closed >= 0.3 - 0.001:
            return float("inf")
        return CLOCK.time - heard

    # ---- what the log says: once per batch

    def on_metadata_update(self, delta: MetadataDelta, image: MetadataImage) -> None:
        before = delta.image
        for broker_id, broker in delta.changed_brokers.items():
            self._broker_changed(before, before.brokers.get(broker_id), broker, image)
        for topic_id in delta.created_topics:
            topic = image.topics[topic_id]
            invariant.c12_topic_ids_are_never_used_again(self.tally, topic, self.topics_ever, image)
            self.created_at.setdefault(topic_id, []).append(before.next_offset)
        for topic_id in delta.changed_topics:
            self._topic_changed(before, image, image.topics[topic_id])
        if delta.changed_configs:
            self._configs_changed(image)

    def _configs_changed(self, image: MetadataImage) -> None:
        """Of a partition that never reached its new min ISR nothing is promised yet."""
        for where in list(self.full):
            partition = image.partition(where.topic_id, where.partition)
            if partition is None:
                del self.full[where]

    def _broker_changed(
        self,
        image: MetadataImage,
        old: BrokerRegistration | None,
        new: BrokerRegistration,
        after: MetadataImage,
    ) -> None:
        t, broker_id = self.tally, new.broker_id
        if old is None or old.broker_epoch != new.broker_epoch:
            invariant.c1_broker_epochs_grow_and_are_unique(t, image, new, self.broker_epochs)
            self.broker_epochs[broker_id] = new.broker_epoch
            self.registered[new.broker_epoch] = new.incarnation_id
            self.debts[broker_id] = self._lost_by(after, new)
            moved = self._moved_by(after, new)
            self.reported_unclean[broker_id] = self.debts[broker_id] - moved
            return
        if new.state is BrokerState.UNFENCED and old.state is not new.state:
            offset = self.followed.get(new.incarnation_id, 0)
            invariant.c4_unfenced_has_seen_its_registration(t, new, offset)
        if new.settled and not old.settled:
            for where in sorted(self.debts.pop(broker_id, ())):
                partition = after.partition(where.topic_id, where.partition)
                if partition is not None:
                    invariant.p10_unclean_replica_is_not_eligible(t, where, broker_id, partition)

    def _lost_by(self, image: MetadataImage, broker: BrokerRegistration) -> set[TopicIdPartition]:
        return {*broker.unclean_partitions, *self._moved_by(image, broker)}

    def _moved_by(self, image: MetadataImage, broker: BrokerRegistration) -> set[TopicIdPartition]:
        """Partitions whose replica here was on another disk."""
        lost: set[TopicIdPartition] = set()
        for topic in image.topics.values():
            for index, partition in enumerate(topic.partitions):
                if broker.broker_id in partition.replicas:
                    at = partition.replicas.index(broker.broker_id)
                    if partition.directories[at] != broker.directory_id:
                        lost.add(TopicIdPartition(topic.topic_id, PartitionId(index)))
        return lost

    def _topic_changed(
        self, before: MetadataImage, after: MetadataImage, topic: TopicImage
    ) -> None:
        old = before.topics.get(topic.topic_id)
        known = () if old is None else old.partitions
        invariant.c13_partitions_never_go(self.tally, old, topic)
        rules = TopicRules(after, topic, self.world.defaults)
        for index, partition in enumerate(topic.partitions):
            was = known[index] if index < len(known) else None
            if was is partition:
                continue
            where = TopicIdPartition(topic.topic_id, PartitionId(index))
            if was is None:
                self._partition_created(before, where, topic, partition)
            else:
                self._partition_changed(before, after, where, was, partition)
            self._partition_is(after, where, was, partition, rules)

    def _partition_created(
        self,
        before: MetadataImage,
        where: TopicIdPartition,
        topic: TopicImage,
        new: PartitionRegistration,
    ) -> None:
        factor, placed = self.asked.get(where.topic_id, (None, False))
        if topic.grown_from or (where.topic_id, where.partition) in self.grown:
            factor, placed = topic.replication_factor, False
        racks = live_brokers(before, factor) if placed else None
        invariant.c13_assignment_is_as_asked(self.tally, new, factor, racks)

    def _partition_is(
        self,
        image: MetadataImage,
        where: TopicIdPartition,
        old: PartitionRegistration | None,
        new: PartitionRegistration,
        rules: TopicRules,
    ) -> None:
        t, min_isr = self.tally, rules.min_isr(new.replication_factor)
        invariant.p1_leader_is_in_the_isr(t, new)
        invariant.p2_isr_and_elr_are_proper(t, new, min_isr)
        invariant.c3_fenced_gains_nothing(t, image, old, new)
        invariant.p14_one_leader_per_leader_epoch(t, self.partition_leaders, where, new)
        self._check_eligible(where, old, new, min_isr)

    def _partition_changed(
        self,
        before: MetadataImage,
        after: MetadataImage,
        where: TopicIdPartition,
        old: PartitionRegistration,
        new: PartitionRegistration,
    ) -> None:
        t = self.tally
        self.history[where, new.partition_epoch] = (before, old, new)
        invariant.p4_epochs_count_changes(t, where, old, new)
        if new.leader_epoch != old.leader_epoch and new.has_leader:
            unclean = new.unclean_epoch == new.leader_epoch
            invariant.p5_elected_from_isr_or_elr(
                t, where, old, new, unclean_allowed=unclean and self._is_unclean_allowed(where)
            )
            self.counts["unclean elections"] += unclean
            if self._went_freely(after, old, new):
                invariant.p9_preferred_is_taken_from_the_isr(t, where, old, new)
        moves = (old.replicas, old.adding, old.removing)
        if moves != (new.replicas, new.adding, new.removing):
            self._reassigned(after, where, old, new)

    def _is_unclean_allowed(self, where: TopicIdPartition) -> bool:
        return where.topic_id in self.unclean_asked

    def _reassigned(
        self,
        image: MetadataImage,
        where: TopicIdPartition,
        old: PartitionRegistration,
        new: PartitionRegistration,
    ) -> None:
        topic = image.topics[where.topic_id]
        rules = TopicRules(image, topic, self.world.defaults)
        if not old.is_reassigning:
            self.before_moves[where] = old.replicas
        invariant.p8_reassignment_is_safe(
            self.tally,
            where,
            old,
            new,
            rules.min_isr(new.replication_factor),
            self.before_moves[where],
        )
        for broker in self.world.brokers:
            process, known = broker.process, image.brokers.get(broker.broker_id)
            if (
                broker.broker_id in set(old.isr) - set(new.replicas)
                and process is not None
                and known is not None
                and (process.epoch, known.state) == (known.broker_epoch, BrokerState.UNFENCED)
            ):
                invariant.p8_who_goes_knows_who_leads(where, old, new, process.image.next_offset)
        done = old.is_reassigning and not new.is_reassigning
        self.counts["reassignments ended" if done else "reassignments"] += 1

    def _went_freely(
        self, image: MetadataImage, old: PartitionRegistration, new: PartitionRegistration
    ) -> bool:
        leader = image.brokers.get(old.leader)
        return (
            leader is not None
            and leader.state is BrokerState.UNFENCED
            and old.leader in new.isr
            and old.leader_epoch_offset > leader.broker_epoch
        )

    def _check_eligible(
        self,
        where: TopicIdPartition,
        old: PartitionRegistration | None,
        new: PartitionRegistration,
        min_isr: int,
    ) -> None:
        """Invariants P3, P11: who held what was acknowledged is forgotten only if it is lost."""
        if len(new.isr) >= min_isr:
            self.full[where] = (min_isr, set(), set())
            return
        if new.has_leader and new.unclean_epoch == new.leader_epoch:
            self.full.pop(where, None)  # a new history begins
            return
        if old is None or where not in self.full:
            return
        promised, lost, moved = self.full[where]
        gone = {*old.isr, *old.elr} - {*new.isr, *new.elr}
        lost |= {replica for replica in gone if where in self.debts.get(replica, ())}
        moved |= {
            replica for replica in lost if where not in self.reported_unclean.get(replica, ())
        }
        least = min(promised, min_isr)
        invariant.p3_enough_replicas_stay_eligible(self.tally, where, new, least, lost)
        if not new.isr and not new.elr:
            invariant.p11_last_known_are_remembered(self.tally, where, new, least, moved)

    def epoch_of(self, offset: int) -> int:
        """Controller epoch of the record at an offset."""
        return self.epochs[bisect_right(self.epochs, (offset, 1 << 60)) - 1][1]

    # ---- what clients are told

    def arrived(self, life: ControllerLife, command: object) -> None:
        """At the process, which may be paused."""
        if isinstance(command, BrokerHeartbeat):
            life.heard[command.broker_id, command.broker_epoch] = CLOCK.time

    def altered(self, command: AlterPartition, answer: PartitionAltered, seen_epoch: int) -> None:
        """An AlterPartition was acknowledged."""
        where = TopicIdPartition(command.topic_id, command.partition)
        found = self.history.get((where, answer.partition_epoch))
        places = [] if found is None or found[2].isr != answer.isr else [answer.partition_epoch]
        invariant.r9_acknowledged_is_in_the_log_once(self.tally, command, places, written=True)
        before, old, _ = self.history[where, answer.partition_epoch]
        invariant.p6_accepted_only_with_present_epochs(self.tally, command, before, old)
        self.acknowledged(f"broker {command.broker_id}", before.next_offset, seen_epoch)

    def acknowledged(self, client: object, offset: int, seen_epoch: int) -> None:
        """What was recorded at `offset` was acknowledged to a client that had seen an epoch."""
        invariant.r14_no_answer_from_the_past(self.tally, client, seen_epoch, self.epoch_of(offset))

    def refused(self, error: KafkaError, topic_id: TopicId) -> None:
        """A creation that surely was not written (rule M3)."""
        gone = error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if error.outcome is Outcome.NOT_WRITTEN and not gone:
            self.not_written.append(topic_id)

    # ---- the end

    def final(self) -> None:
        """All healed, all at rest: what can be judged only then."""
        t, world = self.tally, self.world
        for topic_id in self.created:
            places = self.created_at.get(topic_id, [])
            invariant.r9_acknowledged_is_in_the_log_once(t, topic_id, places, written=True)
        for topic_id in self.not_written:
            places = self.created_at.get(topic_id, [])
            invariant.r9_acknowledged_is_in_the_log_once(t, topic_id, places, written=False)
        log = b"".join(self.batches.values())
        for value, written in self.quotas.items():
            places = range(log.count(b'"value":%.1f}' % value))
            invariant.r9_acknowledged_is_in_the_log_once(t, value, places, written=written)
        lives = list(world.up.values())
        for life in lives:
            for command, index, term in life.raft.journal.entries:
                if index <= life.raft.raftCommitIndex:
                    entry = (term, command)
                    invariant.r4_committed_prefixes_identical(
                        t, self.committed, life.node_id, index, entry
                    )
        image = self.reference.image
        invariant.r12_same_hash_at_the_same_offset(t, [image, *(v.machine.image for v in lives)])
        invariant.c3_fenced_holds_nothing_at_rest(t, image)
        life = world.rng.choice(lives)
        invariant.r11_snapshot_and_suffix_equal_replay(
            t, life.node_id, self._from_disk(life), self.image_at_index(life.raft.applied_index)
        )

    def _from_disk(self, life: ControllerLife) -> MetadataImage:
        machine = MetadataStateMachine()
        path = world_path(life, SNAPSHOT_FILE)
        reached = 0
        if life.world.raft.disk.exists(path):
            _, *chunks = unframe(life.world.raft.disk.read(path))
            header = snapshot_header(life.world.raft.disk.read(path))
            reached = header.last[1]
            machine.thaw(chunks, reached, header.last[2])
        for command, index, term in life.raft.journal.entries:
            if reached < index <= life.raft.applied_index and command[0] == REGULAR:
                machine.apply(index, term, command[1:])
        return machine.image


def world_path(life: ControllerLife, name: str) -> Any:
    return life.world.raft.directory(life.node_id) / name


def snapshot_header(data: bytes) -> SnapshotHeader:
    return msgspec.json.decode(next(iter(unframe(data))), type=SnapshotHeader)


def _registration(record: RegisterBrokerRecord) -> dict[str, Any]:
    names = [
        name
        for name in BrokerRegistration.__dataclass_fields__
        if name in record.__dataclass_fields__
    ]
    return {
        "state": BrokerState.STARTING,
        "settled": False,
        **{name: getattr(record, name) for name in names},
    }
