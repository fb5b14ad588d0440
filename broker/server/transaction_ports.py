"""Ports of homes: the metadata of this broker, and the leaders of targets.

The `BrokerServer` makes them and gives them to the coordinators. `Targets` implements
`broker.coordinator.completion.TargetPort` and answers APPLY where this broker leads the target;
`HomeImage` implements `broker.coordinator.home.ImagePort`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from broker.log.unit_check import NumberGap, UnitPlace
from broker.record.batch import RecordFormat
from broker.record.lines import decode_records
from broker.record.numbering import Numbering, RowNumber
from broker.server.peer_codec import PeerRequestKind
from broker.server.unit_appends import DecidedUnit
from broker.transactions.home_messages import (
    ApplyAnswer,
    ApplyUnits,
    GapFound,
    SourceGone,
    UnitsApplied,
    decode_apply_answer,
    encode_apply,
)
from broker.transactions.home_records import StagedPlace, Target
from broker.transactions.messages import TargetRows
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import TopicId, TopicIdPartition

if TYPE_CHECKING:
    from broker.config import BrokerConfig
    from broker.server.local_partitions import LocalPartitions
    from broker.server.metadata_loader import MetadataLoader
    from broker.server.router import LeaderRouter
    from broker.server.topics import LiveConfigs, TopicRequests
    from broker.server.unit_appends import UnitAppends
    from raft_metadata.common.clock import Clock
    from raft_metadata.image.metadata_image import PartitionRegistration

APPLY_TIMEOUT_MS = 5_000
"""Time for a target to commit units; then they are sent again, and answered as already there."""


class StagedRows(Protocol):
    """Reader of staged rows, on this broker's disk or from the stage's leader."""

    async def rows_of(self, places: Sequence[StagedPlace]) -> Sequence[TargetRows | None]:
        """Return the rows of each place; None: proven to be gone for good."""
        ...


class Targets:
    """Units on their way to the leaders of their targets, and into them.

    Owned by the `BrokerServer`, on its loop. Stateless.
    """

    def __init__(
        self,
        config: BrokerConfig,
        loader: MetadataLoader,
        router: LeaderRouter,
        local: LocalPartitions,
        appends: UnitAppends,
        staged: StagedRows,
        clock: Clock,
    ) -> None:
        self._config = config
        self._loader = loader
        self._router = router
        self._local = local
        self._appends = appends
        self._staged = staged
        self._clock = clock

    async def apply(self, request: ApplyUnits) -> ApplyAnswer:
        """Have the target's leader append units, and return once they are committed."""
        place = TopicIdPartition(*request.target)

        async def attempt(registration: PartitionRegistration, timeout_ms: int) -> ApplyAnswer:
            if registration.leader == self._config.broker_id:
                return await self.append(request, timeout_ms)
            body = encode_apply(request)
            answer = await self._router.forward(
                place, registration, PeerRequestKind.APPLY, body, timeout_ms
            )
            return decode_apply_answer(answer)

        deadline_ms = self._clock.monotonic_ms() + APPLY_TIMEOUT_MS
        return await self._router.routed(place, attempt, deadline_ms, repeat_unknown=True)

    def is_deleted(self, target: Target, metadata_offset: int) -> bool:
        """Return True if an image as new as that offset does not have the topic (rule S11)."""
        image = self._loader.image
        return image.next_offset >= metadata_offset and target.topic_id not in image.topics

    async def append(self, request: ApplyUnits, timeout_ms: int) -> ApplyAnswer:
        """Append units to a target that this broker leads; staged rows are fetched first.

        Those of units that the log has are not: their stage may have lost or let go of them since.
        """
        place, numbering = TopicIdPartition(*request.target), Numbering(request.numbering)
        _, role = self._local.leading(place)
        places = [UnitPlace(RowNumber(number), rows) for number, rows, _ in request.units]
        there = self._appends.count_there(place, role.epoch, numbering, places)
        sources = [
            unit.source for unit in request.units[there:] if isinstance(unit.source, StagedPlace)
        ]
        fetched = await self._staged.rows_of(sources) if sources else ()
        if None in fetched:  # another request may have brought them meanwhile
            there = self._appends.count_there(place, role.epoch, numbering, places, proven=True)
        found = dict(zip(sources, fetched, strict=True))
        gone: list[int] = []
        units: list[DecidedUnit] = []
        for at, (number, count, source) in enumerate(request.units):
            rows = found.get(source) if isinstance(source, StagedPlace) else source
            if at >= there and rows is None:
                gone.append(number)
            else:
                units.append(_decided(request.target, number, count, rows))
        if gone:
            return SourceGone(tuple(gone))
        done = await self._appends.append_units(
            place, role.epoch, numbering, RowNumber(request.after), units, timeout_ms
        )
        if isinstance(done, NumberGap):
            return GapFound(done.end)
        return UnitsApplied(done.base_offsets)


def _decided(target: Target, number: int, count: int, rows: TargetRows | None) -> DecidedUnit:
    """Return a unit with its rows; None for one that the target has."""
    if rows is None:
        return DecidedUnit(
            number=RowNumber(number),
            rows=count,
            records=(),
            key_format=RecordFormat.JSON,
            value_format=RecordFormat.JSON,
        )
    if rows.rows != count or (rows.topic_id, rows.partition) != target:
        text = f"the rows of number {number} are {rows.rows} of another target or decision"
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, text)
    return DecidedUnit(
        number=RowNumber(number),
        rows=count,
        records=decode_records(b'{"records":%b}' % rows.records),
        key_format=rows.key_format,
        value_format=rows.value_format,
    )


class HomeImage:
    """The metadata by which homes decide. Owned by the `BrokerServer`, on its loop. Stateless."""

    def __init__(self, loader: MetadataLoader, topics: TopicRequests, configs: LiveConfigs) -> None:
        self._configs = configs
        self._loader = loader
        self._topics = topics

    @property
    def metadata_offset(self) -> int:
        """Number of records of the present image."""
        return self._loader.image.next_offset

    def check_able(self, target: Target) -> None:
        """Raise an error unless the target has a leader and enough in-sync replicas.

        Raises:
            KafkaError: UNKNOWN_TOPIC_OR_PARTITION, LEADER_NOT_AVAILABLE, NOT_ENOUGH_REPLICAS.
        """
        image = self._loader.image
        registration = image.partition(*target)
        topic = image.topics.get(target.topic_id)
        if topic is None or registration is None:
            text = f"partition {target.partition} of topic id {target.topic_id} not found"
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text)
        if not registration.has_leader:
            text = f"partition {target.partition} of {topic.name} has no leader"
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, text)
        least = min(self._configs.min_isr(image, target.topic_id), len(registration.replicas))
        if len(registration.isr) < least:
            text = (
                f"partition {target.partition} of {topic.name} has {len(registration.isr)} in-sync "
                f"replicas, min.insync.replicas is {least}"
            )
            raise KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, text)

    def name_of(self, topic_id: TopicId) -> str:
        """Return the name of a topic; its id if there is none."""
        topic = self._loader.image.topics.get(topic_id)
        return topic_id if topic is None else topic.name

    async def know(self, targets: Sequence[Target]) -> None:
        """Wait, within a bound, for topics that this image does not have yet."""
        if all(self._loader.image.partition(*target) is not None for target in targets):
            return
        await self._topics.catch_up()
