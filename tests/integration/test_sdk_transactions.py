"""Transactions of the SDK on a real cluster: whole or not at all, and once, through kills."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import quorumlog
from quorumlog import (
    Admin,
    ApiError,
    AsyncProducer,
    Consumer,
    ConsumerGroupMetadata,
    FencedError,
    NewRecord,
    Producer,
    QuorumlogError,
    Receipt,
    TopicPartition,
)
from tests.support.live_cluster import LiveCluster, running

ROOT = Path(__file__).resolve().parents[2]
PARTITIONS = 3
WAIT_S = 60.0
PARTED = 100
"""Inputs that two lives of one producer copy: more than travels with a commit."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    with running(tmp_path_factory.mktemp("sdktxn")) as started:
        for topic in ("ins", "outs", "debits", "credits", "lives"):
            asyncio.run(started.create_topic(topic, PARTITIONS))
        yield started


@pytest.fixture
def servers(cluster: LiveCluster) -> list[str]:
    return [cluster.url(number) for number in (1, 2, 3)]


def values(servers: list[str], topic: str) -> list[Any]:
    """All that can be read of a topic now."""
    with Consumer(servers) as consumer:
        numbers = range(consumer.list_topics(topic)[topic].partitions_count)
        places = [TopicPartition(topic, number) for number in numbers]
        ends = {one: consumer.get_watermark_offsets(one)[1] for one in places}
        consumer.assign([TopicPartition(one.topic, one.partition, 0) for one in places])
        found = []
        until_s = time.monotonic() + WAIT_S
        while any(one.offset < ends[one] for one in consumer.position(places)):  # type: ignore[operator]
            assert time.monotonic() < until_s
            found += [record.value for record in consumer.consume(1_000, 1.0)]
    return found


def write(producer: Producer, topic: str) -> None:
    with producer.transaction() as txn:
        txn.produce(topic, "fenced")


def write_and_fail(producer: Producer, topic: str, count: int) -> None:
    with producer.transaction() as txn:
        for number in range(count):
            txn.produce(topic, {"never": number, "pad": "x" * 50})
        raise KeyError


async def write_and_fail_async(producer: AsyncProducer, topic: str) -> None:
    async with producer.transaction() as txn:
        await txn.produce(topic, "never")
        raise KeyError


def copy(producer: Producer, consumer: Consumer, name: str) -> None:
    with producer.transaction() as txn:
        txn.produce("handed", name)
        txn.send_offsets(
            consumer.position(consumer.assignment()), consumer.consumer_group_metadata()
        )


def test_a_transaction_is_read_whole_or_not_at_all(servers: list[str]) -> None:
    outcomes: list[tuple[QuorumlogError | None, Receipt]] = []

    def note(error: QuorumlogError | None, receipt: Receipt) -> None:
        outcomes.append((error, receipt))

    with Producer(servers, transactional_id="whole", transactional_group="") as producer:
        with producer.transaction() as txn:
            txn.produce("w1", {"n": 1}, key="k", on_delivery=note)
            txn.produce("w2", b"\x00\xff", key="k", on_delivery=note)
            txn.produce("w2", "text", key="k", headers={"h": "x"}, on_delivery=note)
            txn.produce("w2", b"\x01", on_delivery=note)
        assert [error for error, _ in outcomes] == [None] * 4
        assert [one.offset for _, one in outcomes] == [0, 0, 1, 2]
        for count in (1, 3_000):
            with pytest.raises(KeyError):
                write_and_fail(producer, "w1", count)
        with producer.transaction() as txn:
            for number in range(6_000):
                txn.produce("w1", {"n": number, "pad": "x" * 50})
        assert txn.result is not None
        assert (txn.result.rows, txn.result.state) == (6_000, "complete")
    assert [row["n"] for row in values(servers, "w1")] == [1, *range(6_000)]
    assert values(servers, "w2") == [b"\x00\xff", "text", b"\x01"]


async def test_the_twin_does_the_same(servers: list[str]) -> None:
    async with AsyncProducer(servers, transactional_id="twin") as producer:
        async with producer.transaction() as txn:
            await txn.produce("twins", 1)
        with pytest.raises(KeyError):
            await write_and_fail_async(producer, "twins")
        async with producer.transaction() as txn:
            await txn.produce("twins", 3)
    assert await asyncio.to_thread(values, servers, "twins") == [1, 3]


def test_one_shots_happen_once_for_each_key(servers: list[str]) -> None:
    rows = {
        "shots1": [{"amount": -5}],
        "shots2": [NewRecord(topic="shots2", key="bob", value={"amount": 5})],
    }
    done = [quorumlog.transact(rows, key="t-17", bootstrap_servers=servers) for _ in range(2)]
    large = {"shots3": [{"n": number, "pad": "x" * 90} for number in range(10_000)]}
    for _ in range(2):
        asyncio.run(quorumlog.atransact(large, key="t-18", bootstrap_servers=servers))
    assert done[0] == done[1]
    assert values(servers, "shots1") == [{"amount": -5}]
    assert values(servers, "shots2") == [{"amount": 5}]
    assert [row["n"] for row in values(servers, "shots3")] == list(range(10_000))
    moved = [TopicPartition("shots3", 0, 5)]
    group = ConsumerGroupMetadata("shooters", expected={("shots3", 0): -1})
    quorumlog.transact(offsets=moved, group_metadata=group, bootstrap_servers=servers)
    rival = ConsumerGroupMetadata("shooters", expected={("shots3", 0): -1})
    with pytest.raises(ApiError) as caught:
        quorumlog.transact(offsets=moved, group_metadata=rival, bootstrap_servers=servers)
    assert caught.value.code == 40912


def test_a_zombie_decides_nothing(servers: list[str]) -> None:
    old = Producer(servers, transactional_id="zombie")
    old.begin_transaction()
    old.produce("zombies", "old")
    with Producer(servers, transactional_id="zombie") as new:
        with new.transaction() as txn:
            txn.produce("zombies", "new")
        with pytest.raises(FencedError):
            old.commit_transaction()
        with pytest.raises(FencedError):
            old.begin_transaction()
        old.close()
        with Admin(servers) as admin:
            assert admin.describe_transactions(["zombie"])["zombie"].epoch == 2
            lives = admin.fence_producers(["zombie"])
            assert lives["zombie"].epoch == 3
            ids = [one.transaction_id for one in admin.list_transactions(["complete"])]
        assert "zombie" in ids
        with pytest.raises(FencedError):
            write(new, "zombies")
    assert values(servers, "zombies") == ["new"]


LIFE = """
import sys
from quorumlog import Producer
producer = Producer(sys.argv[1].split(","), transactional_id="life")
for number in range(10_000):
    with producer.transaction() as txn:
        for part in range(3):
            txn.produce("lives", [number, part], key=f"k{part}")
    print(number, flush=True)
"""


def test_a_new_life_learns_what_became_of_a_killed_one(servers: list[str]) -> None:
    command = [sys.executable, "-c", LIFE, ",".join(servers)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as child:
        assert child.stdout is not None
        heard = [int(child.stdout.readline()) for _ in range(8)]
        child.kill()
    with Producer(servers, transactional_id="life") as producer:
        producer.init_transactions()
        last = producer.last
        with producer.transaction() as txn:
            txn.produce("lives", ["new", 0])
    assert last is not None
    assert last.number >= heard[-1]
    seen = Counter(row[0] for row in values(servers, "lives"))
    assert seen == {**dict.fromkeys(range(last.number + 1), 3), "new": 1}


class Copier(threading.Thread):
    """Copies topic ``ins`` to ``outs`` as a member of a group, until it is told to stop."""

    def __init__(self, servers: list[str], name: str) -> None:
        super().__init__(name=name)
        self.servers = servers
        self.is_over = threading.Event()
        self.copied = 0
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            self.copy()
        except BaseException as error:
            self.failure = error
            raise

    def copy(self) -> None:
        with (
            Consumer(
                self.servers,
                group_id="copiers",
                enable_auto_commit=False,
                auto_offset_reset="earliest",
            ) as consumer,
            Producer(self.servers, transactional_id=self.name) as producer,
        ):
            consumer.subscribe(["ins"])
            while not self.is_over.is_set():
                records = consumer.consume(10, 0.2)
                if not records:
                    continue
                try:
                    with producer.transaction() as txn:
                        for record in records:
                            txn.produce("outs", record.value, key=record.key)
                        positions = consumer.position(consumer.assignment())
                        txn.send_offsets(positions, consumer.consumer_group_metadata())
                    self.copied += len(records)
                except QuorumlogError:
                    for one in consumer.committed(consumer.assignment()):
                        consumer.seek(one, one.offset or 0)


def test_each_input_is_in_the_output_once_whatever_the_rebalances(servers: list[str]) -> None:
    count = 300
    with Producer(servers) as producer:
        for number in range(count):
            producer.produce("ins", number, key=f"k{number % 17}")
    copiers = [Copier(servers, f"copier-{number}") for number in range(3)]
    try:
        until_s = time.monotonic() + WAIT_S
        for copier in copiers:  # each joins while those before are at work
            copier.start()
            before = sum(one.copied for one in copiers)
            while sum(one.copied for one in copiers) < min(before + 40, count):
                assert time.monotonic() < until_s
                time.sleep(0.02)
        copiers[0].is_over.set()
        copiers[0].join()
        while sum(one.copied for one in copiers) < count:
            assert time.monotonic() < until_s
            time.sleep(0.02)
    finally:
        for copier in copiers:
            copier.is_over.set()
        for copier in copiers:
            copier.join()
    assert [one.failure for one in copiers] == [None] * 3
    assert sorted(values(servers, "outs")) == list(range(count))


def test_partitions_assigned_by_hand_are_fenced_by_what_is_committed(servers: list[str]) -> None:
    with Producer(servers) as plain:
        for number in range(10):
            plain.produce("hands", number)

    def reader() -> Consumer:
        consumer: Consumer = Consumer(
            servers, group_id="hands", enable_auto_commit=False, auto_offset_reset="earliest"
        )
        consumer.assign([TopicPartition("hands", 0)])
        assert consumer.poll(WAIT_S) is not None
        return consumer

    with (
        reader() as one,
        reader() as two,
        Producer(servers, transactional_id="hand-1", transactional_group="hands") as first,
        Producer(servers, transactional_id="hand-2", transactional_group="hands") as second,
    ):
        for _ in range(2):
            copy(first, one, "first")
            assert one.poll(WAIT_S) is not None
        with pytest.raises(ApiError) as caught:
            copy(second, two, "second")
    assert caught.value.code == 40912
    assert values(servers, "handed") == ["first", "first"]


LATE = """
import sys
from quorumlog import Consumer, FencedError, Producer, QuorumlogError, TopicPartition
servers, group, way, count = sys.argv[1].split(","), sys.argv[2], sys.argv[3], int(sys.argv[4])
producer = Producer(servers, transactional_id=group)
producer.init_transactions()
print("begun", flush=True)
consumer = Consumer(servers, group_id=group, enable_auto_commit=False, auto_offset_reset="earliest")
if way == "member":
    consumer.subscribe([f"{group}-in"])
else:
    consumer.assign([TopicPartition(f"{group}-in", 0)])
records = []
while len(records) < count:
    records += consumer.consume(count, 0.2)
producer.begin_transaction()
for record in records:
    producer.produce(f"{group}-out", record.value)

def send_offsets():
    positions = consumer.position(consumer.assignment())
    producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata())

def commit_input():
    if not sends:
        send_offsets()
    producer.commit_transaction()

def commit_more():
    producer.abort_transaction()
    with producer.transaction() as txn:
        txn.produce(f"{group}-out", "without input")

sends = sys.stdin.readline().strip() == "send"
if sends:
    send_offsets()
    producer.flush()
print(consumer.consumer_group_metadata().member_id, flush=True)
for commit in (commit_input, commit_more):
    sys.stdin.readline()
    try:
        commit()
        print("committed", flush=True)
    except QuorumlogError as error:
        print("fenced" if isinstance(error, FencedError) else error.code, flush=True)
"""
"""Copies a topic in one transaction, and writes another one, both when it is told to."""


class Life:
    """A process that runs `LATE`."""

    def __init__(self, servers: list[str], group: str, way: str) -> None:
        command = [sys.executable, "-c", LATE, ",".join(servers), group, way, str(PARTED)]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            text=True,
        )

    def hear(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def tell(self, word: str = "") -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(word + "\n")
        self._process.stdin.flush()

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def lives() -> Iterator[list[Life]]:
    found: list[Life] = []
    yield found
    for life in found:
        life.kill()


@pytest.mark.parametrize(
    ("way", "first", "refusals"),
    [
        ("by hand", "old", {"new": "40912"}),
        ("by hand", "new", {"old": "fenced"}),
        ("member", "old", {"old": "40403"}),
        ("member", "new", {"old": "fenced"}),
    ],
)
def test_one_of_two_lives_commits_what_both_have_read(
    cluster: LiveCluster,
    servers: list[str],
    lives: list[Life],
    way: str,
    first: str,
    refusals: dict[str, str],
) -> None:
    """Rule S8: a new life that has not learnt the group yet does not fence the old one there.

    One new life is killed between its inits, at the id's own home and at the group's; another one
    has only the first behind it when the old life commits. Without offsets the old one is fenced.
    """
    group = f"late-{way.replace(' ', '-')}-{first}"
    for name in ("in", "out"):
        asyncio.run(cluster.create_topic(f"{group}-{name}", 1))
    inputs = [f"{number:04} {'x' * 1_000}" for number in range(PARTED)]
    with Producer(servers) as plain:
        for value in inputs:
            plain.produce(f"{group}-in", value)

    def begun() -> Life:
        lives.append(Life(servers, group, way))
        assert lives[-1].hear() == "begun"
        return lives[-1]

    old = begun()
    old.tell("send")
    member = old.hear()
    begun().kill()
    new = begun()
    new.tell("read")
    if way == "member":  # as if it had not been heard of for a session
        with Admin(servers) as admin:
            admin.remove_members(group, [member])
    new.hear()
    by_name = {"old": old, "new": new}
    for name in sorted(by_name, key=lambda one: one != first):
        by_name[name].tell()
        assert by_name[name].hear() == refusals.get(name, "committed"), name
        by_name[name].tell()
        assert by_name[name].hear() == ("fenced" if name == "old" else "committed")
    assert values(servers, f"{group}-out") == [*inputs, "without input"]


def test_the_sum_is_conserved_while_brokers_are_killed(
    cluster: LiveCluster, servers: list[str]
) -> None:
    count = 45
    with Producer(servers, transactional_id="bank") as producer:
        for number in range(count):
            if number in {10, 25}:
                asyncio.run(cluster.kill(f"broker-{1 + number % 3}"))
            with producer.transaction(timeout=WAIT_S) as txn:
                txn.produce("debits", [number, -number], key=f"a{number % 7}")
                txn.produce("credits", [number, number], key=f"b{number % 5}")
    debits, credited = values(servers, "debits"), values(servers, "credits")
    assert sorted(debits) == [[number, -number] for number in range(count)]
    assert sorted(credited) == [[number, number] for number in range(count)]
