"""`make bench-metadata`: costs of 10,000 and 100,000 partitions, beside the budgets.

Every section has a fresh cluster of three brokers and three controllers. A missed budget is only
reported: the exit status is 0 unless something could not be measured.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import sys
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks import metadata_commit, metadata_fencing, metadata_join, metadata_return
from benchmarks.metadata_log import MetadataLog, Seen
from benchmarks.metadata_stalls import Stalls
from benchmarks.processes import cpu_seconds, memory_mb
from benchmarks.product import product, server_pids
from benchmarks.report import NO_FIGURE, Row, at_most, machine, missed, table
from benchmarks.run import NOT_MEASURED
from chaos.history import Record
from chaos.http import Stored
from raft_metadata.common.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from benchmarks.product import Product

SECTIONS = ("quorum", "create", "leaders", "return", "join", "memory", "fencing")
BY_DEFAULT = ("quorum", "create", "leaders", "return", "join", "memory")
CALM_S = 3.0
"""Wait for registrations, first elections and start-up work to end."""
REQUEST_TIMEOUT_S = 60.0
ASKED_AT_ONCE = 300
"""Number of partitions written to as soon as the last creation is answered."""
ASKED_TIMEOUT_MS = 5_000
SETTLE_S = 8.0
FIRST_PARTITIONS = 100
STALL_BUDGET = at_most(250, " ms")
SEED = 7


@dataclass(frozen=True, slots=True)
class Options:
    """Amount of work."""

    sections: tuple[str, ...]
    partitions: int
    joining: int
    minutes: float
    trials: int
    kills: int


@asynccontextmanager
async def calm_product(*options: str) -> AsyncIterator[Product]:
    """Yield a fresh cluster after its start-up work."""
    async with product(*options) as cluster:
        await asyncio.sleep(CALM_S)
        yield cluster


async def create_topics(
    cluster: Product, topics: int, partitions: int, *, prefix: str = "t"
) -> None:
    """Create all topics at once, RF 3, through every broker; return once all are answered 201."""
    now = cluster.now()

    async def create(number: int) -> None:
        url = f"{now.brokers[number % len(now.brokers)].url}/v3/clusters/{now.cluster_id}/topics"
        body = {
            "topic_name": f"{prefix}{number}",
            "partitions_count": partitions,
            "replication_factor": 3,
        }
        await cluster.http.post_json(url, body, REQUEST_TIMEOUT_S)

    async with asyncio.TaskGroup() as group:
        for number in range(topics):
            group.create_task(create(number))


# ---- creation


async def measure_create(options: Options) -> list[Row]:
    """Create one large topic, and a hundred topics of a hundredth of its size."""
    rows = []
    for topics in (1, 100):
        async with calm_product() as cluster:
            rows += await _create(cluster, topics, options.partitions // topics)
    return rows


async def _create(cluster: Product, topics: int, partitions: int) -> list[Row]:
    clock = SystemClock()
    nodes = (*cluster.now().brokers, *cluster.now().controllers)
    pids = server_pids(cluster.now())
    before = {name: cpu_seconds(pid) for name, pid in pids.items()}
    stalls = Stalls([node.url for node in nodes])
    async with MetadataLog(cluster).followed() as log:
        began_ms = clock.monotonic_ms()
        await create_topics(cluster, topics, partitions)
        answered_ms = clock.monotonic_ms() - began_ms
        longest = stalls.longest()
        late = await _write_to_some(cluster, topics, partitions)
        accepting_ms = clock.monotonic_ms() - began_ms
        cpu = {name: cpu_seconds(pid) - before[name] for name, pid in pids.items()}
        await asyncio.sleep(CALM_S)
    what = f"{topics} × {partitions:,} partitions"
    asked = min(ASKED_AT_ONCE, topics * partitions)
    if late:
        msg = f"{len(late)} of {asked} first writes failed: {late[0]}"
        raise RuntimeError(msg)
    rows = [
        Row(
            what=f"create {what}: request → all leaders accepting",
            product=f"{accepting_ms / 1000:.2f} s",
            value=accepting_ms / 1000,
            budget=at_most(10, " s"),
            note=f"answered after {answered_ms / 1000:.2f} s, then {asked} of its partitions "
            f"written to at once: each acknowledged by all replicas at the first try; CPU of a "
            f"broker {max(v for k, v in cpu.items() if 'broker' in k):.1f} s, of a controller "
            f"{max(v for k, v in cpu.items() if 'controller' in k):.1f} s",
        ),
        Row(
            what=f"create {what}: brokers fenced by it",
            product=str(len(log.fences())),
            value=len(log.fences()),
            budget=at_most(0, ""),
        ),
    ]
    for kind in ("broker", "controller"):
        worst = max(longest.get(node.url, 0.0) for node in nodes if node.kind == kind)
        rows.append(
            Row(
                what=f"create {what}: longest silence of a {kind}",
                product=f"{worst:.0f} ms",
                value=worst,
                budget=STALL_BUDGET,
            )
        )
    return rows


async def _write_to_some(cluster: Product, topics: int, partitions: int) -> list[str]:
    """Return the reasons of those first writes that were not acknowledged."""
    chance = random.Random(SEED)
    everything = [(topic, number) for topic in range(topics) for number in range(partitions)]
    chosen = chance.sample(everything, min(ASKED_AT_ONCE, len(everything)))
    brokers = cluster.now().brokers

    async def write(turn: int, topic: int, number: int) -> str | None:
        (result,) = await cluster.http.produce(
            brokers[turn % len(brokers)].url,
            f"t{topic}/partitions/{number}",
            [Record(b'"k"', b"%d" % turn)],
            ASKED_TIMEOUT_MS,
        )
        return None if isinstance(result, Stored) else result.reason

    tried = await asyncio.gather(*(write(turn, *place) for turn, place in enumerate(chosen)))
    return [reason for reason in tried if reason is not None]


# ---- leaders of a dead broker


async def measure_leaders(options: Options) -> list[Row]:
    """Kill a third of all leaders; then the same, with the active controller killed half way."""
    rows = []
    for controller_too in (False, True):
        worst: Row | None = None
        for _ in range(options.trials):
            async with calm_product("--no-restart") as cluster:
                await create_topics(cluster, 1, options.partitions)
                await asyncio.sleep(CALM_S)
                row = await _move_leaders(cluster, controller_too=controller_too)
                if worst is None or (row.value or 0) > (worst.value or 0):
                    worst = row
        assert worst is not None
        rows.append(worst)
    return rows


async def _move_leaders(cluster: Product, *, controller_too: bool) -> Row:
    led = await _led_by_broker(cluster)
    victim = max(led, key=lambda broker: len(led[broker]))
    clock = SystemClock()
    async with MetadataLog(cluster).followed() as log:
        active = await cluster.active_controller()
        assert active.pid is not None
        fenced = log.first(lambda seen: seen.is_fence(victim))
        killed_ms = clock.monotonic_ms()
        cluster.cluster.signal_node(cluster.now().node(victim), signal.SIGKILL)
        async with asyncio.timeout(REQUEST_TIMEOUT_S):
            fence = await fenced
            if controller_too:
                os.kill(active.pid, signal.SIGKILL)  # signal_node would search /proc first
            last = await _all_moved(log, led[victim], fence)
    moved = Counter(seen.epoch for seen in log.moves(fence.offset))
    took_s = (last.at_ms - fence.at_ms) / 1000
    what = f"a broker that leads {len(led[victim]):,} killed"
    if controller_too:
        what += ", the active controller with its fence record"
    return Row(
        what=f"{what}: fence record → all moved",
        product=f"{took_s:.2f} s",
        value=took_s,
        budget=at_most(2, " s"),
        note=f"offsets {fence.offset} to {last.offset}; changes by controller epoch "
        f"{dict(sorted(moved.items()))}; kill → fence {(fence.at_ms - killed_ms) / 1000:.2f} s; "
        f"{len(log.fences())} broker fenced; worst of the trials",
    )


async def _led_by_broker(cluster: Product) -> dict[int, set[int]]:
    now = cluster.now()
    url = f"{now.brokers[0].url}/topics/t0/partitions"
    found: dict[int, set[int]] = {}
    described: list[dict[str, Any]] = await cluster.http.get_json(url, REQUEST_TIMEOUT_S)
    for partition in described:
        found.setdefault(partition["leader"], set()).add(partition["partition"])
    return found


async def _all_moved(log: MetadataLog, led: set[int], fence: Seen) -> Seen:
    """Wait until each of these partitions has another leader; return the record of the last one."""
    left, looked = set(led), 0
    while True:
        records = list(log.moves(fence.offset))
        for seen in records[looked:]:
            number = seen.record["partition"]
            if seen.record["leader"] not in (fence.record["broker_id"], -1):
                left.discard(number)
            if not left:
                return seen
        looked = len(records)
        await asyncio.sleep(0.01)


async def measure_return(options: Options) -> list[Row]:
    """Measure the return of a broker to every ISR."""
    async with calm_product() as cluster:
        await create_topics(cluster, 1, options.partitions)
        await asyncio.sleep(CALM_S)
        return await metadata_return.measure(cluster, options.partitions)


# ---- memory


async def measure_memory(options: Options) -> list[Row]:
    """Measure the memory that unused partitions cost the processes."""
    async with calm_product() as cluster:
        # Memory for first uses (connections, buffers) must not count as cost of a partition.
        await create_topics(cluster, 1, FIRST_PARTITIONS, prefix="first")
        await asyncio.sleep(CALM_S)
        pids = server_pids(cluster.now())
        before = {name: memory_mb(pid)[0] for name, pid in pids.items()}
        await create_topics(cluster, 1, options.partitions)
        await asyncio.sleep(SETTLE_S)
        after = {name: memory_mb(pid)[0] for name, pid in pids.items()}
        busy = {name: cpu_seconds(pid) for name, pid in pids.items()}
        await asyncio.sleep(SETTLE_S)
        cpu = {name: (cpu_seconds(pid) - busy[name]) / SETTLE_S for name, pid in pids.items()}
    rows = []
    for kind, budget in (("broker", at_most(2, " KB")), ("controller", None)):
        names = [name for name in pids if name.startswith(kind)]
        grown = max(after[name] - before[name] for name in names) * 1024 / options.partitions
        rows.append(
            Row(
                what=f"memory of an idle partition, {kind}, {options.partitions:,} of them",
                product=f"{grown:.2f} KB",
                value=grown,
                budget=budget,
                note=f"resident, largest of {len(names)}: {max(after[n] for n in names):.0f} MB "
                f"from {max(before[n] for n in names):.0f} with {FIRST_PARTITIONS}; CPU meanwhile "
                f"{max(cpu[n] for n in names) * 100:.1f} % of a core",
            )
        )
    return rows


# ---- all of it


async def measure(section: str, options: Options) -> list[Row]:
    """Return one section's rows."""
    match section:
        case "quorum":
            return await metadata_commit.measure(options.kills, options.joining)
        case "create":
            return await measure_create(options)
        case "leaders":
            return await measure_leaders(options)
        case "return":
            return await measure_return(options)
        case "join":
            return await metadata_join.measure(options.joining)
        case "memory":
            return await measure_memory(options)
        case "fencing":
            return await metadata_fencing.measure(options.minutes)
        case _:
            raise ValueError(section)


async def run(options: Options) -> list[Row]:
    """Run all chosen sections."""
    rows: list[Row] = []
    for section in SECTIONS:
        if section in options.sections:
            print(f"measuring {section} …", file=sys.stderr, flush=True)
            try:
                found = await measure(section, options)
            except* NOT_MEASURED as errors:
                found = [Row(what=section, product=NO_FIGURE, note=f"{errors.exceptions!r}"[:300])]
            print(table(found), file=sys.stderr, flush=True)
            rows += found
    return rows


def parse(arguments: Sequence[str] | None) -> Options:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.metadata", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of all sizes, one trial")
    parser.add_argument(
        "--only", action="append", choices=SECTIONS, help="this section; may be said again"
    )
    parser.add_argument("--partitions", type=int, help="of create, leaders and memory: 10,000")
    parser.add_argument("--joining", type=int, help="partitions that a new broker reads: 100,000")
    parser.add_argument("--minutes", type=float, help="of fencing, only run when said: 10")
    parser.add_argument("--trials", type=int, help="of leaders, each on a fresh cluster: 3")
    parser.add_argument("--kills", type=int, help="of the quorum's leader: 50")
    said = parser.parse_args(arguments)
    return Options(
        sections=tuple(said.only or BY_DEFAULT),
        partitions=said.partitions or (1_000 if said.quick else 10_000),
        joining=said.joining or (10_000 if said.quick else 100_000),
        minutes=said.minutes or (0.2 if said.quick else 10.0),
        trials=said.trials or (1 if said.quick else 3),
        kills=said.kills or (5 if said.quick else 50),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    options = parse(arguments)
    note = machine()
    rows = asyncio.run(run(options))
    print(note)
    print()
    print(table(rows))
    print()
    print(missed(rows))
    return 1 if any(row.product == NO_FIGURE for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
