"""`Consumer` on a real cluster: groups, commits, positions, deaths of brokers, and odd records."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from http_api.client.client_errors import (
    ClosedError,
    CommitError,
    ConfigError,
    FencedError,
    OffsetOutOfRangeError,
    QuorumlogError,
    UnreadableRecordError,
    WakeupError,
)
from http_api.client.sdk.consumer import Consumer
from http_api.client.sdk.record_types import OFFSET_BEGINNING, OFFSET_END, Record, TopicPartition
from tests.support.live_cluster import LiveCluster, running

DONE_S = 30.0
AnyConsumer = Consumer[Any, Any]
AnyRecord = Record[Any, Any]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    with running(tmp_path_factory.mktemp("cluster")) as started:
        asyncio.run(started.wait_healthy())
        yield started


def create(cluster: LiveCluster, topic: str, partitions: int, each: int = 0) -> None:
    """Create a topic with numbered records in each partition."""
    asyncio.run(cluster.create_topic(topic, partitions))
    for partition in range(partitions if each else 0):
        write(cluster, topic, *range(each), partition=partition)


def write(cluster: LiveCluster, topic: str, *values: object, partition: int = 0) -> None:
    answer = asyncio.run(cluster.produce(1, topic, *values, partition=partition))
    assert answer.status == 200, answer


def open_consumer(cluster: LiveCluster, group: str | None = None, **settings: Any) -> AnyConsumer:
    """Return a consumer that reads from the earliest offset unless the settings differ."""
    urls = [broker.url for broker in cluster.brokers]
    given = {"auto_offset_reset": "earliest", "session_timeout_ms": 3_000, "group_id": group}
    return Consumer(urls, **(given | settings))


def read(consumer: AnyConsumer, count: int, deadline_s: float = DONE_S) -> list[AnyRecord]:
    """Return that many records; fail if they do not come in time."""
    until_s = time.monotonic() + deadline_s
    found: list[AnyRecord] = []
    while len(found) < count:
        assert time.monotonic() < until_s, f"{len(found)} of {count} records"
        found += consumer.consume(count - len(found), 0.5)
    return found


def committed(consumer: AnyConsumer, topic: str, partition: int = 0) -> int | None:
    return consumer.committed([TopicPartition(topic, partition)])[0].offset


# groups


class Reader:
    """A consumer in a thread, that notes what it reads and commits after each call."""

    def __init__(self, cluster: LiveCluster, topic: str, **settings: Any) -> None:
        self.read: list[tuple[int, int]] = []
        self.errors: list[BaseException] = []
        self.owned: set[int] = set()
        self.owners: list[set[int]] = []
        self._stop = threading.Event()
        self._consumer = open_consumer(cluster, topic, **settings)
        self._topic = topic
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        def assigned(_: object, partitions: list[TopicPartition]) -> None:
            self.owned |= {one.partition for one in partitions}

        def revoked(consumer: AnyConsumer, partitions: list[TopicPartition]) -> None:
            self.owned -= {one.partition for one in partitions}

        try:
            with self._consumer as consumer:
                consumer.subscribe([self._topic], on_assign=assigned, on_revoke=revoked)
                while not self._stop.is_set():
                    records = consumer.consume(20, 0.2)
                    assert {one.partition for one in records} <= self.owned
                    self.read += [(one.partition, one.offset) for one in records]
        except BaseException as error:  # noqa: BLE001 shown by the test
            self.errors.append(error)

    def end(self) -> None:
        self._stop.set()
        self._thread.join(DONE_S)
        assert not self._thread.is_alive()
        assert self.errors == []


def wait(condition: Callable[[], bool], what: str) -> None:
    until_s = time.monotonic() + DONE_S
    while not condition():
        assert time.monotonic() < until_s, what
        time.sleep(0.02)


def test_two_consumers_share_and_rebalance_without_repeats(cluster: LiveCluster) -> None:
    create(cluster, "shared", 4, 100)
    first = Reader(cluster, "shared")
    wait(lambda: len(first.owned) == 4, "the first owns all")
    second = Reader(cluster, "shared")
    wait(lambda: len(first.owned) == 2 == len(second.owned), "both own two")
    assert not first.owned & second.owned
    for partition in range(4):
        write(cluster, "shared", *range(50), partition=partition)
    wait(lambda: len(first.read) + len(second.read) >= 600, "all is read")
    first.end()
    wait(lambda: len(second.owned) == 4, "the second takes over")
    write(cluster, "shared", "end", partition=min(first.owned | {0}))
    wait(lambda: len(first.read) + len(second.read) >= 601, "what came later is read")
    second.end()
    everything = first.read + second.read
    assert len(everything) == len(set(everything)) == 601  # both left in order: no repeats


def test_nothing_is_lost_while_coordinator_and_leaders_are_killed(cluster: LiveCluster) -> None:
    create(cluster, "deaths", 3, 30)
    asyncio.run(cluster.wait_healthy("__consumer_offsets", 12))
    reader = Reader(cluster, "deaths", session_timeout_ms=10_000)
    wait(lambda: len(reader.read) >= 90, "it reads")
    written = 30
    for broker in (1, 2, 3):  # each leads something: one of them coordinates the group

        async def die(name: str = f"broker-{broker}") -> None:
            pid = await cluster.kill(name)
            await cluster.wait_restarted(name, pid)
            await cluster.wait_healthy("__consumer_offsets", 12)

        asyncio.run(die())
        for partition in range(3):
            write(cluster, "deaths", "more", partition=partition)
        written += 1
        want = {(partition, written - 1) for partition in range(3)}
        wait(lambda want=want: want <= set(reader.read), f"it reads on behind broker {broker}")
    reader.end()
    for partition in range(3):
        offsets = [offset for number, offset in reader.read if number == partition]
        assert sorted(set(offsets)) == list(range(written))
        assert all(b <= a + 1 for a, b in itertools.pairwise(offsets)), offsets


def test_a_pattern_finds_topics_and_a_commit_of_another_partition_is_refused(
    cluster: LiveCluster,
) -> None:
    create(cluster, "pat-a", 1, 1)
    create(cluster, "pat-b", 1, 1)
    with open_consumer(cluster, "pattern") as consumer:
        consumer.subscribe("^pat-.*")
        assert {one.topic for one in read(consumer, 2)} == {"pat-a", "pat-b"}
        with pytest.raises(CommitError) as caught:
            consumer.commit(offsets=[TopicPartition("pat-a", 0, 1), TopicPartition("other", 0, 1)])
        assert [one.topic for one in caught.value.refused] == ["other"]
        assert committed(consumer, "pat-a") == 1
    with pytest.raises(ConfigError, match="pattern"):
        open_consumer(cluster, "pattern").subscribe("pat-a")


def test_two_processes_with_one_static_id(cluster: LiveCluster) -> None:
    create(cluster, "static", 1, 2)
    old = open_consumer(cluster, "static", group_instance_id="s", enable_auto_commit=False)
    old.subscribe(["static"])
    read(old, 2)
    with open_consumer(cluster, "static", group_instance_id="s") as new:
        new.subscribe(["static"])
        read(new, 2)
        with pytest.raises(FencedError):
            read(old, 1)
        old.close()


STATIC_MEMBER = """
import sys
from http_api.client.sdk.consumer import Consumer

def tell(_, partitions):
    print(*(one.partition for one in partitions), flush=True)

settings = {"group_id": "seats", "group_instance_id": "first", "auto_offset_reset": "earliest"}
with Consumer(sys.argv[1:], **settings) as consumer:
    consumer.subscribe(["seats"], on_assign=tell)
    try:
        for _ in consumer:
            pass
    except KeyboardInterrupt:
        pass
"""


def test_a_static_member_that_restarts_keeps_its_partitions_and_moves_none(
    cluster: LiveCluster,
) -> None:
    """Ended with a `close`, or killed: within its session the group's epoch stays, too."""
    create(cluster, "seats", 4)
    command = [sys.executable, "-c", STATIC_MEMBER, *(one.url for one in cluster.brokers)]
    changes: list[list[int]] = []

    def note(_: object, partitions: list[TopicPartition]) -> None:
        changes.append([one.partition for one in partitions])

    with open_consumer(cluster, "seats", session_timeout_ms=45_000) as other:
        other.subscribe(["seats"], on_assign=note, on_revoke=note)

        def begin() -> subprocess.Popen[str]:
            return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

        def owned_by(member: subprocess.Popen[str]) -> set[int]:
            assert member.stdout is not None
            return {int(one) for one in member.stdout.readline().split()}

        def has_settled() -> bool:
            return other.poll(0.05) is None and other.metrics()["member_epoch"] == 2

        member = begin()
        try:
            wait(lambda: has_settled() and len(other.assignment()) == 2, "each owns two")
            mine = {0, 1, 2, 3} - {one.partition for one in other.assignment()}
            before = changes[:]
            for ending in (signal.SIGINT, signal.SIGKILL, signal.SIGINT):
                assert owned_by(member) == mine
                assert other.poll(0.5) is None
                assert (other.metrics()["member_epoch"], changes) == (2, before)
                member.send_signal(ending)
                member.communicate()
                assert member.returncode == (0 if ending is signal.SIGINT else -signal.SIGKILL)
                member = begin()
        finally:
            member.kill()
            member.communicate()


def test_a_slow_program_loses_its_partitions_and_joins_again(cluster: LiveCluster) -> None:
    create(cluster, "slow", 1, 3)
    lost: list[TopicPartition] = []
    with open_consumer(cluster, "slow", max_poll_interval_ms=1_000) as consumer:
        consumer.subscribe(["slow"], on_lost=lambda _, partitions: lost.extend(partitions))
        assert consumer.poll(10.0) is not None
        wait(lambda: consumer.metrics()["member_epoch"] is None, "it leaves by itself")
        again = read(consumer, 3)
        assert lost == [TopicPartition("slow", 0)]
        assert [one.offset for one in again] == [0, 1, 2]  # from the commit: there was none


# commits


def test_auto_commit_covers_what_earlier_polls_returned(cluster: LiveCluster) -> None:
    create(cluster, "ten", 1, 20)

    def process_ten() -> None:
        with open_consumer(cluster, "ten", auto_commit_interval_ms=1) as consumer:
            consumer.subscribe(["ten"])
            for _ in range(10):
                assert consumer.poll(10.0) is not None
            raise ZeroDivisionError  # the tenth was not processed

    with pytest.raises(ZeroDivisionError):
        process_ten()
    with open_consumer(cluster, "ten") as consumer:
        assert committed(consumer, "ten") == 9
        consumer.subscribe(["ten"])
        assert [one.offset for one in read(consumer, 3)] == [9, 10, 11]
    with open_consumer(cluster, "ten") as consumer:
        assert committed(consumer, "ten") == 12  # close commits everything returned


def test_manual_commits_and_stored_offsets(cluster: LiveCluster) -> None:
    create(cluster, "manual", 1, 10)
    with open_consumer(cluster, "manual", enable_auto_commit=False) as consumer:
        consumer.subscribe(["manual"])
        records = read(consumer, 5)
        consumer.commit(records[1])
        assert committed(consumer, "manual") == 2
        consumer.commit(offsets=[TopicPartition("manual", 0, 4, metadata="four")])
        assert consumer.committed([TopicPartition("manual", 0)])[0].metadata == "four"
        assert [one.offset for one in consumer.commit() or ()] == [5]
        assert committed(consumer, "manual") == 5
    with open_consumer(cluster, "manual", enable_auto_offset_store=False) as consumer:
        consumer.subscribe(["manual"])
        records = read(consumer, 5)
        assert records[0].offset == 5
        consumer.store_offsets(records[2])
    with open_consumer(cluster, "manual") as consumer:
        assert committed(consumer, "manual") == 8


def test_each_commit_callback_runs_once_in_a_later_call(cluster: LiveCluster) -> None:
    create(cluster, "callbacks", 1, 10)
    calls: list[tuple[QuorumlogError | None, int | None]] = []
    mine = threading.get_ident()

    def done(error: QuorumlogError | None, offsets: list[TopicPartition]) -> None:
        assert threading.get_ident() == mine
        calls.append((error, offsets[0].offset))

    with open_consumer(cluster, "callbacks", enable_auto_commit=False) as consumer:
        consumer.subscribe(["callbacks"])
        for record in read(consumer, 10):
            consumer.commit(record, asynchronous=True, callback=done)
    assert calls == [(None, offset) for offset in range(1, 11)]  # the last ones from close
    with open_consumer(cluster, "callbacks") as consumer:
        assert committed(consumer, "callbacks") == 10


def test_exactly_once_into_a_database_with_positions_beside_the_rows(
    cluster: LiveCluster, tmp_path: Path
) -> None:
    create(cluster, "sqlite", 2, 50)
    base = sqlite3.connect(tmp_path / "rows.db")
    base.execute("create table rows (partition int, at int, unique (partition, at))")
    base.execute("create table places (partition int primary key, next int)")

    def assigned(consumer: AnyConsumer, partitions: list[TopicPartition]) -> None:
        for one in partitions:
            row = base.execute("select next from places where partition = ?", [one.partition])
            consumer.seek(one, (row.fetchone() or (OFFSET_BEGINNING,))[0])

    for count in (30, 70):
        with open_consumer(cluster, "sqlite", enable_auto_commit=False) as consumer:
            consumer.subscribe(["sqlite"], on_assign=assigned)
            for record in read(consumer, count):
                with base:
                    place = [record.partition, record.offset]
                    base.execute("insert into rows values (?, ?)", place)
                    place[1] += 1
                    base.execute("replace into places values (?, ?)", place)
    assert base.execute("select count(*) from rows").fetchone() == (100,)
    base.close()


def test_an_assigned_consumer_commits_and_starts_there(cluster: LiveCluster) -> None:
    create(cluster, "by-hand", 1, 10)
    place = TopicPartition("by-hand", 0)
    for start in (0, 4):
        with open_consumer(cluster, "by-hand") as consumer:
            consumer.assign([place, TopicPartition("no-such-topic", 0)])  # stops no other
            found = [consumer.poll(10.0) for _ in range(4)]
            assert [one.offset for one in found if one] == list(range(start, start + 4))
    with open_consumer(cluster, "by-hand") as consumer:
        assert committed(consumer, "by-hand") == 8


def test_an_idle_consumer_of_many_partitions_sends_few_requests(cluster: LiveCluster) -> None:
    create(cluster, "idle", 64)
    with open_consumer(cluster, "idle", session_timeout_ms=45_000) as consumer:
        consumer.subscribe(["idle"])
        wait(lambda: consumer.poll(0.1) is None and len(consumer.assignment()) == 64, "assigned")
        for partition in range(0, 64, 8):
            write(cluster, "idle", "x", partition=partition)
        read(consumer, 8)
        before = consumer.metrics()["fetch_and_heartbeat_requests"]
        assert consumer.poll(4.0) is None
        sent = consumer.metrics()["fetch_and_heartbeat_requests"] - before
        assert sent <= 4 + 3  # one a second, and one that may begin at each of three leaders


def test_a_queue_with_room_for_one_page_holds_up_nothing(cluster: LiveCluster) -> None:
    """Fetching goes on whenever a page was handed out, for each of more partitions than fit."""
    create(cluster, "narrow", 4, 300)
    limits = {"queued_max_bytes": 2_048, "max_partition_fetch_bytes": 2_048}
    with open_consumer(cluster, **limits) as consumer:
        consumer.assign([TopicPartition("narrow", partition, 0) for partition in range(4)])
        found = read(consumer, 1_200)
        assert len({(one.partition, one.offset) for one in found}) == 1_200


def test_without_a_group_commits_are_refused(cluster: LiveCluster) -> None:
    with open_consumer(cluster) as consumer:
        with pytest.raises(ConfigError, match="group_id"):
            consumer.commit()
        with pytest.raises(ConfigError, match="group_id"):
            consumer.subscribe(["any"])


# positions


def test_seek_pause_positions_and_times(cluster: LiveCluster) -> None:
    create(cluster, "places", 2, 10)
    zero, one = TopicPartition("places", 0), TopicPartition("places", 1)
    with open_consumer(cluster) as consumer:
        consumer.assign([TopicPartition("places", 0, 4), TopicPartition("places", 1, OFFSET_END)])
        assert [one.offset for one in consumer.position([zero, one])] == [4, 10]
        assert [record.offset for record in read(consumer, 6)] == [4, 5, 6, 7, 8, 9]
        consumer.seek(TopicPartition("places", 1, 8))
        consumer.seek(zero, 9)
        found = read(consumer, 3)
        assert sorted((record.partition, record.offset) for record in found) == [
            (0, 9),
            (1, 8),
            (1, 9),
        ]
        consumer.seek(zero, OFFSET_BEGINNING)
        first = consumer.poll(10.0)
        assert first is not None
        assert first.offset == 0
        consumer.pause([zero])
        write(cluster, "places", "later", partition=1)
        assert [record.partition for record in read(consumer, 1)] == [1]
        assert consumer.poll(0.1) is None
        consumer.resume([zero])
        assert [record.offset for record in read(consumer, 9)] == list(range(1, 10))
        assert consumer.get_watermark_offsets(one) == (0, 11)
        at = TopicPartition("places", 0, first.timestamp)
        assert [row.offset for row in consumer.offsets_for_times([at])] == [0]
        assert consumer.list_topics("places")["places"].partitions_count == 2
        with pytest.raises(ConfigError, match="not assigned"):
            consumer.seek(TopicPartition("places", 7, 0))
        consumer.unassign()
        assert consumer.assignment() == []


def test_positions_out_of_range_move_or_raise(cluster: LiveCluster) -> None:
    create(cluster, "range", 1, 5)
    place = TopicPartition("range", 0)
    reported: list[Exception] = []
    with open_consumer(cluster, on_error=reported.append) as consumer:
        consumer.assign([TopicPartition("range", 0, 50)])
        wait(lambda: consumer.poll(0.1) is None and bool(reported), "the move is reported")
        wait(lambda: consumer.position([place])[0].offset == 5, "it is at the end")
        write(cluster, "range", "next")
        record = consumer.poll(10.0)
        assert record is not None
        assert record.offset == 5
        assert [type(error) for error in reported] == [OffsetOutOfRangeError]
    with open_consumer(cluster, auto_offset_reset="none") as consumer:
        consumer.assign([TopicPartition("range", 0, 50)])
        with pytest.raises(OffsetOutOfRangeError):
            consumer.poll(10.0)
        consumer.seek(TopicPartition("range", 0, 5))
        assert consumer.poll(10.0) is not None


# records and calls


def test_an_unreadable_record_stops_at_its_place_or_is_marked(cluster: LiveCluster) -> None:
    create(cluster, "odd", 1)
    write(cluster, "odd", "a", "b", "c")
    settings = {"value_deserializer": lambda value: {b'"a"': 1, b'"c"': 3}[value]}
    with open_consumer(cluster, **settings) as consumer:
        consumer.assign([TopicPartition("odd", 0)])
        assert read(consumer, 1)[0].value == 1
        for _ in range(2):
            with pytest.raises(UnreadableRecordError) as caught:
                consumer.poll(10.0)
        assert caught.value.value == b'"b"'
        assert consumer.position([TopicPartition("odd", 0)])[0].offset == 1
        consumer.seek(caught.value.next)
        assert read(consumer, 1)[0].value == 3
    with open_consumer(cluster, on_unreadable="mark", **settings) as consumer:
        consumer.assign([TopicPartition("odd", 0)])
        records = read(consumer, 3)
        assert [(one.value, one.unreadable) for one in records] == [
            (1, ()),
            (b'"b"', ("value",)),
            (3, ()),
        ]


def test_wakeup_a_second_thread_and_the_end(cluster: LiveCluster) -> None:
    create(cluster, "quiet", 1)
    consumer = open_consumer(cluster)
    consumer.assign([TopicPartition("quiet", 0)])
    errors: list[Exception] = []

    def wait_long() -> None:
        try:
            consumer.poll(DONE_S)
        except WakeupError as error:
            errors.append(error)

    thread = threading.Thread(target=wait_long)
    thread.start()
    wait(lambda: consumer.metrics()["fetch_and_heartbeat_requests"] > 0, "it waits")
    with pytest.raises(QuorumlogError, match="another thread"):
        consumer.poll(0.1)
    consumer.wakeup()
    thread.join(DONE_S)
    assert len(errors) == 1
    consumer.close()
    consumer.close()
    with pytest.raises(ClosedError):
        consumer.poll(0.1)


def test_a_forked_child_is_refused_even_with_records_at_hand(cluster: LiveCluster) -> None:
    create(cluster, "fork", 1, 5)
    with open_consumer(cluster) as consumer:
        consumer.assign([TopicPartition("fork", 0)])
        assert consumer.poll(10.0) is not None
        child = os.fork()
        if child == 0:
            try:
                consumer.poll(0.1)
            except ClosedError:
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert consumer.poll(10.0) is not None
