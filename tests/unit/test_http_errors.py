"""The one table from error codes to HTTP."""

from __future__ import annotations

import ast
import inspect
import json

import pytest

from http_api.contract import errors
from http_api.contract.errors import (
    REST_STATUS,
    RestCode,
    RestError,
    envelope,
    excerpt,
    failure_envelope,
    record_error_code,
    record_error_name,
)
from http_api.contract.idempotence import claim_headers, claim_of
from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome
from raft_metadata.common.ids import Claim


def test_every_error_code_is_mapped() -> None:
    assert set(REST_STATUS) == set(ErrorCode)


def test_a_refusal_reads_as_its_message() -> None:
    refusal = RestError(422, RestCode.BAD_REQUEST, "no such field")
    assert (str(refusal), refusal.message) == ("no such field", "no such field")


@pytest.mark.parametrize("value", ["", "x", "-1", "1.0", "99999999999999999999"])
def test_a_claim_is_three_integers_within_their_limits(value: str) -> None:
    headers = claim_headers(Claim(7, 0, 3))
    assert claim_of(headers) == Claim(7, 0, 3)
    assert claim_of({}) is None
    for name in headers:
        with pytest.raises(RestError, match=f"Header '{name}' is '{value}': expected an integer"):
            claim_of({**headers, name: value})


def test_rule_s4_a_producer_id_of_the_clusters_own_is_refused() -> None:
    headers = claim_headers(Claim((1 << 62) - 1, 0, 0))
    assert claim_of(headers) == Claim((1 << 62) - 1, 0, 0)
    for reserved in (1 << 62, (1 << 63) - 1):
        with pytest.raises(RestError, match=f"from 0 to {(1 << 62) - 1} .*the cluster's own") as no:
            claim_of(claim_headers(Claim(reserved, 0, 0)))
        assert (no.value.status, no.value.code) == (400, RestCode.KAFKA_BAD_REQUEST)


def test_every_error_code_is_mapped_once() -> None:
    tree = ast.parse(inspect.getsource(errors))
    table = next(
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        and node.target.id == "REST_STATUS"
    )
    assert isinstance(table, ast.Dict)
    assert len(table.keys) == len(REST_STATUS)


def test_every_rest_code_has_one_number() -> None:
    assert len({code.value for code in RestCode}) == len(RestCode.__members__)


@pytest.mark.parametrize("code", ErrorCode)
def test_the_status_is_the_front_of_the_rest_code(code: ErrorCode) -> None:
    status, rest = REST_STATUS[code]
    if rest is RestCode.CONSUMER_CONFIG:  # Confluent's own exception
        assert status == 422
        return
    if code is ErrorCode.CONCURRENT_TRANSACTIONS:  # with Retry-After, as every such 50003
        assert (status, rest) == (503, RestCode.KAFKA_RETRIABLE_ERROR)
        return
    assert status == (rest // 100 if rest > 599 else rest)


@pytest.mark.parametrize("code", ErrorCode)
def test_a_503_is_worth_a_retry(code: ErrorCode) -> None:
    if REST_STATUS[code].status == 503 and code is not ErrorCode.BROKER_NOT_AVAILABLE:
        assert code.retriable


@pytest.mark.parametrize("code", ErrorCode)
@pytest.mark.parametrize("outcome", Outcome)
def test_a_retriable_error_is_50003_per_record(code: ErrorCode, outcome: Outcome) -> None:
    rest = record_error_code(KafkaError(code, outcome=outcome))
    if REST_STATUS[code].status < 500:
        assert rest == REST_STATUS[code].code
    else:
        assert rest == (50003 if code.retriable else 50002)


def test_record_errors_never_say_written_for_unknown() -> None:
    for code in ErrorCode:
        unknown = record_error_name(KafkaError(code, outcome=Outcome.UNKNOWN))
        if code is not ErrorCode.LEADER_NOT_AVAILABLE:
            assert unknown != "LEADER_NOT_AVAILABLE"


def test_an_excerpt_says_that_it_is_one() -> None:
    assert excerpt("x" * 300) == "x" * 300
    assert excerpt("x" * 301) == "x" * 300 + "…"


def test_envelopes() -> None:
    assert envelope(RestCode.TOPIC_NOT_FOUND, "x") == b'{"error_code":40401,"message":"x"}'
    body = failure_envelope(50302, "x", retriable=True, outcome=Outcome.UNKNOWN)
    assert json.loads(body) == {
        "error_code": 50302,
        "message": "x",
        "retriable": True,
        "outcome": "unknown",
    }
