"""Every command of docs/operating, page by page against one live cluster, its output compared."""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

import pytest

from raft_metadata.records.records import MetadataRecord
from tests.support.documented_cluster import ROOT, DocumentedCluster, documented_cluster

PAGES = ROOT / "docs" / "operating"
IN_ORDER = (
    "zookeeper.md",
    "health.md",
    "symptoms.md",
    "inside.md",
    "durability.md",
    "draining.md",
    "retention.md",
    "compression.md",
    "upgrade.md",
    "quorum.md",
)
"""zookeeper.md makes the topic that the others look at; quorum.md breaks the most."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DocumentedCluster]:
    directory = tmp_path_factory.mktemp("operating")
    often = "log.retention.check.interval.ms=1000"  # as retention.md says
    with documented_cluster(directory, "--set", often) as running:
        yield running


def test_every_page_is_run_here_and_listed() -> None:
    pages = {path.name for path in PAGES.glob("*.md")}
    assert pages == {*IN_ORDER, "README.md"}
    index = (PAGES / "README.md").read_text()
    assert all(f"]({page})" in index for page in IN_ORDER)


def test_every_record_type_has_its_place_on_the_page_about_zookeeper() -> None:
    page = (PAGES / "zookeeper.md").read_text()
    names = [kind.__name__ for kind in get_args(MetadataRecord)]
    assert [name for name in names if f"`{name}`" not in page] == []


@pytest.mark.parametrize("page", IN_ORDER)
def test_a_page_goes_as_it_says(cluster: DocumentedCluster, page: str) -> None:
    cluster.check((PAGES / page).read_text(encoding="utf-8"))
