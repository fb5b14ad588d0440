"""Scenarios in which disks fail: full, hanging, a failing sync, a flipped bit.

disk-full: a leader's disk fills up, then a follower's, then all; writes are refused, or the
follower leaves the ISR. disk-hangs: a leader's disk stops answering; its leaderships must move.
disk-breaks: one sync of a leader's disk fails and the next would succeed although the failed one's
data is lost, so the broker must end. disk-rots: one bit of a leader's log flips; the damage must
be detected when it is read, never served, and repaired from a peer.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from chaos.checkers.faults import check_ended_with, check_refused_with
from chaos.checkers.verdict import verdict
from chaos.disks.shim import broken, flip_a_bit, full, slow
from chaos.http import CallError
from chaos.net.links import node_name
from chaos.scenarios.scenario import (
    FELT_DEADLINE_S,
    Gauge,
    Scenario,
    disks_broken,
    epoch_of,
    felt,
    leader_of,
)

if TYPE_CHECKING:
    from chaos.checkers.verdict import Verdict
    from chaos.history import Reading
    from chaos.scenarios.scenario import ScenarioContext


BYTES_LEFT = 5_000
"""Bytes that still fit. The write that crosses this is partial before it fails, the worst case of a
full disk (rule R2)."""


async def _fill_disks(stage: ScenarioContext) -> None:
    partition = stage.random.randrange(stage.partitions)
    leader = leader_of(stage, partition)
    others = [broker for broker in stage.brokers if broker != leader]
    refused = Gauge("refused attempts", lambda: stage.writers.attempt_counts.refused)
    out = Gauge(
        "replicas out of sync",
        lambda: len(stage.brokers) - len(stage.watch.of(partition).isr),
    )
    for name, brokers, gauges in (
        ("leader's disk full", [leader], [refused]),
        ("follower's disk full", others[:1], [out]),
        ("all disks full", list(stage.brokers), [refused]),
    ):
        async with disks_broken(stage, name, brokers, [full(BYTES_LEFT)], gauges):
            pass
        await stage.felt_within(
            FELT_DEADLINE_S, lambda: stage.watch.all_in_sync(len(stage.brokers))
        )


def _check_refusals(stage: ScenarioContext, _reading: Reading) -> list[Verdict]:
    return [check_refused_with(stage.history, "No space left on device")]


DISK_FULL = Scenario(
    name="disk-full",
    summary="a leader's disk fills up, then a follower's, then all of them",
    make_faults=_fill_disks,
    own_checks=_check_refusals,
    stops_writes=True,
    disks="faults",
)


HANG_MS = 30_000
"""Length of a hang; longer than the fault, because a hanging call ends only by itself."""
WRITES_CONTINUE_LIMIT_MS = 10_000
"""Longest time until writes continue: a hang is detected after 1.5 s, heartbeats end 1.2 s later,
the session 1.2 s after them; the rest allows for a slow machine."""
WRITTEN_AGAIN_AFTER_MS = "written again after ms"


async def _hang_disk(stage: ScenarioContext) -> None:
    partition = stage.random.randrange(stage.partitions)
    leader = leader_of(stage, partition)
    epoch = epoch_of(stage, partition)
    hang_ms = min(HANG_MS, int(stage.duration_s * 1000) + WRITES_CONTINUE_LIMIT_MS)
    async with disks_broken(
        stage, "leader's disk hangs", [leader], [slow("sync", hang_ms)], [epoch]
    ):
        began, was = stage.clock.monotonic_ms(), epoch.read()
        await stage.felt_within(WRITES_CONTINUE_LIMIT_MS / 1000, lambda: epoch.read() > was)
        told = stage.writers.attempt_counts.per_partition
        written = told.get(partition, 0)
        if await stage.felt_within(FELT_DEADLINE_S, lambda: told.get(partition, 0) > written):
            stage.figures[WRITTEN_AGAIN_AFTER_MS] = stage.clock.monotonic_ms() - began


def _check_writes_continue(stage: ScenarioContext, _reading: Reading) -> list[Verdict]:
    took = stage.figures.get(WRITTEN_AGAIN_AFTER_MS)
    told = "never" if took is None else f"after {took / 1000:.1f} s"
    late = took is None or took > WRITES_CONTINUE_LIMIT_MS
    return [
        verdict(
            "writes go on while the disk hangs",
            f"{told}, limit {WRITES_CONTINUE_LIMIT_MS / 1000:g} s",
            [told] if late else [],
        )
    ]


DISK_HANGS = Scenario(
    name="disk-hangs",
    summary="a leader's disk does not answer; its process and its network do",
    make_faults=_hang_disk,
    own_checks=_check_writes_continue,
    stops_writes=True,
    disks="faults",
)


EXIT_STORAGE = 74
FAILED_BROKER = "broker whose disk broke"


async def _fail_one_sync(stage: ScenarioContext) -> None:
    partition = stage.random.randrange(stage.partitions)
    leader = leader_of(stage, partition)
    lives = {stage.cluster.read().node(leader).pid}

    def lives_seen() -> int:
        pid = stage.cluster.read().node(leader).pid
        if pid is not None:
            lives.add(pid)
        return len(lives)

    gauges = [epoch_of(stage, partition), Gauge(f"lives of broker {leader}", lives_seen)]
    stage.killed.add(node_name(leader))  # the broker ends itself, as it must
    stage.figures[FAILED_BROKER] = leader
    async with disks_broken(
        stage, "leader's sync fails", [leader], [broken("sync", times=1, part="/log")], gauges
    ):
        await stage.felt_within(
            FELT_DEADLINE_S, lambda: stage.cluster.read().node(leader).pid not in lives
        )
        if stage.disks is not None:
            stage.disks.heal()  # the restarted broker has a working disk with its durable data


def _check_exit_status(stage: ScenarioContext, _reading: Reading) -> list[Verdict]:
    said = stage.cluster.output.read_text(errors="replace")
    return [check_ended_with(said, node_name(stage.figures.get(FAILED_BROKER, 0)), EXIT_STORAGE)]


DISK_BREAKS = Scenario(
    name="disk-breaks",
    summary="a sync of a leader's disk fails once, the next one would succeed",
    make_faults=_fail_one_sync,
    own_checks=_check_exit_status,
    disks="faults",
)


TOPIC = "chaos"
DAMAGE_RANGE = (0.1, 0.6)
"""Range of the flipped bit's place, as a share of the file: old enough to be durable, so that no
start may treat it as a torn tail."""
READ_S = 0.3
DEADLINE_S = 2.0


async def _flip_and_read(stage: ScenarioContext) -> None:
    partition = stage.random.randrange(stage.partitions)
    leader = leader_of(stage, partition)
    url = stage.now.node(leader).url
    epoch = epoch_of(stage, partition)
    was = epoch.read()
    async with felt(stage, "a bit rots", f"broker {leader}, partition {partition}", [epoch]):
        part = stage.random.uniform(*DAMAGE_RANGE)
        data_dir = stage.cluster.data_dir
        said = await asyncio.to_thread(flip_a_bit, data_dir, leader, TOPIC, partition, part)
        stage.say(said)

        async def read_from_the_start() -> None:
            offset = 0
            while epoch.read() == was:
                with suppress(CallError):  # the answer instead of the damaged record
                    lines, _ = await stage.http.fetch(
                        url, TOPIC, partition, offset, timeout_ms=100, deadline_s=DEADLINE_S
                    )
                    offset = lines[-1].offset + 1 if lines else 0
                await asyncio.sleep(READ_S)

        with suppress(TimeoutError):
            async with asyncio.timeout(FELT_DEADLINE_S):
                await read_from_the_start()


def _no_own_checks(_stage: ScenarioContext, _reading: Reading) -> list[Verdict]:
    return []


DISK_ROTS = Scenario(
    name="disk-rots",
    summary="a bit of a leader's log turns over under the running broker, and is read",
    make_faults=_flip_and_read,
    own_checks=_no_own_checks,
    stops_writes=True,
    disks="faults",
)
