"""Operators of a `metadata_sim`: they create, change, move, drain, elect and delete, at any
controller, at any time, and repeat themselves."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome
from raft_metadata.common.ids import BrokerId, NodeId, PartitionId, TopicId, TopicName
from raft_metadata.image.metadata_image import MetadataImage, TopicImage
from raft_metadata.records.commands import (
    AddPartitions,
    AlterClientQuotas,
    AlterConfigs,
    AlterReassignments,
    Command,
    ConfigChange,
    CreateTopic,
    DeleteTopic,
    DrainBroker,
    Election,
    ElectLeaders,
    PartitionPlace,
    PartitionsAdded,
    Reassignment,
    TopicCreated,
    UnregisterBroker,
    UpgradeMetadata,
)
from raft_metadata.records.records import (
    BrokerState,
    DrainScope,
    QuotaEntity,
    QuotaEntityType,
    ResourceType,
)
from tests.support import metadata_invariants as invariant
from tests.support.metadata_world import topic_id

if TYPE_CHECKING:
    from tests.support.metadata_sim import MetadataSim
    from tests.support.metadata_sim_lives import ControllerLife

SAYS_NOTHING = frozenset(
    {ErrorCode.NOT_CONTROLLER, ErrorCode.QUEUE_FULL, ErrorCode.OUTCOME_UNKNOWN}
)
"""Refusals that claim to know nothing of the metadata."""


class Operator:
    """Somebody with all rights and no patience."""

    def __init__(self, world: MetadataSim) -> None:
        self.world, self.rng = world, world.rng
        self.topics = self.quotas = 0
        self.insist_on: NodeId | None = None

    @property
    def image(self) -> MetadataImage:
        """What it could know: all that is committed."""
        return self.world.witness.reference.image

    def node(self) -> NodeId:
        if self.insist_on is not None:
            return self.insist_on
        active, chance = self.world.active, self.rng.random()
        if active is not None and chance < 0.8:
            return active.node_id
        believers = [life.node_id for life in self.world.up.values() if life.controller.is_active]
        return self.rng.choice(believers if believers and chance < 0.92 else self.world.raft.ids)

    def act(self) -> None:
        if self.rng.random() < 0.45:
            self.rng.choice((self.create, self.create, self.create, self.delete))()
            return
        act = self.rng.choice(
            (
                self.add_partitions,
                self.reassign,
                self.reassign,
                self.reassign,
                self.cancel,
                self.elect_preferred,
                self.elect_uncleanly,
                self.elect_uncleanly,
                self.elect_uncleanly,
                self.configure,
                self.drain,
                self.unregister,
                self.set_quota,
                self.set_quota,
                self.set_quota,
                self.upgrade,
            )
        )
        act()

    def ask_one_that_sleeps(self, node: NodeId) -> None:
        """What changes nothing is answered without an append: from which reign?"""
        self.insist_on = node
        for act in (self.upgrade, self.end_no_drain):
            act()
        self.insist_on = None

    def end_no_drain(self) -> None:
        self.admin(DrainBroker(broker_id=self._a_broker(), scope=DrainScope.NONE))

    def ask(
        self,
        name: str,
        ask: Callable[[ControllerLife], Any],
        answered: Callable[[int, Any], None] = lambda *_: None,
        command: object = None,
    ) -> None:
        seen_epoch = self.image.epoch
        self.world.call(
            0,
            self.node(),
            partial(self._asked, ask, seen_epoch),
            partial(self._answered, name, seen_epoch, answered),
            command=command,
        )

    async def _asked(
        self, ask: Callable[[ControllerLife], Any], seen_epoch: int, life: ControllerLife
    ) -> Any:
        """In the controller's process: what it says, it says in its reign."""
        speculation = life.controller.speculation
        reign = 0 if speculation is None else speculation.term
        tally = self.world.witness.tally
        if 0 < reign < seen_epoch:
            self.world.witness.counts["asked of a deposed controller"] += 1
        try:
            answer = await ask(life)
        except KafkaError as error:
            if error.code not in SAYS_NOTHING:
                invariant.r14_no_answer_from_the_past(tally, error, seen_epoch, reign)
            raise
        invariant.r14_no_answer_from_the_past(tally, answer, seen_epoch, reign)
        return answer

    def _answered(
        self, name: str, seen_epoch: int, answered: Callable[[int, Any], None], answer: Any
    ) -> None:
        counts = self.world.witness.counts
        if isinstance(answer, KafkaError):
            counts[f"{name} {answer.code.name}"] += 1
        else:
            counts[f"{name} ok"] += 1
        answered(seen_epoch, answer)

    def admin(self, command: Command[Any], **how: Any) -> None:
        name = type(command).__name__
        self.ask(name, lambda life: life.controller.execute(command), command=command, **how)

    # ---- topics

    def create(self) -> None:
        self.topics += 1
        rng, new = self.rng, topic_id(self.topics)
        assignments = None
        factor = rng.choice((3, 3, 2, 1))
        if rng.random() < 0.2:
            ids = [broker.broker_id for broker in self.world.brokers]
            assignments = {0: tuple(rng.sample(ids, factor))}
        command = CreateTopic(
            name=TopicName(f"t{rng.randrange(4)}"),
            topic_id=new,
            partitions_count=None if assignments else rng.choice((1, 1, 2, 3)),
            replication_factor=None if assignments else factor,
            replicas_assignments=assignments,
        )
        count = command.partitions_count or len(command.replicas_assignments)
        self.world.witness.asked[new] = (factor, assignments is None, count)
        self.ask(
            "create",
            lambda life: life.controller.execute(command),
            partial(self._created, new),
            command,
        )

    def _created(self, new: TopicId, seen_epoch: int, answer: Any) -> None:
        witness = self.world.witness
        if isinstance(answer, KafkaError):
            witness.refused(answer, new)
            return
        assert isinstance(answer, TopicCreated)
        witness.created.append(new)
        for offset in witness.created_at.get(new, ()):
            witness.acknowledged("an operator", offset, seen_epoch)

    def delete(self) -> None:
        command = DeleteTopic(name=TopicName(f"t{self.rng.randrange(4)}"))
        self.ask("delete", lambda life: life.controller.execute(command), self._deleted, command)

    def _deleted(self, _seen_epoch: int, answer: Any) -> None:
        if not isinstance(answer, KafkaError) and answer.topic_id in self.image.topics:
            raise invariant.InvariantError("R9", "deleted, and still there", answer)

    def _a_topic(self) -> TopicImage | None:
        topics = list(self.image.topics.values())
        return self.rng.choice(topics) if topics else None

    def add_partitions(self) -> None:
        topic = self._a_topic()
        if topic is not None:
            count = topic.partitions_count + self.rng.choice((0, 1, 1, 3))
            if count > 8:
                return
            command = AddPartitions(topic=topic.name, partitions_count=count)
            self.admin(command, answered=self._grown)

    def _grown(self, _seen_epoch: int, answer: Any) -> None:
        if isinstance(answer, PartitionsAdded):
            topic = self.image.topics.get(answer.topic_id)
            if topic is not None and topic.partitions_count < answer.partitions_count:
                raise invariant.InvariantError("R9", "more partitions, and not there", answer)

    def configure(self) -> None:
        topic = self._a_topic()
        if topic is None:
            return
        name, value = self.rng.choice(
            (
                ("min.insync.replicas", "1"),
                ("min.insync.replicas", "2"),
                ("min.insync.replicas", "3"),
                ("min.insync.replicas", None),
                ("retention.ms", "100000"),
                ("unclean.leader.election.enable", "true"),
                ("unclean.leader.election.enable", None),
            )
        )
        if value == "true":
            self.world.witness.unclean_asked.add(topic.topic_id)
        change = ConfigChange(
            resource_type=ResourceType.TOPIC, resource_name=topic.name, name=name, value=value
        )
        self.admin(AlterConfigs(changes=(change,)))

    # ---- partitions

    def reassign(self) -> None:
        topic = self._a_topic()
        if topic is None or not topic.partitions:
            return
        ids = sorted(self.image.brokers)
        target = self.rng.sample(ids, min(len(ids), self.rng.choice((1, 2, 3, 3))))
        self._move(topic, self.rng.randrange(len(topic.partitions)), tuple(target))

    def cancel(self) -> None:
        for topic in self.image.topics.values():
            for index, partition in enumerate(topic.partitions):
                if partition.is_reassigning:
                    self._move(topic, index, None)
                    return

    def _move(self, topic: TopicImage, index: int, target: tuple[BrokerId, ...] | None) -> None:
        change = Reassignment(topic=topic.name, partition=PartitionId(index), replicas=target)
        self.admin(AlterReassignments(changes=(change,)))

    def elect_preferred(self) -> None:
        self.admin(ElectLeaders(election=Election.PREFERRED))

    def elect_uncleanly(self) -> None:
        for topic in self.image.topics.values():
            for index, partition in enumerate(topic.partitions):
                if not partition.has_leader:
                    self.world.witness.unclean_asked.add(topic.topic_id)
                    place = PartitionPlace(topic=topic.name, partition=PartitionId(index))
                    self.admin(ElectLeaders(election=Election.UNCLEAN, partitions=(place,)))
                    return

    # ---- brokers, and the rest

    def _a_broker(self) -> BrokerId:
        return self.rng.choice(self.world.brokers).broker_id

    def drain(self) -> None:
        scope = self.rng.choice(list(DrainScope))
        self.admin(DrainBroker(broker_id=self._a_broker(), scope=scope))

    def end_drains(self) -> bool:
        """Whether none is left; asks for the end of those that are."""
        drained = [
            broker.broker_id
            for broker in self.image.brokers.values()
            if broker.drain is not DrainScope.NONE
        ]
        for broker_id in drained:
            self.admin(DrainBroker(broker_id=broker_id, scope=DrainScope.NONE))
        return not drained

    def unregister(self) -> None:
        held = {b for t in self.image.topics.values() for p in t.partitions for b in p.replicas}
        gone = [
            broker.broker_id
            for broker in self.image.brokers.values()
            if broker.state is BrokerState.FENCED and broker.broker_id not in held
        ]
        self.admin(UnregisterBroker(broker_id=gone[0] if gone else self._a_broker()))

    def set_quota(self) -> None:
        """Each to a value of its own: so it is seen how often it was done."""
        self.quotas += 1
        value = self.quotas + 0.5
        entity = (QuotaEntity(QuotaEntityType.USER, self.rng.choice(("ann", "bob", None))),)
        command = AlterClientQuotas(entity=entity, changes={"producer_byte_rate": value})
        self.admin(command, answered=partial(self._quota_set, value))

    def _quota_set(self, value: float, _seen_epoch: int, answer: Any) -> None:
        if not isinstance(answer, KafkaError):
            self.world.witness.quotas[value] = True
        elif answer.outcome is Outcome.NOT_WRITTEN:
            self.world.witness.quotas[value] = False

    def upgrade(self) -> None:
        self.admin(UpgradeMetadata())
