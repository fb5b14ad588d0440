"""State shared by the legs of the demo, their requests, and reading everything back.

`story.py` builds the context; legs play on it one after the other. `read_and_judge` reads the
topic through brokers that it was not written through, and checks the records.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from chaos.checkers.records import (
    check_offsets,
    check_order,
    check_partitioner,
    check_present,
    check_repeats,
    readers_for,
)
from chaos.history import Reading
from chaos.http import CallError

if TYPE_CHECKING:
    from contextlib import ExitStack
    from pathlib import Path

    from chaos.cluster import ClusterFile, LocalCluster, Node
    from chaos.http import Http
    from chaos.run import Run
    from raft_metadata.common.clock import Clock


TOPIC = "flights"
PARTITIONS = 6
REPLICATION_FACTOR = 3
FELT_DEADLINE_S = 20.0


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the demo, from the command line."""

    data: Path
    rows: int | None
    load_after_fault_s: float
    spark: bool = True


@dataclass(slots=True, kw_only=True)
class DemoContext:
    """The demo's shared state. Owned by the story; legs play on it one after the other.

    Attributes:
        held: the topic's content when it was last read back, by partition; legs that read the
            topic in another way compare with it.
    """

    run: Run
    cluster: LocalCluster
    http: Http
    clock: Clock
    options: Options
    clean_up: ExitStack
    """Closed at the end of the run, however it ends, without a loop; for processes that a leg
    starts itself."""
    held: Reading | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Leg:
    """A part of the demo with checks of its own.

    `play` adds verdicts; an exception ends the run.
    """

    name: str
    play: Callable[[DemoContext], Awaitable[None]]
    needs_spark: bool = False


async def partition_facts(
    http: Http, now: ClusterFile, through: Node, partition: int
) -> dict[str, Any]:
    """Return a partition as v3 describes it."""
    path = f"/v3/clusters/{now.cluster_id}/topics/{TOPIC}/partitions/{partition}"
    described: dict[str, Any] = await http.get_json(through.url + path, 2.0)
    return described


async def active_controller(http: Http, now: ClusterFile) -> tuple[Node | None, int]:
    """Return the controller that reports to be active in the highest term, and that term."""
    active: Node | None = None
    highest = -1
    for node in now.controllers:
        with suppress(CallError):
            status = await http.get_json(f"{node.url}/controller/v1/status", 1.0)
            if status["is_active"] and status["term"] > highest:
                active, highest = node, status["term"]
    return active, highest


async def read_and_judge(context: DemoContext, accept: str, prefix: str) -> None:
    """Read the topic, set `context.held` to the result, and check it."""
    now, history = context.cluster.read(), context.run.history
    brokers = [node.id for node in now.brokers]
    readings = [
        await _read(context, now.node(broker), accept) for broker in readers_for(history, brokers)
    ]
    context.held = readings[0]
    for one in (
        check_present(history, readings),
        check_offsets(readings),
        check_order(history),
        check_partitioner(history, PARTITIONS),
        check_repeats(history, readings[0]),
    ):
        context.run.judge(replace(one, name=prefix + one.name))


async def _read(context: DemoContext, broker: Node, accept: str) -> Reading:
    await context.http.wait_ready(broker.url, FELT_DEADLINE_S)
    began = time.monotonic()
    partitions = await context.http.read_topic(broker.url, TOPIC, PARTITIONS, accept=accept)
    count = sum(len(lines) for lines in partitions.values())
    context.run.screen.say(
        f"read {count:,} records through broker {broker.id} in "
        f"{time.monotonic() - began:.1f} s ({accept})"
    )
    return Reading(broker.id, partitions)
