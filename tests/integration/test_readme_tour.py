"""Every command of the README's tour, run in order against a live cluster, its output compared."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.documented_cluster import ROOT, documented_cluster, steps

TOUR = re.compile(r"^## A tour with curl$(.*?)^## ", re.MULTILINE | re.DOTALL)


def tour() -> str:
    found = TOUR.search((ROOT / "README.md").read_text(encoding="utf-8"))
    assert found is not None
    return found[1]


def test_every_bash_block_of_the_readme_is_run_here() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert readme.count("\n```bash\n") == len(steps(tour()))


def test_the_tour_goes_as_the_readme_says(tmp_path: Path) -> None:
    with documented_cluster(tmp_path) as cluster:
        assert cluster.check(tour()).errors == ""
