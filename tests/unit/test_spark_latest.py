"""Answers of a stream to the news of a poll: ends, logs that were replaced, topics made anew.

The cluster is said, answer by answer; `tests/spark` has the real one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from http_api.client.polling import Polled, PolledPage, PollPosition, PollRefusal
from spark_source import offsets
from spark_source.cluster import Topic, UnknownTopicError
from spark_source.errors import DataLossError, NotServedError
from spark_source.latest import LatestOffsets, News
from spark_source.offsets import NextOffset, Position, TopicEnds, TopicOffsets
from spark_source.options import source_options
from spark_source.stream_reader import Driver

BEGIN = {"t": TopicOffsets("id", {0: NextOffset(100, 3), 1: NextOffset(5, 1)})}


@dataclass
class SaidCluster:
    """Answers each poll with the next of ``answers``, and the last one from then on."""

    answers: list[list[Polled]]
    there: dict[str, Topic] = field(default_factory=lambda: {"t": Topic("id", 2)})
    both_ends: tuple[int, NextOffset] = (0, NextOffset(9, 2))
    polls: list[tuple[list[PollPosition], int]] = field(default_factory=list)
    looks: int = 0
    urls: tuple[str, ...] = ("http://a:1",)
    latest: dict[int, NextOffset] = field(default_factory=dict)

    def ends(self, name: str) -> TopicEnds:
        return TopicEnds("id", {partition: (0, end) for partition, end in self.latest.items()})

    def topics(self, names: tuple[str, ...]) -> dict[str, Topic]:
        self.looks += 1
        return {name: self.there[name] for name in names if name in self.there}

    def partition_ends(self, name: str, partition: int) -> tuple[int, NextOffset]:
        return self.both_ends

    def news(self, positions: list[PollPosition], wait_ms: int) -> list[Polled]:
        self.polls.append((list(positions), wait_ms))
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


class Stream:
    """`LatestOffsets` over a said cluster, with a clock that stands, or runs while it sleeps."""

    def __init__(
        self, cluster: SaidCluster, *, fail: bool = True, clock_runs: bool = False
    ) -> None:
        given = {"url": "http://a:1", "subscribe": "t", "failOnDataLoss": str(fail).lower()}
        self.cluster = cluster
        self.now_s = 0.0
        self.slept: list[float] = []
        self.latest = LatestOffsets(
            cluster,  # type: ignore[arg-type] # what it uses of a cluster
            source_options(given, {}, streaming=True),
            lambda: self.now_s,
            self._run_clock if clock_runs else self.slept.append,
        )

    def _run_clock(self, wait_s: float) -> None:
        self.now_s += wait_s

    def news(self, begin: Position = BEGIN, wait_ms: int = 1_000) -> News:
        return self.latest.news(begin, wait_ms)

    def end(self, begin: Position = BEGIN) -> Position:
        news = self.news(begin)
        return news.end_of(self.latest.restarted(begin), self.latest.topics)


def page(partition: int, at: int, to: int, epoch: int | None = 3, **more: object) -> PolledPage:
    return PolledPage(
        topic="t", topic_id="id", partition=partition, offset=at, next_offset=to,
        next_leader_epoch=epoch, leader_epoch=9, leader_url=None, high_watermark=to,
        log_start_offset=0, records=0, body=b"", **more,  # type: ignore[arg-type]
    )  # fmt: skip


def refusal(
    code: int, partition: int = 0, *, message: str = "", retriable: bool = False, **more: int
) -> PollRefusal:
    return PollRefusal(
        topic="t", partition=partition, offset=BEGIN["t"].partitions[partition].offset,
        error_code=code, message=message, retriable=retriable, **more,
    )  # fmt: skip


TRUNCATED = refusal(
    40950, message="the log was truncated: it ends", diverging_offset=80, diverging_epoch=2
)
DIVERGED = refusal(40950, message="the log diverged", diverging_offset=60, diverging_epoch=2)


def test_one_poll_of_all_partitions_waits_and_tells_the_ends() -> None:
    stream = Stream(SaidCluster([[page(0, 100, 140, epochs=((3, 100), (4, 120)))]]))
    news = stream.news()
    [(positions, wait_ms)] = stream.cluster.polls
    assert wait_ms == 1_000
    assert [(p.partition, p.offset, p.leader_epoch, p.topic_id) for p in positions] == [
        (0, 100, 3, "id"), (1, 5, 1, "id"),
    ]  # fmt: skip
    assert news.epochs == {("t", 0): ((3, 100), (4, 120))}
    end = stream.end()
    assert end["t"].partitions == {0: NextOffset(140, 3), 1: NextOffset(5, 1)}


def test_nothing_new_leaves_the_offset_as_it_is() -> None:
    stream = Stream(SaidCluster([[]]))
    assert offsets.to_json(stream.end()) == offsets.to_json(BEGIN)
    retry = Stream(SaidCluster([[refusal(50302, retriable=True, message="no leader")]]))
    assert retry.end() == BEGIN


def test_an_idle_stream_asks_for_its_topics_once_in_a_refresh() -> None:
    stream = Stream(SaidCluster([[]]))
    for second in range(50):
        stream.now_s = second * 1.0
        stream.news()
    assert len(stream.cluster.polls) == 50
    assert stream.cluster.looks == 10, "every 5 s"


def test_partitions_that_were_added_are_polled_from_their_first_record() -> None:
    cluster = SaidCluster([[]], there={"t": Topic("id", 4)})
    stream = Stream(cluster)
    assert stream.end() == BEGIN, "nothing is in them: no batch without records"
    cluster.answers = [[page(3, 0, 2)]]
    assert stream.end()["t"].partitions[3] == NextOffset(2, 3)
    positions, _ = cluster.polls[-1]
    assert [(p.partition, p.offset, p.leader_epoch) for p in positions[2:]] == [
        (2, 0, None), (3, 0, None),
    ]  # fmt: skip


@pytest.mark.parametrize("found", [TRUNCATED, DIVERGED])
def test_another_log_is_loss_with_range_and_cause(found: PollRefusal) -> None:
    with pytest.raises(DataLossError) as lost:
        Stream(SaidCluster([[found]])).news()
    for part in ("partition 0 of topic t", f"{found.diverging_offset} to 99", found.message):
        assert part in str(lost.value)
    assert "failOnDataLoss=false" in str(lost.value)


def test_a_truncated_log_is_read_on_from_where_it_was_cut_if_that_is_wanted() -> None:
    """A group at 100, the log cut to 80 and grown to 120: nothing of 80 to 120 is left out."""
    cluster = SaidCluster([[TRUNCATED, page(1, 5, 6)], [page(0, 80, 120, 5, epochs=((5, 80),))]])
    stream = Stream(cluster, fail=False)
    moved = stream.end()
    assert moved["t"].partitions == {0: NextOffset(80, 2), 1: NextOffset(6, 3)}
    assert [r.partition for r in offsets.ranges(BEGIN, moved, fail_on_data_loss=False)] == [1]
    end = stream.end(moved)
    (one,) = offsets.ranges(moved, end, fail_on_data_loss=False)
    assert (one.start, one.start_epoch, one.end, one.end_epoch) == (80, 2, 120, 5)


BUSY = refusal(50302, retriable=True, message="the leader is not proven")


def test_a_stream_with_a_target_goes_there_only_from_a_position_that_was_checked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A leader that was just elected refuses at first; the target was looked up apart."""
    cluster = SaidCluster([[BUSY], [BUSY], [TRUNCATED]])
    cluster.latest = {0: NextOffset(120, 5), 1: NextOffset(5, 1)}
    monkeypatch.setattr("spark_source.stream_reader.Cluster", lambda _: cluster)
    given = {"url": "http://a:1", "subscribe": "t", "failOnDataLoss": "false"}
    driver = Driver(source_options(given, {}, streaming=True))
    driver.set_target()
    moved = driver.latest(BEGIN)
    assert moved["t"].partitions == {0: NextOffset(80, 2), 1: NextOffset(5, 1)}
    cluster.answers = [[page(0, 80, 120, 5)]]
    assert driver.latest(moved)["t"].partitions[0] == NextOffset(120, 5)


def test_a_partition_without_an_answer_is_told_in_the_end() -> None:
    stream = Stream(SaidCluster([[BUSY]]), clock_runs=True)
    with pytest.raises(NotServedError, match=r"partition 0 .* offset 100 .*is not proven"):
        stream.latest.checked_news(BEGIN)
    assert stream.now_s > 55, "retryTimeoutMs is 60 s"


def test_a_diverged_log_is_read_on_where_it_is_and_not_reported_again() -> None:
    stream = Stream(SaidCluster([[DIVERGED]]), fail=False)
    assert stream.end()["t"].partitions[0] == NextOffset(100, 2)


def test_a_log_start_above_the_position_is_left_to_the_task() -> None:
    """The range shows what retention deleted; the task reports it, or skips it."""
    cluster = SaidCluster([[refusal(40002, message="out of range")]])
    cluster.both_ends = (150, NextOffset(170, 4))
    assert Stream(cluster).end()["t"].partitions[0] == NextOffset(170, 4)


def test_a_log_that_ends_before_the_position_is_loss() -> None:
    cluster = SaidCluster([[refusal(40002, message="out of range")]])
    cluster.both_ends = (0, NextOffset(90, 2))
    with pytest.raises(DataLossError, match="at offset 100, and the log ends at 90"):
        Stream(cluster).news()
    assert Stream(cluster, fail=False).end()["t"].partitions[0] == NextOffset(90, 2)


def test_a_topic_made_anew_is_loss_or_read_from_its_start(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def cluster() -> SaidCluster:
        return SaidCluster(
            [[refusal(40951)], [page(0, 0, 4)]], there={"t": Topic("id", 2)}
        )  # fmt: skip

    first = cluster()
    stream = Stream(first)
    stream.now_s = -1e9
    stream.latest.news({}, 0)
    first.there = {"t": Topic("new", 2)}
    first.answers = [[refusal(40951)], [page(0, 0, 4)]]
    with pytest.raises(DataLossError, match=r"deleted and created anew.*id.*new"):
        stream.news()
    second = cluster()
    stream = Stream(second, fail=False)
    stream.news({}, 0)
    second.there = {"t": Topic("new", 2)}
    second.answers = [[refusal(40951)], [page(0, 0, 4)]]
    end = stream.end()
    assert end["t"] == TopicOffsets("new", {0: NextOffset(4, 3)})
    assert [p.offset for p in second.polls[-1][0]] == [0, 0]
    assert "the query reads the new one, new, from its start" in caplog.text


def test_a_deleted_topic_is_loss_or_waited_for_without_a_stream_of_requests() -> None:
    gone = SaidCluster([[refusal(40402)]])
    stream = Stream(gone)
    stream.news({}, 0)
    gone.there = {}
    with pytest.raises(UnknownTopicError, match="topic t does not exist"):
        stream.news()
    stream = Stream(gone, fail=False)
    polls = len(gone.polls)
    for _ in range(5):
        assert stream.news().ends == {}
    assert stream.slept == [1.0] * 5, "as long as a poll would wait"
    assert len(gone.polls) == polls


def test_brokers_that_do_not_agree_are_asked_again_a_little_later() -> None:
    stream = Stream(SaidCluster([[refusal(40402)]]))
    assert stream.news().ends == {}
    assert len(stream.cluster.polls) == 3
    assert stream.slept == [0.5]


def test_a_refusal_that_stays_is_told() -> None:
    with pytest.raises(NotServedError, match=r"partition 0 of topic t .* not allowed"):
        Stream(SaidCluster([[refusal(40301, message="not allowed")]])).news()


def test_more_partitions_than_a_poll_takes_are_polled_in_turn() -> None:
    cluster = SaidCluster([[]], there={"t": Topic("id", 25_000)})
    stream = Stream(cluster)
    stream.news()
    assert [(len(positions), wait) for positions, wait in cluster.polls] == [
        (10_000, 0), (10_000, 0), (5_000, 1_000),
    ]  # fmt: skip
