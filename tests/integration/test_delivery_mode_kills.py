"""The three delivery modes while everything is killed with -9: producer, consumers and brokers.

One writer fills a topic. The examples of docs/examples read it at the same time, each in its mode.
A seed decides in which order the processes die; each is started again at once. In the end the log
judges: what the writer was told is written is there once, and each mode kept its promise.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.integration.test_delivery_modes import (
    EXAMPLES,
    PARTITIONS,
    SESSION_MS,
    until_committed,
)
from tests.integration.test_group_coordinator_kills import coordinator_of
from tests.support.live_cluster import LiveCluster, running

ROOT = Path(__file__).resolve().parents[2]
DONE_S = 40.0
LINE = re.compile(r"(\d+) (\d+) ")
MODES = {
    "least": "at_least_once.py",
    "most": "at_most_once.py",
    "exact": "exactly_once_sqlite.py",
}
WRITER = """
import signal, sys, time
from quorumlog import Producer
url, topic, ledger, life = sys.argv[1:]
is_over = []
signal.signal(signal.SIGINT, lambda *_: is_over.append(True))
with Producer(url) as producer, open(ledger, "a") as written:
    number = 0
    while not is_over:
        batch = [f"{life}-{number + at}" for at in range(20)]
        number += len(batch)
        for value in batch:
            producer.produce(topic, value, key=value[-1])
        producer.flush()
        written.write("".join(f"{value}\\n" for value in batch))
        written.flush()
        time.sleep(0.02)
"""
"""Notes the values that are written, once it knows that they are."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    with running(
        tmp_path_factory.mktemp("modes"), "--set", "broker.session.timeout.ms=1200"
    ) as one:
        yield one


class Programs:
    """The writer and the readers by name, each started again with a new output after a kill."""

    def __init__(self, cluster: LiveCluster, topic: str, directory: Path) -> None:
        self.cluster, self.topic, self.directory = cluster, topic, directory
        self.lives: Counter[str] = Counter()
        self.urls = ",".join(broker.url for broker in cluster.brokers)
        self.running: dict[str, subprocess.Popen[str]] = {}
        for name in ("writer", *MODES):
            self.start(name)

    def start(self, name: str) -> None:
        self.lives[name] += 1
        if name == "writer":
            ledger, life = str(self.directory / "ledger"), str(self.lives[name])
            arguments = ["-c", WRITER, self.urls, self.topic, ledger, life]
        else:
            out = self.directory / ("exact.db" if name == "exact" else self.out(name))
            arguments = [str(EXAMPLES / MODES[name]), "--url", self.urls]
            arguments += ["--topic", self.topic, "--group", self.group(name), "--out", str(out)]
            arguments += ["--batch-records", "20", "--session-ms", str(SESSION_MS)]
        self.running[name] = subprocess.Popen(
            [sys.executable, *arguments],
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stderr=subprocess.PIPE,
            text=True,
        )

    def out(self, name: str) -> str:
        return f"{name}-{self.lives[name]}.txt"

    def group(self, name: str) -> str:
        return f"{self.topic}-{name}"

    def kill(self, name: str) -> None:
        process = self.running[name]
        process.kill()
        _, err = process.communicate()
        assert process.returncode == -signal.SIGKILL, f"{name} had ended: {err}"
        self.start(name)

    def finish(self, name: str) -> None:
        """Ctrl-C: it ends after its batch."""
        process = self.running.pop(name)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=DONE_S)
        assert process.returncode == 0, err

    def kill_all(self) -> None:
        for process in self.running.values():
            process.kill()
            process.communicate()

    def used(self, name: str) -> Counter[tuple[int, int]]:
        """Return the number of uses of each record; a killed life's last line may be cut."""
        found: Counter[tuple[int, int]] = Counter()
        for path in self.directory.glob(f"{name}-*.txt"):
            for line in path.read_text().splitlines():
                match = LINE.match(line)
                if match is not None:
                    found[int(match[1]), int(match[2])] += 1
        return found

    def rows(self) -> list[tuple[int, int]]:
        with contextlib.closing(sqlite3.connect(self.directory / "exact.db")) as database:
            query = "SELECT partition, offset FROM records ORDER BY partition, offset"
            return [(partition, offset) for partition, offset in database.execute(query)]


async def story(cluster: LiveCluster, seed: int, kills: int, directory: Path) -> None:
    topic = f"modes-{seed}"
    await cluster.create_topic(topic, PARTITIONS)
    programs = Programs(cluster, topic, directory)
    random = Random(seed)
    victims: list[str] = []
    try:
        for _ in range(kills):
            if not victims:
                victims = ["writer", *MODES, "leader", "coordinator"]
                random.shuffle(victims)
            await asyncio.sleep(0.3 + random.random() * 0.7)
            victim = victims.pop()
            if victim in programs.running:
                programs.kill(victim)
            else:
                await kill_broker(cluster, programs, victim, random)
        await asyncio.sleep(0.5)
        programs.finish("writer")
        log = await everything(cluster, topic)
        for name in ("least", "most"):
            await until_committed(cluster, programs.group(name))
        await cluster.until(lambda: len(programs.rows()) >= len(log), "all rows", DONE_S)
        for name in MODES:
            programs.finish(name)
    finally:
        programs.kill_all()
    judge(programs, log)


async def kill_broker(
    cluster: LiveCluster, programs: Programs, victim: str, random: Random
) -> None:
    """Kill the leader of a partition, or a mode's coordinator, and wait until it is back."""
    if victim == "leader":
        broker = await cluster.leader(programs.topic, random.randrange(PARTITIONS))
    else:
        broker = await coordinator_of(cluster, programs.group(random.choice([*MODES])))
    pid = await cluster.kill(f"broker-{broker}")
    await cluster.wait_restarted(f"broker-{broker}", pid)
    await cluster.wait_healthy(programs.topic, PARTITIONS)


def judge(programs: Programs, log: dict[tuple[int, int], Any]) -> None:
    stored = Counter(log.values())
    noted = (programs.directory / "ledger").read_text().splitlines()
    assert len(noted) > 100, "too little was written: it proves nothing"
    assert max(stored.values()) == 1, "a record was written twice"
    assert set(noted) <= set(stored), "a record is lost that was acknowledged"
    least, most = programs.used("least"), programs.used("most")
    assert set(least) == set(log)
    assert max(most.values()) == 1
    assert set(most) <= set(log)
    assert programs.rows() == sorted(log)


async def everything(cluster: LiveCluster, topic: str) -> dict[tuple[int, int], Any]:
    """Every record of the topic: its value by (partition, offset)."""
    await cluster.wait_healthy(topic, PARTITIONS)
    found: dict[tuple[int, int], Any] = {}
    for partition in range(PARTITIONS):
        offset = 0
        while rows := (await cluster.fetch(1, topic, partition, offset, wait_ms=0)).body:
            found |= {(partition, row["offset"]): row["value"] for row in rows}
            offset = rows[-1]["offset"] + 1
    return found


async def test_each_delivery_mode_keeps_its_promise_while_all_is_killed(
    cluster: LiveCluster, tmp_path: Path
) -> None:
    await story(cluster, 0, 6, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 11))
async def test_each_delivery_mode_keeps_its_promise_in_ten_orders_of_kills(
    cluster: LiveCluster, tmp_path: Path, seed: int
) -> None:
    await story(cluster, seed, 12, tmp_path)
