"""Help is quick because nothing heavy is imported; other packages add commands by entry point."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import click
import pytest

from http_api.cli import main

HEAVY = (
    *("aiohttp", "asyncio", "broker.server", "http.client", "http_api.node.node_config", "msgspec"),
    *("orjson", "pysyncobj", "raft_metadata.quorum", "rich"),
)


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from http_api.cli.main import run; code = run(['--help']);"
        "print('\\n'.join(['CODE', str(code), *sys.modules]), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules = done.stderr.splitlines()
    assert "CODE" in modules
    assert [name for name in HEAVY if name in modules] == []
    for name in main.COMMANDS:
        assert name in done.stdout


def test_every_command_is_found_and_helps_itself(capsys: pytest.CaptureFixture[str]) -> None:
    for name in main.COMMANDS:
        assert main.run([name, "--help"]) == 0
        assert "Usage: quorumlog" in capsys.readouterr().out


def test_every_command_that_does_something_takes_format() -> None:
    context = click.Context(main.cli)

    def leaves(command: click.Command) -> list[click.Command]:
        if isinstance(command, click.Group) and not command.invoke_without_command:
            return [leaf for each in command.commands.values() for leaf in leaves(each)]
        return [command]

    for name in main.COMMANDS:
        command = main.cli.get_command(context, name)
        assert command is not None
        for leaf in leaves(command):
            assert "--format" in {option for each in leaf.params for option in each.opts}, leaf.name


def test_commands_of_other_packages_come_in_by_entry_point(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    point = EntryPoint("extra", f"{__name__}:extra_command", main.ENTRY_POINT_GROUP)
    loaded = click.Command("extra", callback=lambda: click.echo("extra ran"))
    monkeypatch.setattr(EntryPoint, "load", lambda self: loaded)
    monkeypatch.setattr(
        "importlib.metadata.entry_points",
        lambda **wanted: [point] if wanted.get("name", "extra") == "extra" else [],
    )
    assert main.run(["--help"]) == 0
    assert "extra" in capsys.readouterr().out
    assert main.run(["extra"]) == 0
    assert capsys.readouterr().out == "extra ran\n"


def test_an_unknown_command_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["prodduce"]) == 2
    assert "prodduce" in capsys.readouterr().err


def test_a_brokers_folder_is_no_controllers_and_json_errors_are_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "log").mkdir()
    dump = ["metadata", "dump", "--dir", str(tmp_path)]
    assert main.run(dump) == 2
    said = capsys.readouterr().err
    assert said.startswith("quorumlog: --dir ")
    assert "this is a broker's: `quorumlog log dump` reads those" in said
    for form in (["--format", "json"], ["--format=json"]):
        assert main.run([*dump, *form]) == 2
        told = json.loads(capsys.readouterr().err)
        assert (told["exit"], told["error_code"]) == (2, None)
        assert f"quorumlog: {told['message']}\n" == said
