"""`quorumlog log dump` shows records of transactions in words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from broker.record.batch import RecordFormat
from broker.record.lines import ProduceRecord, make_raw
from broker.record.numbering import HomeKind, make_numbering
from broker.transactions.chunk_records import PROBE_KEY, encode_chunk
from broker.transactions.record_words import words_of
from http_api.cli.main import cli
from raft_metadata.common.disk import Disk
from raft_metadata.common.ids import LeaderEpoch, PartitionId
from raft_metadata.common.internal_topics import OFFSETS_TOPIC, STAGED_TOPIC, TRANSACTIONS_TOPIC
from tests.support.home_turns import HomeTurns, play
from tests.support.logs import Life
from tests.support.stage_world import chunk

STORY = """
    init p               -> epoch 1
    commit p 1.0 A a2@6 b1
    complete p a=9 c
    commit n #4 A a1
    ask n #5 @11 aged
    forget q
    age 700000000
    complete n a=12
    forget n
"""
TOLD = [
    '"p" has epoch 1',
    (
        '"p" position 1.0 committing, rows 0..1 for id-a:0 staged at __staged-4 offset 6 of '
        "epoch 1, rows 0..0 for id-b:0 in this record"
    ),
    "rows that __transaction_state-0 decides for id-a:0: the next row is 2",
    "rows that __transaction_state-0 decides for id-b:0: the next row is 1",
    '"p" position 1.0 complete, 1 rows in id-a:0 from offset 9, id-c:0 was deleted',
    '"n" position 0.4 committing by run r1, rows 2..2 for id-a:0 in this record',
    "rows that __transaction_state-0 decides for id-a:0: the next row is 3",
    "nothing below offset 12 of epoch 1 of __staged-4 will be decided",
    "ids with epochs up to 1 may be forgotten",
    '"p": its epoch is forgotten',
    '"p": its last position is forgotten',
    '"n" position 0.4 complete by run r1, 1 rows in id-a:0 from offset 12',
    '"n": its last position is forgotten',
]
NUMBERING = make_numbering(HomeKind.TRANSACTIONS, PartitionId(0), LeaderEpoch(-1))


def written(data_dir: Path, topic: str, batches: list[list[tuple[bytes, bytes]]]) -> Path:
    """Write batches of keys and values as a broker does; the folder of the partition."""
    life = Life(Disk(), data_dir=str(data_dir))
    log = life.log()
    for batch in batches:
        log.append_as_leader(
            [ProduceRecord(key=make_raw(key), value=make_raw(value)) for key, value in batch],
            key_format=RecordFormat.JSON,
            value_format=RecordFormat.JSON,
            leader_epoch=1,
            now_ms=1,
        )
    life.flush()
    folder = Path(log.directory)
    life.close()
    return folder.rename(folder.parent / f"{topic}-0")


def dump(folder: Path, *options: str) -> list[str]:
    arguments = ["log", "dump", str(folder), "--records", *options]
    shown = CliRunner().invoke(cli, arguments, standalone_mode=False).stdout.splitlines()
    return [line for line in shown if line.startswith(("  ", "{"))]


def records_of_a_story() -> list[list[tuple[bytes, bytes]]]:
    turns = HomeTurns(numbering=NUMBERING)
    play(STORY, turns)
    return turns.log


@pytest.mark.parametrize("topic", [TRANSACTIONS_TOPIC, OFFSETS_TOPIC])
def test_facts_of_a_home_are_shown_in_words(tmp_path: Path, topic: str) -> None:
    folder = written(tmp_path, topic, records_of_a_story())
    assert dump(folder) == [f"  offset {at}: {text}" for at, text in enumerate(TOLD)]


def test_groups_facts_and_what_is_unknown_are_shown_as_they_are_stored(tmp_path: Path) -> None:
    stored = [(b'["offset","g","orders",0]', b'{"offset":7}'), (b'["txn",1,2,3]', b'{"a":0}')]
    (group, unknown) = dump(written(tmp_path, OFFSETS_TOPIC, [stored]))
    assert '"key":["offset","g","orders",0],"value":{"offset":7}' in group
    assert '"key":["txn",1,2,3]' in unknown


def test_chunks_are_shown_in_words_and_in_json_beside_their_rows(tmp_path: Path) -> None:
    new = chunk("p", 3, number=7, targets=2, rows=2)
    batches = [encode_chunk(new), encode_chunk(chunk("p", since_ms=5)), [(PROBE_KEY, b"null")]]
    folder = written(tmp_path, STAGED_TOPIC, batches)
    size, less = (len(one.targets[0].records) for one in (new, chunk("p")))
    topic_id = new.targets[0].topic_id
    told = [
        f'chunk 3 of attempt 1.7 of "p" position 1.7, record {part} of 2: 2 rows ({size} bytes) '
        f"for {topic_id}:{part - 1}"
        for part in (1, 2)
    ]
    told += [
        (
            f'chunk 0 of attempt 1.0 of "p" position 1.0: 1 rows ({less} bytes) for {topic_id}:0, '
            "moved here"
        ),
        "probe: its leader proved that it leads",
    ]
    assert dump(folder) == [f"  offset {at}: {text}" for at, text in enumerate(told)]
    first = json.loads(dump(folder, "--format", "json")[0])
    assert first["words"] == told[:2]
    assert first["records"][0]["value"]["records"] == json.loads(new.targets[0].records)


def test_records_of_clients_are_never_words() -> None:
    line = b'{"offset":0,"key":["txn","a"],"value":null}'
    assert words_of("orders", line) is None
    assert words_of(TRANSACTIONS_TOPIC, line) == '"a": its last position is forgotten'
