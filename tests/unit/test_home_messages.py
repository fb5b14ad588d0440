"""Requests to targets and their answers, as they go from broker to broker."""

from __future__ import annotations

import pytest

from broker.transactions.home_messages import (
    AbortPosition,
    ApplyAnswer,
    ApplyUnits,
    GapFound,
    SourceGone,
    UnitRows,
    UnitsApplied,
    decode_apply,
    decode_apply_answer,
    decode_home_answer,
    encode_apply,
    encode_apply_answer,
    encode_home_answer,
)
from broker.transactions.messages import (
    LostRows,
    PositionFate,
    ProducerPosition,
    TransactionState,
)
from raft_metadata.common.errors import ErrorCode, KafkaError
from tests.support.home_turns import inline_rows, named, staged_at, target


def test_units_for_a_target_come_back_as_they_were() -> None:
    request = ApplyUnits(
        target=target("a"),
        numbering=(1 << 62) + 3,
        after=5,
        units=(
            UnitRows(5, 1, staged_at("17e3")),
            UnitRows(6, 2, inline_rows(target("a"), 2)),
            UnitRows(8, 1, staged_at("18e4")),
        ),
    )
    assert decode_apply(encode_apply(request)) == request


def test_a_malformed_request_to_a_target_is_refused() -> None:
    with pytest.raises(KafkaError) as caught:
        decode_apply(encode_apply_answer(GapFound(7)))
    assert caught.value.code is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("answer", [UnitsApplied((4, None)), GapFound(7), SourceGone((5, 7))])
def test_an_answer_of_a_target_comes_back_as_it_was(answer: ApplyAnswer) -> None:
    assert decode_apply_answer(encode_apply_answer(answer)) == answer


def test_what_an_abort_hears_comes_back_as_it_was() -> None:
    request = AbortPosition(id=named("p"), timeout_ms=1, position=ProducerPosition(1, 0))
    for lost in ((), (LostRows(*target("a"), 7), LostRows(*target("b"), 1))):
        fate = PositionFate(TransactionState.COMPLETE, lost)
        assert decode_home_answer(request, encode_home_answer(fate)) == fate
