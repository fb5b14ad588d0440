"""What a broker shows of itself: page by page, chains from its files, whatever state it is in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.config import BrokerConfig
from broker.log.log_manager import LogManager
from broker.replication.replica_manager import ReplicaManager
from broker.server import debug_state as state_module
from broker.server.debug_state import BrokerDebugState, replica_facts
from raft_metadata.common.clock import SystemClock
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import (
    ClusterId,
    DirectoryId,
    PartitionId,
    TopicIdPartition,
    TopicName,
)
from tests.support.hosted_replicas import (
    FIRST_ID,
    ME,
    ORDERS,
    OTHER,
    SECOND_ID,
    created,
    hosted,
    images,
    registered,
)
from tests.support.logs import append

OTHERS = TopicName("returns")


def spoil_first_byte(path: Path) -> None:
    path.write_bytes(b"\0" + path.read_bytes()[1:])


@dataclass
class Here:
    logs: LogManager
    manager: ReplicaManager
    box: BrokerDebugState


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[Here]:
    logs, manager = hosted(tmp_path, "life-1")
    for image in images(
        (registered(ME, 0, "life-1"), registered(OTHER, 1, "o")),
        created(FIRST_ID, (ME, OTHER), count=4),
        created(SECOND_ID, (OTHER, ME), name=OTHERS, count=3),
    ):
        manager.on_metadata_update(image)
    config = BrokerConfig(
        broker_id=ME,
        cluster_id=ClusterId("c"),
        directory_id=DirectoryId("d1"),
        data_dir=tmp_path,
        advertised_http="",
        advertised_peer="",
    )
    loader, lifecycle = SimpleNamespace(image=manager.image), SimpleNamespace(state=None)
    box = BrokerDebugState(
        config, manager, logs, cast("Any", lifecycle), cast("Any", loader), SystemClock()
    )
    yield Here(logs, manager, box)
    logs.close(None)


async def test_replicas_come_in_pages_and_none_twice(here: Here) -> None:
    found, after, pages = [], None, 0
    while True:
        rows, after = await here.box.replicas(None, after, 3)
        found += [(row["topic"], row["partition"]) for row in rows]
        pages += 1
        if after is None:
            break
    assert pages == 3
    assert found == [(ORDERS, n) for n in range(4)] + [(OTHERS, n) for n in range(3)]
    rows, after = await here.box.replicas((OTHERS, None), None, 3)
    assert ([row["partition"] for row in rows], after) == ([0, 1, 2], None)
    rows, _ = await here.box.replicas((OTHERS, PartitionId(1)), None, 3)
    assert [row["partition"] for row in rows] == [1]


@pytest.mark.parametrize(
    ("topic", "partition", "text"),
    [
        ("nothing", None, "topic nothing is unknown to broker 1"),
        ("orders", 4, "orders-4 has no replica on broker 1"),
    ],
)
async def test_an_unknown_partition_is_refused_with_the_reason(
    here: Here, topic: str, partition: int | None, text: str
) -> None:
    wanted = TopicName(topic), None if partition is None else PartitionId(partition)
    with pytest.raises(KafkaError, match=text):
        await here.box.replicas(wanted, None, 10)


async def test_ten_thousand_replicas_do_not_hold_the_loop(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_module, "ROWS_PER_TURN", 2)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(others())
        await here.box.replicas(None, None, 100)
        running.cancel()
    assert turns >= 3


async def test_a_leader_tells_its_isr_and_its_followers(here: Here) -> None:
    replica = here.manager.replica(TopicIdPartition(FIRST_ID, PartitionId(0)))
    assert replica is not None
    facts = replica_facts(replica, SystemClock().monotonic_ms())
    assert facts["role"] == "leader"
    assert facts["isr"] == facts["maximal_isr"] == [1, 2]
    assert facts["followers"] == []
    assert facts["epochs"] == [(0, 0)]
    follower = here.manager.replica(TopicIdPartition(SECOND_ID, PartitionId(0)))
    assert follower is not None
    facts = replica_facts(follower, 0)
    assert (facts["role"], facts["leader"], facts["session"]) == ("follower", 2, None)


async def test_a_chain_is_kept_until_the_log_is_cut(here: Here) -> None:
    where = TopicIdPartition(FIRST_ID, PartitionId(0))
    replica = here.manager.replica(where)
    assert replica is not None
    for number in range(50):
        append(replica.log, [f"{number}-{n}" for n in range(40)])
    place = ORDERS, PartitionId(0)
    assert (await here.box.chain(*place, None, None))["to"] == 0, "up to the high watermark"
    whole = await here.box.chain(*place, None, 2_000)
    assert (whole["first"], whole["from"], whole["to"]) == (0, 0, 2_000)
    half = await here.box.chain(*place, 0, 1_000)
    replica.log.truncate_to(1_000)
    append(replica.log, ["other"] * 1_000)
    assert await here.box.chain(*place, 0, 1_000) == half
    assert (await here.box.chain(*place, None, 2_000))["value"] != whole["value"]
    with pytest.raises(KafkaError, match="no chain up to 2001") as refused:
        await here.box.chain(*place, 0, 2_001)
    assert refused.value.code is ErrorCode.INVALID_REQUEST


async def test_a_log_that_is_cut_while_it_is_walked_is_walked_again(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica = here.manager.replica(TopicIdPartition(FIRST_ID, PartitionId(0)))
    assert replica is not None
    for number in range(3):
        append(replica.log, [f"{number}-{n}" for n in range(40)])
    real, walks = asyncio.to_thread, []

    async def cut_first(function: Any, *arguments: Any) -> Any:
        walks.append(arguments)
        if len(walks) == 1:
            replica.log.truncate_to(80)
            append(replica.log, ["other"] * 40)
        return await real(function, *arguments)

    monkeypatch.setattr(asyncio, "to_thread", cut_first)
    found = await here.box.chain(ORDERS, PartitionId(0), None, 120)
    assert len(walks) == 2
    assert found == await here.box.chain(ORDERS, PartitionId(0), None, 120)


async def test_rot_is_told_and_harms_nobody(here: Here) -> None:
    replica = here.manager.replica(TopicIdPartition(FIRST_ID, PartitionId(0)))
    assert replica is not None
    append(replica.log, ["a", "b"])
    spoil_first_byte(Path(replica.log.segments[0].log_path))
    with pytest.raises(KafkaError, match=r"no batch starts here.*position=0"):
        await here.box.chain(ORDERS, PartitionId(0), None, 2)
    assert replica.log.failed is None


async def test_the_broker_tells_of_itself_before_it_is_registered(here: Here) -> None:
    said = here.box.broker()
    assert said["state"] is None
    assert (said["replicas"], said["leaders"]) == (7, 4)
    assert said["broker_epoch"] == 0
    assert said["offline"] == {"count": 0, "partitions": []}
    assert said["incarnation_id"] == "life-1"
