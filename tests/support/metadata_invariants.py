"""Invariants R, C and P of docs/claims.md, each a function that bears its id.

Each takes the tally first, counts itself in it, and raises `InvariantError` with its id when it is
broken. They see plain values: who gathers them is ``metadata_witness``. R15 (at most one change of
voters at a time) is empty here: the voters never change.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from hashlib import blake2b
from typing import Any

from raft_metadata.common.ids import NO_LEADER, BrokerId, TopicIdPartition
from raft_metadata.image.metadata_image import (
    BrokerRegistration,
    MetadataImage,
    PartitionRegistration,
    TopicImage,
)
from raft_metadata.image.snapshot import snapshot_of
from raft_metadata.records.records import BrokerState
from raft_metadata.records.serde import encode_snapshot

Tally = Counter[str]
ACTIVE_STATES = (BrokerState.UNFENCED, BrokerState.CONTROLLED_SHUTDOWN)


class InvariantError(AssertionError):
    """A broken invariant, by its id."""

    def __init__(self, invariant: str, *facts: object) -> None:
        super().__init__(f"invariant {invariant}: " + " | ".join(map(str, facts)))
        self.invariant = invariant


def state_hash(image: MetadataImage) -> str:
    """The state of an image, whoever reached it and however."""
    return blake2b(encode_snapshot(snapshot_of(image)), digest_size=16).hexdigest()


def changed_alike(before: MetadataImage, after: MetadataImage, known: MetadataImage) -> bool:
    """Whether what changed from `before` to `after` is as in `known`.

    With `before` known to be right that is equality, at the cost of the change only.
    """
    for name in MetadataImage.__dataclass_fields__:
        mine, right = getattr(after, name), getattr(known, name)
        if mine is right or mine is getattr(before, name):
            continue
        if not isinstance(mine, Mapping):
            if mine != right:
                return False
            continue
        old = getattr(before, name)
        if len(mine) != len(right):
            return False
        for key, value in mine.items():
            if old.get(key) is not value and right.get(key) != value:
                return False
    return True


# ---- 3.1 Raft


def r1_one_leader_per_term(t: Tally, leaders: dict[int, Any], term: int, node: object) -> None:
    t["R1"] += 1
    if leaders.setdefault(term, node) != node:
        raise InvariantError("R1", f"term {term} has leaders {leaders[term]} and {node}")


def r2_term_never_decreases(t: Tally, node: object, before: int, term: int) -> None:
    t["R2"] += 1
    if term < before:
        raise InvariantError("R2", f"voter {node} went from term {before} to {term}")


def r3_one_vote_per_term(
    t: Tally, votes: dict[tuple[Any, int], Any], voter: object, term: int, candidate: object
) -> None:
    t["R3"] += 1
    if votes.setdefault((voter, term), candidate) != candidate:
        other = votes[voter, term]
        raise InvariantError("R3", f"voter {voter} voted for {other} and {candidate} in {term}")


def r4_committed_prefixes_identical(
    t: Tally, committed: dict[int, tuple[int, bytes]], node: object, index: int, entry: Any
) -> None:
    t["R4"] += 1
    if committed.setdefault(index, entry) != entry:
        raise InvariantError("R4", f"voter {node} entry {index}", entry, committed[index])


def r5_commit_never_decreases(t: Tally, node: object, before: int, commit: int) -> None:
    t["R5"] += 1
    if commit < before:
        raise InvariantError("R5", f"voter {node} commit went from {before} to {commit}")


def r6_committed_is_on_a_majority(
    t: Tally, index: int, holders: Collection[object], voters: int
) -> None:
    t["R6"] += 1
    if 2 * len(holders) <= voters:
        raise InvariantError("R6", f"entry {index} is committed and only on {holders} of {voters}")


def r7_no_truncation_below_commit(
    t: Tally, node: object, dropped: Iterable[tuple[int, int]], committed: Mapping[int, int]
) -> None:
    """`dropped`: (index, term) of entries; `committed`: index → term of what is committed."""
    t["R7"] += 1
    for index, term in dropped:
        if committed.get(index) == term:
            raise InvariantError("R7", f"voter {node} cut off committed entry {index} of {term}")


def r8_leader_holds_what_is_committed(
    t: Tally, node: object, index: int, term: int, holds: Callable[[int], int | None]
) -> None:
    """(index, term) is the newest entry known to be committed; log matching covers the rest."""
    t["R8"] += 1
    if holds(index) != term:
        raise InvariantError("R8", f"leader {node} lacks committed entry {index} of term {term}")


def r9_acknowledged_is_in_the_log_once(
    t: Tally, what: object, places: Collection[int], *, written: bool
) -> None:
    """Acknowledged: in the log exactly once. Surely not written (rule M3): nowhere."""
    t["R9"] += 1
    if len(places) != int(written):
        word = "acknowledged" if written else "surely not written"
        raise InvariantError("R9", f"{what} is {word}, and in the log at {sorted(places)}")


def r10_log_starts_at_its_snapshot(
    t: Tally, node: object, first: int, snapshot: tuple[int, int] | None, commit: int
) -> None:
    """`snapshot`: indexes of the last two entries it holds."""
    t["R10"] += 1
    if snapshot is None:
        if first > 1:
            raise InvariantError("R10", f"voter {node} log starts at {first} without a snapshot")
    elif first > snapshot[0] or snapshot[1] > commit:
        raise InvariantError("R10", f"voter {node} log from {first}", snapshot, f"commit {commit}")


def r11_snapshot_and_suffix_equal_replay(
    t: Tally, node: object, image: MetadataImage, replayed: MetadataImage
) -> None:
    t["R11"] += 1
    if image != replayed or state_hash(image) != state_hash(replayed):
        raise InvariantError("R11", f"voter {node} at {image.next_offset}", image, replayed)


def r12_same_state_at_the_same_index(
    t: Tally, node: object, before: MetadataImage, after: MetadataImage, known: MetadataImage
) -> None:
    t["R12"] += 1
    if not changed_alike(before, after, known):
        raise InvariantError("R12", f"{node} at {after.next_offset}", after, known)


def r12_same_hash_at_the_same_offset(t: Tally, images: Iterable[MetadataImage]) -> None:
    t["R12"] += 1
    hashes = {(image.next_offset, state_hash(image)) for image in images}
    if len({offset for offset, _ in hashes}) != len(hashes):
        raise InvariantError("R12", hashes)


def r13_leader_without_majority_steps_down(
    t: Tally, node: object, silence_s: float, limit_s: float
) -> None:
    t["R13"] += 1
    if silence_s > limit_s:
        raise InvariantError("R13", f"{node} leads {silence_s:.3f} s without its majority")


def r14_no_answer_from_the_past(
    t: Tally, client: object, seen_epoch: int, answered_epoch: int
) -> None:
    t["R14"] += 1
    if answered_epoch < seen_epoch:
        raise InvariantError("R14", f"{client} saw {seen_epoch}, answered from {answered_epoch}")


def r16_promises_survive_the_power(
    t: Tally, node: object, what: str, promised: object, found: object, kept: bool
) -> None:
    """What a voter told others (term, vote, acknowledged entry) is there when it starts again."""
    t["R16"] += 1
    if not kept:
        raise InvariantError("R16", f"voter {node} {what}: told {promised}, found {found}")


def r17_a_leader_soon_after_healing(t: Tally, found: bool, within_s: float) -> None:
    t["R17"] += 1
    if not found:
        raise InvariantError("R17", f"no active controller {within_s} s after all healed")


def r18_every_command_is_answered(t: Tally, waiting: Collection[object]) -> None:
    t["R18"] += 1
    if waiting:
        raise InvariantError("R18", "never answered", *waiting)


def r19_few_leader_changes_under_a_one_way_cut(t: Tally, changes: int, limit: int) -> None:
    t["R19"] += 1
    if changes > limit:
        raise InvariantError("R19", f"{changes} leader changes, at most {limit} expected")


# ---- 3.2 controllers and brokers


def c1_broker_epochs_grow_and_are_unique(
    t: Tally, before: MetadataImage, after: BrokerRegistration, ever: Mapping[BrokerId, int]
) -> None:
    """`ever`: the highest epoch each broker id has had."""
    t["C1"] += 1
    if after.broker_epoch != before.next_offset or after.broker_epoch <= ever.get(
        after.broker_id, -1
    ):
        raise InvariantError("C1", after, f"offset {before.next_offset}", dict(ever))


def c2_one_live_incarnation(
    t: Tally, old: BrokerRegistration, new: BrokerRegistration, heard_ago_s: float, session_s: float
) -> None:
    """A process registers over another one: that one was fenced, or silent for a session."""
    t["C2"] += 1
    if old.state is not BrokerState.FENCED and heard_ago_s < session_s:
        raise InvariantError("C2", f"heard {heard_ago_s:.3f} s ago", old, new)


def c3_fenced_gains_nothing(
    t: Tally, image: MetadataImage, before: PartitionRegistration | None, now: PartitionRegistration
) -> None:
    """A change gives neither leadership nor an ISR place to a broker that is not unfenced.

    One that leaves may go on leading in a new epoch: a reassignment gave it that.
    """
    t["C3"] += 1
    gained = set(now.isr) - (set(before.isr) if before is not None else set())
    stays = before is not None and before.leader == now.leader
    if now.has_leader and (before is None or now.leader_epoch != before.leader_epoch):
        gained.add(now.leader)
    for broker_id in gained:
        broker = image.brokers.get(broker_id)
        leads_on = stays and broker_id == now.leader and broker_id in before.isr
        allowed = ACTIVE_STATES if leads_on else (BrokerState.UNFENCED,)
        if broker is None or broker.state not in allowed:
            raise InvariantError("C3", f"{broker_id} gained a place", broker, before, now)


def c3_fenced_holds_nothing_at_rest(t: Tally, image: MetadataImage) -> None:
    t["C3"] += 1
    for topic in image.topics.values():
        for partition in topic.partitions:
            for member in partition.isr:
                broker = image.brokers.get(member)
                if broker is None or broker.state is BrokerState.FENCED:
                    raise InvariantError("C3", topic.name, partition)
            leader = image.brokers.get(partition.leader)
            if partition.has_leader and (leader is None or leader.state not in ACTIVE_STATES):
                raise InvariantError("C3", topic.name, partition)


def c4_unfenced_has_seen_its_registration(
    t: Tally, broker: BrokerRegistration, metadata_offset: int
) -> None:
    """`metadata_offset`: what the broker process has really applied."""
    t["C4"] += 1
    if metadata_offset <= broker.broker_epoch:
        raise InvariantError("C4", f"unfenced at metadata offset {metadata_offset}", broker)


def c5_no_false_fencing(t: Tally, broker: object, heard_ago_s: float, session_s: float) -> None:
    """Counted from when a heartbeat arrived at the controller, read or not (rule M7)."""
    t["C5"] += 1
    if heard_ago_s < session_s:
        raise InvariantError("C5", f"{broker} is fenced, heard {heard_ago_s:.3f} s ago")


def c6_a_dead_broker_is_fenced_in_time(t: Tally, took_s: float | None, within_s: float) -> None:
    t["C6"] += 1
    if took_s is None or took_s > within_s:
        raise InvariantError("C6", f"fenced after {took_s} s, not within {within_s} s")


def c7_a_stale_heartbeat_changes_nothing(
    t: Tally, command: object, before: object, after: object, *, refused: bool
) -> None:
    t["C7"] += 1
    if not refused or before != after:
        raise InvariantError("C7", command, before, after, f"refused: {refused}")


def c8_who_may_leave_leads_nothing(
    t: Tally, leaver: BrokerId, images: Iterable[MetadataImage]
) -> None:
    """`images`: the controller's, and what every other unfenced broker has applied."""
    t["C8"] += 1
    for image in images:
        for topic in image.topics.values():
            for partition in topic.partitions:
                if partition.leader == leaver:
                    raise InvariantError("C8", f"{leaver} may leave at {image.next_offset}", topic)


def c9_brokers_follow_the_log(t: Tally, broker: object, taken: object, logged: object) -> None:
    t["C9"] += 1
    if taken != logged:
        raise InvariantError("C9", f"broker {broker} took", taken, "the log has", logged)


def c10_metadata_offset_never_decreases(t: Tally, broker: object, before: int, after: int) -> None:
    t["C10"] += 1
    if after < before:
        raise InvariantError("C10", f"broker {broker} went from {before} to {after}")


def c11_a_new_controller_is_the_replayed_log(
    t: Tally, node: object, image: MetadataImage, replayed: MetadataImage
) -> None:
    t["C11"] += 1
    if image != replayed:
        raise InvariantError("C11", f"controller {node}", image, replayed)


def c12_topic_ids_are_never_used_again(
    t: Tally, topic: TopicImage, ever: dict[Any, Any], image: MetadataImage
) -> None:
    """`ever`: topic id → name, of all topics there ever were; the new one is noted."""
    t["C12"] += 1
    alike = [other for other in image.topics.values() if other.name == topic.name]
    if topic.topic_id in ever or alike != [topic]:
        raise InvariantError("C12", topic, alike)
    ever[topic.topic_id] = topic.name


def c13_partitions_never_go(t: Tally, before: TopicImage | None, after: TopicImage) -> None:
    t["C13"] += 1
    old = 0 if before is None else len(before.partitions)
    counted = 0 if before is None else before.partitions_count
    if len(after.partitions) < old or after.partitions_count < counted:
        raise InvariantError("C13", before, after)


def c13_assignment_is_as_asked(
    t: Tally,
    partition: PartitionRegistration,
    factor: int | None,
    racks: Mapping[BrokerId, str | None] | None,
) -> None:
    """Distinct brokers; `factor` of them; over as many racks as there were (`racks`: placed)."""
    t["C13"] += 1
    replicas = partition.replicas
    if len(set(replicas)) != len(replicas) or len(partition.directories) != len(replicas):
        raise InvariantError("C13", partition)
    if factor is not None and len(replicas) != factor:
        raise InvariantError("C13", f"{factor} replicas were asked for", partition)
    if racks is not None:
        spread = len({racks[replica] for replica in replicas})
        if spread < min(len(replicas), len(set(racks.values()))):
            raise InvariantError("C13", f"on {spread} racks", partition, dict(racks))


def c14_every_live_broker_comes_back(
    t: Tally, image: MetadataImage, alive: Collection[BrokerId], within_s: float
) -> None:
    t["C14"] += 1
    for broker_id in alive:
        broker = image.brokers.get(broker_id)
        if broker is None or broker.state is not BrokerState.UNFENCED:
            raise InvariantError("C14", f"{broker_id} not unfenced {within_s} s after", broker)


# ---- 3.3 partitions


def p1_leader_is_in_the_isr(t: Tally, partition: PartitionRegistration) -> None:
    t["P1"] += 1
    if partition.has_leader and partition.leader not in partition.isr:
        raise InvariantError("P1", partition)


def p2_isr_and_elr_are_proper(t: Tally, partition: PartitionRegistration, min_isr: int) -> None:
    t["P2"] += 1
    replicas, isr, elr = set(partition.replicas), set(partition.isr), set(partition.elr)
    apart = len(isr) + len(elr) == len(partition.isr) + len(partition.elr) == len(isr | elr)
    if not apart or not isr | elr <= replicas or (elr and len(isr) >= min_isr):
        raise InvariantError("P2", partition, f"min ISR {min_isr}")


def p3_enough_replicas_stay_eligible(
    t: Tally, where: object, partition: PartitionRegistration, min_isr: int, lost: Collection[Any]
) -> None:
    """`lost`: replicas that lost their disk or its proof since the ISR last was full."""
    t["P3"] += 1
    if len(partition.isr) + len(partition.elr) + len(lost) < min_isr:
        raise InvariantError("P3", where, partition, f"lost {set(lost)}")


def p4_epochs_count_changes(
    t: Tally, where: object, before: PartitionRegistration, after: PartitionRegistration
) -> None:
    t["P4"] += 1
    leader_step = after.leader_epoch - before.leader_epoch
    if after.partition_epoch != before.partition_epoch + 1 or leader_step < 0:
        raise InvariantError("P4", where, before, after)
    if leader_step == 0 and after.leader != before.leader:
        raise InvariantError("P4", where, before, after)


def p5_elected_from_isr_or_elr(
    t: Tally,
    where: object,
    before: PartitionRegistration,
    after: PartitionRegistration,
    *,
    unclean_allowed: bool,
) -> None:
    t["P5"] += 1
    if after.leader not in before.isr + before.elr and not unclean_allowed:
        raise InvariantError("P5", where, before, after)


def p6_accepted_only_with_present_epochs(
    t: Tally, command: Any, image: MetadataImage, before: PartitionRegistration
) -> None:
    """`image`, `before`: what an accepted AlterPartition was decided on, as the log has it."""
    t["P6"] += 1
    sender = image.brokers.get(command.broker_id)
    members = {member.broker_id: member.broker_epoch for member in command.new_isr}
    right = (
        sender is not None
        and sender.broker_epoch == command.broker_epoch
        and sender.state in ACTIVE_STATES
        and command.leader_epoch == before.leader_epoch
        and command.partition_epoch == before.partition_epoch
        and command.broker_id == before.leader
        and command.broker_id in members
        and members.keys() <= set(before.replicas)
    )
    for joiner in members.keys() - set(before.isr):
        broker = image.brokers.get(joiner)
        right = right and broker is not None and broker.state is BrokerState.UNFENCED
        right = right and broker.broker_epoch == members[joiner]
    if not right:
        raise InvariantError("P6", command, before, sender)


def p7_the_future_is_refused(t: Tally, command: object, code_name: str) -> None:
    t["P7"] += 1
    if code_name != "NOT_CONTROLLER":
        raise InvariantError("P7", command, f"answered {code_name}")


def p8_reassignment_is_safe(
    t: Tally,
    where: object,
    before: PartitionRegistration,
    after: PartitionRegistration,
    min_isr: int,
    original: Collection[BrokerId],
) -> None:
    """A step of one: it adds to no ISR; it ends with enough in sync, or as it was."""
    t["P8"] += 1
    facts = (where, before, after, f"min ISR {min_isr}", f"before it {original}")
    gained = set(after.isr) - set(before.isr)
    if gained - {after.leader} or not gained <= {*before.elr, *before.last_known_elr}:
        raise InvariantError("P8", *facts)
    if len(after.directories) != len(after.replicas):
        raise InvariantError("P8", *facts)
    if after.is_reassigning or not before.is_reassigning:
        return
    stay = set(before.replicas)
    completed = set(after.replicas) == stay - set(before.removing)
    cancelled = set(after.replicas) == set(original)
    if completed and not cancelled:
        coming = set(before.adding) - set(before.removing)
        if len(after.isr) < min_isr or not coming <= set(before.isr):
            raise InvariantError("P8", *facts)
    elif not cancelled:
        raise InvariantError("P8", *facts)


def p8_who_goes_knows_who_leads(
    where: object, before: PartitionRegistration, after: PartitionRegistration, read_up_to: int
) -> None:
    """Rule G3, of a live replica that was in sync: else it takes itself for the leader.

    `read_up_to`: what the broker process has really applied.
    """
    if read_up_to <= before.leader_epoch_offset:
        raise InvariantError("P8", where, before, after, f"gone at {read_up_to}, unaware")


def p9_preferred_is_taken_from_the_isr(
    t: Tally, where: object, before: PartitionRegistration, after: PartitionRegistration
) -> None:
    """A leader that did not have to go went: only for a replica in sync, more preferred."""
    t["P9"] += 1
    if after.leader not in before.isr:
        raise InvariantError("P9", where, before, after)


def p10_unclean_replica_is_not_eligible(
    t: Tally, where: TopicIdPartition, replica: BrokerId, partition: PartitionRegistration
) -> None:
    """The registration's consequences are recorded, and the replica has not joined since."""
    t["P10"] += 1
    if replica in partition.isr + partition.elr:
        raise InvariantError("P10", where, f"replica {replica} lost data", partition)


def p11_last_known_are_remembered(
    t: Tally, where: object, partition: PartitionRegistration, min_isr: int, lost: Collection[Any]
) -> None:
    """With nobody left in ISR and ELR: who lost the proof of its end, but not its disk."""
    t["P11"] += 1
    if len({*partition.last_known_elr, *lost}) < min_isr:
        raise InvariantError("P11", where, partition, f"lost {set(lost)}")


def p12_isrs_fill_up_again(t: Tally, image: MetadataImage, alive: Collection[BrokerId]) -> None:
    t["P12"] += 1
    for topic in image.topics.values():
        for partition in topic.partitions:
            if not partition.has_leader:
                # Nobody left who may lead: all lost their disks.
                if any(b in alive for b in partition.isr + partition.elr):
                    raise InvariantError("P12", topic.name, partition)
            elif partition.is_reassigning or not set(partition.isr) >= set(
                partition.replicas
            ) & set(alive):
                raise InvariantError("P12", topic.name, partition)


def p13_brokers_converge(t: Tally, offsets: Mapping[Any, int], end: int) -> None:
    t["P13"] += 1
    if any(offset != end for offset in offsets.values()):
        raise InvariantError("P13", f"end {end}, brokers at {dict(offsets)}")


def p14_one_leader_per_leader_epoch(
    t: Tally, leaders: dict[Any, BrokerId], where: TopicIdPartition, now: PartitionRegistration
) -> None:
    if now.leader == NO_LEADER:
        return
    t["P14"] += 1
    if leaders.setdefault((where, now.leader_epoch), now.leader) != now.leader:
        raise InvariantError("P14", where, now, leaders[where, now.leader_epoch])


def t5_producer_ids_are_handed_out_once(
    t: Tally, blocks: dict[int, object], first: int, count: int, to: object
) -> None:
    """`blocks`: first id → who has it; all blocks are equally long."""
    t["T5"] += 1
    if first % count or blocks.setdefault(first, to) != to:
        raise InvariantError("T5", f"{first} to {to}", blocks)
