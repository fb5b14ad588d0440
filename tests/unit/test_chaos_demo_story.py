"""The demo's frame without a cluster: exit status, what is kept, which legs are played."""

from __future__ import annotations

import signal
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from chaos.checkers.verdict import Verdict
from chaos.demo import story
from chaos.demo.context import Leg
from chaos.demo.write_legs import DATA_SET


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A data set of one flight, and a server that is there. Signals are ours again afterwards."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    archive = tmp_path / "data" / DATA_SET
    archive.parent.mkdir(parents=True)
    with zipfile.ZipFile(archive, "w") as made:
        made.writestr("flights.csv", "year,carrier\n2013,UA\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(story, "find_server", lambda: Path("x"))
    yield str(archive)
    for number, handler in handlers.items():
        signal.signal(number, handler)


def played(monkeypatch: pytest.MonkeyPatch, *, passed: bool) -> None:
    async def play(run: Any, *_: object) -> None:
        run.judge(Verdict("a check", passed=passed, figures=""))

    monkeypatch.setattr(story, "play_demo", play)


def test_a_green_run_exits_0_and_leaves_nothing(
    data: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    played(monkeypatch, passed=True)
    assert story.main(["--data", data]) == 0
    assert not Path(".demo-data").exists()
    assert "SPARK" not in capsys.readouterr().out


def test_a_green_run_without_spark_says_so_and_exits_3(
    data: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    played(monkeypatch, passed=True)
    assert story.main(["--data", data, "--no-spark"]) == 3
    assert "SPARK LEG SKIPPED" in capsys.readouterr().out.splitlines()


def test_a_red_run_exits_1_with_or_without_spark_and_keeps_its_directory(
    data: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    played(monkeypatch, passed=False)
    assert story.main(["--data", data]) == 1
    assert story.main(["--data", data, "--no-spark"]) == 1
    assert len(list(Path(".demo-data").iterdir())) == 2
    assert "kept: .demo-data/run-" in capsys.readouterr().out


def test_a_run_that_judged_nothing_is_red(data: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def play(*_: object) -> None:
        return

    monkeypatch.setattr(story, "play_demo", play)
    assert story.main(["--data", data]) == 1


def test_an_end_by_what_was_run_is_a_fail_line(
    data: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def play(*_: object) -> None:
        msg = "no such place"
        raise OSError(msg)

    monkeypatch.setattr(story, "play_demo", play)
    assert story.main(["--data", data]) == 1
    assert "FAIL  the run came to its end: OSError: no such place" in capsys.readouterr().out


async def test_without_spark_only_the_legs_that_need_it_are_left_out() -> None:
    seen: list[str] = []

    def leg(name: str, *, needs_spark: bool) -> Leg:
        async def play(_: object) -> None:
            seen.append(name)

        return Leg(name=name, play=play, needs_spark=needs_spark)

    legs = (
        leg("a", needs_spark=False),
        leg("spark", needs_spark=True),
        leg("b", needs_spark=False),
    )
    for spark in (True, False):
        context = SimpleNamespace(options=SimpleNamespace(spark=spark))
        await story.play_all(legs, context)  # type: ignore[arg-type]
    assert seen == ["a", "spark", "b", "a", "b"]
