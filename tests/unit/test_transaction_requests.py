"""Requests of transactions on the broker that received them: repeats, and their end."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.server.router import LeaderRouter
from broker.server.transaction_apis import CommitRequest
from broker.server.transactions import TransactionRequests
from broker.transactions.messages import (
    NO_GROUP,
    AttemptNamed,
    LastPosition,
    LostRows,
    ProducerPosition,
    TransactionalId,
    TransactionOutcome,
    TransactionState,
)
from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome
from raft_metadata.common.ids import PartitionId, TopicId
from tests.support.one_broker import ME, TOPIC, image

PRODUCER = TransactionalId(NO_GROUP, "teller")
LOST = KafkaError(ErrorCode.NETWORK_EXCEPTION, "the connection broke", outcome=Outcome.UNKNOWN)


class Standstill:
    """A broker that leads the home; without refusals it stands still between two attempts."""

    def __init__(self, *refusals: KafkaError) -> None:
        """Take the errors of the attempts, in their order."""
        self.image = image(1, (ME,), ME)
        self.broker_id = ME
        self.now_ms = 0
        self.stands_ms = 0 if refusals else 600_000
        self.attempts = 0
        self.refusals = refusals or (LOST,)

    def static(self) -> None:
        return None

    def monotonic_ms(self) -> int:
        return self.now_ms

    async def changed(self) -> None:
        self.now_ms += self.stands_ms
        await asyncio.sleep(0)

    async def existing(self, _name: str) -> Any:
        return self.image.topics[TOPIC]

    async def answer_id(self, _request: object) -> object:
        self.attempts += 1
        if self.attempts <= len(self.refusals):
            raise self.refusals[self.attempts - 1]
        return SimpleNamespace()


async def test_rule_s12_no_attempt_is_made_behind_the_deadline() -> None:
    """The first attempt was decided, and its key is forgotten by now: it would be written twice."""
    here = cast("Any", Standstill())
    with pytest.raises(KafkaError) as caught:
        await requests(here).init(PRODUCER, 60_000)
    assert caught.value.outcome is Outcome.UNKNOWN
    assert here.attempts == 1


class Decided(Standstill):
    """A home that answers each commit with a state, and rows that are lost."""

    def __init__(self, state: TransactionState) -> None:
        super().__init__()
        self.state = state

    def static(self) -> Any:
        return {}

    async def answer_id(self, _request: object) -> TransactionOutcome:
        lost = (LostRows(TOPIC, PartitionId(0), 7), LostRows(TopicId("gone"), PartitionId(3), 1))
        return TransactionOutcome(epoch=3, number=8, state=self.state, lost=lost)


async def commit_at(home: Decided) -> Any:
    here = cast("Any", home)
    request = CommitRequest(
        id=PRODUCER,
        position=ProducerPosition(3, 8),
        digest="d",
        attempts=(AttemptNamed("3.8", 1, 9),),
    )
    return await requests(here).commit(request)


async def test_rule_s3_a_commit_whose_rows_are_lost_is_no_success() -> None:
    with pytest.raises(KafkaError) as caught:
        await commit_at(Decided(TransactionState.COMPLETE))
    error = caught.value
    assert (error.code, error.outcome) == (ErrorCode.DECIDED_ROWS_LOST, Outcome.UNKNOWN)
    assert error.message == (
        "an unclean election of a stage lost 7 rows for partition 0 of t, 1 rows for partition 3 "
        "of gone; everything else of position 3.8 is committed"
    )
    waiting = await commit_at(Decided(TransactionState.COMMITTING))
    assert len(waiting.outcome.lost) == 2, "it is not over: it is asked for again"


class DecidedBefore(Standstill):
    """A home whose newest position was decided in this state, with rows that are lost."""

    def __init__(self, state: TransactionState) -> None:
        super().__init__()
        self.state = state

    async def answer_id(self, _request: object) -> LastPosition:
        return LastPosition(3, 8, self.state, lost_rows=7)


async def test_rule_s3_an_abort_of_what_is_committed_tells_of_lost_rows() -> None:
    here = cast("Any", DecidedBefore(TransactionState.COMPLETE))
    with pytest.raises(KafkaError) as caught:
        await requests(here).abort(PRODUCER, ProducerPosition(3, 8), 60_000)
    assert (caught.value.code, caught.value.outcome) == (
        ErrorCode.DECIDED_ROWS_LOST,
        Outcome.UNKNOWN,
    )
    assert "lost 7 rows" in caught.value.message
    here = cast("Any", DecidedBefore(TransactionState.COMMITTING))
    state = await requests(here).abort(PRODUCER, ProducerPosition(3, 8), 60_000)
    assert state is TransactionState.COMMITTING, "it is not over"


def requests(here: Any) -> TransactionRequests:
    return TransactionRequests(
        here, LeaderRouter(here, here, here), here, here, here, here, here, here
    )


OF_THE_MOMENT = [
    ErrorCode.OFFSET_NOT_EXPECTED,
    ErrorCode.FENCED_MEMBER_EPOCH,
    ErrorCode.FENCED_INSTANCE_ID,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.ILLEGAL_STATE,
    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
    ErrorCode.STAGE_INCOMPLETE,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
]


@pytest.mark.parametrize("code", OF_THE_MOMENT)
async def test_rule_s7_a_refusal_of_the_moment_says_nothing_of_an_attempt_in_doubt(
    code: ErrorCode,
) -> None:
    """Rule S7: the first attempt may be judged later, when what refused the second has changed."""
    here = cast("Any", Standstill(LOST, KafkaError(code)))
    with pytest.raises(KafkaError) as caught:
        await requests(here).init(PRODUCER, 60_000)
    assert (caught.value.code, caught.value.outcome) == (code, Outcome.UNKNOWN)
    assert here.attempts == 2


@pytest.mark.parametrize("code", OF_THE_MOMENT)
async def test_a_refusal_of_the_only_attempt_is_not_written(code: ErrorCode) -> None:
    here = cast("Any", Standstill(KafkaError(code)))
    with pytest.raises(KafkaError) as caught:
        await requests(here).init(PRODUCER, 60_000)
    assert (caught.value.code, caught.value.outcome) == (code, Outcome.NOT_WRITTEN)
    assert here.attempts == 1


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.TRANSACTION_CONFLICT,
        ErrorCode.TRANSACTION_ABORTED,
    ],
)
async def test_rule_s7_what_stands_in_the_log_refuses_every_attempt(code: ErrorCode) -> None:
    """Rule S7: whoever judges the first attempt later finds the same."""
    here = cast("Any", Standstill(LOST, KafkaError(code)))
    with pytest.raises(KafkaError) as caught:
        await requests(here).init(PRODUCER, 60_000)
    assert (caught.value.code, caught.value.outcome) == (code, Outcome.NOT_WRITTEN)


async def test_rule_s7_a_newer_position_leaves_the_older_ones_fate_unknown() -> None:
    """Rule S7: no repeat can tell it, so none is made."""
    error = KafkaError(ErrorCode.TRANSACTION_SUPERSEDED, outcome=Outcome.UNKNOWN)
    here = cast("Any", Standstill(error))
    with pytest.raises(KafkaError) as caught:
        await requests(here).init(PRODUCER, 60_000)
    assert caught.value is error
    assert here.attempts == 1
