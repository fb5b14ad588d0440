"""Waits for what comes behind the ends of partitions: one fetch a partition, for all tails of it.

A tail that has read a partition to its end joins the partition's watch. The watch is one fetch that
waits at that end, at whichever broker leads; when it returns, with records or with a reason why
there will be none, it wakes the tails, and each reads for itself. So a thousand idle tails of a
topic cost this broker and the leaders one waiting fetch a partition, and no tail waits for another:
nothing is handed from one to the other but the news that there is something to read.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from broker.server.requests import UNKNOWN_EPOCH, FetchRequest
from raft_metadata.common.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from broker.server.requests import BrokerApis
    from raft_metadata.common.ids import PartitionId, TopicId, TopicName
    from raft_metadata.image.metadata_image import MetadataImage

_log = logging.getLogger("http_api.server")

WATCH_MS: Final = 30_000
"""Longest wait of one fetch of a watch; the next one follows it."""
RETRY_S: Final = 0.25
"""Pause of a watch behind a failure that passes: a partition without a leader, for example."""
GROWTH_CHECK_S: Final = 0.5
"""Time between two looks at the number of partitions of a topic that is read as a whole."""


class TailReader(Protocol):
    """The tail that a watch wakes; compared by identity."""

    def wake(self, partition: PartitionId) -> None:
        """Take the news that there may be something to read in this partition. Must not raise."""
        ...

    def topic_changed(self) -> None:
        """Take the news that the topic has more partitions, or is gone. Must not raise."""
        ...


@dataclass(frozen=True, slots=True)
class WatchedPlace:
    """A place at the end of a partition, as a reader knows it."""

    topic: TopicName
    topic_id: TopicId
    partition: PartitionId
    offset: int
    leader_epoch: int = UNKNOWN_EPOCH
    """Epoch of ``offset``."""
    seen_epoch: int = UNKNOWN_EPOCH
    """The largest leader epoch that the reader has seen."""


class PartitionWatches:
    """The watches of one listener. Owner: the app, on its loop; `stop` ends their tasks."""

    def __init__(self, apis: BrokerApis) -> None:
        self._apis = apis
        self._watches: dict[tuple[TopicId, PartitionId], _Watch] = {}
        self._growth: dict[TailReader, tuple[TopicName, TopicId, int]] = {}
        self._growing: asyncio.Task[None] | None = None
        self._compared: MetadataImage | None = None
        """Image that every entry of ``_growth`` was compared with."""
        self._ended: set[asyncio.Task[None]] = set()
        """Tasks that were cancelled and have not ended yet."""

    @property
    def watched(self) -> int:
        """The number of partitions at whose ends a fetch waits."""
        return len(self._watches)

    def join(self, reader: TailReader, place: WatchedPlace) -> None:
        """Have ``reader`` woken once, when there may be something to read at ``place``.

        The watch waits at the lowest of its readers' places: then none is woken too late, and one
        that is farther may be woken for nothing.
        """
        key = (place.topic_id, place.partition)
        watch = self._watches.get(key)
        if watch is None:
            watch = self._watches[key] = _Watch(place, {reader: None})
        else:
            watch.readers[reader] = None
            if place.offset >= watch.place.offset:
                return
            watch.place = place
            self._cancel(watch.task)
        watch.task = asyncio.get_running_loop().create_task(self._run(key, watch))

    def leave(self, reader: TailReader, topic_id: TopicId, partition: PartitionId) -> None:
        """Forget a reader; a watch without readers ends."""
        watch = self._watches.get((topic_id, partition))
        if watch is None:
            return
        watch.readers.pop(reader, None)
        if not watch.readers:
            del self._watches[topic_id, partition]
            self._cancel(watch.task)

    def watch_growth(
        self, reader: TailReader, topic: TopicName, topic_id: TopicId, partitions: int
    ) -> None:
        """Tell ``reader`` when the topic has another number of partitions than this, or is gone."""
        self._growth[reader] = (topic, topic_id, partitions)
        self._compared = None
        if self._growing is None:
            self._growing = asyncio.get_running_loop().create_task(self._look_for_growth())

    def ignore_growth(self, reader: TailReader) -> None:
        """Forget a reader of `watch_growth`; harmless if it is not known."""
        self._growth.pop(reader, None)

    async def stop(self) -> None:
        """End every watch without waking its readers."""
        for watch in self._watches.values():
            self._cancel(watch.task)
        self._watches.clear()
        self._cancel(self._growing)
        self._growth.clear()
        if self._ended:
            await asyncio.wait(self._ended)

    def _cancel(self, task: asyncio.Task[None] | None) -> None:
        if task is not None and not task.done():
            self._ended.add(task)
            task.add_done_callback(self._ended.discard)
            task.cancel()

    async def _run(self, key: tuple[TopicId, PartitionId], watch: _Watch) -> None:
        """Wait until there is something to read, or surely nothing; then wake all readers."""
        try:
            while not await self._has_news(watch.place):
                pass
        except Exception:  # noqa: BLE001 the readers find out what it is, each by its own read
            _log.exception("watch failed topic=%s", watch.place.topic)
        if self._watches.get(key) is watch:
            del self._watches[key]
        for reader in watch.readers:
            reader.wake(watch.place.partition)

    async def _has_news(self, place: WatchedPlace) -> bool:
        request = FetchRequest(
            topic=place.topic,
            partition=place.partition,
            offset=place.offset,
            max_bytes=1,
            max_wait_ms=WATCH_MS,
            leader_epoch=place.leader_epoch,
            seen_epoch=place.seen_epoch,
            topic_id=place.topic_id,
        )
        if is_leaderless(self._apis.image, place.topic, place.topic_id, place.partition):
            await asyncio.sleep(RETRY_S)
            return False
        try:
            result = await self._apis.fetch(request)
        except KafkaError as error:
            # A newer leader was seen by one reader, which gets this error too; the others go on.
            if is_passing(error) and error.code is not ErrorCode.UNKNOWN_LEADER_EPOCH:
                await asyncio.sleep(RETRY_S)
                return False
            return True
        return result.next_offset > place.offset

    async def _look_for_growth(self) -> None:
        """Look at the watched topics while there are any, and tell the readers of those changed."""
        while self._growth:
            await asyncio.sleep(GROWTH_CHECK_S)
            image = self._apis.image
            if image is self._compared:
                continue
            self._compared = image
            for reader, (name, topic_id, partitions) in list(self._growth.items()):
                topic = image.topic(name)
                if (
                    topic is None
                    or topic.topic_id != topic_id
                    or len(topic.partitions) > partitions
                ):
                    del self._growth[reader]
                    reader.topic_changed()
        self._growing = None


def is_passing(error: KafkaError) -> bool:
    """Return True for a failure after which the same read may succeed: no reason to end a tail."""
    return error.code.retriable and error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def is_leaderless(
    image: MetadataImage, name: TopicName, topic_id: TopicId, partition: PartitionId
) -> bool:
    """Return True if this broker knows that nothing can be read of a partition at present."""
    topic = image.topic(name)
    if topic is None or topic.topic_id != topic_id or partition >= len(topic.partitions):
        return False
    return not topic.partitions[partition].has_leader


@dataclass(slots=True)
class _Watch:
    """One fetch that waits, and those it is for."""

    place: WatchedPlace
    readers: dict[TailReader, None]
    """Keys in the order of joining; a dict, because a set has no order."""
    task: asyncio.Task[None] | None = None
