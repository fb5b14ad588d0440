"""Read tokens on a live cluster: answers get lost, and so does the coordinator (rule G5)."""

from __future__ import annotations

import json
import os
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.documented_cluster import DocumentedCluster, documented_cluster

RECORDS = 300
DEADLINE_S = 40
JSON_V2 = "application/vnd.kafka.json.v2+json"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DocumentedCluster]:
    with documented_cluster(tmp_path_factory.mktemp("tokens")) as found:
        yield found


@dataclass
class Reader:
    """A consumer of one instance whose network loses every third answer to a read."""

    cluster: DocumentedCluster
    topic: str
    tokens: bool
    token: str = "0"
    held: list[int] = field(default_factory=list)
    lost: int = 0
    reads: int = 0

    @property
    def path(self) -> str:
        return f"/consumers/{self.topic}-group/instances/one"

    def call(self, method: str, path: str, body: Any = None) -> tuple[dict[str, str], Any]:
        """Ask one broker after the other until one answers."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Accept": JSON_V2} if path.startswith(self.path + "/records") else {}
        if data is not None:
            headers["Content-Type"] = "application/vnd.kafka.v2+json"
        until_s = time.monotonic() + DEADLINE_S
        while True:
            for url in self.cluster.brokers():
                request = urllib.request.Request(url + path, data, headers, method=method)
                try:
                    with urllib.request.urlopen(request, timeout=15) as answer:
                        text = answer.read()
                        return dict(answer.headers), json.loads(text) if text else None
                except urllib.error.HTTPError as error:
                    if error.code != 503:
                        raise
                except OSError:
                    pass
            assert time.monotonic() < until_s, path
            time.sleep(0.05)

    def begin(self) -> None:
        settings = {"name": "one", "format": "json", "auto.offset.reset": "earliest"}
        settings["auto.commit.interval.ms"] = "100"
        self.call("POST", f"/consumers/{self.topic}-group", settings)
        self.call("POST", f"{self.path}/subscription", {"topics": [self.topic]})

    def read(self) -> None:
        after = f"&after={self.token}" if self.tokens else ""
        query = f"?timeout=500&max_bytes=1500{after}"
        headers, records = self.call("GET", f"{self.path}/records{query}")
        self.reads += 1
        if self.reads % 3 == 0:
            self.lost += len(records)
            return  # the answer never arrives
        self.token = headers["Quorumlog-Read-Token"]
        self.held += [record["value"] for record in records]

    def finish(self) -> None:
        until_s = time.monotonic() + DEADLINE_S
        idle = 0
        while idle < 4 and time.monotonic() < until_s:
            before = len(self.held)
            self.read()
            idle = idle + 1 if len(self.held) == before else 0


def write(cluster: DocumentedCluster, topic: str) -> None:
    rows = [{"value": number} for number in range(RECORDS)]
    request = urllib.request.Request(
        f"{cluster.brokers()[0]}/topics/{topic}",
        json.dumps({"records": rows}).encode(),
        {"Content-Type": JSON_V2},
    )
    urllib.request.urlopen(request, timeout=15).close()


def test_rule_g5_lost_answers_lose_nothing_and_nothing_unheld_is_committed(
    cluster: DocumentedCluster,
) -> None:
    write(cluster, "told")
    reader = Reader(cluster, "told", tokens=True)
    reader.begin()
    reader.finish()
    assert reader.lost > 0
    assert reader.held == list(range(RECORDS)), "each once, in order, though answers were lost"
    reader.call("DELETE", f"{reader.path}?after={reader.token}")


def test_without_tokens_the_same_network_loses_records(cluster: DocumentedCluster) -> None:
    """So the test above can fail."""
    write(cluster, "untold")
    reader = Reader(cluster, "untold", tokens=False)
    reader.begin()
    reader.finish()
    assert reader.lost > 0
    assert len(set(reader.held)) == RECORDS - reader.lost


def test_rule_g5_a_killed_coordinator_brings_again_what_was_not_committed(
    cluster: DocumentedCluster,
) -> None:
    write(cluster, "killed")
    reader = Reader(cluster, "killed", tokens=True)
    reader.begin()
    while len(reader.held) < RECORDS // 2:
        reader.read()
    group = f"/v3/clusters/{_cluster_id(cluster)}/consumer-groups/killed-group"
    _, described = reader.call("GET", group)
    coordinator = int(described["coordinator"]["related"].rpartition("/")[2])
    pid = cluster.directory / f"quorumlog-data/broker-{coordinator}/node.pid"
    os.kill(int(Path(pid).read_text()), signal.SIGKILL)
    reader.finish()
    assert set(reader.held) == set(range(RECORDS)), "nothing is skipped; some comes again"


def _cluster_id(cluster: DocumentedCluster) -> str:
    with urllib.request.urlopen(f"{cluster.brokers()[0]}/v3/clusters", timeout=15) as answer:
        found = json.loads(answer.read())
    return str(found["data"][0]["cluster_id"])
