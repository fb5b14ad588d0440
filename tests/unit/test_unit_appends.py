"""A target's leader and the units that a home sends: taken once, behind each other (S4, S5)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import orjson
import pytest

from broker.log.unit_check import NumberGap
from broker.record.batch import RecordFormat, walk
from broker.record.lines import BATCH_BYTES_MAX, decode_records
from broker.record.numbering import (
    HomeKind,
    Numbering,
    RowNumber,
    make_numbering,
    number_of_unit,
)
from broker.server.unit_appends import Applied, DecidedUnit, UnitAppends, batches_of_units
from raft_metadata.common.clock import SystemClock
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import SEQUENCES, LeaderEpoch, PartitionId
from tests.support.one_broker import HERE, ME, OTHER, Here, image, one_broker

HOME = make_numbering(HomeKind.TRANSACTIONS, PartitionId(3), LeaderEpoch(-1))
ANOTHER = make_numbering(HomeKind.GROUPS, PartitionId(3), LeaderEpoch(-1))
ONE = LeaderEpoch(1)


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[Here]:
    async with one_broker(tmp_path) as broker:
        broker.manager.on_metadata_update(image(1, (ME,)))
        yield broker


def unit(number: int, values: list[object], **fields: object) -> DecidedUnit:
    body = orjson.dumps({"records": [{"value": value, **fields} for value in values]})
    return DecidedUnit(
        number=RowNumber(number),
        rows=len(values),
        records=decode_records(body),
        key_format=RecordFormat.JSON,
        value_format=RecordFormat.JSON,
    )


async def apply(
    here: Here, after: int, *units: DecidedUnit, numbering: Numbering = HOME, epoch: int = 1,
    timeout_ms: int = 5_000,
) -> Applied | NumberGap:  # fmt: skip
    local = UnitAppends(
        here.config, here.local, here.manager, SystemClock(), lambda: here.proven[0]
    )
    taken = local.take(HERE, LeaderEpoch(epoch), numbering, RowNumber(after), units)
    if isinstance(taken, Applied):
        await local.until_committed(HERE, LeaderEpoch(epoch), numbering, timeout_ms)
    return taken


def values(here: Here) -> list[object]:
    log = here.local.leading(HERE)[0].log
    lines, _ = log.read_lines(log.log_start_offset, 1 << 24, log.log_end_offset)
    return [
        orjson.loads(line)["value"] for piece in lines for line in bytes(piece).split(b"\n") if line
    ]


def batches(here: Here) -> list[tuple[int, int, int]]:
    """(producer epoch, base sequence, records) of each batch."""
    log = here.local.leading(HERE)[0].log
    raw = log.read_raw(0, 1 << 24, log.log_end_offset)
    return [(header.producer_epoch, header.base_sequence, header.count) for _, header in walk(raw)]


async def test_rule_s4_units_are_taken_behind_their_predecessor_only(here: Here) -> None:
    first, second, third = unit(0, ["a", "b"]), unit(2, ["c"]), unit(3, ["d"])
    assert await apply(here, 2, second) == NumberGap(RowNumber(0))
    assert await apply(here, 0, first) == Applied(False, (0,))
    assert await apply(here, 3, third) == NumberGap(RowNumber(2))
    assert await apply(here, 0, unit(0, ["a", "b"]), second) == Applied(False, (0, 2))
    assert await apply(here, 2, unit(2, ["c"]), third) == Applied(False, (2, 3))
    assert values(here) == ["a", "b", "c", "d"], "each once, in the order of their numbers"


async def test_rule_s4_a_jump_of_the_numbers_is_a_batch_of_its_own_and_hides_no_gap(
    here: Here,
) -> None:
    near = number_of_unit(RowNumber(SEQUENCES - 3), 2)
    over = number_of_unit(RowNumber(near + 2), 2)
    assert over == SEQUENCES
    assert await apply(here, 0, unit(near, ["a", "b"])) == Applied(False, (0,)), "mended"
    assert await apply(here, near + 3, unit(over, ["c", "d"])) == NumberGap(RowNumber(near + 2))
    both = unit(near, ["a", "b"]), unit(over, ["c", "d"]), unit(over + 2, ["e"])
    assert await apply(here, 0, *both) == Applied(False, (0, 2, 4))
    assert batches(here) == [(0, SEQUENCES - 3, 2), (1, 0, 3)]
    assert await apply(here, 0, *both) == Applied(True, (None, 2, 4))


async def test_rule_s4_two_requests_at_once_append_a_unit_once(here: Here) -> None:
    here.manager.on_metadata_update(image(2, (ME, OTHER)))
    tasks = [asyncio.create_task(apply(here, 0, unit(0, ["a"]), epoch=2)) for _ in range(3)]
    tasks.append(asyncio.create_task(apply(here, 1, unit(1, ["b"]), epoch=2)))
    await asyncio.sleep(0.01)
    assert not any(task.done() for task in tasks), "the follower has nothing yet"
    here.manager.on_metadata_update(image(2, (ME,)))
    assert await asyncio.gather(*tasks) == [
        Applied(False, (0,)), Applied(True, (0,)), Applied(True, (0,)), Applied(False, (1,)),
    ]  # fmt: skip
    assert values(here) == ["a", "b"]


async def test_rule_s5_already_is_said_once_the_homes_last_batch_here_is_committed(
    here: Here,
) -> None:
    await apply(here, 0, unit(0, ["a"]))
    here.manager.on_metadata_update(image(2, (ME, OTHER)))
    late = asyncio.create_task(apply(here, 1, unit(1, ["b"]), epoch=2, timeout_ms=1))
    await asyncio.sleep(0.01)
    here.manager.tick(SystemClock().monotonic_ms())
    with pytest.raises(KafkaError) as timed_out:
        await late
    assert timed_out.value.code is ErrorCode.REQUEST_TIMED_OUT
    repeat = asyncio.create_task(apply(here, 0, unit(0, ["a"]), epoch=2))
    await asyncio.sleep(0.01)
    assert not repeat.done(), "a leader that lacks the last one may lack this one as well"
    here.manager.on_metadata_update(image(2, (ME,)))
    assert await repeat == Applied(True, (0,))
    other = apply(here, 0, unit(0, ["x"]), numbering=ANOTHER, epoch=2)
    assert await other == Applied(False, (2,))


async def test_rule_s5_only_a_proven_leader_says_that_rows_are_missing_or_mends_that(
    here: Here,
) -> None:
    await apply(here, 0, unit(0, ["a"]))
    here.proven[0] = False
    for after in (5, 1):
        with pytest.raises(KafkaError) as unproven:
            await apply(here, after, unit(5, ["f"]))
        assert unproven.value.code is ErrorCode.LEADER_NOT_AVAILABLE
    here.proven[0] = True
    here.manager.on_metadata_update(image(2, (ME, OTHER)))
    with pytest.raises(KafkaError) as old:
        await apply(here, 5, unit(5, ["f"]))
    assert old.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert await apply(here, 5, unit(5, ["f"]), epoch=2) == NumberGap(RowNumber(1))
    here.manager.on_metadata_update(image(2, (ME,)))
    assert await apply(here, 1, unit(5, ["f"]), epoch=2) == Applied(False, (1,))
    assert await apply(here, 1, unit(5, ["f"]), epoch=2) == Applied(True, (1,))
    assert await apply(here, 1, unit(7, ["h"]), epoch=2) == NumberGap(RowNumber(6)), (
        "mended already"
    )
    assert values(here) == ["a", "f"]


async def test_rule_s5_a_gap_waits_until_all_that_was_found_is_committed(here: Here) -> None:
    here.manager.on_metadata_update(image(2, (ME, OTHER)))
    pending = asyncio.create_task(apply(here, 0, unit(0, ["a"]), epoch=2))
    await asyncio.sleep(0.01)
    here.manager.on_metadata_update(image(3, (ME, OTHER)))
    with pytest.raises(KafkaError) as early:
        await apply(here, 5, unit(5, ["f"]), epoch=3)
    assert early.value.code is ErrorCode.OFFSET_NOT_AVAILABLE
    here.manager.on_metadata_update(image(3, (ME,)))
    assert await pending == Applied(False, (0,)), "its batch stayed, and is committed"
    assert await apply(here, 5, unit(5, ["f"]), epoch=3) == NumberGap(RowNumber(1))


async def test_nothing_of_the_topics_configuration_is_looked_at_again(here: Here) -> None:
    replica, _ = here.local.leading(HERE)
    replica.log.config = type(replica.log.config)(append_time=True)
    large = "x" * (BATCH_BYTES_MAX + 1)
    timed = unit(0, ["t"], timestamp=77)
    assert await apply(here, 0, timed, unit(1, [large])) == Applied(False, (0, 1))
    line, _ = replica.log.read_lines(0, 1, 1)
    assert orjson.loads(bytes(line[0]))["timestamp"] == 77
    header = next(walk(replica.log.read_raw(1, 1 << 24, 2)))[1]
    assert header.max_timestamp == header.append_timestamp > 77


async def test_a_log_that_ends_inside_of_a_unit_is_reported(here: Here) -> None:
    await apply(here, 0, unit(0, ["a", "b", "c"]))
    with pytest.raises(KafkaError, match="completed by __transaction_state-3") as split:
        await apply(here, 0, unit(0, ["a"] * 5))
    assert split.value.code is ErrorCode.CORRUPT_MESSAGE
    assert values(here) == ["a", "b", "c"]


def test_units_share_a_batch_up_to_its_usual_size_and_are_never_split() -> None:
    row = "x" * 100_000
    units = [unit(3 * at, [row] * 3) for at in range(8)]
    assert [len(run) for run in batches_of_units(units)] == [3, 3, 2]
    whole = unit(24, ["x" * 200_000] * 9)
    assert [len(run) for run in batches_of_units([*units[6:], whole, unit(33, [1])])] == [2, 1, 1]
    timed = [unit(0, [1]), unit(1, [1], timestamp=5), unit(2, [1], timestamp=6)]
    assert [len(run) for run in batches_of_units(timed)] == [1, 2]
    assert not list(batches_of_units([]))
