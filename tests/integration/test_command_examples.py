"""Every example of every help page, run as it stands against one live cluster.

The cluster has what the examples name: topics with records, a group with offsets, brokers 1 to 3.
A command that would run for minutes, or start nodes, is checked by its own tests instead; each of
them is listed here with the reason.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from http_api.cli import main
from tests.support.documented_cluster import quorumlog_up

BIN = Path(sys.executable).parent
EXAMPLE = re.compile(r"(?m)^  (?! )(.*quorumlog .*)$")
EXAMPLES_DEADLINE_S = 90
END_OF_EXAMPLE = "end of example"

NOT_RUN = {
    "quorumlog up": "starts clusters: tests/integration/test_up_lifecycle.py",
    "quorumlog controller rejoin": "needs a lost disk: docs/operating/quorum.md is run",
    "quorumlog broker unregister": "needs a fourth broker: docs/operating/draining.md is run",
    "quorumlog log salvage": "needs a stopped broker: tests/unit/test_log_salvage.py",
    "quorumlog group skip": "needs a member that stands still: test_groups_stand_still_live.py",
    "quorumlog group repair": "needs a group that is held: test_groups_stand_still_live.py",
    "quorumlog chaos run": "takes half a minute: tests/chaos/test_scenarios.py",
}
"""Beginning of an example → why it is not run here."""

PREPARE = """
set -e
quorumlog topic create orders --partitions 3
quorumlog topic create weblog old-orders old-logs
printf 'alice:tea\\nbob:rye\\ncarol:jam\\n' | quorumlog produce orders -k :
seq 5 | quorumlog produce orders:0
seq 3 | quorumlog produce old-logs
cluster=$(quorumlog cluster id)
curl -sf -X PATCH $URL/v3/clusters/$cluster/consumer-groups/kitchen/offsets \\
  -H 'Content-Type: application/json' \\
  -d '{"data":[{"topic_name":"orders","partition_id":0,"offset":1}]}'
curl -sf -X PATCH $URL/v3/clusters/$cluster/consumer-groups/old-kitchen/offsets \
  -H 'Content-Type: application/json' \
  -d '{"data":[{"topic_name":"orders","partition_id":0,"offset":1}]}'
rows='"topics":[{"topic_name":"orders","records":[{"value":1}]}]'
transactions=$URL/v3/clusters/$cluster/transactions
curl -sf -H 'Content-Type: application/json' -H 'Idempotency-Key: transfer-17' \
  $transactions -d "{$rows}"
curl -sf -H 'Content-Type: application/json' $transactions/nightly-load:commit \
  -d '{"number":1,"run_id":"a",'"$rows}"
curl -sf -X POST $transactions/billing-1:init
"""


def leaves(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    """The commands that do something, with the words that run them."""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from leaves(found, f"{path} {name}")
        return
    yield path, command


def examples() -> dict[str, list[str]]:
    """Words of a command → its examples."""
    return {
        path: EXAMPLE.findall(command.epilog or "")
        for path, command in leaves(main.cli, "quorumlog")
    }


def test_every_help_page_has_examples_of_its_own_command() -> None:
    without = [path for path, lines in examples().items() if not lines]
    assert without == []
    foreign = [(path, line) for path, lines in examples().items() for line in lines]
    assert [pair for pair in foreign if pair[0] not in pair[1]] == []


def test_no_line_of_a_list_of_commands_is_cut_off() -> None:
    groups: list[tuple[str, click.Group]] = [("quorumlog", main.cli)]
    cut = []
    while groups:
        path, group = groups.pop()
        context = click.Context(group, info_name=path, max_content_width=80, terminal_width=80)
        cut += [f"{path}: {line}" for line in group.get_help(context).splitlines() if "..." in line]
        for name in group.list_commands(context):
            found = group.get_command(context, name)
            if isinstance(found, click.Group):
                groups.append((f"{path} {name}", found))
    assert [line for line in cut if "[ARGS]..." not in line] == []


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, str]]]:
    """A directory with the data of a prepared cluster, and the environment that names it."""
    directory = tmp_path_factory.mktemp("examples")
    with quorumlog_up(BIN / "quorumlog", directory) as urls:
        environment = {
            **os.environ,
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "QUORUMLOG_URL": ",".join(urls),
            "URL": urls[0],
        }
        subprocess.run(["bash", "-c", PREPARE], cwd=directory, env=environment, check=True)
        yield directory, environment


RUNNER = r"""
import io, os, shlex, subprocess, sys
from pathlib import Path
import click
from http_api.cli import main

context = click.Context(main.cli)
for name in main.cli.list_commands(context):
    main.cli.get_command(context, name)

def run(line):
    before, _, command = line.rpartition("| ")
    source = subprocess.Popen(before or ":", shell=True, stdout=subprocess.PIPE)
    os.dup2(source.stdout.fileno(), 0)
    out = os.open("out", os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
    os.dup2(out, 1)
    os.dup2(out, 2)
    code = main.run(shlex.split(command)[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)

for line in sys.stdin.read().splitlines():
    child = os.fork()
    if not child:
        run(line)
    _, status = os.waitpid(child, 0)
    if status:
        print(f"{line}\nexit {os.waitstatus_to_exitcode(status)}: {Path('out').read_text()}")
"""
"""Runs command lines as forks of one process that has imported all commands: ten times as fast."""


def test_every_example_of_a_help_page_works(shell: tuple[Path, dict[str, str]]) -> None:
    directory, environment = shell
    lines = [
        line
        for all_lines in examples().values()
        for line in all_lines
        if not any(beginning in line for beginning in NOT_RUN)
    ]
    assert len(lines) > 40
    done = subprocess.run(
        [sys.executable, "-c", RUNNER],
        input="\n".join(lines),
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=EXAMPLES_DEADLINE_S,
    )
    assert done.stdout + done.stderr == ""


def test_each_reason_not_to_run_an_example_is_needed() -> None:
    lines = [line for all_lines in examples().values() for line in all_lines]
    assert [start for start in NOT_RUN if not any(start in line for line in lines)] == []
