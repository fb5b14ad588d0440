"""Where a call goes and whether it goes again: decisions over what was seen, without a socket."""

from __future__ import annotations

import contextlib

import orjson
import pytest

from http_api.client.calls import Answer, Call, Request, path_of
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
from http_api.client.routes import (
    LAST_BACKOFF_S,
    Exchange,
    InterruptedAttemptError,
    LostError,
    NotSentError,
    Routes,
    attempts_at,
)
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


def lose(routes: Routes, request: Request, now_s: float) -> None:
    """Make one round of attempts that all fail to connect."""
    exchange = Exchange(routes, request, now_s, 0)
    with contextlib.suppress(UnreachableError):
        while True:
            exchange.report_not_sent("refused", now_s)


def answer(routes: Routes, request: Request, now_s: float, leader: str = "") -> None:
    headers = {"quorumlog-leader-url": leader} if leader else {}
    Exchange(routes, request, now_s, 0).receive_answer(Answer(status=200, headers=headers), now_s)


def test_a_client_that_was_idle_keeps_its_brokers_and_leaders() -> None:
    routes = Routes([A, B], rebootstrap_s=10)
    answer(routes, FETCH, 0, C)
    routes.add_brokers([C])
    assert routes.candidates(FETCH, 10_000) == [C, A, B]
    assert routes.candidates(READ, 20_000) == [A, B, C]


def test_after_failures_for_the_trigger_time_the_given_urls_come_first_again() -> None:
    routes = Routes([A], rebootstrap_s=10)
    routes.add_brokers([B, C])
    answer(routes, FETCH, 0, C)
    routes.demote(A)
    lose(routes, FETCH, 100)
    lose(routes, READ, 109)
    routes.learn_leader("t", 0, B)
    assert routes.candidates(FETCH, 110)[0] != A, "ten seconds are not over"
    found = routes.candidates(FETCH, 110.1)
    assert found[0] == A, "and no leader is known"
    assert sorted(found) == [A, B, C]
    lose(routes, READ, 111)
    answer(routes, READ, 112)
    assert routes.leader("t", 0) is None
    routes.learn_leader("t", 0, "http://d:1")
    assert routes.candidates(FETCH, 125)[0] == "http://d:1", "an answer ends the time of failures"


@pytest.mark.parametrize("leader", [A, C])
def test_a_leader_that_accepts_no_connection_is_left_aside_given_or_not(leader: str) -> None:
    routes = Routes([B, A])
    answer(routes, FETCH, 0, leader)
    assert routes.candidates(FETCH, 0)[0] == leader
    Exchange(routes, FETCH, 0, 0).report_not_sent("refused", 0)
    answer(routes, FETCH, 1, leader)
    assert routes.candidates(FETCH, 59)[0] == B
    assert routes.candidates(FETCH, 61)[0] == leader


def test_a_leader_that_answers_again_is_left_aside_no_longer() -> None:
    routes = Routes([B])
    answer(routes, FETCH, 0, C)
    routes.report_unreachable(C, 0)
    assert routes.candidates(FETCH, 1) == [B]
    routes.receive_answer(READ, C, Answer(status=200), 2)
    assert routes.candidates(FETCH, 3) == [C, B]


def test_a_failure_of_another_broker_does_not_make_the_leader_forgotten() -> None:
    routes = Routes([A, B])
    answer(routes, FETCH, 0, C)
    routes.report_failure(FETCH, A)
    assert routes.leader("t", 0) == C


@pytest.mark.parametrize("url", ["", "ftp://h:1", "http://h:x", "http://h:1/p", "http://u@h:1"])
def test_only_plain_urls_are_followed(url: str) -> None:
    assert not Routes([A]).may_follow(url)
    assert not Routes(["https://a:1", A]).may_follow("http://b:1")
    assert not Routes([A, "http://b:1/prefix"]).may_follow("http://b:1")
    assert not Routes([A], follow_leaders=False).may_follow("http://b:1")


@pytest.mark.parametrize("order", ["lost first", "refused first"])
def test_rule_f1_the_outcome_stays_unknown_after_one_lost_attempt(order: str) -> None:
    request = Request(method="POST", path="/x", body=b"{}", repeatable=True)
    exchange = Exchange(Routes([A, B]), request, now_s=0, retry_s=0)
    ends = [exchange.report_lost, exchange.report_not_sent]
    first, second = ends if order == "lost first" else ends[::-1]
    first("one", 0)
    with pytest.raises(OutcomeUnknownError, match=r"http://a:1 \(one\), http://b:1 \(two\)"):
        second("two", 0)

    exchange = Exchange(Routes([A]), request, now_s=0, retry_s=1)
    exchange.report_lost("reset", 0)
    with pytest.raises(ApiError) as refused:
        exchange.receive_answer(failure(503), 0.99)
    assert refused.value.outcome is Outcome.UNKNOWN


def test_an_interrupted_request_ends_and_its_broker_is_not_blamed() -> None:
    routes = Routes([A, B])
    answer(routes, FETCH, 0, A)
    attempts = attempts_at(Call(FETCH, lambda found: found), routes, lambda: 0.0, retry_s=60)
    assert next(attempts).url == A
    with pytest.raises(OutcomeUnknownError, match="interrupted"):
        attempts.throw(InterruptedAttemptError("interrupted"))
    assert routes.candidates(FETCH, 0) == [A, B]


def test_a_broker_is_checked_within_the_time_of_the_request_and_again_after_a_loss() -> None:
    routes = Routes([A], checks_cluster=True)
    write = Request(method="POST", path="/x", body=b"{}", timeout_s=1.5)
    call = Call(write, lambda found: found.body)
    attempts = attempts_at(call, routes, lambda: 0.0, retry_s=0)
    check = next(attempts)
    assert (check.request.path, check.request.timeout_s) == ("/v3/clusters", 1.5)
    cluster = Answer(status=200, body=b'{"data":[{"cluster_id":"c"}]}')
    assert attempts.send(cluster).request is write
    with pytest.raises(OutcomeUnknownError):
        attempts.throw(LostError("reset"))
    assert routes.needs_check(A)


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
