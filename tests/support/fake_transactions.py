"""`TransactionApis` in memory: rows in order, repeats and conflicts by digest, faults as set."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from broker.record.lines import key_view
from broker.server.transaction_apis import Committed, RowPlace, StagedRow, TransactionLimits
from broker.transactions.messages import (
    NumberedPosition,
    PlacedRows,
    PositionFate,
    ProducerInitialized,
    ProducerPosition,
    TransactionOutcome,
    TransactionState,
)
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import BrokerId, PartitionId
from raft_metadata.common.record_placement import partition_of

if TYPE_CHECKING:
    from broker.server.transaction_apis import CommitRequest, StageRequest, TopicRows
    from broker.transactions.messages import TransactionalId, TransactionDescription
    from tests.support.fake_broker_apis import FakeBrokerApis


class FakeTransactions:
    """The home of every id is led by broker 2. What is asked is kept in `requests` of the broker.

    Owner: the fake broker. `answers` takes precedence: by the name of a method what it returns; an
    exception is raised.
    """

    def __init__(self, apis: FakeBrokerApis) -> None:
        self._apis = apis
        self.answers: dict[str, object] = {}
        self.found: list[TransactionDescription] = []
        """The descriptions that `describe` and `transactions` return."""
        self.forgotten: list[TransactionalId] = []
        self.refused_rows: dict[int, KafkaError] = {}
        """Rows of chunks that are refused, by index."""
        self.limits = TransactionLimits()
        self._decided: dict[tuple[object, ...], tuple[str, Committed]] = {}
        self._epochs: dict[TransactionalId, int] = {}

    def home_leader(self, id_: TransactionalId) -> BrokerId | None:
        found = self.answers.get("home_leader", BrokerId(2))
        return cast("BrokerId | None", found(id_) if callable(found) else found)

    async def init(self, id_: TransactionalId, timeout_ms: int) -> ProducerInitialized:
        self._note("init", id_, timeout_ms)
        self._epochs[id_] = self._epochs.get(id_, 0) + 1
        return cast(
            "ProducerInitialized",
            self.answers.get("init", ProducerInitialized(epoch=self._epochs[id_])),
        )

    async def stage(self, request: StageRequest) -> list[StagedRow]:
        self._note("stage", request)
        return [
            StagedRow(None, self.refused_rows[index])
            if index in self.refused_rows
            else StagedRow(place)
            for index, place in enumerate(self._places(request.rows))
        ]

    async def commit(self, request: CommitRequest) -> Committed:
        self._note("commit", request)
        if "commit" in self.answers:
            return cast("Committed", self.answers["commit"])
        position = request.position
        name = (request.id, *position_parts(position))
        known = self._decided.get(name)
        if known is not None:
            digest, committed = known
            if digest != request.digest:
                raise KafkaError(ErrorCode.TRANSACTION_CONFLICT)
            return committed
        rows = [self._append(topic, place) for topic in request.topics for place in
                self._places(topic)]  # fmt: skip
        placed: dict[tuple[str, int], PlacedRows] = {}
        for topic_id, row in rows:
            before = placed.get((topic_id, row.partition))
            placed[topic_id, row.partition] = (
                PlacedRows(self._apis.image.topics[topic_id].topic_id, row.partition, 1, row.offset)
                if before is None
                else replace(before, rows=before.rows + 1)
            )
        outcome = TransactionOutcome(
            epoch=position.epoch if isinstance(position, ProducerPosition) else 0,
            number=getattr(position, "number", 0),
            state=TransactionState.COMPLETE,
            placed=tuple(placed.values()),
        )
        told = tuple(row for _, row in rows) if request.answers_rows else ()
        committed = Committed(outcome=outcome, home_leader=BrokerId(2), rows=told)
        self._decided[name] = (request.digest, committed)
        return committed

    async def abort(
        self, id_: TransactionalId, position: ProducerPosition, timeout_ms: int
    ) -> PositionFate:
        self._note("abort", id_, position, timeout_ms)
        aborted = PositionFate(TransactionState.ABORTED)
        return cast("PositionFate", self.answers.get("abort", aborted))

    async def describe(self, id_: TransactionalId) -> TransactionDescription:
        self._note("describe", id_)
        for one in self.found:
            if one.id == id_:
                return one
        text = f"there is no transaction {id_.name}"
        raise KafkaError(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, text)

    async def transactions(self, state: TransactionState | None) -> list[TransactionDescription]:
        self._note("transactions", state)
        return [one for one in self.found if state in {None, one.state}]

    async def forget(self, id_: TransactionalId) -> None:
        self._note("forget", id_)
        self.forgotten.append(id_)

    def _note(self, method: str, *arguments: Any) -> None:
        self._apis.requests.append(arguments[0] if len(arguments) == 1 else arguments)
        answer = self.answers.get(method)
        if isinstance(answer, BaseException):
            raise answer

    def _places(self, rows: TopicRows) -> list[PartitionId]:
        topic = self._apis.image.topic(rows.topic)
        if topic is None:
            text = f"Topic {rows.topic} not found"
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text)
        keyless = self._apis.next_keyless(topic, rows.partitioner)
        count = len(topic.partitions)
        found = [
            rows.partition
            if rows.partition is not None
            else PartitionId(
                partition_of(one.partition, key_view(one, rows.key_format), count, keyless)
            )
            for one in rows.records
        ]
        if max(found) >= count:
            text = f"Topic {rows.topic} has no partition {max(found)}"
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text)
        return found

    def _append(self, rows: TopicRows, partition: PartitionId) -> tuple[Any, RowPlace]:
        topic, log = self._apis.image.topic(rows.topic), self._apis.logs[rows.topic, partition]
        assert topic is not None
        offset = log.end
        log.end += 1
        return topic.topic_id, RowPlace(partition, offset)


def position_parts(position: object) -> tuple[object, ...]:
    """Epoch and number, which tell positions of an id apart."""
    match position:
        case ProducerPosition():
            return tuple(position)
        case NumberedPosition():
            return (position.number,)
        case _:
            return ()
