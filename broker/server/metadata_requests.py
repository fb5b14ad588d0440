"""Operators' requests about metadata: the quorum, the log, the image, the cluster's health.

The HTTP routes call `MetadataApis` through `BrokerApis.metadata`. `MetadataRequests` implements it
with calls to the controllers, with this broker's image, and with `broker.server.health`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from broker.server.health import (
    BrokerReport,
    ClusterHealth,
    PartitionTallies,
    judge,
    tally_partitions,
    total_damage,
    total_troubles,
)
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import NodeId
from raft_metadata.image.image_view import Plain, image_at
from raft_metadata.records.commands import FetchMetadata
from raft_metadata.records.records import BrokerState

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from broker.config import BrokerConfig
    from broker.ports import ControllerChannel
    from broker.server.drains import StuckDrain
    from broker.server.metadata_loader import MetadataLoader
    from raft_metadata.common.ids import BrokerId, MetadataOffset
    from raft_metadata.image.metadata_image import MetadataImage
    from raft_metadata.records.commands import FetchMetadataAnswer, MetadataBatch
    from raft_metadata.records.quorum_view import ControllerState

    AskReport = Callable[[BrokerId], Awaitable[BrokerReport]]
    """Returns a broker's own report."""

CONTROLLER_TIMEOUT_MS = 1_000
"""Time for a controller's answer; a slower one is shown as unreachable, so that pages are quick."""
REPORT_TIMEOUT_MS = 1_000
"""Time for a broker's report on itself; a page does not wait longer."""
MAX_LOG_WAIT_MS = 30_000
"""Longest long poll of the log."""
MAX_LOG_READERS = 100
"""Long polls of the log that wait at once; they wait at this broker, never at a controller."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumView:
    """The quorum as its leader reports it; without one, as the most advanced controller does."""

    told_by: ControllerState
    is_from_leader: bool
    urls: Mapping[NodeId, str]
    """Addresses of all controllers, for operators."""
    controllers: Mapping[NodeId, ControllerState | None]
    """Each controller's answer to this broker; None: no answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataLogPage:
    """Part of the metadata log."""

    batches: tuple[MetadataBatch, ...]
    """Batches from the one that holds the requested offset on."""
    end_offset: MetadataOffset
    instead: MetadataImage | None = None
    """Image that the log has led to, if the controllers no longer keep the requested offset."""


class MetadataApis(Protocol):
    """Reads of metadata, as a part of `BrokerApis`. Every method raises `KafkaError`."""

    async def quorum(self) -> QuorumView:
        """Return the quorum as all controllers report it; NOT_CONTROLLER when none answers."""
        ...

    async def log(self, offset: MetadataOffset, max_wait_ms: int) -> MetadataLogPage:
        """Return a page of the log from ``offset``, which may lie within its first batch.

        Waits for the next record. Raises OFFSET_OUT_OF_RANGE beyond the end, NOT_CONTROLLER when no
        controller answers, QUEUE_FULL when too many requests wait.
        """
        ...

    async def image_at(self, path: Sequence[str]) -> tuple[MetadataOffset, Plain]:
        """Return (next offset, value at the path) of this broker's image; `UnknownPathError`."""
        ...

    async def health(self) -> ClusterHealth:
        """Return the verdict on the cluster; bad health raises nothing."""
        ...


class MetadataRequests:
    """Implementation of `MetadataApis`, on the broker's loop.

    Keeps nothing but the newest tallies of partitions.
    """

    def __init__(
        self,
        config: BrokerConfig,
        loader: MetadataLoader,
        controllers: ControllerChannel,
        ask_report: AskReport,
        stuck_drains: Callable[[MetadataImage], Sequence[StuckDrain]] = lambda _: (),
    ) -> None:
        """Take ``ask_report``, which requests from a broker what only it knows of itself.

        ``stuck_drains`` returns the drains without progress, by this broker's images.
        """
        self._stuck_drains = stuck_drains
        self._ask_report = ask_report
        self._config = config
        self._loader = loader
        self._controllers = controllers
        self._views = asyncio.Lock()
        self._tallying = asyncio.Lock()
        self._readers = 0
        self._tallied: tuple[MetadataImage, PartitionTallies] | None = None

    async def quorum(self) -> QuorumView:
        states = await self._states()
        answered = {node: state for node, state in states.items() if state is not None}
        if not answered:
            message = "no controller answers: who leads, and what is committed, can't be known"
            raise KafkaError(ErrorCode.NOT_CONTROLLER, message)
        leader = _leader(answered.values())
        newest = max(answered.values(), key=lambda state: (state.term, state.commit_index))
        return QuorumView(
            told_by=newest if leader is None else leader,
            is_from_leader=leader is not None,
            urls={node: self._controllers.controller_url(node) for node in states},
            controllers=states,
        )

    async def _states(self) -> dict[NodeId, ControllerState | None]:
        """Return each controller's answer, None without one. All are called at once."""

        async def ask(node: NodeId) -> ControllerState | None:
            try:
                return await self._controllers.describe_quorum(node, CONTROLLER_TIMEOUT_MS)
            except KafkaError:
                return None

        nodes = self._controllers.controllers
        answers = await asyncio.gather(*map(ask, nodes))
        return dict(zip(nodes, answers, strict=True))

    async def log(self, offset: MetadataOffset, max_wait_ms: int) -> MetadataLogPage:
        await self._wait_beyond(offset, min(max_wait_ms, MAX_LOG_WAIT_MS))
        answer = await self._fetch(offset)
        instead = None
        if not answer.batches and offset < answer.end_offset:
            # From this broker's image: decoding a snapshot would hold its loop.
            instead = self._loader.image
            if instead.next_offset <= offset:
                message = f"this broker's image is at {instead.next_offset} only"
                raise KafkaError(ErrorCode.METADATA_BEHIND, message)
        return MetadataLogPage(
            batches=answer.batches, end_offset=answer.end_offset, instead=instead
        )

    async def _wait_beyond(self, offset: MetadataOffset, wait_ms: int) -> None:
        """Wait until this broker's image is beyond `offset`, or for `wait_ms`.

        The wait is not at a controller, because controllers keep their places for brokers.
        """
        if wait_ms <= 0 or self._loader.image.next_offset > offset:
            return
        if self._readers >= MAX_LOG_READERS:
            raise KafkaError(ErrorCode.QUEUE_FULL, f"{self._readers} readers of the log wait")
        self._readers += 1
        try:
            async with asyncio.timeout(wait_ms / 1000):
                while self._loader.image.next_offset <= offset:
                    await self._loader.changed()
        except TimeoutError:
            return
        finally:
            self._readers -= 1

    async def _fetch(self, offset: MetadataOffset) -> FetchMetadataAnswer:
        """Return a page from the first controller that answers; the known leader is tried first."""
        request = FetchMetadata(
            cluster_id=self._config.cluster_id,
            broker_id=self._config.broker_id,
            from_offset=offset,
            max_wait_ms=0,
            inside_batch=True,
        )
        last: KafkaError | None = None
        for node in self._by_preference():
            try:
                return await self._controllers.fetch_metadata(node, request)
            except KafkaError as error:
                if last is None or last.code is not ErrorCode.METADATA_BEHIND:
                    last = error
        if last is not None and last.code is ErrorCode.METADATA_BEHIND:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, last.message)
        message = f"no controller answers: {last.message if last else 'none is configured'}"
        raise KafkaError(ErrorCode.NOT_CONTROLLER, message)

    def _by_preference(self) -> list[NodeId]:
        first = self._loader.leader_id
        return sorted(self._controllers.controllers, key=lambda node: node != first)

    async def image_at(self, path: Sequence[str]) -> tuple[MetadataOffset, Plain]:
        """Look the path up in a thread: images are immutable, and a large one takes a while."""
        image = self._loader.image
        async with self._views:
            return image.next_offset, await asyncio.to_thread(image_at, image, path)

    async def health(self) -> ClusterHealth:
        states, facts = await asyncio.gather(
            self._states(), ask_for_reports(self._loader.image, self._ask_report)
        )
        image = self._loader.image
        damage = total_damage(image, [(broker, each.damage) for broker, each in facts])
        troubles = total_troubles(image, [(broker, each.troubles) for broker, each in facts])
        tallies = await self._tallies(image)
        leader = _leader(state for state in states.values() if state is not None)
        controllers = {int(node): state for node, state in states.items()}
        drains = self._stuck_drains(image)
        return judge(image, tallies, leader, controllers, damage, drains, troubles)

    async def _tallies(self, image: MetadataImage) -> PartitionTallies:
        async with self._tallying:
            if self._tallied is None or self._tallied[0] is not image:
                default = self._config.defaults.min_insync_replicas
                tallies = await asyncio.to_thread(tally_partitions, image, default)
                self._tallied = (image, tallies)
            return self._tallied[1]


def _leader(states: Iterable[ControllerState]) -> ControllerState | None:
    """Return the active controller of the highest term; a deposed one may not know that yet."""
    active = [state for state in states if state.is_active]
    return max(active, key=lambda state: state.term, default=None)


def live_brokers(image: MetadataImage) -> list[BrokerId]:
    """Return the brokers that serve requests: neither fenced nor still starting."""
    live = {BrokerState.UNFENCED, BrokerState.CONTROLLED_SHUTDOWN}
    return [broker.broker_id for broker in image.brokers.values() if broker.state in live]


async def ask_for_reports(
    image: MetadataImage, ask: AskReport
) -> list[tuple[BrokerId, BrokerReport]]:
    """Return the reports of all live brokers that answer, requested at once.

    A broker that does not answer counts for nothing: the image shows whether it is fenced.
    """

    async def report_of(broker: BrokerId) -> BrokerReport | None:
        try:
            async with asyncio.timeout(REPORT_TIMEOUT_MS / 1000):
                return await ask(broker)
        except (KafkaError, TimeoutError):
            return None

    live = live_brokers(image)
    reports = await asyncio.gather(*map(report_of, live))
    return [(broker, each) for broker, each in zip(live, reports, strict=True) if each]
