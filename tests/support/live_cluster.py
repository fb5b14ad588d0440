"""A real cluster in a test's directory: its processes by name, its answers, and waits that end.

Built on `chaos.cluster`, which knows the product from the outside only. A node's name is that of
its folder (``broker-1``, ``controller-101``).
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from broker.record import batch
from chaos.cluster import (
    ClusterError,
    ClusterFile,
    LocalCluster,
    Node,
    processes_of,
    quorumlog_command,
    runs,
)
from chaos.deadline import within

WAIT_S = 20.0
POLL_S = 0.03
TWINS_LOOKS = 10
ANSWER_S = 20.0
LOCAL_HEADER_BYTES = 20
"""Magic, length and the stamp of one replica stand before a batch's crc (rule Q5)."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Any HTTP answer: `body` parsed if it is JSON, else its text."""

    status: int
    headers: dict[str, str]
    body: Any


class LiveCluster:
    """Owned by a fixture. `kill_everything` leaves no process; every name is a node's folder."""

    def __init__(self, directory: Path, options: Sequence[str] = ()) -> None:
        self._local = LocalCluster(directory, options)
        self._by_hand: list[subprocess.Popen[bytes]] = []
        self.data_dir = self._local.data_dir
        self.environment = self._local.environment

    # -- processes

    async def start(self) -> float:
        """Start `up`; seconds until it said that it is ready."""
        return await self._local.start()

    def kill_everything(self) -> int:
        """SIGKILL to all processes, the supervisor first; how many there were."""
        killed = self._local.kill_everything()
        for child in self._by_hand:
            child.wait()
        self._by_hand.clear()
        return killed

    def read(self) -> ClusterFile:
        """cluster.json as it is now."""
        return self._local.read()

    def pid(self, name: str) -> int | None:
        """The process whose command line names the node's folder."""
        found = processes_of(self.data_dir / name)
        for _ in range(TWINS_LOOKS):
            if len(found) <= 1:
                break
            time.sleep(POLL_S)  # a child between fork and exec has its parent's command line
            found = processes_of(self.data_dir / name)
        assert len(found) <= 1, f"{name} runs {len(found)} times: {found}"
        return found[0] if found else None

    def signal(self, name: str, number: signal.Signals) -> int:
        """Send it to the node's process; the pid."""
        pid = self.pid(name)
        assert pid is not None, f"{name} has no process"
        os.kill(pid, number)
        return pid

    async def kill(self, name: str) -> int:
        """SIGKILL; returns when the process is gone and its connections are closed."""
        pid = self.signal(name, signal.SIGKILL)
        await self.until(lambda: not runs(pid), f"{name} is gone")
        return pid

    def pause(self, name: str) -> None:
        """SIGSTOP: silent, with every connection open."""
        self.signal(name, signal.SIGSTOP)

    def resume(self, name: str) -> None:
        """SIGCONT."""
        self.signal(name, signal.SIGCONT)

    def start_node(self, name: str) -> None:
        """Start a node by hand, as one does beside an `up --no-restart`."""
        kind = name.split("-", maxsplit=1)[0]
        config = self.data_dir / name / "config.toml"
        with (self.data_dir / "logs" / f"{name}.log").open("ab") as log:
            child = subprocess.Popen(
                [*quorumlog_command(), kind, "--config", str(config)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | self.environment,
                start_new_session=True,
            )
        self._by_hand.append(child)

    async def wait_restarted(self, name: str, old_pid: int) -> None:
        """Until the supervisor has started it again under another pid."""
        await self.until(lambda: self.pid(name) not in (None, old_pid), f"{name} is started again")

    def remove_folder(self, name: str) -> None:
        """A lost disk. Only while the node is down."""
        assert self.pid(name) is None
        shutil.rmtree(self.data_dir / name)

    def file(self, path: str) -> str:
        """The text of a file below the data directory."""
        return (self.data_dir / path).read_text()

    def directory_id(self, name: str) -> str:
        """What the node's folder says it is."""
        return str(json.loads(self.file(f"{name}/meta.json"))["directory_id"])

    def batches_on_disk(self, broker: int, topic: str, partition: int) -> list[bytes]:
        """The partition's batches as on the broker's disk, without what each replica stamps."""
        folder = self.data_dir / f"broker-{broker}" / "log" / f"{topic}-{partition}"
        batches = []
        for segment in sorted(folder.glob("*.log")):
            content = segment.read_bytes()
            for at, header in batch.walk(content):
                batches.append(content[at + LOCAL_HEADER_BYTES : at + header.size])
        return batches

    def log(self, name: str) -> str:
        """Everything the node logged."""
        return (self.data_dir / "logs" / f"{name}.log").read_text(errors="replace")

    # -- addresses

    @property
    def brokers(self) -> list[Node]:
        return [*self.read().brokers]

    @property
    def controllers(self) -> list[Node]:
        return [*self.read().controllers]

    def url(self, broker: int) -> str:
        """The broker's public address."""
        return self.read().node(broker).url

    def others(self, *brokers: int) -> list[Node]:
        """All brokers but these."""
        return [endpoint for endpoint in self.brokers if endpoint.id not in brokers]

    # -- answers

    async def ask(
        self,
        method: str,
        url: str,
        body: object = None,
        headers: dict[str, str] | None = None,
        deadline_s: float = ANSWER_S,
    ) -> Answer:
        """One request on a connection of its own.

        Raises:
            OSError: no answer, aiohttp's errors included.
        """
        timeout = aiohttp.ClientTimeout(total=deadline_s)
        sent = None if body is None else json.dumps(body).encode()
        told = {"Content-Type": "application/json"} if body is not None else {}
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout) as session,
                session.request(method, url, data=sent, headers=told | (headers or {})) as answer,
            ):
                text = await answer.text()
                parsed: Any = text
                with suppress(ValueError):
                    parsed = json.loads(text)
                return Answer(answer.status, dict(answer.headers), parsed)
        except (aiohttp.ClientError, TimeoutError) as error:
            msg = f"{method} {url}: {error!r}"
            raise OSError(msg) from error

    async def create_topic(
        self, topic: str, partitions: int = 1, factor: int = 3, through: int = 1, **configs: str
    ) -> str:
        """Create it and return its topic id."""
        body = {
            "topic_name": topic,
            "partitions_count": partitions,
            "replication_factor": factor,
            "configs": [
                {"name": name.replace("_", "."), "value": value} for name, value in configs.items()
            ],
        }
        answer = await self.ask("POST", self.topics_url(through), body)
        assert answer.status == 201, answer
        return str(answer.body["topic_id"])

    def topics_url(self, through: int) -> str:
        now = self.read()
        return f"{now.node(through).url}/v3/clusters/{now.cluster_id}/topics"

    async def produce(
        self, broker: int, topic: str, *values: object, query: str = "", partition: int = 0
    ) -> Answer:
        """Send once, to an explicit partition, straight to or through a broker."""
        url = f"{self.url(broker)}/topics/{topic}/partitions/{partition}?{query}"
        return await self.ask("POST", url, {"records": [{"value": value} for value in values]})

    async def fetch(
        self, broker: int, topic: str, partition: int = 0, offset: int = 0, wait_ms: int = 1000
    ) -> Answer:
        """One direct fetch."""
        path = f"/topics/{topic}/partitions/{partition}/records"
        return await self.ask(
            "GET", f"{self.url(broker)}{path}?offset={offset}&timeout={wait_ms}&max_bytes=16000000"
        )

    async def partition(
        self, topic: str, partition: int = 0, through: int | None = None
    ) -> dict[str, Any]:
        """v3's description, with `leader_id` (None: no leader) put beside it."""
        now = self.read()
        node = now.node(through) if through is not None else now.brokers[0]
        answer = await self.ask(
            "GET",
            f"{node.url}/v3/clusters/{now.cluster_id}/topics/{topic}/partitions/{partition}",
            deadline_s=3.0,
        )
        if answer.status != 200:
            msg = f"{topic}-{partition} through {node.id}: {answer}"
            raise OSError(msg)
        described: dict[str, Any] = answer.body
        leader = described["leader"]
        described["leader_id"] = (
            None if leader is None else int(str(leader["related"]).rsplit("/", 1)[1])
        )
        return described

    async def leader(self, topic: str, partition: int = 0, through: int | None = None) -> int:
        """The leader's id."""
        described = await self.partition(topic, partition, through)
        assert described["leader_id"] is not None, described
        return int(described["leader_id"])

    async def active_controller(self) -> tuple[int | None, int]:
        """The controller that says it is active in the highest term, and that term."""
        active, highest = None, -1
        for endpoint in self.controllers:
            with suppress(OSError):
                answer = await self.ask(
                    "GET", f"{endpoint.url}/controller/v1/status", deadline_s=1.0
                )
                status = answer.body
                if status["is_active"] and status["term"] > highest:
                    active, highest = endpoint.id, status["term"]
        return active, highest

    # -- waits

    async def until(
        self,
        condition: Callable[[], bool | Awaitable[bool]],
        what: str,
        deadline_s: float = WAIT_S,
    ) -> None:
        """Until it holds. A question that gets no answer is one that does not hold yet."""
        async with within(deadline_s, what):
            while True:
                with suppress(OSError, ClusterError):
                    held = condition()
                    if not isinstance(held, bool):
                        held = await held
                    if held:
                        return
                await asyncio.sleep(POLL_S)

    async def wait_isr(
        self,
        topic: str,
        partition: int,
        brokers: set[int],
        through: int,
        deadline_s: float = WAIT_S,
    ) -> None:
        """Until the partition's in-sync replicas are these, and one of them leads."""

        async def holds() -> bool:
            described = await self.partition(topic, partition, through)
            return set(described["isr"]) == brokers and described["leader_id"] in brokers

        await self.until(holds, f"the ISR of {topic}-{partition} is {brokers}", deadline_s)

    async def wait_healthy(
        self, topic: str | None = None, partitions: int = 1, deadline_s: float = WAIT_S
    ) -> None:
        """Until every broker is ready and, of the topic, every replica is in sync."""
        for broker in self.brokers:
            url = broker.url

            async def ready(url: str = url) -> bool:
                return (await self.ask("GET", f"{url}/readyz", deadline_s=2.0)).status == 200

            await self.until(ready, f"broker {broker.id} is ready", deadline_s)
        for partition in range(partitions if topic else 0):
            ids = {broker.id for broker in self.brokers}
            await self.wait_isr(str(topic), partition, ids, self.brokers[0].id, deadline_s)

    async def wait_same_on_disk(self, topic: str, partitions: int) -> None:
        """Until all replicas hold the same lines, and some, now that nobody writes."""

        def same() -> bool:
            for partition in range(partitions):
                try:
                    logs = [self.batches_on_disk(one.id, topic, partition) for one in self.brokers]
                except batch.BatchError:
                    return False  # a batch is being written
                if not logs[0] or any(log != logs[0] for log in logs):
                    return False
            return True

        await self.until(same, f"the replicas of {topic} are equal")


@contextmanager
def running(directory: Path, *options: str) -> Iterator[LiveCluster]:
    """A cluster that is ready; nothing of it is left afterwards. For module-scoped fixtures."""
    cluster = LiveCluster(directory, options)
    try:
        asyncio.run(cluster.start())
        yield cluster
    finally:
        cluster.kill_everything()
