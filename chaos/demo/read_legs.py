"""Legs of the demo that read the flights as users do: a consumer group, and a Spark query.

`play_group` reads with three members on three brokers, one of which is killed while it reads; each
member is a process (`group_member.py`) that writes its deliveries to a file. `play_spark` runs a
query from the flights into a second topic. Both compare with `DemoContext.held`, the topic's
content as the legs before have read it back.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from chaos.checkers.groups import (
    Delivery,
    Place,
    check_all_delivered,
    check_one_owner,
    check_taken_over,
)
from chaos.checkers.records import check_delays
from chaos.checkers.verdict import Verdict, verdict
from chaos.cluster import ClusterError
from chaos.deadline import within
from chaos.demo.context import TOPIC
from chaos.demo.group_member import ROW, SESSION_TIMEOUT_MS, deliveries, digest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from pathlib import Path

    from chaos.cluster import ClusterFile, Node
    from chaos.demo.context import DemoContext
    from chaos.history import Line, Reading
    from chaos.http import Http

GROUP = "arrivals"
MEMBERS = 3
JOIN_DEADLINE_S = 20.0
READ_DEADLINE_S = 90.0
LEAVE_DEADLINE_S = 20.0
KILL_AT_SHARE = 0.2
"""Share of the fullest partition read before the kill; the rest is left for the successor."""
TAKE_OVER_LIMIT_MS = SESSION_TIMEOUT_MS + 4_000
POLL_S = 0.02
READS_OF_FULLEST = 40
"""Fewest answers that the fullest partition takes, so that the kill comes while it is read."""
READ_BYTES = (2_048, 524_288)
"""Smallest and largest `max_bytes` of a member's request."""


@dataclass(frozen=True, slots=True)
class _Member:
    """A running member and the file it writes."""

    name: str
    process: asyncio.subprocess.Process
    out: Path

    @property
    def rows(self) -> int:
        """Number of records delivered so far."""
        return self.out.stat().st_size // ROW.size if self.out.exists() else 0


async def play_group(context: DemoContext) -> None:
    """Read the topic with a group whose busiest member is killed, and check the deliveries."""
    held = context.held
    assert held is not None, "the legs before have read the topic back"
    total = sum(len(lines) for lines in held.partitions.values())
    fullest = max(held.partitions, key=lambda partition: len(held.partitions[partition]))
    began = time.monotonic()
    async with _members(context, held.partitions[fullest]) as members:
        context.run.screen.say(
            f"group {GROUP}: {MEMBERS} members read {total:,} records, a broker each"
        )
        await _kill_at(members, fullest, int(KILL_AT_SHARE * len(held.partitions[fullest])))
        at_ms = context.clock.monotonic_ms()
        killed = max(members, key=lambda member: _end(deliveries(member.out), fullest))
        killed.process.send_signal(signal.SIGKILL)
        await killed.process.wait()
        context.run.screen.say(
            f"killed {killed.name}, which owned the fullest partition ({fullest})"
        )
        await _read_whole(members, killed, total)
        await _leave([member for member in members if member is not killed])
        read = {member.name: deliveries(member.out) for member in members}
    context.run.screen.say(f"group {GROUP} read everything in {time.monotonic() - began:.1f} s")
    for one in (
        check_all_delivered(held, _digests(held), read),
        check_one_owner(read, killed.name),
        check_taken_over(read, killed.name, fullest, at_ms, TAKE_OVER_LIMIT_MS),
        await _check_committed(context.http, context.cluster.read(), held),
    ):
        context.run.judge(replace(one, name=f"group: {one.name}"))


@asynccontextmanager
async def _members(context: DemoContext, fullest: Sequence[Line]) -> AsyncIterator[list[_Member]]:
    """Yield members that have all joined and now read; none is left afterwards."""
    stored = sum(len(line.key) + len(line.value) for line in fullest)
    least, most = READ_BYTES
    max_bytes = min(most, max(least, stored // READS_OF_FULLEST))
    brokers = context.cluster.read().brokers
    members: list[_Member] = []
    try:
        for number in range(MEMBERS):
            broker = brokers[number % len(brokers)]
            name = f"member-{number + 1}"
            members.append(await _start(broker, name, context.run.directory, max_bytes))
        async with within(JOIN_DEADLINE_S, f"{MEMBERS} members have joined group {GROUP}"):
            for member in members:
                assert member.process.stdout is not None
                if await member.process.stdout.readline() != b"joined\n":
                    raise await _died(member)
        for member in members:
            assert member.process.stdin is not None
            member.process.stdin.write(b"go\n")
        yield members
    finally:
        for member in members:
            if member.process.returncode is None:
                member.process.kill()
            await member.process.wait()


async def _start(broker: Node, name: str, directory: Path, max_bytes: int) -> _Member:
    out = directory / f"{name}.rows"
    arguments = ["--url", broker.url, "--group", GROUP, "--name", name, "--topic", TOPIC]
    arguments += ["--max-bytes", str(max_bytes), "--out", str(out)]
    with (directory / f"{name}.err").open("wb") as errors:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "chaos.demo.group_member",
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
        )
    return _Member(name, process, out)


async def _died(member: _Member) -> ClusterError:
    code = await member.process.wait()
    errors = member.out.with_suffix(".err").read_text().strip()
    return ClusterError(f"{member.name} ended with {code}: {errors or 'without a word'}")


async def _alive(members: Sequence[_Member]) -> None:
    for member in members:
        if member.process.returncode is not None:
            raise await _died(member)


async def _kill_at(members: Sequence[_Member], partition: int, offset: int) -> None:
    """Wait until a member has received the partition up to this offset."""
    async with within(READ_DEADLINE_S, f"the group reads partition {partition} up to {offset}"):
        while True:
            await _alive(members)
            for member in members:
                if _end(deliveries(member.out), partition) > offset:
                    return
            await asyncio.sleep(POLL_S)


def _end(rows: Sequence[Delivery], partition: int) -> int:
    return max((row.offset + 1 for row in rows if row.partition == partition), default=0)


async def _read_whole(members: Sequence[_Member], killed: _Member, total: int) -> None:
    async with within(READ_DEADLINE_S, f"group {GROUP} reads all {total:,} records"):
        while True:
            await _alive([member for member in members if member is not killed])
            if sum(member.rows for member in members) >= total:
                places = {(d.partition, d.offset) for one in members for d in deliveries(one.out)}
                if len(places) >= total:
                    return
            await asyncio.sleep(POLL_S)


async def _leave(members: Sequence[_Member]) -> None:
    for member in members:
        assert member.process.stdin is not None
        member.process.stdin.close()
    async with within(LEAVE_DEADLINE_S, f"the members of group {GROUP} leave"):
        for member in members:
            if await member.process.wait():
                raise await _died(member)


def _digests(held: Reading) -> Mapping[Place, int]:
    return {
        (partition, line.offset): digest(line.key, line.value)
        for partition, lines in held.partitions.items()
        for line in lines
    }


async def _check_committed(http: Http, now: ClusterFile, held: Reading) -> Verdict:
    """Check that the members which left had committed all their deliveries."""
    path = f"/v3/clusters/{now.cluster_id}/consumer-groups/{GROUP}"
    committed = await http.committed_offsets(now.brokers[-1].url + path, TOPIC)
    ends = {
        partition: lines[-1].offset + 1 for partition, lines in held.partitions.items() if lines
    }
    return verdict(
        "committed to the end",
        f"{len(ends)} partitions, {sum(ends.values()):,} records",
        [
            f"partition {partition}: committed {committed.get(partition)}, end {end}"
            for partition, end in ends.items()
            if committed.get(partition) != end
        ],
    )


PIPELINE = "spark_source.pipelines.flights"
RESULTS = "delays"
SPARK_DEADLINE_S = 240.0
"""Deadline of the query: some 30 s on two quiet cores, its start included; much more on busy ones.
"""
TABLE_LINES = 9


async def play_spark(context: DemoContext) -> None:
    """Run the query as a user would, show its table, and check the topic of results."""
    held = context.held
    assert held is not None, "the legs before have read the topic back"
    began = time.monotonic()
    context.run.screen.say(
        f"Spark: delays per carrier and month, from {TOPIC} into topic {RESULTS}"
    )
    table = await _query(context.cluster.read(), context.run.directory)
    context.run.screen.say(f"Spark answered in {time.monotonic() - began:.1f} s")
    lines = table.splitlines()
    for line in lines[:TABLE_LINES]:
        context.run.screen.say(f"    {line}")
    if len(lines) > TABLE_LINES:
        context.run.screen.say(f"    … {len(lines) - TABLE_LINES} more")
    flights = [line for lines_of in held.partitions.values() for line in lines_of]
    found = check_delays(
        flights, await _results(context.http, context.cluster.read().brokers[-1].url)
    )
    context.run.judge(replace(found, name=f"Spark: {found.name}"))


async def _results(http: Http, broker: str) -> list[Line]:
    described = await http.get_json(f"{broker}/topics/{RESULTS}")
    return [
        line
        for one in described["partitions"]
        for line in await http.read_partition(broker, RESULTS, one["partition"])
    ]


async def _query(now: ClusterFile, directory: Path) -> str:
    """Run the pipeline and return the table that it printed."""
    urls = ",".join(node.url for node in now.brokers)
    errors = directory / "spark.err"
    with errors.open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            PIPELINE,
            *("--url", urls, "--from", TOPIC, "--to", RESULTS),
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
        )
    try:
        async with within(SPARK_DEADLINE_S, "Spark answers"):
            table, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        last = errors.read_text(errors="replace").strip().splitlines()[-1:]
        msg = f"Spark ended with {process.returncode}: {''.join(last)} (see {errors})"
        raise ClusterError(msg)
    return table.decode()
