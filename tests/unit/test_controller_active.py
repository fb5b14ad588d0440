"""The active controller over a Raft stand-in whose every step the test decides."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome
from raft_metadata.common.ids import ClusterId, MetadataOffset, PartitionId, TopicName
from raft_metadata.controller.controller import Urgency
from raft_metadata.image.metadata_state_machine import Rejected
from raft_metadata.records.commands import (
    AlterReassignments,
    BrokerHeartbeat,
    CreateTopic,
    DeleteTopic,
    Election,
    ElectLeaders,
    FetchMetadata,
    FetchMetadataAnswer,
    Reassignment,
)
from raft_metadata.records.records import BrokerRegistrationChangeRecord, BrokerState
from raft_metadata.records.serde import decode_batch
from tests.support.doors.quorum import records_decided
from tests.support.metadata_world import BROKERS, CLUSTER, config, registration, topic_id
from tests.support.unkind_quorum import ManualClock, UnkindRaft, Voter, turn

B1, B2, B3 = BROKERS


class Cluster:
    """Three controllers; the first leads. Brokers are registered and unfenced."""

    def __init__(self, **limits: Any) -> None:
        self.clock = ManualClock()
        self.config = replace(config(), **limits)
        self.raft = UnkindRaft(self.config, self.clock, random.Random(1).randbytes)
        self.lead, self.second, self.third = self.raft.voters
        self.tasks: list[asyncio.Task[Any]] = []

    async def start(self) -> Cluster:
        self.raft.elect(self.lead, 0)
        await self.raft.settle(2)
        for broker in BROKERS:
            await self.answered(self.lead.controller.execute(registration(broker)))
        await self.raft.settle(4)
        self.beat()
        await self.raft.settle(4)
        states = {broker.state for broker in self.lead.machine.image.brokers.values()}
        assert states == {BrokerState.UNFENCED}
        return self

    def beat(self, *brokers: int) -> None:
        for voter in self.raft.voters:
            image = voter.machine.image
            for broker in image.brokers.values():
                if not brokers or broker.broker_id in brokers:
                    voter.controller.heartbeat(
                        BrokerHeartbeat(
                            broker_id=broker.broker_id,
                            broker_epoch=broker.broker_epoch,
                            metadata_offset=image.next_offset,
                        )
                    )

    def ask(self, command: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(command)
        self.tasks.append(task)
        return task

    async def answered(self, command: Coroutine[Any, Any, Any]) -> Any:
        task = self.ask(command)
        await turn()
        await self.raft.settle(3)
        return task.result()

    def create(self, number: int, voter: Voter | None = None) -> asyncio.Task[Any]:
        controller = (voter or self.lead).controller
        return self.ask(controller.execute(creation(number)))

    def topics(self, voter: Voter | None = None) -> set[str]:
        return set((voter or self.lead).machine.image.topic_ids)


def creation(number: int, **other: Any) -> CreateTopic:
    return CreateTopic(name=TopicName(f"t{number}"), topic_id=topic_id(number), **other)


async def refusal(answer: Awaitable[object]) -> KafkaError:
    with pytest.raises(KafkaError) as refused:
        await answer
    return refused.value


def rejected(cluster: Cluster, since: int) -> int:
    """How many committed batches a fresh machine rejects from this index on."""
    machine = UnkindRaft(cluster.config, cluster.clock, random.Random(1).randbytes, 1).voters[0]
    results = [
        machine.machine.apply(index, entry.term, entry.payload)
        for index, entry in enumerate(cluster.raft.log, 1)
        if entry.payload is not None
    ]
    assert machine.machine.image == cluster.lead.machine.image
    return sum(isinstance(result, Rejected) for result in results[since:])


# ---- speculation


async def test_rule_m2_64_commands_at_once_are_all_decided_and_none_is_refused() -> None:
    cluster = await Cluster().start()
    tasks = [cluster.create(number) for number in range(64)]
    await turn()
    assert len(cluster.lead.queue) == 64, "decided on each other, before any is committed"
    await cluster.raft.settle(3)
    assert {task.result().topic_id for task in tasks} == set(map(topic_id, range(64)))
    assert len(cluster.topics()) == 64
    assert rejected(cluster, 0) == 0


async def test_rule_m2_nothing_of_an_old_reign_enters_the_next_one() -> None:
    cluster = await Cluster().start()
    tasks = [cluster.create(number) for number in range(20)]
    await turn()
    cluster.raft.append(cluster.lead, 5)
    before = len(cluster.raft.log)
    cluster.raft.elect(cluster.lead, 0)
    await turn()
    assert not cluster.lead.controller.is_active, "not before its first entry is applied"
    await cluster.raft.settle(3)
    assert cluster.lead.controller.is_active
    codes = [(await refusal(task)).code for task in tasks]
    assert codes == [ErrorCode.OUTCOME_UNKNOWN] * 5 + [ErrorCode.NOT_CONTROLLER] * 15
    assert cluster.topics() == {f"t{number}" for number in range(5)}, "appended, then committed"
    assert (await cluster.answered(cluster.lead.controller.execute(creation(99)))).topic_id
    assert before < len(cluster.raft.log)


async def test_rule_m2_a_believer_that_was_deposed_answers_nothing() -> None:
    cluster = await Cluster().start()
    cluster.raft.elect(cluster.second, 0)
    late = cluster.create(1)
    await cluster.raft.settle(2, [cluster.second, cluster.third])
    assert cluster.lead.controller.is_active
    assert cluster.second.controller.is_active
    cluster.raft.append(cluster.lead)
    new = cluster.create(2, cluster.second)
    await turn()
    await cluster.raft.settle(2, [cluster.second, cluster.third])
    assert new.done()
    assert not late.done()
    cluster.raft.apply(cluster.lead)
    assert (await refusal(late)).code is ErrorCode.OUTCOME_UNKNOWN
    assert cluster.topics() == {"t2"}
    assert not cluster.lead.controller.is_active


async def test_invariant_r14_what_changes_nothing_is_answered_in_its_reign_only() -> None:
    """A believer that was deposed knew of the topic; the next reign has deleted it since."""
    cluster = await Cluster().start()
    await cluster.answered(cluster.lead.controller.execute(creation(1)))
    assert not cluster.lead.controller.status()["batches_in_flight"]
    cluster.raft.elect(cluster.second, 0)
    cluster.raft.commit()
    cluster.raft.apply(cluster.second)
    await turn()
    delete = cluster.ask(cluster.second.controller.execute(DeleteTopic(name=TopicName("t1"))))
    await turn()
    await cluster.raft.settle(3, [cluster.second, cluster.third])
    assert delete.done()
    assert cluster.lead.controller.is_active, "it believes"
    repeat = cluster.create(1)
    taken = cluster.ask(cluster.lead.controller.execute(creation(1, validate_only=True)))
    await turn()
    assert not repeat.done()
    assert not taken.done()
    cluster.raft.notice(cluster.lead)
    await turn()
    assert (await refusal(repeat)).code is ErrorCode.NOT_CONTROLLER
    assert (await refusal(taken)).code is ErrorCode.NOT_CONTROLLER


async def test_invariant_r14_a_batch_committed_before_the_reign_ended_proves_nothing_after_it() -> (
    None
):
    """Metadata simulation, seed 33299: in flight before the request, heard of after it."""
    cluster = await Cluster().start()
    first = cluster.create(1)
    await turn()
    cluster.raft.append(cluster.lead)
    cluster.raft.commit()
    cluster.raft.elect(cluster.second, 0)
    await cluster.raft.settle(2, [cluster.second, cluster.third])
    delete = cluster.ask(cluster.second.controller.execute(DeleteTopic(name=TopicName("t1"))))
    await turn()
    await cluster.raft.settle(3, [cluster.second, cluster.third])
    assert delete.done()
    repeat = cluster.create(1)
    taken = cluster.ask(cluster.lead.controller.execute(creation(1, validate_only=True)))
    await turn()
    cluster.raft.apply(cluster.lead, 1)
    await turn()
    assert first.done()
    assert cluster.lead.controller.is_active, "it believes"
    assert not repeat.done()
    assert not taken.done()
    cluster.raft.apply(cluster.lead)
    await turn()
    assert (await refusal(repeat)).code is ErrorCode.NOT_CONTROLLER
    assert (await refusal(taken)).code is ErrorCode.NOT_CONTROLLER


async def test_rule_m2_a_refused_batch_stops_all_that_was_decided_on_it() -> None:
    cluster = await Cluster().start()
    first, second = cluster.create(1), cluster.create(2)
    await turn()
    lost = cluster.lead.queue.pop(0)
    assert lost.future is not None
    lost.future.set_exception(KafkaError(ErrorCode.NOT_CONTROLLER))
    await turn()
    assert not cluster.lead.controller.is_active
    assert (await refusal(first)).code is ErrorCode.NOT_CONTROLLER
    third = await refusal(cluster.create(3))
    assert third.code is ErrorCode.NOT_CONTROLLER
    cluster.lead.controller.tick()
    assert not cluster.lead.controller.is_active, "not before the barrier is through"
    await cluster.raft.settle(4)
    assert (await refusal(second)).outcome is Outcome.NOT_WRITTEN
    assert cluster.lead.controller.is_active
    await cluster.answered(cluster.lead.controller.execute(creation(4)))
    assert cluster.topics() == {"t4"}


async def test_rule_m2_a_barrier_that_is_refused_proves_nothing() -> None:
    cluster = await Cluster().start()
    first, _second = cluster.create(1), cluster.create(2)
    await turn()
    lost = cluster.lead.queue.pop(0)
    assert lost.future is not None
    lost.future.set_exception(KafkaError(ErrorCode.NOT_CONTROLLER))
    await turn()
    assert (await refusal(first)).code is ErrorCode.NOT_CONTROLLER
    cluster.lead.refuse = True
    for _ in range(3):
        cluster.lead.controller.tick()
        await turn()
    assert not cluster.lead.controller.is_active
    cluster.lead.refuse = False
    await cluster.raft.settle(4)
    assert cluster.lead.controller.is_active


async def test_a_decision_is_split_by_the_bytes_of_a_batch() -> None:
    cluster = await Cluster(batch_bytes_max=1_000).start()
    await cluster.answered(cluster.lead.controller.execute(creation(1, partitions_count=20)))
    sizes = [len(entry.payload or b"") for entry in cluster.raft.log]
    assert max(sizes) < 1_200
    assert sum(sizes) > 2_000


async def test_a_full_queue_refuses_commands_and_keeps_the_reign() -> None:
    cluster = await Cluster().start()
    cluster.lead.refuse = True
    assert (await refusal(cluster.create(1))).code is ErrorCode.QUEUE_FULL
    cluster.lead.refuse = False
    await cluster.answered(cluster.lead.controller.execute(creation(2)))
    assert cluster.topics() == {"t2"}


async def test_commands_have_a_limit() -> None:
    cluster = await Cluster(commands_in_flight_max=3).start()
    tasks = [cluster.create(number) for number in range(4)]
    await turn()
    assert (await refusal(tasks[3])).code is ErrorCode.QUEUE_FULL
    await cluster.raft.settle(3)
    assert len(cluster.topics()) == 3


# ---- what an answer says


async def test_rule_m3_unknown_and_committed_later() -> None:
    cluster = await Cluster().start()
    task = cluster.create(1)
    await turn()
    cluster.raft.append(cluster.lead)
    cluster.raft.elect(cluster.second, survivors=1)
    cluster.raft.notice(cluster.lead)
    error = await refusal(task)
    assert (error.code, error.outcome) == (ErrorCode.OUTCOME_UNKNOWN, Outcome.UNKNOWN)
    await cluster.raft.settle(3)
    assert cluster.topics(cluster.second) == {"t1"}
    repeat = await cluster.answered(cluster.second.controller.execute(creation(1)))
    assert repeat.topic_id == topic_id(1)


async def test_rule_m3_unknown_and_lost() -> None:
    cluster = await Cluster().start()
    task = cluster.create(1)
    await turn()
    cluster.raft.append(cluster.lead)
    cluster.raft.elect(cluster.second, survivors=0)
    cluster.raft.notice(cluster.lead)
    assert (await refusal(task)).code is ErrorCode.OUTCOME_UNKNOWN
    await cluster.raft.settle(3)
    assert cluster.topics(cluster.second) == set()


async def test_rule_m3_a_standby_surely_appends_nothing() -> None:
    cluster = await Cluster().start()
    error = await refusal(cluster.create(1, cluster.second))
    assert (error.code, error.outcome) == (ErrorCode.NOT_CONTROLLER, Outcome.NOT_WRITTEN)
    assert "101" in error.message


async def test_rule_m3_a_refusal_waits_for_what_it_rests_on() -> None:
    cluster = await Cluster().start()
    first = cluster.create(1)
    again = cluster.ask(
        cluster.lead.controller.execute(CreateTopic(name=TopicName("t1"), topic_id=topic_id(2)))
    )
    repeat = cluster.create(1)
    await turn()
    assert not again.done()
    assert not repeat.done()
    cluster.raft.elect(cluster.second, survivors=0)
    cluster.raft.notice(cluster.lead)
    assert (await refusal(first)).code is ErrorCode.NOT_CONTROLLER
    assert (await refusal(again)).code is ErrorCode.NOT_CONTROLLER, "t1 never was"
    assert (await refusal(repeat)).code is ErrorCode.NOT_CONTROLLER


async def test_a_cancelled_command_changes_nothing_about_its_entry() -> None:
    cluster = await Cluster().start()
    task = cluster.create(1)
    await turn()
    task.cancel()
    await turn()
    await cluster.raft.settle(3)
    assert cluster.topics() == {"t1"}
    assert cluster.lead.controller.is_active


async def test_a_large_topic_is_answered_when_it_is_whole() -> None:
    cluster = await Cluster(bulk_in_flight_max=1).start()
    task = cluster.ask(cluster.lead.controller.execute(creation(1, partitions_count=3_000)))
    await turn()
    await cluster.raft.settle(1)
    assert not task.done()
    await cluster.raft.settle(4)
    assert task.result().partitions_count == 3_000
    assert task.result().next_offset == cluster.lead.machine.image.next_offset


async def test_a_large_topic_goes_on_under_the_next_controller() -> None:
    cluster = await Cluster(bulk_in_flight_max=1).start()
    task = cluster.ask(cluster.lead.controller.execute(creation(1, partitions_count=3_000)))
    await turn()
    cluster.raft.append(cluster.lead)
    cluster.raft.commit()
    cluster.raft.apply(cluster.lead)
    await turn()
    cluster.raft.elect(cluster.second, survivors=0)
    cluster.raft.notice(cluster.lead)
    assert (await refusal(task)).code is ErrorCode.OUTCOME_UNKNOWN
    await cluster.raft.settle(6)
    assert cluster.second.machine.image.topics[topic_id(1)].is_complete


async def test_a_large_topic_that_finds_too_few_brokers_is_not_waited_for_without_end() -> None:
    """Seed 24 of the simulation: two of three brokers left while the partitions were made."""
    cluster = await Cluster(bulk_in_flight_max=1).start()

    async def only_one_beats(steps: int) -> None:
        for _ in range(steps):
            cluster.clock.now_ms += cluster.config.broker_session_timeout_ms // 8
            cluster.beat(1)
            await cluster.raft.settle(1)

    await only_one_beats(8)
    task = cluster.ask(cluster.lead.controller.execute(creation(1, partitions_count=3_000)))
    await turn()
    await only_one_beats(40)
    assert not cluster.lead.machine.image.topics[topic_id(1)].is_complete
    assert (await refusal(task)).code is ErrorCode.OUTCOME_UNKNOWN
    assert cluster.lead.controller.is_active
    cluster.beat()
    await cluster.raft.settle(12)
    assert cluster.lead.machine.image.topics[topic_id(1)].is_complete


async def test_a_delete_is_answered_once_committed() -> None:
    cluster = await Cluster().start()
    await cluster.answered(cluster.lead.controller.execute(creation(1)))
    delete = DeleteTopic(name=TopicName("t1"))
    answer = await cluster.answered(cluster.lead.controller.execute(delete))
    assert answer.next_offset == cluster.lead.machine.image.next_offset
    assert not cluster.topics()


# ---- fences


async def test_rule_m4_a_fence_overtakes_bulk_that_waits() -> None:
    cluster = await Cluster(bulk_in_flight_max=1, changes_per_batch_max=5).start()
    create = cluster.lead.controller.execute(creation(1, partitions_count=30))
    await cluster.answered(create)
    for _ in range(26):
        cluster.clock.now_ms += 50
        cluster.beat(B2, B3)
        cluster.lead.controller.tick()
    assert len(cluster.lead.queue) == 2, "the fence of broker 1, and one batch of consequences"
    for _ in range(26):
        cluster.clock.now_ms += 50
        cluster.beat(B3)
        cluster.lead.controller.tick()
    assert len(cluster.lead.queue) == 3
    payload = cluster.lead.queue[-1].payload
    assert payload is not None
    (fence,) = decode_batch(payload).records
    assert isinstance(fence, BrokerRegistrationChangeRecord)
    assert (fence.broker_id, fence.state) == (B2, BrokerState.FENCED)


async def reordered() -> Cluster:
    """Five partitions led by broker 1, of which broker 2 is the preferred leader now."""
    cluster = await Cluster(changes_per_batch_max=2).start()
    one = replace(creation(1), replicas_assignments=dict.fromkeys(range(5), (B1, B2, B3)))
    await cluster.answered(cluster.lead.controller.execute(one))
    speculation = cluster.lead.controller.speculation
    assert speculation is not None
    changes = tuple(
        Reassignment(topic=one.name, partition=PartitionId(index), replicas=(B2, B1, B3))
        for index in range(5)
    )
    controller = cluster.lead.controller
    records = records_decided(controller, speculation, AlterReassignments(changes=changes))
    speculation.append(records, Urgency.CHANGE)
    await cluster.raft.settle(3)
    return cluster


async def test_rule_m4_a_large_election_leaves_room_for_a_fence() -> None:
    cluster = await reordered()
    before = len(cluster.raft.log)
    asked = cluster.ask(cluster.lead.controller.execute(ElectLeaders(election=Election.PREFERRED)))
    await turn()
    assert len(cluster.lead.queue) == 1, "the next part waits for this one"
    cluster.clock.now_ms += 10_000
    cluster.beat(2, 3)
    await cluster.raft.settle(12)
    answer = asked.result()
    assert [result.leader for result in answer.results] == [2] * 5
    payloads = [entry.payload for entry in cluster.raft.log[before:] if entry.payload]
    sizes = [len(decode_batch(payload).records) for payload in payloads]
    assert max(sizes) <= 2
    topic = cluster.lead.machine.image.topics[topic_id(1)]
    assert {partition.leader for partition in topic.partitions} == {B2}
    assert answer.next_offset <= cluster.lead.machine.image.next_offset


async def test_rule_m3_an_election_that_ends_half_way_is_not_surely_not_made() -> None:
    cluster = await reordered()
    asked = cluster.ask(cluster.lead.controller.execute(ElectLeaders(election=Election.PREFERRED)))
    await turn()
    cluster.raft.append(cluster.lead)
    cluster.raft.commit()
    cluster.raft.apply(cluster.lead)
    await turn()
    cluster.raft.notice(cluster.lead)
    error = await refusal(asked)
    assert error.code is ErrorCode.OUTCOME_UNKNOWN
    assert "1 parts of the election were made" in error.message


async def test_an_election_without_anything_to_elect_is_answered() -> None:
    cluster = await Cluster().start()
    answer = await cluster.answered(
        cluster.lead.controller.execute(ElectLeaders(election=Election.UNCLEAN))
    )
    assert answer.results == ()


async def test_rule_m7_a_leader_change_does_not_restart_the_session_of_a_dead_broker() -> None:
    cluster = await Cluster().start()
    for leader in (cluster.second, cluster.third, cluster.lead):
        for _ in range(16):
            cluster.clock.now_ms += 60
            cluster.beat(B2, B3)
            for voter in cluster.raft.voters:
                voter.controller.tick()
            await cluster.raft.settle(1)
        cluster.raft.elect(leader, 0)
        await cluster.raft.settle(3)
    states = {b.broker_id: b.state for b in cluster.lead.machine.image.brokers.values()}
    assert states == {
        B1: BrokerState.FENCED,
        B2: BrokerState.UNFENCED,
        B3: BrokerState.UNFENCED,
    }


async def test_rule_g3_a_broker_that_returns_while_its_fence_is_in_flight_is_not_vouched_for() -> (
    None
):
    """The committed image calls it unfenced, and its successors lead a moment later."""
    cluster = await Cluster().start()
    lead, image = cluster.lead, cluster.lead.machine.image
    beat = BrokerHeartbeat(
        broker_id=B1,
        broker_epoch=image.brokers[B1].broker_epoch,
        metadata_offset=image.next_offset,
    )
    assert lead.controller.heartbeat(beat).majority_answers
    for _ in range(30):
        cluster.clock.now_ms += 60
        cluster.beat(B2, B3)
        lead.controller.tick()
    assert lead.queue, "the fence is with the quorum"
    answer = lead.controller.heartbeat(beat)
    assert (answer.state, answer.committed_offset) == (BrokerState.UNFENCED, image.next_offset)
    assert not answer.majority_answers


async def test_rule_m7_everything_stopped_for_two_sessions_fences_nobody() -> None:
    cluster = await Cluster().start()
    before = cluster.lead.machine.image
    cluster.clock.now_ms += 2 * cluster.config.broker_session_timeout_ms
    await cluster.raft.settle(1)
    cluster.beat()
    await cluster.raft.settle(5)
    assert cluster.lead.machine.image is before


async def test_rule_m7_a_broker_that_registers_and_never_heartbeats_is_fenced() -> None:
    cluster = Cluster()
    cluster.raft.elect(cluster.lead, 0)
    await cluster.raft.settle(2)
    await cluster.answered(cluster.lead.controller.execute(registration(B1)))
    for _ in range(30):
        cluster.clock.now_ms += 50
        await cluster.raft.settle(1)
    assert cluster.lead.machine.image.brokers[B1].state is BrokerState.FENCED


async def test_a_connection_that_closes_ends_the_session_at_once() -> None:
    cluster = await Cluster().start()
    epoch = cluster.lead.machine.image.brokers[B1].broker_epoch
    cluster.lead.controller.session_opened(B1, epoch)
    cluster.lead.controller.session_closed(B1, epoch)
    for _ in range(7):
        cluster.clock.now_ms += 50
        await cluster.raft.settle(1)
    assert cluster.lead.machine.image.brokers[B1].state is BrokerState.FENCED


async def test_only_the_active_controller_says_so_in_its_heartbeat_answer() -> None:
    cluster = await Cluster().start()
    broker = cluster.lead.machine.image.brokers[B1]
    beat = BrokerHeartbeat(
        broker_id=B1, broker_epoch=broker.broker_epoch, metadata_offset=MetadataOffset(0)
    )
    answers = [voter.controller.heartbeat(beat) for voter in cluster.raft.voters]
    assert [answer.is_active for answer in answers] == [True, False, False]
    assert {answer.committed_offset for answer in answers} == {
        cluster.lead.machine.image.next_offset
    }


# ---- fetch-metadata


def fetch(
    voter: Voter, offset: int, wait_ms: int = 0, cluster: ClusterId = CLUSTER
) -> Coroutine[Any, Any, FetchMetadataAnswer]:
    return voter.controller.fetch_metadata(
        FetchMetadata(
            cluster_id=cluster,
            broker_id=B1,
            from_offset=MetadataOffset(offset),
            max_wait_ms=wait_ms,
        )
    )


async def test_rule_m6_a_source_that_lost_its_leader_says_so() -> None:
    cluster = await Cluster().start()
    cluster.third.leader_contact_age_ms = cluster.config.election_timeout_ms + 1
    assert (await refusal(fetch(cluster.third, 0))).code is ErrorCode.METADATA_STALE_SOURCE
    cluster.third.leader_contact_age_ms = 0
    answer = await fetch(cluster.third, 0)
    assert (answer.leader_id, answer.leader_contact_age_ms) == (101, 0)


async def test_rule_m6_a_source_that_loses_its_leader_while_it_waits_says_so() -> None:
    cluster = await Cluster().start()
    task = cluster.ask(fetch(cluster.third, cluster.third.machine.image.next_offset, 500))
    await turn()
    cluster.third.leader_contact_age_ms = cluster.config.election_timeout_ms + 1
    assert (await refusal(task)).code is ErrorCode.METADATA_STALE_SOURCE


async def test_rule_m6_a_source_that_is_behind_says_so_and_sends_no_snapshot() -> None:
    cluster = await Cluster().start()
    end = cluster.lead.machine.image.next_offset
    assert (await refusal(fetch(cluster.lead, end + 1))).code is ErrorCode.METADATA_BEHIND


async def test_rule_m5_another_cluster_gets_nothing() -> None:
    cluster = await Cluster().start()
    error = await refusal(fetch(cluster.lead, 0, cluster=ClusterId("another")))
    assert error.code is ErrorCode.INCONSISTENT_CLUSTER_ID


async def test_a_fetch_waits_for_the_next_record() -> None:
    cluster = await Cluster().start()
    end = cluster.second.machine.image.next_offset
    task = cluster.ask(fetch(cluster.second, end, 5_000))
    await turn()
    assert not task.done()
    assert cluster.second.controller.status()["fetches_waiting"] == 1
    await cluster.answered(cluster.lead.controller.execute(creation(1)))
    answer = task.result()
    assert answer.batches[0].base_offset == end
    assert answer.end_offset == cluster.lead.machine.image.next_offset


async def test_a_fetch_that_waited_in_vain_is_answered_empty() -> None:
    cluster = await Cluster().start()
    answer = await fetch(cluster.second, cluster.second.machine.image.next_offset, 1)
    assert (answer.batches, answer.snapshot) == ((), None)


async def test_a_stop_answers_whoever_waits() -> None:
    cluster = await Cluster().start()
    end = cluster.second.machine.image.next_offset
    task = cluster.ask(fetch(cluster.second, end, 60_000))
    await turn()
    cluster.second.controller.stop()
    assert (await refusal(task)).code is ErrorCode.METADATA_STALE_SOURCE


async def test_a_follower_that_is_too_far_behind_is_sent_a_snapshot() -> None:
    cluster = await Cluster().start()
    empty = Cluster()
    empty.raft.voters[0].machine.restore(
        list(cluster.lead.machine.chunks(cluster.lead.machine.capture())), 9, 1
    )
    answer = await fetch(empty.raft.voters[0], 0)
    assert answer.batches == ()
    assert answer.snapshot is not None
    assert (
        answer.snapshot.next_offset == answer.end_offset == cluster.lead.machine.image.next_offset
    )


# ---- life


async def test_run_ticks_until_it_is_stopped() -> None:
    cluster = Cluster()
    async with asyncio.TaskGroup() as group, asyncio.timeout(5):
        group.create_task(cluster.lead.controller.run())
        cluster.raft.elect(cluster.lead, 0)
        while cluster.lead.machine.image.feature_level == 0:
            cluster.raft.append(cluster.lead)
            cluster.raft.commit()
            cluster.raft.apply(cluster.lead)
            await asyncio.sleep(0)
        cluster.lead.controller.stop()
    assert cluster.lead.controller.status()["is_active"]
