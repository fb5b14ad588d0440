"""``/openapi.json`` and ``/docs`` of a live cluster: a browser shows it, a checker believes it."""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from openapi_spec_validator import validate

from tests.support.browser import open_page
from tests.support.live_cluster import LiveCluster, running

ROOT = Path(__file__).resolve().parents[2]
TRY_BROKERS = "#operations-Brokers-get_brokers"
CHECKED_EVERY_DAY = 3
"""Operations whose values are tried out in an everyday run: others at each commit."""
CHECKER_DEADLINE_S = 900


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    with running(tmp_path_factory.mktemp("cluster")) as started:
        asyncio.run(started.create_topic("orders", 3))  # the one that the examples name
        yield started


async def test_the_page_shows_the_document_and_sends_requests(cluster: LiveCluster) -> None:
    url = cluster.url(2)
    async with open_page(f"{url}/docs") as page:
        await page.until("document.querySelectorAll('.opblock-tag-section').length >= 10")
        await page.click(f"{TRY_BROKERS} button.opblock-summary-control")
        await page.click(f"{TRY_BROKERS} .try-out__btn")
        await page.click(f"{TRY_BROKERS} .execute")
        shown = f"{TRY_BROKERS} .live-responses-table .response-col_description pre"
        answer = await page.until(f"document.querySelector({shown!r})?.textContent")
        assert '"brokers"' in answer
        assert page.hosts == {url.removeprefix("http://")}
        assert page.troubles == []


async def test_every_broker_gives_the_same_document_with_its_own_address(
    cluster: LiveCluster,
) -> None:
    documents = {}
    for broker in cluster.brokers:
        answer = await cluster.ask("GET", f"{broker.url}/openapi.json")
        assert answer.body.pop("servers") == [{"url": broker.url}]
        documents[broker.id] = json.dumps(answer.body, sort_keys=True)
    assert len(set(documents.values())) == 1
    validate(answer.body | {"servers": []})


def check(cluster: LiveCluster, *options: str) -> None:
    """Let schemathesis judge the cluster by its document; what it finds is printed."""
    settings = ROOT / "tests" / "support"
    checked = subprocess.run(
        [
            Path(sys.executable).with_name("schemathesis"),
            f"--config-file={settings / 'schemathesis.toml'}",
            "run",
            f"{cluster.url(1)}/openapi.json",
            "--request-timeout=30",
            *options,
        ],
        cwd=cluster.data_dir,  # where it keeps its caches
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "SCHEMATHESIS_HOOKS": "tests.support.schemathesis_hooks",
        },
        capture_output=True,
        text=True,
        timeout=CHECKER_DEADLINE_S,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "Selected:" in checked.stdout, checked.stdout


async def test_the_cluster_answers_every_example_as_the_document_says(
    cluster: LiveCluster, pytestconfig: pytest.Config
) -> None:
    await asyncio.to_thread(
        check, cluster, "--phases=examples", f"--seed={pytestconfig.option.seed_base}"
    )


async def test_the_cluster_answers_values_of_some_operations_as_the_document_says(
    cluster: LiveCluster, pytestconfig: pytest.Config
) -> None:
    seed = pytestconfig.option.seed_base
    answer = await cluster.ask("GET", f"{cluster.url(1)}/openapi.json")
    methods = [one for path in answer.body["paths"].values() for one in path.values()]
    names = sorted(one["operationId"] for one in methods)
    drawn = random.Random(seed).sample(names, CHECKED_EVERY_DAY)
    chosen = [f"--include-operation-id={name}" for name in drawn]
    await asyncio.to_thread(check, cluster, "--phases=coverage", f"--seed={seed}", *chosen)


@pytest.mark.slow
async def test_the_cluster_answers_all_values_as_the_document_says(
    cluster: LiveCluster, pytestconfig: pytest.Config
) -> None:
    seed = f"--seed={pytestconfig.option.seed_base}"
    phases = "--phases=examples,coverage,fuzzing,stateful"
    await asyncio.to_thread(check, cluster, phases, seed, "--max-examples=8")
