"""When a delete-records is answered: not before every replica that may lead next begins there."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import TYPE_CHECKING, cast

import pytest

from broker.replication import partition as replication
from broker.replication.frames import Ack, Open, Push, Valid
from broker.replication.isr_state import COMMITTED, UnresolvedIsr
from broker.replication.leader_state import LeaderState
from broker.replication.log_start_manager import DELETIONS_MAX, LogTrimming
from broker.replication.partition import PushResult
from broker.server.admin import DELETE_TIMEOUT_MS, RecordDeletion
from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome
from raft_metadata.common.ids import BrokerEpoch, BrokerId, PartitionEpoch, TopicIdPartition
from tests.support.hosted_replicas import (
    FIRST_ID,
    ME,
    OTHER,
    ZERO,
    config_of,
    created,
    hosted,
    images,
)
from tests.support.hosted_replicas import registered as registered_broker
from tests.support.logs import append, values_of
from tests.support.memory_log import MemoryLog
from tests.support.waiting import until
from tests.unit.test_log_retention import TwoClocks
from tests.unit.test_log_start import Side, ask, fill, leads, push, trim
from tests.unit.test_replication_partition import (
    ONE,
    THREE,
    TWO,
    brokers,
    lead,
    make,
    registration,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from broker.replication.replica import Replica
    from broker.server.router import LeaderRouter
    from raft_metadata.image.metadata_image import PartitionRegistration

HERE = TopicIdPartition(FIRST_ID, ZERO)
SESSION = 7


class Pair:
    """A broker that leads 20 records which broker 2, played by the test, holds too."""

    def __init__(self, data_dir: Path) -> None:
        self.logs, self.manager = hosted(data_dir, "i")
        self.clock = TwoClocks()
        self.trimming = LogTrimming(
            config_of(data_dir), self.manager, self.logs, self.clock, lambda: True
        )
        known = registered_broker(ME, 0, "i"), registered_broker(OTHER, 1, "j")
        for image in images(known, created(FIRST_ID, (ME, OTHER))):
            self.manager.on_metadata_update(image)

    @property
    def replica(self) -> Replica:
        replica = self.manager.replica(HERE)
        assert replica is not None
        return replica

    async def fill(self) -> None:
        partition = self.replica.partition
        message = Open(1, 0, 1, -1, 0, 0, 0)
        answer = partition.on_open(OTHER, message, self.manager.image.brokers, SESSION, 0)
        assert isinstance(answer, Valid)
        for n in range(20):
            append(self.replica.log, [str(n)], epoch=0)
        self.replica.log.request_flush()
        await until(lambda: self.replica.log.durable_end == 20)
        self.other_says(0)
        assert partition.high_watermark == 20

    def other_says(self, begins: int) -> None:
        self.replica.partition.on_ack(OTHER, Ack(SESSION, 0, 20, 20, begins), 0)

    def delete(self, before: int) -> asyncio.Task[int]:
        return asyncio.create_task(self.trimming.delete_records(HERE, before, 5_000))


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    pair = Pair(tmp_path)
    pair.logs.start(asyncio.get_running_loop())
    await pair.fill()
    yield pair
    pair.logs.close(BrokerEpoch(1))


async def refusal(deletion: Awaitable[int]) -> KafkaError:
    with pytest.raises(KafkaError) as refused:
        async with asyncio.timeout(20):
            await deletion
    return refused.value


@pytest.mark.parametrize("before", [7, -1])
async def test_rule_r10_a_deletion_is_answered_once_the_in_sync_follower_begins_there(
    pair: Pair, before: int
) -> None:
    start = 7 if before == 7 else 20
    deletion = pair.delete(before)
    await until(lambda: pair.replica.log.log_start_offset == start)
    again = pair.delete(start)  # what is deleted here already waits for the same
    pair.other_says(start - 1)
    for _ in range(3):
        await asyncio.sleep(0.011)
        assert not deletion.done()
        assert not again.done()
    pair.other_says(start)
    async with asyncio.timeout(20):
        assert (await deletion, await again) == (start, start)


@pytest.mark.parametrize("told", [3, 0])
async def test_a_follower_that_is_not_known_to_begin_there_is_named_at_the_deadline(
    pair: Pair, told: int
) -> None:
    deletion = pair.delete(7)
    await until(lambda: pair.replica.log.log_start_offset == 7)
    pair.other_says(told)
    pair.clock.passes(5_001)
    error = await refusal(deletion)
    assert (error.code, error.outcome) == (ErrorCode.REQUEST_TIMED_OUT, Outcome.UNKNOWN)
    assert "begins at 7 on its leader, broker 1" in error.message
    assert "not known of broker 2" in error.message
    assert "delete up to 7 again" in error.message
    pair.other_says(7)
    assert await pair.delete(7) == 7


async def test_a_log_that_fails_meanwhile_deletes_nothing_for_sure(pair: Pair) -> None:
    deletion = pair.delete(7)
    await asyncio.sleep(0)
    pair.replica.log.failed = OSError(5, "Input/output error")
    error = await refusal(deletion)
    assert (error.code, error.outcome) == (ErrorCode.KAFKA_STORAGE_ERROR, Outcome.UNKNOWN)


async def test_a_leader_that_has_just_started_over_answers_once_that_is_durable(
    pair: Pair,
) -> None:
    """Elected uncleanly, say: until its flush a crash brings back the log that it was."""
    log = pair.replica.log
    log.start_over(30)
    pair.replica.partition.high_watermark = 30
    pair.other_says(30)
    assert log.log_start_offset == 30
    assert replication.crash_proof_start(log) == 0
    deletion = pair.delete(25)
    for _ in range(3):
        await asyncio.sleep(0)
        assert not deletion.done()
    async with asyncio.timeout(20):
        assert await deletion == 30
    assert replication.crash_proof_start(log) == 30


async def test_so_many_deletions_wait_and_one_more_is_refused(pair: Pair) -> None:
    waiting = [pair.delete(7) for _ in range(DELETIONS_MAX)]
    await until(lambda: pair.replica.log.log_start_offset == 7)
    error = await refusal(pair.delete(7))
    assert (error.code, error.outcome) == (ErrorCode.QUEUE_FULL, Outcome.NOT_WRITTEN)
    waiting.pop().cancel()
    await asyncio.sleep(0)
    waiting.append(pair.delete(7))
    pair.other_says(7)
    async with asyncio.timeout(20):
        assert set(await asyncio.gather(*waiting)) == {7}


async def test_rule_r8_a_new_leader_deletes_nothing_before_it_knows_what_is_committed(
    pair: Pair,
) -> None:
    role = pair.replica.partition.role
    assert isinstance(role, LeaderState)
    role.epoch_start = 25
    deletion = pair.delete(7)
    await asyncio.sleep(0.02)
    pair.clock.passes(5_001)
    error = await refusal(deletion)
    assert (error.code, error.outcome) == (ErrorCode.OFFSET_NOT_AVAILABLE, Outcome.NOT_WRITTEN)
    assert not pair.replica.log.is_start_moving
    role.epoch_start = 20
    deletion = pair.delete(7)
    await until(lambda: pair.replica.log.log_start_offset == 7)
    pair.other_says(7)
    assert await deletion == 7


async def test_a_follower_says_at_once_that_its_log_start_is_durable(pair: Pair) -> None:
    """Not with its next data: an idle partition's deletions would never be answered."""

    told: list[int] = []

    class LeaderPort:
        def open(self, _: Replica) -> None: ...
        def stop_replicating(self, _: Replica) -> None: ...
        def acknowledge(self, replica: Replica) -> None:
            told.append(replica.log.log_start_offset)

    pair.replica.link = LeaderPort()
    pair.replica.log.advance_log_start(4)
    await until(lambda: pair.replica.log.log_start_offset == 4)
    await until(lambda: 4 in told)


# who is waited for


def known_leader(isr: tuple[BrokerId, ...]) -> LeaderState:
    partition = make()
    role = lead(partition, isr=isr)
    for broker, begins in ((TWO, 5), (THREE, 2)):
        message = Open(9, role.epoch, int(broker), -1, 0, 0, begins)
        assert partition.on_open(broker, message, brokers(), 10 + int(broker), 0) is not None
    return role


def known(
    role: LeaderState, elr: tuple[BrokerId, ...] = (), later: int = 0
) -> PartitionRegistration:
    """What the image says: as the leader knows it, or from earlier."""
    made = registration(ONE, role.epoch, isr=tuple(role.isr))
    epoch = PartitionEpoch(role.partition_epoch + later)
    return dataclasses.replace(made, elr=elr, partition_epoch=epoch)


def begins_at(offset: int) -> MemoryLog:
    """As the leader's log: empty, and on its disk."""
    log = MemoryLog()
    log.start_over(offset)
    log.durable_end = offset
    return log


def test_rule_r10_a_deletion_waits_for_replicas_that_may_lead_next_and_no_others() -> None:
    role = known_leader((ONE, TWO))

    def replicas_that_may_restore(
        image: PartitionRegistration | None, offset: int
    ) -> frozenset[BrokerId]:
        return replication.replicas_that_may_restore(role, image, begins_at(6), offset)

    assert replicas_that_may_restore(known(role), 5) == frozenset()
    assert replicas_that_may_restore(known(role), 6) == {TWO}
    role.isr_state = UnresolvedIsr({1: frozenset((ONE, TWO, THREE))}, 0)
    assert replicas_that_may_restore(known(role), 5) == {THREE}, "it may have joined already"
    role.isr_state = COMMITTED
    assert replicas_that_may_restore(known(role, elr=(THREE,)), 5) == {THREE}, "eligible (KIP-966)"
    assert replicas_that_may_restore(known(role, elr=(THREE,)), 2) == frozenset()
    assert replicas_that_may_restore(known(role, later=-1), 5) == {THREE}, (
        "an image of before this ISR"
    )
    assert replicas_that_may_restore(None, 5) == {THREE}
    del role.followers[TWO]
    assert replicas_that_may_restore(known(role), 1) == {TWO}, (
        "it said nothing in this epoch or this life"
    )


def test_rule_r10_a_leader_that_started_over_is_waited_for_as_its_followers_are() -> None:
    """Killed before that is on its disk, it leads again with the log that it was."""
    role, log = known_leader((ONE, TWO)), begins_at(5)
    log.durable_end = 3
    assert replication.replicas_that_may_restore(role, known(role), log, 5) == {ONE}
    assert replication.replicas_that_may_restore(role, known(role), log, 6) == {ONE, TWO}
    log.durable_end = 5
    assert replication.replicas_that_may_restore(role, known(role), log, 5) == frozenset()


def test_rule_r10_a_replica_joins_only_where_the_leader_begins() -> None:
    partition = make()
    role = lead(partition, isr=(ONE, TWO))
    assert partition.log.advance_log_start(0) is False
    partition.log.start_over(4)
    partition.high_watermark = role.epoch_start = 4
    last = partition.log.last_epoch
    for number, begins, joins in ((1, 3, False), (2, 4, True)):
        role.followers.pop(THREE, None)
        message = Open(9, role.epoch, int(THREE), last, 4, 4, begins)
        assert isinstance(partition.on_open(THREE, message, brokers(), 20 + number, 0), Valid)
        proposal = partition.propose_isr(brokers(), number, 0, None)
        assert (proposal is not None) is joins, begins
        if proposal is not None:
            partition.isr_refused(proposal)
    role.followers.pop(THREE)
    message = Open(9, role.epoch, int(THREE), last, 4, 4, 3)
    assert isinstance(partition.on_open(THREE, message, brokers(), 30, 0), Valid)
    partition.on_ack(THREE, Ack(30, role.epoch, 4, 4, 4), 1)
    assert partition.propose_isr(brokers(), 9, 0, None) is not None, "it has taken it over since"


@pytest.mark.parametrize("seed", range(8))
def test_rule_r10_what_a_follower_says_of_its_start_holds_after_any_crash(seed: int) -> None:
    leader, follower = Side(ONE), Side(TWO)
    leads(leader, [f"{n}" + "x" * 300 for n in range(30)])
    follower.takes(ONE, 1)
    fill(follower, leader)
    trim(leader, 12)
    valid = ask(follower, leader)
    assert valid is not None
    assert push(follower, leader, valid)
    said = follower.partition.ack_message()
    assert said is not None
    assert said.log_start == 0, "asked for, and not on the disk yet"
    if seed % 3:
        follower.life.flush()
    if seed % 3 == 1:
        role = leader.partition.role
        assert isinstance(role, LeaderState)
        all_deleted = Push(valid.session, role.epoch, 60, 60, 60, 60, b"")
        assert follower.partition.on_push(all_deleted) is PushResult.APPENDED
    said = follower.partition.ack_message()
    assert said is not None
    follower.crash(seed)
    assert follower.log.log_start_offset >= said.log_start
    if seed % 3 == 2:
        assert said.log_start == 12
        assert values_of(follower.log, 12)[0] == "12" + "x" * 300


# one hop away


class OneLeader:
    """Routes to a leader that answers what a test says, again and again."""

    def __init__(self, *answers: KafkaError | int) -> None:
        self.answers = list(answers)

    async def routed(
        self,
        partition: TopicIdPartition,
        attempt: Callable[[object, int], Awaitable[int]],
        deadline_ms: int,
        *,
        repeat_unknown: bool,
        doubts: list[KafkaError],
    ) -> int:
        last = KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, "none", outcome=Outcome.NOT_WRITTEN)
        while self.answers:
            try:
                return await attempt(registration(ME, 1), deadline_ms)
            except KafkaError as error:
                if not repeat_unknown:
                    raise
                if error.outcome is Outcome.UNKNOWN:
                    doubts.append(error)
                last = KafkaError(last.code, error.message, outcome=Outcome.NOT_WRITTEN)
        raise last

    async def delete_records(self, *_: object) -> int:
        answer = self.answers.pop(0)
        if isinstance(answer, KafkaError):
            raise answer
        return answer


async def delete_through(leader: OneLeader, before: int) -> int:
    deletion = RecordDeletion(
        ME, cast("LeaderRouter", leader), cast("LogTrimming", leader), TwoClocks()
    )
    return await deletion.delete(HERE, before)


def doubt() -> KafkaError:
    return KafkaError(ErrorCode.REQUEST_TIMED_OUT, "on broker 1 only", outcome=Outcome.UNKNOWN)


async def test_a_deletion_by_offset_is_tried_again_and_never_called_undone_after_a_doubt() -> None:
    assert await delete_through(OneLeader(doubt(), 7), 7) == 7
    gone = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "its disk is full")
    for answers, code in (
        ((doubt(), doubt()), ErrorCode.REQUEST_TIMED_OUT),
        ((doubt(), gone), ErrorCode.REQUEST_TIMED_OUT),
    ):
        error = await refusal(delete_through(OneLeader(*answers), 7))
        assert (error.code, error.outcome) == (code, Outcome.UNKNOWN)
        assert error.message == "on broker 1 only"
    surely = await refusal(delete_through(OneLeader(gone), 7))
    assert surely.outcome is Outcome.NOT_WRITTEN
    once = await refusal(delete_through(OneLeader(doubt(), 20), -1))
    assert once.code is ErrorCode.REQUEST_TIMED_OUT, "later it would reach further (rule F1)"
    assert DELETE_TIMEOUT_MS == 10_000, "as docs/operating/retention.md says"
