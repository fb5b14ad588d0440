"""Stages on one broker: those that it leads, and the way to those that others lead.

`Stages` keeps a `StageLeader` for each partition of `__staged` that is led here, and answers other
brokers' requests to them. `StageRequests` serves this broker: chunks of clients, the parts that a
home's decision may name, the rows that the leader of a target appends, and lists of what is staged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, TypeVar

from broker.coordinator.home import Missing
from broker.coordinator.led_shards import LedPartitions
from broker.record.lines import encode_lines
from broker.server.peer_codec import PeerRequestKind, join_body, split_body
from broker.server.row_targets import layout_of, seeded_keyless, target_rows
from broker.server.stage_leader import StageLeader, StagePorts, StageSettings, read_place
from broker.server.topics import LiveLimits
from broker.server.transaction_apis import StagedRow
from broker.server.transactions import home_partition, home_topic, transaction_limits
from broker.transactions import stage_messages
from broker.transactions.chunk_records import (
    ChunkKey,
    RowsChunk,
    position_numbers,
    stage_partition_of,
)
from broker.transactions.home_decisions import Part, StagedParts
from broker.transactions.home_records import StagedPlace, Target
from broker.transactions.messages import NO_GROUP
from broker.transactions.stage_index import ChunkHome, StageLimits
from broker.transactions.stage_messages import FindRefs, ReadStaged, StageBody, StageChunk
from raft_metadata.common.configs.table import (
    TRANSACTION_MAX_AGE_MS,
    TRANSACTION_MAX_BYTES,
    TRANSACTION_MAX_CHUNKS,
    TRANSACTION_MAX_PARTITIONS,
    TRANSACTION_STAGED_MAX_BYTES,
    TRANSACTION_STAGED_MOVE_BYTES,
)
from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome, StorageError
from raft_metadata.common.ids import PartitionId, TopicIdPartition
from raft_metadata.common.internal_topics import STAGED_TOPIC

if TYPE_CHECKING:
    from broker.config import BrokerConfig
    from broker.replication.replica_manager import ReplicaManager
    from broker.server.internal_topics import InternalTopics
    from broker.server.metadata_loader import MetadataLoader
    from broker.server.router import LeaderRouter
    from broker.server.row_targets import PlacedTopic, RowTargets
    from broker.server.transaction_apis import StageRequest, TopicRows
    from broker.transactions.messages import (
        AttemptNamed,
        LogPlace,
        StagedAttempt,
        TargetRows,
        TransactionalId,
    )
    from broker.transactions.stage_index import AttemptRefs
    from raft_metadata.common.clock import Clock
    from raft_metadata.common.configs.layers import ConfigLayers
    from raft_metadata.common.ids import LeaderEpoch
    from raft_metadata.image.metadata_image import (
        MetadataImage,
        PartitionRegistration,
        TopicImage,
    )

T = TypeVar("T")
KINDS: Final = frozenset(
    {
        PeerRequestKind.STAGE,
        PeerRequestKind.REFS,
        PeerRequestKind.READ_STAGED,
        PeerRequestKind.LIST_STAGED,
    }
)
"""Requests that `Stages.answer` takes."""
READ_TIMEOUT_MS: Final = 5_000
"""Time for a stage's leader to return rows; the unit is tried again."""
LIST_TIMEOUT_MS: Final = 5_000


class Stages:
    """The stage partitions that this broker leads.

    Owned by the `BrokerServer`, on its loop; `run` owns the task of each leader.
    """

    def __init__(
        self,
        ports: StagePorts,
        led_epoch: Callable[[TopicIdPartition], LeaderEpoch | None],
    ) -> None:
        self._ports = ports
        self._leaders = LedPartitions(STAGED_TOPIC, led_epoch, self._make_leader)

    def _make_leader(
        self, topic: TopicImage, partition: PartitionId, epoch: LeaderEpoch
    ) -> StageLeader:
        return StageLeader(TopicIdPartition(topic.topic_id, partition), epoch, self._ports)

    def on_metadata_update(self, image: MetadataImage) -> None:
        """Begin and end leaders by this broker's roles, which the replicas have taken already."""
        self._leaders.follow(image)

    async def run(self) -> None:
        """Own the leaders' tasks, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            self._leaders.start(tasks)
            await asyncio.Event().wait()

    def find(self, partition: PartitionId) -> StageLeader:
        """Return the leader of a stage partition; NOT_LEADER_OR_FOLLOWER if it is not led here."""
        leader = self._leaders.by_partition.get(partition)
        if leader is None:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return leader

    async def answer(self, kind: int, head: dict[str, Any], payload: bytes) -> StageBody:
        """Answer a request of another broker, of one of `KINDS`.

        Raises:
            KafkaError: INVALID_REQUEST for a malformed body, or the error of the request itself.
        """
        try:
            match kind:
                case PeerRequestKind.STAGE:
                    chunk = stage_messages.decode_stage(head, payload)
                    layout = await self.find(chunk.partition).stage(chunk)
                    return stage_messages.encode_staged(layout)
                case PeerRequestKind.REFS:
                    wanted = stage_messages.decode_find_refs(head)
                    refs = await self.find(wanted.partition).refs(wanted)
                    return stage_messages.encode_refs(refs)
                case PeerRequestKind.READ_STAGED:
                    read = stage_messages.decode_read_staged(head)
                    rows = await self.find(read.partition).read(read.places)
                    return stage_messages.encode_found_rows(rows)
                case _:
                    attempts = self.find(PartitionId(head["partition"])).attempts()
                    return stage_messages.encode_attempts(attempts)
        except (ValueError, TypeError) as error:
            text = f"malformed request of kind {kind}: {error}"
            raise KafkaError(ErrorCode.INVALID_REQUEST, text) from error


class StageRequests:
    """Requests to stages on the broker that has them, for clients, homes and targets.

    Owned by `RoutedBrokerApis`, on its loop. Stateless between requests. Implements
    `broker.coordinator.home.StagePort` and `broker.server.transaction_ports.StagedRows`.
    """

    def __init__(
        self,
        config: BrokerConfig,
        router: LeaderRouter,
        stages: Stages,
        loader: MetadataLoader,
        internal: InternalTopics,
        targets: RowTargets,
        manager: ReplicaManager,
        clock: Clock,
    ) -> None:
        self._config = config
        self._limits = LiveLimits(lambda: loader.image, config.static(), transaction_limits)
        self._router = router
        self._stages = stages
        self._loader = loader
        self._internal = internal
        self._targets = targets
        self._manager = manager
        self._clock = clock

    # ---- chunks of clients

    async def stage(self, request: StageRequest) -> list[StagedRow]:
        """Stage a chunk with acks=all (rule S9); a repeat of it does no harm.

        If a row is refused none is staged, and only refused rows have an error. The partition of a
        row is null if an earlier attempt chose others.

        Raises:
            KafkaError: MESSAGE_TOO_LARGE, THROTTLING_QUOTA_EXCEEDED, TRANSACTION_CONFLICT, and
                those of a produce.
        """
        deadline_ms = self._clock.monotonic_ms() + request.timeout_ms
        content = content_of(request.rows)
        self._check_size(len(content))
        name = "/".join((*request.id, request.attempt_id, str(request.chunk)))
        keyless = seeded_keyless(name, request.rows.partitioner)
        placed = await self._targets.place(request.rows, deadline_ms, keyless)
        refused = [one if isinstance(one, KafkaError) else None for one in placed.places]
        if any(refused):
            return [StagedRow(None, error) for error in refused]
        # The home must be there before anything is staged: it says what may go.
        await self._internal.for_first_write(home_topic(request.id))
        topic = await self._internal.for_first_write(STAGED_TOPIC)
        chunk = self._chunk(request, placed, content)
        layout = await self._send(topic, chunk, deadline_ms)
        is_first = layout == chunk.layout
        return [
            StagedRow(one if is_first and not isinstance(one, KafkaError) else None)
            for one in placed.places
        ]

    @staticmethod
    def _chunk(request: StageRequest, placed: PlacedTopic, content: bytes) -> RowsChunk:
        epoch, number = position_numbers(request.position)
        digest = blake2b(placed.topic.topic_id.encode() + content, digest_size=16)
        return RowsChunk(
            key=ChunkKey(request.id, epoch, number, request.attempt_id, request.chunk),
            targets=tuple(target_rows(placed)),
            digest=digest.hexdigest(),
            layout=layout_of([placed]),
        )

    def _check_size(self, size: int) -> None:
        limit = self._limits.now().chunk_bytes
        if size > limit:
            text = f"{size} bytes of rows, transaction.chunk.max.bytes is {limit}: stage fewer"
            raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, text)

    async def _send(self, topic: TopicImage, chunk: RowsChunk, deadline_ms: int) -> int:
        """Have the stage's leader append a chunk; return the layout of its first attempt."""
        key = chunk.key
        partition = stage_partition_of(key.id, key.attempt_id, topic.partitions_count)
        doubts: list[KafkaError] = []

        async def here(timeout_ms: int) -> int:
            sent = StageChunk(partition=partition, chunk=chunk, timeout_ms=timeout_ms)
            return await self._stages.find(partition).stage(sent)

        def body(timeout_ms: int) -> StageBody:
            sent = StageChunk(partition=partition, chunk=chunk, timeout_ms=timeout_ms)
            return stage_messages.encode_stage(sent)

        try:
            head = await self._routed(
                TopicIdPartition(topic.topic_id, partition),
                (PeerRequestKind.STAGE, body),
                here,
                lambda head, _: stage_messages.decode_staged(head),
                deadline_ms,
                doubts,
            )
        except KafkaError as error:
            if not doubts or error.outcome is Outcome.UNKNOWN:
                raise
            raise KafkaError(error.code, error.message, outcome=Outcome.UNKNOWN) from error
        return head

    # ---- for homes

    async def parts(
        self,
        id_: TransactionalId,
        at: tuple[int, int],
        attempts: Sequence[AttemptNamed],
        timeout_ms: int,
    ) -> StagedParts | Missing:
        """Return the committed parts of all attempts: in the order named, chunk by chunk.

        What is missing is proven by its stage's leader (rules G3, S9).
        """
        deadline_ms = self._clock.monotonic_ms() + timeout_ms
        topic = await self._internal.existing(STAGED_TOPIC)
        if topic is None:
            return Missing("nothing was ever staged in this cluster")
        by_stage: dict[PartitionId, list[AttemptNamed]] = {}
        for named in attempts:
            stage = stage_partition_of(id_, named.attempt_id, topic.partitions_count)
            by_stage.setdefault(stage, []).append(named)
        requests = [
            FindRefs(partition=stage, id=id_, epoch=at[0], number=at[1], attempts=tuple(some))
            for stage, some in by_stage.items()
        ]
        answers = await asyncio.gather(
            *(self._refs(topic, request, deadline_ms) for request in requests)
        )
        found: dict[str, tuple[PartitionId, AttemptRefs]] = {}
        for request, answer in zip(requests, answers, strict=True):
            for one in answer:
                if one.missing is not None:
                    return Missing(one.missing)
                found[one.attempt_id] = (request.partition, one)
        parts = [
            Part(Target(ref.target.topic_id, ref.target.partition), ref.target.rows, source)
            for named in attempts
            for stage, one in [found[named.attempt_id]]
            for ref in one.refs
            for source in [StagedPlace(stage, ref.at)]
        ]
        return StagedParts(parts, sum(one.size_bytes for _, one in found.values()))

    async def _refs(
        self, topic: TopicImage, request: FindRefs, deadline_ms: int
    ) -> tuple[AttemptRefs, ...]:
        async def here(_timeout_ms: int) -> tuple[AttemptRefs, ...]:
            return await self._stages.find(request.partition).refs(request)

        body = stage_messages.encode_find_refs(request)
        return await self._routed(
            TopicIdPartition(topic.topic_id, request.partition),
            (PeerRequestKind.REFS, lambda _: body),
            here,
            lambda head, _: stage_messages.decode_refs(head),
            deadline_ms,
        )

    # ---- for targets

    async def rows_of(self, places: Sequence[StagedPlace]) -> Sequence[TargetRows | None]:
        """Return the rows of each place; None where they are gone for good, as its leader proves.

        They come from this broker's own disk where it holds the stage below its own high watermark,
        else from the stage's leader.
        """
        deadline_ms = self._clock.monotonic_ms() + READ_TIMEOUT_MS
        topic = self._loader.image.topic(STAGED_TOPIC)
        if topic is None:
            raise KafkaError(
                ErrorCode.LEADER_NOT_AVAILABLE, f"{STAGED_TOPIC} is not known here yet"
            )
        found: dict[StagedPlace, TargetRows | None] = {}
        absent: dict[PartitionId, list[LogPlace]] = {}
        for place in sorted(set(places)):
            rows = await self._own_rows(topic, place)
            if rows is None:
                absent.setdefault(place.stage, []).append(place.at)
            else:
                found[place] = rows
        for stage, some in absent.items():
            found |= await self._fetched(topic, stage, some, deadline_ms)
        return [found[place] for place in places]

    async def _own_rows(self, topic: TopicImage, place: StagedPlace) -> TargetRows | None:
        """Return rows from this broker's own disk; None if the stage's leader must be asked."""
        replica = self._manager.replica(TopicIdPartition(topic.topic_id, place.stage))
        if replica is None or replica.log.failed is not None:
            return None
        if place.at.offset >= replica.partition.high_watermark:
            return None
        try:
            return await read_place(replica, place.at)
        except (KafkaError, StorageError):
            return None

    async def _fetched(
        self, topic: TopicImage, stage: PartitionId, places: list[LogPlace], deadline_ms: int
    ) -> Mapping[StagedPlace, TargetRows | None]:
        found: dict[StagedPlace, TargetRows | None] = {}
        while places:
            request = ReadStaged(partition=stage, places=tuple(places))
            rows = await self._read(topic, request, deadline_ms)
            found |= {StagedPlace(stage, at): one for at, one in zip(places, rows, strict=False)}
            places = places[len(rows) :]
        return found

    async def _read(
        self, topic: TopicImage, request: ReadStaged, deadline_ms: int
    ) -> list[TargetRows | None]:
        async def here(_timeout_ms: int) -> list[TargetRows | None]:
            return await self._stages.find(request.partition).read(request.places)

        body = stage_messages.encode_read_staged(request)
        return await self._routed(
            TopicIdPartition(topic.topic_id, request.partition),
            (PeerRequestKind.READ_STAGED, lambda _: body),
            here,
            stage_messages.decode_found_rows,
            deadline_ms,
        )

    # ---- lists

    async def attempts(self) -> list[tuple[TransactionalId, StagedAttempt]]:
        """Return the attempts that hold rows which no home has let go, of all stages."""
        topic = await self._internal.existing(STAGED_TOPIC)
        if topic is None:
            return []
        deadline_ms = self._clock.monotonic_ms() + LIST_TIMEOUT_MS
        found = await asyncio.gather(
            *(
                self._attempts_of(topic, PartitionId(number), deadline_ms)
                for number in range(topic.partitions_count)
            )
        )
        return [one for some in found for one in some]

    async def _attempts_of(
        self, topic: TopicImage, partition: PartitionId, deadline_ms: int
    ) -> stage_messages.Attempts:
        async def here(_timeout_ms: int) -> stage_messages.Attempts:
            return self._stages.find(partition).attempts()

        body = stage_messages.encode_list_staged(partition)
        return await self._routed(
            TopicIdPartition(topic.topic_id, partition),
            (PeerRequestKind.LIST_STAGED, lambda _: body),
            here,
            lambda head, _: stage_messages.decode_attempts(head),
            deadline_ms,
        )

    # ---- the way to a stage's leader

    async def _routed(
        self,
        place: TopicIdPartition,
        message: tuple[PeerRequestKind, Callable[[int], StageBody]],
        here: Callable[[int], Awaitable[T]],
        decode: Callable[[dict[str, Any], bytes], T],
        deadline_ms: int,
        doubts: list[KafkaError] | None = None,
    ) -> T:
        """Have a stage's leader answer, here or one hop away; every request may be repeated.

        ``message``: its kind, and the function that encodes it for the time that is left.
        """
        kind, body = message

        async def attempt(registration: PartitionRegistration, timeout_ms: int) -> T:
            if registration.leader == self._config.broker_id:
                return await here(timeout_ms)
            answer = await self._router.forward(
                place, registration, kind, join_body(*body(timeout_ms)), timeout_ms
            )
            return decode(*split_body(answer))

        return await self._router.routed(
            place, attempt, deadline_ms, repeat_unknown=True, doubts=doubts
        )


def content_of(rows: TopicRows) -> bytes:
    """Return all of a chunk's request that a repeat must bring again, as text (rule S7)."""
    formats = f"{rows.partition}/{int(rows.key_format)}/{int(rows.value_format)}\n".encode()
    return formats + encode_lines(rows.records)


def home_of_chunk(id_: TransactionalId, image: MetadataImage) -> ChunkHome:
    """Return the home of an id; LEADER_NOT_AVAILABLE while this image does not have its topic."""
    topic = image.topic(home_topic(id_))
    if topic is None:
        text = "the topic of the transaction's home is not known here yet"
        raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, text)
    return ChunkHome(id_.group != NO_GROUP, home_partition(id_, topic))


def stage_settings(layers: ConfigLayers) -> StageSettings:
    """Return the limits and times of stages, as the cluster's configs have them."""
    return StageSettings(
        limits=StageLimits(
            transaction_bytes=layers.number(TRANSACTION_MAX_BYTES),
            transaction_chunks=layers.number(TRANSACTION_MAX_CHUNKS),
            transaction_partitions=layers.number(TRANSACTION_MAX_PARTITIONS),
            staged_bytes=layers.number(TRANSACTION_STAGED_MAX_BYTES),
        ),
        age_max_ms=layers.number(TRANSACTION_MAX_AGE_MS),
        move_bytes=layers.number(TRANSACTION_STAGED_MOVE_BYTES),
    )
