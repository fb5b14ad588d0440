"""A simulated broker: one process on one disk, around the product's `Partition`.

What `ReplicaManager` does with frames, images and time is done here on the scheduler's turn; in
this module, what clients ask of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.log.producer_state import RememberedBatch
from broker.log.unit_check import NumberGap, Take, UnitPlace, judge_units
from broker.record.numbering import FIRST_ROW, HomeKind, make_numbering, row_of_claim
from broker.replication.delayed_produces import AppendOutcome, DelayedProduce
from broker.replication.leader_state import LeaderState
from raft_metadata.common.errors import CorruptionError, ErrorCode, KafkaError, Outcome
from raft_metadata.common.ids import Claim, LeaderEpoch, PartitionId, is_reserved, next_sequence
from tests.support import replication_invariants as check
from tests.support.replica_bytes import batches_of
from tests.support.replica_memory import MemoryStore
from tests.support.replica_stores import DiskStore
from tests.support.replication_invariants import Violation
from tests.support.replication_lives import FAR
from tests.support.replication_readers import Readers
from tests.support.replication_streams import BrokerStreams

if TYPE_CHECKING:
    pass


HOME = make_numbering(HomeKind.TRANSACTIONS, PartitionId(3), LeaderEpoch(-1))


class Writer:
    """A client that numbers its batches: it sends each until it is there, one at a time.

    Under the id of a home, each batch is a unit.
    """

    def __init__(self, producer_id: int) -> None:
        self.claim = Claim(producer_id, 0, 0)
        self.values: list[int] = []
        """What is under way; empty: nothing."""
        self.asked = 0
        """Attempts without an answer."""

    def told(self, values: list[int], fate: AppendOutcome) -> AppendOutcome:
        """An attempt is over. Unless it is there, the batch is sent again: nothing is certain."""
        self.asked -= 1
        if fate is not AppendOutcome.OK:
            return AppendOutcome.UNKNOWN
        if values is self.values:
            sequence = next_sequence(self.claim.sequence, len(values))
            self.claim, self.values = self.claim._replace(sequence=sequence), []
        return fate


class Broker(BrokerStreams):
    """Owned by the world."""

    # clients

    def produce(self, values: list[int], acks: str = "all", writer: Writer | None = None) -> None:
        judge, partition, epoch = self.world.judge, self.partition, self.role.epoch

        def answer(fate: AppendOutcome, offset: int = -1, reign: int = epoch) -> None:
            if writer is not None:
                fate = writer.told(values, fate)
            judge.answer(values, fate, offset, reign, acks)

        if partition is None:
            answer(AppendOutcome.NOT_WRITTEN)
            return
        store, log = self.store, partition.log
        base = log.log_end_offset
        before = (base, size_of(store))
        claim = None if writer is None else writer.claim
        now_ms = self.world.now_ms + self.skew_ms
        if self.upkeep is not None:
            now_ms = self.upkeep.append_ms()
        try:
            leads = partition.check_may_append(all_replicas=acks == "all")
            found = None
            if writer is not None and is_reserved(writer.claim.producer_id):
                found = self._judged(writer)
            elif claim:
                found = log.repeated(claim, len(values), now_ms)
            if found is None:
                store.append(leads.epoch, values, now_ms, claim)
        except KafkaError as error:
            if writer is not None and error.code is ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
                writer.told(
                    values, AppendOutcome.OK
                )  # it was there, and is deleted: nobody knows where
                return
            if error.outcome is Outcome.NOT_WRITTEN and store.failed is None:
                after = (log.log_end_offset, size_of(store))
                check.l26_refused_leaves_nothing(judge.tally, before, after, self.id)
            sure = error.outcome is not Outcome.UNKNOWN
            answer(AppendOutcome.NOT_WRITTEN if sure else AppendOutcome.UNKNOWN)
            return
        reign, last = leads.epoch, base + len(values) - 1
        if found is None:
            judge.produced(self, leads.epoch, base, values)
        else:  # a repeat is answered with its first place, and not before that is committed
            base, last = found.first_offset, found.last_offset
            reign = log.epoch_at(last)
            self.world.counts["repeats found"] += 1
        log.request_flush()

        if found is not None and last < partition.high_watermark:
            answer(AppendOutcome.OK, base, reign)  # committed already, deleted since or not
            return

        def done(fate: AppendOutcome) -> None:
            answer(fate, base, reign)

        partition.add_delayed_produce(DelayedProduce(reign, base, last, acks == "all", FAR, done))
        for follower in list(leads.followers):
            self.push(follower)
        partition.advance()

    def _judged(self, writer: Writer) -> RememberedBatch | None:
        """Return the unit that is there; None if it is to be appended (rules S4, S5)."""
        assert self.partition is not None
        log, number = self.partition.log, row_of_claim(writer.claim)
        end = FIRST_ROW if log.producers is None else log.producers.end_of(HOME)
        rows = len(writer.values)
        judgement = judge_units(end, number, [UnitPlace(number, rows)])
        self.world.judge.tally["S5"] += 1
        if isinstance(judgement, NumberGap):
            if self.role.epoch == self.world.controller.partition.leader_epoch:
                text = f"broker {self.id} leads and knows {end} rows, {number} are there"
                raise Violation("rule S5", text)
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, outcome=Outcome.NOT_WRITTEN)
        if isinstance(judgement, Take):
            return None
        at = log.producers.offset_of(HOME, number, rows)
        sequence = writer.claim.sequence
        return RememberedBatch(sequence, sequence + rows - 1, at, at + rows - 1)

    def consume(self, start: int) -> None:
        """A reader is given what is below the high watermark."""
        partition = self.partition
        if partition is None or not isinstance(self.store, DiskStore) or self.store.log is None:
            return
        start = max(start, partition.log.log_start_offset)
        if start >= partition.high_watermark:
            return
        try:
            raw = self.store.log.read_raw(start, 4000, partition.high_watermark)
        except (KafkaError, CorruptionError):
            return  # damage, which is reported, or a log that is set aside already
        for header, entries in batches_of(raw):
            self.world.judge.served(self, header.base_offset, list(entries))
        self.door().read(start)

    def door(self) -> Readers:
        """Where readers come to."""
        if self.readers is None:
            self.readers = Readers(self)
        return self.readers

    def trim(self, offset: int) -> None:
        """An operator deletes the records up to here (rule R10)."""
        partition = self.partition
        if partition is None or not isinstance(self.role, LeaderState):
            return
        offset = min(offset, partition.high_watermark)
        try:
            if partition.log.advance_log_start(offset):
                self.world.counts["trims"] += 1
                self.world.judge.trimmed(self, offset)
        except KafkaError:
            return  # the log is offline

    def give_up(self) -> None:
        """A client's deadline: some parked produce becomes unknown."""
        if self.partition is not None:
            self.partition.delayed_produces.expire(FAR + 1)


def size_of(store: MemoryStore | DiskStore) -> int:
    """Bytes in the files of a log, as a reader of the disk finds them."""
    if isinstance(store, MemoryStore):
        return len(store.mirror)
    return sum(len(inode.cache) for _, inode in store.log_files())
