"""What a forwarding broker sends in one turn of the loop: a write a leader, each answered alone."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator

import pytest

from broker.record.batch import RecordFormat
from broker.record.lines import BATCH_BYTES_MAX, decode_records, encode_lines
from broker.server.direct_requests import CUT_OUT_BYTES_MIN, records_text
from broker.server.forwarded_produce import DEPOSED_GRACE_MS, POSTED_BYTES_MAX
from broker.server.local_partitions import Append
from broker.server.requests import ACKS_ALL, DirectProduce
from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome
from raft_metadata.common.ids import (
    EPOCH_MAX,
    BrokerId,
    LeaderEpoch,
    PartitionId,
    TopicIdPartition,
    TopicName,
)
from tests.support.doors.http import set_producer_epoch
from tests.support.doors.server import queues_of
from tests.support.forwards import LOST, Leader, Shell, settled
from tests.support.one_broker import HERE, ME, OTHER
from tests.support.registered import broker

THIRD = BrokerId(3)


def place(number: int) -> TopicIdPartition:
    return TopicIdPartition(HERE.topic_id, PartitionId(number))


@pytest.fixture
async def shell() -> AsyncIterator[Shell]:
    made = Shell(Leader())
    made.image = dataclasses.replace(
        made.image, brokers=dict(made.image.brokers) | {THIRD: broker(THIRD)}
    )
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(made.forwards.run())
        await asyncio.sleep(0)
        yield made
        running.cancel()


async def test_forwards_to_one_leader_leave_as_one_write(shell: Shell) -> None:
    shell.lead(OTHER, THIRD, OTHER, OTHER)
    async with asyncio.TaskGroup() as tasks:
        for number in (0, 1, 2, 3, 0):
            tasks.create_task(shell.append(partition=place(number)))
    assert shell.leader.posts == [(OTHER, 3), (THIRD, 1)]
    assert sorted(head["partition"] for head in shell.leader.sent) == [0, 1, 2, 3]


async def test_a_slow_partition_holds_up_no_other(shell: Shell) -> None:
    """Though its request left with theirs."""
    shell.lead(OTHER, OTHER)
    shell.leader.gate, shell.leader.gated = asyncio.Event(), {0}
    async with asyncio.TaskGroup() as tasks:
        slow = tasks.create_task(shell.append(partition=place(0)))
        for _ in range(8):
            assert (await shell.append(partition=place(1)))[0].error is None
        also_slow = tasks.create_task(shell.append(partition=place(0)))
        await settled(lambda: len(shell.leader.sent) == 9)
        assert shell.leader.posts[0] == (OTHER, 2)
        assert not slow.done()
        shell.leader.gate.set()
    assert also_slow.result()[0].error is None
    assert [head["claim"][2] for head in shell.leader.sent if head["partition"] == 0] == [0, 1]


async def test_a_lost_reply_of_one_is_asked_for_again_alone(shell: Shell) -> None:
    shell.lead(OTHER, OTHER)
    shell.leader.answers = [LOST, None]
    async with asyncio.TaskGroup() as tasks:
        both = [tasks.create_task(shell.append(partition=place(number))) for number in (0, 1)]
    assert [each.result()[0].error for each in both] == [None, None]
    assert shell.leader.posts == [(OTHER, 2), (OTHER, 1)]
    assert [head["partition"] for head in shell.leader.sent] == [0, 1, 0]
    assert shell.leader.claims == [(0, 0), (0, 0), (0, 0)]


async def test_a_deposed_leader_is_waited_for_a_short_grace_only(shell: Shell) -> None:
    shell.lead(OTHER, OTHER, epoch=4)
    shell.leader.gate = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        for number in (0, 1):
            tasks.create_task(shell.append(partition=place(number)))
        await settled(lambda: len(shell.leader.sent) == 2)
        shell.forwards.image_changed()
        assert not shell.leader.hastened, "it still leads"
        [topic] = shell.image.topics.values()
        newer = dataclasses.replace(topic.partitions[1], leader=THIRD, leader_epoch=LeaderEpoch(5))
        moved = dataclasses.replace(topic, partitions=(topic.partitions[0], newer))
        shell.image = dataclasses.replace(shell.image, topics={topic.topic_id: moved})
        shell.forwards.image_changed()
        assert shell.leader.hastened == [DEPOSED_GRACE_MS]
        shell.leader.gate.set()
    shell.forwards.image_changed()
    assert shell.leader.hastened == [DEPOSED_GRACE_MS], "nothing is under way"


async def test_a_forward_without_a_connection_is_sent_by_a_task(shell: Shell) -> None:
    shell.lead(OTHER, BrokerId(9), ME)
    shell.leader.refuses_posts = True
    assert (await shell.append(2))[0].error is None
    [unknown_broker] = await shell.append(partition=place(1))
    assert unknown_broker.error is None, "whom the image does not know the hop finds out about"
    assert (await shell.append(partition=place(2)))[0].base_offset == 77, "led here by now"
    assert not shell.leader.posts
    assert len(shell.leader.local) == 1


async def test_a_long_request_takes_with_it_what_has_gathered(shell: Shell) -> None:
    """The connection is asked again after it: behind 64 MB it may take no more."""
    shell.lead(OTHER, OTHER, OTHER)
    long = b'{"records":[{"value":"%b"}]}' % (b"v" * POSTED_BYTES_MAX)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(shell.append(partition=place(0)))
        tasks.create_task(shell.append(partition=place(1), body=long))
        tasks.create_task(shell.append(partition=place(2)))
    assert shell.leader.posts == [(OTHER, 2), (OTHER, 1)]


@pytest.mark.parametrize("size", [1, POSTED_BYTES_MAX])
async def test_a_bug_on_the_way_leaves_nobody_waiting(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, size: int
) -> None:
    """Its outcome is unknown, so it is asked for again under its number, until its time is over."""
    attempts = 0

    def broken(*_: object) -> None:
        nonlocal attempts
        attempts += 1
        if attempts < 100:
            raise ZeroDivisionError

    monkeypatch.setattr(shell.leader, "post", broken)
    body = b'{"records":[{"value":"%b"}]}' % (b"v" * size)
    [placed] = await shell.append(timeout_ms=60, body=body)
    assert isinstance(placed.error, KafkaError)
    assert placed.error.outcome is Outcome.UNKNOWN
    assert 1 < attempts < 20
    assert "ZeroDivisionError" in caplog.text
    monkeypatch.undo()
    assert (await shell.append())[0].error is None
    assert shell.leader.claims == [(1, 0)], "the other number is given up"


async def test_a_bug_in_one_answer_leaves_those_behind_it_in_the_batch_told(
    shell: Shell, caplog: pytest.LogCaptureFixture
) -> None:
    assert await shell.forwards.acquire_producer_id(ACKS_ALL)
    told: list[int] = []

    def tell(base_offset: int, _error: KafkaError | None) -> None:
        told.append(base_offset)
        if len(told) == 1:
            raise ZeroDivisionError

    for _ in range(3):
        assert shell.forwards.take(one_record(), tell)
    await settled(lambda: len(told) == 3)
    assert told == [0, 1, 2]
    assert len(shell.leader.sent) == 1
    assert "ZeroDivisionError" in caplog.text
    assert shell.forwards.waiting == shell.forwards.waiting_bytes == 0
    assert (await shell.append())[0].base_offset == 3, "the channel goes on"


async def test_a_further_producer_id_that_is_not_to_be_had_is_asked_for_now_and_then(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The id was requested in every turn of the loop, with a line in the log each."""
    await shell.append()
    asked = 0

    async def none() -> int:
        nonlocal asked
        asked += 1
        raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, "nobody has one")

    monkeypatch.setattr(shell.leader, "next", none)
    [queue] = queues_of(shell.forwards)
    set_producer_epoch(queue.channel, EPOCH_MAX - 1)
    for _ in range(20):
        assert (await shell.append())[0].error is None
    assert asked == 1


async def test_a_body_of_next_to_nothing_a_record_crosses_in_pieces_of_one_batch(
    shell: Shell,
) -> None:
    """As 300 KB it was taken for one batch; in the log it would have been 4 MB."""
    body = b'{"records":[%b{}]}' % (b"{}," * 99_999)
    records = decode_records(body)
    asked = DirectProduce(TopicName("t"), None, records, body, RecordFormat.JSON, ACKS_ALL, 1)
    request = dataclasses.replace(one_record(), records=records)
    assert await shell.forwards.acquire_producer_id(ACKS_ALL)
    assert not shell.forwards.take(request, lambda *_: None, records_text(asked))
    pieces = await shell.append(records=records)
    assert sum(each.records for each in pieces) == 100_000
    assert max(map(len, shell.leader.texts)) < BATCH_BYTES_MAX + 100


async def test_a_stop_leaves_no_timer_behind() -> None:
    shell = Shell(Leader())
    shell.leader.answers = [LOST] * 100
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(shell.forwards.run())
        await asyncio.sleep(0)
        writer = tasks.create_task(shell.append(timeout_ms=30_000))
        await settled(lambda: any(each.pause for each in queues_of(shell.forwards)))
        [queue] = queues_of(shell.forwards)
        assert queue.pause is not None
        assert queue.expiry is not None
        timers = [queue.pause, queue.expiry.timer]
        running.cancel()
    assert all(timer.cancelled() for timer in timers)
    assert isinstance(writer.result()[0].error, KafkaError)


def one_record() -> Append:
    return Append(
        partition=HERE,
        records=decode_records(b'{"records":[{"value":1}]}'),
        key_format=RecordFormat.JSON,
        value_format=RecordFormat.JSON,
        acks=ACKS_ALL,
        timeout_ms=5_000,
    )


PAD = b'"%b"' % (b"v" * CUT_OUT_BYTES_MIN)


@pytest.mark.parametrize(
    ("body", "is_cut_out"),
    [
        (b'{"records":[{"value":%b},{"key":"k","value":{"x":1.0e2}}]}' % PAD, True),
        (b' { "records" : [ {"value":%b} , {"key":1} ] } ' % PAD, True),
        (b'{"\\u0072ecords":[{"value":%b}]}' % PAD, True),
        (b'{"records":[{"value":"[","key":%b}]}' % PAD, True),
        (b'{"records":[{"value":"]","key":%b}]}' % PAD, False),
        (b'{"records":[{"value":[1,2]},{"value":%b}]}' % PAD, False),
        (b'{"records":[{"value":1}],"records":[{"value":%b},{"key":2}]}' % PAD, False),
        (b'{"records":[{"value":%b},\n{"value":2}]}' % PAD, False),
        (b'{"records":[{"value":%b},\r{"value":2}]}' % PAD, False),
        (b'{"records":[{"value":%b,"timestamp":7}]}' % PAD, False),
        (b'{"records":[{"value":1}]}', False),
        (b'{"records":[%b{}]}' % (b"{}," * 1_000), False),
    ],
)
def test_rule_r12_records_are_cut_out_of_a_body_only_where_nothing_else_can_be_meant(
    body: bytes, is_cut_out: bool
) -> None:
    records = decode_records(body)
    request = DirectProduce(TopicName("t"), None, records, body, RecordFormat.JSON, ACKS_ALL, 1)
    text = records_text(request)
    assert (text is not None) is is_cut_out
    if text is not None:
        again = decode_records(b'{"records":[{"value":0},' + text + b',{"value":9}]}')[1:-1]
        assert encode_lines(again) == encode_lines(records)
    assert records_text(request._replace(stored_as=RecordFormat.BINARY)) is None
