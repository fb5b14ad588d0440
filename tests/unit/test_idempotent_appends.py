"""A leader that is sent something twice: what it answers, and when."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from broker.record.lines import decode_records
from broker.server.local_partitions import Append
from broker.server.requests import ACKS_ALL, ACKS_LEADER, ACKS_NONE
from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome
from raft_metadata.common.ids import SEQUENCES, Claim
from tests.unit.test_broker_local_partitions import HERE, ME, OTHER, Here, here, image, records

__all__ = ["here"]


def claimed(sequence: int, count: int = 2, *, epoch: int = 0, acks: int = ACKS_LEADER) -> Append:
    return dataclasses.replace(records(count, acks), claim=Claim(7, epoch, sequence))


async def test_rule_r5_a_repeat_is_answered_with_its_first_place_and_not_before_it_is_committed(
    here: Here,
) -> None:
    here.manager.on_metadata_update(image(1, (ME, OTHER)))
    first = asyncio.create_task(here.local.append(claimed(0, acks=ACKS_ALL)))
    await asyncio.sleep(0)
    again = asyncio.create_task(here.local.append(claimed(0, acks=ACKS_ALL)))
    for _ in range(20):
        await asyncio.sleep(0.001)
    assert not first.done()
    assert not again.done(), "the follower has nothing yet: it may still be lost"
    replica, _ = here.local.leading(HERE)
    assert replica.log.log_end_offset == 2
    here.manager.on_metadata_update(image(1, (ME,)))  # the follower is out: what is here is all
    assert await first == await again == 0
    assert await here.local.append(claimed(0, acks=ACKS_ALL)) == 0, "and at once, later on"


@pytest.mark.parametrize("acks", [ACKS_LEADER, ACKS_ALL])
async def test_invariant_t2_five_are_remembered_and_the_next_sequence_is_the_only_one(
    here: Here, acks: int
) -> None:
    here.manager.on_metadata_update(image(1, (ME,)))
    for number in range(7):
        assert await here.local.append(claimed(2 * number, acks=acks)) == 2 * number
    for number in range(2, 7):
        assert await here.local.append(claimed(2 * number, acks=acks)) == 2 * number
    with pytest.raises(KafkaError) as old:
        await here.local.append(claimed(2, acks=acks))
    assert (old.value.code, old.value.outcome) == (
        ErrorCode.DUPLICATE_SEQUENCE_NUMBER,
        Outcome.UNKNOWN,
    )
    for wrong in (15, 17, SEQUENCES // 3):
        with pytest.raises(KafkaError, match="expected 14") as gap:
            await here.local.append(claimed(wrong, acks=acks))
        assert gap.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert gap.value.outcome is Outcome.NOT_WRITTEN
    assert await here.local.append(claimed(14, acks=ACKS_NONE)) == -1
    assert await here.local.append(claimed(14, acks=ACKS_NONE)) == -1
    replica, _ = here.local.leading(HERE)
    assert replica.log.log_end_offset == 16


async def test_invariant_t3_an_older_epoch_is_over_and_a_newer_one_begins_with_0(
    here: Here,
) -> None:
    here.manager.on_metadata_update(image(1, (ME,)))
    assert await here.local.append(claimed(0, epoch=3)) == 0
    with pytest.raises(KafkaError, match="epoch 2 is over") as fenced:
        await here.local.append(claimed(2, epoch=2))
    assert fenced.value.code is ErrorCode.INVALID_PRODUCER_EPOCH
    with pytest.raises(KafkaError, match="expected 0"):
        await here.local.append(claimed(2, epoch=4))
    assert await here.local.append(claimed(0, epoch=4)) == 2
    with pytest.raises(KafkaError, match="epoch 3 is over"):
        await here.local.append(claimed(0, epoch=3))


async def test_a_sequence_goes_round(here: Here) -> None:
    here.manager.on_metadata_update(image(1, (ME,)))
    assert await here.local.append(claimed(SEQUENCES - 3, 4)) == 0, "begun anywhere (KIP-360)"
    assert await here.local.append(claimed(SEQUENCES - 3, 4)) == 0
    assert await here.local.append(claimed(1, 2)) == 4
    assert await here.local.append(claimed(SEQUENCES - 1, 2)) == 2, "a part of the first batch"
    with pytest.raises(KafkaError, match="older"):
        await here.local.append(claimed(0, 2))  # in no batch as a whole


async def test_a_batch_behind_others_does_not_begin_a_producer(here: Here) -> None:
    here.manager.on_metadata_update(image(1, (ME,)))
    behind = dataclasses.replace(claimed(5), may_begin=False)
    with pytest.raises(KafkaError, match="not known here") as refused:
        await here.local.append(behind)
    assert refused.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert await here.local.append(dataclasses.replace(behind, may_begin=True)) == 0


async def test_a_repeat_is_known_where_too_few_replicas_are_left_to_write(here: Here) -> None:
    """A written batch is not written again: the repeat waits, and is unknown at its deadline."""
    here.manager.on_metadata_update(image(1, (ME, OTHER)))
    replica, role = here.local.leading(HERE)
    first = asyncio.create_task(here.local.append(claimed(0, acks=ACKS_ALL)))
    await asyncio.sleep(0)
    role.configure(dataclasses.replace(replica.partition.settings, min_isr=3))
    again = asyncio.create_task(here.local.append(claimed(0, acks=ACKS_ALL)))
    await asyncio.sleep(0.01)
    assert not again.done()
    with pytest.raises(KafkaError) as refused:
        await here.local.append(claimed(2, acks=ACKS_ALL))
    assert refused.value.code is ErrorCode.NOT_ENOUGH_REPLICAS
    replica.partition.delayed_produces.give_up()
    for task in (first, again):
        with pytest.raises(KafkaError) as unknown:
            await task
        assert unknown.value.outcome is Outcome.UNKNOWN
    assert replica.log.log_end_offset == 2


async def test_one_produce_of_a_producer_is_one_batch(here: Here) -> None:
    """So a crash keeps all of its records or none, and a retry finds all or none."""
    here.manager.on_metadata_update(image(1, (ME,)))
    body = b'{"records":[' + b",".join([b'{"value":"%b"}' % (b"x" * 60_000)] * 40) + b"]}"
    many = dataclasses.replace(claimed(0), records=decode_records(body))
    assert await here.local.append(many) == 0
    replica, _ = here.local.leading(HERE)
    assert replica.log.producers is not None
    (known,) = (producer for _, producer in replica.log.producers.items())
    assert [batch[:2] for batch in known.batches] == [(0, 39)]
    assert await here.local.append(dataclasses.replace(many, records=decode_records(body))) == 0
