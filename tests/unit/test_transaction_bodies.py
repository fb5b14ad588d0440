"""Bodies of transactions: whole or refused, digests over the client's text, limits by name."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker.config import BrokerLimits
from broker.server.transaction_apis import TransactionLimits
from http_api.contract.errors import RestError
from http_api.contract.operations import transaction_operations as declared
from http_api.contract.operations.declaration import fields_of
from http_api.server.routes.v2.transactional_produce import digest_of
from http_api.server.routes.v3.transaction_bodies import CommitBody, read_commit

LIMITS = BrokerLimits()
MOST = TransactionLimits()
ROWS = '[{"topic_name":"t","records":[{"key":"a","value":1.50}]}]'
OFFSETS = '[{"topic_name":"t","partition_id":0,"offset":5,"expected_offset":-1}]'


def read(body: str | bytes, *, of_an_id: bool = True) -> CommitBody:
    data = body.encode() if isinstance(body, str) else body
    return read_commit(data, LIMITS, MOST, of_an_id=of_an_id)


def digest(body: str) -> str:
    return read(body).digest


def test_a_digest_is_over_the_text_of_the_content() -> None:
    first = digest(f'{{"topics":{ROWS},"offsets":{OFFSETS}}}')
    for same in (
        f'{{"offsets":{OFFSETS},"topics":{ROWS}}}',
        f'{{ "topics" : {ROWS} , "offsets" : {OFFSETS} }}',
        f'{{"topics":{ROWS},"offsets":{OFFSETS},"attempts":null}}',
        f'{{"topics":{ROWS},"offsets":{OFFSETS},"member_id":"m","member_epoch":7}}',
        f'{{"topics":{ROWS},"offsets":{OFFSETS},"epoch":1,"number":2,"run_id":"r","input":"i"}}',
    ):
        assert digest(same) == first
    others = {
        first,
        digest(f'{{"topics":{ROWS}}}'),
        digest(f'{{"topics":{ROWS.replace("1.50", "1.5")},"offsets":{OFFSETS}}}'),
        digest(f'{{"topics":{ROWS.replace("[{", "[ {")},"offsets":{OFFSETS}}}'),
        digest(f'{{"topics":{ROWS},"offsets":{OFFSETS.replace("-1", "4")}}}'),
        digest('{"attempts":[{"attempt_id":"a","chunks":1,"rows":2}]}'),
        digest('{"attempts":[{"attempt_id":"a","chunks":1,"rows":3}]}'),
    }
    assert len(others) == 7


@settings(max_examples=50)
@given(st.lists(st.binary(max_size=4), max_size=4), st.lists(st.binary(max_size=4), max_size=4))
def test_no_two_lists_of_texts_have_one_digest(one: list[bytes], other: list[bytes]) -> None:
    assert (digest_of(one) == digest_of(other)) == (one == other)


def test_a_body_cut_anywhere_is_refused() -> None:
    whole = (
        f'{{"epoch":3,"number":7,"topics":{ROWS},"offsets":{OFFSETS},"member_id":"m","member_epoch":1}}'
    ).encode()
    assert read(whole).number == 7
    for cut in range(len(whole)):
        with pytest.raises(RestError) as refused:
            read(whole[:cut])
        assert refused.value.status == 400


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3)
    ),
    max_leaves=6,
)
names = st.sampled_from(
    [
        *fields_of(declared.COMMIT[0]),
        *("topic_name", "records", "format", "attempt_id", "chunks", "rows"),
        *("partition_id", "offset", "expected_offset", "metadata", "leader_epoch", "key", "value"),
    ]
)


@settings(max_examples=50, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(names, anything | st.lists(st.dictionaries(names, anything))) | anything)
def test_whatever_the_body_is_it_is_read_or_refused(sent: object) -> None:
    try:
        found = read(json.dumps(sent))
    except RestError as error:
        refusal = (error.status, bool(error.message))
    else:
        refusal = (200, bool(found.topics or found.attempts or found.offsets))
    assert refusal in {(200, True), (400, True), (413, True), (422, True)}


@pytest.mark.parametrize("of_an_id", [True, False])
def test_every_field_that_is_declared_is_read(of_an_id: bool) -> None:
    operation = (declared.COMMIT if of_an_id else declared.ONE_SHOT)[0]
    values: dict[str, Any] = {
        "topics": json.loads(ROWS),
        "attempts": None,
        "offsets": json.loads(OFFSETS),
        "member_id": "m",
        "member_epoch": 0,
        "epoch": 0,
        "number": 0,
        "run_id": "r",
        "input": "i",
    }
    body = {name: values[name] for name in fields_of(operation)}
    read(json.dumps(body), of_an_id=of_an_id)
    with pytest.raises(RestError, match="unknown field `more`"):
        read(json.dumps(body | {"more": 1}), of_an_id=of_an_id)


def test_line_breaks_between_tokens_are_blanks_in_the_rows() -> None:
    body = '{\n"topics":[\n{"topic_name":"t",\r\n"records":\n[{"value":\n{"a"\n:1}}]}]}'
    (rows,) = read(body).topics
    assert bytes(rows.records[0].value) == b'{"a" :1}'


def test_records_of_all_topics_count_together() -> None:
    few = BrokerLimits(max_records_per_request=3)
    rows = [{"topic_name": name, "records": [{"value": 1}] * 2} for name in ("a", "b")]
    with pytest.raises(RestError, match="max_records_per_request is 3") as refused:
        read_commit(json.dumps({"topics": rows}).encode(), few, MOST, of_an_id=False)
    assert refused.value.status == 413
