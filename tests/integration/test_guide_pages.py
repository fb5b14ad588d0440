"""Every command of the guides, each page against a cluster of its own, its output compared."""

from __future__ import annotations

from pathlib import Path

from tests.support.documented_cluster import ROOT, documented_cluster


def test_reading_and_writing_goes_as_the_guide_says(tmp_path: Path) -> None:
    (tmp_path / "docs").symlink_to(ROOT / "docs")  # its commands name docs/examples
    page = (ROOT / "docs" / "guides" / "reading-and-writing.md").read_text(encoding="utf-8")
    with documented_cluster(tmp_path) as cluster:
        cluster.check(page)


def test_a_reader_of_kafkas_guides_finds_what_the_page_says(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "guides" / "from-kafka.md").read_text(encoding="utf-8")
    with documented_cluster(tmp_path) as cluster:
        cluster.check(page)


def test_the_rest_api_answers_as_its_guide_says(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "guides" / "rest.md").read_text(encoding="utf-8")
    with documented_cluster(tmp_path) as cluster:
        cluster.check(page)
