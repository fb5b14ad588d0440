"""Where a call goes and whether it goes again: decisions over what was seen, without a socket."""

from __future__ import annotations

import contextlib

import orjson
import pytest

from http_api.client.calls import Answer, Request, path_of
from http_api.client.client_errors import (
    ApiError,
    OutcomeUnknownError,
    ProtocolError,
    UnreachableError,
)
from http_api.client.consumer import fetch
from http_api.client.produce_calls import (
    JsonRecord,
    RecordOutcome,
    parse_outcomes,
    produce_attempts,
)
from http_api.client.routes import LAST_BACKOFF_S, Exchange, LostError, NotSentError, Routes
from raft_metadata.common.errors import Outcome

READ = Request(method="GET", path="/x")
WRITE = Request(method="POST", path="/x", body=b"{}")
FETCH = Request(method="GET", path="/x", leader_key=("t", 0))
A, B, C = "http://a:1", "http://b:1", "http://c:1"


def failure(status: int, outcome: str = "not_written", *, retriable: bool = True) -> Answer:
    body = {"error_code": 50003, "message": "no", "retriable": retriable, "outcome": outcome}
    return Answer(status=status, body=orjson.dumps(body))


def test_urls_are_kept_once_and_in_order() -> None:
    assert Routes([f"{A}/", A, f" {B} ", ""]).urls == (A, B)
    with pytest.raises(ValueError, match="at least one"):
        Routes([" "])


def test_a_broker_that_does_not_answer_is_asked_last() -> None:
    routes = Routes([A, B])
    exchange = Exchange(routes, READ, now_s=0, retry_s=0)
    assert exchange.url == A
    assert exchange.report_not_sent("refused", 0) == 0
    assert exchange.url == B
    assert exchange.receive_answer(Answer(status=200), 0) is None
    assert routes.urls == (B, A)


def test_the_broker_that_serves_a_rack_is_remembered_beside_the_leader() -> None:
    routes = Routes([A])
    near = fetch("t", 0, 5, rack="r1").request
    assert "rack=r1" in near.path
    headers = {"quorumlog-leader-url": B, "quorumlog-served-by-url": C}
    Exchange(routes, near, 0, 0).receive_answer(Answer(status=200, headers=headers), 0)
    assert routes.candidates(near, 0)[0] == C
    assert routes.candidates(FETCH, 0) == [A], "who reads elsewhere, or writes, is not sent there"


def test_brokers_that_never_answered_are_reported_at_once() -> None:
    exchange = Exchange(Routes([A, B]), READ, now_s=0, retry_s=60)
    exchange.report_not_sent("refused", 0)
    with pytest.raises(UnreachableError, match=r"http://a:1 \(refused\), http://b:1 \(reset\)"):
        exchange.report_not_sent("reset", 0)


def test_a_cluster_that_answered_before_is_waited_for_until_the_deadline() -> None:
    routes = Routes([A])
    Exchange(routes, READ, 0, 0).receive_answer(Answer(status=200), 0)
    exchange = Exchange(routes, WRITE, now_s=0, retry_s=3)
    waits: list[float] = []
    with contextlib.suppress(UnreachableError):
        while len(waits) < 100:
            waits.append(exchange.report_not_sent("refused", sum(waits)))
    assert waits[:3] == [0.05, 0.1, 0.2]
    assert max(waits) <= LAST_BACKOFF_S
    assert sum(waits) <= 3


def test_the_leader_an_answer_names_is_asked_first_for_its_partition_only() -> None:
    routes = Routes([A, B])
    named = Answer(status=200, headers={"quorumlog-leader-url": f"{C}/"})
    Exchange(routes, FETCH, 0, 0).receive_answer(named, 0)
    assert routes.candidates(FETCH, 0) == [C, A, B]
    assert routes.candidates(READ, 0) == [A, B]
    exchange = Exchange(routes, FETCH, 0, 0)
    exchange.report_not_sent("refused", 0)
    assert exchange.url == A
    assert routes.candidates(FETCH, 0) == [A, B], "a leader that does not answer is forgotten"


def test_rule_f1_a_write_that_may_have_been_done_is_not_sent_again() -> None:
    exchange = Exchange(Routes([A, B]), WRITE, now_s=0, retry_s=60)
    with pytest.raises(OutcomeUnknownError) as lost:
        exchange.report_lost("timed out", 0)
    assert lost.value.outcome is Outcome.UNKNOWN

    exchange = Exchange(Routes([A, B]), WRITE, now_s=0, retry_s=60)
    with pytest.raises(ApiError) as unknown:
        exchange.receive_answer(failure(503, "unknown"), 0)
    assert unknown.value.outcome is Outcome.UNKNOWN


def test_rule_f1_a_write_that_surely_was_not_done_goes_again_until_the_deadline() -> None:
    exchange = Exchange(Routes([A]), WRITE, now_s=0, retry_s=1)
    assert exchange.receive_answer(failure(503), 0) == 0.05
    assert exchange.receive_answer(failure(503), 0.05) == 0.1
    with pytest.raises(ApiError):
        exchange.receive_answer(failure(503), 0.99)


def test_a_pure_read_goes_again_whatever_became_of_it() -> None:
    exchange = Exchange(Routes([A, B]), READ, now_s=0, retry_s=1)
    assert exchange.report_lost("reset", 0) == 0
    assert exchange.url == B
    assert exchange.receive_answer(failure(503, "unknown"), 0) == 0.05


def test_a_refusal_is_final() -> None:
    body = orjson.dumps({"error_code": 40401, "message": "Topic t not found"})
    exchange = Exchange(Routes([A, B]), WRITE, now_s=0, retry_s=60)
    with pytest.raises(ApiError, match="Topic t not found") as refused:
        exchange.receive_answer(Answer(status=404, body=body), 0)
    assert (refused.value.code, refused.value.outcome) == (40401, Outcome.NOT_WRITTEN)


def test_an_answer_that_is_none_of_ours_is_said_to_be_so() -> None:
    with pytest.raises(ProtocolError, match="expected the offsets"):
        parse_outcomes(Answer(status=200, body=b"[]"))
    with pytest.raises(ApiError, match="nginx") as error:
        Exchange(Routes([A]), WRITE, 0, 0).receive_answer(Answer(status=502, body=b"<h1>nginx"), 0)
    assert error.value.outcome is Outcome.UNKNOWN


def test_paths_are_quoted() -> None:
    assert path_of("topics", "a/b c", query={"a": 1, "b": None}) == "/topics/a%2Fb%20c?a=1"


# ---------------------------------------------------------------- producing

WRITTEN = RecordOutcome(0, 5)
AGAIN = RecordOutcome(None, None, 50003, "LEADER_NOT_AVAILABLE", Outcome.NOT_WRITTEN, True)
UNKNOWN = RecordOutcome(None, None, 50003, "REQUEST_TIMED_OUT", Outcome.UNKNOWN, True)
TOO_LARGE = RecordOutcome(None, None, 413, "MESSAGE_TOO_LARGE")


class Sending:
    """Records on their way, whose attempts the test answers at times that it gives."""

    def __init__(self, count: int, *, retry_s: float = 10) -> None:
        self.now_s = 0.0
        self.routes = Routes([A])
        self.outcomes: list[RecordOutcome] = []
        self._attempts = produce_attempts(
            "t",
            [JsonRecord(b"%d" % number) for number in range(count)],
            self.routes,
            lambda: self.now_s,
            partition=None,
            acks="all",
            retry_s=retry_s,
        )
        self.attempt = next(self._attempts)

    def answer(self, rows: list[RecordOutcome], now_s: float) -> float | None:
        """Answer the attempt; return the seconds before the next one, None if there is none."""
        offsets = [
            {
                "partition": row.partition,
                "offset": row.offset,
                "error_code": row.error_code,
                "error": row.error,
                "retriable": row.retriable,
                "outcome": "unknown" if row.outcome is Outcome.UNKNOWN else "not_written",
            }
            for row in rows
        ]
        body = orjson.dumps({"offsets": offsets})
        return self.end(Answer(status=200, body=body), now_s)

    def end(self, end: Answer | Exception, now_s: float) -> float | None:
        """End the attempt with an answer or an error; return what `answer` returns."""
        self.now_s = now_s
        try:
            if isinstance(end, Answer):
                self.attempt = self._attempts.send(end)
            else:
                self.attempt = self._attempts.throw(end)
        except StopIteration as done:
            self.outcomes = done.value
            return None
        return self.attempt.wait_s


def test_rule_f1_only_records_that_surely_were_not_written_go_again() -> None:
    sending = Sending(4)
    assert sending.answer([WRITTEN, AGAIN, UNKNOWN, TOO_LARGE], 0) == 0.05
    assert sending.attempt.request.body == b'{"records":[{"value":1}]}'
    assert sending.answer([RecordOutcome(0, 6)], 0.1) is None
    assert sending.outcomes == [WRITTEN, RecordOutcome(0, 6), UNKNOWN, TOO_LARGE]


def test_records_are_given_up_at_the_deadline() -> None:
    sending = Sending(1, retry_s=1)
    assert sending.answer([AGAIN], 0.9) is not None
    assert sending.answer([AGAIN], 0.95) is None
    assert sending.outcomes == [AGAIN]


def test_rule_f1_a_lost_request_is_unknown_for_every_record_of_it() -> None:
    sending = Sending(2)
    assert sending.end(LostError("reset"), 0) is None
    assert [outcome.outcome for outcome in sending.outcomes] == [Outcome.UNKNOWN] * 2


def test_rule_f1_an_answer_that_cannot_be_read_is_unknown_for_every_record() -> None:
    sending = Sending(2)
    assert sending.end(ProtocolError("in a coding that was not asked for"), 0) is None
    assert [outcome.outcome for outcome in sending.outcomes] == [Outcome.UNKNOWN] * 2


def test_an_unreachable_cluster_is_tried_again() -> None:
    sending = Sending(1)
    assert sending.end(NotSentError("refused"), 0) == 0.05
    assert sending.answer([WRITTEN], 0.1) is None
    assert sending.outcomes == [WRITTEN]


def test_an_error_of_the_whole_request_is_raised() -> None:
    body = orjson.dumps({"error_code": 40401, "message": "Topic t not found"})
    with pytest.raises(ApiError, match="Topic t not found"):
        Sending(1).end(Answer(status=404, body=body), 0)


def test_a_503_with_rows_is_read_record_by_record() -> None:
    rows = [
        {
            "partition": None,
            "offset": None,
            "error_code": 50003,
            "error": "x",
            "retriable": True,
            "outcome": "not_written",
        }
    ]
    answer = Answer(status=503, body=orjson.dumps({"offsets": rows}))
    assert Sending(1).end(answer, 0) == 0.05
    assert parse_outcomes(answer)[0].may_be_retried
    with pytest.raises(ApiError):
        parse_outcomes(failure(503))


def test_the_text_of_values_travels_untouched() -> None:
    record = JsonRecord(b'{"b":1,  "a":12345678901234567890}', b'"k"', 2)
    assert record.to_json() == (
        b'{"key":"k","value":{"b":1,  "a":12345678901234567890},"partition":2}'
    )
    assert JsonRecord(None).to_json() == b'{"value":null}'
