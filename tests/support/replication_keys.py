"""What compaction and retention did to a simulated topic, and whether they may (rules R7, R10).

The truth is what was ever seen, by key: a write of unknown fate is in it, or is not. What the
clients were told is judged for itself, at the end: there a write may be there, or not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.replication.cleaning import replicated_to
from broker.replication.delayed_produces import AppendOutcome
from broker.replication.leader_state import LeaderState
from raft_metadata.common.ids import BrokerId
from tests.support import replication_invariants as check
from tests.support.replication_invariants import Mirror, Tally, Violation
from tests.support.replication_topics import CLOCK_DIFFERENCE_MS, Topic

if TYPE_CHECKING:
    from tests.support.replication_broker import Broker
    from tests.support.replication_world import World

SLACK_MS = 2 * CLOCK_DIFFERENCE_MS
"""Two trusted clocks may differ by this."""


class KeyJudge:
    """Owned by the `Judge`; idle in worlds whose topic is neither compacted nor retained."""

    def __init__(self, world: World, tally: Tally) -> None:
        self.world, self.tally = world, tally
        self.by_key: dict[int, list[int]] = {}
        self.tombstones: set[int] = set()
        self.in_doubt: dict[int, list[int]] = {}
        """Keys whose newest record an unclean election lost, and with it what it had replaced on
        some replicas: until it is written again, each may show an older one of it, or none."""
        self.held: dict[BrokerId, int] = {}
        """The furthest that each replica's log ever reached."""
        self.born: dict[int, int] = {}
        """When each number was first appended, whatever the leader's clock said."""

    @property
    def topic(self) -> Topic:
        assert self.world.topic is not None
        return self.world.topic

    # what happens

    def exposed(self, value: int, offset: int) -> None:
        said = self.world.records.of(value)
        known = self.by_key.setdefault(said.key, self.in_doubt.pop(said.key, []))
        known.append(offset)
        if said.tombstone:
            self.tombstones.add(offset)

    def forget_from(self, end: int, log: Mirror) -> set[int]:
        """What was seen from here on is lost: an unclean election, won with this log.

        The offsets of records of which nothing is known any more.
        """
        lost: set[int] = set()
        for key, offsets in [*self.by_key.items(), *self.in_doubt.items()]:
            kept = [offset for offset in offsets if offset < end]
            self.by_key.pop(key, None)
            if key in self.in_doubt or (kept and log[kept[-1]] is None):
                is_tombstone = bool(kept) and kept[-1] in self.tombstones
                if key in self.in_doubt or not is_tombstone or kept != offsets:
                    self.in_doubt[key] = kept
                    lost.update(kept)
                    continue
            if kept:
                self.by_key[key] = kept
        self.tombstones = {offset for offset in self.tombstones if offset < end}
        return lost

    def produced(self, leader: Broker, values: list[int]) -> None:
        for value in values:  # sent again, it may be the first one that stands
            self.born.setdefault(value, self.world.now_ms)

    def saw_ends(self) -> None:
        for b in self.world.ids:
            self._held(b)

    def _held(self, b: BrokerId) -> int:
        end = max(self.held.get(b, 0), len(self.world.brokers[b].store.mirror))
        self.held[b] = end
        return end

    def says_replicated(self, leader: Broker, said: int) -> None:
        """A leader takes it that every assigned replica holds everything below."""
        registration = leader.image.partition(*self.world.here)
        assert registration is not None
        held = {b: self._held(b) for b in registration.replicas}
        check.r7_replicated_to(self.tally, said, held, leader.id)

    # compaction

    def compacted(self, broker: Broker, gone: list[int]) -> None:
        """Segments were replaced; these records are not there any more."""
        partition, log = broker.partition, broker.store.mirror
        assert partition is not None
        high_watermark = partition.high_watermark
        check.r7_only_below(self.tally, gone, high_watermark, partition.log.durable_end, broker.id)
        judge = self.world.judge
        exposed = judge.exposed
        for offset in gone if judge.is_of_the_present(broker) else ():
            entry = exposed[offset]
            if entry is None:
                continue
            key = self.world.records.of(entry[1]).key
            if key in self.in_doubt:
                continue
            later = (at for at in self.by_key[key] if offset < at < high_watermark)
            if all(log[at] is None for at in later):
                self._dropped(broker, offset)
            self.world.counts["compacted away"] += 1

    def _dropped(self, broker: Broker, offset: int) -> None:
        """Nothing newer of its key is here: it was a tombstone that all have had for long."""
        partition = broker.partition
        assert partition is not None
        if offset not in self.tombstones:
            raise Violation("rule R7", f"broker {broker.id} lost the newest value, at {offset}")
        everywhere = replicated_to(partition)
        if isinstance(partition.role, LeaderState):
            self.says_replicated(broker, everywhere)
        since = [at_ms for end, at_ms in broker.store.covered if end > offset]
        clean_for_ms = self.world.now_ms - min(since) if since else -1
        needed_ms = self.topic.delete_retention_ms - SLACK_MS
        check.r7_tombstone_may_go(
            self.tally, offset, everywhere, clean_for_ms, needed_ms, broker.id
        )
        self.world.counts["tombstones dropped"] += 1

    # retention

    def retained(
        self, leader: Broker, before: int, start: int, segments: list[tuple[int, int]]
    ) -> None:
        """A leader has decided where the log begins. ``segments``: (end, size) of each, before."""
        self.world.judge.trimmed(leader, start)
        left, from_offset = sum(size for _, size in segments), before
        for end, size in segments:
            if end > start:
                break
            left -= size
            topic = self.topic
            if topic.retention_bytes < 0 or left < topic.retention_bytes:
                there = leader.store.mirror[from_offset:end]
                values = [entry[1] for entry in there if entry is not None]
                born = [self.born[value] for value in values if value in self.born]
                ages = [self.world.now_ms - at for at in born]
                needed = topic.retention_ms - SLACK_MS if topic.retention_ms >= 0 else -1
                if ages:
                    check.r10_old_enough(self.tally, ages, needed, leader.id)
            from_offset = max(from_offset, end)

    # what must hold

    def check_log(self, log: Mirror, start: int, place: str) -> None:
        """Of a log that has all that was seen: what a reader makes of it, key by key."""
        if self.by_key:
            starts = (self.world.judge.start, start)
            check.r7_latest_of_each_key(
                self.tally, log, self.by_key, self.tombstones, starts, place
            )

    def check_replica(self, broker: Broker) -> None:
        """A member of the ISR, or somebody eligible: what it has, and what a power cut leaves."""
        judge = self.world.judge
        self.check_log(broker.promised(), judge.start, f"what {broker.id} has on its platters")
        if broker.up and broker.partition is not None:
            start = broker.partition.log.log_start_offset
            self.check_log(broker.store.mirror, start, f"replica {broker.id}")

    def check_reader(self, leader: Broker) -> None:
        """A client reads all there is, and knows of its writes what it was told."""
        judge, records = self.world.judge, self.world.records
        found: dict[int, tuple[int, int]] = {}
        assert leader.partition is not None
        start = max(leader.partition.log.log_start_offset, judge.start)
        for offset in range(start, len(leader.store.mirror)):
            entry = leader.store.mirror[offset]
            if entry is not None:
                found[records.of(entry[1]).key] = (entry[1], offset)
        sent: dict[int, list[tuple[int, bool, bool | None, int]]] = {}
        for value, said in records.said.items():
            fate = judge.answers.get(value, AppendOutcome.UNKNOWN)
            if fate is not AppendOutcome.NOT_WRITTEN:
                write = (value, said.tombstone, True if fate is AppendOutcome.OK else None)
                sent.setdefault(said.key, []).append((*write, judge.where.get(value, -1)))
        check.r7_table_is_the_latest(self.tally, dict(found.values()), sent, start)
