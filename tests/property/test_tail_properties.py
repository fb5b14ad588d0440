"""Tokens come back as they were sent or not at all; events hold what was put into them."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.record.batch import BatchSlice, RecordFormat, parse_header
from broker.record.lines import decode_records, encode_batches
from broker.record.render import in_partition, iso_8601, render_v3
from http_api.contract.event_stream import event, heartbeat, opening
from http_api.contract.tail_tokens import (
    EPOCH_MAX,
    OFFSET_MAX,
    PARTITIONS_MAX,
    Place,
    ReadToken,
    TokenError,
    decode_token,
    encode_token,
)
from http_api.server.tail_shapes import EventTail, PartitionEventTail, stored_lines, v3_lines
from raft_metadata.common.ids import PartitionId
from tests.support.event_stream import EventReader

PLACES = st.builds(Place, st.integers(0, OFFSET_MAX), st.integers(-1, EPOCH_MAX))
TOPIC_IDS = st.from_regex(r"[A-Za-z0-9_-]{22}", fullmatch=True)
TOKENS = st.one_of(
    st.builds(
        ReadToken,
        TOPIC_IDS,
        st.lists(PLACES, min_size=1, max_size=12).map(tuple),
        st.none(),
    ),
    st.builds(ReadToken, TOPIC_IDS, st.tuples(PLACES), st.integers(0, EPOCH_MAX - 1)),
)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=6,
)


@given(TOKENS)
def test_a_token_comes_back_as_it_was(token: ReadToken) -> None:
    text = encode_token(token)
    assert re.fullmatch(r"[A-Za-z0-9._~-]+", text)
    assert decode_token(text) == token


@given(TOKENS, st.data())
def test_a_token_that_was_changed_is_refused(token: ReadToken, data: st.DataObject) -> None:
    text = encode_token(token)
    at = data.draw(st.integers(0, len(text) - 1))
    other = data.draw(st.sampled_from("AZaz09-_~. é\n"))
    before, behind = text[:at], text[at:]
    changed = data.draw(
        st.sampled_from((before, before + other + behind[1:], before + other + behind))
    )
    if changed != text:
        with pytest.raises(TokenError):
            decode_token(changed)


@given(st.text(max_size=200))
def test_any_other_text_is_refused(text: str) -> None:
    with pytest.raises(TokenError):
        decode_token(text)


def test_the_longest_token_fits_into_a_request_line() -> None:
    places = (Place(OFFSET_MAX, EPOCH_MAX),) * PARTITIONS_MAX
    token = ReadToken("A" * 22, places)
    assert len(encode_token(token)) < 6_000
    assert decode_token(encode_token(token)) == token


@given(st.lists(st.tuples(st.binary(max_size=60), st.sampled_from((None, "end", "error")))))
def test_events_come_out_as_they_went_in(events: list[tuple[bytes, str | None]]) -> None:
    reader = EventReader()
    sent = opening("id-0")
    for number, (data, name) in enumerate(events):
        sent += event(data, name=name, event_id=f"id-{number}") + heartbeat(f"id-{number}")
    got = [each for byte in range(len(sent)) for each in reader.feed(sent[byte : byte + 1])]
    expected = [
        (name or "message", data.replace(b"\r\n", b"\n").replace(b"\r", b"\n"))
        for data, name in events
    ]
    assert got == expected
    assert reader.retry_ms == 1000
    assert reader.last_id == f"id-{max(0, len(events) - 1)}"


def slices_of(values: list[object]) -> list[BatchSlice]:
    rows = [{"key": value, "value": value} for value in values]
    body = json.dumps({"records": rows}, indent=1).replace("\n", "\r\n").encode()
    found = []
    for batch in encode_batches(
        decode_records(body),
        key_format=RecordFormat.JSON,
        value_format=RecordFormat.JSON,
        base_offset=7,
        leader_epoch=3,
        append_timestamp=1_700_000_000_000,
        durable_end=7,
    ):
        header = parse_header(batch.raw)
        lines = batch.raw[-header.length :] if header.length else b""
        lines = lines[lines.index(b'{"offset":') :]
        found.append(
            BatchSlice(header, lines, header.base_offset, header.next_offset, header.count)
        )
    return found


@settings(max_examples=60)
@given(st.lists(JSON_VALUES, min_size=1, max_size=3))
def test_a_record_of_any_json_is_one_line_in_every_form(values: list[object]) -> None:
    slices = slices_of(values)
    partition = PartitionId(5)
    token = lambda: "token"  # noqa: E731
    for piece in slices:
        whole = in_partition(piece.lines, partition)
        assert whole.count(b"\n") == piece.count
        for line in whole.splitlines():
            assert line.startswith(b'{"partition":5,"offset":')
            json.loads(line)
        for text in render_v3(piece, partition):
            assert b"\n" not in text
            assert b"\r" not in text
            assert json.loads(text)["partition_id"] == 5
    forms = (
        EventTail(stored_lines),
        EventTail(v3_lines),
        PartitionEventTail(v3_lines, lambda offset, epoch: f"{offset}-{epoch}"),
    )
    for form in forms:
        reader = EventReader()
        events = reader.feed(form.records(slices, partition, token))
        read = [json.loads(data) for _, data in events]
        got = [row["value"]["data"] if "partition_id" in row else row["value"] for row in read]
        assert got == json.loads(json.dumps(values))
        assert reader.last_id in {"token", f"{7 + len(values)}-3"}


@given(st.integers(-(1 << 63), 1 << 63))
def test_every_time_has_a_text(timestamp_ms: int) -> None:
    text = iso_8601(timestamp_ms)
    assert re.fullmatch(rb"@-?\d+|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", text)
