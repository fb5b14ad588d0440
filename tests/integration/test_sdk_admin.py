"""Every method of `Admin` and `AsyncAdmin` on a real cluster, results and errors by name."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest

from http_api.client import groups
from http_api.client.client_errors import (
    AdminError,
    ApiError,
    ClosedError,
    QuorumlogError,
    UnreachableError,
)
from http_api.client.sdk.admin_client import Admin
from http_api.client.sdk.admin_resources import ConfigResource, NewTopic
from http_api.client.sdk.async_admin_client import AsyncAdmin
from http_api.client.sdk.record_types import TopicPartition
from http_api.client.transport import Client
from tests.support.live_cluster import LiveCluster, running

RETENTION = "retention.ms"
used: dict[str, set[str]] = {}
"""Names of the methods that ran, by twin."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    with running(tmp_path_factory.mktemp("cluster")) as started:
        yield started


class Twin:
    """Methods of either class, to be awaited; those of `Admin` run in a thread."""

    def __init__(self, admin: Admin | AsyncAdmin) -> None:
        self.admin = admin
        self.kind = type(admin).__name__.lower()

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        used.setdefault(self.kind, set()).add(name)
        method = getattr(self.admin, name)

        async def call(*arguments: Any, **keywords: Any) -> Any:
            if inspect.iscoroutinefunction(method):
                return await method(*arguments, **keywords)
            return await asyncio.to_thread(method, *arguments, **keywords)

        return call


@pytest.fixture(params=[Admin, AsyncAdmin])
async def twin(cluster: LiveCluster, request: pytest.FixtureRequest) -> AsyncIterator[Twin]:
    admin = request.param([broker.url for broker in cluster.brokers], api_timeout_ms=20_000)
    made = Twin(admin)
    yield made
    await made.close()


def part(topic: str, number: int, offset: int | None = None, **more: Any) -> TopicPartition:
    return TopicPartition(topic, number, offset, **more)


async def test_topics(twin: Twin) -> None:
    name = f"topics-{twin.kind}"
    new = NewTopic(name, 2, 3, config={RETENTION: 60_000})
    assert list(await twin.create_topics([new], validate_only=True)) == [name]
    assert name not in await twin.list_topics()
    placed = NewTopic(f"{name}-placed", assignments=[[3, 1]])
    created = await twin.create_topics([new, placed])
    assert [(one.name, one.partitions_count) for one in created.values()] == [
        (name, 2),
        (placed.name, 1),
    ]
    with pytest.raises(AdminError) as caught:
        await twin.create_topics([NewTopic(f"{name}-more"), new])
    assert list(caught.value.done) == [f"{name}-more"]
    assert isinstance(caught.value.failed[name], ApiError)
    assert not caught.value.retriable
    grown = await twin.create_partitions({name: 3})
    assert grown[name].partitions_count == 3
    with pytest.raises(AdminError):
        await twin.create_partitions({name: 2})
    listed = await twin.list_topics()
    assert listed[name].topic_id == created[name].topic_id
    described = await twin.describe_topics([name, placed.name])
    assert [one.partition for one in described[name].partitions] == [0, 1, 2]
    assert described[placed.name].partitions[0].replicas == (3, 1)
    with pytest.raises(AdminError, match=r"absent") as caught:
        await twin.describe_topics([name, "absent"])
    assert (list(caught.value.done), list(caught.value.failed)) == ([name], ["absent"])
    assert await twin.delete_topics([name, placed.name]) == {name: None, placed.name: None}
    assert name not in await twin.list_topics()
    with pytest.raises(AdminError):
        await twin.delete_topics([name])


async def test_internal_topics_are_listed_on_request(cluster: LiveCluster, twin: Twin) -> None:
    group = f"internal-{twin.kind}"
    await cluster.create_topic(group)
    await twin.alter_consumer_group_offsets(group, [part(group, 0, 0)])
    assert "__consumer_offsets" in await twin.list_topics(internal=True)
    assert "__consumer_offsets" not in await twin.list_topics()


async def test_configs(twin: Twin) -> None:
    name = f"configs-{twin.kind}"
    await twin.create_topics([NewTopic(name, 1, 3)])
    topic = ConfigResource("topic", name)
    broker, whole = ConfigResource("broker", "1"), ConfigResource("cluster")
    assert await twin.alter_configs({topic: {RETENTION: 70_000}}) == {topic: None}
    found = await twin.describe_configs([topic, broker, whole])
    assert (found[topic][RETENTION].value, found[topic][RETENTION].topic) == ("70000", name)
    assert found[broker]
    assert found[whole]
    await twin.alter_configs({topic: {RETENTION: 1}}, validate_only=True)
    only = await twin.describe_configs([topic], names=[RETENTION])
    assert {key: one.value for key, one in only[topic].items()} == {RETENTION: "70000"}
    await twin.alter_configs({topic: {RETENTION: None}})
    only = await twin.describe_configs([topic], names=[RETENTION])
    assert only[topic][RETENTION].value != "70000"
    absent = ConfigResource("topic", "absent")
    with pytest.raises(AdminError) as caught:
        await twin.alter_configs({topic: {"cleanup.policy": "compact"}, absent: {RETENTION: 1}})
    assert (list(caught.value.done), list(caught.value.failed)) == ([topic], [absent])
    with pytest.raises(AdminError):
        await twin.describe_configs([topic], names=["no.such.config"])


async def test_offsets_and_deletion_of_records(cluster: LiveCluster, twin: Twin) -> None:
    name = f"offsets-{twin.kind}"
    await twin.create_topics([NewTopic(name, 2, 3)])
    before_ms = int(time.time() * 1000)
    assert (await cluster.produce(1, name, *range(5))).status == 200
    first, second = part(name, 0), part(name, 1)
    assert await twin.list_offsets({first: "earliest", second: "latest"}) == {first: 0, second: 0}
    assert await twin.list_offsets({first: "latest"}) == {first: 5}
    assert await twin.list_offsets({first: before_ms - 60_000}) == {first: 0}
    assert await twin.list_offsets({first: before_ms + 3_600_000}) == {first: 5}
    assert await twin.delete_records({first: 3}) == {first: 3}
    assert await twin.list_offsets({first: "earliest"}) == {first: 3}
    with pytest.raises(AdminError) as caught:
        await twin.delete_records({first: 99, second: -1})
    assert (caught.value.done, list(caught.value.failed)) == ({second: 0}, [first])
    absent = part("absent", 0)
    with pytest.raises(AdminError) as caught:
        await twin.list_offsets({first: "latest", absent: "latest", part(name, 9): 0})
    assert caught.value.done == {first: 5}
    assert set(caught.value.failed) == {absent, part(name, 9)}


async def test_groups(cluster: LiveCluster, twin: Twin) -> None:
    name = f"groups-{twin.kind}"
    await twin.create_topics([NewTopic(name, 3, 3)])
    assert (await cluster.produce(1, name, *range(5))).status == 200
    first, second, third = (part(name, number) for number in range(3))
    given = [part(name, 0, 4, metadata="by hand", leader_epoch=0), part(name, 1, 0)]
    assert await twin.alter_consumer_group_offsets(name, given) == {first: None, second: None}
    assert (await twin.list_consumer_groups())[name].state == "EMPTY"
    assert name in await twin.list_consumer_groups(states=["EMPTY"])
    assert name not in await twin.list_consumer_groups(states=["STABLE", "HELD"])
    offsets = await twin.list_consumer_group_offsets(name)
    assert {key: one.offset for key, one in offsets.items()} == {first: 4, second: 0}
    row = offsets[first]
    assert (row.metadata, row.leader_epoch, row.lag) == ("by hand", 0, 1)
    some = await twin.list_consumer_group_offsets(name, [first, third])
    assert (some[first].offset, some[third]) == (4, None)
    assert await twin.list_consumer_group_offsets("absent") == {}
    assert await twin.delete_consumer_group_offsets(name, [second]) == {second: None}
    assert list(await twin.list_consumer_group_offsets(name)) == [first]
    with pytest.raises(AdminError) as caught:
        await twin.alter_consumer_group_offsets(name, [part("absent", 0, 1), part(name, 0, 1)])
    assert set(caught.value.failed) == {part("absent", 0), first}
    assert (await twin.list_consumer_group_offsets(name))[first].offset == 4
    described = (await twin.describe_consumer_groups([name]))[name]
    assert (described.state, described.members, described.is_simple) == ("EMPTY", (), True)
    assert await twin.delete_consumer_groups([name]) == {name: None}
    assert name not in await twin.list_consumer_groups()
    with pytest.raises(AdminError) as caught:
        await twin.describe_consumer_groups([name])
    assert isinstance(caught.value.failed[name], ApiError)
    assert caught.value.failed[name].code == 40405


async def join(cluster: LiveCluster, topic: str, member: str, static: str | None = None) -> None:
    """Make a member that owns what it is granted, without heartbeats."""
    settings = groups.MemberSettings(
        topics=(topic,), instance_id=static, auto_offset_reset="earliest"
    )

    def run() -> None:
        cluster_id = cluster.read().cluster_id
        with Client([cluster.url(1)]) as client:
            client.run(groups.join(cluster_id, topic, member, settings))

    await asyncio.to_thread(run)


async def test_members(cluster: LiveCluster, twin: Twin) -> None:
    name = f"members-{twin.kind}"
    await twin.create_topics([NewTopic(name, 2, 3)])
    await join(cluster, name, "one")
    described = (await twin.describe_consumer_groups([name]))[name]
    assert [one.member_id for one in described.members] == ["one"]
    assert described.members[0].assignment == (part(name, 0), part(name, 1))
    with pytest.raises(AdminError) as caught:
        await twin.delete_consumer_groups([name])
    assert caught.value.failed[name].code == 40903
    with pytest.raises(AdminError) as caught:
        await twin.alter_consumer_group_offsets(name, [part(name, 0, 0)])
    assert caught.value.failed[part(name, 0)].code == 40903
    with pytest.raises(AdminError) as caught:
        await twin.remove_members(name, members=["one", "nine"])
    assert (caught.value.done, list(caught.value.failed)) == ({"one": None}, ["nine"])
    await join(cluster, name, "two", static="seat")
    assert (await twin.describe_consumer_groups([name]))[name].members[0].static_id == "seat"
    assert await twin.remove_members(name, static_ids=["seat"]) == {"seat": None}
    for member in ("three", "four"):
        await join(cluster, name, member)
    assert await twin.remove_members(name) == {"three": None, "four": None}
    assert name not in await twin.list_consumer_groups()  # without members and offsets
    with pytest.raises(ApiError, match="cannot be found"):
        await twin.remove_members(name)


async def test_cluster_quorum_and_health(cluster: LiveCluster, twin: Twin) -> None:
    described = await twin.describe_cluster()
    assert described.cluster_id == cluster.read().cluster_id
    assert sorted(one.broker_id for one in described.brokers) == [1, 2, 3]
    quorum = await twin.describe_quorum()
    assert [one.is_reachable for one in quorum.voters] == [True] * 3
    assert sorted(one.broker_id for one in quorum.observers) == [1, 2, 3]
    assert quorum.is_from_leader
    assert quorum.leader_id in {one.voter_id for one in quorum.voters}
    health = await twin.cluster_health()
    assert health.status in {"healthy", "degraded"}
    assert (health.counts["controllers"], health.counts["brokers"]) == (3, 3)
    assert health.cluster_id == described.cluster_id


async def test_leaders_and_replicas(cluster: LiveCluster, twin: Twin) -> None:
    name = f"moves-{twin.kind}"
    await twin.create_topics([NewTopic(name, assignments=[[1, 2], [2, 3]])])
    first, second = part(name, 0), part(name, 1)
    assert await twin.alter_reassignments({first: [3, 2]}, validate_only=True) == {first: None}
    moving = await twin.alter_reassignments({first: [3, 2]})
    assert moving[first].partition == 0

    async def moved() -> bool:
        return not await twin.list_reassignments([first])

    await cluster.until(moved, "the replica is moved")
    assert first not in await twin.list_reassignments()
    found = (await twin.describe_topics([name]))[name].partitions
    assert set(found[0].replicas) == {2, 3}
    with pytest.raises(AdminError) as caught:  # nothing of it is done
        await twin.alter_reassignments({first: [1, 2], part(name, 9): [1], second: None})
    assert (caught.value.done, len(caught.value.failed)) == ({}, 3)
    absent = part("absent", 0)
    with pytest.raises(AdminError) as caught:
        await twin.elect_leaders([second, absent])
    assert (caught.value.done, list(caught.value.failed)) == ({second: 2}, [absent])
    assert await twin.elect_leaders([first]) == {first: 3}
    leaders = await twin.elect_leaders()
    assert leaders.get(first, 3) == 3
    assert await twin.elect_leaders([first], unclean=True) == {first: 3}


async def test_calls_of_many_threads_or_tasks_at_once(twin: Twin) -> None:
    found = await asyncio.gather(*(twin.describe_cluster() for _ in range(20)))
    assert len({one.cluster_id for one in found}) == 1
    assert twin.admin.metrics()["calls"] == 20
    assert twin.admin.metrics()["failed_calls"] == 0


@pytest.mark.parametrize("kind", [Admin, AsyncAdmin])
async def test_on_stats_gets_the_counts(cluster: LiveCluster, kind: type[Any]) -> None:
    seen: list[dict[str, Any]] = []
    admin = kind(cluster.url(1), on_stats=seen.append, stats_interval_ms=20)
    twin = Twin(admin)
    await twin.list_topics()
    await cluster.until(lambda: any(one["calls"] == 1 for one in seen), "the counts arrive")
    await twin.close()


async def test_wrong_arguments_send_nothing(twin: Twin) -> None:
    wrong: list[tuple[type[Exception], str, tuple[Any, ...], dict[str, Any]]] = [
        (TypeError, "create_topics", ("orders",), {}),
        (TypeError, "create_topics", (["orders"],), {}),
        (ValueError, "create_topics", ([NewTopic("a"), NewTopic("a")],), {}),
        (ValueError, "create_partitions", ({"a": 0},), {}),
        (TypeError, "delete_topics", ("orders",), {}),
        (TypeError, "describe_topics", ([1],), {}),
        (TypeError, "describe_configs", (["orders"],), {}),
        (TypeError, "alter_configs", ({ConfigResource("cluster"): {"a": []}},), {}),
        (ValueError, "list_offsets", ({part("a", 0): "newest"},), {}),
        (TypeError, "list_offsets", ({("a", 0): "latest"},), {}),
        (ValueError, "delete_records", ({part("a", 0): -2},), {}),
        (ValueError, "list_consumer_groups", (), {"states": ["DEAD"]}),
        (TypeError, "alter_consumer_group_offsets", ("g", [part("a", 0)]), {}),
        (ValueError, "delete_consumer_group_offsets", ("g", [part("a", -1)]), {}),
        (TypeError, "remove_members", ("g", "one"), {}),
        (ValueError, "remove_members", ("g", ["one"], ["one"]), {}),
        (ValueError, "alter_reassignments", ({part("a", 0): [1, 1]},), {}),
        (ValueError, "list_topics", (), {"timeout": 0}),
        (TypeError, "list_topics", (), {"timeout": "1"}),
    ]
    for error, name, arguments, keywords in wrong:
        with pytest.raises(error, match="expected"):
            await getattr(twin, name)(*arguments, **keywords)
    assert twin.admin.metrics()["requests"] == 0
    await twin.list_topics()
    assert twin.admin.metrics()["requests"] > 0


async def test_a_closed_admin_refuses(cluster: LiveCluster, twin: Twin) -> None:
    await twin.list_topics()
    await twin.close()
    await twin.close()
    with pytest.raises(ClosedError):
        await twin.list_topics()
    with pytest.raises(ClosedError):
        twin.admin.metrics()
    with Admin(cluster.url(2)) as admin:
        assert isinstance(await asyncio.to_thread(admin.list_topics), dict)
    async with AsyncAdmin(cluster.url(2)) as again:
        assert isinstance(await again.list_topics(timeout=5), dict)


async def test_a_timeout_ends_a_call_on_silent_brokers(cluster: LiveCluster, twin: Twin) -> None:
    await twin.list_topics()
    for broker in cluster.brokers:
        cluster.pause(f"broker-{broker.id}")
    try:
        began_s = time.monotonic()
        with pytest.raises(QuorumlogError, match=r"no answer|no broker answers"):
            await twin.list_topics(timeout=0.5)
        assert time.monotonic() - began_s < 3
    finally:
        for broker in cluster.brokers:
            cluster.resume(f"broker-{broker.id}")
    await cluster.wait_healthy()


async def test_calls_of_other_tasks_end_in_their_time_behind_a_close(cluster: LiveCluster) -> None:
    admin = AsyncAdmin(cluster.url(1), request_timeout_ms=1_000, api_timeout_ms=2_000)
    await admin.list_topics()
    before = admin.metrics()["requests"]
    cluster.pause("broker-1")
    try:
        calls = [asyncio.create_task(admin.list_topics()) for _ in range(3)]
        await cluster.until(
            lambda: admin.metrics()["requests"] == before + 3, "the requests are sent"
        )
        await admin.close()
        for result in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(result, QuorumlogError)
    finally:
        cluster.resume("broker-1")


async def test_transactional_ids(twin: Twin) -> None:
    name, group = f"txn-{twin.kind}", f"g-{twin.kind}"
    lives = await twin.fence_producers([name])
    assert (lives[name].epoch, lives[name].last) == (1, None)
    assert (await twin.fence_producers([name]))[name].epoch == 2
    assert (await twin.fence_producers([name], group=group))[name].epoch == 1, "another id"
    listed = await twin.list_transactions()
    assert name in {one.transaction_id for one in listed}
    assert [one.group for one in await twin.list_transactions(group=group)] == [group]
    described = await twin.describe_transactions([name])
    assert (described[name].epoch, described[name].last) == (2, None)
    with pytest.raises(AdminError, match="absent") as caught:
        await twin.describe_transactions([name, "absent"])
    assert list(caught.value.done) == [name]


async def test_no_broker_is_one_error() -> None:
    async with AsyncAdmin("127.0.0.1:9") as admin:
        with pytest.raises(UnreachableError):
            await admin.list_offsets({part("a", 0): "latest", part("b", 0): "latest"})


def test_every_method_ran_on_both_twins() -> None:
    public = {name for name in vars(Admin) if not name.startswith("_")}
    assert {name for name in vars(AsyncAdmin) if not name.startswith("_")} == public
    assert public - used["admin"] - {"metrics"} == set()
    assert public - used["asyncadmin"] - {"metrics"} == set()
    for name in public - {"close", "metrics"}:
        ours, theirs = getattr(Admin, name), getattr(AsyncAdmin, name)
        assert inspect.signature(ours) == inspect.signature(theirs)
        assert ours.__doc__ == theirs.__doc__
