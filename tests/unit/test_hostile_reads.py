"""Reads under hostile conditions: cut-off brokers, a stop in a time-out, a bound in a hole."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from broker.record.batch import BatchHeader, BatchSlice
from broker.record.render import before_offset
from broker.server.fetch import ReadRouting
from broker.server.poll_messages import is_final
from broker.server.requests import FetchRequest
from http_api.contract.event_stream import event
from http_api.server.tail_shapes import EventTail, stored_lines
from raft_metadata.common.clock import SystemClock
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import PartitionId, TopicId, TopicIdPartition, TopicName
from raft_metadata.common.stoppable_waits import StoppableWaits
from tests.support.polled_brokers import NAME, TOPIC, PolledBroker, image, poll_of, polled_brokers


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
    header = BatchHeader(b"", *([0] * (len(BatchHeader._fields) - 1)))._replace(
        base_offset=0, count=2, last_offset_delta=9
    )
    piece = BatchSlice(header, lines, 0, 10, 2)
    assert before_offset([piece], 5) == []
    found = before_offset([piece], 8)
    assert [(each.count, each.next_offset) for each in found] == [(1, 8)]
    sent = EventTail(stored_lines).records(found, PartitionId(0), lambda: "TOKEN")
    assert sent == event(lines.splitlines()[0], event_id="TOKEN")


NEWER = TopicId("B" * 22)


@pytest.mark.parametrize("hears_controllers", [True, False])
async def test_rule_r8_a_broker_that_hears_no_controller_says_of_no_topic_that_it_was_made_anew(
    tmp_path: Path, *, hears_controllers: bool
) -> None:
    """The broker's image may be the old one: the reader would think that its log is gone."""
    expected = ErrorCode.TOPIC_CHANGED if hears_controllers else ErrorCode.LEADER_NOT_AVAILABLE
    async with polled_brokers(tmp_path, 1) as (one,):
        one.follow(image([1]))
        one.hears_controllers = hears_controllers
        poll = poll_of({0: 0}, max_wait_ms=0)
        [page] = await one.routing.poll(replace(poll, rows=[poll.rows[0]._replace(topic_id=NEWER)]))
        assert isinstance(page.found, KafkaError)
        assert page.found.code is expected
        with pytest.raises(KafkaError) as refused:
            await reads_of(one).fetch(
                FetchRequest(topic=NAME, partition=PartitionId(0), offset=0, topic_id=NEWER)
            )
        assert refused.value.code is expected


@pytest.mark.parametrize("hears_controllers", [True, False])
@pytest.mark.parametrize(("name", "partition"), [("made since", 0), (NAME, 1)])
async def test_rule_r8_a_poll_at_a_broker_that_hears_no_controller_calls_nothing_unknown(
    tmp_path: Path, name: str, partition: int, *, hears_controllers: bool
) -> None:
    """Another broker made the topic, or its second partition, since this one heard of any."""
    async with polled_brokers(tmp_path, 1) as (one,):
        one.follow(image([1]))
        one.hears_controllers = hears_controllers
        poll = poll_of({partition: 0}, max_wait_ms=0)
        row = poll.rows[0]._replace(topic=TopicName(name))
        [page] = await one.routing.poll(replace(poll, rows=[row]))
        assert isinstance(page.found, KafkaError)
        assert is_final(page.found) is hears_controllers, page.found
        if not hears_controllers:
            assert page.found.code is ErrorCode.LEADER_NOT_AVAILABLE


def reads_of(one: PolledBroker) -> ReadRouting:
    async def existing(_: TopicName, number: PartitionId) -> TopicIdPartition:
        return TopicIdPartition(TOPIC, number)

    nobody = cast("Any", None)  # neither a leader nor a follower is asked
    return ReadRouting(one.config, one.local, existing, nobody, nobody, SystemClock(), one.catch_up)
