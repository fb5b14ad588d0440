"""Ports of homes: the metadata of this broker, and the leaders of targets.

The `BrokerServer` makes them and gives them to the coordinators. `Targets` implements
`broker.coordinator.completion.TargetPort` and answers APPLY where this broker leads the target;
`HomeImage` implements `broker.coordinator.home.ImagePort`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

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
    UnitRows,
    UnitsApplied,
    decode_apply_answer,
    encode_apply,
)
from broker.transactions.home_records import StagedPlace, Target
from broker.transactions.messages import TargetRows
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import LeaderEpoch, TopicId, TopicIdPartition

if TYPE_CHECKING:
    from broker.config import BrokerConfig
    from broker.server.local_partitions import LocalPartitions
    from broker.server.metadata_loader import MetadataLoader
    from broker.server.router import LeaderRouter
    from broker.server.topics import LiveConfigs, TopicRequests
    from broker.server.unit_appends import UnitAppends
    from raft_metadata.common.clock import Clock
    from raft_metadata.image.metadata_image import PartitionRegistration

APPLIED_BYTES_MAX = 4 << 20
"""Bytes of rows that one request appends, up to a step more; it is answered for the first units."""
STAGED_UNITS_A_STEP = 4
STEP_BYTES = 512 << 10
"""Staged units, or bytes of rows that came along, that are appended while all other requests wait;
one unit may be larger."""
LONG_STEP_BYTES = 64 << 10
"""Of steps with as many bytes, only one of all targets is made before others have their turns."""
TURNS_BETWEEN = 8
"""Turns of the loop between two of them: a produce needs some at each broker that it passes."""
APPLY_TIMEOUT_MS = 5_000
"""Time for a target to commit units; then they are sent again, and answered as already there."""


class StagedRows(Protocol):
    """Reader of staged rows, on this broker's disk or from the stage's leader."""

    async def rows_of(self, places: Sequence[StagedPlace]) -> Sequence[TargetRows | None]:
        """Return the rows of each place; None: proven to be gone for good."""
        ...


class Targets:
    """Units on their way to the leaders of their targets, and into them.

    Owned by the `BrokerServer`, on its loop. Stateless between requests.
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
        staged_units_a_step: int = STAGED_UNITS_A_STEP,
    ) -> None:
        self._config = config
        self._staged_units_a_step = staged_units_a_step
        self._turn = asyncio.Lock()
        """Held while a long step is made, and while others have their turns behind it."""
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
        """Append units to a target that this broker leads, step by step; staged rows are fetched.

        The answer is about the first units of the request: those of the steps until enough bytes
        were appended, or a step failed behind another one.
        """
        place = TopicIdPartition(*request.target)
        _, role = self._local.leading(place)
        taking = _Taking(place, role.epoch, Numbering(request.numbering))
        after, size = RowNumber(request.after), 0
        bases: list[int | None] = []
        steps = _steps(request.units, self._staged_units_a_step)
        for units in steps:
            try:
                answer = await self._step(taking, after, units)
            except KafkaError:
                if not bases:
                    raise
                break
            if not isinstance(answer, _Stepped):
                if bases:
                    break
                if isinstance(answer, GapFound):
                    return answer
                return SourceGone((*answer.numbers, *await self._gone_in(taking, steps)))
            bases += answer.bases
            size += answer.size_bytes
            after = RowNumber(units[-1].number + units[-1].rows)
            if size >= APPLIED_BYTES_MAX:
                break
        await self._appends.until_committed(*taking, timeout_ms)
        return UnitsApplied(tuple(bases))

    async def _step(
        self, taking: _Taking, after: RowNumber, units: Sequence[UnitRows]
    ) -> _Stepped | GapFound | SourceGone:
        """Fetch and append a few units; none is, if the rows of one are gone."""
        there, fetched = await self._fetch(taking, units)
        size = sum(map(_size, units))
        size += sum(0 if rows is None else len(rows.records) for rows in fetched.values())
        if size < LONG_STEP_BYTES:
            return self._take(taking, after, units, there, fetched)
        async with self._turn:
            answer = self._take(taking, after, units, there, fetched)
            for _ in range(TURNS_BETWEEN):
                await asyncio.sleep(0)
        return answer

    async def _fetch(
        self, taking: _Taking, units: Sequence[UnitRows]
    ) -> tuple[int, Mapping[StagedPlace, TargetRows | None]]:
        """Return how many units the log has, and the staged rows of the others; None: gone.

        Rows of units that the log has are not fetched: their stage may have lost or let go of them
        since.
        """
        there = self._appends.count_there(*taking, _places(units))
        sources = [unit.source for unit in units[there:] if isinstance(unit.source, StagedPlace)]
        fetched = await self._staged.rows_of(sources) if sources else ()
        return there, dict(zip(sources, fetched, strict=True))

    def _gone(
        self,
        taking: _Taking,
        units: Sequence[UnitRows],
        there: int,
        fetched: Mapping[StagedPlace, TargetRows | None],
    ) -> tuple[int, tuple[int, ...]]:
        """Return how many units the log has, and the numbers of those that are nowhere."""
        if None not in fetched.values():
            return there, ()
        # Another request may have brought them meanwhile.
        there = self._appends.count_there(*taking, _places(units), proven=True)
        return there, tuple(
            number
            for number, _, source in units[there:]
            if isinstance(source, StagedPlace) and fetched[source] is None
        )

    async def _gone_in(self, taking: _Taking, steps: Iterator[Sequence[UnitRows]]) -> Sequence[int]:
        """Return the numbers of those in the other steps that are gone, too, as far as is known."""
        numbers: list[int] = []
        with contextlib.suppress(KafkaError):
            for units in steps:
                _, gone = self._gone(taking, units, *await self._fetch(taking, units))
                numbers += gone
        return numbers

    def _take(
        self,
        taking: _Taking,
        after: RowNumber,
        units: Sequence[UnitRows],
        there: int,
        fetched: Mapping[StagedPlace, TargetRows | None],
    ) -> _Stepped | GapFound | SourceGone:
        """Append units whose rows are here, or were found gone; the first ones are ``there``."""
        there, gone = self._gone(taking, units, there, fetched)
        if gone:
            return SourceGone(gone)
        decided: list[DecidedUnit] = []
        size = 0
        for number, count, source in units:
            rows = fetched.get(source) if isinstance(source, StagedPlace) else source
            decided.append(_decided(Target(*taking.place), number, count, rows))
            size += 0 if rows is None else len(rows.records)
        taken = self._appends.take(*taking, after, decided)
        if isinstance(taken, NumberGap):
            return GapFound(taken.end)
        return _Stepped(taken.base_offsets, size)


class _Taking(NamedTuple):
    """A target that this broker leads in an epoch, and the home whose units it takes."""

    place: TopicIdPartition
    epoch: LeaderEpoch
    numbering: Numbering


class _Stepped(NamedTuple):
    """Units that were appended in one step, or were there: their base offsets, their rows' size."""

    bases: tuple[int | None, ...]
    size_bytes: int


def _places(units: Sequence[UnitRows]) -> list[UnitPlace]:
    return [UnitPlace(RowNumber(number), rows) for number, rows, _ in units]


def _size(unit: UnitRows) -> int:
    """Return the bytes of a unit's rows that came along."""
    return 0 if isinstance(unit.source, StagedPlace) else len(unit.source.records)


def _steps(units: Sequence[UnitRows], staged_most: int) -> Iterator[Sequence[UnitRows]]:
    """Yield units as they are appended in one go, with a bound of their number or their bytes."""
    begin, share = 0, 0.0
    for at, unit in enumerate(units):
        is_staged = isinstance(unit.source, StagedPlace)
        own = 1 / staged_most if is_staged else _size(unit) / STEP_BYTES
        if at > begin and share + own > 1:
            yield units[begin:at]
            begin, share = at, 0.0
        share += own
    yield units[begin:]


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
