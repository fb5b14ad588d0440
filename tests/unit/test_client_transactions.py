"""The client's calls of transactions against a real door: what is sent, and what is sent again."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, TypeVar

import pytest

from broker.server.transaction_apis import CommitRequest, Committed, StageRequest
from broker.transactions.messages import (
    NO_GROUP,
    AttemptNamed,
    KeyPosition,
    LastPosition,
    NumberedPosition,
    OffsetMove,
    ProducerInitialized,
    ProducerPosition,
    TransactionalId,
    TransactionState,
)
from http_api.client import transaction_calls as calls
from http_api.client.calls import Call
from http_api.client.client_errors import (
    ApiError,
    CommittingError,
    OutcomeUnknownError,
    ThrottledError,
)
from http_api.client.produce_calls import JsonRecord
from http_api.client.sdk.one_shot import atransact
from http_api.client.transaction_calls import (
    OffsetToCommit,
    Staging,
    TransactionContent,
    TransactionRows,
)
from http_api.client.transport import Client
from http_api.contract.transaction_headers import staging_headers, staging_of
from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome
from raft_metadata.common.ids import GroupId, InstanceId, PartitionId, TopicName
from tests.support.fake_broker_apis import CLUSTER_ID
from tests.support.http_door import Door, open_door

T = TypeVar("T")

FLIGHTS = TopicName("flights")
ROWS = TransactionRows.of("flights", [JsonRecord(b"1.50", b'"a"'), JsonRecord(b"2", partition=1)])
CONTENT = TransactionContent(topics=(ROWS,))


async def run(door: Door, call: Call[T]) -> T:
    def work() -> T:
        with Client([f"http://{door.address}"], retry_s=0.0) as client:
            return client.run(call)

    return await asyncio.to_thread(work)


def asked(door: Door, kind: type) -> Any:
    (request,) = (one for one in door.apis.requests if isinstance(one, kind))
    return request


async def test_one_shot_with_a_key() -> None:
    async with open_door() as door:
        done = await run(door, calls.transact(CLUSTER_ID, CONTENT, key="a/b", timeout_ms=700))
        request = asked(door, CommitRequest)
    assert (done.transaction_id, done.state, done.rows) == ("key:a/b", "complete", 2)
    assert {one.topic for one in done.partitions} == {"flights"}
    assert request.id == TransactionalId(NO_GROUP, "key:a/b")
    assert request.timeout_ms == 700
    (rows,) = request.topics
    assert [bytes(one.value) for one in rows.records] == [b"1.50", b"2"]


async def test_offsets_go_with_the_group_and_its_member() -> None:
    offsets = (
        OffsetToCommit(topic="flights", partition=0, offset=120, expected=100, leader_epoch=4),
        OffsetToCommit(topic="flights", partition=1, offset=3, expected=-1, metadata="m"),
        OffsetToCommit(topic="flights", partition=2, offset=0),
    )
    content = TransactionContent(offsets=offsets, member=("m1", 4))
    async with open_door() as door:
        done = await run(door, calls.transact(CLUSTER_ID, content, group_id="pilots"))
        request = asked(door, CommitRequest)
    assert done.group == "pilots"
    assert request.id.group == GroupId("pilots")
    assert (request.member_id, request.member_epoch) == (InstanceId("m1"), 4)
    assert request.offsets == (
        OffsetMove(FLIGHTS, PartitionId(0), 120, 100, leader_epoch=4),
        OffsetMove(FLIGHTS, PartitionId(1), 3, -1, "m"),
        OffsetMove(FLIGHTS, PartitionId(2), 0),
    )


async def test_a_producer_stages_commits_and_aborts() -> None:
    staging = Staging(
        transaction_id="billing-1", group="pilots", epoch=1, number=0, attempt_id="a", chunk=3
    )
    content = TransactionContent(attempts=(("a", 4, 8),))
    async with open_door() as door:
        door.apis.transactions.answers["init"] = ProducerInitialized(
            epoch=1, last=LastPosition(0, 9, TransactionState.ABORTED), forgotten_to_epoch=0
        )
        life = await run(door, calls.init_producer(CLUSTER_ID, "billing-1", group_id="pilots"))
        staged = await run(door, calls.stage(staging, ROWS))
        await run(door, calls.stage(staging, ROWS, partition=1))
        done = await run(
            door,
            calls.commit_transaction(
                CLUSTER_ID, "billing-1", content, epoch=1, number=0, group_id="pilots"
            ),
        )
        fate = await run(door, calls.abort_transaction(CLUSTER_ID, "billing-1", epoch=1, number=1))
        chunks = [one for one in door.apis.requests if isinstance(one, StageRequest)]
        commit = asked(door, CommitRequest)
    assert life.last is not None
    assert (life.epoch, life.last.number, life.last.state) == (1, 9, "aborted")
    assert [(one.offset, one.is_written) for one in staged] == [(None, True)] * 2
    assert chunks[0].id == TransactionalId(GroupId("pilots"), "billing-1")
    assert chunks[0].position == ProducerPosition(1, 0)
    assert (chunks[0].attempt_id, chunks[0].chunk) == ("a", 3)
    assert [one.rows.partition for one in chunks] == [None, 1]
    assert commit.position == ProducerPosition(1, 0)
    assert commit.attempts == (AttemptNamed("a", 4, 8),)
    assert (done.state, fate.state, fate.lost) == ("complete", "aborted", ())


@pytest.mark.parametrize(
    ("name", "fields", "position"),
    [
        ("job:1", {"number": 7, "run_id": "r"}, NumberedPosition(7, "r")),
        ("job:1", {"number": 7, "run_id": "r", "input_name": "i"}, NumberedPosition(7, "r", "i")),
        (calls.key_id("k/1"), {}, KeyPosition()),
    ],
)
async def test_every_kind_of_position_is_sent(
    name: str, fields: dict[str, Any], position: object
) -> None:
    async with open_door() as door:
        done = await run(door, calls.commit_transaction(CLUSTER_ID, name, CONTENT, **fields))
        assert asked(door, CommitRequest).position == position
    assert done.transaction_id == name


async def test_refusals_say_whether_to_repeat() -> None:
    call = calls.transact(CLUSTER_ID, CONTENT, key="k")
    async with open_door() as door:
        answers = door.apis.transactions.answers
        answers["commit"] = KafkaError(ErrorCode.PRODUCER_FENCED, outcome=Outcome.UNKNOWN)
        with pytest.raises(ApiError) as fenced:
            await run(door, call)
        answers["commit"] = KafkaError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, "idempotency.keys.max")
        with pytest.raises(ThrottledError, match=r"idempotency\.keys\.max") as full:
            await run(door, call)
        with pytest.raises(ApiError) as missing:
            await run(door, calls.describe_transaction(CLUSTER_ID, "nobody"))
    assert (fenced.value.code, fenced.value.retriable) == (40907, False)
    assert fenced.value.outcome is Outcome.UNKNOWN
    assert (full.value.code, full.value.retriable) == (42901, True)
    assert full.value.outcome is Outcome.NOT_WRITTEN
    assert (missing.value.status, missing.value.code) == (404, 40406)


def test_only_a_write_without_a_name_is_not_sent_again() -> None:
    staging = Staging(transaction_id="p", group="", epoch=1, number=0, attempt_id="a", chunk=0)
    again = [
        calls.transact(CLUSTER_ID, CONTENT, key="k"),
        calls.init_producer(CLUSTER_ID, "p"),
        calls.stage(staging, ROWS),
        calls.commit_transaction(CLUSTER_ID, "p", CONTENT, epoch=1, number=0),
        calls.abort_transaction(CLUSTER_ID, "p", epoch=1, number=0),
        calls.list_transactions(CLUSTER_ID),
    ]
    assert all(call.request.may_repeat for call in again)
    assert not calls.transact(CLUSTER_ID, CONTENT).request.may_repeat
    assert not calls.forget_transaction(CLUSTER_ID, "job:1").request.may_repeat, "404, then"


@pytest.mark.parametrize(
    "staging",
    [
        Staging(transaction_id="p", group="g", epoch=1, number=2, attempt_id="1.2", chunk=9),
        Staging(transaction_id="job:1", group="", epoch=None, number=2, attempt_id="a", chunk=0),
        Staging(transaction_id="key:a/b", group="", epoch=None, number=None, attempt_id="a",
                chunk=9_999),
    ],
)  # fmt: skip
def test_headers_of_a_chunk_are_read_as_they_are_written(staging: Staging) -> None:
    assert staging_of(staging_headers(staging)) == staging


async def transacted(
    door: Door, answers: list[KafkaError | TransactionState], key: str | None = "k"
) -> Any:
    """Commit a one-shot; its first attempts are answered so, in place of being decided."""
    commit = door.apis.transactions.commit

    async def answered(request: CommitRequest) -> Committed:
        answer = answers.pop(0) if answers else TransactionState.COMPLETE
        if isinstance(answer, KafkaError):
            raise answer
        done = await commit(request)
        return replace(done, outcome=replace(done.outcome, state=answer))

    door.apis.transactions.commit = answered  # type: ignore[method-assign]
    servers = [f"http://{door.address}"]
    return await atransact({"flights": [1]}, key=key, timeout=5.0, bootstrap_servers=servers)


UNKNOWN = KafkaError(ErrorCode.OUTCOME_UNKNOWN)
NOT_EXPECTED = KafkaError(ErrorCode.OFFSET_NOT_EXPECTED, outcome=Outcome.NOT_WRITTEN)


async def test_rule_s7_a_one_shot_refused_behind_an_unknown_outcome_is_unknown() -> None:
    """The first attempt may be decided yet, when the offset is the expected one again."""
    async with open_door() as door:
        with pytest.raises(OutcomeUnknownError):
            await transacted(door, [UNKNOWN, NOT_EXPECTED])
    async with open_door() as door:
        with pytest.raises(ApiError) as refused:
            await transacted(door, [NOT_EXPECTED])
    assert refused.value.outcome is Outcome.NOT_WRITTEN


async def test_rule_s3_a_decided_one_shot_is_never_told_as_refused() -> None:
    no_topic = KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, outcome=Outcome.NOT_WRITTEN)
    async with open_door() as door:
        for key in ("k", None):
            with pytest.raises(CommittingError, match="is committed") as decided:
                await transacted(door, [TransactionState.COMMITTING, no_topic], key)
            assert decided.value.retriable is (key is not None), "its next call has another key"
    async with open_door() as door:
        done = await transacted(door, [TransactionState.COMMITTING])
    assert done.state == "complete"
