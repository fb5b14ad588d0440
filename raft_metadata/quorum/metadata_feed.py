"""Fetch-metadata: brokers follow the metadata log through it, from any controller (decision D3).

`ActiveController.fetch_metadata` passes requests to `MetadataFeed.fetch`, which waits for newer
records if there are none, and returns batches, or a snapshot where the batches are compacted away.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import ControllerEpoch
from raft_metadata.controller.controller import ControllerConfig
from raft_metadata.image.metadata_image import MetadataImage
from raft_metadata.image.metadata_state_machine import MetadataStateMachine
from raft_metadata.image.snapshot import snapshot_of
from raft_metadata.quorum.metadata_quorum import MetadataQuorum
from raft_metadata.records.commands import FetchMetadata, FetchMetadataAnswer, MetadataSnapshot
from raft_metadata.records.serde import encode_snapshot

LARGE_IMAGE_PARTITIONS = 2_000
"""Partitions from which encoding a snapshot takes more than 20 ms (1 s at 100,000)."""
SNAPSHOT_KEPT_S = 10.0
"""Time a large encoded snapshot is kept, so that brokers that start together share it."""


class MetadataFeed:
    """Server of applied records to brokers; a broker never has to take anything back.

    Owned by the controller; single-threaded on its loop. `announce` wakes the waiting fetches.
    """

    def __init__(
        self, machine: MetadataStateMachine, config: ControllerConfig, quorum: MetadataQuorum
    ) -> None:
        self._machine = machine
        self._quorum = quorum
        self._config = config
        self._changed = asyncio.Event()
        self._stopping = False
        self._snapshot: MetadataSnapshot | None = None
        self._encoding: asyncio.Future[MetadataSnapshot] | None = None
        self.waiting = 0
        """Number of fetches that wait for a newer image."""

    def announce(self) -> None:
        """Wake every waiter: the image, or the leadership, has changed."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def changed(self) -> None:
        """Wait for the next `announce`."""
        await self._changed.wait()

    def stop(self) -> None:
        """End every waiting fetch; from now on fetches fail, and brokers use another controller."""
        self._stopping = True
        self.announce()

    async def fetch(self, request: FetchMetadata) -> FetchMetadataAnswer:
        """Return records from an offset on; wait for the next one up to ``max_wait_ms``.

        Raises INCONSISTENT_CLUSTER_ID; METADATA_STALE_SOURCE if this controller has lost its
        leader; METADATA_BEHIND if the broker is ahead of it, which never gets a snapshot then
        (rules M5, M6).
        """
        if request.cluster_id != self._config.cluster_id:
            message = f"this is cluster {self._config.cluster_id}, not {request.cluster_id}"
            raise KafkaError(ErrorCode.INCONSISTENT_CLUSTER_ID, message)
        self._check_source(request)
        if self._machine.image.next_offset == request.from_offset:
            await self._newer_image(request)
            self._check_source(request)
        return await self._page(request)

    def _check_source(self, request: FetchMetadata) -> None:
        """Raise KafkaError if this controller is stale, or behind the broker (rule M6)."""
        age_ms = self._quorum.leader_contact_age_ms
        if age_ms > self._config.election_timeout_ms or self._stopping:
            heard = f"heard of its leader {age_ms} ms ago"
            if self._quorum.leader_id is None:
                heard = "knows of no leader"
            message = f"this controller {heard}; ask another"
            raise KafkaError(ErrorCode.METADATA_STALE_SOURCE, message)
        end = self._machine.image.next_offset
        if request.from_offset > end:
            message = f"metadata offset {request.from_offset} is beyond this controller's {end}"
            raise KafkaError(ErrorCode.METADATA_BEHIND, message)

    async def _newer_image(self, request: FetchMetadata) -> None:
        if self.waiting >= self._config.fetch_waiting_max:
            raise KafkaError(ErrorCode.QUEUE_FULL, f"{self.waiting} fetches wait already")
        wait_ms = min(max(request.max_wait_ms, 0), self._config.fetch_wait_max_ms)
        self.waiting += 1
        try:
            async with asyncio.timeout(wait_ms / 1000):
                while self._machine.image.next_offset == request.from_offset and not self._stopping:
                    await self.changed()
        except TimeoutError:
            return
        finally:
            self.waiting -= 1

    async def _page(self, request: FetchMetadata) -> FetchMetadataAnswer:
        batches = self._machine.batches_from(
            request.from_offset, self._config.fetch_bytes_max, inside=request.inside_batch
        )
        snapshot = None
        if batches is None and not request.inside_batch:
            snapshot = await self._snapshot_of(self._machine.image)
            self._check_source(request)
        return FetchMetadataAnswer(
            leader_id=self._quorum.leader_id,
            epoch=ControllerEpoch(self._quorum.term),
            leader_contact_age_ms=self._quorum.leader_contact_age_ms,
            end_offset=self._machine.image.next_offset,
            batches=batches or (),
            snapshot=snapshot,
        )

    async def _snapshot_of(self, image: MetadataImage) -> MetadataSnapshot:
        """Return an encoded snapshot, shared by all brokers that need it.

        A large one is encoded on another thread, because the loop also runs elections; it may then
        be older than `image`.
        """
        if self._snapshot is not None and self._snapshot.next_offset == image.next_offset:
            return self._snapshot
        if sum(len(topic.partitions) for topic in image.topics.values()) < LARGE_IMAGE_PARTITIONS:
            self._snapshot = _encoded_snapshot(image)
            return self._snapshot
        loop = asyncio.get_running_loop()
        if self._encoding is None:
            self._encoding = loop.run_in_executor(None, _encoded_snapshot, image)
            self._encoding.add_done_callback(self._encoded)
        # The snapshot being encoded may be older than `image`: the broker fetches on from its end.
        return await asyncio.shield(self._encoding)

    def _encoded(self, encoding: asyncio.Future[MetadataSnapshot]) -> None:
        self._encoding = None
        if not encoding.cancelled() and encoding.exception() is None:
            self._snapshot = encoding.result()
            asyncio.get_running_loop().call_later(SNAPSHOT_KEPT_S, self._forget, self._snapshot)

    def _forget(self, snapshot: MetadataSnapshot) -> None:
        """Release a kept snapshot, which takes half as much memory as the image itself."""
        if self._snapshot is snapshot:
            self._snapshot = None


def _encoded_snapshot(image: MetadataImage) -> MetadataSnapshot:
    """Return the encoded snapshot of an image. Safe on any thread, because images are immutable."""
    snapshot = snapshot_of(image)
    return replace(snapshot, encoded=encode_snapshot(snapshot))
