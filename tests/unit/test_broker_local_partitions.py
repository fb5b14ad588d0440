"""Append, fetch and offsets of a partition led here, over a real log; followers are only said."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from broker.log.read_positions import Divergence, DivergenceCause, PositionTruncatedError
from broker.record.batch import RecordFormat
from broker.record.lines import decode_records
from broker.server import peer_codec
from broker.server.local_partitions import Append, Read
from broker.server.requests import ACKS_ALL, ACKS_LEADER, ACKS_NONE, UNKNOWN_EPOCH
from raft_metadata.common.clock import SystemClock
from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome
from tests.support.one_broker import HERE, ME, OTHER, Here, image, one_broker


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[Here]:
    async with one_broker(tmp_path) as broker:
        yield broker


def records(count: int, acks: int, timeout_ms: int = 5_000) -> Append:
    body = b'{"records":[' + b",".join(b'{"value":%d}' % n for n in range(count)) + b"]}"
    return Append(
        partition=HERE,
        records=decode_records(body),
        key_format=RecordFormat.JSON,
        value_format=RecordFormat.JSON,
        acks=acks,
        timeout_ms=timeout_ms,
    )


def read(offset: int | None, wait_ms: int = 0, timestamp_ms: int | None = None) -> Read:
    return Read(
        partition=HERE,
        offset=offset,
        timestamp_ms=timestamp_ms,
        max_bytes=1_000_000,
        max_wait_ms=wait_ms,
    )


async def test_rule_r8_invariant_l21_ends_are_withheld_up_to_the_epoch_start(here: Here) -> None:
    here.manager.on_metadata_update(image(1, (ME, OTHER)))
    assert await here.local.append(records(2, ACKS_LEADER)) == 0
    assert here.local.offsets(HERE).end_offset == 0
    here.manager.on_metadata_update(image(2, (ME, OTHER)))
    with pytest.raises(KafkaError) as caught:
        here.local.offsets(HERE)
    assert caught.value.code is ErrorCode.OFFSET_NOT_AVAILABLE
    here.manager.on_metadata_update(image(2, (ME,)))  # the other member left: all is committed
    assert here.local.offsets(HERE).end_offset == 2


async def test_rule_r8_between_high_watermark_and_log_end_waits(here: Here) -> None:
    here.manager.on_metadata_update(image(1, (ME, OTHER)))
    await here.local.append(records(2, ACKS_LEADER))
    for offset in (0, 1, 2):
        assert not (await here.local.fetch(read(offset, wait_ms=1))).slices
    for offset in (-1, 3):
        with pytest.raises(KafkaError) as caught:
            await here.local.fetch(read(offset))
        assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
        assert "log start offset 0" in caught.value.message
        assert "log end offset 2" in caught.value.message
    waiting = asyncio.ensure_future(here.local.fetch(read(1, wait_ms=5_000)))
    await asyncio.sleep(0)
    here.manager.on_metadata_update(image(1, (ME,)))
    found = await waiting
    assert [piece.first_offset for piece in found.slices] == [1]
    assert (found.next_offset, found.high_watermark) == (2, 2)


async def test_invariant_g16_a_reader_above_the_high_watermark_gets_no_epoch_but_its_own(
    here: Here,
) -> None:
    """The record before it may be replaced by a new leader, and its epoch with it."""
    here.manager.on_metadata_update(image(1, (ME, OTHER)))
    await here.local.append(records(2, ACKS_LEADER))
    assert (await here.local.fetch(read(2))).next_leader_epoch == UNKNOWN_EPOCH
    knows_it = dataclasses.replace(read(2), leader_epoch=1)
    assert (await here.local.fetch(knows_it)).next_leader_epoch == 1


async def test_rule_r8_out_of_range_only_with_proof_of_leading(here: Here) -> None:
    """Another leader may have exposed what a deposed one lacks."""
    here.manager.on_metadata_update(image(1, (ME,)))
    here.proven[0] = False
    with pytest.raises(KafkaError) as caught:
        await here.local.fetch(read(3))
    assert caught.value.code is ErrorCode.OFFSET_NOT_AVAILABLE


async def test_invariant_g16_a_position_of_another_log_is_refused_with_proof_of_leading(
    here: Here,
) -> None:
    here.manager.on_metadata_update(image(1, (ME,)))
    await here.local.append(records(4, ACKS_LEADER))
    here.manager.on_metadata_update(image(3, (ME,)))
    await here.local.append(records(2, ACKS_LEADER))
    position = dataclasses.replace(read(5), leader_epoch=1)
    with pytest.raises(PositionTruncatedError) as caught:
        await here.local.fetch(position)
    assert caught.value.divergence == Divergence(DivergenceCause.TRUNCATED, 4, 1)
    assert here.local.fetch_directly(HERE, 5, 1_000, leader_epoch=1) is None
    head, payload = peer_codec.split_body(peer_codec.encode_truncated(caught.value))
    assert not payload
    assert peer_codec.truncated_in(head).divergence == caught.value.divergence
    here.proven[0] = False
    with pytest.raises(KafkaError) as uncertain:
        await here.local.fetch(position)
    assert uncertain.value.code is ErrorCode.OFFSET_NOT_AVAILABLE


async def test_invariant_g16_the_epoch_of_an_offset_is_that_of_the_record_before_it(
    here: Here,
) -> None:
    here.manager.on_metadata_update(image(1, (ME,)))
    await here.local.append(records(4, ACKS_LEADER))
    here.manager.on_metadata_update(image(3, (ME,)))
    assert (await here.local.fetch(read(4))).next_leader_epoch == 1, "no record is of epoch 3 yet"
    await here.local.append(records(2, ACKS_LEADER))
    found = await here.local.fetch(read(0))
    assert (found.next_offset, found.next_leader_epoch, found.leader_epoch) == (6, 3, 3)
    directly = here.local.fetch_directly(HERE, 4, 1_000, leader_epoch=1, seen_epoch=3)
    assert directly is not None
    assert directly.next_leader_epoch == 3
    assert here.local.offsets(HERE).end_leader_epoch == 3


async def test_rule_r8_a_leader_older_than_one_that_was_seen_refuses(here: Here) -> None:
    here.manager.on_metadata_update(image(1, (ME,)))
    await here.local.append(records(1, ACKS_LEADER))
    with pytest.raises(KafkaError) as caught:
        await here.local.fetch(dataclasses.replace(read(0), seen_epoch=2))
    assert caught.value.code is ErrorCode.UNKNOWN_LEADER_EPOCH
    with pytest.raises(KafkaError):
        here.local.offsets(HERE, 2)
    assert here.local.fetch_directly(HERE, 0, 1_000, seen_epoch=2) is None


async def test_acks_all_waits_for_the_other_member_and_times_out_unknown(here: Here) -> None:
    here.manager.on_metadata_update(image(1, (ME, OTHER)))
    waiting = asyncio.ensure_future(here.local.append(records(1, ACKS_ALL)))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    replica = here.manager.replica(HERE)
    assert replica is not None
    replica.partition.delayed_produces.expire(SystemClock().monotonic_ms() + 10_000)
    with pytest.raises(KafkaError) as caught:
        await waiting
    assert caught.value.code is ErrorCode.REQUEST_TIMED_OUT
    assert caught.value.outcome is Outcome.UNKNOWN


async def test_acks_none_answers_at_once_without_an_offset(here: Here) -> None:
    here.manager.on_metadata_update(image(1, (ME, OTHER)))
    assert await here.local.append(records(1, ACKS_NONE)) == -1
    replica = here.manager.replica(HERE)
    assert replica is not None
    assert replica.log.log_end_offset == 1


async def test_a_follower_serves_nothing(here: Here) -> None:
    here.manager.on_metadata_update(image(1, (ME, OTHER), leader=OTHER))
    for request in (here.local.append(records(1, ACKS_LEADER)), here.local.fetch(read(0))):
        with pytest.raises(KafkaError) as caught:
            await request
        assert caught.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert caught.value.outcome is Outcome.NOT_WRITTEN


async def test_a_parked_fetch_ends_when_leadership_does(here: Here) -> None:
    here.manager.on_metadata_update(image(1, (ME,)))
    waiting = asyncio.ensure_future(here.local.fetch(read(0, wait_ms=60_000)))
    await asyncio.sleep(0)
    here.manager.on_metadata_update(image(2, (OTHER,), leader=OTHER))
    with pytest.raises(KafkaError):
        await waiting


async def test_look_up_by_time_past_the_last_record_starts_at_the_end(here: Here) -> None:
    here.manager.on_metadata_update(image(1, (ME,)))
    await here.local.append(records(3, ACKS_ALL))
    past = await here.local.fetch(read(None, timestamp_ms=0))
    assert past.slices[0].first_offset == 0
    future = SystemClock().wall_ms() + 1_000_000
    assert (await here.local.fetch(read(None, timestamp_ms=future))).next_offset == 3


async def test_rule_r8_a_look_up_by_time_is_withheld_up_to_the_epoch_start(here: Here) -> None:
    """After everything died the high watermark is an old one: `latest` by time was an old end."""
    here.manager.on_metadata_update(image(1, (ME,)))
    await here.local.append(records(2, ACKS_ALL))
    here.manager.on_metadata_update(image(2, (ME, OTHER)))
    await here.local.append(records(2, ACKS_LEADER))
    here.manager.on_metadata_update(image(3, (ME, OTHER)))
    future = SystemClock().wall_ms() + 1_000_000
    with pytest.raises(KafkaError) as caught:
        await here.local.fetch(read(None, timestamp_ms=future))
    assert caught.value.code is ErrorCode.OFFSET_NOT_AVAILABLE
    committed = await here.local.fetch(read(None, timestamp_ms=0))
    assert committed.slices[0].first_offset == 0  # what is below it is as it was
    here.manager.on_metadata_update(image(3, (ME,)))
    assert (await here.local.fetch(read(None, timestamp_ms=future))).next_offset == 4


def at_times(*times: int) -> Append:
    body = b",".join(b'{"value":1,"timestamp":%d}' % time for time in times)
    decoded = decode_records(b'{"records":[' + body + b"]}")
    return dataclasses.replace(records(1, ACKS_LEADER), records=decoded)


async def test_rule_r8_a_look_up_by_time_gives_no_end_that_another_leader_may_fill(
    here: Here,
) -> None:
    """Found beyond the high watermark, it was told as where to read on: who did so behind a new
    leader, in whose log other records stand there, never saw those before it."""
    here.manager.on_metadata_update(image(1, (ME,)))
    await here.local.append(at_times(100, 100))
    here.manager.on_metadata_update(image(2, (ME, OTHER)))
    await here.local.append(at_times(100, 100, 900))
    assert here.local.offsets(HERE).end_offset == 2
    found = await here.local.fetch(read(None, timestamp_ms=900))
    assert not found.slices
    assert found.next_offset == 2
    waiting = asyncio.ensure_future(here.local.fetch(read(None, 5_000, timestamp_ms=900)))
    await asyncio.sleep(0)
    here.manager.on_metadata_update(image(2, (ME,)))  # the other member left: all is committed
    assert (await waiting).slices[0].first_offset == 4, "nothing older, where it can be told"
