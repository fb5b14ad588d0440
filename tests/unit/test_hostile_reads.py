"""Reads under hostile conditions: a stop beside a time-out, a bound inside of a hole."""

from __future__ import annotations

import asyncio

from broker.record.batch import BatchHeader, BatchSlice
from broker.record.render import before_offset
from http_api.contract.event_stream import event
from http_api.server.tail_shapes import EventTail, stored_lines
from raft_metadata.common.ids import PartitionId
from raft_metadata.common.stoppable_waits import StoppableWaits


async def test_a_stop_right_behind_a_time_out_ends_the_other_waits_too() -> None:
    """A time-out that has expired can't be rescheduled until its task has run."""
    waits = StoppableWaits()

    async def wait(delay_s: float) -> None:
        async with waits.wait(delay_s):
            await asyncio.Event().wait()

    waiting = [asyncio.create_task(wait(delay_s)) for delay_s in (0, 60, 60)]
    await asyncio.sleep(0)  # each has begun to wait
    await asyncio.sleep(0)  # the first has expired, and its task has not run
    waits.stop()
    ended = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 1)
    assert [type(each) for each in ended] == [TimeoutError] * 3


def test_rule_r7_a_bound_before_the_first_record_of_a_compacted_batch_leaves_no_empty_slice() -> (
    None
):
    lines = b'{"offset":7,"key":null,"value":1}\n{"offset":9,"key":null,"value":2}\n'
    header = BatchHeader(*([0] * len(BatchHeader._fields)))._replace(
        base_offset=0, count=2, last_offset_delta=9
    )
    piece = BatchSlice(header, lines, 0, 10, 2)
    assert before_offset([piece], 5) == []
    found = before_offset([piece], 8)
    assert [(each.count, each.next_offset) for each in found] == [(1, 8)]
    sent = EventTail(stored_lines).records(found, PartitionId(0), lambda: "TOKEN")
    assert sent == event(lines.splitlines()[0], event_id="TOKEN")
