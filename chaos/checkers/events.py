"""Checks across the brokers' event journals: invariants that hold between nodes, by leader epoch.

The runner reads the journals of stopped brokers and calls each check. A sample of a state shows one
moment; a journal shows every change, in the order in which a process made it. No clock is used:
events of one life of a broker are ordered by their sequence, events of several by leader epoch and
offset. Each check reports how often it was evaluated, and an empty journal satisfies none.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from chaos.checkers.verdict import Verdict, verdict

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


class JournalEvent(NamedTuple):
    """An event of one broker's journal."""

    broker: int
    sequence: int
    life: str
    """Incarnation id of the broker process that wrote the event."""
    kind: str
    topic: str
    topic_id: str
    partition: int
    epoch: int
    """Leader epoch."""
    facts: Mapping[str, Any]

    @property
    def where(self) -> tuple[str, int]:
        return self.topic_id, self.partition

    @property
    def text(self) -> str:
        """Return the event as text for an example in a report."""
        return (
            f"broker {self.broker} event {self.sequence}: {self.kind} {self.topic}-"
            f"{self.partition} epoch {self.epoch} {dict(self.facts)}"
        )


Journals = dict[int, list[JournalEvent]]
"""The journals of several brokers: broker → its events, in the order written."""


class Chain(NamedTuple):
    """A replica's hash chain over [start, end), and the lowest start that it supports."""

    first: int
    start: int
    end: int
    value: str


def event_of(broker: int, line: Mapping[str, Any]) -> JournalEvent:
    """Return the event of a JSON object from a broker's journal."""
    partition = line["partition"]
    return JournalEvent(
        broker=broker,
        sequence=line["sequence"],
        life=line["incarnation_id"],
        kind=line["kind"],
        topic=line["topic"] or "",
        topic_id=line["topic_id"] or "",
        partition=-1 if partition is None else partition,
        epoch=line["leader_epoch"],
        facts=line["facts"],
    )


def check_journals_whole(
    journals: Journals, brokers: Sequence[int], *, may_lose: bool = False
) -> Verdict:
    """Check that every broker has a journal from its first event on, without gaps in its numbers.

    ``may_lose``: disks were full or lost their power, which costs events that were not synced.
    """
    faults = [f"broker {broker} has no journal" for broker in brokers if not journals.get(broker)]
    missing = 0
    for broker, events in journals.items():
        numbers = [0, *(event.sequence for event in events)]
        gaps = [(one, other) for one, other in pairwise(numbers) if other != one + 1]
        missing += len(gaps)
        if not may_lose:
            faults += [f"broker {broker}: event {two} follows {one}" for one, two in gaps]
    lives = {event.life for events in journals.values() for event in events}
    count = sum(len(events) for events in journals.values())
    figures = f"{count:,} events of {len(lives)} lives, {missing} gaps"
    return verdict("event journals are whole", figures, faults)


def check_one_leader_an_epoch(journals: Journals) -> Verdict:
    """Check that at most one life of one broker led a partition in a leader epoch (rule R3)."""
    led: dict[tuple[tuple[str, int], int], set[tuple[int, str]]] = defaultdict(set)
    for event in _in_order(journals):
        if event.kind == "role_changed" and event.facts["role"] == "leader":
            led[event.where, event.epoch].add((event.broker, event.life))
    faults = [
        f"partition {where[1]} of {where[0]} epoch {epoch} was led by {sorted(several)}"
        for (where, epoch), several in led.items()
        if len(several) > 1
    ]
    if not led:
        faults.append("nobody led anything")
    return verdict("one leader an epoch, by events", f"{len(led)} reigns", faults)


def check_high_watermarks(journals: Journals) -> Verdict:
    """Check that a replica's high watermark never falls in one life, nor exceeds its log end.

    Invariants L7 and L8. A log that starts over empty begins anew: it was lost or removed.
    """
    known: dict[tuple[str, tuple[str, int]], int] = {}
    faults: list[str] = []
    looks = 0
    for event in _in_order(journals):
        here = event.life, event.where
        high_watermark = event.facts.get("high_watermark")
        if high_watermark is None:
            continue
        if event.kind == "truncated" and event.facts["unclean"]:
            known[here] = event.facts["to"]
            continue
        before = 0 if _starts_over(event) else known.get(here, 0)
        looks += 1
        if high_watermark < before:
            faults.append(f"from {before} back to {high_watermark}: {event.text}")
        if high_watermark > event.facts.get("log_end", high_watermark):
            faults.append(f"past the log end: {event.text}")
        known[here] = high_watermark
    if not looks:
        faults.append("no high watermark was told")
    return verdict("high watermarks only rise, by events", f"{looks:,} times looked", faults)


def check_truncations(journals: Journals, *, unclean_allowed: bool = False) -> Verdict:
    """Check that every truncation has an event, and that none goes below the high watermark.

    Invariants L13 and L15: only followers truncate.
    """
    ends: dict[tuple[str, tuple[str, int]], int] = {}
    led: dict[tuple[str, tuple[str, int]], int] = {}
    faults: list[str] = []
    after_gap = {broker: _after_gaps(events) for broker, events in journals.items()}
    cuts = looks = 0
    for event in _in_order(journals):
        here = event.life, event.where
        if event.sequence in after_gap[event.broker]:
            ends.clear()  # events were lost, possibly a truncation among them
        if event.kind == "truncated":
            cuts += 1
            looks += 1
            below = event.facts["to"] < event.facts["high_watermark"]
            if below and not (unclean_allowed and event.facts["unclean"]):
                faults.append(f"cut below its high watermark: {event.text}")
            if led.get(here) == event.epoch:
                faults.append(f"a leader cut its log: {event.text}")
            ends[here] = event.facts["to"]
            continue
        if event.kind == "role_changed" and event.facts["role"] == "leader":
            led[here] = event.epoch
        end = event.facts.get("log_end")
        if end is None:
            continue
        before = 0 if _starts_over(event) else ends.get(here, 0)
        looks += 1
        if end < before:
            faults.append(f"the log end went from {before} back without a word: {event.text}")
        ends[here] = end
    if not looks:
        faults.append("no log end was told")
    return verdict(
        "truncations are told and clean, by events",
        f"{cuts} truncations, {looks:,} log ends looked at",
        faults,
    )


def check_leaders_hold_committed(journals: Journals) -> Verdict:
    """Check that a leader begins with all that any replica knew as committed in an earlier epoch.

    Invariants L3 and L4, keyed by (epoch, offset): records that a deposed leader committed later,
    in its own epoch, count too.
    """
    committed: dict[tuple[str, int], list[tuple[int, int, JournalEvent]]] = defaultdict(list)
    elections: list[JournalEvent] = []
    epochs: dict[tuple[str, tuple[str, int]], int] = {}
    for event in _in_order(journals):
        high_watermark = event.facts.get("high_watermark")
        if high_watermark is not None:
            # The high watermark of a new role was known in the role before. For a life's first role
            # that epoch is unknown: it may have been the same epoch, in an earlier life.
            here = event.life, event.where
            epoch = epochs.get(here, event.epoch) if event.kind == "role_changed" else event.epoch
            epochs[here] = event.epoch
            committed[event.where].append((epoch, high_watermark, event))
        if event.kind == "role_changed" and event.facts["role"] == "leader":
            elections.append(event)
    highest = {where: _highest_by_epoch(known) for where, known in committed.items()}
    faults: list[str] = []
    looks = 0
    for election in elections:
        keys, best = highest[election.where]
        earlier = bisect_left(keys, election.epoch) - 1
        if earlier < 0:
            continue
        looks += 1
        offset, proof = best[earlier]
        if offset > election.facts["log_end"]:
            faults.append(f"{election.text} begins without what was committed: {proof.text}")
    if not looks:
        faults.append("nobody led after anything was committed")
    return verdict("leaders hold what is committed, by events", f"{looks} reigns", faults)


def _highest_by_epoch(
    known: list[tuple[int, int, JournalEvent]],
) -> tuple[list[int], list[tuple[int, JournalEvent]]]:
    """Return the sorted epochs, and for each the highest offset known as committed up to it."""
    known.sort(key=lambda row: row[0])
    best = list(accumulate(((offset, event) for _, offset, event in known), _higher))
    return [key for key, _, _ in known], best


def _higher(
    one: tuple[int, JournalEvent], other: tuple[int, JournalEvent]
) -> tuple[int, JournalEvent]:
    return one if one[0] >= other[0] else other


def check_one_isr_an_epoch(journals: Journals) -> Verdict:
    """Check that all reports of a partition epoch name the same ISR (rule M3)."""
    found: dict[tuple[tuple[str, int], int], set[tuple[int, ...]]] = defaultdict(set)
    for event in _in_order(journals):
        if event.kind == "isr_changed":
            found[event.where, event.facts["partition_epoch"]].add(tuple(event.facts["new"]))
        elif event.kind == "role_changed" and event.facts["role"] == "leader":
            found[event.where, event.facts["partition_epoch"]].add(tuple(event.facts["isr"]))
    faults = [
        f"partition {where[1]} of {where[0]} partition epoch {epoch}: ISRs {sorted(several)}"
        for (where, epoch), several in found.items()
        if len(several) > 1
    ]
    if not found:
        faults.append("no ISR was told")
    return verdict("one ISR a partition epoch, by events", f"{len(found)} of them", faults)


def check_chains(chains: Mapping[int, Mapping[int, Chain]], replicas: Mapping[int, int]) -> Verdict:
    """Check that all replicas hold the same batches, by their hash chains (invariant L1).

    Args:
        chains: partition → broker → its chain, over the same offsets for all.
        replicas: partition → number of replicas it must have.
    """
    faults: list[str] = []
    offsets = 0
    for partition, wanted in replicas.items():
        replica_chains = chains.get(partition, {})
        if len(replica_chains) != wanted:
            faults.append(f"partition {partition}: {len(replica_chains)} chains, not {wanted}")
        ranges = {(chain.start, chain.end) for chain in replica_chains.values()}
        if len(ranges) > 1:
            faults.append(f"partition {partition}: chains over {sorted(ranges)} don't compare")
        elif len({chain.value for chain in replica_chains.values()}) > 1:
            faults.append(f"partition {partition}: replicas differ: {dict(replica_chains)}")
        offsets += sum(end - start for start, end in ranges)
    if not offsets:
        faults.append("no chain was over anything")
    return verdict("hash chains of replicas agree", f"{offsets:,} offsets", faults)


def check_disks_sound(reports: Mapping[int, Sequence[Mapping[str, Any]]]) -> Verdict:
    """Check that the logs of stopped brokers are undamaged according to ``log dump --verify``."""
    faults: list[str] = []
    batches = 0
    for broker, rows in reports.items():
        if not rows:
            faults.append(f"broker {broker}: no partition was checked")
        for row in rows:
            if "/.deleted/" in row["folder"]:
                continue  # a quarantined or deleted log, which nothing reads any more
            batches += row["batches"]
            if row["is_damaged"]:
                faults.append(f"broker {broker}: {row['folder']}: {row['findings']}")
    if not batches:
        faults.append("not one batch was checked")
    return verdict("disks are sound", f"{batches:,} batches on {len(reports)} disks", faults)


def _after_gaps(events: Sequence[JournalEvent]) -> set[int]:
    """Return the sequence number of the first event after each gap."""
    return {
        after.sequence
        for before, after in pairwise(events)
        if after.sequence != before.sequence + 1
    }


def _starts_over(event: JournalEvent) -> bool:
    """Return whether a replica takes a role with an empty log, and so was created anew."""
    return event.kind == "role_changed" and event.facts["log_end"] == event.facts["log_start"]


def _in_order(journals: Journals) -> Iterator[JournalEvent]:
    """Yield all events, broker by broker, each in its own order."""
    for events in journals.values():
        yield from events
