"""Produce bodies to stored lines, with msgspec and with orjson alone."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from broker.record import lines, plain_lines
from broker.record.batch import HEADER_SIZE, RecordFormat, verify, walk
from broker.record.lines import (
    HAS_MSGSPEC,
    ProduceRecord,
    check_formats,
    decode_records,
    encode_batches,
    key_view,
    make_raw,
    oversized,
    record_size,
)
from broker.record.values import UnprocessableRecordsError
from raft_metadata.common.errors import ErrorCode, KafkaError


@pytest.fixture(params=["msgspec", "orjson"])
def both(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same functions where msgspec is missing."""
    if request.param == "orjson":
        monkeypatch.setattr(lines, "decode_envelope", plain_lines.decode_envelope)
        monkeypatch.setattr(lines, "encode_lines", plain_lines.encode_lines)
        monkeypatch.setattr(lines, "make_raw", lambda text: text)


def stored(body: bytes, **fields: Any) -> bytes:
    batches = encode_batches(
        decode_records(body),
        key_format=RecordFormat.JSON,
        value_format=RecordFormat.JSON,
        base_offset=7,
        leader_epoch=1,
        append_timestamp=50,
        durable_end=0,
        **fields,
    )
    return b"".join(batch.raw[HEADER_SIZE:] for batch in batches)


@pytest.mark.usefixtures("both")
@pytest.mark.parametrize(
    ("record", "line"),
    [
        (b"{}", b'"key":null,"value":null}'),
        (b'{"key":null,"value":null}', b'"key":null,"value":null}'),
        (b'{"value":12345678901234567890}', b'"key":null,"value":12345678901234567890}'),
        (b'{"value":{"b":1,"a":2,"b":3}}', b'"key":null,"value":{"b":1,"a":2,"b":3}}'),
        (b'{"value":{"a" :\t[ 1 , 2 ]}}', b'"key":null,"value":{"a" :\t[ 1 , 2 ]}}'),
        (b'{"value":1.0,"key":"\\u00e9\\/"}', b'"key":"\\u00e9\\/","value":1.0}'),
        ('{"value":"é😀"}'.encode(), '"key":null,"value":"é😀"}'.encode()),
        (b'{"key":{"id":1},"value":false}', b'"key":{"id":1},"value":false}'),
        (b'{"value":"]},{\\"x\\\\"}', b'"key":null,"value":"]},{\\"x\\\\"}'),
        (b'{"partition":3,"value":0}', b'"key":null,"value":0}'),
        (b'{"timestamp":5,"value":0}', b'"timestamp":5,"key":null,"value":0}'),
        (b'{"timestamp":null,"headers":null,"partition":null}', b'"key":null,"value":null}'),
        (
            b'{"headers":[{"key":"h","value":"aGk="},{"key":"n","value":null}]}',
            b'"headers":[{"key":"h","value":"aGk="},{"key":"n","value":null}],"key":null,"value":null}',
        ),
    ],
)
def test_rule_r12_bytes_are_the_clients(record: bytes, line: bytes) -> None:
    assert stored(b'{"records":[' + record + b"]}") == b'{"offset":7,' + line + b"\n"


@pytest.mark.usefixtures("both")
def test_rule_r12_line_breaks_between_tokens_become_spaces() -> None:
    body = b'{\r\n "records": [\n  {"value": {"a": 10000000000000000000001,\n "a":\r2}}\n ]\n}\n'
    assert stored(body) == (
        b'{"offset":7,"key":null,"value":{"a": 10000000000000000000001,  "a": 2}}\n'
    )


@pytest.mark.usefixtures("both")
@pytest.mark.parametrize("raw", [b"\n", b"\r", b"\t", b"\0", b"\x1f"])
def test_rule_r12_a_raw_control_character_in_a_string_is_refused(raw: bytes) -> None:
    """Replacing first would have let a line break through as a space."""
    with pytest.raises(KafkaError, match="not JSON"):
        decode_records(b'{"records":[{"value":"a' + raw + b'b"}]}')


def refused(body: bytes) -> tuple[type[KafkaError], str]:
    with pytest.raises(KafkaError) as error:
        decode_records(body)
    assert error.value.code is ErrorCode.INVALID_REQUEST
    return type(error.value), error.value.message


@pytest.mark.usefixtures("both")
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"3",
        b'{"records":3}',
        b'{"records":{}}',
        b'{"records":[1]}',
        b'{"records":[{"value":01}]}',
        b'{"records":[{}]} x',
        b'{"records":[{"value":"\xff"}]}',
        b'{"records":[{"value":"\\ud800"}]}',
        b'{"records":[{"value":' + b"[" * 50_000,
    ],
)
def test_a_body_that_is_no_produce_request_is_malformed(body: bytes) -> None:
    assert refused(body)[0] is KafkaError


@pytest.mark.usefixtures("both")
@pytest.mark.parametrize(
    ("body", "named"),
    [
        (b"null", ""),
        (b"{}", "records"),
        (b'{"records":[]}', "records"),
        (b'{"recs":[],"records":[{}]}', "recs"),
        (b'{"records":[{"valu":1}]}', "valu"),
        (b'{"records":[{},{"offset":1}]}', "offset"),
        (b'{"records":[{"timestamp":-1}]}', "timestamp"),
        (b'{"records":[{"timestamp":99999999999999999999}]}', "timestamp"),
        (b'{"records":[{"timestamp":"5"}]}', "timestamp"),
        (b'{"records":[{"partition":-1}]}', "partition"),
        (b'{"records":[{"partition":true}]}', "partition"),
        (b'{"records":[{"headers":{}}]}', "headers"),
        (b'{"records":[{"headers":[{"name":"h"}]}]}', "headers"),
        (b'{"records":[{"headers":[{"key":"h","value":"?"}]}]}', "base64"),
    ],
)
def test_wrong_fields_are_unprocessable_and_named(body: bytes, named: str) -> None:
    kind, message = refused(body)
    assert kind is UnprocessableRecordsError
    assert named in message


def test_an_offset_sent_in_disguise_changes_nothing() -> None:
    assert refused(b'{"records":[{"\\u006fffset":99}]}')[0] is UnprocessableRecordsError


@pytest.mark.usefixtures("both")
def test_schema_fields_mean_nothing_here() -> None:
    assert len(decode_records(b'{"key_schema":"x","value_schema_id":1,"records":[{}]}')) == 1


def test_times_of_a_batch_are_its_records() -> None:
    records = decode_records(b'{"records":[{"timestamp":70},{"timestamp":30},{}]}')
    (batch,) = encode_batches(
        records,
        key_format=RecordFormat.JSON,
        value_format=RecordFormat.STRING,
        base_offset=0,
        leader_epoch=4,
        append_timestamp=50,
        durable_end=0,
        producer_id=9,
        producer_epoch=2,
        base_sequence=11,
    )
    header = verify(batch.raw)
    assert (header.base_timestamp, header.max_timestamp, header.append_timestamp) == (30, 70, 50)
    assert (header.key_format, header.value_format) == (RecordFormat.JSON, RecordFormat.STRING)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (9, 2, 11)
    assert batch.max_timestamp == 70


@pytest.mark.parametrize("limit", [1, 60, 100, 150, 10_000])
def test_batches_are_cut_between_records(limit: int) -> None:
    records = decode_records(
        b'{"records":[' + b",".join(b'{"value":"%d"}' % (10**n) for n in range(30)) + b"]}"
    )
    whole = encode_all(records, 1 << 20)
    parts = encode_all(records, limit)
    assert b"".join(b.raw[HEADER_SIZE:] for b in parts) == whole[0].raw[HEADER_SIZE:]
    headers = [header for _, header in walk(b"".join(batch.raw for batch in parts))]
    assert [h.base_offset for h in headers[1:]] == [h.next_offset for h in headers[:-1]]
    assert all(h.length <= limit or h.count == 1 for h in headers)


def encode_all(records: Any, limit: int) -> Any:
    return encode_batches(
        records,
        key_format=RecordFormat.JSON,
        value_format=RecordFormat.JSON,
        base_offset=3,
        leader_epoch=1,
        append_timestamp=1,
        durable_end=0,
        batch_bytes_max=limit,
    )


def test_a_record_over_the_limit_is_found_alone() -> None:
    records = decode_records(b'{"records":[{"value":1},{"value":"' + b"x" * 100 + b'"},{"key":2}]}')
    assert [record_size(record) for record in records] == [5, 106, 5]
    assert oversized(records, 105) == [1]
    assert oversized(records, 106) == []


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (b"1", "Bad Request: data=1 is not a base64 string."),
        (b'"a"', "Bad Request: data=a is not a base64 string."),
        (b'"YQ="', "Bad Request: data=YQ= is not a base64 string."),
        (b'"YQ==\\n"', "is not a base64 string"),
        (b'"Y-_="', "is not a base64 string"),
        (b'"YQ==YQ=="', "is not a base64 string"),
        (b'{"a":1}', "is not a base64 string"),
    ],
)
def test_binary_values_must_be_base64(value: bytes, message: str) -> None:
    records = decode_records(b'{"records":[{"value":' + value + b"}]}")
    with pytest.raises(KafkaError, match="base64") as error:
        check_formats(records, RecordFormat.BINARY, RecordFormat.BINARY)
    assert message in error.value.message


def test_base64_is_stored_in_one_form() -> None:
    records = decode_records(b'{"records":[{"value":"\\/\\/8=","key":"YQ=="},{"value":null}]}')
    check_formats(records, RecordFormat.BINARY, RecordFormat.BINARY)
    assert [bytes(record.value) for record in records] == [b'"//8="', b"null"]
    assert [key_view(record, RecordFormat.BINARY) for record in records] == [b"a", None]


@pytest.mark.usefixtures("both")
@pytest.mark.parametrize("name", ["partition", "timestamp"])
@pytest.mark.parametrize("value", ["-1", "1.0", "true", '"1"'])
def test_numbers_of_a_record_are_integers_from_0_on(name: str, value: str) -> None:
    body = f'{{"records":[{{"value":1}},{{"value":1,"{name}":{value}}}]}}'
    with pytest.raises(KafkaError) as refused:
        decode_records(body.encode())
    assert f"`$.records[1].{name}`" in refused.value.message


def test_string_values_must_be_strings() -> None:
    records = decode_records(b'{"records":[{"value":1}]}')
    with pytest.raises(KafkaError, match="expected a JSON string or null, got 1 - at"):
        check_formats(records, RecordFormat.JSON, RecordFormat.STRING)


def test_a_line_break_handed_in_from_elsewhere_is_a_bug() -> None:
    records = [ProduceRecord(value=make_raw(b"[1,\n2]"))]
    with pytest.raises(AssertionError, match="R12"):
        encode_all(records, 100)


RARE = (b"", b',"partition":0', b',"timestamp":5', b',"headers":[]', b',"headers":null')


@pytest.mark.parametrize("rare", RARE)
def test_rule_r12_no_value_is_changed_whichever_way_its_record_is_read(rare: bytes) -> None:
    """20-digit integers, duplicate keys, spaces; line breaks become spaces, outside strings."""
    value = b'{"n":12345678901234567890123,"n":1.0,\r\n "s":"\\n\\u0041"}'
    body = b'{"records":[{"key" : 1,\n"value":' + value + rare + b"}, {} ]}"
    records = decode_records(body)
    assert records[0].is_bare == (HAS_MSGSPEC and not rare)
    batches = encode_all(records, 1000)
    lines = b"".join(batch.raw[HEADER_SIZE:] for batch in batches)
    first, second, rest = lines.split(b"\n")
    assert first.endswith(b'"value":' + value.replace(b"\r\n", b"  ") + b"}")
    assert second.endswith(b'"key":null,"value":null}')
    assert rest == b""


@pytest.mark.parametrize(
    "field",
    [
        b'"offset":1', b'"offset":null', b'"\\u006fffset":7', b'"other":1',
        b'"timestamp":"x"', b'"partition":-1', b'"headers":1', b'"partition":1.5',
    ],
)  # fmt: skip
def test_an_invalid_record_is_refused_though_it_is_read_as_a_bare_one_first(
    field: bytes,
) -> None:
    with pytest.raises(UnprocessableRecordsError, match=r"at `\$\.records\[1\]"):
        decode_records(b'{"records":[{"value":1},{"value":1,' + field + b"}]}")


def test_values_are_json_again_for_orjson() -> None:
    line = stored(b'{"records":[{"key":"k","value":[1,{"a":null}]}]}')
    assert orjson.loads(line) == {"offset": 7, "key": "k", "value": [1, {"a": None}]}
