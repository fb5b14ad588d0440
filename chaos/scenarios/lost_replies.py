"""Scenarios in which requests between brokers run and their replies are lost.

replies-lost: outcomes must be reported as unknown, and nothing may be duplicated. The topic has
two replicas, so one broker holds none of each partition: its forwarded requests cross one link,
and losing that link's replies affects no replication. The loss comes and goes, so that requests
are in flight each time it begins; a link that is silent for long is not dialled.

never-twice: values are sent once, through brokers that do not lead, while replies are lost and
leaders killed. A broker that forwarded a request and got no answer sends it again under the same
sequence number. So most requests end acknowledged, and nothing is duplicated (rules F1, K). The
losses are shorter than a writer's timeout; a longer one ends as unknown, as in replies-lost.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from chaos.checkers.records import check_once, check_unknown_ran
from chaos.net.links import NO_FAULTS, Link, Plane, answers_lost
from chaos.scenarios.scenario import (
    BreakNetwork,
    FaultPlan,
    FaultTarget,
    Scenario,
    leader_epochs,
    named,
    unknown_attempts,
)

if TYPE_CHECKING:
    from chaos.checkers.verdict import Verdict
    from chaos.history import Reading
    from chaos.net.links import Faults
    from chaos.scenarios.scenario import ScenarioContext


LONG_LOSS_S = 1.5
"""Length of a loss; longer than a forwarded request's timeout, so that it ends unanswered."""
FLOWS_BETWEEN_LONG_LOSSES_S = 1.0
UNKNOWN_SHARE_MAX_REPLIES_LOST = 0.5
"""Largest share of unknown attempts: replies are lost for longer than a writer waits."""


def forwarding_links(context: ScenarioContext) -> list[Link]:
    """Return, per partition, the link to its leader from the broker that holds no replica."""
    links = []
    for partition in range(context.partitions):
        known = context.watch.of(partition)
        outsiders = [broker for broker in context.brokers if broker not in known.isr]
        if known.leader is not None:
            links += [Link(broker, known.leader, Plane.PEER) for broker in outsiders]
    return links


def _forwarded_requests(context: ScenarioContext) -> FaultTarget:
    return FaultTarget(
        ", ".join(f"{one.target} → {one.source}" for one in forwarding_links(context))
    )


async def _lose_now_and_then(context: ScenarioContext, _target: FaultTarget) -> None:
    faults = context.network.faults
    ends_ms = context.clock.monotonic_ms() + context.duration_s * 1000
    while True:
        await asyncio.sleep(LONG_LOSS_S)
        if context.clock.monotonic_ms() >= ends_ms:
            return
        await context.network.heal()
        await asyncio.sleep(FLOWS_BETWEEN_LONG_LOSSES_S)
        await context.network.shape(faults)


def _check_unknown_outcomes(context: ScenarioContext, reading: Reading) -> list[Verdict]:
    return [
        check_unknown_ran(context.history, reading),
        check_once(context.history, reading, UNKNOWN_SHARE_MAX_REPLIES_LOST),
    ]


REPLIES_LOST = Scenario(
    name="replies-lost",
    summary="requests between brokers run, their replies are lost on the way back",
    faults=(
        FaultPlan(
            name="replies lost",
            target=_forwarded_requests,
            breaks=BreakNetwork(lambda context, _: answers_lost(forwarding_links(context))),
            felt_as=(unknown_attempts,),
            meanwhile=_lose_now_and_then,
        ),
    ),
    own_checks=_check_unknown_outcomes,
    replication_factor=2,
)


SHORT_LOSS_S = 0.35
"""Length of a loss; shorter than the silence after which a stream is made anew (rule R9)."""
FLOWS_BETWEEN_SHORT_LOSSES_S = 0.9
KILL_EVERY = 3
UNKNOWN_SHARE_MAX_NEVER_TWICE = 0.1
"""Largest share of unknown attempts. A writer waits 1 s; a killed leader is sometimes replaced
later than that, and clients' own connections to it are lost with it."""


def _all_replies_lost(context: ScenarioContext, _target: FaultTarget) -> Faults:
    return answers_lost([link for link in context.network.links if link.plane is Plane.PEER])


async def _lose_often_and_kill(context: ScenarioContext, _target: FaultTarget) -> None:
    faults = context.network.faults
    ends_ms = context.clock.monotonic_ms() + context.duration_s * 1000
    rounds = 0
    while True:
        await asyncio.sleep(SHORT_LOSS_S)
        rounds += 1
        if rounds % KILL_EVERY == 1:
            leader = context.watch.of(context.random.randrange(context.partitions)).leader
            if leader is not None and context.pid(leader) is not None:
                context.kill(leader)  # its last replies are lost at this moment
        await context.network.shape(NO_FAULTS)
        await asyncio.sleep(FLOWS_BETWEEN_SHORT_LOSSES_S)
        if context.clock.monotonic_ms() >= ends_ms:
            return
        await context.network.shape(faults)


def _check_copies(context: ScenarioContext, reading: Reading) -> list[Verdict]:
    return [check_once(context.history, reading, UNKNOWN_SHARE_MAX_NEVER_TWICE)]


NEVER_TWICE = Scenario(
    name="never-twice",
    summary="values sent once through brokers that don't lead; replies lost, leaders killed",
    faults=(
        FaultPlan(
            name="replies lost, leaders killed",
            target=named("every broker"),
            breaks=BreakNetwork(_all_replies_lost),
            felt_as=(leader_epochs,),
            meanwhile=_lose_often_and_kill,
        ),
    ),
    own_checks=_check_copies,
)
"""`stops_writes` is false, so the floor of acknowledged writes also applies during the fault: only
unknown attempts would prove nothing."""
