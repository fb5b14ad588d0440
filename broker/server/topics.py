"""Topics: created, deleted, found. The active controller decides; ready before the answer.

`LiveConfigs` holds the configs that requests need, as the newest image has them.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from broker.server import forwarding
from raft_metadata.common.configs.table import (
    AUTO_CREATE_TOPICS_ENABLE,
    CLEANUP_POLICY,
    MAX_MESSAGE_BYTES,
    MESSAGE_TIMESTAMP_AFTER_MAX_MS,
    MESSAGE_TIMESTAMP_BEFORE_MAX_MS,
    MESSAGE_TIMESTAMP_TYPE,
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
    from raft_metadata.image.metadata_image import ConfigKey, MetadataImage, TopicImage


class TimestampLimits(NamedTuple):
    """How far the timestamp that a producer gives a record may be from now (KIP-937)."""

    before_max_ms: int
    after_max_ms: int


class LiveConfigs:
    """Owned by whoever asks. Keeps what it worked out until any config changes: produces ask."""

    def __init__(self, config: BrokerConfig) -> None:
        self._broker_id = config.broker_id
        self._static = config.static()
        self._configs: Mapping[ConfigKey, Mapping[str, str]] = {}
        self._max_message_bytes: dict[TopicId, int] = {}
        self._compacted: dict[TopicId, bool] = {}
        self._timestamps: dict[TopicId, TimestampLimits | None] = {}

    def max_message_bytes(self, image: MetadataImage, topic_id: TopicId) -> int:
        """The largest record the topic takes."""
        self._look_at(image)
        limit = self._max_message_bytes.get(topic_id)
        if limit is None:
            layers = topic_layers(image, topic_id, self._static, self._broker_id)
            limit = self._max_message_bytes[topic_id] = layers.number(MAX_MESSAGE_BYTES)
        return limit

    def is_compacted(self, image: MetadataImage, topic_id: TopicId) -> bool:
        """Whether the topic keeps the newest record of each key: then every record has one."""
        self._look_at(image)
        compacted = self._compacted.get(topic_id)
        if compacted is None:
            layers = topic_layers(image, topic_id, self._static, self._broker_id)
            compacted = "compact" in layers.word(CLEANUP_POLICY)
            self._compacted[topic_id] = compacted
        return compacted

    def timestamp_limits(self, image: MetadataImage, topic_id: TopicId) -> TimestampLimits | None:
        """None: any timestamp is taken, or none is kept (``message.timestamp.type=append``)."""
        self._look_at(image)
        if topic_id not in self._timestamps:
            layers = topic_layers(image, topic_id, self._static, self._broker_id)
            limits = TimestampLimits(
                layers.number(MESSAGE_TIMESTAMP_BEFORE_MAX_MS),
                layers.number(MESSAGE_TIMESTAMP_AFTER_MAX_MS),
            )
            kept = layers.word(MESSAGE_TIMESTAMP_TYPE) == "create"
            limited = kept and min(limits) < NO_TIMESTAMP_LIMIT
            self._timestamps[topic_id] = limits if limited else None
        return self._timestamps[topic_id]

    def _look_at(self, image: MetadataImage) -> None:
        if self._configs is not image.configs:
            self._configs, self._max_message_bytes, self._compacted = image.configs, {}, {}
            self._timestamps = {}

    def auto_create(self, image: MetadataImage) -> bool:
        """Whether a produce to an unknown topic creates it."""
        return cluster_layers(image, self._static).flag(AUTO_CREATE_TOPICS_ENABLE)


TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}\Z")
CATCH_UP_MS = 1_000
"""How long an unknown topic is looked for at the active controller before it counts as unknown."""
LOOK_AGAIN_S = 0.1
"""How soon an active controller is looked for again, while there is none."""
AUTO_CREATE_MS_MIN = 1_000
"""A first produce waits at least this long for its topic, whatever its own timeout: it takes some
100 ms, and one that was given up has to be found out about by the next produce."""
CREATE_TIMEOUT_MS = 5_000
"""How long an active controller is looked for to create or delete."""


class TopicRequests:
    """On the broker's loop. Holds the creations by first produce that are under way."""

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
        """Topics that a produce is creating; their result is what it ended with."""
        self._looking = asyncio.Lock()
        self._looks = 0
        self._found = (0, MetadataOffset(0))
        """The last look for an active controller that found one: its number, and what it said."""

    async def catch_up_with(self, topic: TopicName, partition: int = 0) -> None:
        """See `BrokerApis.catch_up_with_topic`."""
        found = self._loader.image.topic(topic)
        if found is not None and found.is_created and partition < found.partitions_count:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CATCH_UP_MS / 1000):
                await self._loader.wait_for(await self._newest_offset())
        if not self._loader.loaded.is_set():
            # It has just started and no controller answers: what it never heard of may well exist.
            text = f"no controller has told this broker yet whether topic {topic} exists"
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, text, outcome=Outcome.NOT_WRITTEN)

    async def _newest_offset(self) -> MetadataOffset:
        """The committed end, once there is an active controller: one may just be elected.

        Each asks once for itself, then one for all: an election is no time to be asked much. What
        was asked for before a request came is no answer to it.
        """
        came = self._looks
        with contextlib.suppress(KafkaError):
            return await self._loader.newest_offset()
        while True:
            async with self._looking:
                look, offset = self._found
                if look > came:
                    return offset
                await asyncio.sleep(LOOK_AGAIN_S)
                self._looks += 1
                look = self._looks
                with contextlib.suppress(KafkaError):
                    self._found = look, await self._loader.newest_offset()

    async def create(self, command: CreateTopic) -> TopicCreated:
        """See `BrokerApis.create_topic`."""
        check_topic_name(command.name)
        check_not_internal(command.name)
        return await self.create_internal(command)

    async def create_internal(self, command: CreateTopic) -> TopicCreated:
        """As `create`, also for what the cluster keeps for itself."""
        limit = self._config.limits.max_partitions_per_topic
        if command.partitions_count is not None and command.partitions_count > limit:
            text = f"{command.partitions_count} partitions, max_partitions_per_topic is {limit}"
            raise KafkaError(ErrorCode.INVALID_PARTITIONS, text)
        created = await self._controllers.create_topic(command, CREATE_TIMEOUT_MS)
        if not command.validate_only:
            try:
                async with asyncio.timeout(self._config.timeouts.topic_ready_ms / 1000):
                    await self.until_ready(created.topic_id, created.next_offset)
            except TimeoutError:
                text = f"topic {command.name} was created, but not every partition has a leader yet"
                raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, text) from None
        return created

    async def until_ready(self, topic_id: TopicId, offset: MetadataOffset, first: int = 0) -> None:
        """Until this image has the offset, and each partition a leader that knows of it.

        Those below ``first`` were there before: one of them may have no leader for long.
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
        """Until these brokers' images have the offset; one that does not answer is left alone."""
        async with asyncio.TaskGroup() as tasks:
            for broker in set(brokers) - {self._config.broker_id}:
                tasks.create_task(self._await_peer(broker, offset))

    async def _await_peer(self, leader: BrokerId, offset: MetadataOffset) -> None:
        registration = self._loader.image.brokers.get(leader)
        if registration is None:
            return
        body = forwarding.encode_await_metadata(offset)
        with contextlib.suppress(KafkaError):  # it may have died: produce routes around it
            await self._peers.call(
                leader, registration.peer, forwarding.AWAIT_METADATA, body, CATCH_UP_MS
            )

    async def delete(self, command: DeleteTopic) -> TopicDeleted:
        """See `BrokerApis.delete_topic`."""
        check_not_internal(command.name)
        deleted = await self._controllers.delete_topic(command, CREATE_TIMEOUT_MS)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._config.timeouts.topic_ready_ms / 1000):
                await self._loader.wait_for(deleted.next_offset)
        return deleted

    async def for_produce(self, name: TopicName, deadline_ms: int) -> TopicImage:
        """The topic to append to: found, caught up with, or created where that is allowed."""
        check_not_internal(name)
        topic = self._loader.image.topic(name)
        if topic is None:
            check_topic_name(name)
            await self.catch_up_with(name)
            topic = self._loader.image.topic(name)
        if topic is None:
            if not self._configs.auto_create(self._loader.image):
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
        """Create by the defaults, once for all requests that wait for the same name.

        What ends it ends all of them: who only waited would else be told that there is no such
        topic, which a client does not try again. But for the first one's deadline: whoever may
        wait longer goes on.
        """
        deadline_ms = max(deadline_ms, self._clock.monotonic_ms() + AUTO_CREATE_MS_MIN)
        failure: KafkaError | None = _GIVEN_UP
        while failure is _GIVEN_UP:
            remaining_ms = deadline_ms - self._clock.monotonic_ms()
            if remaining_ms <= 0:
                raise _not_written(name, _GIVEN_UP)
            under_way = self._creating.get(name)
            if under_way is None:
                failure = await self._create_for_all(name, remaining_ms)
            else:  # one that is cancelled leaves the others their future
                done, _ = await asyncio.wait([under_way], timeout=remaining_ms / 1000)
                failure = under_way.result() if done else _GIVEN_UP
        if failure is None:
            return
        if failure.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
            raise _not_written(name, failure)
        await self.catch_up_with(name)

    async def _create_for_all(self, name: TopicName, at_most_ms: int) -> KafkaError | None:
        """What it ended with, for those too who wait for it meanwhile."""
        failure: KafkaError | None = _GIVEN_UP
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


_GIVEN_UP = KafkaError(
    ErrorCode.LEADER_NOT_AVAILABLE, "it was not created in time", outcome=Outcome.NOT_WRITTEN
)
"""By whoever asked for the creation; compared by identity, never raised."""


def _not_written(name: TopicName, failure: KafkaError) -> KafkaError:
    """What the records of a topic that could not be created are told: they are surely not written.

    Whatever became of the topic. Too few live brokers is a state of the cluster here, not a wrong
    request: its default asks for more than live just now, and who tries again may find them.
    """
    code = failure.code
    if code is ErrorCode.INVALID_REPLICATION_FACTOR:
        code = ErrorCode.NOT_ENOUGH_REPLICAS
    elif code.retriable or failure.outcome is Outcome.UNKNOWN:
        code = ErrorCode.LEADER_NOT_AVAILABLE
    text = f"topic {name} can't be created now: {failure.message}"
    return KafkaError(code, text, outcome=Outcome.NOT_WRITTEN)


def check_not_internal(name: str) -> None:
    """Refuse to make, write or delete by hand what holds the groups."""
    if name in INTERNAL_TOPICS:
        text = f"{name} is the cluster's own: it is made on first use and written by coordinators"
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, text)


def check_topic_name(name: str) -> None:
    """Refuse a name that can't be a folder or a path segment (interfaces, section 4)."""
    if not TOPIC_NAME.match(name) or name in {".", ".."}:
        text = f"invalid topic name {name!r}: expected 1 to 249 of A-Z a-z 0-9 . _ -, not . or .."
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, text)
