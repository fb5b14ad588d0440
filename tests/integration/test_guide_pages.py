"""Every command of the guides, its output compared. Most pages share a cluster."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.documented_cluster import ROOT, DocumentedCluster, documented_cluster

PROGRAM = re.compile(r"```python\n.*?```\n(?:\n```text\n.*?```\n)?", re.DOTALL)
GUIDES = ROOT / "docs" / "guides"


def test_reading_and_writing_goes_as_the_guide_says(tmp_path: Path) -> None:
    (tmp_path / "docs").symlink_to(ROOT / "docs")  # its commands name docs/examples
    page = (GUIDES / "reading-and-writing.md").read_text(encoding="utf-8")
    with documented_cluster(tmp_path) as cluster:
        cluster.check(page)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DocumentedCluster]:
    with documented_cluster(tmp_path_factory.mktemp("guides")) as cluster:
        yield cluster


@pytest.mark.parametrize("guide", ["rest", "tails", "from-kafka", "groups"])
def test_a_guide_goes_as_it_says(shared: DocumentedCluster, guide: str) -> None:
    shared.check((GUIDES / f"{guide}.md").read_text(encoding="utf-8"))


def test_transactions_go_as_the_guide_says(shared: DocumentedCluster) -> None:
    """Its programs run in the test of the SDK's guides."""
    page = (GUIDES / "transactions.md").read_text(encoding="utf-8")
    shared.check(PROGRAM.sub("", page))
