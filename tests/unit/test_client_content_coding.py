"""What the client makes of answers in zstd: bounded, whole, or refused."""

from __future__ import annotations

import pytest
import zstandard

from http_api.client import consumer
from http_api.client.calls import Answer, Request, decode_answer
from http_api.client.client_errors import ProtocolError

LINES = b'{"offset":1,"key":null,"value":1}\n' * 100
FRAME = zstandard.compress(LINES)
ASKS = Request(method="GET", path="/", decoded_max=100_000)


def answer(body: bytes, length: object, coding: str = "zstd") -> Answer:
    headers = {"content-encoding": coding, "quorumlog-decoded-length": str(length)}
    return Answer(status=200, headers=headers, body=body)


def test_frames_one_behind_the_other_are_one_body() -> None:
    for many in (1, 2, 7):
        found = decode_answer(answer(FRAME * many, len(LINES) * many), ASKS)
        assert found.body == LINES * many
        assert found.status == 200
    assert decode_answer(answer(b"", ""), ASKS).body == b"", "the answer to a HEAD has none"


def test_a_plain_answer_is_left_alone() -> None:
    for plain in (Answer(status=200, body=LINES), answer(LINES, "", "Identity")):
        assert decode_answer(plain, ASKS) is plain


REFUSED = {
    "half of it": (answer(FRAME * 3, len(LINES) * 4), "holds only"),
    "a frame lost": (answer(FRAME, len(LINES) * 2), "holds only"),
    "a frame too many": (answer(FRAME * 2, len(LINES)), "holds more"),
    "cut short": (answer(FRAME[:-9], len(LINES)), "holds only"),
    "not zstd": (answer(b"nonsense" * 9, len(LINES)), "can't be decoded"),
    "no length": (answer(FRAME, ""), "expected 100000 at most"),
    "no number": (answer(FRAME, "-1"), "expected 100000 at most"),
    "too much": (answer(FRAME, 100_001), "expected 100000 at most"),
    "a bomb": (answer(zstandard.compress(b"\0" * 50_000_000), 99_999), "holds more"),
    "another coding": (answer(LINES, len(LINES), "gzip"), "'gzip', which was not asked for"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_frame_that_is_torn_or_unbounded_is_refused(case: str) -> None:
    wrong, said = REFUSED[case]
    with pytest.raises(ProtocolError, match=said):
        decode_answer(wrong, ASKS)


def test_a_client_that_did_not_ask_is_sent_no_content_coding() -> None:
    with pytest.raises(ProtocolError, match="not asked for"):
        decode_answer(answer(FRAME, len(LINES)), Request(method="GET", path="/"))


def test_only_stored_lines_are_asked_for_in_zstd() -> None:
    assert consumer.fetch_stored("t", 0, 0).request.headers["Accept-Encoding"] == "zstd"
    for call in (consumer.fetch("t", 0, 0), consumer.fetch_lines("t", 0, 0), consumer.ends("t", 0)):
        assert call.request.headers["Accept-Encoding"] == "identity"
