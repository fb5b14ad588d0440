"""A task reads its range to the end, waits for what is late, and says what is lost."""

from __future__ import annotations

from typing import Any

import pytest

from http_api.client.calls import Answer, ApiError, Call
from spark_source.decoding import Source
from spark_source.errors import DataLossError, NotServedError
from spark_source.offsets import Range
from spark_source.options import Connection
from spark_source.task_reader import RangeReader, ReadSettings

RETRY_S = 5.0


class FakeLog:
    """A partition that holds offsets ``start`` to ``end`` and answers ``step`` records a page."""

    def __init__(self, start: int, end: int, step: int = 4, topic_id: str = "id") -> None:
        self.start, self.end, self.step, self.topic_id = start, end, step, topic_id
        self.silent = 0
        """Pages that come back empty first: the high watermark is behind."""
        self.now_s = 0.0

    def run(self, call: Call[Any]) -> Any:
        self.now_s += 1
        path, _, query = call.request.path.partition("?")
        if path.endswith("/offsets"):
            body = b'{"beginning_offset":%d,"end_offset":%d}' % (self.start, self.end)
            return call.parse(Answer(status=200, body=body))
        offset = int(dict(pair.split("=") for pair in query.split("&"))["offset"])
        if not self.start <= offset <= self.end:
            raise ApiError(400, 40002, "offset out of range", {})
        last = min(offset + self.step, self.end)
        if self.silent:
            self.silent -= 1
            last = offset
        return call.parse(self.page(offset, last))

    def page(self, first: int, last: int) -> Answer:
        head = b'{"batch":{"offset":%d,"next_offset":%d,"count":%d,"timestamp":1,' % (
            first,
            last,
            last - first,
        )
        lines = [b'{"offset":%d,"key":null,"value":%d}\n' % (n, n) for n in range(first, last)]
        body = head + b'"key_format":"json","value_format":"json"}}\n' + b"".join(lines)
        names = ("next-offset", "high-watermark", "log-start-offset", "topic-id")
        values = (last, self.end, self.start, self.topic_id)
        headers = {f"quorumlog-{name}": str(v) for name, v in zip(names, values, strict=True)}
        return Answer(status=200, headers=headers, body=body if last > first else b"")


def read(
    log: FakeLog, start: int, end: int, *, fail: bool = True, from_earliest: bool = False
) -> list[int]:
    wanted = Range(
        topic="t", topic_id="id", partition=0, start=start, end=end, from_earliest=from_earliest
    )
    settings = ReadSettings(
        connection=Connection(urls=("http://a:1",), retry_s=RETRY_S),
        columns=("offset",),
        typed=None,
        fail_on_data_loss=fail,
        fetch_bytes=1 << 20,
    )
    source = Source(topic="t", partition=0, timestamp_type=0, columns=("offset",))
    reader = RangeReader(log, wanted, source, settings, lambda: log.now_s)  # type: ignore[arg-type]
    return [row["offset"] for batch in reader.batches() for row in batch.to_pylist()]


def test_a_range_is_read_page_by_page_and_not_beyond() -> None:
    assert read(FakeLog(0, 100), 3, 17) == list(range(3, 17))


def test_a_high_watermark_that_is_behind_is_waited_for() -> None:
    log = FakeLog(0, 10)
    log.silent = 3
    assert read(log, 0, 10) == list(range(10))


def test_waiting_has_an_end_and_says_for_what() -> None:
    log = FakeLog(0, 5)
    with pytest.raises(NotServedError, match=r"partition 0 of topic t: offset 5 .* up to 9"):
        read(log, 0, 9)


def test_offsets_that_retention_removed_are_loss_unless_told_otherwise() -> None:
    with pytest.raises(DataLossError, match="offsets 2 to 4 can't be read: retention"):
        read(FakeLog(5, 20), 2, 8)
    assert read(FakeLog(5, 20), 2, 8, fail=False) == [5, 6, 7]
    assert read(FakeLog(50, 60), 2, 8, fail=False) == []


def test_records_never_read_before_may_be_gone() -> None:
    assert read(FakeLog(5, 20), 0, 8, from_earliest=True) == [5, 6, 7]


def test_a_log_that_ends_before_the_range_is_loss() -> None:
    with pytest.raises(DataLossError, match="offsets 30 to 39 can't be read: the log ends at 20"):
        read(FakeLog(0, 20), 30, 40)
    assert read(FakeLog(0, 20), 30, 40, fail=False) == []


def test_another_topic_of_the_same_name_is_not_read() -> None:
    with pytest.raises(DataLossError, match=r"created anew .*id was planned, other answers"):
        read(FakeLog(0, 20, topic_id="other"), 0, 10)
    assert read(FakeLog(0, 20, topic_id="other"), 0, 10, fail=False) == []
