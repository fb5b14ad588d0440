"""Lines of the controllers and their quorum, each switched off (invariants R, C, P and T)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from raft_metadata.common.disk import write_checked as write_checked_durably
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import MetadataOffset
from raft_metadata.controller import (
    admin_control,
    broker_sessions,
    cluster_control,
    controller,
    election_control,
    partition_change,
    partition_draft,
    reassignment_control,
    replication_control,
    topic_control,
    topic_rules,
)
from raft_metadata.image import metadata_state_machine, snapshot
from raft_metadata.quorum import (
    active_controller,
    elections,
    journal,
    library_adapters,
    raft_node,
    transport,
)
from raft_metadata.records.records import BrokerRegistrationChangeRecord
from tests.support.metadata_sim_story import LONG
from tests.support.planted.registry import Patch, metadata_fault

# ---- votes, terms, entries


@metadata_fault("M19 vote not synced", "R16", "R3", "R2")
def _vote_not_synced(patch: Patch) -> None:
    def write_checked(disk: Any, path: Any, body: bytes) -> None:
        if not path.endswith(journal.VOTE_FILE):
            write_checked_durably(disk, path, body)
            return
        with without_sync(disk):
            write_checked_durably(disk, path, body)

    patch.setattr(journal, "write_checked", write_checked)


@contextmanager
def without_sync(disk: Any) -> Iterator[None]:
    """The platter hears nothing."""
    with pytest.MonkeyPatch.context() as patch:
        for sync in ("sync_directory", "sync_file", "sync_data"):
            patch.setattr(type(disk), sync, lambda *_: None)
        yield


@metadata_fault("M19 vote not stored", "R16", "R3", "R2")
def _vote_not_stored(patch: Patch) -> None:
    def set_vote(self: Any, term: int, voted_for: str | None) -> None:
        self.vote = journal.Vote(term=term, voted_for=voted_for)

    patch.setattr(journal.DurableJournal, "set_vote", set_vote)


@metadata_fault("Q1 acknowledged before it is synced", "R16", "R6", "R8", first=44)
def _acknowledged_unsynced(patch: Patch) -> None:
    newest = property(lambda self: self.last[1])
    patch.setattr(journal.DurableJournal, "durable_index", newest)


@metadata_fault("votes for a log that is behind", "R8", "R4", "R7")
def _any_log_wins(patch: Patch) -> None:
    handle = transport.FilteredTransport._handle_message

    def generous(self: Any, node: Any, message: Any) -> None:
        if message["type"] in ("request_vote", "pre_vote"):
            message["last_log_term"] = message["last_log_index"] = 10**9
        handle(self, node, message)

    patch.setattr(transport.FilteredTransport, "_handle_message", generous)


@metadata_fault("votes twice in a term", "R3")
def _votes_twice(patch: Patch) -> None:
    handle = transport.FilteredTransport._handle_message

    def forgetful(self: Any, node: Any, message: Any) -> None:
        raft = self._raft
        if message["type"] == "request_vote" and raft.role == "follower":
            raft._SyncObj__votedForNodeId = None
        handle(self, node, message)

    patch.setattr(transport.FilteredTransport, "_handle_message", forgetful)


@metadata_fault("Q4 votes without its disk", "R3", "R8", "R6", "R16", first=82)
def _votes_without_disk(patch: Patch) -> None:
    from raft_metadata.quorum import data_dir

    patch.setattr(data_dir.DataDir, "fenced", property(lambda self: False))


@metadata_fault("M21 leads without a majority", "R13", first=9)
def _leads_alone(patch: Patch) -> None:
    conf = library_adapters.library_conf

    def patient(*args: Any) -> Any:
        made = conf(*args)
        made.leaderFallbackTimeout += 30
        return made

    patch.setattr(raft_node, "library_conf", patient)


@metadata_fault("Q7 no pre-vote", "R19", length=LONG, first=7)
def _no_pre_vote(patch: Patch) -> None:
    patch.setattr(elections.PreVote, "take_grant", lambda self, term: True)


@metadata_fault("compacts before the snapshot is there", "R10")
def _compacts_early(patch: Patch) -> None:
    real = library_adapters.SnapshotAdapter.checkSerializing

    def early(self: Any) -> tuple[int, int]:
        state, first = real(self)
        writing = state == library_adapters.SERIALIZING
        return (library_adapters.SERIALIZED if writing else state), first

    patch.setattr(library_adapters.SnapshotAdapter, "checkSerializing", early)


@metadata_fault("waiters are not answered when a reign ends", "R18", "R17", "C14")
def _waiters_hang(patch: Patch) -> None:
    def forget(self: Any, old: int, new: int) -> None:
        if old == raft_node.LEADER:
            self._activation = raft_node.Activation.NONE
            self.parts.events.deactivated()
            self._waiting = {}

    patch.setattr(raft_node.RaftNode, "_on_role_changed", forget)


@metadata_fault("rule M3 says not written of what may be", "R9", first=58)
def _unknown_is_no(patch: Patch) -> None:
    def error(code: ErrorCode, text: str = "", **other: Any) -> KafkaError:
        certain = ErrorCode.NOT_CONTROLLER if code is ErrorCode.OUTCOME_UNKNOWN else code
        return KafkaError(certain, text, **other)

    patch.setattr(raft_node, "KafkaError", error)


@metadata_fault("answers before the commit", "R9", "P6", "R14")
def _answers_early(patch: Patch) -> None:
    async def command(self: Any, command: Any) -> Any:
        if self.speculation is None:
            raise self._not_controller()
        records, answer = self._core.decide(self.speculation.image, command)
        if records:
            self.speculation.append(records, active_controller.Urgency.CHANGE)
        return answer

    patch.setattr(active_controller.ActiveController, "_command", command)


@metadata_fault("rule M2 active before the reign's own entry", "C11", "R9", first=16)
def _active_early(patch: Patch) -> None:
    def apply(self: Any, command: bytes, index: int, term: int) -> None:
        real_apply(self, command, index, term)
        if (
            command[0] == raft_node.NO_OP
            and self._isLeader()
            and self._activation is raft_node.Activation.NONE
        ):
            self._activation = raft_node.Activation.ACTIVE
            self.parts.events.activated(self.raftCurrentTerm, index)

    real_apply = raft_node.RaftNode._apply
    patch.setattr(raft_node.RaftNode, "_apply", apply)


# ---- state and snapshots


@metadata_fault("rule M1 a snapshot with another offset", "R11", "R12")
def _snapshot_offset(patch: Patch) -> None:
    capture = metadata_state_machine.MetadataStateMachine.capture

    def late(self: Any) -> Any:
        captured = capture(self)
        image = captured.image
        later = MetadataOffset(image.next_offset + 1)
        return replace(captured, image=replace(image, next_offset=later))

    patch.setattr(metadata_state_machine.MetadataStateMachine, "capture", late)


@metadata_fault("M30 a snapshot that forgets brokers' states", "R11", "R12")
def _snapshot_forgets(patch: Patch) -> None:
    real = snapshot._broker_records

    def forgetful(*of: Any) -> Iterator[Any]:
        for record in real(*of):
            if not isinstance(record, BrokerRegistrationChangeRecord):
                yield record

    patch.setattr(snapshot, "_broker_records", forgetful)


@metadata_fault("a controller folds by itself", "R12")
def _folds_by_itself(patch: Patch) -> None:
    turn = metadata_state_machine.MetadataStateMachine._replace_image

    def own(self: Any, delta: Any, image: Any) -> None:
        if type(self).__name__ == "WatchedMachine" and self._life.node_id == 2:
            image = replace(image, epoch=image.epoch + 1)
        turn(self, delta, image)

    patch.setattr(metadata_state_machine.MetadataStateMachine, "_replace_image", own)


# ---- brokers


@metadata_fault("M1* M28 another incarnation while the session is valid", "C2")
def _two_incarnations(patch: Patch) -> None:
    real = cluster_control.decide_register_broker

    def decide(*args: Any, **how: Any) -> Any:
        return real(*args, **(how | {"session_is_valid": False}))

    patch.setattr(controller, "decide_register_broker", decide)


@metadata_fault("unfences who has not seen its registration", "C4", first=16)
def _unfences_early(patch: Patch) -> None:
    real = cluster_control.decide_unfence

    def decide(*args: Any, **how: Any) -> Any:
        return real(*args, **(how | {"metadata_offset": MetadataOffset(10**9)}))

    patch.setattr(controller, "decide_unfence", decide)


@metadata_fault("rule M7 a judge blames others for its own stall", "C5", "C2", first=20)
def _blames_others(patch: Patch) -> None:
    def at(self: Any, now_ms: int) -> int:
        return self._judge_ms + max(0, now_ms - self._ran_ms)

    def judge(self: Any, now_ms: int) -> None:
        self._judge_ms = self._drained_ms = at(self, now_ms)
        self._ran_ms = now_ms

    patch.setattr(broker_sessions.HeartbeatTracker, "_at", at)
    patch.setattr(broker_sessions.HeartbeatTracker, "judge", judge)


@metadata_fault("sessions never end", "C6", "C14", first=2)
def _sessions_never_end(patch: Patch) -> None:
    patch.setattr(broker_sessions.HeartbeatTracker, "has_expired", lambda *_: False)


@metadata_fault("a heartbeat of an earlier life counts", "C7", first=16)
def _any_heartbeat(patch: Patch) -> None:
    def anyone(image: Any, broker_id: Any, broker_epoch: Any) -> Any:
        return image.brokers.get(broker_id)

    patch.setattr(controller, "check_broker_epoch", anyone)


@metadata_fault("may leave before everybody knows", "C8", first=27)
def _leaves_early(patch: Patch) -> None:
    def shutdown(self: Any, image: Any, broker: Any) -> tuple[bool, str]:
        return True, ""

    patch.setattr(controller.Controller, "_shutdown", shutdown)


@metadata_fault("rule M4 no consequences of a fence", "C3", "P12", "C14")
def _no_consequences(patch: Patch) -> None:
    def nothing(image: Any, partitions: Any, **_: Any) -> Any:
        return replication_control.Consequences((), len(list(partitions)))

    patch.setattr(controller, "decide_consequences", nothing)


@metadata_fault("replicas are placed without a look at racks", "C13", first=16)
def _any_rack(patch: Patch) -> None:
    def place(racks: Any, *, partitions: Any, replication_factor: int, start: int) -> Any:
        crowded = sorted(racks, key=lambda broker: (racks[broker] or "", broker))
        return [tuple(crowded[:replication_factor]) for _ in partitions]

    patch.setattr(topic_control, "place", place)


# ---- partitions


@metadata_fault("the ELR is kept though enough are in sync", "P2")
def _elr_stays(patch: Patch) -> None:
    real = partition_draft.PartitionDraft.keep_eligible

    def keep(self: Any, min_isr: int, **lost: Any) -> None:
        real(self, min_isr, **lost)
        if len(self.isr) >= min_isr:
            known = (*self.before.isr, *self.before.elr)
            self.elr = tuple(replica for replica in known if replica not in self.isr)

    patch.setattr(partition_draft.PartitionDraft, "keep_eligible", keep)


@metadata_fault("M9* no check of broker epochs in AlterPartition", "P6", "C3", first=11)
def _any_broker_epoch(patch: Patch) -> None:
    def anyone(image: Any, broker_id: Any, broker_epoch: Any) -> Any:
        return image.brokers[broker_id]

    patch.setattr(replication_control, "check_broker_epoch", anyone)
    patch.setattr(replication_control, "_check_may_join", lambda *_: None)


@metadata_fault("M10* no check of the partition epoch", "P6")
def _any_partition_epoch(patch: Patch) -> None:
    real = replication_control._check_epochs

    def check(command: Any, partition: Any) -> None:
        real(replace(command, partition_epoch=partition.partition_epoch), partition)

    patch.setattr(replication_control, "_check_epochs", check)


@metadata_fault("M15 a fenced replica joins", "P6", "C3", first=65)
def _fenced_joins(patch: Patch) -> None:
    patch.setattr(replication_control, "is_electable", lambda *_: True)


@metadata_fault("requests from the future are taken", "P7", "P6")
def _future_taken(patch: Patch) -> None:
    patch.setattr(replication_control, "_check_epochs", lambda *_: None)


@metadata_fault("M18 the last member keeps its place without its data", "P10")
def _last_member_stays(patch: Patch) -> None:
    nobody = partition_change._Lost(frozenset(), frozenset())
    patch.setattr(partition_change, "_lost_replicas", lambda *_: nobody)


@metadata_fault("who leaves a small ISR is forgotten", "P3")
def _no_elr(patch: Patch) -> None:
    patch.setattr(partition_draft, "next_elr", lambda *_: ())


@metadata_fault("M30 a snapshot without pending reassignments", "R11", "R12", length=LONG)
def _snapshot_without_moves(patch: Patch) -> None:
    real = snapshot._partition_record

    def record(*args: Any) -> Any:
        return replace(real(*args), adding=(), removing=())

    patch.setattr(snapshot, "_partition_record", record)


@metadata_fault("a reassignment ends before its replicas are in sync", "P8")
def _ends_early(patch: Patch) -> None:
    def complete(views: Any, draft: Any, rules: Any, damaged: Any) -> None:
        target = [replica for replica in draft.replicas if replica not in draft.removing]
        draft.keep_replicas(target)
        draft.adding = draft.removing = ()

    patch.setattr(partition_change, "complete_reassignment", complete)


@metadata_fault("rule G3 a leader is taken out before it knows", "P8")
def _out_unawares(patch: Patch) -> None:
    patch.setattr(reassignment_control, "unaware_removed_replicas", lambda *_: ())


@metadata_fault("a reassignment adds to the ISR", "P8")
def _adds_to_the_isr(patch: Patch) -> None:
    def keep(self: Any, keep: Any) -> None:
        real_keep(self, keep)
        self.isr = tuple(dict.fromkeys((*self.isr, *keep)))

    real_keep = partition_draft.PartitionDraft.keep_replicas
    patch.setattr(partition_draft.PartitionDraft, "keep_replicas", keep)


@metadata_fault("a reassignment never ends", "P12", first=13)
def _never_ends(patch: Patch) -> None:
    patch.setattr(partition_change, "complete_reassignment", lambda *_: None)


@metadata_fault("preferred leaders without a look at the ISR", "P9", "P5", length=LONG, first=9)
def _preferred_at_once(patch: Patch) -> None:
    def elect(brokers: Any, draft: Any, damaged: Any = None) -> None:
        preferred = draft.before.target[0]
        if draft.leader != preferred:
            draft.lead(preferred)
            draft.isr = tuple(dict.fromkeys((preferred, *draft.isr)))

    patch.setattr(election_control, "_elect_preferred", elect)


@metadata_fault("who was eligible last is forgotten", "P11")
def _last_known_forgotten(patch: Patch) -> None:
    real = partition_draft.PartitionDraft.record

    def record(self: Any, where: Any) -> Any:
        return replace(real(self, where), last_known_elr=())

    patch.setattr(partition_draft.PartitionDraft, "record", record)


@metadata_fault("unclean elections unasked", "P5")
def _unclean_unasked(patch: Patch) -> None:
    always = property(lambda self: True)
    patch.setattr(topic_rules.TopicRules, "may_elect_unclean", always)


@metadata_fault("producer ids are handed out twice", "T5", first=16)
def _ids_twice(patch: Patch) -> None:
    real = admin_control.decide_producer_ids

    def decide(*args: Any, **how: Any) -> Any:
        return (), real(*args, **how)[1]

    patch.setattr(admin_control, "decide_producer_ids", decide)
