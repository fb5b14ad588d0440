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
from dataclasses import replace
from typing import TYPE_CHECKING

from chaos.checkers.faults import check_ended_with, check_refused_with
from chaos.checkers.verdict import verdict
from chaos.deadline import wait_until
from chaos.disks.shim import broken, flip_a_bit, full, slow
from chaos.http import CallError
from chaos.net.links import node_name
from chaos.scenarios.scenario import (
    FELT_DEADLINE_S,
    TOPIC,
    BreakDisks,
    FaultPlan,
    FaultTarget,
    Gauge,
    Scenario,
    any_leader,
    leader_epoch,
    lives,
    replicas_out_of_sync,
)

if TYPE_CHECKING:
    from chaos.checkers.verdict import Verdict
    from chaos.disks.shim import DiskFault
    from chaos.history import Reading
    from chaos.scenarios.scenario import ScenarioContext


def _disks_of(target: FaultTarget, *brokers: int) -> FaultTarget:
    """Return a target of these brokers' disks, watched by the same partition."""
    text = ", ".join(node_name(broker) for broker in brokers)
    return replace(target, text=text, nodes=brokers)


def _leaders_disk(context: ScenarioContext) -> FaultTarget:
    leader = any_leader(context)
    return _disks_of(leader, leader.node)


def _followers_disk(context: ScenarioContext) -> FaultTarget:
    leader = any_leader(context)
    return _disks_of(leader, next(one for one in context.brokers if one != leader.node))


def _all_disks(context: ScenarioContext) -> FaultTarget:
    return _disks_of(any_leader(context), *context.brokers)


BYTES_LEFT = 5_000
"""Bytes that still fit. The write that crosses this is partial before it fails, the worst case of a
full disk (rule R2)."""


def _refused_attempts(context: ScenarioContext, _target: FaultTarget) -> Gauge:
    return Gauge("refused attempts", lambda: context.writers.attempt_counts.refused)


async def _wait_in_sync(context: ScenarioContext) -> None:
    await wait_until(FELT_DEADLINE_S, context.all_in_sync)


def _check_refusals(context: ScenarioContext, _reading: Reading) -> list[Verdict]:
    return [check_refused_with(context.history, "No space left on device")]


DISK_FULL = Scenario(
    name="disk-full",
    summary="a leader's disk fills up, then a follower's, then all of them",
    faults=tuple(
        FaultPlan(
            name=name,
            target=target,
            breaks=BreakDisks(lambda _: full(BYTES_LEFT)),
            felt_as=(effect,),
            afterwards=_wait_in_sync,
        )
        for name, target, effect in (
            ("leader's disk full", _leaders_disk, _refused_attempts),
            ("follower's disk full", _followers_disk, replicas_out_of_sync),
            ("all disks full", _all_disks, _refused_attempts),
        )
    ),
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


def _hanging_syncs(context: ScenarioContext) -> DiskFault:
    hang_ms = min(HANG_MS, int(context.duration_s * 1000) + WRITES_CONTINUE_LIMIT_MS)
    return slow("sync", hang_ms)


async def _measure_until_written(context: ScenarioContext, target: FaultTarget) -> None:
    """Measure how long it takes until another leader has acknowledged a write."""
    began = context.clock.monotonic_ms()
    epoch = leader_epoch(context, target)
    was = epoch.read()
    await wait_until(WRITES_CONTINUE_LIMIT_MS / 1000, lambda: epoch.read() > was)
    if await wait_until(FELT_DEADLINE_S, context.new_writes(target.partition)):
        context.figures[WRITTEN_AGAIN_AFTER_MS] = context.clock.monotonic_ms() - began


def _check_writes_continue(context: ScenarioContext, _reading: Reading) -> list[Verdict]:
    took = context.figures.get(WRITTEN_AGAIN_AFTER_MS)
    written = "never" if took is None else f"after {took / 1000:.1f} s"
    late = took is None or took > WRITES_CONTINUE_LIMIT_MS
    return [
        verdict(
            "writes go on while the disk hangs",
            f"{written}, limit {WRITES_CONTINUE_LIMIT_MS / 1000:g} s",
            [written] if late else [],
        )
    ]


DISK_HANGS = Scenario(
    name="disk-hangs",
    summary="a leader's disk does not answer; its process and its network do",
    faults=(
        FaultPlan(
            name="leader's disk hangs",
            target=_leaders_disk,
            breaks=BreakDisks(_hanging_syncs),
            felt_as=(leader_epoch,),
            meanwhile=_measure_until_written,
        ),
    ),
    own_checks=_check_writes_continue,
    stops_writes=True,
    disks="faults",
)


EXIT_STORAGE = 74
FAILED_BROKER = "broker whose disk broke"


async def _mend_once_ended(context: ScenarioContext, target: FaultTarget) -> None:
    """Wait until the broker has ended itself, so that it starts on a working disk."""
    context.killed.add(node_name(target.node))
    context.figures[FAILED_BROKER] = target.node
    first = context.now.node(target.node).pid
    await wait_until(FELT_DEADLINE_S, lambda: context.pid(target.node) != first)
    context.disks.heal()


def _check_exit_status(context: ScenarioContext, _reading: Reading) -> list[Verdict]:
    output = context.cluster.output.read_text(errors="replace")
    broker = context.figures.get(FAILED_BROKER, 0)
    return [check_ended_with(output, node_name(broker), EXIT_STORAGE)]


DISK_BREAKS = Scenario(
    name="disk-breaks",
    summary="a sync of a leader's disk fails once, the next one would succeed",
    faults=(
        FaultPlan(
            name="leader's sync fails",
            target=_leaders_disk,
            breaks=BreakDisks(lambda _: broken("sync", times=1, part="/log")),
            felt_as=(leader_epoch, lives),
            meanwhile=_mend_once_ended,
        ),
    ),
    own_checks=_check_exit_status,
    disks="faults",
)


DAMAGE_RANGE = (0.1, 0.6)
"""Range of the flipped bit's place, as a share of the file: old enough to be durable, so that no
start may treat it as a torn tail."""
READ_S = 0.3
DEADLINE_S = 2.0


async def _flip_and_read(context: ScenarioContext, target: FaultTarget) -> None:
    """Flip a bit of the log and read it from its start, over and over, until another leads."""
    url = context.now.node(target.node).url
    epoch = leader_epoch(context, target)
    was, offset = epoch.read(), 0
    place = context.random.uniform(*DAMAGE_RANGE)
    replica = (context.cluster.data_dir, target.node, TOPIC, target.partition)
    context.say(await asyncio.to_thread(flip_a_bit, *replica, place))
    with suppress(TimeoutError):
        async with asyncio.timeout(FELT_DEADLINE_S):
            while epoch.read() == was:
                with suppress(CallError):  # the answer instead of the damaged record
                    lines, _ = await context.http.fetch(
                        url, TOPIC, target.partition, offset, timeout_ms=100, deadline_s=DEADLINE_S
                    )
                    offset = lines[-1].offset + 1 if lines else 0
                await asyncio.sleep(READ_S)


DISK_ROTS = Scenario(
    name="disk-rots",
    summary="a bit of a leader's log turns over under the running broker, and is read",
    faults=(
        FaultPlan(
            name="a bit rots",
            target=any_leader,
            breaks=None,
            felt_as=(leader_epoch,),
            meanwhile=_flip_and_read,
        ),
    ),
    stops_writes=True,
    disks="faults",
)
