"""Nothing may be appended that can't be replicated: a stream would end there, again and again."""

from __future__ import annotations

import sys

import pytest

from broker.record.batch import RecordFormat
from broker.record.lines import BATCH_LINES_MAX, decode_records, encode_batches
from broker.replication import frames
from broker.replication.follower_stream import MAX_PUSH_FRAME_BYTES
from raft_metadata.common.configs.rows import NumberConfig
from raft_metadata.common.configs.table import CONFIGS, MAX_MESSAGE_BYTES
from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome

HEADERS = 1_024


def encoded(body: bytes, most: int) -> list[int]:
    batches = encode_batches(
        decode_records(body),
        key_format=RecordFormat.JSON,
        value_format=RecordFormat.JSON,
        base_offset=10**15,
        leader_epoch=1,
        append_timestamp=1,
        durable_end=0,
        producer_id=7,
        producer_epoch=0,
        base_sequence=0,
        batch_bytes_max=most,
    )
    return [len(batch.raw) for batch in batches]


def limit_of(name: str) -> int:
    row = CONFIGS[name]
    assert isinstance(row, NumberConfig)
    return row.maximum


def test_rule_r9_the_largest_record_a_topic_may_take_fits_a_push() -> None:
    value = b"x" * (limit_of(MAX_MESSAGE_BYTES) - len(b'null""'))
    [size] = encoded(b'{"records":[{"value":"' + value + b'"}]}', sys.maxsize)
    assert size + frames.PUSH_HEAD_BYTES <= MAX_PUSH_FRAME_BYTES
    assert BATCH_LINES_MAX + HEADERS <= MAX_PUSH_FRAME_BYTES
    assert limit_of("replication.push.bytes") + HEADERS <= MAX_PUSH_FRAME_BYTES


def test_rule_r9_a_sequence_that_is_no_push_is_refused_before_it_is_written() -> None:
    """A body with a producer id is one batch, and max.body.bytes may be a gigabyte."""
    record = b'{"value":"' + b"x" * (1 << 20) + b'"}'
    body = b'{"records":[' + b",".join([record] * 66) + b"]}"
    with pytest.raises(KafkaError) as refused:
        encoded(body, sys.maxsize)
    assert refused.value.code is ErrorCode.MESSAGE_TOO_LARGE
    assert refused.value.outcome is Outcome.NOT_WRITTEN
