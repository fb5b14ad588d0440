"""Every command of the README's first screen and of the tour, its output compared."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.documented_cluster import ROOT, documented_cluster, steps


@pytest.mark.parametrize("page", ["README.md", "docs/guides/tour.md"])
def test_each_command_prints_what_the_page_shows(page: str, tmp_path: Path) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    with documented_cluster(tmp_path) as cluster:
        played = cluster.check(text)
    assert played.errors == ""


def test_the_readme_begins_with_a_write_and_a_read() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    first = steps(text)[0]
    assert text.index(first.commands) < text.index("\n## ")
    assert first.commands.count("curl ") == 2


def test_the_other_lines_of_the_readme_are_targets_of_make() -> None:
    """`make up` is what the cluster of these tests replaces; the clone is where they run."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = [block.partition("```")[0] for block in text.split("```sh\n")[1:]]
    lines = [line.partition("#")[0].split() for block in blocks for line in block.splitlines()]
    targets = {line[1] for line in lines if line[0] == "make"}
    assert targets == {"up", "demo", "test"}
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert [target for target in targets if f"\n{target}: " not in makefile] == []
    assert [line for line in lines if line[0] not in {"make", "git"}] == []
