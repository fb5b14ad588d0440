"""A task reads its range to the end, waits for what is late, and says what is lost."""

from __future__ import annotations

from typing import Any

import pytest

from http_api.client.calls import Answer, Call
from http_api.client.client_errors import ApiError
from spark_source.decoding import Source, epoch_before
from spark_source.errors import DataLossError, NotServedError
from spark_source.offsets import Range
from spark_source.options import Connection
from spark_source.task_reader import RangeReader, ReadSettings

RETRY_S = 5.0


class FakeLog:
    """A partition that holds offsets ``start`` to ``end`` and answers ``step`` records a page."""

    def __init__(self, start: int, end: int, step: int = 4, topic_id: str = "id") -> None:
        self.start, self.end, self.step, self.topic_id = start, end, step, topic_id
        self.epochs = [(1, 0)]
        """(epoch, first offset) of what is held."""
        self.replace_at: tuple[int, int, list[tuple[int, int]]] | None = None
        """(offset, end, epochs): what the log is once this offset is asked for."""
        self.asked: list[dict[str, str]] = []
        self.silent = 0
        """Pages that come back empty first: the high watermark is behind."""
        self.now_s = 0.0

    def run(self, call: Call[Any]) -> Any:
        self.now_s += 1
        path, _, query = call.request.path.partition("?")
        if path.endswith("/offsets"):
            body = b'{"beginning_offset":%d,"end_offset":%d}' % (self.start, self.end)
            return call.parse(Answer(status=200, body=body))
        asked = dict(pair.split("=") for pair in query.split("&"))
        self.asked.append(asked)
        offset = int(asked["offset"])
        if self.replace_at is not None and offset >= self.replace_at[0]:
            _, self.end, self.epochs = self.replace_at
            self.replace_at = None
        if asked["topic_id"] != self.topic_id:
            text = f"topic t has the id {self.topic_id}, not {asked['topic_id']}: created anew"
            raise ApiError(409, 40951, text, {})
        if "leader_epoch" in asked:
            self.check(offset, int(asked["leader_epoch"]))
        if not self.start <= offset <= self.end:
            raise ApiError(400, 40002, "offset out of range", {})
        last = min(offset + self.step, self.end)
        if self.silent:
            self.silent -= 1
            last = offset
        return call.parse(self.page(offset, last))

    def epoch_before(self, offset: int) -> int:
        return [epoch for epoch, start in self.epochs if start < offset][-1]

    def check(self, offset: int, epoch: int) -> None:
        """Refuse a position of another log, as a broker does (KIP-320)."""
        if offset <= self.start or (offset <= self.end and self.epoch_before(offset) == epoch):
            return
        ends = [*[start for _, start in self.epochs[1:]], self.end]
        known = [(e, end) for (e, _), end in zip(self.epochs, ends, strict=True) if e <= epoch]
        end = known[-1][1] if known else self.start
        if end < offset:
            why, diverging = f"the log was truncated: that epoch ends here at offset {end}", end
        else:
            held = self.epoch_before(offset)
            diverging = next(start for e, start in self.epochs if e == held)
            why = "the log diverged: another record stands before that offset"
        error = ApiError(409, 40950, why, {})
        error.diverging_offset = diverging
        raise error

    def page(self, first: int, last: int) -> Answer:
        body = b""
        starts = sorted({first, *(start for _, start in self.epochs if first < start < last)})
        for begin, end in zip(starts, [*starts[1:], last], strict=True):
            body += (
                b'{"batch":{"offset":%d,"next_offset":%d,"count":%d,"timestamp":1,"key_format":'
                b'"json","value_format":"json","leader_epoch":%d}}\n'
            ) % (begin, end, end - begin, self.epoch_before(begin + 1))
            lines = [b'{"offset":%d,"key":null,"value":%d}\n' % (n, n) for n in range(begin, end)]
            body += b"".join(lines)
        names = (
            "next-offset", "high-watermark", "log-start-offset", "topic-id", "next-leader-epoch"
        )  # fmt: skip
        values = (last, self.end, self.start, self.topic_id, self.epoch_before(last) if last else 0)
        headers = {f"quorumlog-{name}": str(v) for name, v in zip(names, values, strict=True)}
        return Answer(status=200, headers=headers, body=body if last > first else b"")


def read(
    log: FakeLog,
    start: int,
    end: int,
    *,
    fail: bool = True,
    from_earliest: bool = False,
    epochs: tuple[int | None, int | None] = (None, None),
) -> list[int]:
    wanted = Range(
        topic="t", topic_id="id", partition=0, start=start, end=end, from_earliest=from_earliest,
        start_epoch=epochs[0], end_epoch=epochs[1],
    )  # fmt: skip
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
    with pytest.raises(DataLossError, match=r"offsets 0 to 9 .* has the id other, not id"):
        read(FakeLog(0, 20, topic_id="other"), 0, 10)
    assert read(FakeLog(0, 20, topic_id="other"), 0, 10, fail=False) == []


def test_both_ends_of_a_range_carry_id_and_epoch_into_the_fetches() -> None:
    log = FakeLog(0, 100)
    log.epochs = [(2, 0), (3, 9)]
    assert read(log, 5, 13, epochs=(2, 3)) == list(range(5, 13))
    assert {one["topic_id"] for one in log.asked} == {"id"}
    assert [one.get("leader_epoch") for one in log.asked] == ["2", "2", "3"][: len(log.asked)]


def test_a_log_that_was_cut_under_a_task_is_loss_with_range_and_cause() -> None:
    log = FakeLog(0, 120)
    log.epochs = [(2, 0), (5, 80)]
    with pytest.raises(
        DataLossError,
        match=r"partition 0 of topic t: offsets 80 to 99, which .* truncated.*failOnDataLoss=false",
    ):
        read(log, 100, 110, epochs=(2, 2))
    assert read(log, 100, 110, fail=False, epochs=(2, 2)) == list(range(100, 110))


def test_a_log_that_was_cut_between_two_pages_is_read_again_from_there() -> None:
    def cut() -> FakeLog:
        log = FakeLog(0, 40)
        log.replace_at = (22, 30, [(1, 0), (7, 14)])
        return log

    with pytest.raises(DataLossError, match=r"offsets 14 to 21, which .* truncated"):
        read(cut(), 10, 40, epochs=(1, 1))
    found = read(cut(), 10, 40, fail=False, epochs=(1, 1))
    assert found == [*range(10, 22), *range(14, 30)], "up to its end: it may never reach 40 again"


def test_a_stale_replicas_log_in_the_place_is_loss_or_read_where_it_is() -> None:
    log = FakeLog(0, 120)
    log.epochs = [(2, 0)]
    with pytest.raises(DataLossError, match="diverged"):
        read(log, 100, 110, epochs=(3, 3))
    assert read(log, 100, 110, fail=False, epochs=(3, 3)) == list(range(100, 110))


def test_a_range_whose_end_is_of_another_log_is_loss() -> None:
    """The start is the one that was planned, so no fetch of the range is refused."""
    log = FakeLog(0, 130, step=50)
    log.epochs = [(3, 0), (5, 105)]
    with pytest.raises(DataLossError, match="offsets 105 to 119 of the planned range 100 to 119"):
        read(log, 100, 120, epochs=(3, 3))
    assert read(log, 100, 120, fail=False, epochs=(3, 3)) == list(range(100, 120))
    log.step = 20
    with pytest.raises(DataLossError, match="offsets 105 to 119"):
        read(log, 100, 120, epochs=(3, 3))
    assert read(log, 100, 120, epochs=(3, 5)) == list(range(100, 120))


def test_the_epoch_before_an_offset_is_that_of_the_last_batch_below_it() -> None:
    log = FakeLog(0, 100, step=100)
    log.epochs = [(2, 0), (4, 10), (9, 20)]
    body = log.page(5, 30).body
    found = {at: epoch_before(body, at) for at in (5, 6, 10, 11, 20, 21, 30, 99)}
    assert found == {5: None, 6: 2, 10: 2, 11: 4, 20: 4, 21: 9, 30: 9, 99: 9}
    assert epoch_before(b"", 5) is None
