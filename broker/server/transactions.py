"""Transactions on the broker that received a request: rows, the way to the home, the answer.

Implements `broker.server.transaction_apis.TransactionApis`. The home is the leader of a partition
of `__transaction_state`, by the id, or of the group's partition of `__consumer_offsets`. Every
request names its position, so attempts of unknown outcome are repeated until the deadline (S7).
"""

from __future__ import annotations

import asyncio
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from broker.coordinator.home import StagePort
from broker.coordinator.records import partition_of_group
from broker.server.peer_codec import PeerRequestKind
from broker.server.row_targets import (
    NextKeyless,
    PlacedTopic,
    RowTargets,
    layout_of,
    seeded_keyless,
    target_rows,
)
from broker.server.topics import LiveLimits
from broker.server.transaction_apis import (
    TRANSACTION_TIMEOUT_MS,
    TRANSACTION_TIMEOUT_MS_MAX,
    CommitRequest,
    Committed,
    RowPlace,
    StagedRow,
    StageRequest,
    TopicRows,
    TransactionLimits,
)
from broker.server.transaction_ports import StagedRows
from broker.transactions.home_messages import (
    AbortPosition,
    CommitPosition,
    DescribeId,
    ForgetId,
    HomeRequest,
    InitId,
    decode_descriptions,
    decode_home_answer,
    encode_home_request,
    encode_list,
)
from broker.transactions.messages import (
    NO_GROUP,
    LastPosition,
    ProducerInitialized,
    ProducerPosition,
    StagedAttempt,
    TransactionalId,
    TransactionDescription,
    TransactionOutcome,
    TransactionState,
)
from raft_metadata.common.configs.table import (
    TRANSACTION_CHUNK_MAX_BYTES,
    TRANSACTION_INLINE_MAX_BYTES,
    TRANSACTION_MAX_CHUNKS,
    TRANSACTION_MAX_PARTITIONS,
)
from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome
from raft_metadata.common.ids import BrokerId, PartitionId, TopicIdPartition, TopicName
from raft_metadata.common.internal_topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC

if TYPE_CHECKING:
    from broker.config import BrokerConfig
    from broker.coordinator.group_coordinator import GroupCoordinator
    from broker.coordinator.transaction_coordinator import HomeFactory, TransactionCoordinator
    from broker.server.internal_topics import InternalTopics
    from broker.server.metadata_loader import MetadataLoader
    from broker.server.produce import KeylessPlacement
    from broker.server.router import LeaderRouter
    from broker.server.transaction_ports import Targets
    from raft_metadata.common.clock import Clock
    from raft_metadata.common.configs.layers import ConfigLayers
    from raft_metadata.image.metadata_image import (
        MetadataImage,
        PartitionRegistration,
        TopicImage,
    )

A = TypeVar("A")

ANSWER_SHARE = 0.9
"""Share of the time left in which a home is to answer, so that a 202 is back in time."""
LIST_TIMEOUT_MS = 5_000


class TransactionRequests:
    """Requests of transactions on the broker that received them.

    Owned by `RoutedBrokerApis`, on its loop. Stateless between requests.
    """

    def __init__(
        self,
        config: BrokerConfig,
        router: LeaderRouter,
        homes: Coordinators,
        loader: MetadataLoader,
        internal: InternalTopics,
        targets: RowTargets,
        keyless: KeylessPlacement,
        clock: Clock,
    ) -> None:
        self._config = config
        self._router = router
        self._homes = homes
        self._loader = loader
        self._internal = internal
        self._targets = targets
        self._keyless = keyless
        self._clock = clock
        self._limits = LiveLimits(lambda: loader.image, config.static(), transaction_limits)

    @property
    def limits(self) -> TransactionLimits:
        """The limits in force, read again when the image's configs have changed."""
        return self._limits.now()

    # ---- one id

    async def init(self, id_: TransactionalId, timeout_ms: int) -> ProducerInitialized:
        """Give a producer's id the next epoch, which fences what came before (rule S6)."""
        deadline_ms = self._deadline_ms(timeout_ms)
        return await self._ask(InitId(id=id_, timeout_ms=timeout_ms), deadline_ms, may_create=True)

    async def abort(
        self, id_: TransactionalId, position: ProducerPosition, timeout_ms: int
    ) -> TransactionState:
        """Abort a producer's position; what was decided before stands, and is returned."""
        request = AbortPosition(id=id_, timeout_ms=timeout_ms, position=position)
        last = await self._ask(request, self._deadline_ms(timeout_ms), may_create=True)
        if last.lost_rows and last.state is TransactionState.COMPLETE:
            raise _rows_lost(f"{last.lost_rows} rows", last)
        return last.state

    async def describe(self, id_: TransactionalId) -> TransactionDescription:
        """Return one id, with the attempts that stages hold for it."""
        deadline_ms = self._deadline_ms(TRANSACTION_TIMEOUT_MS)
        request = DescribeId(id=id_, timeout_ms=TRANSACTION_TIMEOUT_MS)
        attempts = [
            one for staged_id, one in await self._homes.stages.attempts() if staged_id == id_
        ]
        try:
            found = await self._ask(request, deadline_ms, may_create=False)
        except KafkaError as error:
            if error.code is not ErrorCode.TRANSACTIONAL_ID_NOT_FOUND or not attempts:
                raise
            found = self._undecided(id_)
        return _with_attempts(found, attempts)

    def _undecided(self, id_: TransactionalId) -> TransactionDescription:
        """Return the description of an id that its home does not know, while a stage has rows."""
        topic = self._loader.image.topic(home_topic(id_))
        return TransactionDescription(
            id=id_,
            epoch=-1,
            last=None,
            state=TransactionState.STAGING,
            home_leader=self.home_leader(id_) or self._config.broker_id,
            home_partition=PartitionId(0) if topic is None else home_partition(id_, topic),
        )

    async def forget(self, id_: TransactionalId) -> None:
        """Forget a numbered id or a key."""
        deadline_ms = self._deadline_ms(TRANSACTION_TIMEOUT_MS)
        request = ForgetId(id=id_, timeout_ms=TRANSACTION_TIMEOUT_MS)
        await self._ask(request, deadline_ms, may_create=False)

    async def stage(self, request: StageRequest) -> list[StagedRow]:
        """Stage a chunk with acks=all (rule S9)."""
        self._deadline_ms(request.timeout_ms)
        return await self._homes.stages.stage(request)

    # ---- commit

    async def commit(self, request: CommitRequest) -> Committed:
        """Decide a transaction and wait until all its targets have committed their rows."""
        deadline_ms = self._deadline_ms(request.timeout_ms)
        placed = [
            await self._targets.place(rows, deadline_ms, self._keyless_of(request, rows))
            for rows in request.topics
        ]
        inline = tuple(rows for each in placed for rows in target_rows(each))
        self._check_size(sum(len(rows.records) for rows in inline))
        asked = CommitPosition(
            id=request.id,
            timeout_ms=request.timeout_ms,
            position=request.position,
            digest=request.digest,
            inline=inline,
            attempts=request.attempts,
            offsets=request.offsets,
            member_id=request.member_id,
            member_epoch=request.member_epoch,
            layout=layout_of(placed),
        )
        outcome = await self._ask(asked, deadline_ms, may_create=True)
        if outcome.lost and outcome.state is TransactionState.COMPLETE:
            raise self._rows_lost(outcome)
        rows = _row_places(placed, outcome, asked.layout) if request.answers_rows else ()
        return Committed(outcome=outcome, home_leader=self.home_leader(request.id), rows=rows)

    def _rows_lost(self, outcome: TransactionOutcome) -> KafkaError:
        """Return the error of a commit that stands, and of which not all is there (rule S3)."""
        topics = self._loader.image.topics
        lost = (
            f"{one.rows} rows for partition {one.partition} of "
            f"{topics[one.topic_id].name if one.topic_id in topics else one.topic_id}"
            for one in outcome.lost
        )
        return _rows_lost(", ".join(lost), outcome)

    def _keyless_of(self, request: CommitRequest, rows: TopicRows) -> NextKeyless:
        """Return the placement of keyless rows.

        Under a key a repeat gives its rows the same partitions as the first attempt, as a rule, so
        that it can be answered with their offsets.
        """
        if request.id.is_key:
            return seeded_keyless(request.id.name, rows.partitioner)
        return lambda topic: self._keyless.for_request(topic, rows.partitioner)

    def _check_size(self, size: int) -> None:
        limit = self.limits.inline_bytes
        if size > limit:
            text = (
                f"{size} bytes of rows, transaction.inline.max.bytes is {limit}: stage them in "
                "chunks, and commit their attempt"
            )
            raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, text)

    # ---- lists

    async def transactions(self, state: TransactionState | None) -> list[TransactionDescription]:
        """Return the ids of all homes, with the attempts that stages hold, sorted."""
        deadline_ms = self._clock.monotonic_ms() + LIST_TIMEOUT_MS
        wanted = None if state in NOT_DECIDED else state
        asked = []
        for name in (TRANSACTIONS_TOPIC, OFFSETS_TOPIC):
            topic = await self._internal.existing(name)
            for number in range(0 if topic is None else topic.partitions_count):
                assert topic is not None
                place = TopicIdPartition(topic.topic_id, PartitionId(number))
                asked.append(self._list(place, wanted, deadline_ms, is_group=name == OFFSETS_TOPIC))
        homes = await asyncio.gather(*asked)
        staged = await self._staged(state)
        found = {one.id: one for home in homes for one in home}
        for id_, attempts in staged.items():
            found[id_] = _with_attempts(found.get(id_) or self._undecided(id_), attempts)
        listed = (one for one in found.values() if state in {None, one.state})
        return sorted(listed, key=lambda one: one.id)

    async def _staged(
        self, state: TransactionState | None
    ) -> dict[TransactionalId, list[StagedAttempt]]:
        staged: dict[TransactionalId, list[StagedAttempt]] = {}
        if state is None or state in NOT_DECIDED:
            for id_, attempt in await self._homes.stages.attempts():
                staged.setdefault(id_, []).append(attempt)
        return staged

    async def _list(
        self,
        place: TopicIdPartition,
        state: TransactionState | None,
        deadline_ms: int,
        *,
        is_group: bool,
    ) -> Sequence[TransactionDescription]:
        coordinator = self._homes.groups if is_group else self._homes.transactions

        async def attempt(
            registration: PartitionRegistration, timeout_ms: int
        ) -> Sequence[TransactionDescription]:
            if registration.leader == self._config.broker_id:
                return await coordinator.descriptions(place.partition, state)
            body = encode_list(place.partition, state)
            kind = PeerRequestKind.LIST_GROUP_TXNS if is_group else PeerRequestKind.LIST_TXNS
            answer = await self._router.forward(place, registration, kind, body, timeout_ms)
            return decode_descriptions(answer)

        return await self._router.routed(place, attempt, deadline_ms, repeat_unknown=True)

    # ---- the way to the home

    def _deadline_ms(self, timeout_ms: int) -> int:
        if not 1 <= timeout_ms <= TRANSACTION_TIMEOUT_MS_MAX:
            text = f"timeout {timeout_ms}: expected 1 to {TRANSACTION_TIMEOUT_MS_MAX} ms"
            raise KafkaError(ErrorCode.INVALID_REQUEST, text)
        return self._clock.monotonic_ms() + timeout_ms

    def home_leader(self, id_: TransactionalId) -> BrokerId | None:
        """Return the leader of an id's home in this broker's image; None: there is none now."""
        topic = self._loader.image.topic(home_topic(id_))
        if topic is None:
            return None
        registration = topic.partitions[home_partition(id_, topic)]
        return registration.leader if registration.has_leader else None

    async def _ask(self, request: HomeRequest[A], deadline_ms: int, *, may_create: bool) -> A:
        """Have the home's leader answer, wherever it is; repeat what is unknown (rule S7)."""
        name = home_topic(request.id)
        topic = await self._internal.existing(name)
        if topic is None:
            if not may_create:
                text = f"there is no transaction {request.id.name}"
                raise KafkaError(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, text)
            topic = await self._internal.for_first_write(name)
        place = TopicIdPartition(topic.topic_id, home_partition(request.id, topic))
        doubts: list[KafkaError] = []

        async def attempt(registration: PartitionRegistration, timeout_ms: int) -> A | _Refusal:
            if self._clock.monotonic_ms() > deadline_ms:
                # This broker stood still: what an earlier attempt decided may be forgotten (S12).
                raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, "its time is over")
            sent = _with_time(request, max(1, int(timeout_ms * ANSWER_SHARE)))
            try:
                if registration.leader == self._config.broker_id:
                    return await self._homes.answer_id(sent)
                body = encode_home_request(sent)
                answer = await self._router.forward(
                    place, registration, PeerRequestKind.TXN, body, timeout_ms
                )
                return decode_home_answer(sent, answer)
            except KafkaError as error:
                not_written = error.outcome is Outcome.NOT_WRITTEN
                no_target = error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                if error.code in CERTAIN or (not_written and no_target):
                    return _Refusal(error)
                if not_written and error.code is ErrorCode.NOT_ENOUGH_REPLICAS:
                    raise KafkaError(ErrorCode.NOT_COORDINATOR, error.message) from error
                raise

        try:
            answer = await self._router.routed(
                place, attempt, deadline_ms, repeat_unknown=True, doubts=doubts
            )
        except KafkaError as error:
            raise _told(error, doubts) from error
        if isinstance(answer, _Refusal):
            raise _told(answer.error, doubts)
        return answer


class _Refusal(NamedTuple):
    """A home's answer that stands in its log, or that a target does not exist.

    The router would take the error for one of the way to the home, or for one whose outcome a
    repeat could tell, and repeat the request.
    """

    error: KafkaError


class StageDoor(StagePort, StagedRows, Protocol):
    """The stages as homes, targets and clients use them, wherever they are led."""

    async def stage(self, request: StageRequest) -> list[StagedRow]:
        """Stage a chunk with acks=all (rule S9)."""
        ...

    async def attempts(self) -> list[tuple[TransactionalId, StagedAttempt]]:
        """Return the attempts of all stages."""
        ...


@dataclass(frozen=True, slots=True)
class Coordinators:
    """The coordinators of a broker, and the door to the targets that it leads."""

    groups: GroupCoordinator
    transactions: TransactionCoordinator
    homes: HomeFactory
    targets: Targets
    stages: StageDoor
    image: Callable[[], MetadataImage]

    async def answer_id(self, request: HomeRequest[A]) -> A:
        """Return the answer to a request about an id whose home this broker leads.

        Raises:
            KafkaError: NOT_COORDINATOR, also if its topic is not known here yet.
        """
        topic = self.image().topic(home_topic(request.id))
        if topic is None:
            raise KafkaError(ErrorCode.NOT_COORDINATOR)
        partition = home_partition(request.id, topic)
        if request.id.group == NO_GROUP:
            return await self.transactions.answer(partition, request)
        return await self.groups.answer_home(partition, request)


NOT_DECIDED = frozenset({TransactionState.EMPTY, TransactionState.STAGING})
"""States that the stages tell from one another, not the homes."""


def _with_attempts(
    found: TransactionDescription, attempts: Sequence[StagedAttempt]
) -> TransactionDescription:
    """Return the description with the attempts of positions that are not decided yet."""
    last = (-1, -1) if found.last is None else (found.last.epoch, found.last.number)
    news = tuple(one for one in attempts if (one.epoch, one.number) > last)
    is_open = found.state is TransactionState.COMMITTING
    state = TransactionState.STAGING if news and not is_open else found.state
    return replace(found, attempts=news, state=state)


def transaction_limits(layers: ConfigLayers) -> TransactionLimits:
    """Return the limits that requests are held to, as the cluster's configs have them."""
    return TransactionLimits(
        inline_bytes=layers.number(TRANSACTION_INLINE_MAX_BYTES),
        chunk_bytes=layers.number(TRANSACTION_CHUNK_MAX_BYTES),
        chunks=layers.number(TRANSACTION_MAX_CHUNKS),
        partitions=layers.number(TRANSACTION_MAX_PARTITIONS),
    )


def home_topic(id_: TransactionalId) -> TopicName:
    """Return the topic of an id's home."""
    return TRANSACTIONS_TOPIC if id_.group == NO_GROUP else OFFSETS_TOPIC


def home_partition(id_: TransactionalId, topic: TopicImage) -> PartitionId:
    """Return the partition of its topic that is an id's home."""
    if id_.group == NO_GROUP:
        return PartitionId(zlib.crc32(id_.name.encode()) % topic.partitions_count)
    return partition_of_group(id_.group, topic.partitions_count)


def _with_time(request: HomeRequest[A], left_ms: int) -> HomeRequest[A]:
    """Return the request with the time that is left for it."""
    return replace(request, timeout_ms=left_ms)


CERTAIN = frozenset(
    {
        # Epochs only grow: whoever judges an earlier attempt later finds it fenced, too.
        ErrorCode.PRODUCER_FENCED,
        # The position is decided with another content, which stays.
        ErrorCode.TRANSACTION_CONFLICT,
        # The position is aborted, which stays.
        ErrorCode.TRANSACTION_ABORTED,
        # A newer position is decided, which stays; what became of this one is not known any more.
        ErrorCode.TRANSACTION_SUPERSEDED,
    }
)
"""Refusals by what stands in the home's log for good; all others speak of their attempt only (S7).

Those of offsets and members tell the state of now: a reset may bring the expected offset back, the
last member may leave, an instance may get its name again, a member its partition. An attempt that
is still under way is decided then. A key or id that is not found may have been forgotten by one.
"""


def _rows_lost(rows: str, at: TransactionOutcome | LastPosition) -> KafkaError:
    text = (
        f"an unclean election of a stage lost {rows}; everything else of position "
        f"{at.epoch}.{at.number} is committed"
    )
    return KafkaError(ErrorCode.DECIDED_ROWS_LOST, text)


def _told(error: KafkaError, doubts: Sequence[KafkaError]) -> KafkaError:
    """Return the error for the client: unknown if an earlier attempt may still be decided."""
    if not doubts or error.code in CERTAIN or error.outcome is Outcome.UNKNOWN:
        return error
    if error.code is ErrorCode.LEADER_NOT_AVAILABLE:
        text = f"the home has not told what became of it: {doubts[-1].message}"
        return KafkaError(ErrorCode.OUTCOME_UNKNOWN, text)
    return KafkaError(error.code, error.message, outcome=Outcome.UNKNOWN)


def _row_places(
    placed: Sequence[PlacedTopic], outcome: TransactionOutcome, layout: int
) -> list[RowPlace]:
    """Return where each row of the request stands, as far as that is known."""
    bases = {(one.topic_id, one.partition): one.base_offset for one in outcome.placed}
    counts: Counter[tuple[str, int]] = Counter()
    rows = []
    for topic, _, places in placed:
        for place in places:
            assert not isinstance(place, KafkaError), "a refused row refuses the transaction"
            target = (topic.topic_id, place)
            base = bases.get(target) if outcome.layout == layout else None
            rows.append(RowPlace(place, -1 if base is None else base + counts[target]))
            counts[target] += 1
    return rows
