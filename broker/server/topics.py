"""Topics: creation, deletion and look-up, and the topic configs that requests need.

`RoutedBrokerApis` calls `TopicRequests`. The active controller decides; a creation is answered once
every partition has a ready leader. `LiveConfigs` and `LiveLimits` hold configs as the newest image
has them.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from broker.server import peer_codec
from broker.server.fetch import unproven_absence
from broker.server.peer_codec import PeerRequestKind
from raft_metadata.common.configs.table import (
    AUTO_CREATE_TOPICS_ENABLE,
    CLEANUP_POLICY,
    MAX_MESSAGE_BYTES,
    MESSAGE_TIMESTAMP_AFTER_MAX_MS,
    MESSAGE_TIMESTAMP_BEFORE_MAX_MS,
    MESSAGE_TIMESTAMP_TYPE,
    MIN_INSYNC_REPLICAS,
    NO_TIMESTAMP_LIMIT,
)
from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome
from raft_metadata.common.ids import (
    BrokerId,
    MetadataOffset,
    TopicId,
    TopicName,
    id_from_bytes,
)
from raft_metadata.common.internal_topics import INTERNAL_TOPICS
from raft_metadata.image.metadata_image import cluster_layers, topic_layers
from raft_metadata.records.commands import CreateTopic, DeleteTopic, TopicCreated, TopicDeleted

if TYPE_CHECKING:
    from broker.config import BrokerConfig
    from broker.ports import ControllerChannel, PeerChannel
    from broker.server.metadata_loader import MetadataLoader
    from raft_metadata.common.clock import Clock
    from raft_metadata.common.configs.layers import ConfigLayers
    from raft_metadata.image.metadata_image import ConfigKey, MetadataImage, TopicImage

T = TypeVar("T")


class TimestampLimits(NamedTuple):
    """Greatest distances of a producer's timestamp from now, in milliseconds (KIP-937)."""

    before_max_ms: int
    after_max_ms: int


class LiveConfigs:
    """Topic configs that produces need, kept until any config changes.

    Owned by its caller, on the broker's loop.
    """

    def __init__(self, config: BrokerConfig) -> None:
        self._broker_id = config.broker_id
        self._static = config.static()
        self._configs: Mapping[ConfigKey, Mapping[str, str]] = {}
        self._max_message_bytes: dict[TopicId, int] = {}
        self._compacted: dict[TopicId, bool] = {}
        self._timestamps: dict[TopicId, TimestampLimits | None] = {}
        self._append_times: dict[TopicId, bool] = {}
        self._min_isr: dict[TopicId, int] = {}

    def max_message_bytes(self, image: MetadataImage, topic_id: TopicId) -> int:
        """Return the size of the largest record that the topic takes."""
        self._look_at(image)
        limit = self._max_message_bytes.get(topic_id)
        if limit is None:
            layers = topic_layers(image, topic_id, self._static, self._broker_id)
            limit = self._max_message_bytes[topic_id] = layers.number(MAX_MESSAGE_BYTES)
        return limit

    def is_compacted(self, image: MetadataImage, topic_id: TopicId) -> bool:
        """Return whether the topic keeps each key's newest record; then each record needs a key."""
        self._look_at(image)
        compacted = self._compacted.get(topic_id)
        if compacted is None:
            layers = topic_layers(image, topic_id, self._static, self._broker_id)
            compacted = "compact" in layers.word(CLEANUP_POLICY)
            self._compacted[topic_id] = compacted
        return compacted

    def timestamp_limits(self, image: MetadataImage, topic_id: TopicId) -> TimestampLimits | None:
        """Return the topic's limits; None if any timestamp is taken, or none is kept.

        None is kept with ``message.timestamp.type=append``.
        """
        self._look_at(image)
        if topic_id not in self._timestamps:
            layers = topic_layers(image, topic_id, self._static, self._broker_id)
            limits = TimestampLimits(
                layers.number(MESSAGE_TIMESTAMP_BEFORE_MAX_MS),
                layers.number(MESSAGE_TIMESTAMP_AFTER_MAX_MS),
            )
            kept = not self.has_append_times(image, topic_id)
            limited = kept and min(limits) < NO_TIMESTAMP_LIMIT
            self._timestamps[topic_id] = limits if limited else None
        return self._timestamps[topic_id]

    def has_append_times(self, image: MetadataImage, topic_id: TopicId) -> bool:
        """Return whether the topic's records get the time at which the leader appended them."""
        self._look_at(image)
        found = self._append_times.get(topic_id)
        if found is None:
            layers = topic_layers(image, topic_id, self._static, self._broker_id)
            found = self._append_times[topic_id] = layers.word(MESSAGE_TIMESTAMP_TYPE) == "append"
        return found

    def min_isr(self, image: MetadataImage, topic_id: TopicId) -> int:
        """Return ``min.insync.replicas`` of the topic."""
        self._look_at(image)
        found = self._min_isr.get(topic_id)
        if found is None:
            layers = topic_layers(image, topic_id, self._static)
            found = self._min_isr[topic_id] = layers.number(MIN_INSYNC_REPLICAS)
        return found

    def _look_at(self, image: MetadataImage) -> None:
        if self._configs is not image.configs:
            self._configs, self._max_message_bytes, self._compacted = image.configs, {}, {}
            self._timestamps, self._append_times, self._min_isr = {}, {}, {}

    def auto_create(self, image: MetadataImage) -> bool:
        """Return whether a produce to an unknown topic creates it."""
        return cluster_layers(image, self._static).flag(AUTO_CREATE_TOPICS_ENABLE)


class LiveLimits(Generic[T]):
    """Limits that the cluster's configs set, kept until any config changes.

    Owned by its caller, on the broker's loop.
    """

    def __init__(
        self,
        image: Callable[[], MetadataImage],
        static: Mapping[str, str],
        read: Callable[[ConfigLayers], T],
    ) -> None:
        """Take ``read``, which reads the limits from the layers of the cluster's configs."""
        self._image = image
        self._static = static
        self._read = read
        self._configs: object = None
        self._limits: T | None = None

    def now(self) -> T:
        """Return the limits by the present image."""
        image = self._image()
        if self._limits is None or self._configs is not image.configs:
            self._configs = image.configs
            self._limits = self._read(cluster_layers(image, self._static))
        return self._limits


TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}\Z")
CATCH_UP_MS = 1_000
"""Time to find a topic at the active controller before it counts as unknown."""
LOOK_AGAIN_S = 0.1
"""Pause between attempts to find an active controller."""
AUTO_CREATE_MS_MIN = 1_000
"""Least time that a first produce waits for its topic, whatever its own timeout. A creation takes
some 100 ms, and the next produce would have to find out about one that was given up."""


class TopicRequests:
    """Creation, deletion and look-up of topics on the broker that received the request.

    Owned by `RoutedBrokerApis`, on its loop. Holds the creations by first produces that are under
    way.
    """

    def __init__(
        self,
        config: BrokerConfig,
        loader: MetadataLoader,
        controllers: ControllerChannel,
        peers: PeerChannel,
        clock: Clock,
        random_bytes: Callable[[int], bytes],
    ) -> None:
        self._config = config
        self._configs = LiveConfigs(config)
        self._loader = loader
        self._controllers = controllers
        self._peers = peers
        self._clock = clock
        self._random_bytes = random_bytes
        self._creating: dict[TopicName, asyncio.Future[KafkaError | None]] = {}
        """Topics that a produce is creating; the result is the creation's error, or None."""
        self._attempt_lock = asyncio.Lock()
        self._attempts = 0
        self._found = (0, MetadataOffset(0))
        """Number and result of the last attempt that found an active controller."""

    async def catch_up_with(self, topic: TopicName, partition: int = 0) -> None:
        """Wait up to `CATCH_UP_MS` for the newest image, if this one lacks the topic or partition.

        What the image lacks then does not exist.

        Raises:
            KafkaError: LEADER_NOT_AVAILABLE if it may exist: the image lacks it, and no active
                controller answers.
        """
        found = self._loader.image.topic(topic)
        if found is not None and found.is_created and partition < found.partitions_count:
            return
        is_newest = await self.look_for(topic)
        found = self._loader.image.topic(topic)
        if not is_newest and (found is None or partition >= found.partitions_count):
            raise unproven_absence(topic)

    async def look_for(self, topic: TopicName) -> bool:
        """Catch up before a missing topic is created; return whether this image is the newest.

        Raises LEADER_NOT_AVAILABLE if no image has been loaded yet: its configs are not known.
        """
        is_newest = await self.catch_up()
        if not self._loader.loaded.is_set():
            raise unproven_absence(topic)
        return is_newest

    async def catch_up(self) -> bool:
        """Wait up to `CATCH_UP_MS` for the active controller's newest image; False without it."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CATCH_UP_MS / 1000):
                await self._loader.wait_for(await self._newest_offset())
                return True
        return False

    async def _newest_offset(self) -> MetadataOffset:
        """Return the committed end of the metadata log, once there is an active controller.

        Each caller tries once for itself; after that a single caller tries for all, to spare the
        controllers during an election. A result counts only for requests that came before the
        attempt.
        """
        came = self._attempts
        with contextlib.suppress(KafkaError):
            return await self._loader.newest_offset()
        while True:
            async with self._attempt_lock:
                look, offset = self._found
                if look > came:
                    return offset
                await asyncio.sleep(LOOK_AGAIN_S)
                self._attempts += 1
                look = self._attempts
                with contextlib.suppress(KafkaError):
                    self._found = look, await self._loader.newest_offset()

    async def create(self, command: CreateTopic) -> TopicCreated:
        """Create a topic for a client; refuse invalid names and internal topics."""
        check_topic_name(command.name)
        check_not_internal(command.name)
        return await self.create_internal(command)

    async def create_internal(self, command: CreateTopic) -> TopicCreated:
        """Create a topic, internal ones included; return once its partitions have ready leaders."""
        limit = self._config.limits.max_partitions_per_topic
        if command.partitions_count is not None and command.partitions_count > limit:
            text = f"{command.partitions_count} partitions, max_partitions_per_topic is {limit}"
            raise KafkaError(ErrorCode.INVALID_PARTITIONS, text)
        created = await self._controllers.execute(command)
        if not command.validate_only:
            try:
                async with asyncio.timeout(self._config.timeouts.topic_ready_ms / 1000):
                    await self.until_ready(created.topic_id, created.next_offset)
            except TimeoutError:
                text = f"topic {command.name} was created, but not every partition has a leader yet"
                raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, text) from None
        return created

    async def until_ready(self, topic_id: TopicId, offset: MetadataOffset, first: int = 0) -> None:
        """Wait until this image has the offset, and each partition a leader that knows of it.

        Partitions below ``first`` existed before and are not awaited: one of them may have no
        leader for long.
        """
        await self._loader.wait_for(offset)
        while True:
            topic = self._loader.image.topics.get(topic_id)
            if topic is None:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, "the topic was deleted meanwhile")
            if topic.is_complete and all(p.has_leader for p in topic.partitions[first:]):
                break
            await self._loader.changed()
        now = self._loader.image.next_offset
        await self.until_known({p.leader for p in topic.partitions[first:]}, now)

    async def until_known(self, brokers: Iterable[BrokerId], offset: MetadataOffset) -> None:
        """Wait until these brokers' images have the offset; skip those that do not answer."""
        async with asyncio.TaskGroup() as tasks:
            for broker in set(brokers) - {self._config.broker_id}:
                tasks.create_task(self._await_peer(broker, offset))

    async def _await_peer(self, leader: BrokerId, offset: MetadataOffset) -> None:
        registration = self._loader.image.brokers.get(leader)
        if registration is None:
            return
        body = peer_codec.encode_await_metadata(offset)
        with contextlib.suppress(KafkaError):  # it may have died: another broker will lead
            await self._peers.call(
                leader, registration.peer, PeerRequestKind.AWAIT_METADATA, body, CATCH_UP_MS
            )

    async def delete(self, command: DeleteTopic) -> TopicDeleted:
        """Delete a topic; wait for this image to lose it, for at most ``topic_ready_ms``."""
        check_not_internal(command.name)
        deleted = await self._controllers.execute(command)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._config.timeouts.topic_ready_ms / 1000):
                await self._loader.wait_for(deleted.next_offset)
        return deleted

    async def for_produce(self, name: TopicName, deadline_ms: int) -> TopicImage:
        """Return the topic to append to; wait for it or create it, if it is missing."""
        check_not_internal(name)
        topic, is_newest = self._loader.image.topic(name), True
        if topic is None:
            check_topic_name(name)
            is_newest = await self.look_for(name)
            topic = self._loader.image.topic(name)
        if topic is None:
            if not self._configs.auto_create(self._loader.image):
                if not is_newest:
                    raise unproven_absence(name)
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic {name} not found")
            await self._auto_create(name, deadline_ms)
            topic = self._loader.image.topic(name)
        while topic is not None and not topic.is_created:
            await self._until_changed(deadline_ms)
            topic = self._loader.image.topic(name)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic {name} not found")
        return topic

    async def _auto_create(self, name: TopicName, deadline_ms: int) -> None:
        """Create a topic by the defaults, once for all requests that wait for the same name.

        A failure is the result of all of them: else those that only waited would report an unknown
        topic, which clients do not retry. If the creating request's own deadline ends first,
        requests that have more time go on.
        """
        deadline_ms = max(deadline_ms, self._clock.monotonic_ms() + AUTO_CREATE_MS_MIN)
        failure: KafkaError | None = _OUT_OF_TIME
        while failure is _OUT_OF_TIME:
            remaining_ms = deadline_ms - self._clock.monotonic_ms()
            if remaining_ms <= 0:
                raise _not_written(name, _OUT_OF_TIME)
            under_way = self._creating.get(name)
            if under_way is None:
                failure = await self._create_for_all(name, remaining_ms)
            else:  # `wait` does not cancel the future, which other requests share
                done, _ = await asyncio.wait([under_way], timeout=remaining_ms / 1000)
                failure = under_way.result() if done else _OUT_OF_TIME
        if failure is None:
            return
        if failure.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
            raise _not_written(name, failure)
        await self.catch_up_with(name)

    async def _create_for_all(self, name: TopicName, at_most_ms: int) -> KafkaError | None:
        """Create a topic; return the error, or None, here and to all requests that wait for it."""
        failure: KafkaError | None = _OUT_OF_TIME
        done = self._creating[name] = asyncio.get_running_loop().create_future()
        try:
            topic_id = TopicId(id_from_bytes(self._random_bytes(16)))
            async with asyncio.timeout(at_most_ms / 1000):
                await self.create(CreateTopic(name=name, topic_id=topic_id))
            failure = None
        except TimeoutError:
            pass
        except KafkaError as error:
            failure = error
        finally:
            del self._creating[name]
            done.set_result(failure)
        return failure

    async def _until_changed(self, deadline_ms: int) -> None:
        remaining_ms = deadline_ms - self._clock.monotonic_ms()
        try:
            async with asyncio.timeout(max(remaining_ms, 1) / 1000):
                await self._loader.changed()
        except TimeoutError:
            text = "the topic's creation is not complete"
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, text) from None


_OUT_OF_TIME = KafkaError(
    ErrorCode.LEADER_NOT_AVAILABLE, "it was not created in time", outcome=Outcome.NOT_WRITTEN
)
"""Result of a creation whose request ran out of time; compared by identity, never raised."""


def _not_written(name: TopicName, failure: KafkaError) -> KafkaError:
    """Return the error for records of a topic that could not be created: surely not written.

    That holds whatever became of the topic. Too few live brokers is a state of the cluster here,
    not a wrong request: its default needs more than live just now, and a retry may find them.
    """
    code = failure.code
    if code is ErrorCode.INVALID_REPLICATION_FACTOR:
        code = ErrorCode.NOT_ENOUGH_REPLICAS
    elif code.retriable or failure.outcome is Outcome.UNKNOWN:
        code = ErrorCode.LEADER_NOT_AVAILABLE
    text = f"topic {name} can't be created now: {failure.message}"
    return KafkaError(code, text, outcome=Outcome.NOT_WRITTEN)


def check_not_internal(name: str) -> None:
    """Refuse a client's creation, produce, trimming or deletion of an internal topic."""
    if name in INTERNAL_TOPICS:
        text = f"{name} is the cluster's own: only its leaders write, trim or delete it"
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, text)


def check_topic_name(name: str) -> None:
    """Refuse a name that can't be a folder or a path segment (interfaces, section 4)."""
    if not TOPIC_NAME.match(name) or name in {".", ".."}:
        text = f"invalid topic name {name!r}: expected 1 to 249 of A-Z a-z 0-9 . _ -, not . or .."
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, text)
