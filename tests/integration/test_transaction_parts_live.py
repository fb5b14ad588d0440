"""Brokers that fail between a decision and its completion, each with one part in it.

Four brokers: two with a stage, one that leads the home, one that leads a target. While the target's
is paused, an unclean election of the stage takes decided rows; or the home's stops.
"""

from __future__ import annotations

import asyncio
import itertools
import signal
import sys
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest

from broker.transactions.chunk_records import stage_partition_of
from broker.transactions.messages import TransactionalId
from chaos.cluster import runs
from raft_metadata.common.ids import GroupId
from tests.support.live_cluster import Answer, LiveCluster, running

STAGED, HOMES, LEDGER = "__staged", "__transaction_state", "ledger"
BROKERS = range(1, 5)
PARTITIONS = 12
ROWS = 3
"""Rows of a chunk for each of its two targets."""
CHUNKS = 4
"""Chunks of the decision; the first one is on both replicas of the stage."""
LOST = ROWS * (CHUNKS - 1)
OPTIONS = ("--brokers", "4", "--controllers", "1", "--no-restart")
PATIENCE = ("--set", "broker_session_timeout_ms=5000")
"""The target's leader is paused, and still leads by what the home knows when it decides."""


Position = tuple[str, tuple[int, int]]
"""An id, and epoch and number of it."""


class Cast(NamedTuple):
    """The brokers by their part in the story; the topic has a partition on each of them."""

    stage_leader: int
    stage_follower: int
    home: int
    target: int
    stage: int
    """The partition of `__staged`."""
    homes: int
    """The partition of `__transaction_state`."""


async def replicas(cluster: LiveCluster, topic: str, partition: int) -> tuple[int, set[int]]:
    """The leader of a partition and the rest of its in-sync replicas: all of them, at rest."""
    described = await cluster.partition(topic, partition)
    leader = int(described["leader_id"])
    return leader, {int(each) for each in described["isr"]} - {leader}


async def cast(cluster: LiveCluster) -> Cast:
    """Find a stage and a home so that each broker has one part only."""
    stages = [await replicas(cluster, STAGED, number) for number in range(PARTITIONS)]
    homes = [await replicas(cluster, HOMES, number) for number in range(PARTITIONS)]
    for (stage, (leader, rest)), (home, (decider, others)) in itertools.product(
        enumerate(stages), enumerate(homes)
    ):
        (follower,) = rest
        if decider not in {leader, follower} and others == {leader, follower}:
            (target,) = {*BROKERS} - {leader, follower, decider}
            return Cast(leader, follower, decider, target, stage, home)
    raise AssertionError(f"no such stage and home: {stages} {homes}")


@dataclass
class Story:
    """A cluster, and what it answered."""

    cluster: LiveCluster
    cast: Cast
    partitions: dict[int, int]
    """The partition of `LEDGER` that each broker leads."""

    def id_of(self, name: str) -> str:
        """A transactional id of the home."""
        ids = (f"{name}-{n}" for n in itertools.count())
        return next(
            each for each in ids if zlib.crc32(each.encode()) % PARTITIONS == self.cast.homes
        )

    def attempt_of(self, id_: str, at: tuple[int, int]) -> str:
        """An attempt of the stage at a position."""
        of_id = TransactionalId(GroupId(""), id_)
        attempts = (f"{at[0]}.{at[1]}.{n}" for n in itertools.count())
        return next(each for each in attempts if stage_partition_of(of_id, each) == self.cast.stage)

    async def send(
        self, path: str, body: object = None, *, through: int | None = None, **headers: str
    ) -> Answer:
        """Send to the home's broker, or through another; below the cluster without a slash."""
        broker = self.cast.home if through is None else through
        cluster_id = self.cluster.read().cluster_id
        full = path if path.startswith("/") else f"/v3/clusters/{cluster_id}/{path}"
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        method = "GET" if body is None else "POST"
        return await self.cluster.ask(method, self.cluster.url(broker) + full, body, named)

    async def init(self, id_: str) -> int:
        answer = await self.send(f"transactions/{id_}:init", {}, through=self.cast.stage_follower)
        assert answer.status == 200, answer
        return int(answer.body["epoch"])

    async def stage(self, id_: str, at: tuple[int, int], chunk: int) -> None:
        """Stage rows for the partitions of the target and of the home."""
        places = (self.partitions[self.cast.target], self.partitions[self.cast.home])
        rows = [
            {"value": [id_, *at, chunk, row], "partition": place}
            for place in places
            for row in range(ROWS)
        ]
        answer = await self.send(
            f"/topics/{LEDGER}",
            {"records": rows},
            Quorumlog_Transaction=id_,
            Quorumlog_Transaction_Epoch=str(at[0]),
            Quorumlog_Transaction_Number=str(at[1]),
            Quorumlog_Attempt=self.attempt_of(id_, at),
            Quorumlog_Chunk=str(chunk),
        )
        assert answer.status == 200, answer

    async def commit(
        self,
        id_: str,
        at: tuple[int, int],
        chunks: int,
        *,
        through: int | None = None,
        timeout_ms: int = 9_000,
    ) -> Answer:
        rows = 2 * ROWS * chunks
        named = {"attempt_id": self.attempt_of(id_, at), "chunks": chunks, "rows": rows}
        body = {"epoch": at[0], "number": at[1], "attempts": [named]}
        path = f"transactions/{id_}:commit?timeout={timeout_ms}"
        return await self.send(path, body, through=through)

    async def quorumlog(self, *arguments: str) -> tuple[int, str]:
        """The exit code of a command and what it prints."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "http_api.cli", *arguments),
            *("--url", self.cluster.url(self.cast.home)),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        async with asyncio.timeout(20):
            out, _ = await process.communicate()
        assert process.returncode is not None
        return process.returncode, out.decode()

    async def values(self, of_broker: int, through: int | None = None) -> list[Any]:
        """All values of the partition that a broker leads; their offsets have no gap."""
        answer = await self.cluster.fetch(
            through or self.cast.home, LEDGER, self.partitions[of_broker], wait_ms=0
        )
        assert answer.status == 200, answer
        assert [row["offset"] for row in answer.body] == [*range(len(answer.body))]
        return [row["value"] for row in answer.body]


async def set_up(cluster: LiveCluster) -> Story:
    """Make the topics: `__staged` with two replicas, of which one is enough."""
    now = cluster.read()
    base = f"{cluster.url(1)}/v3/clusters/{now.cluster_id}"
    await cluster.create_topic(LEDGER, partitions=4, factor=1, min_insync_replicas="1")
    made = await cluster.ask("POST", f"{base}/transactions/first:init", {})
    assert made.status == 200, made
    factor = await cluster.ask(
        "PUT", f"{base}/broker-configs/default.replication.factor", {"value": "2"}
    )
    assert factor.status == 204, factor
    headers = {
        "Quorumlog-Transaction": "first",
        "Quorumlog-Transaction-Epoch": str(made.body["epoch"]),
        "Quorumlog-Transaction-Number": "0",
        "Quorumlog-Chunk": "0",
    }
    url = f"{cluster.url(1)}/topics/{LEDGER}/partitions/0"
    made = await cluster.ask("POST", url, {"records": [{"value": "never"}]}, headers)
    assert made.status == 200, made
    least = await cluster.ask(
        "PUT", f"{base}/topics/{STAGED}/configs/min.insync.replicas", {"value": "1"}
    )
    assert least.status == 204, least
    partitions = {await cluster.leader(LEDGER, number): number for number in range(4)}
    assert {*partitions} == {*BROKERS}
    return Story(cluster, await cast(cluster), partitions)


async def decide_what_one_broker_has(story: Story, id_: str) -> tuple[int, Answer]:
    """Decide a transaction whose later chunks have one replica; its epoch and the answer."""
    cluster, cast = story.cluster, story.cast
    epoch = await story.init(id_)
    await story.stage(id_, (epoch, 0), 0)
    await cluster.kill(f"broker-{cast.stage_follower}")
    await cluster.wait_isr(STAGED, cast.stage, {cast.stage_leader}, cast.home)
    for chunk in range(1, CHUNKS):
        await story.stage(id_, (epoch, 0), chunk)
    cluster.pause(f"broker-{cast.target}")
    return epoch, await story.commit(id_, (epoch, 0), CHUNKS, timeout_ms=1_000)


async def lose_it(story: Story) -> None:
    """Kill that one broker, and elect what is left of the stages."""
    cluster, cast = story.cluster, story.cast
    await cluster.kill(f"broker-{cast.stage_leader}")
    cluster.start_node(f"broker-{cast.stage_follower}")
    await cluster.wait_isr(HOMES, cast.homes, {cast.home, cast.stage_follower}, cast.home)

    await elect(story, of_all=False)


async def elect(story: Story, *, of_all: bool) -> None:
    """Let stale replicas lead; those of the paused broker can't, so ``of_all`` waits for it."""
    cluster, cast = story.cluster, story.cast

    async def elected() -> bool:
        code, _ = await story.quorumlog("elect", "unclean", STAGED, "--yes")
        described = await cluster.partition(STAGED, cast.stage, cast.home)
        return (code == 0 or not of_all) and described["leader_id"] == cast.stage_follower

    await cluster.until(elected, "a stale replica leads the stage")


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    with running(tmp_path_factory.mktemp("lost"), *OPTIONS, *PATIENCE) as cluster:
        yield asyncio.run(set_up(cluster))


def values_of(id_: str, at: tuple[int, int], *chunks: int) -> list[Any]:
    """The values of chunks for one target, in their order."""
    return [[id_, *at, chunk, row] for chunk in chunks for row in range(ROWS)]


async def check_told(story: Story, id_: str, epoch: int) -> None:
    """The loss is told by commits, descriptions, the next init, and the log of the home."""
    cluster, cast = story.cluster, story.cast
    place = story.partitions[cast.target]
    for through in (cast.home, cast.target, cast.stage_follower):
        told = await story.commit(id_, (epoch, 0), CHUNKS, through=through)
        assert (told.status, told.body.get("error_code")) == (500, 50004), told
        assert f"lost {LOST} rows for partition {place} of {LEDGER};" in told.body["message"]
        assert (told.body["outcome"], told.body["retriable"]) == ("unknown", False)
    found = await story.send(f"transactions/{id_}")
    assert found.status == 200, found
    assert found.body["state"] == "complete"
    last = {"epoch": epoch, "number": 0, "state": "complete", "lost_rows": LOST}
    assert found.body["last"] == last
    lost = [(one["topic_name"], one["partition_id"], one["rows"]) for one in found.body["lost"]]
    assert lost == [(LEDGER, place, LOST)]
    code, shown = await story.quorumlog("txn", "describe", id_)
    assert (code, f"lost with its stage: {LOST} rows of {LEDGER}:{place}" in shown) == (0, True)
    fate = await story.send(f"transactions/{id_}:abort", {"epoch": epoch, "number": 0})
    assert fate.body == {"state": "complete", "lost": found.body["lost"]}
    life = await story.send(f"transactions/{id_}:init", {})
    assert life.body["last"] == last
    lines = cluster.log(f"broker-{cast.home}").splitlines()
    losses = [line for line in lines if "decided rows are lost by an unclean election" in line]
    assert len(losses) == CHUNKS - 1, losses
    assert all(f"id={id_} epoch={epoch} number=0" in line for line in losses)
    _, health = await story.quorumlog("cluster", "health")
    assert "TRANSACTIONS_WAITING" not in health


async def test_rule_s10_rows_that_an_unclean_election_took_are_told_and_block_nothing(
    story: Story,
) -> None:
    cluster, cast = story.cluster, story.cast
    id_, other = story.id_of("payments"), story.id_of("other")
    epoch, decided = await decide_what_one_broker_has(story, id_)
    assert (decided.status, decided.body["state"]) == (202, "committing"), decided
    assert decided.body["lost"] == []
    await lose_it(story)

    # Another id of the home commits what does not need the paused target, and stages more: its
    # chunks get the offsets of the lost ones.
    of_other = await story.init(other)
    rows = [{"value": "beside", "partition": story.partitions[cast.home]}]
    body = {"epoch": of_other, "number": 0, "topics": [{"topic_name": LEDGER, "records": rows}]}
    beside = await story.send(f"transactions/{other}:commit", body)
    assert (beside.status, beside.body["state"]) == (200, "complete"), beside
    for chunk in range(CHUNKS):
        await story.stage(other, (of_other, 1), chunk)

    cluster.resume(f"broker-{cast.target}")
    await elect(story, of_all=True)
    await check_told(story, id_, epoch)
    later = (id_, (epoch + 1, 0)), (other, (of_other, 1))
    for chunk in range(CHUNKS):
        await story.stage(*later[0], chunk)
    for each in later:
        done = await story.commit(*each, CHUNKS)
        assert (done.status, done.body["state"], done.body["lost"]) == (200, "complete", []), done
    await check_read(story, (id_, (epoch, 0)), later)

    # Who had the lost rows comes back: its stage is cut, and nothing is told or read anew.
    cluster.start_node(f"broker-{cast.stage_leader}")
    both = {cast.stage_leader, cast.stage_follower}
    await cluster.wait_isr(STAGED, cast.stage, both, cast.home)
    await cluster.wait_healthy()
    for broker in BROKERS:
        again = await story.commit(*later[0], CHUNKS, through=broker)
        assert (again.status, again.body["state"], again.body["lost"]) == (200, "complete", [])
    await check_read(story, (id_, (epoch, 0)), later)


async def check_read(story: Story, lossy: Position, later: Sequence[Position]) -> None:
    """Rows are there once, in the order of decisions, but for those that were lost."""
    every = range(CHUNKS)
    whole = [value for each in later for value in values_of(*each, *every)]
    assert await story.values(story.cast.target) == values_of(*lossy, 0) + whole
    elsewhere = [*values_of(*lossy, *every), "beside", *whole]
    assert await story.values(story.cast.home) == elsewhere


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL], ids=["stopped", "killed"])
async def test_rule_s3_a_client_that_waits_hears_of_the_completion_from_the_next_home(
    story: Story, end: signal.Signals
) -> None:
    """One that is stopped says "committing" as it goes: the broker between asks the next one."""
    cluster, cast = story.cluster, story.cast
    of_home = {*BROKERS} - {cast.target}
    await cluster.wait_isr(HOMES, cast.homes, of_home, cast.target)
    home = await cluster.leader(HOMES, cast.homes, cast.target)
    asker = min(of_home - {home})
    id_ = story.id_of(f"moved-{end.name}")
    rows = [{"value": id_, "partition": story.partitions[each]} for each in (cast.target, asker)]
    body = {"epoch": await story.init(id_), "number": 0}
    body |= {"topics": [{"topic_name": LEDGER, "records": rows}]}
    cluster.pause(f"broker-{cast.target}")
    path = f"transactions/{id_}:commit?timeout=15000"
    committing = asyncio.create_task(story.send(path, body, through=asker))

    async def decided() -> bool:
        return id_ in await story.values(asker, asker)

    async def moved() -> bool:
        return await cluster.leader(HOMES, cast.homes, asker) != home

    await cluster.until(decided, "it is decided, and in the other target")
    pid = cluster.signal(f"broker-{home}", end)
    await cluster.until(moved, "the home has another leader")
    assert not committing.done()
    cluster.resume(f"broker-{cast.target}")
    told = await committing
    assert (told.status, told.body["state"], told.body["rows"]) == (200, "complete", 2), told
    assert (await story.values(cast.target, asker)).count(id_) == 1
    await cluster.until(lambda: not runs(pid), "the old home is gone")
    cluster.start_node(f"broker-{home}")
    await cluster.wait_healthy()
