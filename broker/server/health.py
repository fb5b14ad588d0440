"""The cluster's health: a verdict and its reasons, from an image, the quorum and brokers' reports.

`MetadataRequests` calls `total_damage`, `total_troubles`, `tally_partitions` and `judge`. An image
does not show which leaders have damaged logs, or which groups stand still, so `MetadataRequests`
collects the brokers' reports. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from broker.coordinator.troubles import LOADING_AFTER_MS, WAITING_AFTER_MS, ShardTroubles
from broker.server.drains import STUCK_AFTER_MS, StuckDrain
from raft_metadata.common.configs.table import MIN_INSYNC_REPLICAS
from raft_metadata.common.internal_topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from raft_metadata.image.metadata_image import MetadataImage, PartitionRegistration, TopicImage
from raft_metadata.records.quorum_view import ControllerState
from raft_metadata.records.records import BrokerState, DrainScope

if TYPE_CHECKING:
    from raft_metadata.common.ids import BrokerId, TopicIdPartition


DAMAGED_NAMED_MAX: Final = 100
"""Damaged partitions that a broker names to another one; the others are counted."""
REASON_CHARACTERS_MAX: Final = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """Partitions that a broker leads over damaged logs: their number, and some with the reason."""

    count: int
    partitions: tuple[tuple[TopicIdPartition, str], ...]


class BrokerReport(Protocol):
    """A broker's report of itself for the verdict on the cluster."""

    @property
    def damage(self) -> Damage: ...

    @property
    def troubles(self) -> Sequence[ShardTroubles]: ...


class DamagedLeader(NamedTuple):
    """A partition whose leader's log is damaged, as the leader reports it."""

    topic: str
    partition: int
    leader: BrokerId
    reason: str


@dataclass(frozen=True, slots=True)
class TotalDamage:
    """Sum of all live brokers' reports of damage."""

    count: int = 0
    named: tuple[DamagedLeader, ...] = ()


def damage_led_here(
    damaged: Mapping[TopicIdPartition, str], leads: Callable[[TopicIdPartition], bool]
) -> Damage:
    """Return those of these damaged replicas that lead."""
    led = [(where, why[:REASON_CHARACTERS_MAX]) for where, why in damaged.items() if leads(where)]
    return Damage(count=len(led), partitions=tuple(led[:DAMAGED_NAMED_MAX]))


def total_damage(image: MetadataImage, reports: Iterable[tuple[BrokerId, Damage]]) -> TotalDamage:
    """Return the sum of brokers' reports, without partitions that they do not lead any more."""
    count, named = 0, []
    for broker, reported in reports:
        count += reported.count
        for where, reason in reported.partitions:
            topic = image.topics.get(where.topic_id)
            registration = image.partition(*where)
            if topic is None or registration is None or registration.leader != broker:
                count -= 1  # deleted, or led by another broker by now
                continue
            named.append(DamagedLeader(topic.name, where.partition, broker, reason))
    return TotalDamage(count, tuple(sorted(named)))


def total_troubles(
    image: MetadataImage, reports: Iterable[tuple[BrokerId, Sequence[ShardTroubles]]]
) -> list[ShardTroubles]:
    """Return brokers' reports on the partitions of coordinators' topics that they still lead."""
    leaders = {
        name: [partition.leader for partition in topic.partitions]
        for name in (OFFSETS_TOPIC, TRANSACTIONS_TOPIC)
        if (topic := image.topic(name)) is not None
    }
    return [
        one
        for broker, reported in reports
        for one in reported
        if one.partition < len(leaders.get(one.topic, ()))
        and leaders[one.topic][one.partition] == broker
    ]


NO_FENCE = "none"
NO_DAMAGE = TotalDamage()
EXAMPLES_MAX = 5
"""Partitions named in a reason."""


class HealthStatus(Enum):
    """Verdicts, from best to worst."""

    HEALTHY = "healthy"
    DEGRADED = "degraded"
    UNHEALTHY = "unhealthy"


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthReason:
    """A single defect of the cluster."""

    code: str
    status: HealthStatus
    """Severity of this defect."""
    message: str
    count: int
    examples: tuple[str, ...] = ()


@dataclass(slots=True)
class _Tally:
    """A number of partitions, and the first few of them."""

    count: int = 0
    examples: list[str] = field(default_factory=list)

    def add(self, topic: str, partition: int) -> None:
        self.count += 1
        if len(self.examples) < EXAMPLES_MAX:
            self.examples.append(f"{topic}:{partition}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionTallies:
    """Numbers of partitions of an image by their defects."""

    partitions: int
    offline: _Tally
    under_min_isr: _Tally
    at_min_isr: _Tally
    under_replicated: _Tally
    reassigning: _Tally
    not_preferred: _Tally
    unfinished: _Tally
    """Topics whose creation or growth is still under way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterHealth:
    """A verdict. ``controller_id`` None: no controller answers, or none is active."""

    status: HealthStatus
    reasons: tuple[HealthReason, ...]
    counts: Mapping[str, int]
    controller_id: int | None
    metadata_offset: int


def tally_partitions(image: MetadataImage, default_min_isr: int) -> PartitionTallies:
    """Count the partitions by their defects: a tenth of a second for 100,000."""
    tallies = PartitionTallies(
        partitions=sum(len(topic.partitions) for topic in image.topics.values()),
        **{name: _Tally() for name in _TALLIED},
    )
    for topic in image.topics.values():
        _tally_topic(tallies, topic, _min_isr(image, topic, default_min_isr))
    return tallies


_TALLIED = (
    "offline",
    "under_min_isr",
    "at_min_isr",
    "under_replicated",
    "reassigning",
    "not_preferred",
    "unfinished",
)


def _min_isr(image: MetadataImage, topic: TopicImage, default: int) -> int:
    """Return the topic's own value, the cluster's, or the default."""
    for configs in (image.topic_configs(topic.topic_id), image.cluster_configs()):
        if MIN_INSYNC_REPLICAS in configs:
            return int(configs[MIN_INSYNC_REPLICAS])
    return default


def _tally_topic(tallies: PartitionTallies, topic: TopicImage, min_isr: int) -> None:
    name = topic.name
    if not topic.is_complete:
        tallies.unfinished.add(name, len(topic.partitions))
    for number, partition in enumerate(topic.partitions):
        if not partition.has_leader:
            tallies.offline.add(name, number)
        elif partition.leader != partition.replicas[0]:
            tallies.not_preferred.add(name, number)
        wanted = _wanted_replicas(partition)
        in_sync = len(partition.isr)
        if in_sync < min(min_isr, wanted):
            tallies.under_min_isr.add(name, number)
        elif in_sync == min_isr and in_sync < wanted:
            tallies.at_min_isr.add(name, number)
        if not set(partition.replicas) - set(partition.adding) <= set(partition.isr):
            tallies.under_replicated.add(name, number)
        if partition.is_reassigning:
            tallies.reassigning.add(name, number)


def _wanted_replicas(partition: PartitionRegistration) -> int:
    """Return the number of replicas that should exist; one being added is not missing yet."""
    return len(partition.replicas) - len(partition.adding)


def judge(
    image: MetadataImage,
    tallies: PartitionTallies,
    leader: ControllerState | None,
    controllers: Mapping[int, ControllerState | None],
    damage: TotalDamage = NO_DAMAGE,
    stuck_drains: Sequence[StuckDrain] = (),
    troubles: Sequence[ShardTroubles] = (),
) -> ClusterHealth:
    """Return the verdict on the cluster, with the worst reasons first.

    ``leader``: the active controller's state, None if no controller answers as such.
    ``controllers``: each controller's answer to this broker, None without one. ``damage``: the
    leaders' reports on their logs. ``stuck_drains``: drains without progress. ``troubles``: the
    group coordinators' reports.
    """
    reasons = sorted(
        (
            *_controller_reasons(leader, controllers),
            *_broker_reasons(image),
            *_partition_reasons(tallies),
            *_damage_reasons(damage),
            *map(_drain_reason, stuck_drains),
            *_coordinator_reasons(troubles),
        ),
        key=lambda reason: _ORDER.index(reason.status),
        reverse=True,
    )
    worst = reasons[0].status if reasons else HealthStatus.HEALTHY
    states = [broker.state for broker in image.brokers.values()]
    return ClusterHealth(
        status=worst,
        reasons=tuple(reasons),
        controller_id=None if leader is None else leader.node_id,
        metadata_offset=image.next_offset,
        counts={
            "controllers": len(controllers),
            "controllers_unreachable": sum(state is None for state in controllers.values()),
            "brokers": len(states),
            "draining_brokers": sum(
                broker.drain is not DrainScope.NONE for broker in image.brokers.values()
            ),
            "fenced_brokers": sum(state is BrokerState.FENCED for state in states),
            "topics": len(image.topics),
            "partitions": tallies.partitions,
            "offline_partitions": tallies.offline.count,
            "under_replicated_partitions": tallies.under_replicated.count,
            "under_min_isr_partitions": tallies.under_min_isr.count,
            "at_min_isr_partitions": tallies.at_min_isr.count,
            "reassigning_partitions": tallies.reassigning.count,
            "preferred_leader_imbalance": tallies.not_preferred.count,
            "damaged_partitions": damage.count,
            "blocked_groups": sum(one.blocked for one in troubles),
            "held_groups": sum(one.held for one in troubles),
            "waiting_transactions": sum(one.waiting for one in troubles),
        },
    )


_ORDER = list(HealthStatus)


def _controller_reasons(
    leader: ControllerState | None, controllers: Mapping[int, ControllerState | None]
) -> Iterator[HealthReason]:
    silent = [str(controller) for controller, state in controllers.items() if state is None]
    if leader is None:
        yield HealthReason(
            code="NO_ACTIVE_CONTROLLER",
            status=HealthStatus.UNHEALTHY,
            message="no controller answers as the active one: metadata can't change",
            count=1,
        )
    if silent:
        yield _named_reason(
            "CONTROLLER_DOWN",
            HealthStatus.DEGRADED,
            "controllers do not answer this broker",
            silent,
        )
    if leader is not None:
        behind = [
            str(voter.voter_id)
            for voter in leader.voters
            if not voter.is_connected and str(voter.voter_id) not in silent
        ]
        if behind:
            message = "controllers are not connected to the active one"
            yield _named_reason("VOTER_DISCONNECTED", HealthStatus.DEGRADED, message, behind)
    fenced = [
        str(controller)
        for controller, state in controllers.items()
        if state is not None and state.fence != NO_FENCE
    ]
    if fenced:
        message = "controllers that lost their disk may not vote yet"
        yield _named_reason("VOTER_REJOINING", HealthStatus.DEGRADED, message, fenced)


def _broker_reasons(image: MetadataImage) -> Iterator[HealthReason]:
    words = {
        BrokerState.FENCED: ("BROKER_FENCED", "brokers are fenced: their sessions expired"),
        BrokerState.STARTING: ("BROKER_STARTING", "brokers are starting"),
        BrokerState.CONTROLLED_SHUTDOWN: ("BROKER_SHUTTING_DOWN", "brokers are shutting down"),
    }
    for state, (code, message) in words.items():
        found = [str(each.broker_id) for each in image.brokers.values() if each.state is state]
        if found:
            yield _named_reason(code, HealthStatus.DEGRADED, message, found)
    if not image.brokers:
        yield HealthReason(
            code="NO_BROKER",
            status=HealthStatus.UNHEALTHY,
            message="no broker is registered",
            count=0,
        )


def _named_reason(
    code: str, status: HealthStatus, message: str, names: Iterable[str]
) -> HealthReason:
    found = list(names)
    return HealthReason(
        code=code,
        status=status,
        message=f"{len(found)} {message}: {_list_examples(found[:EXAMPLES_MAX], len(found))}",
        count=len(found),
        examples=tuple(found[:EXAMPLES_MAX]),
    )


_PARTITION_WORDS = {
    "offline": ("OFFLINE_PARTITIONS", HealthStatus.UNHEALTHY, "partitions have no leader"),
    "under_min_isr": (
        "UNDER_MIN_ISR_PARTITIONS",
        HealthStatus.UNHEALTHY,
        "partitions have fewer replicas in sync than min.insync.replicas: acks=all is refused",
    ),
    "under_replicated": (
        "UNDER_REPLICATED_PARTITIONS",
        HealthStatus.DEGRADED,
        "partitions have replicas that are not in sync",
    ),
    "unfinished": ("TOPIC_INCOMPLETE", HealthStatus.DEGRADED, "topics are still being created"),
}


def _partition_reasons(tallies: PartitionTallies) -> Iterator[HealthReason]:
    """Yield the defects of partitions, except those that are normal for a while.

    Reassignments and leaders other than the preferred ones are counted, but are no defects.
    """
    for name, (code, status, message) in _PARTITION_WORDS.items():
        tally: _Tally = getattr(tallies, name)
        if tally.count:
            yield HealthReason(
                code=code,
                status=status,
                message=f"{tally.count} {message}: {_list_examples(tally.examples, tally.count)}",
                count=tally.count,
                examples=tuple(tally.examples),
            )


def _damage_reasons(damage: TotalDamage) -> Iterator[HealthReason]:
    """Yield the damage, if any: reads of what is damaged are answered with 503."""
    if not damage.count:
        return
    text = f"{damage.count} partitions are led by a damaged replica: not all of them can be read"
    if damage.named:
        one = damage.named[0]
        text += (
            f", as {one.topic}:{one.partition} on broker {one.leader} ({one.reason}); bring its "
            f"other replicas back, `quorumlog partition describe {one.topic}:{one.partition}` "
            "names them"
        )
    yield HealthReason(
        code="DAMAGED_PARTITIONS",
        status=HealthStatus.UNHEALTHY,
        message=text,
        count=damage.count,
        examples=tuple(
            f"{each.topic}:{each.partition} on broker {each.leader}: {each.reason}"
            for each in damage.named[:EXAMPLES_MAX]
        ),
    )


def _drain_reason(drain: StuckDrain) -> HealthReason:
    """Return the defect of a drain that does not move, with the next command."""
    kind = "leaderships" if drain.scope is DrainScope.LEADERS else "replicas"
    reasons = "; ".join(f"{count}: {reason}" for reason, count in drain.reasons)
    return HealthReason(
        code="DRAIN_STUCK",
        status=HealthStatus.DEGRADED,
        message=(
            f"the drain of broker {drain.broker_id} has not moved for "
            f"{STUCK_AFTER_MS // 1000} s: {drain.left} {kind} are left ({reasons}); remove the "
            f"cause, or end it with `quorumlog broker undrain {drain.broker_id}`"
        ),
        count=drain.left,
        examples=(str(drain.broker_id),),
    )


def _coordinator_reasons(troubles: Sequence[ShardTroubles]) -> Iterator[HealthReason]:
    """Yield why groups and transactions stand still, with the next command."""
    blocked = [each for one in troubles for each in one.blocked_examples]
    if blocked:
        yield _group_reason(
            "GROUPS_BLOCKED",
            sum(one.blocked for one in troubles),
            "groups have members that stand at a record which their format can't show; `quorumlog "
            "group describe GROUP` names each, `quorumlog group skip` steps over one",
            blocked,
        )
    held = [each for one in troubles for each in one.held_examples]
    if held:
        yield _group_reason(
            "GROUPS_HELD",
            sum(one.held for one in troubles),
            "groups are held, because a record of them can't be decoded: their calls are refused; "
            "`quorumlog group repair GROUP --dry-run` shows how each goes on without",
            held,
        )
    left_out = [one for one in troubles if one.left_out]
    if left_out:
        yield _group_reason(
            "GROUP_RECORDS_SKIPPED",
            sum(one.left_out for one in left_out),
            "records that name no group and can't be decoded were left out within the last day; "
            "the groups of these partitions began a new epoch without owners",
            [f"{OFFSETS_TOPIC}:{one.partition}" for one in left_out],
        )
    for topic, code, words in (
        (OFFSETS_TOPIC, "GROUP_COORDINATORS_LOADING", "group coordinators"),
        (TRANSACTIONS_TOPIC, "TRANSACTION_COORDINATORS_LOADING", "transaction coordinators"),
    ):
        loading = [one for one in troubles if one.loading_ms and one.topic == topic]
        if loading:
            yield _group_reason(
                code,
                len(loading),
                f"{words} have been loading for more than {LOADING_AFTER_MS // 1000} s: they "
                "answer nothing",
                [f"{topic}:{one.partition}" for one in loading],
            )
    waiting = [each for one in troubles for each in one.waiting_examples]
    if waiting:
        yield _group_reason(
            "TRANSACTIONS_WAITING",
            sum(one.waiting for one in troubles),
            f"decided transactions have waited for a partition for more than "
            f"{WAITING_AFTER_MS // 1000} s; `quorumlog txn describe ID` says what for",
            waiting,
        )


def _group_reason(code: str, count: int, message: str, examples: list[str]) -> HealthReason:
    named = examples[:EXAMPLES_MAX]
    return HealthReason(
        code=code,
        status=HealthStatus.DEGRADED,
        message=f"{count} {message}: {_list_examples(named, count)}",
        count=count,
        examples=tuple(named),
    )


def _list_examples(examples: list[str], count: int) -> str:
    return ", ".join(examples) + (", …" if count > len(examples) else "")
