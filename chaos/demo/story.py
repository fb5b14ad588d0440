"""The course of the demo: its legs, their order, and their clusters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chaos.checkers.verdict import verdict
from chaos.deadline import within
from chaos.demo import flights_leg, group_leg, network_leg, restart_leg, spark_leg
from chaos.demo.context import DemoContext, Leg, Options
from chaos.http import Http
from raft_metadata.common.clock import SystemClock

if TYPE_CHECKING:
    from contextlib import ExitStack

    from chaos.cluster import LocalCluster
    from chaos.run import Run

RUN_DEADLINE_S = 600.0
"""Deadline of the demo: twice the time promised for two quiet cores."""
SPARK_SKIPPED = "SPARK LEG SKIPPED"

LEGS = (
    Leg(name="flights", play=flights_leg.play),
    Leg(name="kill everything", play=restart_leg.play),
    Leg(name="group", play=group_leg.play),
    Leg(name="Spark", play=spark_leg.play, needs_spark=True),
)
"""Legs on one cluster, in this order; each continues with the topic and `DemoContext.held` of those
before."""
LEGS_OF_THEIR_OWN = (Leg(name="network", play=network_leg.play),)
"""Legs after that cluster's clean stop, each on a cluster that it starts itself."""


async def play(run: Run, cluster: LocalCluster, options: Options, clean_up: ExitStack) -> None:
    """Play all legs; their verdicts are added to the run."""
    async with within(RUN_DEADLINE_S, "the demo ends"), Http() as http:
        stage = DemoContext(
            run=run,
            cluster=cluster,
            http=http,
            clock=SystemClock(),
            options=options,
            clean_up=clean_up,
        )
        seconds = await cluster.start()
        now = cluster.read()
        run.screen.say(
            f"cluster ready in {seconds:.1f} s: {len(now.controllers)} controllers, "
            f"{len(now.brokers)} brokers, {' '.join(node.url for node in now.brokers)}"
        )
        await _play_all(LEGS, stage)
        code = await cluster.stop()
        run.judge(
            verdict("clean stop", f"exit {code}, no process left", [str(code)] if code else [])
        )
        await _play_all(LEGS_OF_THEIR_OWN, stage)


async def _play_all(legs: tuple[Leg, ...], stage: DemoContext) -> None:
    for leg in legs:
        if leg.needs_spark and not stage.options.spark:
            continue
        await leg.play(stage)
