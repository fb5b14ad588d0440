"""CPU cost of a request forwarded from one broker to another: both ends, in one process.

    python -m benchmarks.forwards

Both ends are the product's (`ForwardedProduces`, the peer channel, the peer listener, its requests)
and talk over loopback; the log behind them answers in the next turn of the loop. Each turn has a
produce of one record for each of so many partitions, all led by the other broker. Thread time, the
least of `ROUNDS`, so that other work on the machine hardly counts. *tasks* is the way without
`post` and `answer_directly`, which remains for requests that these cannot handle.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from functools import partial
from types import MappingProxyType, SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from benchmarks.report import machine
from broker.record.batch import RecordFormat
from broker.record.lines import decode_records
from broker.server.forwarded_produce import ForwardedProduces
from broker.server.local_partitions import Append
from broker.server.peer_requests import PeerRequests
from broker.server.requests import ACKS_ALL
from broker.server.router import LeaderRouter
from http_api.node.node_start import run_loop
from http_api.peer.peer_channel import TcpPeerChannel
from http_api.peer.peer_server import PeerServer
from raft_metadata.common.clock import SystemClock
from raft_metadata.common.ids import (
    BrokerEpoch,
    BrokerId,
    ClusterId,
    DirectoryId,
    IncarnationId,
    LeaderEpoch,
    MetadataOffset,
    PartitionEpoch,
    PartitionId,
    TopicId,
    TopicIdPartition,
    TopicName,
)
from raft_metadata.image.metadata_image import (
    BrokerRegistration,
    MetadataImage,
    PartitionRegistration,
    TopicImage,
)
from raft_metadata.records.feature_levels import SUPPORTED_FEATURE_LEVEL
from raft_metadata.records.records import BrokerState

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from broker.server.local_partitions import GatheredProduce
    from raft_metadata.common.errors import KafkaError

HERE, THERE = BrokerId(1), BrokerId(2)
CLUSTER, TOPIC = ClusterId("AAAAAAAAAAAAAAAAAAAAAA"), TopicId("A" * 22)
DIRECTORY = DirectoryId("d" * 22)
PARTITIONS = (1, 2, 4, 8)
TURNS = 100
ROUNDS = 40
BODY = b'{"records":[{"key":"k0001","value":{"id":1,"note":"%b"}}]}' % (b"x" * 80)


class Log:
    """Replacement of `LocalPartitions`: accepts everything and answers in the next turn."""

    def __init__(self) -> None:
        self._end = 0

    def append_directly(self, request: Append, waiting: Sequence[GatheredProduce]) -> None:
        base, self._end = self._end, self._end + len(request.records)
        for first, answered in waiting:
            number = request.partition.partition
            asyncio.get_running_loop().call_soon(answered, number, base + first, None)

    async def append(self, request: Append) -> int:
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.append_directly(request, [(0, lambda _, base, __: future.set_result(base))])
        return await future


class Tasks(PeerRequests):
    """Peer services that handle each request in a task."""

    def answer_directly(self, *_: object) -> bool:
        return False


class CallsOnly(TcpPeerChannel):
    """Peer channel that posts nothing, so that each request is a task."""

    def post(self, *_: object) -> None:
        return None


class Ids:
    """Replacement of the controllers as a source of producer ids."""

    async def next(self) -> int:
        return 7


def _broker(broker_id: BrokerId, peer: str) -> BrokerRegistration:
    return BrokerRegistration(
        broker_id=broker_id,
        broker_epoch=BrokerEpoch(1),
        incarnation_id=IncarnationId("i" * 22),
        directory_id=DIRECTORY,
        http="",
        peer=peer,
        rack=None,
        state=BrokerState.UNFENCED,
        settled=True,
        feature_level_max=SUPPORTED_FEATURE_LEVEL,
        min_insync_replicas=1,
    )


def _image(peer: str, partitions: int) -> MetadataImage:
    led = PartitionRegistration(
        replicas=(THERE,),
        directories=(DIRECTORY,),
        isr=(THERE,),
        elr=(),
        leader=THERE,
        leader_epoch=LeaderEpoch(1),
        partition_epoch=PartitionEpoch(1),
        leader_epoch_offset=MetadataOffset(1),
    )
    name = TopicName("t")
    topic = TopicImage(
        name=name, topic_id=TOPIC, partitions_count=partitions, partitions=(led,) * partitions
    )
    return MetadataImage(
        feature_level=SUPPORTED_FEATURE_LEVEL,
        brokers=MappingProxyType({THERE: _broker(THERE, peer)}),
        topics=MappingProxyType({TOPIC: topic}),
        topic_ids=MappingProxyType({name: TOPIC}),
    )


@asynccontextmanager
async def crossing(partitions: int, *, tasks: bool) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """Run one turn: a produce for each partition, until all are answered."""
    nobody = cast("Any", None)
    services = (Tasks if tasks else PeerRequests)(cast("Any", Log()), *[nobody] * 6)
    server = PeerServer("127.0.0.1:0", broker_id=THERE, cluster_id=CLUSTER, services=services)
    await server.start()
    peers = (CallsOnly if tasks else TcpPeerChannel)(broker_id=HERE, cluster_id=CLUSTER)
    image = _image(server.address, partitions)
    router = LeaderRouter(cast("Any", SimpleNamespace(image=image)), peers, SystemClock())
    forwards = ForwardedProduces(
        HERE, lambda: image, nobody, cast("Any", Ids()), router, peers, SystemClock()
    )
    running = asyncio.get_running_loop().create_task(forwards.run())
    await asyncio.sleep(0)
    assert await forwards.acquire_producer_id(ACKS_ALL)
    records = decode_records(BODY)
    requests = [
        Append(
            partition=TopicIdPartition(TOPIC, PartitionId(number)),
            records=records,
            key_format=RecordFormat.JSON,
            value_format=RecordFormat.JSON,
            acks=ACKS_ALL,
            timeout_ms=30_000,
        )
        for number in range(partitions)
    ]
    await _turn(forwards, requests)
    yield partial(_turn, forwards, requests)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await peers.stop()
    await server.stop()


async def measure(partitions: int) -> list[float]:
    """Return µs of CPU per forwarded request, by tasks and posted; in turn, the least of each."""
    least = [float("inf")] * 2
    async with crossing(partitions, tasks=True) as one, crossing(partitions, tasks=False) as other:
        for _ in range(ROUNDS):
            for way, turn in enumerate((one, other)):
                began = time.thread_time()
                for _ in range(TURNS):
                    await turn()
                least[way] = min(least[way], time.thread_time() - began)
    return [seconds / TURNS / partitions * 1e6 for seconds in least]


async def _turn(forwards: ForwardedProduces, requests: list[Append]) -> None:
    all_told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    left = len(requests)

    def told(_base: int, error: KafkaError | None) -> None:
        nonlocal left
        assert error is None
        left -= 1
        if not left:
            all_told.set_result(None)

    for request in requests:
        assert forwards.take(request, told)
    await all_told


async def run() -> None:
    """Print the table."""
    print("| partitions in a turn | tasks, µs a crossing | posted |\n| --- | --- | --- |")
    for partitions in PARTITIONS:
        by_tasks, posted = await measure(partitions)
        print(f"| {partitions} | {by_tasks:.0f} | {posted:.0f} |")


def main() -> None:
    """Run on the product's event loop."""
    print(machine())
    run_loop(run())


if __name__ == "__main__":
    main()
