"""Loader of the metadata log: reads it from any controller and publishes each new image, in order.

`MetadataLoader.run` long-polls one controller, folds its batches or its snapshot into a new image,
has the replicas take their roles by it, and then resolves all waits for an image. An image never
goes back, another cluster's records are refused, and a source that lost the quorum, is behind, or
lags is left for another one (rules M5, M6).
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import MetadataOffset, NodeId
from raft_metadata.image.metadata_delta import MetadataDelta
from raft_metadata.image.metadata_image import MetadataImage
from raft_metadata.image.snapshot import delta_from_snapshot
from raft_metadata.records.commands import (
    FetchMetadata,
    FetchMetadataAnswer,
    MetadataBatch,
    MetadataSnapshot,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from broker.config import BrokerConfig
    from broker.ports import ControllerChannel
    from raft_metadata.common.clock import Clock

_log = logging.getLogger("broker.metadata")

MAX_LEADER_CONTACT_AGE_MS = 1_000
"""Silence of a source's own leader after which another source is used (rule M6)."""
MAX_LAG_MS = 500
"""Time behind the committed offset of heartbeats after which another source is used (rule M6)."""
SOURCE_RETRY_MS = 50


class MetadataLoader:
    """Owner of the broker's image. ``run`` is its one task and publishes the images.

    Replicas follow a new image first, in steps between which the loop gets its turn. Only then it
    becomes this broker's image, so that code that waits for an image finds every role taken.
    """

    def __init__(
        self,
        config: BrokerConfig,
        controllers: ControllerChannel,
        clock: Clock,
        follow: Callable[[MetadataImage], Iterator[None]],
        publish: Callable[[MetadataImage, MetadataImage], None],
    ) -> None:
        """Take ``follow``, which gives replicas their roles, and ``publish`` of (before, after)."""
        self.image = MetadataImage()
        self.loaded = asyncio.Event()
        """Set once a source in contact with the quorum has been read to its end."""
        self.leader_id: NodeId | None = None
        self._config = config
        self._controllers = controllers
        self._clock = clock
        self._follow = follow
        self._publish = publish
        self._following = False
        self._source = config.broker_id % max(1, len(controllers.controllers))
        self._waiters: list[asyncio.Future[None]] = []
        self._behind_since_ms: int | None = None
        self._leave_source = False

    async def run(self) -> None:
        """Long-poll a controller, and the next one if it fails or lags; never returns."""
        while True:
            source = self._controllers.controllers[self._source]
            try:
                answer = await self._controllers.fetch_metadata(
                    source,
                    FetchMetadata(
                        cluster_id=self._config.cluster_id,
                        broker_id=self._config.broker_id,
                        from_offset=self.image.next_offset,
                        max_wait_ms=self._config.timeouts.metadata_fetch_wait_ms,
                    ),
                )
                await self._apply(answer)
            except KafkaError as error:
                _log.info("metadata source dropped controller=%d error=%s", source, error)
                await self._next_source()
                continue
            if self._leave_source:
                self._leave_source = False
                await self._next_source()

    async def _next_source(self) -> None:
        self._source = (self._source + 1) % len(self._controllers.controllers)
        await asyncio.sleep(SOURCE_RETRY_MS / 1000)

    async def _apply(self, answer: FetchMetadataAnswer) -> None:
        if answer.leader_contact_age_ms > MAX_LEADER_CONTACT_AGE_MS:
            raise KafkaError(ErrorCode.METADATA_STALE_SOURCE)
        if answer.end_offset < self.image.next_offset:
            raise KafkaError(ErrorCode.METADATA_BEHIND)
        self.leader_id = answer.leader_id
        if answer.snapshot is not None:
            # Half a second of work for 100,000 partitions; images are immutable.
            image = await asyncio.to_thread(_folded_snapshot, self.image, answer.snapshot)
            await self._set(image)
        if answer.batches:
            await self._set(_folded_batches(self.image, answer.batches))
        if self.image.next_offset >= answer.end_offset:
            self._behind_since_ms = None
            if not self.loaded.is_set():
                self.loaded.set()
                await self._set(self.image)

    async def _set(self, image: MetadataImage) -> None:
        """Publish an image.

        Until the log has been read to its end once, nothing is published: old states are no news.
        """
        before = self.image
        if not self.loaded.is_set():
            self.image = image
            return
        self._following = True
        try:
            for _ in self._follow(image):
                await asyncio.sleep(0)
            self.image = image
            self._publish(before, image)
        except KafkaError as error:  # not the source's error: the image is half applied here
            msg = f"metadata image at {image.next_offset} could not be applied: {error}"
            raise RuntimeError(msg) from error
        finally:
            self._following = False
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def changed(self) -> None:
        """Wait for the next image."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        await waiter

    async def wait_for(self, offset: MetadataOffset) -> MetadataImage:
        """Wait until the image holds everything below ``offset``, and return it."""
        while self.image.next_offset < offset:
            await self.changed()
        return self.image

    async def newest_offset(self) -> MetadataOffset:
        """Return the committed end of the log as the active controller knows it now.

        Raises NOT_CONTROLLER if no active controller answers.
        """
        order = list(self._controllers.controllers)
        if self.leader_id in order:
            order.remove(self.leader_id)
            order.insert(0, self.leader_id)
        for controller in order:
            try:
                answer = await self._controllers.fetch_metadata(
                    controller,
                    FetchMetadata(
                        cluster_id=self._config.cluster_id,
                        broker_id=self._config.broker_id,
                        from_offset=self.image.next_offset,
                        max_wait_ms=0,
                    ),
                )
            except KafkaError:
                continue
            if answer.leader_id == controller:
                return answer.end_offset
        raise KafkaError(ErrorCode.NOT_CONTROLLER, "no active controller answers")

    def note_committed(self, offset: MetadataOffset) -> None:
        """Take a heartbeat's committed offset; leave a source that lags behind it (rule M6)."""
        now_ms = self._clock.monotonic_ms()
        if self.image.next_offset >= offset or self._following:
            self._behind_since_ms = None  # a slow change of roles is not the source's fault
        elif self._behind_since_ms is None:
            self._behind_since_ms = now_ms
        elif now_ms - self._behind_since_ms > MAX_LAG_MS:
            self._behind_since_ms = now_ms
            self._leave_source = True


def _folded_snapshot(image: MetadataImage, snapshot: MetadataSnapshot) -> MetadataImage:
    """Return the image that a snapshot leads to; raise METADATA_BEHIND if it would go back."""
    _refuse_older(image, snapshot.next_offset, snapshot.epoch)
    delta = delta_from_snapshot(image, snapshot)
    return delta.apply(snapshot.next_offset, snapshot.epoch)


def _folded_batches(image: MetadataImage, batches: Sequence[MetadataBatch]) -> MetadataImage:
    """Return the image that all batches of an answer lead to.

    A single delta takes them all: a page of 600 changes to a topic of 10,000 partitions would
    otherwise copy the topic 600 times.
    """
    delta = MetadataDelta(image)
    end, epoch = image.next_offset, image.epoch
    for batch in batches:
        if batch.base_offset != end:
            text = f"batch at {batch.base_offset}, expected {end}"
            raise KafkaError(ErrorCode.METADATA_BEHIND, text)
        if batch.epoch < epoch:
            text = f"batch at {batch.base_offset} of epoch {batch.epoch}, this image is at {epoch}"
            raise KafkaError(ErrorCode.METADATA_BEHIND, text)
        delta.replay_all(batch.records, batch.base_offset)
        end, epoch = MetadataOffset(end + len(batch.records)), batch.epoch
    return delta.apply(end, epoch)


def _refuse_older(image: MetadataImage, offset: int, epoch: int) -> None:
    """Raise METADATA_BEHIND if the offer would take the image back (rule M5)."""
    if offset < image.next_offset or epoch < image.epoch:
        text = (
            f"source offers offset {offset} epoch {epoch}, this image is at "
            f"{image.next_offset} epoch {image.epoch}"
        )
        raise KafkaError(ErrorCode.METADATA_BEHIND, text)
