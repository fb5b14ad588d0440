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

from http_api.cli.options import DURATION_MS, examples, format_option
from http_api.contract.grammar import nearest

DEFAULT_DURATION_MS = 6_000
MIN_DURATION_MS = 3_000
MAX_DURATION_MS = 600_000
HOME = Path(".chaos-data")
USAGE = 2


@click.group()
def chaos() -> None:
    """Break networks and disks, then check every record."""


@examples("quorumlog chaos list")
@chaos.command("list")
@format_option
def list_scenarios(form: str) -> None:
    """List the scenarios."""
    from chaos.scenarios import SCENARIOS

    if form == "json":
        rows = [{"name": one.name, "summary": one.summary} for one in SCENARIOS.values()]
        click.echo(orjson.dumps(rows, option=orjson.OPT_INDENT_2))
        return
    width = max(len(name) for name in SCENARIOS)
    for one in SCENARIOS.values():
        click.echo(f"{one.name:{width}}  {one.summary}")


@examples("quorumlog chaos run leader-cut --seed 7 --duration 3s")
@chaos.command()
@click.argument("scenario")
@click.option(
    "--seed", type=int, help="Choose the targets by this number.  [default: drawn, and printed]"
)
@click.option(
    "--duration",
    "duration_ms",
    type=DURATION_MS,
    default=DEFAULT_DURATION_MS,
    show_default="6s",
    help="Let each fault last this long, 3s to 10m.",
)
@click.option("--money", is_flag=True, help="Let transactions run beside it, and check them.")
@click.option("--keep", is_flag=True, help="Keep the directory of a green run, too.")
@format_option
def run(
    scenario: str,
    seed: int | None,
    duration_ms: int,
    money: bool,  # noqa: FBT001 a flag of the command line
    keep: bool,  # noqa: FBT001 a flag of the command line
    form: str,
) -> int:
    """Run one scenario on a cluster of its own.

    Exit 0: every check held. Exit 1: one did not. A run that is not green keeps its directory
    (history.ndjson, report.json, the nodes' logs) below .chaos-data and names it.
    """
    from chaos.scenarios import SCENARIOS

    if scenario not in SCENARIOS:
        near = nearest(scenario, SCENARIOS)
        hint = "" if near is None else f"; did you mean {near!r}?"
        msg = f"no scenario {scenario!r}{hint} There are: {', '.join(SCENARIOS)}"
        raise click.UsageError(msg)
    if not MIN_DURATION_MS <= duration_ms <= MAX_DURATION_MS:
        msg = f"--duration {duration_ms / 1000:g}s: expected 3s to 10m, as in --duration 6s"
        raise click.UsageError(msg)
    if seed is None:
        seed = SystemRandom().randrange(1 << 32)
    return _run(scenario, seed, duration_ms / 1000, money=money, keep=keep, form=form)


def _run(name: str, seed: int, duration_s: float, *, money: bool, keep: bool, form: str) -> int:
    from rich.console import Console

    from chaos.disks.shim import ShimError
    from chaos.net.toxiproxy import NetworkError
    from chaos.proxied_cluster import ProxiedCluster
    from chaos.run import Screen, catch_signals, make_directory, play_in_directory, remove
    from chaos.runner import RunOptions, ScenarioRun
    from chaos.scenarios import SCENARIOS
    from chaos.scenarios.moving_money import with_money

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
    scenario = with_money(SCENARIOS[name]) if money else SCENARIOS[name]
    options = RunOptions(seed=seed, duration_s=duration_s)
    code, played = play_in_directory(
        directory,
        [],
        screen,
        lambda run: ScenarioRun(scenario, cluster, run, options).play(),
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
        "again": f"quorumlog chaos run {name} --seed {seed} --duration {duration_s:g}s"
        + " --money" * money,
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
