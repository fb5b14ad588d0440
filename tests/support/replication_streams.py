"""The stream between simulated brokers, and what leaders ask of the controller."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.replication.frames import START_OVER, Ack, Diverging, Open, Push, Refused, Skip, Valid
from broker.replication.isr_state import IsrChange
from broker.replication.leader_state import LeaderState
from broker.replication.partition import Following, PushResult, Role
from raft_metadata.common.errors import CorruptionError, KafkaError
from raft_metadata.common.ids import BrokerId, PartitionEpoch, PartitionId
from raft_metadata.records.commands import AlterPartition, IsrMember
from tests.support.replica_bytes import TOPIC
from tests.support.replication_invariants import Violation
from tests.support.replication_lives import CONTROLLER, LAG_MS, BrokerLife

if TYPE_CHECKING:
    pass


class BrokerStreams(BrokerLife):
    """What the `ReplicaManager` does with frames, on the scheduler's turn."""

    # follower

    def open_stream(self) -> None:
        if self.partition is None:
            return
        message = self.partition.open_message(self.world.number(), 0)
        role = self.role
        if message is not None and isinstance(role, Following):
            self.world.send(role.leader, "on_open", self.id, message)

    def on_valid(self, message: Valid) -> None:
        partition = self.partition
        if partition is None:
            return
        try:
            valid = partition.on_valid(message)
        except KafkaError:
            partition.drop_session()
            return
        if valid:
            partition.log.request_flush()
            self.world.judge.follows(self)
            self.acknowledge()

    def on_diverging(self, message: Diverging) -> None:
        partition = self.partition
        if partition is None:
            return
        before, role = partition.high_watermark, partition.role
        start = partition.log.log_start_offset
        agreed_epoch = max(partition.agreed_epoch, partition.log.last_epoch)
        self.unclean_cut = isinstance(role, Following) and role.unclean_epoch > agreed_epoch
        try:
            again = partition.on_diverging(message)
        except AssertionError as error:
            raise Violation("L13", str(error)) from error
        except KafkaError:
            partition.drop_session()
            return
        moved = partition.log.log_start_offset != start
        if message.at_epoch == START_OVER:
            self.world.counts["started over"] += again
            moved = True
        if not self.unclean_cut and not moved:  # who starts over moves both
            self.world.judge.diverged(self, message, before, partition.high_watermark)
        self.unclean_cut = False
        if again:
            self.open_stream()

    def on_refused(self, message: Refused) -> None:
        if self.partition is not None:
            self.partition.on_refused(message)

    def on_skip(self, message: Skip) -> None:
        if self.partition is None:
            return
        try:
            if self.partition.on_skip(message):
                self.world.counts["skipped"] += 1
        except KafkaError:
            self.partition.drop_session()

    def on_push(self, message: Push) -> None:
        partition = self.partition
        if partition is None:
            return
        try:
            result = partition.on_push(message)
        except (KafkaError, ValueError):
            partition.drop_session()
            return
        if result is PushResult.GAP:
            self.open_stream()
        elif result is PushResult.APPENDED:
            self.world.judge.follows(self)
            if not partition.settings.by_durable:
                self.acknowledge()

    def acknowledge(self) -> None:
        if self.partition is None:
            return
        message, role = self.partition.ack_message(), self.role
        if message is not None and isinstance(role, Following):
            self.world.send(role.leader, "on_ack", self.id, message)

    # leader

    def on_open(self, follower: BrokerId, message: Open) -> None:
        partition = self.partition
        if partition is None:
            return
        session = self.world.number()
        before = known_of(partition.role)
        answer = partition.on_open(follower, message, self.image.brokers, session, 0)
        self.world.judge.opened(self, follower, message, answer)
        match answer:
            case Valid():
                self.world.send(follower, "on_valid", answer)
                self.push(follower)
            case Diverging():
                self.world.judge.diverged(self, answer, before, known_of(partition.role))
                self.world.send(follower, "on_diverging", answer)
            case Refused():
                self.world.send(follower, "on_refused", answer)
            case None:
                pass

    def push(self, follower: BrokerId) -> None:
        partition = self.partition
        role = self.role
        if partition is None or not isinstance(role, LeaderState):
            return
        state = role.followers.get(follower)
        if state is None or state.session < 0:
            return
        start = state.sent
        if start < partition.log.log_start_offset:  # what is deleted is skipped
            skip = partition.skip_message(state.session)
            if skip is None:
                return
            start = skip.start
            self.world.send(follower, "on_skip", skip)
        end = partition.log.log_end_offset
        try:
            raw, state.sent = self.store.read(start, end, self.rng.choice(self.world.push_bytes))
        except CorruptionError:
            return  # the log has failed: this process ends
        everywhere = 0
        if self.topic_config is not None and self.topic_config.compaction is not None:
            everywhere = role.replicated_to(end)
            self.world.judge.keys.says_replicated(self, everywhere)
        message = Push(
            state.session, role.epoch, start, state.sent,
            partition.high_watermark, partition.log.log_start_offset, raw, everywhere,
        )  # fmt: skip
        self.world.send(follower, "on_push", message)

    def on_ack(self, follower: BrokerId, message: Ack) -> None:
        if self.partition is None:
            return
        before = known_of(self.partition.role)
        self.partition.on_ack(follower, message, 0)
        self.world.judge.acknowledged(self, message, before, known_of(self.partition.role))

    # ISR

    def propose(self, *, shrink: bool = True) -> None:
        partition, epoch = self.partition, self.broker_epoch
        if partition is None or epoch is None:
            return
        proposal = partition.propose_isr(
            self.image.brokers, self.world.number(), 1, LAG_MS if shrink else None
        )
        if proposal is None:
            return
        self.world.judge.proposed(self, proposal)
        command = AlterPartition(
            broker_id=self.id,
            broker_epoch=epoch,
            topic_id=TOPIC,
            partition=PartitionId(0),
            leader_epoch=proposal.leader_epoch,
            partition_epoch=proposal.partition_epoch,
            new_isr=tuple(IsrMember(broker_id=b, broker_epoch=e) for b, e in proposal.isr),
        )
        self.world.send(CONTROLLER, "alter_partition", self.id, command, proposal)

    def on_alter_accepted(
        self, proposal: IsrChange, partition_epoch: PartitionEpoch, isr: tuple[BrokerId, ...]
    ) -> None:
        if self.partition is not None:
            self.partition.isr_accepted(proposal, partition_epoch, isr)

    def on_alter_refused(self, proposal: IsrChange) -> None:
        if self.partition is not None:
            self.partition.isr_refused(proposal)

    def on_alter_unknown(self, proposal: IsrChange) -> None:
        if self.partition is not None:
            self.partition.isr_unknown(proposal, 0)


def known_of(role: Role) -> object:
    """What a leader knows of its followers, as plain values."""
    if not isinstance(role, LeaderState):
        return None
    return {
        follower: (state.session, state.broker_epoch, state.log_end, state.durable_end)
        for follower, state in role.followers.items()
    }
