"""Elections that an operator requests, and the background return of preferred leaders. Pure.

`Controller.election_steps` cuts a command (KIP-460) into parts, each part is decided by
`decide_elect_leaders`, and `joined_elections` makes one answer.

A broker that was away leads nothing when it returns, and the others lead its share. `LeaderBalance`
moves with each check a bounded number of leaderships to brokers that have been unfenced for a
while.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from raft_metadata.common.configs.table import (
    AUTO_LEADER_REBALANCE_ENABLE,
    LEADER_IMBALANCE_CHECK_INTERVAL_MS,
)
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import (
    BrokerId,
    PartitionId,
    TopicIdPartition,
)
from raft_metadata.controller.broker_views import (
    NO_DAMAGE,
    NO_DAMAGED_REPLICAS,
    Brokers,
    DamageByBroker,
    DamagedReplicas,
    first_electable,
    is_drained,
    is_electable,
    is_starting,
)
from raft_metadata.controller.partition_change import (
    unable_replicas,
    unclean_candidate,
    unsure_replicas,
)
from raft_metadata.controller.partition_draft import PartitionDraft, partition_at
from raft_metadata.controller.topic_rules import (
    TopicDefaults,
    TopicRules,
    cluster_flag,
    cluster_number,
)
from raft_metadata.image.metadata_delta import MetadataDelta
from raft_metadata.image.metadata_image import MetadataImage, PartitionRegistration, TopicImage
from raft_metadata.records.commands import (
    Election,
    ElectionResult,
    ElectLeaders,
    LeadersElected,
    PartitionPlace,
)
from raft_metadata.records.records import BrokerState, PartitionChangeRecord

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
    places = _places(image, command)
    while part := tuple(islice(places, changes_max)):
        yield replace(command, partitions=part)


def joined_elections(parts: Sequence[LeadersElected]) -> LeadersElected:
    """Return one answer from those of all parts; of too many results the failed ones come first."""
    results = [result for part in parts for result in part.results]
    if len(results) > ELECTIONS_MAX:
        results.sort(key=lambda result: result.error is None)
    last = max(part.next_offset for part in parts)
    return LeadersElected(results=tuple(results[:ELECTIONS_MAX]), next_offset=last)


def _places(image: MetadataImage, command: ElectLeaders) -> Iterator[PartitionPlace]:
    """Yield the named partitions once each, or those where the election could change something."""
    if command.partitions is not None:
        yield from dict.fromkeys(command.partitions)
        return
    for topic in image.topics.values():
        for index, partition in enumerate(topic.partitions):
            if command.election is Election.UNCLEAN:
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
    damaged_replicas: DamagedReplicas = NO_DAMAGED_REPLICAS,
) -> tuple[tuple[PartitionChangeRecord, ...], LeadersElected]:
    """Decide one part of an election, partition by partition; a failure affects no other."""
    records: list[PartitionChangeRecord] = []
    results: list[ElectionResult] = []
    for place in _places(image, command):
        topic = image.topic(place.topic)
        partition = None if topic is None else image.partition(topic.topic_id, place.partition)
        if topic is None or partition is None:
            results.append(
                _failed_result(place, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "does not exist")
            )
            continue
        draft = PartitionDraft.of(partition)
        damaged = damaged_replicas.get(partition_at(topic.topic_id, place.partition), NO_DAMAGE)
        if command.election is Election.PREFERRED:
            refusal = _elect_preferred(image.brokers, draft, damaged)
        else:
            refusal = _elect_any(image.brokers, draft, damaged)
        if refusal is not None:
            results.append(_failed_result(place, *refusal))
            continue
        if draft.new_leader_epoch:
            records.append(_record(image, topic, place.partition, draft, defaults))
        leader = draft.leader
        results.append(ElectionResult(topic=place.topic, partition=place.partition, leader=leader))
    next_offset = image.offset_after(len(records))
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
    return draft.record(partition_at(topic.topic_id, partition_id))


def _failed_result(place: PartitionPlace, code: ErrorCode, message: str) -> ElectionResult:
    return ElectionResult(
        topic=place.topic,
        partition=place.partition,
        error=code.number,
        message=f"{place.topic}-{place.partition}: {message}",
    )


def _elect_preferred(
    brokers: Brokers, draft: PartitionDraft, damaged: DamageByBroker = NO_DAMAGE
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


def _elect_any(brokers: Brokers, draft: PartitionDraft, damaged: DamageByBroker) -> _Refusal | None:
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


EXAMINED_MAX = 10_000
"""Partitions examined per broker and check; the others wait for the next check."""


@dataclass(slots=True)
class LeaderBalance:
    """Partitions not led by their preferred leader: soft state of an active controller.

    Times are judge time in ms. Updated with every change, so that a check examines only these.
    """

    returned_ms: int
    """A broker gets leaderships only once it has been unfenced for this long, so that one that
    crashes repeatedly does not take partitions offline each time."""
    moves_max: int
    """Leaderships moved per check; more at once would make every client refresh its metadata."""
    _led_by_others: dict[BrokerId, dict[TopicIdPartition, None]] = field(default_factory=dict)
    """By preferred leader: the partitions that it does not lead."""
    _unfenced_ms: dict[BrokerId, int] = field(default_factory=dict)
    _checked_ms: int = 0

    def begin(self, image: MetadataImage, now_ms: int) -> None:
        """Rebuild the state from a committed image; every broker counts as just unfenced."""
        self._led_by_others.clear()
        self._checked_ms = now_ms
        self._unfenced_ms = dict.fromkeys(image.brokers, now_ms)
        for topic_id, topic in image.topics.items():
            for index, partition in enumerate(topic.partitions):
                if partition.leader != partition.target[0]:
                    self._put(partition_at(topic_id, index), partition)

    def note(self, delta: MetadataDelta, image: MetadataImage, now_ms: int) -> None:
        """Update the state by a delta. Deleted partitions are dropped when they are examined."""
        for broker_id, broker in delta.changed_brokers.items():
            before = delta.image.brokers.get(broker_id)
            was = None if before is None else before.state
            if broker.state is BrokerState.UNFENCED and was is not BrokerState.UNFENCED:
                self._unfenced_ms[broker_id] = now_ms
        for topic_id, topic in delta.changed_topics.items():
            for index, old, new in topic.changes(delta.image):
                if old is not None and self._led_by_others:
                    led_by_others = self._led_by_others.get(old.target[0], {})
                    led_by_others.pop(partition_at(topic_id, index), None)
                if new.leader != new.target[0]:
                    self._put(partition_at(topic_id, index), new)

    def _put(self, where: TopicIdPartition, partition: PartitionRegistration) -> None:
        self._led_by_others.setdefault(partition.target[0], {})[where] = None

    # ---- decision

    def moves(
        self,
        image: MetadataImage,
        now_ms: int,
        defaults: TopicDefaults,
        damaged_replicas: DamagedReplicas = NO_DAMAGED_REPLICAS,
    ) -> tuple[PartitionChangeRecord, ...]:
        """Return the leaderships that move now; none before the next check is due.

        Leaderships move only to brokers that are alive, in sync, not drained, and unfenced long
        enough; never of a partition that is being reassigned or has a damaged replica.
        """
        interval_ms = cluster_number(image, LEADER_IMBALANCE_CHECK_INTERVAL_MS)
        if not self._led_by_others or now_ms - self._checked_ms < interval_ms:
            return ()
        self._checked_ms = now_ms
        if not cluster_flag(image, AUTO_LEADER_REBALANCE_ENABLE):
            return ()
        records: list[PartitionChangeRecord] = []
        for broker_id, away in self._led_by_others.items():
            may_lead = is_electable(image.brokers, broker_id)
            may_lead = may_lead and not is_drained(image.brokers, broker_id)
            stays_ms = now_ms - self._unfenced_ms.get(broker_id, now_ms)
            if may_lead and stays_ms >= self.returned_ms:
                self._add_moves(image, away, records, defaults, damaged_replicas)
        return tuple(records)

    def _add_moves(
        self,
        image: MetadataImage,
        away: dict[TopicIdPartition, None],
        records: list[PartitionChangeRecord],
        defaults: TopicDefaults,
        damaged_replicas: DamagedReplicas,
    ) -> None:
        """Add the possible moves to one broker to ``records``."""
        for where in tuple(away)[:EXAMINED_MAX]:
            if len(records) >= self.moves_max:
                return
            partition = image.partition(*where)
            del away[where]
            if partition is None:
                continue
            away[where] = None  # to the end of the queue, until an image shows its return
            if (
                partition.has_leader
                and not partition.is_reassigning
                and where not in damaged_replicas
            ):
                topic = image.topics[where.topic_id]
                record = preferred_leader_record(image, topic, where.partition, partition, defaults)
                if record is not None:
                    records.append(record)
