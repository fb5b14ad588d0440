"""``quorumlog``: find a command, run it, turn an error into a line and an exit code.

Nothing heavy is imported here: ``--help`` must answer in under 200 ms, so a command's module is
imported only when that command runs, and its one-line help stands in this table. Packages above
``http_api`` add commands through the entry-point group ``quorumlog.commands``.
"""

from __future__ import annotations

import importlib
import json
import sys
from itertools import pairwise
from typing import NoReturn

import click
from typing_extensions import override

from http_api.node.exits import EXIT_KILLED, NodeExit

ENTRY_POINT_GROUP = "quorumlog.commands"
ENTRY_POINT_HELP = {
    "chaos": "Break networks and disks, then check every record.",
}
"""One-line help of commands of other packages, which are not imported for it."""

# name → (module:attribute, one-line help)
COMMANDS: dict[str, tuple[str, str]] = {
    "up": ("http_api.cli.up:up", "Run a whole local cluster."),
    "topic": ("http_api.cli.topic:topic", "Create, change, list, describe, delete, trim topics."),
    "produce": ("http_api.cli.produce:produce", "Write lines from standard input to a topic."),
    "consume": ("http_api.cli.consume:consume", "Print the records of a topic."),
    "bench": ("http_api.cli.bench:bench", "Measure how fast a cluster writes and reads."),
    "group": (
        "http_api.cli.group:group",
        "List, describe, repair, delete consumer groups.",
    ),
    "txn": ("http_api.cli.txn:txn", "List, describe, abort, forget transactions."),
    "cluster": ("http_api.cli.cluster:cluster", "Show the cluster id, the brokers, the health."),
    "quorum": ("http_api.cli.quorum:quorum", "Show the controllers."),
    "metadata": ("http_api.cli.metadata:metadata", "Read the metadata log and its image."),
    "log": ("http_api.cli.log:log", "Read, check and rescue log files."),
    "config": ("http_api.cli.config:config", "List, describe, set and reset configs."),
    "partition": ("http_api.cli.partition:partition", "List and describe partitions."),
    "reassign": ("http_api.cli.partition:reassign", "Move replicas to other brokers."),
    "elect": ("http_api.cli.partition:elect", "Elect leaders, preferred or unclean."),
    "broker": ("http_api.cli.nodes:broker", "Run one broker; list, describe, drain brokers."),
    "controller": ("http_api.cli.nodes:controller", "Run one controller, or let one rejoin."),
}


class LazyGroup(click.Group):
    """Group that lists commands by name and one-line help, and imports each on first use."""

    @override
    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*COMMANDS, *(name for name in _entry_points() if name not in COMMANDS)]

    @override
    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in COMMANDS:
            module, _, attribute = COMMANDS[cmd_name][0].partition(":")
            found: click.Command = getattr(importlib.import_module(module), attribute)
            return found
        return _load_entry_point(cmd_name)

    @override
    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            from http_api.contract.grammar import nearest

            near = nearest(args[0], self.list_commands(ctx))
            hint = "" if near is None else f" Did you mean {near!r}?"
            ctx.fail(f"No such command {args[0]!r}.{hint}")
        return super().resolve_command(ctx, args)

    @override
    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(name, text) for name, (_, text) in COMMANDS.items()]
        rows += [
            (name, ENTRY_POINT_HELP.get(name, f"From {where}."))
            for name, where in _entry_points().items()
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def _entry_points() -> dict[str, str]:
    from importlib.metadata import entry_points

    return {point.name: point.value for point in entry_points(group=ENTRY_POINT_GROUP)}


def _load_entry_point(name: str) -> click.Command | None:
    from importlib.metadata import entry_points

    for point in entry_points(group=ENTRY_POINT_GROUP, name=name):
        command: click.Command = point.load()
        return command
    return None


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="quorumlog", message="quorumlog %(version)s")
def cli() -> None:
    """A replicated commit log with Kafka's semantics, over plain HTTP.

    Start a cluster with `quorumlog up`; the other commands talk to it at --url (QUORUMLOG_URL,
    default http://127.0.0.1:8082).

    \b
    Exit codes:
       0  done, healthy           69  port in use, no broker answers
       1  failed, degraded        70  a broken invariant
       2  wrong usage or config   74  storage error or corruption
       3  unhealthy               75  locked by another process
                                 130  interrupted

    \b
    Examples:
      quorumlog up
      echo 'alice:tea' | quorumlog produce orders -k :
      quorumlog consume orders --last 10
      quorumlog cluster health
    """  # noqa: D301 click needs the character


def _exit_text(error: NodeExit, arguments: list[str]) -> str:
    """Return an error as a line, or as a JSON object if the command has --format json."""
    says_json = "--format=json" in arguments or ("--format", "json") in pairwise(arguments)
    if not says_json:
        return f"quorumlog: {error.message}"
    return json.dumps({"error_code": None, "message": error.message, "exit": error.code})


def main() -> NoReturn:
    """Run the console script and exit with its code."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run a command line and return its exit code."""
    try:
        result = cli.main(args=arguments, prog_name="quorumlog", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return EXIT_KILLED
    except NodeExit as error:
        click.echo(_exit_text(error, arguments), err=True)
        return error.code
    return result if isinstance(result, int) else 0
