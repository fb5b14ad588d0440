"""Elections that an operator requests (KIP-460): of preferred leaders, or unclean. Pure deciders.

`Controller.election_steps` cuts a command into parts, each part is decided by
`decide_elect_leaders`, and `joined_elections` makes one answer. `LeaderBalance` elects preferred
leaders in the background with `preferred_leader_record`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import BrokerId, MetadataOffset, PartitionId
from raft_metadata.controller.broker_views import (
    NOTHING_FAILED,
    Brokers,
    Failed,
    first_electable,
    is_drained,
    is_electable,
    is_starting,
)
from raft_metadata.controller.failed_replicas import (
    NOBODY_DAMAGED,
    Damaged,
    unable_replicas,
    unsure_replicas,
)
from raft_metadata.controller.partition_change import unclean_candidate
from raft_metadata.controller.partition_draft import PartitionDraft, at
from raft_metadata.controller.topic_defaults import TopicDefaults
from raft_metadata.controller.topic_rules import TopicRules
from raft_metadata.image.metadata_image import MetadataImage, PartitionRegistration, TopicImage
from raft_metadata.records.admin import (
    Election,
    ElectionResult,
    ElectLeaders,
    LeadersElected,
    PartitionPlace,
)
from raft_metadata.records.records import PartitionChangeRecord

ELECTIONS_MAX = 20_000
"""Partitions in one command, and in one answer: 3 MB of results."""

_Refusal = tuple[ErrorCode, str]


def election_steps(
    image: MetadataImage, command: ElectLeaders, changes_max: int
) -> Iterator[ElectLeaders]:
    """Yield the command in parts of at most ``changes_max`` partitions, each valid alone (rule M4).

    A command for the whole cluster is cut into the partitions where an election could change
    something.
    """
    named = command.partitions
    if named is not None and len(named) > ELECTIONS_MAX:
        message = f"{len(named)} partitions, at most {ELECTIONS_MAX} can be named"
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)
    places = _open_places(image, command.election) if named is None else iter(dict.fromkeys(named))
    while part := tuple(islice(places, changes_max)):
        yield replace(command, partitions=part)


def joined_elections(parts: Sequence[LeadersElected]) -> LeadersElected:
    """Return one answer from those of all parts; of too many results the failed ones come first."""
    results = [result for part in parts for result in part.results]
    if len(results) > ELECTIONS_MAX:
        results.sort(key=lambda result: result.error is None)
    last = max(part.next_offset for part in parts)
    return LeadersElected(results=tuple(results[:ELECTIONS_MAX]), next_offset=last)


def _open_places(image: MetadataImage, election: Election) -> Iterator[PartitionPlace]:
    """Yield the partitions where such an election could change something."""
    for topic in image.topics.values():
        for index, partition in enumerate(topic.partitions):
            if election is Election.UNCLEAN:
                is_open = not partition.has_leader
            else:
                is_open = partition.leader != partition.target[0]
            if is_open:
                yield PartitionPlace(topic=topic.name, partition=PartitionId(index))


def decide_elect_leaders(
    image: MetadataImage,
    command: ElectLeaders,
    *,
    defaults: TopicDefaults,
    failed: Failed = NOTHING_FAILED,
) -> tuple[tuple[PartitionChangeRecord, ...], LeadersElected]:
    """Decide one part of an election, partition by partition; a failure affects no other."""
    records: list[PartitionChangeRecord] = []
    results: list[ElectionResult] = []
    named = command.partitions
    places = _open_places(image, command.election) if named is None else iter(dict.fromkeys(named))
    for place in places:
        topic = image.topic(place.topic)
        partition = None if topic is None else image.partition(topic.topic_id, place.partition)
        if topic is None or partition is None:
            results.append(_failed(place, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "does not exist"))
            continue
        draft = PartitionDraft.of(partition)
        damaged = failed.get(at(topic.topic_id, place.partition), NOBODY_DAMAGED)
        if command.election is Election.PREFERRED:
            refusal = _elect_preferred(image.brokers, draft, damaged)
        else:
            refusal = _elect_any(image.brokers, draft, damaged)
        if refusal is not None:
            results.append(_failed(place, *refusal))
            continue
        if draft.new_leader_epoch:
            records.append(_record(image, topic, place.partition, draft, defaults))
        leader = draft.leader
        results.append(ElectionResult(topic=place.topic, partition=place.partition, leader=leader))
    next_offset = MetadataOffset(image.next_offset + len(records))
    return tuple(records), LeadersElected(results=tuple(results), next_offset=next_offset)


def preferred_leader_record(
    image: MetadataImage,
    topic: TopicImage,
    partition_id: PartitionId,
    partition: PartitionRegistration,
    defaults: TopicDefaults,
) -> PartitionChangeRecord | None:
    """Return a partition's leadership to its preferred leader if that may lead (invariant P9).

    None if it leads already or may not lead.
    """
    draft = PartitionDraft.of(partition)
    if _elect_preferred(image.brokers, draft) is not None or not draft.new_leader_epoch:
        return None
    return _record(image, topic, partition_id, draft, defaults)


def _record(
    image: MetadataImage,
    topic: TopicImage,
    partition_id: PartitionId,
    draft: PartitionDraft,
    defaults: TopicDefaults,
) -> PartitionChangeRecord:
    rules = TopicRules(image, topic, defaults)
    draft.keep_eligible(rules.min_isr(draft.replication_factor))
    return draft.record(at(topic.topic_id, partition_id), image.feature_level)


def _failed(place: PartitionPlace, code: ErrorCode, message: str) -> ElectionResult:
    return ElectionResult(
        topic=place.topic,
        partition=place.partition,
        error=code.number,
        message=f"{place.topic}-{place.partition}: {message}",
    )


def _elect_preferred(
    brokers: Brokers, draft: PartitionDraft, damaged: Damaged = NOBODY_DAMAGED
) -> _Refusal | None:
    """Elect the first replica that stays if it is in the ISR, alive and not drained (invariant P9).

    Returns the refusal, or None.
    """
    preferred = draft.before.target[0]
    if draft.leader == preferred:
        return None
    problem = _why_not(brokers, draft, preferred)
    if preferred in damaged:
        problem = "has a damaged log, which is to be filled again first"
    if problem:
        message = f"preferred leader {preferred} {problem}"
        return ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, message
    draft.lead(preferred)
    return None


def _why_not(brokers: Brokers, draft: PartitionDraft, preferred: BrokerId) -> str:
    """Return the reason why the preferred leader can't lead; empty if it can."""
    registration = brokers.get(preferred)
    if registration is None:
        return "is not registered"
    if not is_electable(brokers, preferred):
        return f"is {registration.state.value}"
    if preferred not in draft.isr:
        return f"is not in the ISR {list(draft.isr)}"
    if is_drained(brokers, preferred):
        return "is being drained"
    return ""


def _elect_any(brokers: Brokers, draft: PartitionDraft, damaged: Damaged) -> _Refusal | None:
    """Elect a clean leader if possible, else the `unclean_candidate`; return the refusal, or None.

    Refused while a member of ISR or ELR is starting: it holds all records and may lead in a moment.
    """
    if draft.before.has_leader:
        return None
    clean = first_electable(brokers, draft.replicas, draft.isr, damaged)
    if clean is None:
        clean = first_electable(brokers, draft.replicas, draft.elr, damaged)
    if clean is not None:
        draft.lead(clean)
        draft.isr = draft.isr if clean in draft.isr else (clean,)
        return None
    starting = [each for each in (*draft.isr, *draft.elr) if is_starting(brokers, each)]
    if starting:
        message = f"brokers {starting} hold everything and are starting; try again in a moment"
        return ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, message
    unsure = list(unsure_replicas(brokers, draft, damaged))
    if unsure:
        message = f"brokers {unsure} are about to say what they hold; try again in a moment"
        return ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, message
    chosen = unclean_candidate(brokers, draft, any_replica=True, damaged=damaged)
    if chosen is None:
        message = f"none of its replicas {list(draft.replicas)} is alive"
        if unable_replicas(damaged):
            message += f"; the logs of {sorted(unable_replicas(damaged))} can't be opened"
        return ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, message
    draft.lead_uncleanly(chosen)
    return None
