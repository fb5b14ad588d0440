"""What the metadata benchmark concludes from the log it reads."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import pytest

from benchmarks.metadata import BY_DEFAULT, parse
from benchmarks.metadata_fencing import RECORDS, fencing_row
from benchmarks.metadata_log import MetadataLog
from benchmarks.processes import Measured

if TYPE_CHECKING:
    from benchmarks.product import Product


def answer(base: int, *records: dict[str, Any], epoch: int = 3) -> dict[str, Any]:
    batch = {"base_offset": base, "epoch": epoch, "records": list(records)}
    return {"snapshot": None, "batches": [batch]}


def fenced(broker: int, state: str = "fenced") -> dict[str, Any]:
    return {"type": "broker_registration_change", "broker_id": broker, "state": state}


def moved(partition: int, leader: int) -> dict[str, Any]:
    return {
        "type": "partition_change",
        "partition": partition,
        "leader": leader,
        "leader_epoch": 1,
    }


async def test_records_have_their_offsets_and_whoever_waits_is_told() -> None:
    log = MetadataLog(cast("Product", None))
    waiting = log.first(lambda seen: seen.is_fence(2))
    log.take(answer(7, fenced(1), moved(0, 1)))
    assert not waiting.done()
    log.take(answer(9, fenced(2, "unfenced"), fenced(2), moved(1, 3)))
    assert (await asyncio.wait_for(waiting, 1)).offset == 10
    assert [seen.offset for seen in log.fences()] == [7, 10]
    assert [seen.offset for seen in log.moves(10)] == [11]


def test_a_compacted_log_is_no_evidence() -> None:
    log = MetadataLog(cast("Product", None))
    with pytest.raises(RuntimeError, match="records are missing"):
        log.take({"snapshot": {"next_offset": 5}, "batches": []})


def test_one_false_fencing_misses_the_budget() -> None:
    log = MetadataLog(cast("Product", None))
    figures = {"requests": 600, "errors": 0, "first_error": "", "worst_ms": 12.0}
    runs = [Measured(figures, {})]
    calm = fencing_row(log, runs, minutes=1, idle=0.01)
    assert not calm.missed
    assert f"{600 * RECORDS / 60:,.0f} records/s" in calm.note
    log.take(answer(0, fenced(1)))
    assert fencing_row(log, runs, minutes=1, idle=0.01).missed


def test_ten_minutes_of_load_are_measured_only_when_asked_for() -> None:
    assert parse([]).sections == BY_DEFAULT
    assert "fencing" not in BY_DEFAULT
    assert parse(["--only", "fencing"]).minutes == 10
    assert parse(["--only", "fencing", "--minutes", "4"]).minutes == 4
    assert parse([]).partitions == 10_000
    assert parse(["--quick"]).joining == 10_000
