"""The commands ``quorumlog chaos list`` and ``quorumlog chaos run SCENARIO``.

Reads the list of scenarios, plays one on a new cluster in a new directory, and prints a
report. Imports inside functions keep the start of other commands fast.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from random import SystemRandom

import click
import orjson

DEFAULT_DURATION_S = 6.0
MIN_DURATION_S = 3.0
MAX_DURATION_S = 600.0
HOME = Path(".chaos-data")
USAGE = 2

format_option = click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="How to print the result.",
)


@click.group()
def chaos() -> None:
    """Break the network between real processes, and check that nothing was lost."""


@chaos.command("list")
@format_option
def list_scenarios(form: str) -> None:
    """Show the scenarios."""
    from chaos.scenarios import SCENARIOS

    if form == "json":
        rows = [{"name": one.name, "summary": one.summary} for one in SCENARIOS.values()]
        click.echo(orjson.dumps(rows, option=orjson.OPT_INDENT_2))
        return
    width = max(len(name) for name in SCENARIOS)
    for one in SCENARIOS.values():
        click.echo(f"{one.name:{width}}  {one.summary}")


@chaos.command()
@click.argument("scenario")
@click.option("--seed", type=int, help="Chooses what is hit.  [default: drawn, and printed]")
@click.option(
    "--duration",
    type=click.FloatRange(MIN_DURATION_S, MAX_DURATION_S),
    default=DEFAULT_DURATION_S,
    show_default=True,
    help="Seconds each fault lasts.",
)
@click.option("--keep", is_flag=True, help="Keep the directory of a green run, too.")
@format_option
def run(scenario: str, seed: int | None, duration: float, keep: bool, form: str) -> int:  # noqa: FBT001 a flag of the command line
    """Run one scenario on a cluster of its own. Exit 0: every check held. 1: one did not.

    A run that is not green keeps its directory (history.ndjson, report.json, the nodes' logs) below
    .chaos-data and names it.
    """
    from chaos.scenarios import SCENARIOS

    if scenario not in SCENARIOS:
        known = ", ".join(SCENARIOS)
        msg = f"no scenario {scenario!r}; there are: {known}"
        raise click.UsageError(msg)
    if seed is None:
        seed = SystemRandom().randrange(1 << 32)
    return _run(scenario, seed, duration, keep=keep, form=form)


def _run(name: str, seed: int, duration_s: float, *, keep: bool, form: str) -> int:
    from rich.console import Console

    from chaos.disks.shim import ShimError
    from chaos.net.toxiproxy import NetworkError
    from chaos.proxied_cluster import ProxiedCluster
    from chaos.run import Screen, catch_signals, make_directory, play_in_directory, remove
    from chaos.runner import RunOptions, ScenarioRun
    from chaos.scenarios import SCENARIOS

    console = Console(highlight=False, soft_wrap=True, file=sys.stderr) if form == "json" else None
    screen = Screen(console)
    catch_signals()
    began = time.monotonic()
    directory = make_directory(HOME)
    try:
        cluster = ProxiedCluster(directory)
        if SCENARIOS[name].disks != "sound":
            cluster.add_disk_faults(power=SCENARIOS[name].disks == "power")
    except (NetworkError, ShimError) as error:
        remove(directory)
        click.echo(f"quorumlog: {error}", err=True)
        return USAGE
    options = RunOptions(seed=seed, duration_s=duration_s)
    code, played = play_in_directory(
        directory,
        [],
        screen,
        lambda run: ScenarioRun(SCENARIOS[name], cluster, run, options).play(),
        cluster.leave_nothing,
    )
    kept = keep or code != 0
    report = {
        "scenario": name,
        "seed": seed,
        "duration_s": duration_s,
        "passed": code == 0,
        "seconds": round(time.monotonic() - began, 1),
        "verdicts": played.verdicts,
        "directory": str(directory) if kept else None,
        "again": f"quorumlog chaos run {name} --seed {seed} --duration {duration_s:g}",
    }
    text = orjson.dumps(report, option=orjson.OPT_INDENT_2)
    if kept:
        (directory / "report.json").write_bytes(text)
        screen.say(f"kept: {directory} (history.ndjson, report.json, cluster/logs)")
    else:
        remove(directory)
    if form == "json":
        click.echo(text)
    else:
        verdict = "all checks held" if code == 0 else "NOT green"
        screen.say(f"{name} seed {seed}: {verdict}; {report['seconds']} s")
    return code
