"""Power is cut under load, again and again: nothing acknowledged is lost, whoever was hit.

Real processes, real loads. Where this is root and may mount, each node has a file system of its
own that is ended without a flush; elsewhere the page-granular stand-in (tests/support/power_cut).
The summary of the run says which it was. `make power-loss` cuts fifty times.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import pytest

from chaos.deadline import TooLateError
from chaos.disks.shim import broken, lying
from tests.support.live_cluster import LiveCluster
from tests.support.live_writer import writing
from tests.support.power_cut import Power, TapePower, cuts_by_kind, power_for, powered

TOPIC, PAGED = "kept", "paged"
PARTITIONS = 2
BROKERS = ("broker-1", "broker-2", "broker-3")
CONTROLLERS = ("controller-101", "controller-102", "controller-103")
CUTS, SEEDS = 10, 5
"""Fifty cuts in all, in clusters of their own: one test may take five minutes, not more."""
RECOVERY_S = 45.0
MORE = 20
"""Records acknowledged per partition between two cuts, at least: the floor (rules.md K)."""


@pytest.fixture
def power(request: pytest.FixtureRequest) -> Power:
    match request.param:
        case "stand-in":
            return TapePower()
        case "takes everything":
            return TapePower(keep=(0.0,))
        case _:
            return power_for()


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory, power: Power) -> Iterator[LiveCluster]:
    with powered(tmp_path_factory.mktemp("power"), power) as cluster:
        yield cluster


async def back(cluster: LiveCluster, names: Sequence[str]) -> None:
    """Start the nodes again; every replica of the topic is in sync."""
    for name in names:
        cluster.start_node(name)
    for topic in (TOPIC, PAGED):
        await cluster.wait_healthy(topic, PARTITIONS, RECOVERY_S)


def victims(chance: random.Random) -> list[str]:
    """One broker, two, all; in part of the cuts controllers as well, or everything."""
    brokers = chance.sample(BROKERS, chance.choice((1, 1, 2, 3)))
    controllers = chance.sample(CONTROLLERS, chance.choice((0, 0, 1, 2, 3)))
    nodes = [*brokers, *controllers]
    chance.shuffle(nodes)
    return nodes


async def torture(
    cluster: LiveCluster, power: Power, chance: random.Random, cuts: Sequence[Sequence[str]]
) -> str:
    """Two loads on the `flush=ack` topic through all of it; the figures of what was judged."""
    await cluster.create_topic(TOPIC, PARTITIONS, flush="ack")
    await cluster.create_topic(PAGED, PARTITIONS, flush="os")
    async with (
        writing(cluster, TOPIC, PARTITIONS) as writer,
        writing(cluster, TOPIC, PARTITIONS, beside=writer) as second,
        writing(cluster, PAGED, PARTITIONS),
    ):
        for names in cuts:
            lost = await power.cut(cluster, names, chance)
            told = f"cut {sorted(names)}: {lost}"
            print(told)  # noqa: T201 a red run shows what came before
            restarted = list(names)
            chance.shuffle(restarted)
            await back(cluster, restarted)
            for load in (writer, second):
                await load.more(MORE, RECOVERY_S)
    for topic in (TOPIC, PAGED):
        await cluster.wait_healthy(topic, PARTITIONS, RECOVERY_S)
        await cluster.wait_same_on_disk(topic, PARTITIONS)
    return await writer.judge(cluster)


@pytest.mark.parametrize(
    "power", ["best", pytest.param("stand-in", marks=pytest.mark.slow)], indirect=True
)
async def test_invariant_l23_nothing_acknowledged_is_lost_when_power_fails_under_load(
    cluster: LiveCluster, power: Power
) -> None:
    chance = random.Random(1)
    before = cuts_by_kind.get(power.kind, 0)
    figures = await torture(cluster, power, chance, [BROKERS, (*BROKERS, *CONTROLLERS)])
    print(figures)  # noqa: T201
    assert cuts_by_kind[power.kind] == before + 2


@pytest.mark.slow
@pytest.mark.parametrize("power", ["takes everything"], indirect=True)
async def test_disks_that_lie_of_their_syncs_are_found_out(
    cluster: LiveCluster, power: TapePower
) -> None:
    """Show that the test can fail: all disks report "synced" without syncing, and lose power."""
    for name in BROKERS:
        power.shim.set(name, lying())
    with pytest.raises((AssertionError, TooLateError)) as found:
        await torture(cluster, power, random.Random(1), [BROKERS])
    print(found.value)  # noqa: T201


@pytest.mark.slow
@pytest.mark.parametrize("power", ["takes everything"], indirect=True)
async def test_rule_q2_pages_that_a_failed_sync_dropped_are_never_believed(
    cluster: LiveCluster, power: TapePower
) -> None:
    """As Linux does it: one sync fails, its pages look clean and are gone, the next succeeds."""
    chance = random.Random(2)
    await cluster.create_topic(TOPIC, PARTITIONS)
    async with writing(cluster, TOPIC, PARTITIONS) as writer:
        for _ in range(3):
            name = f"broker-{await cluster.leader(TOPIC)}"
            pid = cluster.pid(name)
            power.shim.set(name, broken("sync", times=1, part="/log"))
            await cluster.until(lambda pid=pid, name=name: cluster.pid(name) != pid, "it ended")
            power.shim.set(name)
            print(f"{name}: {power.drop_unsynced([name], chance)}")  # noqa: T201
            cluster.start_node(name)
            await cluster.wait_healthy(TOPIC, PARTITIONS, RECOVERY_S)
            await writer.more(MORE, RECOVERY_S)
    await cluster.wait_same_on_disk(TOPIC, PARTITIONS)
    print(await writer.judge(cluster))  # noqa: T201


@pytest.mark.slow
@pytest.mark.parametrize("power", ["best", "stand-in"], indirect=True)
async def test_rule_r6_a_flush_os_topic_survives_the_power_cut_of_any_one_broker(
    cluster: LiveCluster, power: Power
) -> None:
    """Its promise is smaller: what one machine's page cache lost, the others' still hold.

    The broker that lost it may not lead with less: it leaves, and is filled again.
    """
    chance = random.Random(3)
    await cluster.create_topic(PAGED, PARTITIONS, flush="os")
    async with writing(cluster, PAGED, PARTITIONS) as writer:
        for name in chance.sample(BROKERS, len(BROKERS)):
            print(f"cut {name}: {await power.cut(cluster, [name], chance)}")  # noqa: T201
            cluster.start_node(name)
            await cluster.wait_healthy(PAGED, PARTITIONS, RECOVERY_S)
            await writer.more(MORE, RECOVERY_S)
    await cluster.wait_same_on_disk(PAGED, PARTITIONS)
    print(await writer.judge(cluster))  # noqa: T201


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("power", ["best", "stand-in"], indirect=True)
async def test_nothing_acknowledged_is_lost_over_fifty_power_cuts(
    cluster: LiveCluster, power: Power, seed: int
) -> None:
    chance = random.Random(seed)
    figures = await torture(cluster, power, chance, [victims(chance) for _ in range(CUTS)])
    print(f"seed {seed}, {CUTS} cuts, {power.kind}: {figures}")  # noqa: T201
