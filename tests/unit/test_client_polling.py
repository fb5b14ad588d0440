"""The client's poll: the body it sends, and pages cut by their lengths, or refused."""

from __future__ import annotations

import orjson
import pytest
import zstandard

from http_api.client.calls import Answer
from http_api.client.client_errors import ProtocolError
from http_api.client.polling import PolledPage, PollPosition, PollRefusal, poll

HEAD = {
    "topic_name": "orders", "topic_id": "T", "partition_id": 1, "offset": 7, "next_offset": 8,
    "next_leader_epoch": 3, "leader_id": 2, "leader_epoch": 5, "leader_url": "http://b:1",
    "high_watermark": 8, "log_start_offset": 0, "records": 1, "bytes": 0, "coding": None,
}  # fmt: skip
CALL = poll("C", [PollPosition(topic="orders", partition=1, offset=7)])


def line(body: bytes = b"", **changes: object) -> bytes:
    return orjson.dumps({"page": {**HEAD, "bytes": len(body), **changes}}) + b"\n" + body


def parsed(body: bytes) -> list[PolledPage | PollRefusal]:
    return CALL.parse(Answer(status=200, body=body))


def test_the_request_names_what_is_known_and_may_be_repeated() -> None:
    call = poll(
        "C",
        [
            PollPosition(topic="orders", partition=1, offset=7, leader_epoch=3, topic_id="T"),
            PollPosition(topic="orders", partition=2, offset=0),
        ],
        wait_ms=4_000,
        news_only=True,
    )
    request = call.request
    assert (request.method, request.path) == ("POST", "/v3/clusters/C/records:poll")
    assert request.may_repeat, "a pure read"
    assert request.timeout_s > 4
    body = orjson.loads(request.body or b"")
    assert body["partitions"] == [
        {
            "topic_name": "orders",
            "partition_id": 1,
            "offset": 7,
            "leader_epoch": 3,
            "topic_id": "T",
        },
        {"topic_name": "orders", "partition_id": 2, "offset": 0},
    ]
    assert (body["news_only"], body["wait_ms"]) == (True, 4_000)


def test_pages_are_cut_by_their_lengths() -> None:
    lines = b'{"batch":{}}\n{"offset":7,"key":null,"value":"{\\"page\\":"}\n'
    news = line(epochs=[[3, 7], [4, 9]], next_leader_epoch=None)
    first, second = parsed(line(lines) + news)
    assert isinstance(first, PolledPage)
    assert (first.body, first.records, first.next_offset) == (lines, 1, 8)
    assert isinstance(second, PolledPage)
    assert (second.body, second.epochs, second.next_leader_epoch) == (b"", ((3, 7), (4, 9)), None)
    assert parsed(b"") == []


def test_a_refused_row_says_why_and_where() -> None:
    error = {
        "topic_name": "orders", "topic_id": None, "partition_id": 1, "offset": 7, "bytes": 0,
        "error_code": 40950, "message": "truncated", "retriable": False, "diverging_offset": 5,
        "diverging_epoch": 2,
    }  # fmt: skip
    [found] = parsed(orjson.dumps({"page": error}) + b"\n")
    assert found == PollRefusal(
        topic="orders", partition=1, offset=7, error_code=40950, message="truncated",
        retriable=False, diverging_offset=5, diverging_epoch=2,
    )  # fmt: skip


def test_stored_frames_are_decoded() -> None:
    frames = b"".join(zstandard.compress(part) for part in (b"one\n", b"two\n" * 99))
    [found] = parsed(line(frames, coding="zstd"))
    assert isinstance(found, PolledPage)
    assert found.body == b"one\n" + b"two\n" * 99
    with pytest.raises(ProtocolError, match="can't be decoded"):
        parsed(line(b"no frame", coding="zstd"))


def test_an_answer_that_is_cut_anywhere_is_no_answer() -> None:
    whole = line(b"abc\n") + line(b"defg\n")
    ends = {0, len(line(b"abc\n")), len(whole)}
    for cut in range(len(whole) + 1):
        if cut in ends:
            assert len(parsed(whole[:cut])) == sorted(ends).index(cut)
        else:
            with pytest.raises(ProtocolError):
                parsed(whole[:cut])


@pytest.mark.parametrize("body", [b"{}\n", b"[]\n", b'{"page":{}}\n', b'{"page":{"bytes":"1"}}\n'])
def test_something_else_is_no_answer(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        parsed(body)
