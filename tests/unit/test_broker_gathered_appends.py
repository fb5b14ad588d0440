"""Produces of one turn are one write: each has its own offsets, fate and answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from broker.record.batch import RecordFormat
from broker.record.lines import decode_records
from broker.server.direct_requests import GATHERED_BYTES_MAX, GatheredAppends
from broker.server.local_partitions import AppendBatchKey, LocalPartitions
from broker.server.requests import ACKS_ALL, ACKS_LEADER, ACKS_NONE
from raft_metadata.common.clock import SystemClock
from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome
from raft_metadata.common.ids import PartitionId
from tests.support.one_broker import HERE, ME, OTHER, Here, image, one_broker
from tests.support.waiting import until

Told = tuple[int, KafkaError | None]


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[Here]:
    async with one_broker(tmp_path) as broker:
        yield broker


class Clients:
    """Asks for appends, and keeps what each was told, in the order it was told."""

    def __init__(self, here: Here) -> None:
        self.gathered = GatheredAppends(here.local)
        self.told: dict[str, Told] = {}

    def ask(self, name: str, count: int = 1, acks: int = ACKS_ALL, size: int = 100) -> None:
        body = b'{"records":[%b]}' % b",".join([b'{"value":"%b"}' % name.encode()] * count)

        def answered(partition: PartitionId, base: int, error: KafkaError | None) -> None:
            assert partition == 0
            assert name not in self.told
            self.told[name] = (base, error)

        alike = AppendBatchKey(HERE, RecordFormat.JSON, acks, 5_000)
        self.gathered.add(alike, decode_records(body), size, answered)


def batches(here: Here) -> list[tuple[int, int, bytes]]:
    """(base offset, count, lines) of every batch of the log."""
    replica = here.manager.replica(HERE)
    assert replica is not None
    end = replica.log.log_end_offset
    return [
        (piece.header.base_offset, piece.count, bytes(piece.lines))
        for piece in (replica.log.read(0, 1 << 24, end) if end else ())
    ]


async def test_requests_of_one_turn_are_one_batch_and_each_has_its_own_offsets(here: Here) -> None:
    here.manager.on_metadata_update(image(1, (ME,)))
    clients = Clients(here)
    for name, count in (("a", 1), ("b", 3), ("c", 2)):
        clients.ask(name, count)
    assert not clients.told
    assert not batches(here)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    ((base, count, lines),) = batches(here)
    assert (base, count) == (0, 6)
    assert [line[-3:-2] for line in lines.splitlines()] == [b"a", b"b", b"b", b"b", b"c", b"c"]
    await until_told(clients, 3)
    assert {name: offset for name, (offset, _) in clients.told.items()} == {"a": 0, "b": 1, "c": 4}
    clients.ask("d")
    await until_told(clients, 4)
    assert clients.told["d"] == (6, None)


async def until_told(clients: Clients, count: int) -> None:
    async with asyncio.timeout(10):
        while len(clients.told) < count:  # noqa: ASYNC110 filled by callbacks
            await asyncio.sleep(0.001)


async def test_requests_of_different_acks_are_written_apart(here: Here) -> None:
    here.manager.on_metadata_update(image(1, (ME,)))
    clients = Clients(here)
    clients.ask("all")
    clients.ask("none", acks=ACKS_NONE)
    clients.ask("leader", acks=ACKS_LEADER)
    clients.ask("also all")
    await until_told(clients, 4)
    offsets = {name: offset for name, (offset, _) in clients.told.items()}
    assert offsets == {"all": 0, "also all": 1, "none": -1, "leader": 3}
    assert [count for _, count, _ in batches(here)] == [2, 1, 1]


async def test_enough_bytes_are_written_without_waiting_for_the_turn(here: Here) -> None:
    here.manager.on_metadata_update(image(1, (ME,)))
    clients = Clients(here)
    clients.ask("a", size=GATHERED_BYTES_MAX - 1)
    assert not batches(here)
    clients.ask("b", size=1)
    assert [count for _, count, _ in batches(here)] == [2]
    clients.ask("c")
    await until_told(clients, 3)
    assert {name: offset for name, (offset, _) in clients.told.items()} == {"a": 0, "b": 1, "c": 2}


async def test_a_leader_deposed_within_the_turn_writes_nothing_of_it(here: Here) -> None:
    """The role is asked for where it is written (rule R3), not where the request arrived."""
    here.manager.on_metadata_update(image(1, (ME, OTHER)))
    clients = Clients(here)
    clients.ask("a")
    clients.ask("b")
    here.manager.on_metadata_update(image(2, (ME, OTHER), leader=OTHER))
    await until_told(clients, 2)
    for _, error in clients.told.values():
        assert error is not None
        assert error.outcome is Outcome.NOT_WRITTEN
    assert not batches(here)


async def test_all_share_the_fate_of_their_batch(here: Here) -> None:
    here.manager.on_metadata_update(image(1, (ME, OTHER)))
    clients = Clients(here)
    clients.ask("a")
    clients.ask("b")
    await asyncio.sleep(0.02)
    assert not clients.told
    replica = here.manager.replica(HERE)
    assert replica is not None
    replica.partition.delayed_produces.expire(SystemClock().monotonic_ms() + 10_000)
    await until_told(clients, 2)
    for _, error in clients.told.values():
        assert error is not None
        assert (error.code, error.outcome) == (ErrorCode.REQUEST_TIMED_OUT, Outcome.UNKNOWN)


async def test_too_many_that_wait_are_refused_and_those_that_ended_count_no_more(
    here: Here,
) -> None:
    limits = replace(here.config.limits, max_parked_produces=2)
    small = replace(here.config, limits=limits)
    here.local = LocalPartitions(small, here.manager, SystemClock(), lambda: True)
    here.manager.on_metadata_update(image(1, (ME, OTHER)))
    clients = Clients(here)
    for name in ("a", "b", "c"):
        clients.ask(name)
    await until_told(clients, 3)
    for _, error in clients.told.values():
        assert error is not None
        assert (error.code, error.outcome) == (ErrorCode.QUEUE_FULL, Outcome.NOT_WRITTEN)
    for round_ in range(3):
        clients.ask(f"d{round_}")
        clients.ask(f"e{round_}")
        await asyncio.sleep(0.01)
        here.manager.on_metadata_update(image(1, (ME,)))
        await until_told(clients, 5 + 2 * round_)
        assert clients.told[f"e{round_}"] == (1 + 2 * round_, None)


async def test_a_write_that_fails_by_a_bug_leaves_nobody_waiting(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    here.manager.on_metadata_update(image(1, (ME,)))
    clients = Clients(here)
    replica = here.manager.replica(HERE)
    assert replica is not None

    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(type(replica.log), "append_as_leader", broken)
    clients.ask("a")
    await until_told(clients, 1)
    _, error = clients.told["a"]
    assert error is not None
    assert error.outcome is Outcome.UNKNOWN


async def test_more_lines_than_a_batch_holds_are_several_and_offsets_go_on(here: Here) -> None:
    """Bodies are bounded, lines may be fifteen times as long."""
    here.manager.on_metadata_update(image(1, (ME,)))
    clients = Clients(here)
    body = b'{"records":[%b]}' % b",".join([b"{}"] * 20_000)
    told, alike = clients.told, AppendBatchKey(HERE, RecordFormat.JSON, ACKS_ALL, 5_000)
    for name in ("a", "b"):

        def answered(_: int, base: int, error: KafkaError | None, name: str = name) -> None:
            told[name] = (base, error)

        clients.gathered.add(alike, decode_records(body), len(body), answered)
    clients.ask("c")
    await until_told(clients, 3)
    assert clients.told == {"a": (0, None), "b": (20_000, None), "c": (40_000, None)}
    found = batches(here)
    assert len(found) > 1, "one write, two batches"
    assert found[0][0] == 0
    for (base, count, _), (following, _, _) in pairwise(found):
        assert base + count == following


async def test_a_request_made_during_an_answer_is_written_behind(here: Here) -> None:
    """A pipelined request is taken where the one before it is answered."""
    here.manager.on_metadata_update(image(1, (ME,)))
    clients = Clients(here)
    told: list[int] = []

    def answered(_: PartitionId, base: int, error: KafkaError | None) -> None:
        assert error is None
        told.append(base)
        if len(told) < 6:
            clients.gathered.add(alike, decode_records(body), size, answered)

    body = b'{"records":[{"value":1}]}'
    for alike in (
        AppendBatchKey(HERE, RecordFormat.JSON, ACKS_ALL, 5_000),
        AppendBatchKey(HERE, RecordFormat.JSON, ACKS_LEADER, 5_000),
    ):
        for size in (100, GATHERED_BYTES_MAX):  # at the end of the turn, and at once
            told.clear()
            end = len(batches(here))
            clients.gathered.add(alike, decode_records(body), size, answered)
            async with asyncio.timeout(10):
                while len(told) < 6:  # noqa: ASYNC110 filled by callbacks
                    await asyncio.sleep(0.001)
            assert told == list(range(end, end + 6))


@pytest.mark.parametrize("is_waiting", [False, True])
async def test_a_topic_that_is_deleted_answers_all_and_nothing_stays_counted(
    here: Here, is_waiting: bool
) -> None:
    """Before it is written: surely not. After that nobody can tell."""
    here.manager.on_metadata_update(image(1, (ME, OTHER)))
    clients = Clients(here)
    clients.ask("a")
    clients.ask("b")
    if is_waiting:
        await until(lambda: here.local.parked_produces == 2)
    here.manager.on_metadata_update(replace(image(2, (ME, OTHER)), topics={}, topic_ids={}))
    await until_told(clients, 2)
    outcome = Outcome.UNKNOWN if is_waiting else Outcome.NOT_WRITTEN
    assert [error and error.outcome for _, error in clients.told.values()] == [outcome] * 2
    assert here.local.parked_produces == 0
