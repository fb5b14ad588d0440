"""Values split over records by the producer: what consumers join is what was given."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from http_api.client.client_errors import InvalidRecordError, OutcomeUnknownError, QuorumlogError
from http_api.client.metadata_calls import TopicLimits
from http_api.client.sdk.page_decoding import PageDecoder
from http_api.client.sdk.part_joining import PartJoiner
from http_api.client.sdk.producer_settings import ProducerConfig
from http_api.client.sdk.record_batch import SendResult
from http_api.client.sdk.record_fields import RecordEncoder, RecordFields
from http_api.client.sdk.record_types import Receipt, Record
from http_api.client.sdk.value_splitting import PARTS_MAX, SplitOutcome, split_record
from http_api.client.sdk.values import WORDS, Format
from raft_metadata.common.errors import Outcome

LIMIT = 600


def fields_of(value: Any, key: Any = None, headers: Any = None, **settings: Any) -> RecordFields:
    config = ProducerConfig(bootstrap_servers=("http://a:1",), **settings)
    return RecordEncoder(config).fields(value, key, headers, None)


def split(fields: RecordFields, *, has_headers: bool = False) -> list[RecordFields]:
    return split_record(fields, TopicLimits(LIMIT, False), "id", has_headers=has_headers)


def read(parts: list[RecordFields]) -> list[Record[Any, Any]]:
    """The records that a consumer makes of parts written one behind the other."""
    lines = []
    for at, (key_format, value_format, text, *_) in enumerate(parts):
        about = {"count": 1, "timestamp": 0, "leader_epoch": 0}
        about["key_format"] = WORDS[key_format or Format.JSON]
        about["value_format"] = WORDS[value_format]
        lines += [orjson.dumps({"batch": about}), b'{"offset":%d,"value":' % at + text + b"}"]
    page = PageDecoder().decode("t", 0, b"\n".join(lines) + b"\n")
    return PartJoiner().join(page.records)


@given(
    value=st.one_of(
        st.binary(min_size=LIMIT, max_size=20_000),
        st.text(min_size=LIMIT, max_size=2_000),
        st.lists(st.integers(0, 9), min_size=LIMIT, max_size=5_000),
    ),
    key=st.one_of(st.none(), st.text(max_size=20), st.binary(max_size=20)),
    headers=st.one_of(
        st.none(), st.lists(st.tuples(st.text(max_size=5), st.binary(max_size=5)), max_size=3)
    ),
)
def test_what_was_split_is_joined_to_the_same_record(value: Any, key: Any, headers: Any) -> None:
    try:
        fields = fields_of(value, key, headers)
    except InvalidRecordError:  # half a surrogate pair
        return
    parts = split(fields, has_headers=headers is not None)
    assert len(parts) > 1
    assert max(len(part[2]) for part in parts) <= LIMIT
    assert {part[3] for part in parts} == {fields[3]}, "parts of one key lie in one partition"
    (found,) = read(parts)
    assert (found.value, found.key, found.headers) == (value, key, headers or [])
    assert found.offset == len(parts) - 1


def test_a_string_comes_back_as_one_and_a_missing_part_shows_nothing() -> None:
    parts = split(fields_of("ü" * LIMIT, value_format="string"))
    (found,) = read(parts)
    assert found.value == "ü" * LIMIT
    assert read(parts[:-1]) == []
    assert read(parts[1:]) == []


def test_what_can_not_be_split_is_refused_with_the_reason() -> None:
    value = fields_of(b"x" * LIMIT)
    with pytest.raises(InvalidRecordError, match="compacted"):
        split_record(value, TopicLimits(LIMIT, True), "id", has_headers=False)
    with pytest.raises(InvalidRecordError, match=f"max.message.bytes={LIMIT}"):
        split(fields_of(b"x", key="k" * LIMIT))
    with pytest.raises(InvalidRecordError, match=f"{PARTS_MAX} parts"):
        split(fields_of(b"x" * LIMIT * PARTS_MAX))
    with pytest.raises(InvalidRecordError, match="67108864"):
        split_record(
            fields_of(b"x" * ((64 << 20) + 1)), TopicLimits(1 << 20, False), "", has_headers=False
        )


def receipt(offset: int) -> Receipt:
    return Receipt("t", 0, offset, None, "k", "v")


def failure(outcome: Outcome) -> QuorumlogError:
    error = OutcomeUnknownError("lost") if outcome is Outcome.UNKNOWN else QuorumlogError("no")
    error.outcome = outcome
    return error


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        ([None, None, None], None),
        ([None, Outcome.UNKNOWN, None], Outcome.UNKNOWN),
        ([Outcome.UNKNOWN, Outcome.NOT_WRITTEN, None], Outcome.NOT_WRITTEN),
        ([Outcome.NOT_WRITTEN, Outcome.UNKNOWN, None], Outcome.NOT_WRITTEN),
        ([None, None, Outcome.UNKNOWN], Outcome.UNKNOWN),
    ],
)
def test_a_value_has_one_outcome_that_of_all_its_parts(
    outcomes: list[Outcome | None], expected: Outcome | None
) -> None:
    send, calls = SendResult(), []
    by_send = SplitOutcome(3, send)
    by_callback = SplitOutcome(3, lambda error, place: calls.append((error, place)))
    silent = SplitOutcome(3, None)
    for at, outcome in enumerate(outcomes):
        assert by_callback.callback is silent.silent_error is send.receipt is None
        for one in (by_send, by_callback, silent):
            one.settle(receipt(at), None if outcome is None else failure(outcome))
    callback = by_callback.callback
    assert callback is not None
    callback(None, None)
    ((error, place),) = calls
    for found in (send.error, error, silent.silent_error):
        assert (None if found is None else found.outcome) is expected
    assert place.offset == (2 if expected is None else -1)
    assert send.receipt == place
