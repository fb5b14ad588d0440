"""The examples of the SDK's guide run as they stand, and print what the page says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.live_cluster import LiveCluster, running

ROOT = Path(__file__).resolve().parents[2]
PAGES = (
    "docs/guides/python-sdk.md",
    "docs/guides/confluent-kafka.md",
    "docs/guides/aiokafka.md",
    "docs/guides/idempotence.md",
    "docs/guides/transactions.md",
)
EXAMPLE = re.compile(r"```python\n(.*?)```\n(?:\n```text\n(.*?)```\n)?", re.DOTALL)


def examples() -> list[tuple[str, str, str | None]]:
    """(page and number, code, what it prints if the page says so)."""
    return [
        (f"{Path(page).stem}-{number}", found[1], found[2])
        for page in PAGES
        for number, found in enumerate(EXAMPLE.finditer((ROOT / page).read_text()), 1)
    ]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    with running(tmp_path_factory.mktemp("guide")) as started:
        yield started


def test_the_pages_hold_examples() -> None:
    assert {name.rpartition("-")[0] for name, _, _ in examples()} == {
        Path(page).stem for page in PAGES
    }


@pytest.mark.parametrize(
    ("code", "printed"), [each[1:] for each in examples()], ids=[each[0] for each in examples()]
)
def test_an_example_runs_and_prints_what_the_page_says(
    cluster: LiveCluster, code: str, printed: str | None
) -> None:
    at = cluster.url(1).removeprefix("http://")
    assert "127.0.0.1:8082" in code
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code.replace("127.0.0.1:8082", at)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert (done.returncode, done.stderr) == (0, ""), done
    if printed is not None:
        assert done.stdout == printed
