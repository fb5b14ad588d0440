"""The table says what was missed; gaps and percentiles are what their names say."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import orjson
import pytest

from benchmarks import run
from benchmarks.failover import longest_gap
from benchmarks.load import produce_body, render_get, render_post
from benchmarks.processes import cpu_seconds, memory_mb
from benchmarks.report import (
    Row,
    at_least,
    at_most,
    machine,
    missed,
    percentile,
    ratio_at_least,
    table,
)
from benchmarks.run import SECTIONS, parse
from chaos.http import CallError


def test_budget_met_and_missed() -> None:
    assert ratio_at_least(0.6).met(0.6)
    assert not ratio_at_least(0.6).met(0.59)
    assert at_most(250, " ms").met(250)
    assert not at_most(250, " ms").met(251)
    assert str(at_least(300_000, " records/s")) == "≥ 300,000 records/s"
    assert str(ratio_at_least(0.45)) == "≥ 0.45 × floor"


def test_table_shows_ratio_and_says_what_was_missed() -> None:
    rows = [
        Row(what="a", product="1", floor="2", value=0.5, budget=ratio_at_least(0.6), note="n"),
        Row(what="b", product="9 ms", value=9.0, budget=at_most(10, " ms")),
        Row(what="c", product="3"),
        Row(what="d", product="", value=None, budget=at_most(10, " ms")),
    ]
    lines = table(rows).splitlines()
    assert len({len(line) for line in lines}) == 1, "columns are aligned"
    assert lines[2].split("|")[3:7] == [" 2     ", " 0.50  ", " ≥ 0.6 × floor ", " MISSED "]
    assert missed(rows).splitlines() == [
        "MISSED: a: 0.50, budget ≥ 0.6 × floor",
        "MISSED: d: not measured, budget ≤ 10 ms",
    ]
    assert missed(rows[1:3]) == "all 1 budgets met"


def test_percentile_is_nearest_rank() -> None:
    assert percentile([5, 1, 4, 2, 3], 0.5) == 3
    assert percentile([1.0], 0.99) == 1.0
    assert percentile([1, 2], 0.5) == 1
    assert percentile(range(1, 101), 0.99) == 99


def test_longest_gap_counts_from_the_last_one_before() -> None:
    assert longest_gap([0, 100, 110, 700, 710], since=120) == 590
    assert longest_gap([0, 500, 510, 520], since=505) == 10
    assert longest_gap([0], since=5) == 0


def test_machine_names_what_matters() -> None:
    assert "Python 3." in machine()
    assert "aiohttp" in machine()


def test_own_cpu_and_memory_are_found() -> None:
    before = cpu_seconds(os.getpid())
    end = time.process_time() + 0.05
    while time.process_time() < end:
        pass
    assert cpu_seconds(os.getpid()) - before >= 0.03
    resident, proportional = memory_mb(os.getpid())
    assert 5 < proportional <= resident


@pytest.mark.parametrize("records", [1, 100])
def test_produce_body_has_values_of_the_size_that_was_asked_for(records: int) -> None:
    body = produce_body(records, 100, 3)
    read = orjson.loads(body)["records"]
    assert len(read) == records
    assert all(len(orjson.dumps(record["value"])) == 100 for record in read)
    assert all(isinstance(record["key"], str) for record in read)


def test_rendered_requests_are_whole() -> None:
    request = render_post("/topics/t", b"{}", "application/json")
    assert request.endswith(b"Content-Length: 2\r\n\r\n{}")
    assert render_get("/x", "a/b").startswith(b"GET /x HTTP/1.1\r\n")


def test_command_line() -> None:
    quick = parse(["--quick", "--only", "fetch", "--only", "idle"])
    assert (quick.sections, quick.seconds, quick.rounds) == (("fetch", "idle"), 2.0, 1)
    assert parse([]).sections == SECTIONS
    assert parse(["--trials", "30"]).trials == 30
    with pytest.raises(SystemExit):
        parse(["--only", "nonsense"])


async def test_what_fails_in_a_task_of_a_section_is_a_row_without_a_figure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The sections that were measured are printed all the same."""

    @asynccontextmanager
    async def no_cluster(*_options: str) -> AsyncIterator[None]:
        yield None

    async def measure(section: str, *_others: object) -> list[Row]:
        if section == "idle":
            return [Row(what=section, product="1")]
        inner = ExceptionGroup("tasks", [CallError("GET /x: 503")])
        raise ExceptionGroup("tasks", [inner])

    monkeypatch.setattr(run, "product", no_cluster)
    monkeypatch.setattr(run, "measure", measure)
    rows = await run.run(parse(["--only", "idle", "--only", "doors"]))
    assert [(row.what, row.product) for row in rows] == [("idle", "1"), ("doors", run.NO_FIGURE)]
    assert rows[1].note == "CallError('GET /x: 503')"
