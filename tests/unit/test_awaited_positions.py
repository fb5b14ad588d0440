"""A home that stops leading while a client waits: its successor is asked what it decided (S3)."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from broker.server import transactions as transactions_module
from broker.server.transaction_apis import CommitRequest
from broker.transactions.home_messages import (
    AwaitPosition,
    CommitPosition,
    HomeRequest,
    decode_home_request,
    encode_home_request,
)
from broker.transactions.messages import (
    NO_GROUP,
    AttemptNamed,
    KeyPosition,
    LostRows,
    NumberedPosition,
    Position,
    ProducerPosition,
    TransactionalId,
    TransactionOutcome,
    TransactionState,
)
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import PartitionId
from tests.support.home_turns import HomeTurns, check
from tests.support.one_broker import TOPIC
from tests.unit.test_home_completion import CREDITS, DEBITS, one_shot, rows, until, world
from tests.unit.test_transaction_requests import Standstill, requests

PRODUCER = TransactionalId(NO_GROUP, "teller")
COMMITTING = TransactionOutcome(epoch=3, number=8, state=TransactionState.COMMITTING)
COMPLETE = TransactionOutcome(epoch=3, number=8, state=TransactionState.COMPLETE)


def question(request: CommitPosition, timeout_ms: int = 5_000) -> AwaitPosition:
    return AwaitPosition(
        id=request.id, timeout_ms=timeout_ms, position=request.position, digest=request.digest
    )


# ---------------------------------------------------------------- homes


async def test_rule_s3_the_next_home_tells_what_became_of_a_position_once_it_is_complete() -> None:
    async with world() as here:
        first = await here.lead()
        here.targets.able.clear()
        request = one_shot("a", rows(DEBITS, 1, 2), rows(CREDITS, 3), timeout_ms=60_000)
        asking = here.tasks.create_task(first.home.answer(request))
        await until(lambda: len(here.targets.asked) == 2)
        second = await here.lead()
        await first.end()
        assert (await asking).state is TransactionState.COMMITTING, "it does not wait any more"
        late: TransactionOutcome = await second.home.answer(question(request, 20))
        assert late.state is TransactionState.COMMITTING
        assert [one.partition for one in late.pending] == [0, 3]
        further = here.tasks.create_task(second.home.answer(question(request)))
        await asyncio.sleep(0)
        assert not further.done()
        here.targets.able.set()
        told: TransactionOutcome = await further
        assert told.state is TransactionState.COMPLETE
        assert [(one.partition, one.rows, one.base_offset) for one in told.placed] == [
            (0, 2, 0), (3, 1, 0),
        ]  # fmt: skip


async def test_rule_s3_a_question_decides_nothing() -> None:
    """An unclean election took the decision: a repeat of the commit would write its rows."""
    async with world() as here:
        led = await here.lead()
        with pytest.raises(KafkaError) as caught:
            await led.home.answer(question(one_shot("a", rows(DEBITS, 1))))
        assert caught.value.code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        assert (led.appends, here.targets.asked) == ([], [])


def test_rule_s3_only_the_newest_position_with_its_content_is_told() -> None:
    check("""
        init p               -> epoch 1 | epoch p 1
        hear p 1.0 A         -> TRANSACTIONAL_ID_NOT_FOUND not_written
        commit p 1.0 A a1    -> decided | txn p 1.0 committing A a:0+1, next a 1
        hear p 1.0 A         -> again 1.0 committing
        hear p 1.0 B         -> TRANSACTION_CONFLICT not_written
        complete p a=0       -> done | txn p 1.0 complete A a=0
        init p               -> epoch 2, last 1.0 complete | epoch p 2
        hear p 1.0 A         -> again 1.0 complete
        abort p 2.0          -> aborted | txn p 2.0 aborted
        hear p 1.0 A         -> TRANSACTIONAL_ID_NOT_FOUND not_written
        hear p 2.0 A         -> TRANSACTIONAL_ID_NOT_FOUND not_written
    """)


def test_rule_s7_a_run_that_is_not_remembered_is_not_told_already() -> None:
    check("""
        commit n #1 A a1 run=r1 -> decided | txn n 0.1 committing A run=r1 a:0+1, next a 1
        hear n #1 B run=r2      -> TRANSACTIONAL_ID_NOT_FOUND not_written
        commit n #1 B a1 run=r2 -> already 0.1 committing \
            | txn n 0.1 committing A run=r1 +r2:B a:0+1
        hear n #1 B run=r2      -> already 0.1 committing
        hear n #1 A run=r1      -> again 0.1 committing
    """, HomeTurns())  # fmt: skip


@pytest.mark.parametrize(
    "position", [ProducerPosition(3, 8), NumberedPosition(7, "r", "i"), KeyPosition()]
)
def test_a_question_comes_to_the_next_home_as_it_was(position: Position) -> None:
    asked = AwaitPosition(id=PRODUCER, timeout_ms=70, position=position, digest="d")
    assert decode_home_request(encode_home_request(asked)) == asked


# ---------------------------------------------------------------- who asks them


class Successors(Standstill):
    """A broker that leads the home, and answers as its leaders do one after the other."""

    def __init__(self, *answers: TransactionOutcome | KafkaError, takes_ms: int = 100) -> None:
        super().__init__(KafkaError(ErrorCode.NOT_COORDINATOR))
        self.answers = [*answers]
        self.takes_ms = takes_ms
        self.asked: list[HomeRequest[Any]] = []

    def static(self) -> Any:
        return {}

    async def answer_id(self, request: object) -> TransactionOutcome:
        self.asked.append(cast("HomeRequest[Any]", request))
        self.now_ms += self.takes_ms
        answer = self.answers.pop(0)
        if isinstance(answer, KafkaError):
            raise answer
        return answer


async def commit_at(home: Successors, timeout_ms: int = 10_000) -> TransactionOutcome:
    request = CommitRequest(
        id=PRODUCER,
        position=ProducerPosition(3, 8),
        digest="d",
        attempts=(AttemptNamed("3.8", 1, 9),),
        timeout_ms=timeout_ms,
    )
    return (await requests(cast("Any", home)).commit(request)).outcome


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions_module, "ASK_AGAIN_MS", 0)


async def test_rule_s3_a_commit_is_complete_by_the_word_of_the_next_home() -> None:
    away = KafkaError(ErrorCode.NOT_COORDINATOR)
    home = Successors(COMMITTING, away, COMMITTING, COMPLETE)
    assert await commit_at(home) is COMPLETE
    assert [type(one) for one in home.asked] == [CommitPosition, *[AwaitPosition] * 3]
    times = [one.timeout_ms for one in home.asked]
    assert times == sorted(times, reverse=True), "each has what is left"
    assert max(times[1:]) < 9_000 * 0.9, "a 202 is to be back in time"
    further = cast("AwaitPosition", home.asked[1])
    assert further.position == ProducerPosition(3, 8)
    assert further.digest == "d"


async def test_rule_s3_the_next_home_tells_a_loss_as_any_other_does() -> None:
    lost = TransactionOutcome(
        epoch=3,
        number=8,
        state=TransactionState.COMPLETE,
        lost=(LostRows(TOPIC, PartitionId(0), 7),),
    )
    with pytest.raises(KafkaError) as caught:
        await commit_at(Successors(COMMITTING, lost))
    assert caught.value.code is ErrorCode.DECIDED_ROWS_LOST


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
        ErrorCode.TRANSACTION_CONFLICT,
        ErrorCode.INVALID_REQUEST,
    ],
)
async def test_rule_s3_a_decision_stays_committing_where_the_question_is_not_answered(
    code: ErrorCode,
) -> None:
    home = Successors(COMMITTING, KafkaError(code))
    assert await commit_at(home) is COMMITTING
    assert len(home.asked) == 2


async def test_rule_s3_no_other_home_is_asked_where_one_waited_as_long_as_it_was_to() -> None:
    home = Successors(COMMITTING, takes_ms=9_000)
    assert await commit_at(home) is COMMITTING
    assert [type(one) for one in home.asked] == [CommitPosition]


async def test_a_next_home_that_says_nothing_is_not_waited_for_beyond_the_time() -> None:
    class Silent(Successors):
        async def answer_id(self, request: object) -> TransactionOutcome:
            if self.asked:
                await asyncio.Event().wait()
            return await super().answer_id(request)

    home = Silent(COMMITTING)
    async with asyncio.timeout(10):
        assert await commit_at(home, timeout_ms=300) is COMMITTING
