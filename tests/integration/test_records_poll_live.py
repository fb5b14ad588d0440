"""``records:poll`` over three brokers: through each of them, and while leaders are killed."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator

import orjson
import pytest

from http_api.client.polling import Polled, PolledPage, PollPosition, PollRefusal, poll
from http_api.client.transport import Client
from tests.support.live_cluster import LiveCluster, running

log = logging.getLogger("tests.cluster")
PARTITIONS = 6


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    with running(tmp_path_factory.mktemp("poll")) as cluster:
        yield cluster


class Reader:
    """Positions in a topic, polled through one broker only."""

    def __init__(self, cluster: LiveCluster, topic: str, through: int) -> None:
        self._cluster_id = cluster.read().cluster_id
        self._url = cluster.url(through)
        self._at: dict[int, tuple[int, int | None]] = dict.fromkeys(range(PARTITIONS), (0, None))
        self._topic = topic
        self.seen: list[tuple[int, int, object]] = []
        """(partition, offset, value) of each record, in the order of arrival."""
        self.refused: list[PollRefusal] = []

    async def poll(self, wait_ms: int) -> list[Polled]:
        """Poll once, in a thread, and go on behind what came."""
        positions = [
            PollPosition(
                topic=self._topic, partition=number, offset=offset, leader_epoch=epoch
            )
            for number, (offset, epoch) in sorted(self._at.items())
        ]  # fmt: skip
        call = poll(self._cluster_id, positions, wait_ms=wait_ms)
        found = await asyncio.to_thread(self._run, call)
        for page in found:
            if isinstance(page, PollRefusal):
                self.refused.append(page)
                continue
            self._at[page.partition] = (page.next_offset, page.next_leader_epoch)
            for line in page.body.splitlines():
                if not line.startswith(b'{"batch":'):
                    record = orjson.loads(line)
                    self.seen.append((page.partition, record["offset"], record["value"]))
        return found

    def _run(self, call: object) -> list[Polled]:
        with Client([self._url], retry_s=0) as client:
            return client.run(call)  # type: ignore[arg-type, no-any-return]


async def test_a_record_in_any_partition_ends_the_wait_through_any_broker(
    cluster: LiveCluster,
) -> None:
    topic = "polled"
    await cluster.create_topic(topic, partitions=PARTITIONS)
    leaders = {await cluster.leader(topic, number) for number in range(PARTITIONS)}
    assert leaders == {1, 2, 3}
    readers = [Reader(cluster, topic, through) for through in (1, 2, 3)]
    for reader in readers:
        began = time.monotonic()
        assert await reader.poll(300) == []
        assert 0.25 <= time.monotonic() - began < 3
    for number in range(PARTITIONS):
        waiting = [asyncio.ensure_future(reader.poll(15_000)) for reader in readers]
        await asyncio.sleep(0.1)
        began = time.monotonic()
        assert (await cluster.produce(1, topic, number, partition=number)).status == 200
        for [page] in await asyncio.gather(*waiting):
            assert isinstance(page, PolledPage)
            assert (page.partition, page.records) == (number, 1)
        assert time.monotonic() - began < 3
    for reader in readers:
        assert sorted(reader.seen) == [(number, 0, number) for number in range(PARTITIONS)]
        assert not reader.refused


@pytest.mark.parametrize("silent", [False, True], ids=["killed", "paused"])
async def test_a_leader_that_goes_away_during_the_wait(cluster: LiveCluster, silent: bool) -> None:
    topic = f"polled-{'paused' if silent else 'killed'}"
    await cluster.wait_healthy()
    await cluster.create_topic(topic, partitions=PARTITIONS)
    await cluster.wait_healthy(topic, PARTITIONS)
    victim = await cluster.leader(topic, 0)
    through = cluster.others(victim)[0].id
    reader = Reader(cluster, topic, through)
    waiting = asyncio.ensure_future(reader.poll(30_000))
    await asyncio.sleep(0.3)
    pid = 0
    if silent:
        cluster.pause(f"broker-{victim}")
    else:
        pid = await cluster.kill(f"broker-{victim}")
    try:

        async def moved() -> bool:
            return await cluster.leader(topic, 0, through=through) != victim

        await cluster.until(moved, "another broker leads")
        assert not waiting.done(), "that a leader is gone for a moment is nothing to tell"
        began = time.monotonic()
        assert (await cluster.produce(through, topic, "after", partition=0)).status == 200
        [page] = await asyncio.wait_for(waiting, 5)
        log.info("told %.0f ms behind the write", 1000 * (time.monotonic() - began))
    finally:
        if silent:
            cluster.resume(f"broker-{victim}")
    assert isinstance(page, PolledPage)
    assert reader.seen == [(0, 0, "after")]
    for number in range(1, PARTITIONS):
        assert (await cluster.produce(through, topic, number, partition=number)).status == 200
    await cluster.until(lambda: read_all(reader), "every record was read", 20)
    assert sorted(number for number, _, _ in reader.seen) == list(range(PARTITIONS)), "each once"
    if pid:
        await cluster.wait_restarted(f"broker-{victim}", pid)


async def read_all(reader: Reader) -> bool:
    await reader.poll(500)
    return len(reader.seen) >= PARTITIONS
