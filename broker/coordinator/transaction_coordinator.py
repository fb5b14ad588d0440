"""The homes of all transactions that this broker decides.

Requests arrive from `BrokerApis.transactions` of any broker. A home is a partition of
`__transaction_state` that is led here, with a shard of its own, or one of `__consumer_offsets`,
whose shard the `GroupCoordinator` owns: it makes a `Home` for each, by the factory here, and passes
requests on. Refusals that a client may believe for good are answered only with proof that this
broker still leads (rule G3).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from broker.coordinator.home import Home, HomePorts, OffsetsPort
from broker.coordinator.led_shards import Leading, LedShards, MakeLog
from broker.coordinator.transaction_shard import TransactionShard
from broker.coordinator.troubles import ShardTroubles, loading_troubles, with_waiting
from broker.record.numbering import HomeKind, make_numbering
from broker.transactions.home_messages import HomeRequest
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import LeaderEpoch, PartitionId, TopicIdPartition
from raft_metadata.common.internal_topics import TRANSACTIONS_TOPIC

if TYPE_CHECKING:
    from broker.coordinator.completion import Work
    from broker.coordinator.runtime import Proof, ShardRuntime
    from broker.transactions.home_decisions import ChunkPlaced
    from broker.transactions.messages import TransactionDescription, TransactionState
    from raft_metadata.common.clock import Clock
    from raft_metadata.image.metadata_image import MetadataImage, TopicImage

A = TypeVar("A")

TICK_MS = 1_000
"""Time between two looks for old keys and ids."""


LOGGED_ERRORS = frozenset(
    {
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.TRANSACTION_CONFLICT,
        ErrorCode.TRANSACTION_ABORTED,
        ErrorCode.TRANSACTION_SUPERSEDED,
        ErrorCode.OFFSET_NOT_EXPECTED,
        ErrorCode.STAGE_INCOMPLETE,
        ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)
"""Refusals that read the state of a home: a newer one might not give them."""


class HomeFactory:
    """Maker of homes, and owner of the tasks that send to their targets.

    Owned by the `BrokerServer`; `run` before any shard runs.
    """

    def __init__(self, ports: HomePorts) -> None:
        self._ports = ports
        self._tasks: asyncio.TaskGroup | None = None

    async def run(self) -> None:
        """Own the tasks of all homes, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            await asyncio.Event().wait()

    def make(
        self,
        shard: ShardRuntime[Any],
        kind: HomeKind,
        topic: TopicImage,
        offsets: OffsetsPort | None = None,
    ) -> Home:
        """Return the home of a shard, numbered under its partition's last unclean epoch (S4)."""
        registration = topic.partitions[shard.partition]
        numbering = make_numbering(kind, shard.partition, registration.unclean_epoch)
        return Home(shard, numbering, replace(self._ports, offsets=offsets), self._start)

    def _start(self, work: Work) -> asyncio.Task[None]:
        assert self._tasks is not None, "homes are loaded once the factory runs"
        return self._tasks.create_task(work, name="transaction-target")


async def answer_proven(
    shard: ShardRuntime[Any],
    home: Home,
    proof: Proof,
    request: HomeRequest[A],
    errors: Collection[ErrorCode] = LOGGED_ERRORS,
) -> A:
    """Return a home's answer; a refusal that reads its state, by its code, is proven first."""
    try:
        return await home.answer(request)
    except KafkaError as error:
        if error.code not in errors:
            raise
        refusal = error
    await shard.confirm(proof)
    raise refusal


async def word_proven(
    shard: ShardRuntime[Any], home: Home, proof: Proof, chunk: ChunkPlaced
) -> bool:
    """Return whether a stage may let a chunk go (rule S10).

    Raises:
        KafkaError: NOT_COORDINATOR, also if that can't be proven: a newer home may have forgotten
            the id, and decided it anew with this chunk (rule G3).
    """
    is_free = await home.may_go(chunk)
    if is_free:
        await shard.confirm(proof)
    return is_free


class TransactionCoordinator:
    """The shards of the led partitions of `__transaction_state`, and the requests to them.

    Owned by the `BrokerServer`, on its event loop; `run` owns every task.
    """

    def __init__(
        self,
        factory: HomeFactory,
        proof: Proof,
        leading: Leading,
        make_log: MakeLog,
        clock: Clock,
        *,
        is_clock_trusted: Callable[[], bool] = lambda: True,
    ) -> None:
        self._factory = factory
        self._proof = proof
        self._make_log = make_log
        self._clock = clock
        self._is_clock_trusted = is_clock_trusted
        self._homes: dict[PartitionId, Home] = {}
        self._shards = LedShards(TRANSACTIONS_TOPIC, leading, self._make_shard, self._close)

    def on_metadata_update(self, image: MetadataImage) -> None:
        """Open and close shards by this broker's roles, which the replicas have taken already."""
        self._shards.follow(image)

    def _make_shard(
        self, topic: TopicImage, partition: PartitionId, epoch: LeaderEpoch
    ) -> TransactionShard:
        log = self._make_log(TopicIdPartition(topic.topic_id, partition), epoch)
        shard = TransactionShard(partition, epoch, log, self._clock, self._is_clock_trusted)
        self._homes[partition] = self._factory.make(shard, HomeKind.TRANSACTIONS, topic)
        return shard

    def _close(self, shard: TransactionShard) -> None:
        self._homes.pop(shard.partition).close()

    async def run(self) -> None:
        """Own the shards' tasks and pass time to the homes, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            self._shards.start(tasks)
            while True:
                for home in self._homes.values():
                    home.tick()
                await asyncio.sleep(TICK_MS / 1000)

    async def answer(self, partition: PartitionId, request: HomeRequest[A]) -> A:
        """Return the answer to a request about an id of a home that is led here.

        Raises:
            KafkaError: NOT_COORDINATOR or COORDINATOR_LOAD_IN_PROGRESS (nothing was done), or an
                error of the request.
        """
        shard = self._shards.find(partition)
        return await answer_proven(shard, self._homes[partition], self._proof, request)

    async def may_go(self, partition: PartitionId, chunk: ChunkPlaced) -> bool:
        """Return whether a stage may let a chunk go: see `word_proven`."""
        shard = self._shards.find(partition)
        return await word_proven(shard, self._homes[partition], self._proof, chunk)

    async def descriptions(
        self, partition: PartitionId, state: TransactionState | None
    ) -> list[TransactionDescription]:
        """Return the ids of one home in a state, or all."""
        shard = self._shards.find(partition)
        found = self._homes[partition].descriptions(state)
        await shard.settled()
        return found

    def troubles(self) -> tuple[ShardTroubles, ...]:
        """Return the reports on the homes that have something to report."""
        reports = [
            with_waiting(
                loading_troubles(number, shard.loading_ms, TRANSACTIONS_TOPIC),
                self._homes[number].waiting(),
            )
            for number, shard in sorted(self._shards.by_partition.items())
        ]
        return tuple(one for one in reports if one.is_any)

    @property
    def homes(self) -> list[tuple[PartitionId, Home]]:
        """The homes that are led here, with their partitions."""
        return sorted(self._homes.items())
