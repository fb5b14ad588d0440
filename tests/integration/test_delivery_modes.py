"""The examples of docs/examples, each killed with -9 at its worst point and started again.

The kill comes from inside, in the middle of using a batch: after the commit of at most once,
before the commit of at least once, inside the transaction of exactly once.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.live_cluster import LiveCluster, running

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "docs" / "examples"
PARTITIONS = 3
RECORDS = 600
BATCH_RECORDS = 20
"""A tenth of what a partition holds: a kill comes amid many commits."""
SESSION_MS = 1_500
"""Time for which the others wait for a dead member's partitions."""
DONE_S = 30.0

KILLED_AT = """
import os, signal, sys
from quorumlog import Consumer
what, left, *sys.argv = sys.argv[1], int(sys.argv[2]), *sys.argv[3:]
example = type(sys)("example")
exec(compile(open(sys.argv[0]).read(), sys.argv[0], "exec"), example.__dict__)
owner = Consumer if what == "commit" else example
doing = getattr(owner, what)
def do_until_killed(*arguments, **named):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return doing(*arguments, **named)
setattr(owner, what, do_until_killed)
example.main()
"""
"""Runs an example unchanged, but for the kill before the n-th commit, or use of a record."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    with running(tmp_path_factory.mktemp("cluster")) as started:
        yield started


async def fill(cluster: LiveCluster, topic: str) -> list[tuple[int, int]]:
    """A topic of numbered records; every (partition, offset)."""
    await cluster.create_topic(topic, PARTITIONS)
    each = RECORDS // PARTITIONS
    for partition in range(PARTITIONS):
        values = [f"{topic} {partition} {number} {'x' * 100}" for number in range(each)]
        answer = await cluster.produce(1, topic, *values, partition=partition)
        assert answer.status == 200, answer
    return [(partition, offset) for partition in range(PARTITIONS) for offset in range(each)]


def command(example: str, cluster: LiveCluster, topic: str, out: Path) -> list[str]:
    urls = ",".join(broker.url for broker in cluster.brokers)
    options = ["--url", urls, "--topic", topic, "--out", str(out)]
    options += ["--batch-records", str(BATCH_RECORDS)]
    options += ["--group", topic, "--session-ms", str(SESSION_MS)]
    return [str(EXAMPLES / example), *options]


def start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        text=True,
    )


def killed_half_way(arguments: list[str], what: str, count: int) -> None:
    """Run it until it kills itself before it does this for the n-th time."""
    process = start("-c", KILLED_AT, what, str(count), *arguments)
    _, err = process.communicate(timeout=DONE_S)
    assert process.returncode == -signal.SIGKILL, err


def finish(process: subprocess.Popen[str]) -> None:
    """Ctrl-C: it ends after its batch."""
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=DONE_S)
    assert (process.returncode, err) == (0, "")


async def until_committed(cluster: LiveCluster, group: str) -> None:
    """Until the group has committed all there is."""
    now = cluster.read()
    url = f"{now.brokers[1].url}/v3/clusters/{now.cluster_id}/consumer-groups/{group}/offsets"

    async def caught_up() -> bool:
        rows = (await cluster.ask("GET", url)).body["data"]
        return [row["lag"] for row in rows] == [0] * PARTITIONS

    await cluster.until(caught_up, f"{group} has committed everything", DONE_S)


def lines(out: Path) -> Counter[tuple[int, int]]:
    """How often each record was used, by (partition, offset)."""
    used = []
    for line in out.read_text(encoding="utf-8").splitlines():
        partition, offset, value = line.split(" ", 2)
        assert value.endswith('x"'), line
        used.append((int(partition), int(offset)))
    return Counter(used)


async def test_at_least_once_misses_nothing(cluster: LiveCluster, tmp_path: Path) -> None:
    everything = await fill(cluster, "least")
    out = tmp_path / "out.txt"
    arguments = command("at_least_once.py", cluster, "least", out)
    killed_half_way(arguments, "commit", 8)
    again = start(*arguments)
    await until_committed(cluster, "least")
    finish(again)
    used = lines(out)
    assert sorted(used) == everything
    assert max(used.values()) >= 2, "the kill left nothing to be done again: it proves nothing"


async def test_at_most_once_repeats_nothing(cluster: LiveCluster, tmp_path: Path) -> None:
    everything = await fill(cluster, "most")
    out = tmp_path / "out.txt"
    arguments = command("at_most_once.py", cluster, "most", out)
    killed_half_way(arguments, "use", RECORDS // 2)
    again = start(*arguments)
    await until_committed(cluster, "most")
    finish(again)
    used = lines(out)
    assert max(used.values()) == 1
    missing = set(everything) - set(used)
    assert missing, "the kill lost nothing: it proves nothing"
    assert len(missing) < RECORDS // 4, "more than a batch is missing"


async def test_exactly_once_has_each_record_once(cluster: LiveCluster, tmp_path: Path) -> None:
    everything = await fill(cluster, "exact")
    out = tmp_path / "out.db"
    arguments = command("exactly_once_sqlite.py", cluster, "exact", out)
    killed_half_way(arguments, "use", RECORDS // 2)
    database = sqlite3.connect(out)
    try:
        kept = rows(database)
        assert 0 < len(kept) < RECORDS // 2, "the kill cut no transaction: it proves nothing"
        again = start(*arguments)
        await cluster.until(lambda: len(rows(database)) >= RECORDS, "all rows are there", DONE_S)
        finish(again)
        assert rows(database) == everything
    finally:
        database.close()


def rows(database: sqlite3.Connection) -> list[tuple[int, int]]:
    query = "SELECT partition, offset FROM records ORDER BY partition, offset"
    return [(partition, offset) for partition, offset in database.execute(query)]
