"""Invariants L of docs/claims.md, each a function that bears its id; T1, R5 where they meet.

Each takes the tally first, counts itself in it, and raises `Violation` with its id when it is
broken. They see plain values; who gathers them is ``replication_judge``. What is not judged here is
named in the table of docs/claims.md with the test that judges it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise

Tally = Counter[str]
Entry = tuple[int, int]
"""(leader epoch, value); a value is unique over the whole history."""
Mirror = Sequence[Entry | None]
"""A log by offset. None: below the log start, or removed by compaction: it may hold anything."""


FIRST_NUMBER = 100
"""Clients count from the next one on."""


class Violation(BaseException):
    """A broken invariant, by its id. No Exception: nobody who is judged may handle it."""

    def __init__(self, check: str, *facts: object) -> None:
        super().__init__(f"invariant {check}: " + " | ".join(map(str, facts)))
        self.check = check


def agree(one: Mirror, other: Mirror) -> int | None:
    """The first offset at which both hold something, and not the same; None: nowhere."""
    end = min(len(one), len(other))
    if one[:end] == other[:end]:
        return None
    for offset in range(end):
        a, b = one[offset], other[offset]
        if a != b and a is not None and b is not None:
            return offset
    return None


def holds(log: Mirror, wanted: Mirror, start: int) -> bool:
    """Whether a log holds all of this from an offset on."""
    if len(log) < len(wanted):
        return False
    if log[start : len(wanted)] == wanted[start:]:
        return True
    return all(
        log[offset] == wanted[offset] or wanted[offset] is None or log[offset] is None
        for offset in range(start, len(wanted))
    )


def l1_log_matching(t: Tally, one: Mirror, other: Mirror, high_watermark: int) -> None:
    t["L1"] += 1
    at = agree(one[:high_watermark], other[:high_watermark])
    if at is not None:
        raise Violation("L1", f"offset {at} below {high_watermark}: {one[at]} and {other[at]}")


def l2_strong_isr(t: Tally, durable: Mirror, exposed: Mirror, start: int, broker: int) -> None:
    """On the platters: what is below a high watermark survives a power cut of every member."""
    t["L2"] += 1
    if not holds(durable, exposed, start):
        raise Violation("L2", f"member {broker} has {len(durable)} durable", f"{len(exposed)} seen")


def l3_candidate_completeness(t: Tally, log: Mirror, exposed: Mirror, start: int, b: int) -> None:
    t["L3"] += 1
    if not holds(log, exposed, start):
        raise Violation("L3", f"candidate {b} ends at {len(log)}", f"{len(exposed)} seen")


def l4_leader_completeness(
    t: Tally, log: Mirror, exposed: Mirror, start: int, leader: int, epoch: int
) -> None:
    t["L4"] += 1
    if not holds(log, exposed, start):
        lost = [each for at, each in enumerate(exposed) if at >= len(log) or log[at] != each]
        raise Violation("L4", f"leader {leader} of epoch {epoch} lacks {lost}")


def l5_maximal_isr_covers(
    t: Tally, maximal: Collection[int], committed: Collection[int], may_commit: Collection[int]
) -> None:
    """The controller's ISR and ELR, and every ISR on its way there that it could accept."""
    t["L5"] += 1
    beyond = (set(committed) | set(may_commit)) - set(maximal)
    if beyond:
        raise Violation("L5", f"maximal ISR {set(maximal)} is without {beyond}")


def l6_settled_isr(t: Tally, maximal: Collection[int], isr: Collection[int]) -> None:
    t["L6"] += 1
    if set(maximal) != set(isr):
        raise Violation("L6", f"nothing is pending, maximal ISR {set(maximal)}, ISR {set(isr)}")


def l7_seen_never_changes(t: Tally, log: Mirror, exposed: Mirror, end: int, broker: int) -> None:
    """What anybody could read stays what it is, on every replica that lets it be read."""
    t["L7"] += 1
    at = agree(log[:end], exposed)
    if at is not None:
        raise Violation("L7", f"broker {broker} offset {at}: {log[at]}, seen was {exposed[at]}")


def l8_ends_in_order(
    t: Tally, start: int, high_watermark: int, durable: int, end: int, broker: int
) -> None:
    t["L8"] += 1
    if not (start <= high_watermark <= end and durable <= end):
        ends = f"start {start}, hw {high_watermark}, durable {durable}, end {end}"
        raise Violation("L8", f"broker {broker}: {ends}")


def l9_enough_in_sync(t: Tally, isr: int, min_isr: int, leader: int) -> None:
    t["L9"] += 1
    if isr < min_isr:
        raise Violation("L9", f"leader {leader} moved with {isr} in sync, min ISR is {min_isr}")


def l10_acknowledged_is_read(
    t: Tally, where: Mapping[int, int], value: int, offset: int, place: str
) -> None:
    t["L10"] += 1
    if where.get(value) != offset:
        raise Violation("L10", f"acknowledged {value} at {offset}", place, where.get(value))


def l11_cache_is_the_logs(
    t: Tally, cache: Sequence[tuple[int, int]], log: Mirror, start: int, broker: int
) -> None:
    """Strictly growing epochs, growing starts, no record of another epoch, none unnamed."""
    t["L11"] += 1
    for (epoch, at), (later, behind) in pairwise(cache):
        if later <= epoch or behind < at:
            raise Violation("L11", f"broker {broker}: {cache}")
    if cache and cache[-1][1] > len(log):
        raise Violation("L11", f"broker {broker}: {cache} passes the log end {len(log)}")
    position = -1
    for offset in range(start, len(log)):
        while position + 1 < len(cache) and cache[position + 1][1] <= offset:
            position += 1
        found, known = log[offset], cache[position][0] if position >= 0 else -1
        if found is not None and found[0] != known:
            raise Violation("L11", f"broker {broker} offset {offset}: {found}", cache)


def l11_cache_is_rebuilt(
    t: Tally, cache: Sequence[tuple[int, int]], rebuilt: Sequence[tuple[int, int]], broker: int
) -> None:
    t["L11 rebuilt"] += 1
    if list(cache) != list(rebuilt):
        raise Violation("L11", f"broker {broker}: {list(cache)}, from the log {list(rebuilt)}")


def l12_in_order(t: Tally, runs: Sequence[tuple[int, int, int]], broker: int) -> None:
    """Batches as (base, next, epoch): each begins where the last ended, epochs never fall."""
    t["L12"] += 1
    for (_, end, epoch), (base, behind, later) in pairwise(runs):
        if base != end or later < epoch or behind <= base:
            raise Violation("L12", f"broker {broker}: {(base, behind, later)} behind {end, epoch}")


def l13_no_cut_below_high_watermark(t: Tally, end: int, high_watermark: int, broker: int) -> None:
    t["L13"] += 1
    if end < high_watermark:
        raise Violation("L13", f"broker {broker} cut to {end}, high watermark {high_watermark}")


def l14_follower_is_a_prefix(t: Tally, log: Mirror, reign: Mirror, broker: int, epoch: int) -> None:
    """Of the log of the leader of that epoch, from the moment that leader said so."""
    t["L14"] += 1
    at = agree(log, reign)
    if at is not None or len(log) > len(reign):
        raise Violation("L14", f"follower {broker} in epoch {epoch} differs at {at}", len(log))


def l15_leader_never_cuts(t: Tally, broker: int, *, leads: bool) -> None:
    t["L15"] += 1
    if leads:
        raise Violation("L15", f"leader {broker} truncated its log")


def l16_divergence_changes_nothing(t: Tally, before: object, after: object, broker: int) -> None:
    t["L16"] += 1
    if before != after:
        raise Violation("L16", f"broker {broker}: {before} became {after}")


def l17_other_epochs_are_refused(
    t: Tally, said: tuple[int, int], present: tuple[int, int], leader: int
) -> None:
    """Of (leader epoch, broker epoch) a stream is opened, or acknowledged, in the present only."""
    t["L17"] += 1
    if said != present:
        raise Violation("L17", f"leader {leader} took {said}, at present {present}")


def l18_joins_caught_up(
    t: Tally, durable: int, high_watermark: int, epoch_start: int, joiner: int
) -> None:
    t["L18"] += 1
    if durable < high_watermark or durable < epoch_start:
        raise Violation("L18", f"{joiner} joins at {durable}", high_watermark, epoch_start)


def l19_zombie_commits_nothing(t: Tally, epoch: int, newest_seen: int, leader: int) -> None:
    """Once something of a newer reign was seen, nothing more is, of an older one."""
    t["L19"] += 1
    if epoch < newest_seen:
        raise Violation("L19", f"{leader} commits in {epoch}, records of {newest_seen} were seen")


def l20_reads_are_seen(t: Tally, high_watermark: int, seen: int, broker: int) -> None:
    """A replica that anybody may read, follower or not, lets nothing be read that is not safe."""
    t["L20"] += 1
    if high_watermark > seen:
        raise Violation("L20", f"broker {broker} lets read to {high_watermark}, seen is {seen}")


def l20_nothing_is_left_out(t: Tally, served: Mirror, log: Mirror, start: int, b: int) -> None:
    """What stands between the offset asked for and the one to read on from is in the answer."""
    t["L20 whole"] += 1
    for offset, (found, known) in enumerate(zip(served, log, strict=False), start):
        if found is None and known is not None:
            raise Violation("L20", f"broker {b} leaves out offset {offset}: {known}")


def l21_latest_is_the_latest(t: Tally, latest: int, seen_before: int, leader: int) -> None:
    """Asked of a leader whose high watermark has reached its epoch's start."""
    t["L21"] += 1
    if latest < seen_before:
        raise Violation("L21", f"leader {leader} says {latest}, {seen_before} was seen before")


def l22_served_is_sound(t: Tally, served: Mirror, known: Mirror, start: int, broker: int) -> None:
    """What a read returns is what was appended there, every batch of it with its checksum."""
    t["L22"] += 1
    for offset, found in enumerate(served, start):
        if found != known[offset] and found is not None and known[offset] is not None:
            raise Violation("L22", f"broker {broker} offset {offset}: {found} {known[offset]}")


def l23_recovered_is_a_prefix(
    t: Tally, found: Mirror, before: Mirror, durable: Mirror, broker: int
) -> None:
    """Of what was there, and all that was synced."""
    t["L23"] += 1
    if len(found) > len(before) or agree(found, before) is not None:
        raise Violation("L23", f"broker {broker} recovered what it never had", len(found))
    if len(found) < len(durable) or agree(found, durable) is not None:
        raise Violation("L23", f"broker {broker} has {len(found)} of {len(durable)} durable")


def l24_start_below_high_watermark(t: Tally, start: int, seen: int, broker: int) -> None:
    t["L24"] += 1
    if start > seen:
        raise Violation("L24", f"broker {broker} deleted up to {start}, seen is {seen}")


def l25_offset_has_one_content(
    t: Tally, contents: dict[tuple[int, int], int], entry: Entry, offset: int
) -> None:
    t["L25"] += 1
    if contents.setdefault((entry[0], offset), entry[1]) != entry[1]:
        known = contents[entry[0], offset]
        raise Violation("L25", f"epoch {entry[0]} offset {offset}: {known} and {entry[1]}")


def l26_refused_leaves_nothing(
    t: Tally, before: tuple[int, int], after: tuple[int, int], broker: int
) -> None:
    """(Log end, bytes of the newest segment) around a write that was refused as not written."""
    t["L26"] += 1
    if before != after:
        raise Violation("L26", f"broker {broker}: refused, yet {before} became {after}")


def r5_not_written_is_nowhere(t: Tally, seen: Collection[int], value: int) -> None:
    t["rule R5"] += 1
    if value in seen:
        raise Violation("rule R5", f"{value} was said not to be written, and is there")


def t1_once(t: Tally, where: Mapping[int, int], value: int, offset: int) -> None:
    t["T1"] += 1
    if where.get(value, offset) != offset:
        raise Violation("T1", f"{value} stands at {where[value]} and at {offset}")


def l27_in_time(t: Tally, what: str, settled: object, *, facts: object) -> None:
    t["L27"] += 1
    if settled is None:
        raise Violation("L27", what, facts)


def p6_joins_in_its_present_life(t: Tally, joiner: int, *, living: bool, present: bool) -> None:
    t["P6"] += 1
    if not (living and present):
        raise Violation("P6", f"{joiner} joins: unfenced {living}, in its present life {present}")


def t4_producers_are_the_replay(t: Tally, known: object, replayed: object, broker: int) -> None:
    t["T4"] += 1
    if known != replayed:
        raise Violation("T4", f"broker {broker} remembers {known}, its log says {replayed}")


def r7_latest_of_each_key(
    t: Tally,
    log: Mirror,
    keys: Mapping[int, Sequence[int]],
    tombstones: Collection[int],
    starts: tuple[int, int],
    place: str,
) -> None:
    """``keys``: the offsets of each key's records that were seen; ``starts``: what is below the
    first was deleted for all, below the second it can't be read in this log.

    The newest stands there, or is a tombstone that is gone; and then nothing older is left.
    """
    t["rule R7"] += 1
    deleted_to, start = starts
    for key, offsets in keys.items():
        newest = offsets[-1]
        if newest < deleted_to or log[newest] is not None:
            continue
        if newest not in tombstones:
            raise Violation("rule R7", f"{place} lacks the newest of key {key}, at {newest}")
        back = [at for at in offsets if at >= start and log[at] is not None]
        if back:
            raise Violation("rule R7", f"{place}: key {key} is back, deleted at {newest}", back)


def r7_table_is_the_latest(
    t: Tally,
    found: Mapping[int, int],
    sent: Mapping[int, Sequence[tuple[int, bool, bool | None, int]]],
    start: int,
) -> None:
    """What a client makes of a read from the beginning, by what it was told of its writes alone.

    ``found``: offset by number of the newest record of each key. ``sent``: by key, each write as
    (number, is a tombstone, whether it is there: None where nobody knows, its offset).
    """
    t["rule R7 read"] += 1
    for key, writes in sent.items():
        known = [write for write in writes if write[2] and write[3] >= start]
        last = max(known, key=lambda write: write[3], default=None)
        may_be = {write[0] for write in writes if write[2] is None}
        there = [write[0] for write in writes if write[0] in found]
        if not there:
            gone = last is None or last[1]
            if not gone and not any(tombstone and fate is None for _, tombstone, fate, _ in writes):
                raise Violation("rule R7", f"key {key} is not there", last)
            continue
        (number,) = there
        if last is not None and found[number] < last[3]:
            raise Violation("rule R7", f"key {key} is as it was: {number}, later was {last}")
        if number not in may_be and (last is None or number != last[0]):
            raise Violation("rule R7", f"key {key} is {number}, last was {last}")


def r7_only_below(t: Tally, gone: Sequence[int], high_watermark: int, durable: int, b: int) -> None:
    """What is compacted away was committed, and is on the disk."""
    t["rule R7 below"] += 1
    if gone and gone[-1] >= min(high_watermark, durable):
        raise Violation("rule R7", f"broker {b} lost {gone}", high_watermark, durable)


def r7_tombstone_may_go(
    t: Tally, offset: int, replicated_to: int, clean_for_ms: int, retention_ms: int, b: int
) -> None:
    t["rule R7 tombstones"] += 1
    if offset >= replicated_to:
        raise Violation("rule R7", f"broker {b} drops {offset}", f"all hold {replicated_to}")
    if clean_for_ms < retention_ms:
        why = f"clean for {clean_for_ms} ms of {retention_ms}"
        raise Violation("rule R7", f"broker {b} drops {offset}", why)


def r7_replicated_to(t: Tally, said: int, held: Mapping[int, int], leader: int) -> None:
    """By every assigned replica the leader knows of, at some time in its life."""
    t["rule R7 replicated"] += 1
    if said > min(held.values()):
        raise Violation("rule R7", f"leader {leader} says all hold {said}", held)


def r10_old_enough(t: Tally, ages_ms: Sequence[int], retention_ms: int, leader: int) -> None:
    """What goes for its age, by the clock that all agree on."""
    t["rule R10 age"] += 1
    young = [age for age in ages_ms if age < retention_ms]
    if young or retention_ms < 0:
        raise Violation("rule R10", f"leader {leader} deletes of age {young}", retention_ms)


def r10_decided_by_a_leader(t: Tally, start: int, decided: int, broker: int) -> None:
    t["rule R10"] += 1
    if start > decided:
        raise Violation("rule R10", f"broker {broker} begins at {start}, decided was {decided}")


def q5_emptied_counts_nowhere(t: Tally, broker: int, counting: Collection[int]) -> None:
    """A damaged log is set aside once it is committed that nobody counts on it."""
    t["rule Q5 counts nowhere"] += 1
    if broker in counting:
        raise Violation("rule Q5", f"{broker} sets its log aside", set(counting))


def q5_last_copy_stays(
    t: Tally, broker: int, kept: Sequence[Mirror], exposed: Mirror, start: int
) -> None:
    """``kept``: what others that count, and are sound, have on their platters."""
    t["rule Q5 last copy"] += 1
    if not any(holds(log, exposed, start) for log in kept):
        raise Violation("rule Q5", f"{broker} sets aside the last that was seen", len(kept))


def r4_emptied_behind_its_epoch(t: Tally, broker: int, took_part: int, epoch: int) -> None:
    """What was said of a log that is set aside was said in an older leader epoch."""
    t["rule R4 behind its epoch"] += 1
    if took_part >= epoch:
        raise Violation("rule R4", f"{broker} took part in {took_part}, now is {epoch}")


def r4_nothing_puts_it_back(
    t: Tally, broker: int, proposed: tuple[int, ...] | None, present: tuple[int, ...]
) -> None:
    """An ISR on its way, by (leader, leader epoch, partition epoch), that the controller takes."""
    t["rule R4 puts back"] += 1
    if proposed == present:
        raise Violation("rule R4", f"{broker}, which is emptied, may be put back", present)


def somebody_sent_it(t: Tally, value: int, newest: int, broker: int) -> None:
    """No log holds a record that no client ever sent."""
    t["sent"] += 1
    if not FIRST_NUMBER < value <= newest:
        raise Violation("sent", f"broker {broker} holds {value}, the newest is {newest}")
