"""States of a batch in flight: which steps there are, and that every one of them is taken (F1)."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome
from raft_metadata.common.ids import Claim
from raft_metadata.common.sequenced_sender import (
    TRANSITIONS,
    BatchEvent,
    BatchState,
    InFlightBatch,
    PendingProduce,
    SequencedSender,
)

REFUSED = KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, outcome=Outcome.NOT_WRITTEN)
UNKNOWN = KafkaError(ErrorCode.REQUEST_TIMED_OUT, outcome=Outcome.UNKNOWN)
TOO_LARGE = KafkaError(ErrorCode.MESSAGE_TOO_LARGE, outcome=Outcome.NOT_WRITTEN)


def batch_in(state: BatchState) -> InFlightBatch:
    batch = InFlightBatch([], Claim(1, 0, 0), 0)
    batch.state = state
    return batch


@pytest.mark.parametrize(("state", "event"), [*product(BatchState, BatchEvent)])
def test_a_step_that_is_not_in_the_table_is_a_bug(state: BatchState, event: BatchEvent) -> None:
    batch = batch_in(state)
    if (state, event) in TRANSITIONS:
        batch.step(event)
        assert batch.state is TRANSITIONS[state, event]
    else:
        with pytest.raises(KeyError):
            batch.step(event)
        assert batch.state is state


def test_a_void_batch_stays_void() -> None:
    void = {BatchState.VOID, BatchState.SENDING_VOID}
    assert {after for (before, _), after in TRANSITIONS.items() if before in void} == void


def test_a_refusal_never_ends_a_doubt() -> None:
    assert TRANSITIONS[BatchState.RESENDING, BatchEvent.REFUSED] is BatchState.DOUBTFUL


def test_an_attempt_is_answered_once_and_made_once_at_a_time() -> None:
    for (before, event), after in TRANSITIONS.items():
        started = batch_in(after).is_under_way and not batch_in(before).is_under_way
        ended = batch_in(before).is_under_way and not batch_in(after).is_under_way
        assert started is (event is BatchEvent.SENT)
        assert ended is (event in {BatchEvent.REFUSED, BatchEvent.UNKNOWN})


def test_only_a_batch_that_waits_to_be_sent_again_has_failed() -> None:
    sender = SequencedSender(7)
    assert not sender.has_failed
    for _ in range(2):
        sender.add(PendingProduce(b"1", 1, (), 10, lambda *_: None))
    first = sender.due()
    assert first is not None
    assert not sender.has_failed, "it is under way"
    sender.failed(first, UNKNOWN)
    assert sender.has_failed
    assert sender.due() is first
    assert not sender.has_failed
    sender.succeeded(first, 0)
    assert not sender.has_failed


ANSWERS = st.sampled_from(["written", REFUSED, UNKNOWN, TOO_LARGE])


@given(steps=st.lists(st.tuples(st.sampled_from(["add", "due", "answer", "expire"]), ANSWERS)))
def test_every_produce_is_completed_once_whatever_the_order_of_events(
    steps: list[tuple[str, str | KafkaError]],
) -> None:
    """Answers come in any order and deadlines pass at any moment: no step is missing."""
    sender = SequencedSender(7)
    completed: list[int] = []
    under_way: list[InFlightBatch] = []
    added, now_ms = 0, 0
    for step, answer in [*steps, *([("due", REFUSED), ("answer", "written")] * 200)]:
        if step == "add" and added < 30:
            number = added
            sender.add(
                PendingProduce(b"1", 1, (), now_ms + 3, lambda *_, n=number: completed.append(n))
            )
            added += 1
        elif step == "due" and (batch := sender.due()) is not None:
            under_way.append(batch)
        elif step == "answer" and under_way:
            batch = under_way.pop(0)
            if isinstance(answer, KafkaError):
                sender.failed(batch, answer)
            else:
                sender.succeeded(batch, 0)
        elif step == "expire":
            now_ms += 1
            sender.expire(now_ms)
    assert sorted(completed) == [*range(added)]
    assert sender.is_idle
