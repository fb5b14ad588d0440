"""The target's side of a transaction: rows that a home has decided, appended by their numbers.

A home (`broker.record.numbering`) sends the units that it has decided for a partition, in the order
of their numbers, until it hears that they are there. `UnitAppends` is what its leader does with
them: it appends those that its log has not, several as one batch where they fit, and answers once
they are committed. What is judged is in `broker.log.unit_check`; nothing of the topic's
configuration is looked at again, because that was done before the decision.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from broker.log.unit_check import (
    AlreadyThere,
    NumberGap,
    SplitUnitError,
    Take,
    UnitPlace,
    judge_units,
    mends,
)
from broker.record.lines import BATCH_BYTES_MAX, record_size
from broker.record.numbering import FIRST_ROW, claim_of_row, numbering_text
from broker.replication.delayed_produces import AppendOutcome, DelayedProduce
from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from broker.config import BrokerConfig
    from broker.log.producer_state import ProducerStates
    from broker.record.batch import RecordFormat
    from broker.record.lines import ProduceRecord
    from broker.record.numbering import Numbering, RowNumber
    from broker.replication.leader_state import LeaderState
    from broker.replication.replica import Replica
    from broker.replication.replica_manager import ReplicaManager
    from broker.server.local_partitions import LocalPartitions
    from raft_metadata.common.clock import Clock
    from raft_metadata.common.ids import LeaderEpoch, TopicIdPartition

LINE_BYTES = 64
"""Bytes of a stored line besides key, value and headers, at most: see `broker.record.lines`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecidedUnit:
    """The rows that one decision has for a partition in one piece."""

    number: RowNumber
    """Row number of the first one (`number_of_unit`)."""
    rows: int
    records: Sequence[ProduceRecord]
    """All of one body, so that either all of them or none is a `BareRecord`. Empty for a unit that
    the log has, as `UnitAppends.count_there` told."""
    key_format: RecordFormat
    value_format: RecordFormat

    @property
    def place(self) -> UnitPlace:
        return UnitPlace(self.number, self.rows)


@dataclass(frozen=True, slots=True)
class Applied:
    """All units are in the partition."""

    already: bool
    """True if this call appended none of them."""
    base_offsets: tuple[int | None, ...]
    """The offset of each unit's first row; None if it is no longer known here."""


class UnitAppends:
    """Appends decided rows to the partitions that this broker leads.

    Owned by the `BrokerServer`, on its loop. Stateless: two requests at once for one numbering are
    safe, because nothing is awaited between the judgement and the append.
    """

    def __init__(
        self,
        config: BrokerConfig,
        local: LocalPartitions,
        manager: ReplicaManager,
        clock: Clock,
        check_proof: Callable[[], bool],
    ) -> None:
        """Take ``check_proof``: an active controller knew this broker less than a session ago."""
        self._config = config
        self._local = local
        self._manager = manager
        self._clock = clock
        self._is_proven = check_proof

    def take(
        self,
        partition: TopicIdPartition,
        epoch: LeaderEpoch,
        numbering: Numbering,
        after: RowNumber,
        units: Sequence[DecidedUnit],
    ) -> Applied | NumberGap:
        """Append those of ``units`` that are not there yet.

        ``epoch``: the leader epoch in which this broker was found to lead. ``after``: the row
        number that the first unit comes behind: its predecessor's end or, to mend a gap, the end
        that this partition told. ``units``: in the order of their numbers, none left out.

        What is `Applied` must still become committed. `NumberGap` is returned only by a leader that
        is proven to lead and whose log is committed as far as it was found: it has lost rows, or an
        earlier request is still under way.

        Raises:
            KafkaError: NOT_LEADER_OR_FOLLOWER, also in another epoch; LEADER_NOT_AVAILABLE, not
                proven to lead; NOT_ENOUGH_REPLICAS; QUEUE_FULL; KAFKA_STORAGE_ERROR;
                MESSAGE_TOO_LARGE; CORRUPT_MESSAGE, the log ends inside of a unit
                (`SplitUnitError`). The home may send the same again, whatever the outcome is.
            ValueError: units that no home can have decided (`check_units`).
        """
        replica, role = self._leading(partition, epoch)
        places = [unit.place for unit in units]
        producers = replica.log.producers
        end = _end_of(producers, numbering)
        try:
            judgement = judge_units(end, after, places)
        except SplitUnitError as error:
            text = f"{replica.log.name}, {numbering_text(numbering)}: {error}"
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, text) from error
        if isinstance(judgement, NumberGap) or (judgement == Take(0) and mends(after, places)):
            self._check_proof(replica, role)
        match judgement:
            case NumberGap():
                return judgement
            case AlreadyThere():
                return Applied(already=True, base_offsets=_offsets(producers, numbering, places))
            case Take(first):
                self._local.check_parking()
                known = _offsets(producers, numbering, places[:first])
                new = self._append(replica, numbering, units[first:])
                return Applied(already=False, base_offsets=(*known, *new))

    async def until_committed(
        self,
        partition: TopicIdPartition,
        epoch: LeaderEpoch,
        numbering: Numbering,
        timeout_ms: int,
    ) -> None:
        """Wait until all that was taken of a home is committed (rule S3).

        Raises:
            KafkaError: NOT_LEADER_OR_FOLLOWER, also in another epoch; QUEUE_FULL;
                REQUEST_TIMED_OUT, appended and not known to be committed.
        """
        replica, _ = self._leading(partition, epoch)
        await self._until_committed(replica, _last_batch(replica, numbering), timeout_ms)

    def count_there(
        self,
        partition: TopicIdPartition,
        epoch: LeaderEpoch,
        numbering: Numbering,
        places: Sequence[UnitPlace],
        *,
        proven: bool = False,
    ) -> int:
        """Return how many of some units in a row the log has; in this leader epoch it keeps them.

        Raises:
            KafkaError: NOT_LEADER_OR_FOLLOWER, also in another epoch. If it is to be ``proven``
                that the others are nowhere: LEADER_NOT_AVAILABLE or OFFSET_NOT_AVAILABLE.
        """
        replica, role = self._leading(partition, epoch)
        if proven:
            self._check_proof(replica, role)
        end = _end_of(replica.log.producers, numbering)
        return sum(place.end <= end for place in places)

    def _leading(
        self, partition: TopicIdPartition, epoch: LeaderEpoch
    ) -> tuple[Replica, LeaderState]:
        replica, role = self._local.leading(partition)
        if role.epoch != epoch:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the leader epoch changed")
        return replica, role

    def _check_proof(self, replica: Replica, role: LeaderState) -> None:
        """Raise an error unless it is certain that this leader's log is what is left (rule S5)."""
        if not self._is_proven():
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, outcome=Outcome.NOT_WRITTEN)
        if replica.partition.high_watermark < role.epoch_start:
            raise KafkaError(ErrorCode.OFFSET_NOT_AVAILABLE, outcome=Outcome.NOT_WRITTEN)

    def _append(
        self, replica: Replica, numbering: Numbering, units: Sequence[DecidedUnit]
    ) -> list[int]:
        """Append the units in as few batches as they fit into; return each one's first offset."""
        role = replica.partition.check_may_append(all_replicas=True)
        bases: list[int] = []
        for batch in batches_of_units(units):
            records = [record for unit in batch for record in unit.records]
            try:
                info = replica.log.append_as_leader(
                    records,
                    key_format=batch[0].key_format,
                    value_format=batch[0].value_format,
                    leader_epoch=role.epoch,
                    now_ms=self._clock.wall_ms(),
                    claim=claim_of_row(numbering, batch[0].number),
                    keep_times=True,
                )
            except KafkaError as error:
                if not bases:
                    raise
                raise KafkaError(error.code, error.message, outcome=Outcome.UNKNOWN) from error
            at = info.base_offset
            self._manager.appended(replica, at, info.last_offset + 1, info.raw)
            for unit in batch:
                bases.append(at)
                at += len(unit.records)
        return bases

    async def _until_committed(
        self, replica: Replica, batch: tuple[int, int] | None, timeout_ms: int
    ) -> None:
        """Wait until a batch, as (first, last offset), is certain to stay (rule R5)."""
        if batch is None or batch[1] < replica.partition.high_watermark:
            return
        base, last = batch
        self._local.check_parking()
        future: asyncio.Future[AppendOutcome] = asyncio.get_running_loop().create_future()

        def resolved(outcome: AppendOutcome) -> None:
            self._local.parked_produces -= 1
            if not future.done():
                future.set_result(outcome)

        self._local.parked_produces += 1
        deadline_ms = self._clock.monotonic_ms() + timeout_ms
        epoch = replica.log.epoch_at(last)
        self._manager.add_delayed_produce(
            replica,
            DelayedProduce(epoch, base, last, True, deadline_ms, resolved),
        )
        outcome = await future
        if outcome is not AppendOutcome.OK:
            raise self._local.error_of_outcome(replica, outcome)


def batches_of_units(units: Sequence[DecidedUnit]) -> Iterator[list[DecidedUnit]]:
    """Yield runs of units that can be one batch: of one format, of 1 MiB, their numbers in a row.

    Numbers that begin another producer epoch begin another batch. A larger unit is a run alone.
    """
    run: list[DecidedUnit] = []
    size = 0
    for unit in units:
        unit_size = sum(record_size(record) + LINE_BYTES for record in unit.records)
        if run and not (size + unit_size <= BATCH_BYTES_MAX and _are_neighbours(run[-1], unit)):
            yield run
            run, size = [], 0
        run.append(unit)
        size += unit_size
    if run:
        yield run


def _are_neighbours(one: DecidedUnit, two: DecidedUnit) -> bool:
    epochs = {one.place.number >> 31, two.place.number >> 31}
    return (
        one.place.end == two.number
        and len(epochs) == 1
        and (one.key_format, one.value_format) == (two.key_format, two.value_format)
        and one.records[0].is_bare == two.records[0].is_bare
    )


def _offsets(
    producers: ProducerStates | None, numbering: Numbering, places: Sequence[UnitPlace]
) -> tuple[int | None, ...]:
    return tuple(
        None if producers is None else producers.offset_of(numbering, place.number, place.rows)
        for place in places
    )


def _end_of(producers: ProducerStates | None, numbering: Numbering) -> RowNumber:
    """Return the number behind a home's last row."""
    return FIRST_ROW if producers is None else producers.end_of(numbering)


def _last_batch(replica: Replica, numbering: Numbering) -> tuple[int, int] | None:
    """Return first and last offset of a home's newest batch; None if this log does not hold it.

    A batch that a leader told this replica of was committed before.
    """
    producers = replica.log.producers
    home = None if producers is None else producers.get(numbering)
    if home is None or home.batches[-1].last_offset >= replica.log.log_end_offset:
        return None
    return home.batches[-1].first_offset, home.batches[-1].last_offset
