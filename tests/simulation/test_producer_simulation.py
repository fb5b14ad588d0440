"""The SDK's producer in virtual time: each record once, in order, each callback once (rule F1)."""

from __future__ import annotations

import base64
from collections import Counter
from typing import Any

import pytest

from http_api.client.client_errors import QuorumlogError
from http_api.client.sdk.part_joining import PartJoiner
from http_api.client.sdk.record_types import Record
from raft_metadata.common.errors import Outcome
from raft_metadata.common.ids import EPOCH_MAX
from tests.support.doors.http import sender_of, set_producer_epoch
from tests.support.produced_world import LEADERS, TOPIC, Partition, ProducedWorld, Troubles

HARD = Troubles(lost_request=0.15, lost_answer=0.15, refused=0.15)


def judge(world: ProducedWorld, produced: list[tuple[object, object]]) -> None:
    """Compare the logs with the callbacks."""
    everywhere = Counter(
        value for part in [*world.partitions, *world.old_partitions] for value, _ in part.log
    )
    assert set(world.outcomes) == {value for value, _ in produced}, "a callback is missing"
    for value, (error, receipt) in world.outcomes.items():
        if error is None:
            assert everywhere[value] == 1, f"{value} is there {everywhere[value]} times"
            log = world.partitions[receipt.partition].log if not world.old_partitions else None
            if log is not None:
                assert log[receipt.offset][0] == value
        elif error.outcome is Outcome.NOT_WRITTEN:
            assert everywhere[value] == 0, f"{value} is there, and its error says it is not"
        else:
            assert everywhere[value] <= 1
    order = {value: at for at, (value, _) in enumerate(produced)}
    for part in world.partitions:
        found = [order[value] for value, _ in part.log]
        assert found == sorted(found), "a partition is not in the order of the calls"
    for number in {number for number, _ in world.callbacks}:
        called = [order[value] for at, value in world.callbacks if at == number]
        assert called == sorted(called), "callbacks are not in the order of the records"


def history(world: ProducedWorld, records: int, bad: float = 0.0) -> list[tuple[object, object]]:
    """Produce records with pauses and flushes; return their values and keys."""
    produced: list[tuple[object, object]] = []
    for at in range(records):
        value = f"bad{at}" if world.random.random() < bad else at
        key = world.random.choice([None, "a", "b", "c"])
        world.produce(value, key)
        produced.append((value, key))
        chance = world.random.random()
        if chance < 0.2:
            world.until(lambda: False, world.random.random() * 0.05)
        elif chance < 0.23:
            world.flush()
    assert world.flush()
    return produced


@pytest.mark.parametrize("seed", range(40))
def test_rule_f1_each_record_is_there_once_and_in_order(seed: int) -> None:
    world = ProducedWorld(seed, HARD, linger_ms=20, batch_size=300)
    produced = history(world, 120)
    judge(world, produced)
    assert all(error is None for error, _ in world.outcomes.values())


@pytest.mark.parametrize("seed", range(40))
def test_a_refused_record_fails_alone(seed: int) -> None:
    world = ProducedWorld(seed, Troubles(refused=0.2), linger_ms=20)
    produced = history(world, 120, bad=0.1)
    judge(world, produced)
    for value, (error, _) in world.outcomes.items():
        assert (error is not None) is str(value).startswith("bad")


@pytest.mark.parametrize("seed", range(40))
def test_refused_records_and_lost_answers_repeat_nothing(seed: int) -> None:
    world = ProducedWorld(seed, HARD, linger_ms=20)
    judge(world, history(world, 120, bad=0.1))


@pytest.mark.parametrize("seed", range(40))
def test_records_whose_time_is_over_have_an_honest_outcome(seed: int) -> None:
    troubles = Troubles(lost_request=0.5, lost_answer=0.3, refused=0.2)
    world = ProducedWorld(seed, troubles, delivery_timeout_ms=400, linger_ms=5)
    produced = history(world, 120)
    judge(world, produced)
    assert any(isinstance(error, QuorumlogError) for error, _ in world.outcomes.values())


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("acks", ["1", "0"])
def test_rule_f1_without_sequences_nothing_is_sent_twice_in_doubt(seed: int, acks: str) -> None:
    world = ProducedWorld(seed, HARD, acks=acks, linger_ms=20)
    judge(world, history(world, 120, bad=0.05))


@pytest.mark.parametrize("seed", range(20))
def test_added_partitions_are_used_and_a_topic_made_anew_is_noticed(seed: int) -> None:
    world = ProducedWorld(seed, Troubles(lost_answer=0.1, refused=0.1), partitions=2, linger_ms=5)
    produced = history(world, 40)
    world.partitions += [type(world.partitions[0])() for _ in range(3)]
    for at in range(200, 300):
        world.produce(at)
        produced.append((at, None))
        world.until(lambda: False, 0.01)
    assert world.flush()
    judge(world, produced)
    assert all(part.log for part in world.partitions), "a new partition got nothing"
    world.remake_topic(3)
    for at in range(400, 500):
        world.produce(at, key=at % 7)
        produced.append((at, None))
        world.until(lambda: False, 0.02)
    assert world.flush()
    later = [at for at, (error, _) in world.outcomes.items() if isinstance(at, int) and at >= 450]
    assert all(world.outcomes[at][0] is None for at in later)
    judge(world, produced)


@pytest.mark.parametrize("seed", range(10))
def test_a_producer_whose_epochs_are_used_up_goes_on_under_another_id(seed: int) -> None:
    world = ProducedWorld(seed, Troubles(refused=0.2), partitions=1, linger_ms=5)
    produced = history(world, 20)
    set_producer_epoch(sender_of(world.core, TOPIC, 0), EPOCH_MAX - 1, sequence=0)
    for at in range(100, 160):
        value = f"bad{at}" if at % 10 == 0 else at
        world.produce(value)
        produced.append((value, None))
        world.until(lambda: False, 0.02)
    assert world.flush()
    judge(world, produced)
    good = [value for value, _ in produced if not str(value).startswith("bad")]
    assert all(world.outcomes[value][0] is None for value in good)


@pytest.mark.parametrize("acks", ["all", "1"])
@pytest.mark.parametrize("seed", range(5))
def test_a_leader_that_hangs_holds_up_no_other_leaders_records(seed: int, acks: str) -> None:
    world = ProducedWorld(seed, Troubles(), partitions=24, acks=acks, linger_ms=5)
    world.produce("first", partition=1)
    assert world.flush()
    world.hanging = {number for number in range(24) if number % LEADERS == 0}
    for number in range(24):
        world.produce(number, partition=number)
    healthy = {number for number in range(24) if number not in world.hanging}
    assert world.until(lambda: healthy <= set(world.outcomes), 1.0), "they waited"
    world.hanging = set()
    assert world.flush()


LONG = "long" * 100
"""Begins values of some ten parts."""


@pytest.mark.parametrize("acks", ["all", "1"])
@pytest.mark.parametrize("seed", range(15))
def test_a_split_value_is_there_whole_in_order_and_has_one_outcome(seed: int, acks: str) -> None:
    settings = {"large_messages": "split", "acks": acks, "linger_ms": 20, "batch_size": 300}
    world = ProducedWorld(seed, HARD, **settings)
    world.max_message_bytes = 420
    produced = []
    for at in range(40):
        value = f"{LONG}{at}" if world.random.random() < 0.3 else str(at)
        key = world.random.choice([None, "a", "b"])
        world.produce(value, key)
        produced.append(value)
        world.until(lambda: False, world.random.random() * 0.02)
    assert world.flush()
    assert set(world.outcomes) == set(produced)
    for number, part in enumerate(world.partitions):
        found = {record.offset: record.value for record in joined(part)}
        order = [produced.index(value) for value in found.values()]
        assert order == sorted(order), "values are not in the order of the calls"
        for value, (error, receipt) in world.outcomes.items():
            if receipt.partition == number and error is None:
                assert found[receipt.offset] == value
            elif receipt.partition == number and error.outcome is Outcome.NOT_WRITTEN:
                assert value not in found.values()
    if acks == "all":
        assert all(error is None for error, _ in world.outcomes.values())


def joined(partition: Partition) -> list[Record[Any, Any]]:
    """Return the records of a log as a consumer hands them out."""
    records = []
    for at, ((value, key), rows) in enumerate(zip(partition.log, partition.headers, strict=True)):
        headers = [(row["key"], base64.b64decode(row["value"])) for row in rows]
        stored = base64.b64decode(value) if headers else value
        records.append(Record(TOPIC, 0, at, 0, "append", headers, key, stored, 0))
    return PartJoiner().join(records)


def test_a_limit_that_shrinks_refuses_a_value_once_and_is_heeded_from_then_on() -> None:
    world = ProducedWorld(0, Troubles(), partitions=1, large_messages="split")
    world.produce(LONG)
    assert world.flush()
    world.max_message_bytes = 300
    for value in (f"{LONG}1", f"{LONG}2"):
        world.produce(value)
        assert world.flush()
        world.until(lambda: False, 1.0)
    error = world.outcomes[f"{LONG}1"][0]
    assert error is not None
    assert (error.outcome, error.code) == (Outcome.NOT_WRITTEN, 413)
    assert [record.value for record in joined(world.partitions[0])] == [LONG, f"{LONG}2"]
