"""A stage's knowledge of its chunks: repeats, refs of commits, limits (rules S9, R12)."""

from __future__ import annotations

from dataclasses import replace

import orjson
import pytest

from broker.transactions import stage_messages
from broker.transactions.chunk_records import (
    PROBE_KEY,
    ChunkKey,
    decode_head,
    encode_chunk,
    position_numbers,
    rows_in,
    stage_partition_of,
)
from broker.transactions.messages import (
    AttemptNamed,
    ProducerPosition,
    StagedAttempt,
    TransactionalId,
)
from broker.transactions.stage_index import StageIndex, StageLimits
from broker.transactions.stage_messages import FindRefs, ReadStaged, StageChunk, Word
from raft_metadata.common.errors import CorruptionError, ErrorCode, KafkaError
from raft_metadata.common.ids import GroupId, PartitionId
from tests.support.stage_world import StageLog, chunk, home_of, place_at, rows_for

LIMITS = StageLimits(
    transaction_bytes=1_000, transaction_chunks=4, transaction_partitions=3, staged_bytes=1 << 20
)
A = TransactionalId(GroupId(""), "a")


def staged(*sequences: int, rows: int = 1, targets: int = 1) -> tuple[StageLog, StageIndex]:
    """Chunks of attempt 1.0 of id a, all committed."""
    log, index = StageLog(), StageIndex(home_of)
    for sequence in sequences:
        new = chunk("a", sequence, rows=rows, targets=targets)
        index.append(new, log.append(new, 5), 5)
    log.high_watermark = log.end
    return log, index


def named(index: StageIndex, chunks: int, rows: int, high_watermark: int = 100) -> list[int] | str:
    """The offsets that a commit of attempt 1.0 may name, or what is missing."""
    found = index.refs(A, (1, 0), AttemptNamed("1.0", chunks, rows), high_watermark)
    return [ref.at.offset for ref in found.refs] if found.missing is None else found.missing


def refusal(index: StageIndex, key: ChunkKey, digest: str = "d") -> KafkaError:
    with pytest.raises(KafkaError) as caught:
        index.find(key, digest)
    return caught.value


def test_rule_s9_a_commit_names_exactly_the_chunks_and_rows_that_are_staged() -> None:
    _, index = staged(1, 0, rows=3, targets=2)
    assert named(index, 2, 12) == [2, 3, 0, 1]  # in the order of sequences, of targets within
    assert named(index, 2, 11) == (
        "attempt 1.0: 2 of 2 chunks are staged, with 12 rows, the commit names 11"
    )
    assert "2 of 3 chunks" in named(index, 3, 12)
    assert "0 of 1 chunks" in str(index.refs(A, (1, 0), AttemptNamed("b", 1, 3), 100).missing)


def test_rule_s9_a_gap_in_the_sequences_is_not_filled_by_a_later_chunk() -> None:
    _, index = staged(0, 1, 3)
    assert "2 of 3 chunks" in named(index, 3, 3)
    assert named(index, 2, 2) == [0, 1]  # what an older life of the attempt sent is not taken


def test_rule_s9_only_committed_chunks_are_named() -> None:
    _, index = staged(0, 1, targets=2)
    assert "1 of 2 chunks" in named(index, 2, 4, high_watermark=3)  # half of the second
    assert named(index, 2, 4, high_watermark=4) == [0, 1, 2, 3]


def test_rule_s9_a_new_leader_knows_what_the_log_holds() -> None:
    log, _ = staged(0, 1, targets=2)
    index = log.load()
    assert named(index, 2, 4) == [0, 1, 2, 3]
    assert index.find(chunk("a", 1, targets=2).key, "d") is not None


def test_rule_s9_a_chunk_is_staged_once_and_has_one_content() -> None:
    _, index = staged(0)
    key = chunk("a", 0).key
    found = index.find(key, "d")
    assert found is not None
    assert (found.base, found.layout) == (0, 1)
    assert index.find(key._replace(sequence=1), "d") is None
    assert refusal(index, key, "other").code is ErrorCode.TRANSACTION_CONFLICT
    error = refusal(index, key._replace(number=7))
    assert error.code is ErrorCode.TRANSACTION_CONFLICT
    assert "belongs to epoch 1 number 0" in error.message


def test_rule_s9_an_attempt_of_another_position_is_not_named() -> None:
    _, index = staged(0)
    assert index.refs(A, (1, 1), AttemptNamed("1.0", 1, 1), 100).missing is not None
    other = A._replace(group=GroupId("g"))
    assert index.refs(other, (1, 0), AttemptNamed("1.0", 1, 1), 100).missing is not None


def test_what_a_home_let_go_is_not_named_and_can_be_staged_anew() -> None:
    log, index = staged(0)
    index.release(0)
    assert "0 of 1 chunks" in named(index, 1, 1)
    again = chunk("a", 0)
    assert index.find(again.key, "d") is None
    assert refusal(index, again.key, "other").code is ErrorCode.TRANSACTION_CONFLICT
    index.append(again, log.append(again, 9), 9)
    assert named(index, 1, 1) == [1]


@pytest.mark.parametrize(
    ("new", "limit"),
    [
        (chunk("a", 4), "transaction.max.chunks is 4"),
        (chunk("a", 1, rows=100), "transaction.max.bytes is 1000"),
        (chunk("a", 1, targets=4), "transaction.max.partitions is 3"),
    ],
)
def test_a_limit_of_the_transaction_is_named(new: object, limit: str) -> None:
    _, index = staged(0)
    with pytest.raises(KafkaError) as caught:
        index.check_room(new, LIMITS)  # type: ignore[arg-type]
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE
    assert limit in caught.value.message


def test_limits_count_all_chunks_of_an_attempt_but_no_other_attempt() -> None:
    _, index = staged(0, rows=20)
    index.check_room(chunk("b", 0, rows=20), LIMITS)
    index.check_room(chunk("a", 1, rows=5), LIMITS)
    with pytest.raises(KafkaError, match=r"transaction\.max\.bytes"):
        index.check_room(chunk("a", 1, rows=20), LIMITS)


def test_a_full_stage_is_a_quota_and_a_trimmed_one_takes_more() -> None:
    log, index = staged(0, 1)
    full = replace(LIMITS, staged_bytes=index.stored_bytes + 1)
    with pytest.raises(KafkaError) as caught:
        index.check_room(chunk("b"), full)
    assert caught.value.code is ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert "transaction.staged.max.bytes" in caught.value.message
    index.release(0)
    index.trim(1)
    index.check_room(chunk("b"), full)
    assert log.start == 0  # an index follows its log, it does not move it


def test_many_places_are_forgotten_in_several_turns() -> None:
    _, index = staged(0, 1, 2)
    for base in range(3):
        index.release(base)
    assert index.trim(3, most=2) is True
    assert list(index.places) == [2]
    assert index.trim(3, most=2) is False
    assert (index.places, index.attempts, index.stored_bytes) == ({}, {}, 0)


def test_rule_r12_staged_rows_are_the_clients_text() -> None:
    texts = [b'{"a": 1.0000000000000000001}', b'"\\u00e9\xc3\xa9 \\"records\\":["', b"1e400"]
    new = replace(chunk('q"records":['), targets=(rows_for(0, texts), rows_for(1, texts[:1])))
    log = StageLog()
    log.append(new, 5)
    lines = [line for line, *_ in log.lines]
    assert [rows_in(line) for line in lines] == list(new.targets)
    assert [orjson.loads(line[: line.find(b',"value"')] + b"}")["offset"] for line in lines] == [
        0,
        1,
    ]
    (index,) = [log.load()]
    assert index.places[0].chunk.size_bytes == new.size_bytes


def test_a_probe_is_no_chunk_and_anything_else_is_damage() -> None:
    assert decode_head(b'{"offset":4,"key":%b,"value":null}' % PROBE_KEY) is None
    for line in (
        b'{"offset":4,"key":["chunk","","a",1,0,"x",0,0,1],"value":null}',
        b'{"offset":4,"key":["other",""],"value":{"records":[]}}',
        b'{"offset":4,"key":["chunk"],"value":{"rows":1,"records":[]}}',
        b'{"offset":4',
    ):
        with pytest.raises(CorruptionError):
            decode_head(line)


def test_the_stage_of_an_attempt_is_its_checksum() -> None:
    assert stage_partition_of(TransactionalId(GroupId("g"), "a"), "1.0") == 0
    assert stage_partition_of(A, "1.0") == 6
    assert {stage_partition_of(A, str(n)) for n in range(200)} == set(range(12))
    assert position_numbers(ProducerPosition(3, 7)) == (3, 7)
    assert (position_numbers(9), position_numbers(None)) == ((0, 9), (0, 0))


def test_requests_between_brokers_come_back_as_they_were() -> None:
    new = chunk("a", 3, rows=2, targets=2)
    request = StageChunk(partition=PartitionId(2), chunk=new, timeout_ms=5)
    body = stage_messages.encode_stage(request)
    head = orjson.loads(orjson.dumps(body.head))
    assert stage_messages.decode_stage(head, body.payload) == request
    with pytest.raises(ValueError, match="payload"):
        stage_messages.decode_stage(head, body.payload[:-1])
    find = FindRefs(
        partition=PartitionId(1), id=A, epoch=1, number=0, attempts=(AttemptNamed("1.0", 1, 4),)
    )
    head = orjson.loads(orjson.dumps(stage_messages.encode_find_refs(find).head))
    assert stage_messages.decode_find_refs(head) == find
    _, index = staged(0, targets=2)
    found = tuple(index.refs(A, (1, 0), AttemptNamed("1.0", chunks, 2), 100) for chunks in (1, 2))
    head = orjson.loads(orjson.dumps(stage_messages.encode_refs(found).head))
    assert stage_messages.decode_refs(head) == found
    read = ReadStaged(partition=PartitionId(1), places=(place_at(4), place_at(5, epoch=3)))
    head = orjson.loads(orjson.dumps(stage_messages.encode_read_staged(read).head))
    assert stage_messages.decode_read_staged(head) == read
    attempts = list(index.descriptions(25))
    assert attempts == [
        (
            A,
            StagedAttempt(
                attempt_id="1.0", chunks=1, rows=2, bytes=56, age_ms=20, number=0, epoch=1
            ),
        )
    ]
    head = orjson.loads(orjson.dumps(stage_messages.encode_attempts(attempts).head))
    assert stage_messages.decode_attempts(head) == attempts
    head = orjson.loads(orjson.dumps(stage_messages.encode_word(Word.GONE).head))
    assert stage_messages.decode_word(head) is Word.GONE


def test_every_record_of_a_chunk_says_what_it_is() -> None:
    keys = [orjson.loads(key) for key, _ in encode_chunk(chunk("a", 3, targets=2))]
    assert keys == [
        ["chunk", "", "a", 1, 0, "1.0", 3, 0, 2],
        ["chunk", "", "a", 1, 0, "1.0", 3, 1, 2],
    ]
