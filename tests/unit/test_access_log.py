"""The file of the access log: its lines, its end, its limits, and what a full disk costs."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.config import AccessLogConfig
from http_api.server import access_log
from http_api.server.access_log import (
    HIDDEN,
    TEXT_CHARS_MAX,
    AccessLog,
    LogEntry,
    RolledFile,
    error_code_in,
    line_of,
    shown_query,
)
from raft_metadata.common.clock import SystemClock

FIELDS = [
    "time", "request_id", "host", "method", "path", "query", "status", "error_code", "bytes_in",
    "bytes_out", "ms", "forwarded_to", "client_id", "lane", "principal", "auth", "tls", "held_ms",
]  # fmt: skip
ENTRY = LogEntry(
    wall_ms=1_700_000_000_123,
    request_id="a-1",
    host="127.0.0.1",
    method="GET",
    path="/topics",
    query=None,
    status=200,
    error_code=None,
    bytes_in=0,
    bytes_out=7,
    duration_ms=1.26,
    forwarded_to={3, 2},
    client_id=None,
    lane="routes",
)


def test_a_line_has_exactly_these_fields() -> None:
    found = json.loads(line_of(ENTRY))
    assert list(found) == FIELDS
    assert found["time"] == "2023-11-14T22:13:20.123Z"
    assert (found["ms"], found["forwarded_to"]) == (1.3, [2, 3])
    assert json.loads(line_of(ENTRY._replace(forwarded_to=())))["forwarded_to"] is None


@given(st.text(), st.text(st.characters(codec=None), max_size=50))
def test_whatever_a_client_sends_a_line_is_one_line_of_plain_characters(
    path: str, query: str
) -> None:
    line = line_of(ENTRY._replace(path=path, query=query))
    assert line.endswith("\n")
    assert line[:-1].isprintable()
    assert line.isascii()
    assert json.loads(line)["path"] == path


@pytest.mark.parametrize("text", ["\x00\r\n\t\x1b[31m", "\x7f\x85\u2028", "\udcff"])
def test_control_characters_are_escaped(text: str) -> None:
    line = line_of(ENTRY._replace(path=text, host=text, method=text, request_id=text))
    assert line[:-1].isprintable()
    assert json.loads(line)["path"] == text


def test_long_texts_are_cut() -> None:
    line = line_of(ENTRY._replace(path="/" * 100_000, query="a" * 100_000))
    assert len(line) < 3 * TEXT_CHARS_MAX


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("", None),
        ("offset=0&timeout=5", "offset=0&timeout=5"),
        ("offset=0&access_token=secret", f"offset=0&access_token={HIDDEN}"),
        ("%6Fffset=secret", f"%6Fffset={HIDDEN}"),
        ("secret", HIDDEN),
        ("_=secret&offset=a=b", f"_={HIDDEN}&offset=a=b"),
    ],
)
def test_values_of_undeclared_parameters_are_not_shown(raw: str, shown: str | None) -> None:
    assert shown_query(raw, {"offset", "timeout"}) == shown


def test_the_code_of_an_answer_is_that_of_its_first_error() -> None:
    assert error_code_in(404, b'{"error_code":40401,"message":"x"}') == 40401
    rows = b'{"offsets":[{"partition":null,"offset":null,"error_code":50003,"error":"x"}]}'
    assert error_code_in(503, rows) == 50003
    assert error_code_in(200, rows) is None
    assert error_code_in(400, b"") is None


def test_a_full_file_is_renamed_and_the_oldest_goes(tmp_path: Path) -> None:
    file = RolledFile(tmp_path / "access.ndjson", 100, 2)
    for number in range(10):
        file.append(b"%d" % number + b"x" * 48 + b"\n")
    file.close()
    found = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert sorted(found) == ["access.ndjson", "access.ndjson.1", "access.ndjson.2"]
    assert [found[name][:1] for name in sorted(found)] == [b"8", b"6", b"4"]
    assert all(len(text) == 100 for text in found.values())
    again = RolledFile(tmp_path / "access.ndjson", 100, 2)
    again.append(b"new\n")
    again.close()
    assert (tmp_path / "access.ndjson").read_bytes() == b"new\n", "the size is known at a start"


def test_a_line_longer_than_the_file_may_be_is_written_whole(tmp_path: Path) -> None:
    file = RolledFile(tmp_path / "log", 10, 1)
    file.append(b"x" * 50)
    file.append(b"y" * 50)
    file.close()
    assert (tmp_path / "log").read_bytes() == b"y" * 50


def logging_to(path: Path) -> AccessLog:
    return AccessLog(AccessLogConfig(file=path, mode="all"), SystemClock())


def test_a_queue_that_is_full_drops_and_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(access_log, "ENTRIES_MAX", 10)
    log = logging_to(tmp_path / "log")
    for _ in range(25):
        log.add(ENTRY)
    assert log.dropped == 15
    with caplog.at_level(logging.WARNING):
        log.start()
        log.stop()
    assert len((tmp_path / "log").read_bytes().splitlines()) == 10
    assert [record.getMessage() for record in caplog.records] == [
        "access log lines not written count=15 dropped=15 lost=0 error=None"
    ]


def test_a_disk_that_refuses_ends_nothing_and_is_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "gone"
    log = logging_to(folder / "log")
    with caplog.at_level(logging.WARNING):
        log.add(ENTRY)
        log.start()
        log.stop()
        assert log.lost == 1
        folder.mkdir()
        log.add(ENTRY)
        log.start()
        log.stop()
    assert len((folder / "log").read_bytes().splitlines()) == 1
    assert "lost=1" in caplog.text
    assert "No such file" in caplog.text


@pytest.mark.parametrize(
    ("mode", "status", "duration_ms", "asked_ms", "is_wanted"),
    [
        ("errors", 200, 999, 0, False),
        ("errors", 200, 1_001, 0, True),
        ("errors", 200, 30_500, 30_000, False),
        ("errors", 200, 31_001, 30_000, True),
        ("errors", 204, 1, 0, False),
        ("errors", 399, 1, 0, False),
        ("errors", 400, 1, 0, True),
        ("errors", 503, 1, 60_000, True),
        ("all", 200, 0, 0, True),
    ],
)
def test_errors_are_failed_or_took_longer_than_they_asked_to_wait(
    tmp_path: Path, mode: str, status: int, duration_ms: float, asked_ms: int, is_wanted: bool
) -> None:
    log = AccessLog(AccessLogConfig(file=tmp_path / "log", mode=mode), SystemClock())
    assert log.wants(status, duration_ms, asked_ms) is is_wanted
