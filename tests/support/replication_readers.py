"""What a simulated broker answers to readers, by the product's own code (L20, L21, L22, rule R8).

A leader's `LocalPartitions`, a follower's `FollowerReads`. One client goes from broker to broker:
it carries the highest leader epoch that it has seen, and takes no answer of a lower one.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from broker.replication.leader_state import LeaderState
from broker.server.fetch import FollowerReads
from broker.server.local_partitions import LocalPartitions, Read
from raft_metadata.common.errors import CorruptionError, KafkaError
from raft_metadata.records.records import BrokerState
from tests.support import replication_invariants as check
from tests.support.replica_bytes import value_of
from tests.support.replication_controller import HERE
from tests.support.replication_hosted import Clock, Hosted
from tests.support.replication_invariants import Entry, Violation

if TYPE_CHECKING:
    from broker.server.requests import FetchResult
    from tests.support.replication_broker import Broker

READ_BYTES = 4_000


class Readers:
    """Of one life of a broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._judge = broker.world.judge
        hosted: Any = Hosted(broker)
        nobody: Any = None
        config = broker.store.config
        self._local = LocalPartitions(config, hosted, Clock(broker), self._is_proven)
        self._near = FollowerReads(config, hosted, nobody, Clock(broker), self._is_proven)

    def _is_proven(self) -> bool:
        """Heartbeats are answered as long as it is not fenced."""
        known = self._broker.world.controller.image.brokers[self._broker.id]
        return (
            known.state is BrokerState.UNFENCED and known.incarnation_id == self._broker.incarnation
        )

    def read(self, offset: int) -> int:
        """A client asks this broker for records from an offset on, and for the end.

        Where it is to read on; the same offset where it was refused.
        """
        read = Read(
            partition=HERE, offset=offset, timestamp_ms=None, max_bytes=READ_BYTES, max_wait_ms=0
        )
        leads = isinstance(self._broker.role, LeaderState)
        try:
            found = _answer_of(self._local.fetch(read) if leads else self._near.serve(read))
        except (KafkaError, CorruptionError):
            return offset  # refused, or damage is reported: this process ends
        self._judge_read(offset, found, leads=leads)
        if leads:
            self.ask_for_the_end()
        return found.next_offset

    def read_everything(self) -> None:
        """From the log's start to what may be read."""
        partition = self._broker.partition
        assert partition is not None
        at, end = -1, partition.log.log_start_offset
        while at < end < partition.high_watermark:
            at, end = end, self.read(end)

    def _judge_read(self, offset: int, found: FetchResult, *, leads: bool) -> None:
        judge, broker = self._judge, self._broker
        if not judge.is_of_the_present(broker):
            return
        judge.world.counts["read from the leader" if leads else "read from a follower"] += 1
        check.l20_reads_are_seen(
            judge.tally, max(found.high_watermark, found.next_offset), len(judge.exposed), broker.id
        )
        served: list[Entry | None] = [None] * max(found.next_offset - offset, 0)
        for piece in found.slices:
            for line in bytes(piece.lines).split(b"\n")[:-1]:
                at = int(line[line.index(b":") + 1 : line.index(b",")])
                if not offset <= at < found.next_offset:
                    raise Violation("L20", f"broker {broker.id} serves {at}", offset)
                served[at - offset] = (piece.header.leader_epoch, value_of(line))
        judge.served(broker, offset, served)
        here = broker.store.mirror[offset : found.next_offset]
        check.l20_nothing_is_left_out(judge.tally, served, here, offset, broker.id)

    def ask_for_the_end(self) -> None:
        """The latest offset, which a new leader withholds until it knows it."""
        judge, broker = self._judge, self._broker
        if judge.of_a_lost_history(broker.role.epoch):
            return
        try:
            found = self._local.offsets(HERE)
        except KafkaError:
            return  # withheld
        epoch, latest = judge.latest_heard
        if broker.role.epoch >= epoch:
            check.l21_latest_is_the_latest(judge.tally, found.end_offset, latest, broker.id)
            judge.latest_heard = (broker.role.epoch, max(latest, found.end_offset))


def _answer_of(asked: Coroutine[Any, Any, FetchResult]) -> FetchResult:
    """Of a request that does not wait."""
    try:
        asked.send(None)
    except StopIteration as done:
        found: FetchResult = done.value
        return found
    asked.close()
    raise AssertionError("it waits")
