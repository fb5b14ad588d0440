"""The transcripts of ``tests/transcripts``: elections, ISR changes, truncation, rebalancing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.quorum_sim import quorum_world
from tests.support.transcript_cores import Elections, IsrChanges, Rebalancing, Truncation
from tests.support.transcripts import Interpreter, check

__all__ = ["quorum_world"]
FOLDER = Path(__file__).parents[1] / "transcripts"
CORES: dict[str, type[Interpreter]] = {
    "elections": Elections,
    "isr": IsrChanges,
    "truncation": Truncation,
    "rebalancing": Rebalancing,
}


@pytest.mark.usefixtures("quorum_world")
@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.txt")), ids=lambda path: path.stem)
def test_a_transcript_is_what_the_core_does(path: Path, request: pytest.FixtureRequest) -> None:
    rewrite = bool(request.config.getoption("--rewrite-transcripts"))
    check(path, CORES[path.stem.partition("_")[0]](), rewrite=rewrite)


def test_every_core_has_a_transcript() -> None:
    assert {path.stem.partition("_")[0] for path in FOLDER.glob("*.txt")} == set(CORES)
