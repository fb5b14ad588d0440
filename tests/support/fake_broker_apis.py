"""`BrokerApis` in memory: real batches and rendering, no disk, no replication. For tests only."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, cast

import orjson

from broker.log.leader_epoch_cache import LeaderEpochCache
from broker.log.read_positions import PositionTruncatedError, find_divergence, next_epoch
from broker.record.batch import HEADER_SIZE, BatchSlice, RecordFormat, parse_header
from broker.record.compression import ZSTD, PackedSlice, lines_of, pack
from broker.record.lines import encode_batches, key_view, oversized
from broker.record.render import offset_of_line, splice_timestamps
from broker.server.health import ClusterHealth, Damage, judge, tally_partitions
from broker.server.local_partitions import check_seen
from broker.server.metadata_requests import MetadataLogPage, QuorumView
from broker.server.poll_messages import epochs_between, pages_in_room
from broker.server.produce import KeylessPlacement
from broker.server.requests import (
    ACKS_ALL,
    ACKS_NONE,
    UNKNOWN_EPOCH,
    DirectProduce,
    FetchRequest,
    FetchResult,
    OffsetsResult,
    OwnFacts,
    PartitionProgress,
    PollPage,
    PollRequest,
    PollRow,
    ProduceRequest,
    RecordResult,
)
from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome
from raft_metadata.common.ids import (
    BrokerId,
    ClusterId,
    LeaderEpoch,
    MetadataOffset,
    PartitionId,
    TopicId,
    TopicIdPartition,
    TopicName,
)
from raft_metadata.common.record_placement import partition_for_key, partition_of
from raft_metadata.image.image_view import Plain, image_at
from raft_metadata.image.metadata_image import (
    ConfigKey,
    MetadataImage,
    TopicImage,
)
from raft_metadata.records.commands import AlterAnswer, TopicCreated, TopicDeleted
from raft_metadata.records.records import BrokerState, ResourceType
from tests.support import registered
from tests.support.fake_transactions import FakeTransactions

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from broker.coordinator.group_messages import A, GroupDescription, GroupRequest
    from broker.record.lines import ProduceRecord
    from raft_metadata.common.record_placement import Partitioner
    from raft_metadata.records.commands import A as AdminAnswer
    from raft_metadata.records.commands import Command, CreateTopic, DeleteTopic

CLUSTER_ID = ClusterId("QuorumlogTestCluster01")
NOW_MS = 1_700_000_000_000
APPEND_MS = NOW_MS
NO_LEADER = KafkaError(
    ErrorCode.LEADER_NOT_AVAILABLE, "the partition has no leader", outcome=Outcome.NOT_WRITTEN
)
"""Result of a record for a partition without a leader."""


@dataclass
class FakePartition:
    """One log: slices as they were stored."""

    slices: list[BatchSlice] = field(default_factory=list)
    start: int = 0
    end: int = 0
    zstd: bool = False
    """What is appended from now on is stored compressed."""
    leader_epoch: int = 4
    """Epoch of what is appended from now on."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    # `EpochLog`

    @property
    def log_start_offset(self) -> int:
        return self.start

    @property
    def log_end_offset(self) -> int:
        return self.end

    @property
    def epoch_entries(self) -> list[tuple[int, int]]:
        return self._epochs().entries

    def epoch_at(self, offset: int) -> int:
        return self._epochs().epoch_of(offset) if offset < self.end else -1

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        return self._epochs().end_offset_for(epoch, self.start, self.end)

    def holds_record(self, from_offset: int, before_offset: int) -> bool:
        return from_offset < min(before_offset, self.end)

    def _epochs(self) -> LeaderEpochCache:
        epochs = LeaderEpochCache()
        for piece in self.slices:
            epochs.assign(piece.header.leader_epoch, piece.first_offset)
        epochs.truncate_from_start(self.start)
        return epochs


@dataclass
class HeldFetches:
    """Fetches wait until `go` is set."""

    waiting: int = 0
    go: asyncio.Event = field(default_factory=asyncio.Event)


class FakeDirect:
    """`DirectApis` over a fake: appends and reads at once, or says no, as the real one does.

    An append with acks=all is answered in the next turn of the loop.
    """

    def __init__(self, apis: FakeBrokerApis) -> None:
        self._apis = apis
        self.taken = 0
        """Requests answered this way."""
        self.fate: KafkaError | None = None
        """What becomes of an append that was taken."""
        self.fate_base = -1

    def produce(
        self,
        request: DirectProduce,
        answered: Callable[[PartitionId, int, KafkaError | None], None],
    ) -> bool:
        apis, partition = self._apis, request.partition
        topic = apis.image.topic(request.topic)
        if topic is None or apis.produce_error is not None or apis.record_errors:
            return False
        if partition is None:
            first = request.records[0]
            if len(request.records) > 1 or first.partition is not None:
                return False
            key, count = key_view(first, request.stored_as), len(topic.partitions)
            place = apis.keyless.next_of(topic) if key is None else partition_for_key(key, count)
            partition = PartitionId(place)
        if partition >= len(topic.partitions) or len(request.body) > apis.max_message_bytes:
            return False
        if not topic.partitions[partition].has_leader:
            return False
        self.taken += 1
        if self.fate is None:
            apis.requests.append(
                ProduceRequest(
                    topic=request.topic,
                    records=request.records,
                    key_format=request.stored_as,
                    value_format=request.stored_as,
                    partition=request.partition,
                    acks=request.acks,
                    timeout_ms=request.timeout_ms,
                )
            )
            log = apis.logs[request.topic, partition]
            base = log.end
            for record in request.records:
                apis.append_records(log, [record], request.stored_as, request.stored_as)
        else:
            base = self.fate_base
        if request.acks == ACKS_ALL:
            asyncio.get_running_loop().call_soon(answered, partition, base, self.fate)
        else:
            answered(partition, -1 if request.acks == ACKS_NONE else base, self.fate)
        return True

    def fetch(
        self,
        topic: TopicName,
        partition: PartitionId,
        offset: int,
        max_bytes: int,
        *,
        packed: bool = False,
        bare: bool = False,
        leader_epoch: int = UNKNOWN_EPOCH,
        seen_epoch: int = UNKNOWN_EPOCH,
    ) -> tuple[FetchResult, TopicImage] | None:
        apis = self._apis
        image, log = apis.image.topic(topic), apis.logs.get((topic, partition))
        if image is None or log is None or apis.held is not None or apis.fetch_error is not None:
            return None
        if not log.start <= offset < log.end or seen_epoch > log.leader_epoch:
            return None
        if leader_epoch != UNKNOWN_EPOCH and next_epoch(log, offset) not in {leader_epoch, -1}:
            return None
        self.taken += 1
        apis.requests.append(
            FetchRequest(
                topic=topic,
                partition=partition,
                offset=offset,
                max_bytes=max_bytes,
                packed=packed,
                leader_epoch=leader_epoch,
                seen_epoch=seen_epoch,
            )
        )
        result = apis.result_of(log, offset, max_bytes, packed=packed)
        if bare and not packed:
            result = replace(result, slices=(), lines=[piece.lines for piece in result.slices])
        return result, image


class FakeMetadata:
    """`MetadataApis`: the quorum as it is set, the log as it is set, the image of the fake."""

    def __init__(self, apis: FakeBrokerApis) -> None:
        self._apis = apis
        self.view: QuorumView | KafkaError = KafkaError(
            ErrorCode.NOT_CONTROLLER, "no controller answers"
        )
        self.page: MetadataLogPage | KafkaError = KafkaError(ErrorCode.NOT_CONTROLLER)
        self.asked: list[tuple[int, int]] = []

    async def quorum(self) -> QuorumView:
        if isinstance(self.view, KafkaError):
            raise self.view
        return self.view

    async def log(self, offset: MetadataOffset, max_wait_ms: int) -> MetadataLogPage:
        self.asked.append((offset, max_wait_ms))
        if isinstance(self.page, KafkaError):
            raise self.page
        return self.page

    async def image_at(self, path: Sequence[str]) -> tuple[MetadataOffset, Plain]:
        return self._apis.image.next_offset, image_at(self._apis.image, path)

    async def health(self) -> ClusterHealth:
        image, view = self._apis.image, self.view
        known = view if isinstance(view, QuorumView) else None
        leader = known.told_by if known is not None and known.is_from_leader else None
        states = {} if known is None else known.controllers
        numbered = {int(node): state for node, state in states.items()}
        return judge(image, tally_partitions(image, 2), leader, numbered or {101: None})


class FakeBrokerApis:
    """Broker 1 of three; brokers 1 and 2 live, 3 fenced. Faults are set as attributes."""

    def __init__(self, *, auto_create: bool = False) -> None:
        self.broker_id = BrokerId(1)
        self.cluster_id = CLUSTER_ID
        self.controller_id: int | None = 101
        self.image = MetadataImage(
            brokers=MappingProxyType(
                {
                    BrokerId(1): registered.broker(1),
                    BrokerId(2): registered.broker(2),
                    BrokerId(3): registered.broker(3, state=BrokerState.FENCED),
                }
            )
        )
        self.auto_create = auto_create
        self.logs: dict[tuple[str, int], FakePartition] = {}
        self.rows = [("node", True), ("metadata", True)]
        self.requests: list[object] = []
        self.produce_error: KafkaError | None = None
        self.record_errors: dict[int, KafkaError] = {}
        self.fetch_error: BaseException | None = None
        self.fetch_error_after_s = 0.0
        self.create_error: KafkaError | None = None
        self.caught_up: list[str] = []
        self.max_message_bytes = 1_048_576
        self.fetching = asyncio.Event()
        self.held: HeldFetches | None = None
        self.keyless = KeylessPlacement(bytes)
        """Begins with partition 0 of each topic."""
        self.metadata = FakeMetadata(self)
        self.direct = FakeDirect(self)
        self.transactions = FakeTransactions(self)
        self.group_answers: dict[type, object] = {}
        """What `group` answers to a request of this type; an exception is raised."""
        self.groups: list[GroupDescription] = []
        self.admin_answers: dict[type, object] = {}
        """What `admin` answers to a command of this type: an exception is raised, a function is
        called with the command."""
        self.static: dict[int, dict[str, str]] = {1: {"segment.bytes": "4096"}, 2: {}}
        """What each broker's own config.toml says; brokers not named here can't be asked."""
        self.shutdown_blocked_by: dict[int, str] = {}
        self.progress: dict[TopicIdPartition, PartitionProgress] = {}
        self.producer_ids = 4_000
        self.append_times: set[str] = set()
        """Topics whose records get the leader's time."""

    async def producer_id(self) -> int:
        """Each once, as the real ones."""
        self.producer_ids += 1
        return self.producer_ids

    # ------------------------------------------------------------ set-up

    def add_topic(self, name: str, partitions: int = 1, replication_factor: int = 2) -> None:
        replicas = tuple(range(1, 1 + replication_factor))
        registration = registered.partition(
            replicas, leader=1, epoch=4, isr=(1,), elr=replicas[1:2], partition_epoch=7, set_at=3
        )
        topic = TopicImage(
            name=TopicName(name),
            topic_id=TopicId(f"{name:x<22}"),
            partitions_count=partitions,
            partitions=(registration,) * partitions,
        )
        self.set_topics({**self.image.topics, topic.topic_id: topic})
        for number in range(partitions):
            self.logs[name, number] = FakePartition()

    def hold_fetches(self) -> HeldFetches:
        self.held = HeldFetches()
        return self.held

    def without_leader(self, name: str) -> None:
        topic = self.image.topic(TopicName(name))
        assert topic is not None
        leaderless = replace(topic.partitions[0], leader=BrokerId(-1))
        changed = replace(topic, partitions=(leaderless,) * topic.partitions_count)
        self.set_topics({**self.image.topics, topic.topic_id: changed})

    def change_partition(self, name: str, number: int, **changes: object) -> None:
        topic = self.image.topic(TopicName(name))
        assert topic is not None
        partitions = list(topic.partitions)
        partitions[number] = replace(partitions[number], **changes)  # type: ignore[arg-type]
        changed = replace(topic, partitions=tuple(partitions))
        self.set_topics({**self.image.topics, topic.topic_id: changed})

    def change_broker(self, number: int, **changes: object) -> None:
        broker_id = BrokerId(number)
        changed = replace(self.image.brokers[broker_id], **changes)  # type: ignore[arg-type]
        brokers = {**self.image.brokers, broker_id: changed}
        self.image = replace(self.image, brokers=MappingProxyType(brokers))

    def set_config(self, name: str, key: str, value: str) -> None:
        topic_id = self.image.topic_ids[TopicName(name)]
        configs: dict[ConfigKey, Mapping[str, str]] = {
            (ResourceType.TOPIC, topic_id): MappingProxyType({key: value})
        }
        self.image = replace(self.image, configs=MappingProxyType(configs))

    def set_cluster_configs(self, **values: str) -> None:
        """Configs that hold for all brokers; underscores stand for dots."""
        named = {name.replace("_", "."): value for name, value in values.items()}
        configs: dict[ConfigKey, Mapping[str, str]] = {
            (ResourceType.CLUSTER, ""): MappingProxyType(named)
        }
        self.image = replace(self.image, configs=MappingProxyType(configs))

    def set_topics(self, topics: dict[TopicId, TopicImage]) -> None:
        self.image = replace(
            self.image,
            topics=MappingProxyType(topics),
            topic_ids=MappingProxyType({topic.name: key for key, topic in topics.items()}),
        )

    # ------------------------------------------------------------ BrokerApis

    async def topic_for_produce(self, topic: TopicName, timeout_ms: int) -> TopicImage:
        found = self.image.topic(topic)
        if found is None and self.auto_create:
            self.add_topic(topic)
            found = self.image.topic(topic)
        if found is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic {topic} not found")
        return found

    def next_keyless(self, topic: TopicImage, partitioner: Partitioner) -> Callable[[], int]:
        return self.keyless.for_request(topic, partitioner)

    def record_time_ms(self, topic: TopicImage) -> int | None:
        return None if topic.name in self.append_times else NOW_MS

    async def produce(self, request: ProduceRequest) -> list[RecordResult]:
        self.requests.append(request)
        if self.produce_error is not None:
            raise self.produce_error
        topic = await self.topic_for_produce(request.topic, request.timeout_ms)
        if request.partition is not None and request.partition >= len(topic.partitions):
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        count = len(topic.partitions)
        if (most := max(record.partition or 0 for record in request.records)) >= count:
            text = f"Topic {topic.name} has no partition {most}: it has {count}, numbered from 0"
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text)
        next_keyless = self.next_keyless(topic, request.partitioner)
        results: list[RecordResult] = []
        large = oversized(request.records, self.max_message_bytes)
        for index, record in enumerate(request.records):
            error = self.record_errors.get(index)
            if index in large:
                error = KafkaError(ErrorCode.MESSAGE_TOO_LARGE)
            if error is not None:
                results.append(RecordResult(None, None, error))
                continue
            partition = request.partition
            if partition is None:
                key = key_view(record, request.key_format)
                place = partition_of(record.partition, key, len(topic.partitions), next_keyless)
                partition = PartitionId(place)
            if not topic.partitions[partition].has_leader:
                results.append(RecordResult(None, None, NO_LEADER))
                continue
            log = self.logs[request.topic, partition]
            self.append_records(log, [record], request.key_format, request.value_format)
            offset = -1 if request.acks == ACKS_NONE else log.end - 1
            results.append(RecordResult(partition, offset))
        return results

    def append_records(
        self,
        log: FakePartition,
        records: Sequence[ProduceRecord],
        key: RecordFormat,
        value: RecordFormat,
    ) -> None:
        for batch in encode_batches(
            records,
            key_format=key,
            value_format=value,
            base_offset=log.end,
            leader_epoch=log.leader_epoch,
            append_timestamp=APPEND_MS,
            durable_end=log.end,
            codec=ZSTD,
            pack=pack if log.zstd else None,
        ):
            header = parse_header(batch.raw)
            log.slices.append(
                BatchSlice(
                    header,
                    lines_of(header, batch.raw[HEADER_SIZE:]),
                    header.base_offset,
                    header.next_offset,
                    header.count,
                )
            )
            log.end = batch.next_offset
        log.changed.set()
        log.changed = asyncio.Event()

    async def fetch(self, request: FetchRequest) -> FetchResult:
        self.requests.append(request)
        self.fetching.set()
        if self.held is not None:
            self.held.waiting += 1
            await self.held.go.wait()
        if self.fetch_error is not None:
            if self.fetch_error_after_s:
                await asyncio.sleep(self.fetch_error_after_s)
            raise self.fetch_error
        log = self.logs[request.topic, request.partition]
        if request.topic_id not in {None, self.image.topic_ids[request.topic]}:
            raise KafkaError(ErrorCode.TOPIC_CHANGED)
        offset = request.offset
        if offset is None:
            assert request.timestamp_ms is not None
            offset = self._first_at(log, request.timestamp_ms)
        check_seen(LeaderEpoch(log.leader_epoch), request.seen_epoch)
        if request.leader_epoch != UNKNOWN_EPOCH:
            divergence = find_divergence(log, offset, request.leader_epoch)
            if divergence is not None:
                raise PositionTruncatedError(offset, request.leader_epoch, divergence)
        if not log.start <= offset <= log.end:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} is outside the log: it starts at {log.start} and ends at "
                f"{log.end}",
            )
        try:
            async with asyncio.timeout(request.max_wait_ms / 1000):
                while offset >= log.end:
                    await log.changed.wait()
        except TimeoutError:
            pass
        return self.result_of(log, offset, request.max_bytes, packed=request.packed)

    async def poll(self, request: PollRequest) -> list[PollPage]:
        """Pages of whole logs, cut where the room ends."""
        self.requests.append(request)
        if self.fetch_error is not None:
            raise self.fetch_error
        deadline_s = asyncio.get_running_loop().time() + request.max_wait_ms / 1000
        while True:
            changes = [log.changed.wait() for log in self.logs.values()]
            waits = [asyncio.ensure_future(change) for change in changes]
            rows = enumerate(request.rows)
            found = [page for number, row in rows if (page := self._page(number, row, request))]
            left_s = deadline_s - asyncio.get_running_loop().time()
            if not found and left_s > 0:
                await asyncio.wait(waits, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                wait.cancel()
            if found or left_s <= 0:
                return pages_in_room(found, request.max_bytes)

    def _page(self, number: int, row: PollRow, request: PollRequest) -> PollPage | None:
        log, topic_id = self.logs.get((row.topic, row.partition)), None
        try:
            if log is None:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "not here")
            topic_id = self.image.topic_ids[row.topic]
            if row.topic_id not in {None, topic_id}:
                raise KafkaError(ErrorCode.TOPIC_CHANGED)
            if row.leader_epoch != UNKNOWN_EPOCH:
                divergence = find_divergence(log, row.offset, row.leader_epoch)
                if divergence is not None:
                    raise PositionTruncatedError(row.offset, row.leader_epoch, divergence)
            if not log.start <= row.offset <= log.end:
                raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
        except KafkaError as error:
            return PollPage(number, topic_id, error)
        if row.offset == log.end:
            return None
        result = self.result_of(log, row.offset, request.max_partition_bytes, packed=request.packed)
        if not request.news_only:
            return PollPage(number, topic_id, result)
        epochs = epochs_between(log.epoch_entries, row.offset, log.end)
        return PollPage(number, topic_id, replace(result, slices=(), packed=()), tuple(epochs))

    def _first_at(self, log: FakePartition, timestamp_ms: int) -> int:
        for piece in log.slices:
            lines = splice_timestamps(piece).splitlines()
            for number, line in enumerate(lines, piece.first_offset):
                if number >= log.start and orjson.loads(line)["timestamp"] >= timestamp_ms:
                    return number
        return log.end

    def result_of(
        self, log: FakePartition, offset: int, max_bytes: int, *, packed: bool
    ) -> FetchResult:
        """Whole batches, at least one, as long as they fit."""
        found: list[BatchSlice] = []
        for piece in log.slices:
            if piece.next_offset > offset:
                max_bytes -= len(piece.lines)
                if found and max_bytes < 0:
                    break
                found.append(piece)
        if found:
            first = found[0]
            kept = [
                line
                for line in bytes(first.lines).splitlines(keepends=True)
                if offset_of_line(line, 0) >= offset
            ]
            found[0] = first._replace(
                lines=b"".join(kept),
                first_offset=max(offset, first.first_offset),
                count=len(kept),
            )
        frames = [
            PackedSlice.whole(piece.header, pack(piece.lines) or b"")
            if piece.header.is_compressed and piece.first_offset >= offset
            else piece
            for piece in found
        ]
        packed = packed and any(isinstance(piece, PackedSlice) for piece in frames)
        return FetchResult(
            slices=() if packed else found,
            packed=frames if packed else (),
            high_watermark=log.end,
            log_start_offset=log.start,
            next_offset=found[-1].next_offset if found else offset,
            next_leader_epoch=next_epoch(log, found[-1].next_offset if found else offset),
            leader_id=BrokerId(1),
            leader_epoch=LeaderEpoch(log.leader_epoch),
        )

    async def offsets(
        self, topic: TopicName, partition: PartitionId, seen_epoch: int = UNKNOWN_EPOCH
    ) -> OffsetsResult:
        log = self.logs[topic, partition]
        check_seen(LeaderEpoch(log.leader_epoch), seen_epoch)
        return OffsetsResult(
            beginning_offset=log.start,
            end_offset=log.end,
            end_leader_epoch=next_epoch(log, log.end),
        )

    async def delete_records(self, topic: TopicName, partition: PartitionId, before: int) -> int:
        log = self.logs[topic, partition]
        offset = log.end if before == -1 else before
        if not 0 <= offset <= log.end:
            text = f"can't delete up to offset {offset}: log start offset {log.start}, "
            text += f"high watermark {log.end}"
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, text)
        log.start = max(log.start, offset)
        return log.start

    async def create_topic(self, command: CreateTopic) -> TopicCreated:
        self.requests.append(command)
        if self.create_error is not None:
            raise self.create_error
        if self.image.topic(command.name) is not None:
            raise KafkaError(
                ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{command.name}' already exists."
            )
        partitions = command.partitions_count or 1
        factor = command.replication_factor or 1
        if not command.validate_only:
            self.add_topic(command.name, partitions, factor)
        return TopicCreated(
            topic_id=TopicId(f"{command.name:x<22}"),
            partitions_count=partitions,
            replication_factor=factor,
            next_offset=MetadataOffset(9),
        )

    async def delete_topic(self, command: DeleteTopic) -> TopicDeleted:
        topic = self.image.topic(command.name)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        rest = {key: value for key, value in self.image.topics.items() if key != topic.topic_id}
        self.set_topics(rest)
        return TopicDeleted(topic_id=topic.topic_id, next_offset=MetadataOffset(10))

    async def admin(self, command: Command[AdminAnswer]) -> AdminAnswer:
        self.requests.append(command)
        answer = self.admin_answers.get(type(command), AlterAnswer(next_offset=MetadataOffset(11)))
        if callable(answer):
            answer = answer(command)
        if isinstance(answer, BaseException):
            raise answer
        return cast("AdminAnswer", answer)

    async def replication_progress(
        self, partitions: Sequence[TopicIdPartition]
    ) -> dict[TopicIdPartition, PartitionProgress]:
        return {place: self.progress[place] for place in partitions if place in self.progress}

    async def own_facts(self, broker_id: BrokerId) -> OwnFacts:
        if broker_id not in self.static:
            raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, f"broker {broker_id} is silent")
        return OwnFacts(
            static_configs=self.static[broker_id],
            shutdown_blocked_by=self.shutdown_blocked_by.get(broker_id, ""),
            damage=Damage(count=0, partitions=()),
        )

    async def group(self, request: GroupRequest[A]) -> A:
        self.requests.append(request)
        answer = self.group_answers.get(type(request))
        if isinstance(answer, BaseException):
            raise answer
        return cast("A", answer)

    async def list_groups(self) -> list[GroupDescription]:
        return self.groups

    async def catch_up_with_topic(self, topic: TopicName, partition: int = 0) -> None:
        self.caught_up.append(topic)

    def readiness(self) -> list[tuple[str, bool]]:
        return self.rows

    def topic_defaults(self) -> dict[str, str]:
        return {"min.insync.replicas": "1", "max.message.bytes": "1048576"}
