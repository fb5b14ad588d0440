"""Who sees all that happens in a `metadata_sim` and has the invariants judged on it.

It keeps what no node keeps: what was ever told, voted, acknowledged, committed; and its own replay
of the committed log, entry by entry, which every controller's and broker's image must equal.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Any

import msgspec

from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome
from raft_metadata.common.ids import BrokerId, NodeId, TopicId, TopicIdPartition
from raft_metadata.image.metadata_image import (
    BrokerRegistration,
    MetadataImage,
)
from raft_metadata.image.metadata_state_machine import MetadataStateMachine
from raft_metadata.quorum.data_dir import read_raft_meta
from raft_metadata.quorum.journal import JOURNAL_FILE, parse_journal
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
from tests.support.metadata_image_witness import ImagesWitness
from tests.support.quorum_sim import CLOCK

if TYPE_CHECKING:
    from tests.support.metadata_sim import MetadataSim
    from tests.support.metadata_sim_lives import ControllerLife

NEVER = float("-inf")
SESSION_S = 0.6
"""The session timeout of brokers in this world."""
LEADER_SILENCE_MAX_S = 0.3 + 0.06
"""Fall-back of a leader, and two of its ticks."""


class Witness(ImagesWitness):
    def __init__(self, world: MetadataSim) -> None:
        super().__init__(world)
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
        # clients
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
                life = world.up[node]
                journal = life.raft.journal
                entry = journal.at(index)
                # An installed snapshot has the journal written anew: until then the old file
                # holds what was promised, as R16 would find after a power cut.
                kept = max(journal.durable_index, self.acked.get(life.key, (0, 0))[0])
                holds = index < journal.entries[0][1] or (
                    entry is not None and entry[2] == term and index <= kept
                )
            else:
                holds = self._on_disk(node, index, term)
            if holds or self._held_by_a_lost_disk(node, index):
                found.append(node)
        return found

    def _held_by_a_lost_disk(self, node: NodeId, index: int) -> bool:
        """Acknowledged, then lost: its new disk helps nobody win who lacks it (rule Q4)."""
        meta = read_raft_meta(self.world.raft.directory(node), disk=self.world.raft.disk)
        if meta is None or meta.fence == "none":
            return False
        return any(key[0] == node and acked[0] >= index for key, acked in self.acked.items())

    def _on_disk(self, node: NodeId, index: int, term: int) -> bool:
        snapshot = self._snapshot_on_disk(node)
        if snapshot is not None and snapshot[1] >= index:
            return True
        path = f"{self.world.raft.directory(node)}/{JOURNAL_FILE}"
        data = self.world.raft.disk.read_file(path)
        entries = [] if data is None else parse_journal(data, path).entries
        return any(entry[1:] == (index, term) for entry in entries)

    def _snapshot_on_disk(self, node: NodeId) -> tuple[int, int] | None:
        data = self.world.raft.disk.read_file(f"{self.world.raft.directory(node)}/{SNAPSHOT_FILE}")
        if data is None:
            return None
        header = snapshot_header(data)
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

    def restored(self, life: ControllerLife, index: int, image: MetadataImage) -> None:
        replayed = self.image_at_index(index)
        invariant.r11_snapshot_and_suffix_equal_replay(self.tally, life.node_id, image, replayed)
        self.counts["snapshots installed"] += 1

    def activated(self, life: ControllerLife, term: int, index: int) -> None:
        newest, reign = self.newest_committed, life.raft.raftCurrentTerm
        if newest[1] < reign:  # what was committed before its reign is in it
            index = max(index, newest[0])
        replayed = self.image_at_index(index)
        image = life.controller.speculation.image
        invariant.c11_a_new_controller_is_the_replayed_log(
            self.tally, life.node_id, image, replayed
        )
        self.counts["activations"] += 1

    def submitting(self, life: ControllerLife, payload: bytes, term: int) -> None:
        """Judge what a controller decides about others at the moment it does."""
        fences = b'"fenced"' in payload
        if not fences and b'"register_broker"' not in payload:
            return
        image = life.controller.speculation.image
        for record in decode_batch(payload).records:
            match record:
                case BrokerRegistrationChangeRecord(state=BrokerState.FENCED):
                    if image.brokers[record.broker_id].state is not BrokerState.FENCED:
                        silence = self._silence(life, record.broker_id, record.broker_epoch)
                        who = f"broker {record.broker_id} epoch {record.broker_epoch}"
                        invariant.c5_no_false_fencing(self.tally, who, silence, SESSION_S)
                        self.counts["fences"] += 1
                case RegisterBrokerRecord():
                    old = image.brokers.get(record.broker_id)
                    if old is not None:
                        silence = self._silence(life, old.broker_id, old.broker_epoch)
                        new = BrokerRegistration(**_registration(record))
                        invariant.c2_one_live_incarnation(self.tally, old, new, silence, SESSION_S)

    def _silence(self, life: ControllerLife, broker_id: BrokerId, epoch: int) -> float:
        """Seconds since this process heard of a registration; endless once it hung up."""
        key = broker_id, epoch
        heard = life.heard.get(key, NEVER)
        return float("inf") if _hung_up(life, key, heard, CLOCK.time) else CLOCK.time - heard

    # ---- what the log says: once per batch

    def arrived(self, life: ControllerLife, command: object) -> None:
        """At the process, which may be paused.

        A heartbeat that waits to be read is heard, unless the session was over before the process
        was paused: a session ends by what was read until then (rule M7).
        """
        if not isinstance(command, BrokerHeartbeat):
            return
        key = command.broker_id, command.broker_epoch
        heard, paused_at = life.heard.get(key, life.started), life.paused_at
        was_over = paused_at - heard >= SESSION_S or _hung_up(life, key, heard, paused_at)
        if not (life.is_paused and was_over):
            self.read(life, command, CLOCK.time)

    def read(self, life: ControllerLife, command: object, arrived_at: float) -> None:
        """By the process."""
        if isinstance(command, BrokerHeartbeat):
            key = command.broker_id, command.broker_epoch
            life.heard[key] = max(arrived_at, life.heard.get(key, NEVER))

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
        directory = life.world.raft.directory(life.node_id)
        data = life.world.raft.disk.read_file(f"{directory}/{SNAPSHOT_FILE}")
        reached = 0
        if data is not None:
            _, *chunks = unframe(data)
            header = snapshot_header(data)
            reached = header.last[1]
            machine.restore(chunks, reached, header.last[2])
        for command, index, term in life.raft.journal.entries:
            if reached < index <= life.raft.applied_index and command[0] == REGULAR:
                machine.apply(index, term, command[1:])
        return machine.image


def _hung_up(life: ControllerLife, key: tuple[int, int], heard: float, at: float) -> bool:
    """Return True if the grace of a connection that closed after `heard` was over at this time."""
    closed = life.closed.get(key)
    return closed is not None and closed > heard and at - closed >= 0.3 - 0.001


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
