"""Many ISR proposals in one command: each one its own attempt, with its own answer (rule M3)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

import pytest

from broker.replication.isr_manager import COMMANDS_IN_FLIGHT, IsrManager
from broker.replication.isr_state import COMMITTED, IsrChange, in_flight, open_attempts
from broker.replication.leader_state import LeaderState, Settings
from broker.replication.partition import Partition
from raft_metadata.common.clock import SystemClock
from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome
from raft_metadata.common.ids import (
    BrokerEpoch,
    BrokerId,
    DirectoryId,
    LeaderEpoch,
    PartitionEpoch,
    PartitionId,
    TopicId,
    TopicIdPartition,
)
from raft_metadata.controller.replication_control import decide_each
from raft_metadata.records.commands import (
    MAX_ISR_CHANGES_PER_COMMAND,
    AlterPartition,
    AlterPartitionAnswer,
    AlterPartitions,
    IsrMember,
    PartitionAltered,
    PartitionsAltered,
)
from raft_metadata.records.records import PartitionChangeRecord
from raft_metadata.records.serde import encode_record
from tests.support import registered
from tests.support.hosted_replicas import NoEvents
from tests.support.memory_log import MemoryLog
from tests.support.waiting import until

if TYPE_CHECKING:
    from broker.ports import ControllerChannel

ME, OTHER = BrokerId(1), BrokerId(2)
EPOCH = BrokerEpoch(4)


class Channel:
    """Answers what a test says; remembers what came."""

    def __init__(self) -> None:
        self.commands: list[tuple[AlterPartition, ...]] = []
        self.refused: frozenset[int] = frozenset()
        self.error: KafkaError | None = None
        self.gate: asyncio.Event | None = None

    async def execute(self, command: AlterPartitions) -> PartitionsAltered:
        self.commands.append(command.attempts)
        if self.gate is not None:
            await self.gate.wait()
        if self.error is not None:
            raise self.error
        no = AlterPartitionAnswer(error=ErrorCode.INELIGIBLE_REPLICA.number, message="fenced")
        return PartitionsAltered(
            answers=tuple(
                no
                if attempt.partition in self.refused
                else AlterPartitionAnswer(altered=altered(attempt))
                for attempt in command.attempts
            )
        )


def altered(command: AlterPartition) -> PartitionAltered:
    return PartitionAltered(
        leader_epoch=command.leader_epoch,
        partition_epoch=PartitionEpoch(command.partition_epoch + 1),
        isr=tuple(member.broker_id for member in command.new_isr),
    )


def led(number: int) -> tuple[Partition, IsrChange]:
    """A partition with an attempt in flight that adds the other broker."""
    partition = Partition(
        TopicIdPartition(TopicId("A" * 22), PartitionId(number)), ME, MemoryLog(), Settings(1, True)
    )
    registration = registered.partition((ME, OTHER), ME, epoch=1, isr=(ME,))
    partition.apply_image(registration, {}, EPOCH, 0)
    role = role_of(partition)
    proposal = role.propose(number + 1, [OTHER], frozenset(), lambda _: BrokerEpoch(7))
    assert proposal is not None
    return partition, proposal


def role_of(partition: Partition) -> LeaderState:
    assert isinstance(partition.role, LeaderState)
    return partition.role


def keeper(channel: Channel) -> IsrManager:
    return IsrManager(ME, cast("ControllerChannel", channel), SystemClock(), NoEvents())


async def proposed(isr_keeper: IsrManager, attempts: list[tuple[Partition, IsrChange]]) -> None:
    """All of them in one turn; returns when all are answered."""
    async with asyncio.TaskGroup() as tasks:
        for partition, proposal in attempts:
            isr_keeper.send(partition, proposal, EPOCH, tasks)
        await until(lambda: all(in_flight(role_of(p).isr_state) is None for p, _ in attempts))


async def test_10_000_proposals_go_in_few_commands_and_each_is_answered() -> None:
    channel, attempts = Channel(), [led(number) for number in range(2_300)]
    await proposed(keeper(channel), attempts)
    sizes = [len(command) for command in channel.commands]
    assert sizes == [MAX_ISR_CHANGES_PER_COMMAND] * 4 + [300]
    assert all(role_of(partition).isr == {1, 2} for partition, _ in attempts)
    assert not any(open_attempts(role_of(partition).isr_state) for partition, _ in attempts)


async def test_rule_m3_a_refusal_is_that_attempt_s_only() -> None:
    channel, attempts = Channel(), [led(number) for number in range(5)]
    channel.refused = frozenset({3})
    await proposed(keeper(channel), attempts)
    assert [role_of(partition).isr for partition, _ in attempts] == [
        *[{1, 2}] * 3, {1}, {1, 2}
    ]  # fmt: skip
    assert role_of(attempts[3][0]).isr_state is COMMITTED, "it surely never enters"


async def test_rule_m3_without_an_answer_each_attempt_goes_on_counting() -> None:
    channel, attempts = Channel(), [led(number) for number in range(5)]
    channel.error = KafkaError(ErrorCode.OUTCOME_UNKNOWN)
    await proposed(keeper(channel), attempts)
    for partition, _ in attempts:
        assert role_of(partition).maximal_isr() == {1, 2}
        assert role_of(partition).isr == {1}


async def test_rule_m3_too_few_answers_are_answers_to_nobody() -> None:
    class Short(Channel):
        async def execute(self, command: AlterPartitions) -> PartitionsAltered:
            return PartitionsAltered(answers=(await super().execute(command)).answers[1:])

    attempts = [led(number) for number in range(3)]
    await proposed(keeper(Short()), attempts)
    assert all(role_of(partition).maximal_isr() == {1, 2} for partition, _ in attempts)
    assert all(role_of(partition).isr == {1} for partition, _ in attempts)


async def test_an_attempt_that_was_overtaken_before_it_was_sent_is_not_sent() -> None:
    channel = Channel()
    channel.gate = asyncio.Event()
    isr_keeper = keeper(channel)
    first = [led(number) for number in range(COMMANDS_IN_FLIGHT * MAX_ISR_CHANGES_PER_COMMAND)]
    late, later = led(9_998), led(9_999)
    async with asyncio.TaskGroup() as tasks:
        for partition, proposal in [*first, late, later]:
            isr_keeper.send(partition, proposal, EPOCH, tasks)
        await until(lambda: len(channel.commands) == COMMANDS_IN_FLIGHT)
        late[0].adopt_isr(PartitionEpoch(5), (ME, OTHER))
        channel.gate.set()
        await until(lambda: in_flight(role_of(later[0]).isr_state) is None)
    assert [c.partition for c in channel.commands[-1]] == [9_999]
    assert in_flight(role_of(late[0]).isr_state) is None, "the next attempt may be made"


# ---- the controller's side


def attempt(number: int) -> AlterPartition:
    return AlterPartition(
        broker_id=ME,
        broker_epoch=EPOCH,
        topic_id=TopicId("A" * 22),
        partition=PartitionId(number),
        leader_epoch=LeaderEpoch(1),
        partition_epoch=PartitionEpoch(1),
        new_isr=(IsrMember(broker_id=ME, broker_epoch=EPOCH),),
    )


def decide(command: AlterPartition) -> tuple[tuple[PartitionChangeRecord, ...], PartitionAltered]:
    if command.partition == 2:
        raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH, "over")
    record = PartitionChangeRecord(
        topic_id=command.topic_id,
        partition=command.partition,
        directories=(DirectoryId("a"),),
        isr=(ME,),
        elr=(),
        leader=ME,
        leader_epoch=LeaderEpoch(1),
        partition_epoch=PartitionEpoch(2),
    )
    return (record,), altered(command)


def test_rule_m3_a_command_s_attempts_are_judged_alone() -> None:
    command = AlterPartitions(attempts=tuple(attempt(number) for number in (1, 2, 3, 1)))
    records, answer = decide_each(command, decide, batch_bytes_max=100_000)
    assert [getattr(record, "partition", None) for record in records] == [1, 3]
    errors = [ErrorCode.from_number(each.error) if each.error else None for each in answer.answers]
    again = ErrorCode.INVALID_REQUEST
    assert errors == [None, ErrorCode.FENCED_LEADER_EPOCH, None, again]
    assert "same partition" in answer.answers[3].message


def test_a_request_too_large_for_one_batch_of_the_log_is_refused_whole() -> None:
    command = AlterPartitions(attempts=tuple(attempt(number) for number in range(10, 20)))
    records, answer = decide_each(command, decide, batch_bytes_max=500)
    assert 0 < len(records) < 10
    accepted = [each for each in answer.answers if each.altered is not None]
    assert len(accepted) == len(records)
    assert {each.error for each in answer.answers[len(records) :]} == {ErrorCode.QUEUE_FULL.number}


def test_a_batch_is_filled_to_its_last_byte_and_its_line_feeds_count() -> None:
    command = AlterPartitions(attempts=(attempt(10), attempt(11)))
    both, _ = decide_each(command, decide, batch_bytes_max=100_000)
    size = sum(len(encode_record(record)) + 1 for record in both)
    assert [len(decide_each(command, decide, batch_bytes_max=n)[0]) for n in (size, size - 1)] == [
        2,
        1,
    ]


def test_a_command_has_a_limit_of_attempts() -> None:
    many = AlterPartitions(attempts=(attempt(1),) * (MAX_ISR_CHANGES_PER_COMMAND + 1))
    with pytest.raises(KafkaError, match="501 attempts, at most 500") as refused:
        decide_each(many, decide, batch_bytes_max=1)
    assert refused.value.outcome is Outcome.NOT_WRITTEN
