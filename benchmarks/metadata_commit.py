"""Costs of the metadata quorum: three real voters on loopback, with fdatasync.

Commit latency one after another, commands per second in a pipeline, time from the SIGKILL of the
leader to the next commit, CPU of an idle voter, and the time for which a snapshot of 100,000
partitions blocks the leader's loop. The load is made in the leader's own process, as the active
controller does.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import signal
import socket
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from benchmarks.processes import ROOT, cpu_seconds
from benchmarks.report import Row, at_least, at_most, machine, missed, percentile, table
from http_api.node.node_start import freeze_collector, run_loop, shorten_thread_switches
from raft_metadata.common.faults import ProcessFaultHandler
from raft_metadata.common.ids import (
    BrokerId,
    ClusterId,
    DirectoryId,
    LeaderEpoch,
    NodeId,
    PartitionEpoch,
    PartitionId,
    TopicId,
    TopicName,
)
from raft_metadata.image.metadata_state_machine import MetadataStateMachine
from raft_metadata.quorum.config import QuorumConfig
from raft_metadata.quorum.data_dir import Identity, format_raft_dir
from raft_metadata.quorum.metadata_quorum import MetadataQuorum
from raft_metadata.quorum.raft_node import Leadership
from raft_metadata.records.records import MetadataRecord, PartitionRecord, TopicRecord
from raft_metadata.records.serde import encode_batch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

VOTERS = (101, 102, 103)
COMMAND = b"\0" + b"c" * 59
"""A command of 60 bytes, the size of the smallest records; its first byte marks it as no batch."""
PARTITIONS_PER_TOPIC = 1000
RING_S = 0.001
"""Interval of the timer that detects blocks of the leader's loop."""
WAIT_S = 30.0


# ---------------------------------------------------------------- one voter's process


class Machine(MetadataStateMachine):
    """The real state machine, which also accepts commands that change nothing."""

    @override
    def apply(self, index: int, term: int, payload: bytes) -> Any:
        return None if payload[0] == 0 else super().apply(index, term, payload)


class Voter:
    """A voter, controlled by lines of JSON on its standard input."""

    def __init__(self, node: int, root: Path, addresses: dict[int, str]) -> None:
        self.machine = Machine()
        self.quorum = MetadataQuorum(
            QuorumConfig(
                node_id=NodeId(node),
                cluster_id=ClusterId("bench"),
                directory_id=DirectoryId(f"disk-{node}"),
                raft_dir=root / f"raft-{node}",
                bind=addresses[node],
                voters={NodeId(voter): address for voter, address in addresses.items()},
            ),
            self.machine,
            ProcessFaultHandler(),
        )
        self._first: asyncio.Future[object] | None = None

    def on_activated(self, leadership: Leadership) -> None:
        self._first = self._submit()

    def on_deactivated(self) -> None:
        pass

    def on_applied(self) -> None:
        pass

    def _submit(self, payload: bytes = COMMAND) -> asyncio.Future[object]:
        return self.quorum.submit(payload, self.quorum.term)

    async def answer(self, question: dict[str, Any]) -> object:
        """Return the requested figure."""
        match question["do"]:
            case "status":
                return dict(self.quorum.status())
            case "leads":
                if self._first is None or not self.quorum.is_leader:
                    return False
                await self._first
                return True
            case "sequential":
                return await self._sequential(question["seconds"])
            case "pipelined":
                return await self._pipelined(question["seconds"], question["window"])
            case "fill":
                return await self._fill(question["partitions"])
            case "snapshot":
                return await self._snapshot()
            case _:
                raise ValueError(question)

    async def _sequential(self, seconds: float) -> list[float]:
        took, end = [], time.monotonic() + seconds
        while time.monotonic() < end:
            start = time.monotonic()
            await self._submit()
            took.append(time.monotonic() - start)
        return took

    async def _pipelined(self, seconds: float, window: int) -> float:
        start = time.monotonic()
        end, done = start + seconds, 0

        async def one_after_another() -> None:
            nonlocal done
            while time.monotonic() < end:
                await self._submit()
                done += 1

        await asyncio.gather(*(one_after_another() for _ in range(window)))
        return done / (time.monotonic() - start)

    async def _fill(self, partitions: int) -> int:
        for number in range(partitions // PARTITIONS_PER_TOPIC):
            offset = self.machine.image.next_offset
            await self._submit(encode_batch(offset, self.quorum.term, list(_topic(number))))
        return self.machine.image.next_offset

    async def _snapshot(self) -> dict[str, float]:
        loop = asyncio.get_running_loop()
        gaps: list[float] = []
        last = loop.time()

        ringing = True

        def ring() -> None:
            nonlocal last
            gaps.append(loop.time() - last)
            last = loop.time()
            if ringing:
                loop.call_later(RING_S, ring)

        ring()
        await self._sequential(1)
        usual = max(gaps)
        gaps.clear()
        first = self.quorum.status()["first_index"]
        start = loop.time()
        self.quorum._running.forceLogCompaction()  # noqa: SLF001 operators have no need of it
        while self.quorum.status()["first_index"] == first:
            await self._sequential(0.05)
            if loop.time() - start > WAIT_S:
                raise TimeoutError("no snapshot")
        ringing = False
        return {"pause_s": max(gaps), "usual_s": usual, "took_s": loop.time() - start}

    async def run(self) -> None:
        """Handle requests until the end of the input."""
        await self.quorum.start(self)
        freeze_collector()  # both as a controller's process does
        shorten_thread_switches()
        reader = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while line := await reader.readline():
            print(json.dumps(await self.answer(json.loads(line))), flush=True)
        await self.quorum.stop()


def _topic(number: int) -> Iterator[MetadataRecord]:
    topic = TopicId(f"{number:022d}")
    count = PARTITIONS_PER_TOPIC
    yield TopicRecord(name=TopicName(f"topic-{number}"), topic_id=topic, partitions_count=count)
    brokers = (BrokerId(1), BrokerId(2), BrokerId(3))
    for partition in range(count):
        yield PartitionRecord(
            topic_id=topic,
            partition=PartitionId(partition),
            replicas=brokers,
            directories=(DirectoryId("a" * 22), DirectoryId("b" * 22), DirectoryId("c" * 22)),
            isr=brokers,
            elr=(),
            leader=brokers[partition % 3],
            leader_epoch=LeaderEpoch(0),
            partition_epoch=PartitionEpoch(0),
        )


# ---------------------------------------------------------------- the cluster


@dataclass(slots=True)
class Running:
    """A voter's process, from start to end."""

    process: asyncio.subprocess.Process

    async def ask(self, do: str, **question: Any) -> Any:
        """Return the process's answer, or raise RuntimeError if it died."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"do": do, **question}).encode() + b"\n")
        line = await self.process.stdout.readline()
        if not line:
            msg = f"a voter ended with {await self.process.wait()}"
            raise RuntimeError(msg)
        return json.loads(line)

    async def kill(self) -> None:
        """Kill the process by SIGKILL."""
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGKILL)
        await self.process.wait()


class Cluster:
    """Three voters in three processes."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._addresses = free_addresses(VOTERS)
        self._log = (root / "log").open("ab")
        self.up: dict[int, Running] = {}
        directories = {NodeId(node): DirectoryId(f"disk-{node}") for node in VOTERS}
        for node, directory in directories.items():
            identity = Identity(cluster_id=ClusterId("bench"), node_id=node, directory_id=directory)
            format_raft_dir(root / f"raft-{node}", identity, directories)

    async def start(self, *nodes: int) -> None:
        """Start these voters."""
        for node in nodes:
            known = json.dumps([node, str(self._root), self._addresses])
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "benchmarks.metadata_commit", "--voter", known),
                cwd=ROOT,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=self._log,
                limit=64 << 20,
            )
            self.up[node] = Running(process)

    async def leader(self) -> int:
        """Return the leader, once it has committed a command."""
        async with asyncio.timeout(WAIT_S):
            while True:
                for node, voter in self.up.items():
                    if await voter.ask("leads"):
                        return node
                await asyncio.sleep(0.005)

    async def settled(self) -> None:
        """Wait until every voter holds the same log and knows that it is committed."""
        async with asyncio.timeout(WAIT_S):
            while True:
                states = [await voter.ask("status") for voter in self.up.values()]
                if len({(s["commit_index"], s["last_index"]) for s in states}) == 1:
                    return
                await asyncio.sleep(0.02)

    async def stop(self) -> None:
        """Kill all voters."""
        await asyncio.gather(*(voter.kill() for voter in self.up.values()))
        self._log.close()


def free_addresses(nodes: Sequence[int]) -> dict[int, str]:
    """Return loopback addresses that are free at the moment."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in nodes]
    addresses = [f"127.0.0.1:{listener.getsockname()[1]}" for listener in sockets]
    for listener in sockets:
        listener.close()
    return dict(zip(nodes, addresses, strict=True))


# ---------------------------------------------------------------- the figures


async def commits(cluster: Cluster, seconds: float) -> list[Row]:
    """Measure latency one after another, and throughput with 64 and 1,000 in flight."""
    leader = cluster.up[await cluster.leader()]
    took = [1000 * s for s in await leader.ask("sequential", seconds=seconds)]
    rows = [
        Row(
            what="commit, one after another, p50",
            product=f"{median(took):.2f} ms",
            value=median(took),
            budget=at_most(1.5, " ms"),
            note=f"p99 {percentile(took, 0.99):.1f} ms, {len(took)} commits",
        )
    ]
    for window, budget in ((64, None), (1000, at_least(15_000, "/s"))):
        rate = await leader.ask("pipelined", seconds=seconds, window=window)
        rows.append(
            Row(
                what=f"commands a second, {window:,} in flight",
                product=f"{rate:,.0f}/s",
                value=rate,
                budget=budget,
            )
        )
    return rows


async def kills(cluster: Cluster, trials: int) -> Row:
    """Measure from SIGKILL of the leader until another one has committed a command of its own."""
    gaps = []
    for _ in range(trials):
        leader = await cluster.leader()
        await cluster.settled()
        start = time.monotonic()
        await cluster.up.pop(leader).kill()
        await cluster.leader()
        gaps.append(time.monotonic() - start)
        await cluster.start(leader)
        await cluster.settled()
    return Row(
        what=f"leader SIGKILL to next commit, worst of {trials}",
        product=f"{max(gaps):.2f} s",
        value=max(gaps),
        budget=at_most(1.5, " s"),
        note=f"p50 {median(gaps):.2f} s",
    )


async def idle(cluster: Cluster, seconds: float) -> Row:
    """Measure the CPU of the busiest voter without requests."""
    await cluster.leader()
    before = {node: cpu_seconds(voter.process.pid) for node, voter in cluster.up.items()}
    await asyncio.sleep(seconds)
    used = [cpu_seconds(voter.process.pid) - before[node] for node, voter in cluster.up.items()]
    share = max(used) / seconds * 100
    return Row(
        what=f"CPU of an idle voter over {seconds:g} s",
        product=f"{share:.1f} %",
        value=share,
        budget=at_most(1.5, " %"),
        note="the busiest of three, of one core",
    )


async def snapshot(cluster: Cluster, partitions: int) -> Row:
    """Return the longest block of the leader's loop while it wrote a snapshot."""
    leader = cluster.up[await cluster.leader()]
    await leader.ask("fill", partitions=partitions)
    await cluster.settled()
    figures = await leader.ask("snapshot")
    pause_ms = 1000 * figures["pause_s"]
    return Row(
        what=f"pause by a snapshot of {partitions:,} partitions",
        product=f"{pause_ms:.0f} ms",
        value=pause_ms,
        budget=at_most(50, " ms"),
        note=f"written in {figures['took_s']:.1f} s; "
        f"without one {1000 * figures['usual_s']:.0f} ms",
    )


SECTIONS = ("idle", "commit", "kill", "snapshot")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Durations, numbers of rounds, and the folder of the voters' disks."""

    sections: tuple[str, ...] = SECTIONS
    seconds: float = 5.0
    idle_s: float = 20.0
    trials: int = 50
    partitions: int = 100_000
    folder: Path | None = None


async def measure(kills: int, partitions: int) -> list[Row]:
    """Run all sections for `make bench-metadata`."""
    return await run(Options(trials=kills, partitions=partitions))


async def run(options: Options) -> list[Row]:
    """Run every section on one cluster; the state grows last."""
    rows: list[Row] = []
    root = Path(tempfile.mkdtemp(prefix="quorumlog-bench-", dir=options.folder))
    async with AsyncExitStack() as stack:
        stack.callback(shutil.rmtree, root)
        cluster = Cluster(root)
        stack.push_async_callback(cluster.stop)
        await cluster.start(*VOTERS)
        if "idle" in options.sections:
            rows.append(await idle(cluster, options.idle_s))
        if "commit" in options.sections:
            rows += await commits(cluster, options.seconds)
        if "kill" in options.sections:
            rows.append(await kills(cluster, options.trials))
        if "snapshot" in options.sections:
            rows.append(await snapshot(cluster, options.partitions))
    return rows


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="metadata_commit", description=__doc__)
    parser.add_argument("sections", nargs="*", default=SECTIONS, help=", ".join(SECTIONS))
    parser.add_argument("--seconds", type=float, default=5, help="each commit figure")
    parser.add_argument("--idle-seconds", type=float, default=20)
    parser.add_argument("--trials", type=int, default=50, help="kills of the leader")
    parser.add_argument("--partitions", type=int, default=100_000)
    parser.add_argument("--dir", type=Path, help="of the voters' disks; default: the temporary one")
    parser.add_argument("--voter", help=argparse.SUPPRESS)
    said = parser.parse_args()
    if said.voter:
        node, root, known = json.loads(said.voter)
        voter = Voter(node, Path(root), {int(other): address for other, address in known.items()})
        run_loop(voter.run())
        return
    print(machine())
    options = Options(
        sections=tuple(said.sections),
        seconds=said.seconds,
        idle_s=said.idle_seconds,
        trials=said.trials,
        partitions=said.partitions,
        folder=said.dir,
    )
    rows = asyncio.run(run(options))
    print(table(rows))
    print(missed(rows))


if __name__ == "__main__":
    main()
