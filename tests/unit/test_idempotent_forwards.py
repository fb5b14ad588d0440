"""The shell around the channel: what it sends, to whom, and when it goes without numbers."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from broker.config import BrokerConfig
from broker.record.batch import RecordFormat
from broker.record.lines import decode_records
from broker.server import peer_codec
from broker.server.direct_requests import DirectRequests
from broker.server.forwarded_produce import PlacedRecords
from broker.server.local_partitions import Append
from broker.server.peer_codec import PeerRequestKind
from broker.server.produce import KeylessPlacement, ProduceRouting, check_claimed, refused_whole
from broker.server.requests import (
    ACKS_ALL,
    ACKS_LEADER,
    FINAL,
    DirectProduce,
    ProduceRequest,
    RecordResult,
)
from broker.server.topics import LiveConfigs
from raft_metadata.common.clock import SystemClock
from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome
from raft_metadata.common.ids import BrokerId, Claim, ClusterId, DirectoryId, PartitionId, TopicName
from raft_metadata.image.metadata_image import PartitionRegistration
from tests.support.forwards import LOST, Leader, Shell, settled
from tests.support.one_broker import HERE, ME, OTHER, image


@pytest.fixture(params=[True, False], ids=["posted", "tasks"])
async def shell(request: pytest.FixtureRequest) -> AsyncIterator[Shell]:
    """Either way to a leader; in the product the second is for what can't be posted."""
    made = Shell(Leader())
    made.leader.refuses_posts = not request.param
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(made.forwards.run())
        await asyncio.sleep(0)
        yield made
        running.cancel()


async def test_rule_f1_a_lost_reply_is_asked_for_again_under_the_same_number(shell: Shell) -> None:
    shell.leader.answers = [LOST, LOST]
    assert await shell.append(2) == [PlacedRecords(2, 0)]
    assert await shell.append(3) == [PlacedRecords(3, 2)]
    assert shell.leader.claims == [(0, 0), (0, 0), (0, 0), (0, 2)]


async def test_batches_that_gather_during_requests_are_sent_as_one(shell: Shell) -> None:
    await shell.append()
    shell.leader.gate = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:

        def sent(count: int) -> bool:
            return len(shell.leader.sent) == count

        writers = []
        for number in range(5):
            writers.append(tasks.create_task(shell.append()))
            await settled(partial(sent, number + 2))
        writers += [tasks.create_task(shell.append()) for _ in range(7)]
        await asyncio.sleep(0.01)
        assert len(shell.leader.sent) == 6
        shell.leader.gate.set()
    bases = sorted(writer.result()[0].base_offset for writer in writers)
    assert bases == list(range(1, 13))
    assert shell.leader.claims == [(0, n) for n in range(7)]
    assert len(decode_records(shell.leader.texts[-1])) == 7, "five under way, the others together"


async def test_batches_of_one_turn_of_the_loop_are_sent_as_one(shell: Shell) -> None:
    await shell.append()
    async with asyncio.TaskGroup() as tasks:
        writers = [tasks.create_task(shell.append(2)) for _ in range(12)]
    assert sorted(writer.result()[0].base_offset for writer in writers) == list(range(1, 25, 2))
    assert shell.leader.claims == [(0, 0), (0, 1)]


class Front:
    """The fast lane's way to a partition that is led elsewhere."""

    def __init__(self, shell: Shell) -> None:
        self.shell = shell
        self.told: list[tuple[int, KafkaError | None]] = []
        config = BrokerConfig(
            broker_id=ME, cluster_id=ClusterId("c"), directory_id=DirectoryId("d"),
            data_dir=Path("/nowhere"), advertised_http="", advertised_peer="",
        )  # fmt: skip
        fake: Any = shell
        self.direct = DirectRequests(
            config, fake, fake, LiveConfigs(config), shell.forwards, KeylessPlacement(bytes)
        )

    def produce(
        self, count: int = 1, timeout_ms: int = 5_000, acks: int = ACKS_ALL, value: bytes = b"1"
    ) -> bool:
        def answered(partition: PartitionId, base: int, error: KafkaError | None) -> None:
            assert partition == 0
            self.told.append((base, error))

        body = b'{"records":[' + b",".join([b'{"value":%b}' % value] * count) + b"]}"
        request = DirectProduce(
            TopicName("t"), PartitionId(0), decode_records(body), body, RecordFormat.JSON,
            acks, timeout_ms,
        )  # fmt: skip
        return self.direct.produce(request, answered)


async def test_the_short_way_forwards_under_numbers_and_each_has_its_own_offsets(
    shell: Shell,
) -> None:
    await shell.append()
    front = Front(shell)
    shell.leader.answers = [LOST]
    for count in (1, 3, 2):
        assert front.produce(count)
    assert not front.told
    await settled(lambda: len(front.told) == 3)
    assert front.told == [(1, None), (2, None), (5, None)]
    assert shell.leader.claims == [(0, 0), (0, 1), (0, 1)], "the lost one is asked for again"


async def test_the_short_way_sends_long_and_short_bodies_as_one_array(shell: Shell) -> None:
    await shell.append()
    front = Front(shell)
    long = b'"%b"' % (b"v" * 1_500)
    for count, value in ((2, long), (1, b"[1]"), (3, long), (1, b'["%b"]' % (b"w" * 1_500))):
        assert front.produce(count, value=value)
    await settled(lambda: len(front.told) == 4)
    assert front.told == [(1, None), (3, None), (4, None), (7, None)]
    stored = [bytes(record.value) for record in decode_records(shell.leader.texts[-1])]
    assert stored == [long, long, b"[1]", *[long] * 3, b'["%b"]' % (b"w" * 1_500)]


async def test_the_short_way_waits_for_its_time_once(shell: Shell) -> None:
    """The outcome that is known at the deadline is the answer, certain or not."""
    await shell.append()
    front = Front(shell)
    routed = shell.image
    shell.leader.answers = [LOST] * 500
    assert front.produce(timeout_ms=60)
    await settled(lambda: len(front.told) == 1)
    shell.leader.answers = []
    assert front.produce(timeout_ms=60)
    shell.image = dataclasses.replace(routed, topics=image(1, (OTHER,), leader=BrokerId(-1)).topics)
    await settled(lambda: len(front.told) == 2)
    for (base, error), outcome in zip(
        front.told, (Outcome.UNKNOWN, Outcome.NOT_WRITTEN), strict=True
    ):
        assert base == FINAL
        assert error is not None
        assert error.outcome is outcome


async def test_the_short_way_is_left_where_forwards_are_not_numbered(shell: Shell) -> None:
    front = Front(shell)
    assert not front.produce(), "no producer id is there yet"
    await shell.append()
    assert front.produce()
    await settled(lambda: len(front.told) == 1)
    assert not front.produce(acks=ACKS_LEADER), "another sequence, another id"
    shell.image = dataclasses.replace(
        shell.image, topics=image(1, (OTHER,), leader=BrokerId(-1)).topics
    )
    assert not front.produce(), "nobody leads: the usual way waits for a leader"


async def test_the_short_way_goes_plain_where_a_log_is_full_of_producers(shell: Shell) -> None:
    await shell.append()
    front = Front(shell)
    full = KafkaError(ErrorCode.POLICY_VIOLATION, "too many producers")
    shell.leader.answers = [full]
    assert front.produce()
    await settled(lambda: len(front.told) == 1)
    assert front.told == [(-1, full)]


async def test_a_gap_is_closed_in_the_next_epoch(shell: Shell) -> None:
    await shell.append()
    refused = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, "1 in-sync replica")
    shell.leader.answers = [refused]
    [placed] = await shell.append()
    assert placed.error is refused
    assert await shell.append() == [PlacedRecords(1, 1)]
    assert shell.leader.claims == [(0, 0), (0, 1), (1, 0)]


async def test_the_next_leader_is_asked_and_this_broker_itself_if_it_leads(shell: Shell) -> None:
    shell.leader.answers = [LOST] * 50
    async with asyncio.TaskGroup() as tasks:
        writer = tasks.create_task(shell.append())
        await settled(lambda: len(shell.leader.sent) > 1)
        shell.image = image(2, (ME,))
        shell.forwards.image_changed()
    assert writer.result() == [PlacedRecords(1, 77)]
    [local] = shell.leader.local
    assert local.claim == Claim(40, 0, 0)
    assert len(local.records) == 1


async def test_at_the_deadline_it_is_unknown_and_where_nothing_was_sent_it_is_not_written(
    shell: Shell,
) -> None:
    shell.leader.answers = [LOST] * 500
    [placed] = await shell.append(timeout_ms=60)
    assert placed.error is not None
    assert placed.error.outcome is Outcome.UNKNOWN
    shell.leader.answers = []
    shell.image = image(1, (OTHER,), leader=BrokerId(-1))
    [placed] = await shell.append(timeout_ms=60)
    assert placed.error is not None
    assert placed.error.outcome is Outcome.NOT_WRITTEN
    assert "no leader" in placed.error.message


async def test_a_large_request_crosses_in_pieces_of_one_batch(shell: Shell) -> None:
    value = b'{"value":"%b"}' % (b"x" * 400_000)
    body = b'{"records":[' + b",".join([value] * 8) + b"]}"
    placed = await shell.append(records=decode_records(body))
    assert sum(each.records for each in placed) == 8
    assert [each.base_offset for each in placed] == [0, 2, 4, 6]


async def test_forwards_with_fewer_acks_have_a_sequence_of_their_own(shell: Shell) -> None:
    await shell.append()
    await shell.append(acks=ACKS_LEADER)
    await shell.append()
    assert shell.leader.claims == [(0, 0), (0, 0), (0, 1)]


@pytest.mark.parametrize("posts", [True, False])
async def test_when_the_broker_stops_whoever_waits_is_told(posts: bool) -> None:
    shell = Shell(Leader())
    shell.leader.refuses_posts = not posts
    shell.leader.gate = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(shell.forwards.run())
        await asyncio.sleep(0)
        writer = tasks.create_task(shell.append())
        await settled(lambda: bool(shell.leader.sent))
        running.cancel()
    [placed] = writer.result()
    assert placed.error is not None
    assert placed.error.outcome is Outcome.UNKNOWN
    assert not await shell.forwards.acquire_producer_id(ACKS_ALL)
    shell.leader.gate.set()
    assert len(shell.leader.answering) == posts
    await asyncio.gather(*shell.leader.answering)  # what comes now finds nobody, and harms nobody


async def test_without_an_id_forwards_are_not_numbered(shell: Shell) -> None:
    async def nothing() -> int:
        raise KafkaError(ErrorCode.NOT_CONTROLLER)

    shell.leader.next = nothing  # type: ignore[method-assign]
    assert not await shell.forwards.acquire_producer_id(ACKS_ALL)


def request(*partitions: int | None, to: int | None = None) -> ProduceRequest:
    rows = (
        b'{"value":1}' if partition is None else b'{"value":1,"partition":%d}' % partition
        for partition in partitions
    )
    return ProduceRequest(
        topic=TopicName("t"),
        records=decode_records(b'{"records":[' + b",".join(rows) + b"]}"),
        key_format=RecordFormat.JSON,
        value_format=RecordFormat.JSON,
        partition=None if to is None else PartitionId(to),
        claim=Claim(1, 0, 0),
    )


def test_a_sequence_is_of_one_partition() -> None:
    [one] = image(1, (ME,)).topics.values()
    registration: PartitionRegistration = one.partitions[0]
    two = dataclasses.replace(one, partitions_count=2, partitions=(registration,) * 2)
    for good in (request(None, to=1), request(1, 1)):
        check_claimed(good, two)
    check_claimed(request(None, None), one)
    for bad in (request(None), request(0, 1), request(1, None)):
        with pytest.raises(KafkaError, match="POST /topics/t/partitions/P") as refused:
            check_claimed(bad, two)
        assert refused.value.code is ErrorCode.INVALID_REQUEST
    growing = dataclasses.replace(two, grown_from=1)  # keyless and keyed ones still go to 0
    for good in (request(None, None), request(None, 0), request(1, 1)):
        check_claimed(good, growing)
    for bad in (request(0, 1), request(1, None)):
        with pytest.raises(KafkaError, match="a sequence belongs to one partition"):
            check_claimed(bad, growing)


def test_rule_s4_no_request_of_a_client_or_forwarded_by_a_broker_has_a_reserved_id() -> None:
    [topic] = image(1, (ME,)).topics.values()
    reserved = Claim(1 << 62, 0, 0)
    with pytest.raises(KafkaError, match="the cluster's own") as refused:
        check_claimed(dataclasses.replace(request(0), claim=reserved), topic)
    assert refused.value.code is ErrorCode.INVALID_REQUEST
    whole = request(0)
    append = Append(
        partition=HERE,
        records=whole.records,
        key_format=RecordFormat.JSON,
        value_format=RecordFormat.JSON,
        acks=-1,
        timeout_ms=1,
        claim=reserved,
    )
    body = peer_codec.encode_claimed(append, peer_codec.encode_records(whole.records))
    with pytest.raises(KafkaError, match="the cluster's own"):
        peer_codec.decode_append(0, *peer_codec.split_body(body))


def test_a_record_that_is_refused_refuses_the_whole_sequence_and_says_why() -> None:
    too_large = KafkaError(ErrorCode.MESSAGE_TOO_LARGE, "the record is larger than 5 bytes")
    no_key = KafkaError(ErrorCode.INVALID_RECORD, "this one has no key")
    assert refused_whole([None, None]) is None
    for error in (too_large, no_key):
        refused = refused_whole([None, RecordResult(None, None, error)])
        assert refused is not None
        assert refused.message.startswith(f"record 1: {error.message}; ")
        assert "all are refused with it" in refused.message
        assert (refused.code, refused.outcome) == (error.code, Outcome.NOT_WRITTEN)


async def test_a_write_without_a_producer_is_not_refused_for_the_number_of_others(
    shell: Shell,
) -> None:
    """The broker's own producer id is new to a partition that remembers as many as it may."""
    shell.leader.answers = [KafkaError(ErrorCode.POLICY_VIOLATION, outcome=Outcome.NOT_WRITTEN)]
    kinds: list[int] = []
    registration = shell.image.partition(*HERE)

    class Routing:
        async def routed(
            self, _partition: object, attempt: Any, *_: int, repeat_unknown: bool
        ) -> object:
            assert not repeat_unknown
            return await attempt(registration, 1_000)

        async def forward(self, _partition: object, _to: object, kind: int, *_: object) -> bytes:
            kinds.append(kind)
            return peer_codec.join_body({"base_offset": 5})

    fake: Any = Routing()
    local: Any = shell.leader
    routing = ProduceRouting(ME, local, fake, shell.forwards, SystemClock())
    json = RecordFormat.JSON
    append = Append(
        partition=HERE, records=decode_records(b'{"records":[{"value":1}]}'), key_format=json,
        value_format=json, acks=ACKS_ALL, timeout_ms=1_000,
    )  # fmt: skip
    placed = await routing.place(append, SystemClock().monotonic_ms() + 1_000)
    assert placed == [PlacedRecords(1, 5)]
    assert kinds == [PeerRequestKind.APPEND]
