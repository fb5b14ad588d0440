"""Content-Type and Accept."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from http_api.contract.media_types import (
    FETCH_REPLIES,
    JSON,
    LINES,
    NDJSON,
    V2,
    V2_BINARY,
    V2_JSON,
    V2_REPLIES,
    EmbeddedFormat,
    choose_reply,
    produce_format,
)


@pytest.mark.parametrize(
    ("accept", "chosen"),
    [
        (None, V2_JSON),
        ("", V2_JSON),
        ("*/*", V2_JSON),
        ("application/*", V2_JSON),
        (JSON, V2_JSON),
        (V2_BINARY, V2_BINARY),
        ("application/x-ndjson", NDJSON),
        ("Application/X-NDJSON; charset=utf-8", NDJSON),
        (f"{NDJSON}, */*", NDJSON),
        (f"*/*, {NDJSON}", NDJSON),
        (f"application/*, {NDJSON}", NDJSON),
        (f"{V2_BINARY};q=0.5, {LINES};q=0.9", LINES),
        (f"{V2_BINARY};q=0.9, {NDJSON};q=0.9", V2_BINARY),
        (f"text/html, {V2_BINARY};q=0.1", V2_BINARY),
        (f"{V2_JSON};q=0, {JSON};q=0, */*", V2_BINARY),
        (f"{V2_JSON};q=0", None),
        (f"{V2_JSON};q=x", None),
        ("text/html", None),
        ("text/*", None),
        (V2, None),
        (",,,", None),
        ("*/json", V2_JSON),
        (f"*/json, {NDJSON}", NDJSON),
        (f"{NDJSON};q=0.2, */json", V2_JSON),
        (f"*/json, {JSON};q=0", None),
        ("application/vnd.kafka.json.v1+json", V2_JSON),
        ("application/vnd.kafka.json+json", V2_JSON),
        ("application/vnd.kafka.binary.v1+json", V2_BINARY),
        ("application/vnd.kafka.binary+json", V2_BINARY),
        ("application/vnd.kafka.v1+json", None),
        (f"{V2_JSON};q=0, */*", V2_BINARY),
    ],
)
def test_accept_chooses(accept: str | None, chosen: str | None) -> None:
    assert choose_reply(accept, FETCH_REPLIES) == chosen


@pytest.mark.parametrize(
    "accept",
    [
        JSON, "*/json", V2, "application/vnd.kafka.v1+json", "application/vnd.kafka+json",
        *(f"application/vnd.kafka.{one.value}{version}+json"
          for one in EmbeddedFormat for version in (".v2", ".v1", "")),
    ],
)  # fmt: skip
def test_v2_paths_answer_v2_to_those_who_take_any_spelling_of_json(accept: str) -> None:
    assert choose_reply(accept, V2_REPLIES) == V2
    assert choose_reply(f"{accept};q=0", V2_REPLIES) is None


@given(st.text(alphabet="ab*/;=,.q01 +-", max_size=60))
def test_no_accept_header_breaks_the_choice(accept: str) -> None:
    assert choose_reply(accept, FETCH_REPLIES) in {None, *FETCH_REPLIES.values()}


@pytest.mark.parametrize(
    ("content_type", "expected"),
    [
        (None, None),
        ("", None),
        ("text/json", None),
        ("application/vnd.kafka.v3+json", None),
        ("application/json", EmbeddedFormat.JSON),
        (" APPLICATION/JSON ;charset=UTF-8", EmbeddedFormat.JSON),
        ("application/octet-stream", EmbeddedFormat.BINARY),
        ("application/vnd.kafka.avro.v1+json", EmbeddedFormat.AVRO),
        ("application/vnd.kafka.text.v2+json", EmbeddedFormat.TEXT),
        ("application/vnd.kafka.binary+json", EmbeddedFormat.BINARY),
    ],
)
def test_content_type(content_type: str | None, expected: EmbeddedFormat | None) -> None:
    assert produce_format(content_type) is expected
