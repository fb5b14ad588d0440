"""Follows the metadata log from any controller and publishes each new image, in order.

Rules M5 and M6: the image never goes back, another cluster's records are refused, and a source that
lost the quorum, is behind, or lags is left for another one.
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
"""A source whose own leader has been silent for longer is left (rule M6)."""
MAX_LAG_MS = 500
"""Behind the committed offset that heartbeats report for longer: another source (rule M6)."""
SOURCE_RETRY_MS = 50


class MetadataLoader:
    """Owns the broker's image. ``run`` is its one task; publishing happens inside it.

    An image is followed first, in steps between which the loop gets its turn: only then is it this
    broker's image, and whoever waits for it finds every role taken.
    """

    def __init__(
        self,
        config: BrokerConfig,
        controllers: ControllerChannel,
        clock: Clock,
        follow: Callable[[MetadataImage], Iterator[None]],
        publish: Callable[[MetadataImage, MetadataImage], None],
    ) -> None:
        """``follow`` gives replicas their roles; then ``publish`` tells of (before, after)."""
        self.image = MetadataImage()
        self.loaded = asyncio.Event()
        """A source that is in contact with the quorum has been read to its end once."""
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
        """Long-poll one controller after the other, for ever."""
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
                _log.info("metadata source left controller=%d error=%s", source, error)
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
        """Publish; but history that is read at the start is no news: only where it leads to is."""
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
        except KafkaError as error:  # of this broker, not of the source: the image was half applied
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
        """Wait until everything below ``offset`` is in the image."""
        while self.image.next_offset < offset:
            await self.changed()
        return self.image

    async def newest_offset(self) -> MetadataOffset:
        """The committed end as the active controller knows it now."""
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
        """Heartbeats report this committed offset (rule M6)."""
        now_ms = self._clock.monotonic_ms()
        if self.image.next_offset >= offset or self._following:
            self._behind_since_ms = None  # it is no source's fault that roles take their time
        elif self._behind_since_ms is None:
            self._behind_since_ms = now_ms
        elif now_ms - self._behind_since_ms > MAX_LAG_MS:
            self._behind_since_ms = now_ms
            self._leave_source = True


def _folded_snapshot(image: MetadataImage, snapshot: MetadataSnapshot) -> MetadataImage:
    """The image a snapshot leads to; METADATA_BEHIND if it would go back."""
    _refuse_older(image, snapshot.next_offset, snapshot.epoch)
    delta = delta_from_snapshot(image, snapshot)
    return delta.apply(snapshot.next_offset, snapshot.epoch)


def _folded_batches(image: MetadataImage, batches: Sequence[MetadataBatch]) -> MetadataImage:
    """The image all batches of an answer lead to.

    One delta for them all: a page of 600 changes to a topic of 10,000 partitions would else copy
    it 600 times.
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
    """Rule M5: an image never goes back."""
    if offset < image.next_offset or epoch < image.epoch:
        text = (
            f"source offers offset {offset} epoch {epoch}, this image is at "
            f"{image.next_offset} epoch {image.epoch}"
        )
        raise KafkaError(ErrorCode.METADATA_BEHIND, text)
