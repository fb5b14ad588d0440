"""A `Consumer` that gets its pages by hand: no record is lost, and no commit passes one.

No thread runs and no broker is asked: a test says which pages have come, and sees what is fetched
next, what is returned, and what would be committed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson
import pytest

from http_api.client.client_errors import UnreadableRecordError
from http_api.client.polling import PolledPage, PollRefusal
from http_api.client.sdk.commits import Offsets
from http_api.client.sdk.consumer import Consumer
from http_api.client.sdk.consumer_work import ConsumerWork
from http_api.client.sdk.positions import ANY_BROKER, FetchPlan, LogPosition, PartitionState
from http_api.client.sdk.record_types import Record, TopicPartition
from http_api.client.sdk.steps import BlockingShell, Steps

AT = TopicPartition("t", 0)
OTHER = TopicPartition("t", 1)
AnyRecord = Record[Any, Any]


class FedConsumer(Consumer[Any, Any]):
    """A consumer of partitions 0 and 1 of a topic; `log` is what their logs hold."""

    def __init__(self, **settings: Any) -> None:
        super().__init__("127.0.0.1:1", **({"auto_offset_reset": "earliest"} | settings))
        self.log: dict[int, list[dict[str, Any]]] = {0: [], 1: []}

    def begin(self) -> None:
        """Assign both partitions at offset 0."""
        self.assign([TopicPartition("t", at, 0) for at in (0, 1)])

    def write(self, *values: Any, partition: int = 0, **more: Any) -> None:
        """Append records with these values, as JSON unless they are bytes of JSON."""
        for value in values:
            text = orjson.Fragment(value) if isinstance(value, bytes) else value
            offset = len(self.log[partition])
            self.log[partition].append({"offset": offset, "key": None, "value": text} | more)

    def state(self, partition: int = 0) -> PartitionState:
        return self._work.positions.states["t", partition]

    def plan(self) -> FetchPlan:
        found = self._work.positions.plan(ANY_BROKER, self._now_s() + 100.0)
        assert isinstance(found, FetchPlan)
        return found

    def fetch(self, most: int = 100, partition: int = 0) -> None:
        """Bring the next page of a partition, with at most so many records."""
        fetched = self.state(partition).fetched
        assert fetched is not None
        rows = self.log[partition][fetched.offset : fetched.offset + most]
        batch = {"count": len(rows), "timestamp": 0, "key_format": "json", "value_format": "json"}
        lines = [{"batch": batch | {"leader_epoch": 1}}, *rows] if rows else []
        page = PolledPage(
            topic="t",
            topic_id="id",
            partition=partition,
            offset=fetched.offset,
            next_offset=fetched.offset + len(rows),
            next_leader_epoch=1,
            leader_epoch=1,
            leader_url=None,
            high_watermark=len(self.log[partition]),
            log_start_offset=0,
            records=len(rows),
            body=b"".join(orjson.dumps(one) + b"\n" for one in lines),
        )
        with self._shell.lock:
            self._work.positions.receive_page(self.plan(), page)

    def refuse(self, plan: FetchPlan, code: int, offset: int, text: str = "", **more: Any) -> None:
        refusal = PollRefusal(topic="t", partition=0, offset=offset, error_code=code,
            message=text, retriable=False, **more)  # fmt: skip
        with self._shell.lock:
            self._work.positions.receive_refusal(plan, refusal, self._now_s())

    def values(self) -> list[Any]:
        """Return the values that come until nothing does, fetching as the positions say."""
        found: list[Any] = []
        while True:
            for partition in (0, 1):
                fetched = self.state(partition).fetched
                if fetched is not None and fetched.offset < len(self.log[partition]):
                    self.fetch(partition=partition)
            record = self.poll(0.0)
            if record is None:
                return found
            found.append(record.value)

    def offset(self) -> int | None:
        """Return the position in partition 0."""
        return self.position([AT])[0].offset


class Commits(list[int | None]):
    """Offsets that were committed of partition 0, in order."""

    def make(self, work: ConsumerWork, offsets: Offsets) -> list[TopicPartition]:
        self += [one.offset for (_, partition), one in offsets.items() if partition == 0]
        positions = {
            at: LogPosition(one.offset or 0, one.leader_epoch) for at, one in offsets.items()
        }
        work.positions.receive_commit(positions)
        return list(offsets.values())


@pytest.fixture
def commits(monkeypatch: pytest.MonkeyPatch) -> Commits:
    """Record commits in place of sending them."""
    found = Commits()

    def make(work: ConsumerWork, offsets: Offsets, *_: Any) -> Steps[list[TopicPartition]]:
        yield from ()
        return found.make(work, offsets)

    monkeypatch.setattr(ConsumerWork, "commit_until_known", make)
    return found


@pytest.fixture(autouse=True)
def _no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BlockingShell, "start", lambda *_: None)


@pytest.fixture
def consumer(commits: Commits) -> Iterator[FedConsumer]:
    """A member of no group that commits by itself at its end."""
    with opened() as started:
        yield started


def opened(**settings: Any) -> FedConsumer:
    found = FedConsumer(group_id="g", **settings)
    found.begin()
    return found


# unreadable records

UNREADABLE = b"1e400"


@pytest.mark.parametrize("most", [1, 2, 100])
def test_reading_stays_at_an_unreadable_record_until_a_seek(
    consumer: FedConsumer, commits: Commits, most: int
) -> None:
    """Each poll raises; neither later pages nor a commit pass the record."""
    consumer.write("a", UNREADABLE, "b", "c")
    consumer.fetch(most)
    consumer.fetch(most)
    consumer.fetch(most)
    first = consumer.poll(0.0)
    assert first is not None
    with pytest.raises(UnreadableRecordError) as caught:
        consumer.poll(0.0)
    for _ in range(3):
        with pytest.raises(UnreadableRecordError):
            consumer.poll(0.0)
        consumer.commit()
    assert commits == [1]
    consumer.pause([AT])
    consumer.resume([AT])
    with pytest.raises(UnreadableRecordError):
        consumer.values()
    consumer.seek(caught.value.next)
    assert consumer.values() == ["b", "c"]


def test_consume_and_store_offsets_stay_at_an_unreadable_record(commits: Commits) -> None:
    """`consume` returns what is before it, other partitions' records too, then raises."""
    with opened(enable_auto_offset_store=False) as consumer:
        consumer.write("a", UNREADABLE, "b")
        consumer.write("x", partition=1)
        for _ in range(3):
            consumer.fetch(1)
        consumer.fetch(partition=1)
        found = consumer.consume(10, 0.0)
        assert sorted(record.value for record in found) == ["a", "x"]
        with pytest.raises(UnreadableRecordError):
            consumer.consume(10, 0.0)
        consumer.store_offsets()
        consumer.commit()
    assert commits == [1]


# answers of before


def test_an_answer_of_an_earlier_assignment_is_dropped(commits: Commits) -> None:
    """The same partition at the same offset: its refusal of before would jump to the end."""
    with opened(auto_offset_reset="latest") as consumer:
        plan = consumer.plan()
        consumer.begin()
        consumer.refuse(plan, 40_951, 0)
        assert consumer.offset() == 0
