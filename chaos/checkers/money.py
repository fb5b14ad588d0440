"""Checks of transactions: whole or absent, decided once, fenced, repeated without effect.

The ledger of a run and what was served in the end go in, a `Verdict` comes out. The names T6 to T16
are those of the invariants of transactions. What a refused request means for its transfer is told
by `fates`: only an answer that rules out every other attempt of it makes it one that must not be
there.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

from chaos.checkers.verdict import Verdict, verdict
from chaos.ledger import ACCOUNTS, BOOKS, KINDS, OPENING_BALANCE, booked

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from chaos.history import Fault, Line, Reading
    from chaos.ledger import (
        BookedRow,
        Ledger,
        MoneyEnd,
        NumberedBatch,
        TellerLife,
        TellerPosition,
        Transfer,
        TransferRequest,
    )

RULED_OUT = frozenset({40903, 40907, 40908, 40910, 40912})
"""Codes that a repeat of a decided transfer never hears, and that hold for each attempt under way:
its members, its offsets or its epoch are the past, or its key holds another content."""
OTHER_CONTENT = 40908
FENCED = 40907
NOT_EXPECTED = 40912
SETTLED_MS = 5_000
"""Time after a fault in which a broker may not know yet that it is deposed, and in which every
decision must be complete."""

Fate = Literal["there", "absent", "open"]


# ---------------------------------------------------------------- what must have become of each


def _requests(ledger: Ledger, *, commits: bool) -> dict[str, list[TransferRequest]]:
    found: dict[str, list[TransferRequest]] = defaultdict(list)
    for one in ledger.requests:
        if (one.what == "commit") is commits and one.what != "stage":
            found[one.transfer].append(one)
    return found


def fates(ledger: Ledger) -> tuple[dict[str, Fate], list[str]]:
    """Return transfer → what must have become of it, and the contradictions among the answers."""
    commits = _requests(ledger, commits=True)
    aborts = _requests(ledger, commits=False)
    lives = _lives(ledger)
    found: dict[str, Fate] = {}
    faults: list[str] = []
    for transfer in ledger.transfers.values():
        asked = commits.get(transfer.id, [])
        yes = _reasons_for(transfer, [*asked, *aborts.get(transfer.id, [])], lives)
        no = _reasons_against(transfer, asked, aborts.get(transfer.id, []), lives)
        if yes and no:
            faults.append(f"{transfer.id}: told {yes[0]}, and {no[0]}")
        found[transfer.id] = "there" if yes else "absent" if no else "open"
    return found, faults


def _lives(ledger: Ledger) -> dict[str, list[TellerLife]]:
    found: dict[str, list[TellerLife]] = defaultdict(list)
    for life in sorted(ledger.lives, key=lambda one: one.epoch):
        found[life.teller].append(life)
    return found


def _reasons_for(
    transfer: Transfer,
    requests: Iterable[TransferRequest],
    lives: Mapping[str, Sequence[TellerLife]],
) -> list[str]:
    found = [
        f"{one.told} by broker {one.broker}"
        for one in requests
        if one.told in {"complete", "committing"}
    ]
    place = transfer.position
    if place is not None:
        found += [
            f"{life.last[2]} by the init of epoch {life.epoch}"
            for life in lives.get(place.teller, ())
            if life.last and life.last[:2] == place[1:] and life.last[2] != "aborted"
        ]
    return found


def _reasons_against(
    transfer: Transfer,
    commits: Sequence[TransferRequest],
    aborts: Sequence[TransferRequest],
    lives: Mapping[str, Sequence[TellerLife]],
) -> list[str]:
    found = [f"{one.told} by broker {one.broker}" for one in aborts if one.told == "aborted"]
    found += [
        f"{one.code} by broker {one.broker}"
        for one in commits
        if one.told == "refused" and one.code in RULED_OUT
    ]
    if all(one.told == "refused" for one in commits):
        found.append("every commit of it was refused, or none was sent")
    place = transfer.position
    if place is not None:
        for life in lives.get(place.teller, ()):
            found += _ruled_out_by(life, place, commits)
    return found


def _ruled_out_by(
    life: TellerLife, place: TellerPosition, commits: Sequence[TransferRequest]
) -> list[str]:
    """Return why this init says that the position was not decided."""
    here = (place.epoch, place.number)
    if place.epoch >= life.epoch:
        return []
    if life.last and life.last[:2] == here and life.last[2] == "aborted":
        return [f"aborted by the init of epoch {life.epoch}"]
    is_behind = life.last is None or here > life.last[:2]
    if is_behind and place.epoch > life.forgotten_to_epoch:
        return [f"behind the last position that the init of epoch {life.epoch} told"]
    if commits and all(one.sent_ms > life.answered_ms for one in commits):
        return [f"first asked for after the init of epoch {life.epoch}"]
    return []


# ---------------------------------------------------------------- T6, T7: torn, told, too early


def _copies(books: Mapping[str, Reading]) -> dict[str, Counter[tuple[int, str, int, int]]]:
    """Return transfer → (row, topic, account, amount) → copies."""
    found: dict[str, Counter[tuple[int, str, int, int]]] = defaultdict(Counter)
    for topic in BOOKS:
        for _, _, row in _rows(books[topic]):
            found[row.transfer][row.row, topic, row.account, row.amount] += 1
    return found


def _rows(book: Reading) -> Iterable[tuple[int, Line, BookedRow]]:
    for partition, lines in book.partitions.items():
        for line in lines:
            yield partition, line, booked(line)


def check_not_torn(ledger: Ledger, books: Mapping[str, Reading]) -> Verdict:
    """Check that a transfer's rows are all there once or not at all, and of rivals one (T6, T9)."""
    copies = _copies(books)
    faults = [
        f"{one}: rows of a transfer that was never sent"
        for one in copies.keys() - ledger.transfers.keys()
    ]
    decided: dict[str, str] = {}
    for name in copies.keys() & ledger.transfers.keys():
        transfer = ledger.transfers[name]
        wanted = Counter((row, *entry) for row, entry in enumerate(transfer.entries))
        if copies[name] != wanted:
            found = {row[0]: count for row, count in copies[name].items()}
            faults.append(f"{name}: {len(wanted)} rows sent, there are row → copies {found}")
        rival = decided.setdefault(transfer.transaction, name)
        if rival != name:
            faults.append(f"{transfer.transaction}: both {rival} and {name} are there")
    if not copies:
        faults.append("the books are empty: nothing was shown")
    return verdict(
        "money: no transfer is torn",
        f"{len(copies):,} of {len(ledger.transfers):,} transfers are there, each whole",
        sorted(faults),
    )


def check_as_told(ledger: Ledger, books: Mapping[str, Reading]) -> Verdict:
    """Check that what was told as decided is there, and what was ruled out is not (T6, T7)."""
    wanted, faults = fates(ledger)
    there = set(_copies(books))
    for name, fate in wanted.items():
        if fate == "there" and name not in there:
            faults.append(f"{name}: told as decided, not there")
        if fate == "absent" and name in there:
            faults.append(f"{name}: refused, aborted or fenced, and there")
    counts = Counter(wanted.values())
    if not counts["there"] or not counts["absent"]:
        faults.append(f"{counts['there']} decided, {counts['absent']} ruled out: nothing was shown")
    return verdict(
        "money: decisions are as told",
        f"{counts['there']:,} decided, {counts['absent']:,} ruled out, "
        f"{counts['open']:,} never known",
        faults,
    )


def check_not_early(ledger: Ledger) -> Verdict:
    """Check that no row was read before its commit was sent to any broker (T7)."""
    first: dict[str, int] = {}
    for one in ledger.requests:
        if one.what == "commit":
            first[one.transfer] = min(one.sent_ms, first.get(one.transfer, one.sent_ms))
    faults: list[str] = []
    rows = 0
    for topic in BOOKS:
        for seen in ledger.seen.get(topic, ()):
            for line in seen.lines:
                rows += 1
                name = booked(line).transfer
                if name not in first or seen.answered_ms < first[name]:
                    faults.append(
                        f"{name}: broker {seen.broker} served {topic} {seen.partition}/"
                        f"{line.offset} before anything asked for its commit"
                    )
    if not rows:
        faults.append("no reader saw a row")
    return verdict("money: no row before its decision", f"{rows:,} rows seen by readers", faults)


# ---------------------------------------------------------------- T13: epochs


def check_epochs(ledger: Ledger, books: Mapping[str, Reading]) -> Verdict:
    """Check that epochs rise, none is told twice, and an older one decides nothing any more (T13).

    Two inits that overlap may be told in either order.
    """
    faults: list[str] = []
    there = set(_copies(books))
    commits = _requests(ledger, commits=True)
    fenced = sum(one.code == FENCED for one in ledger.requests)
    lives = _lives(ledger)
    for teller, told in lives.items():
        twice = [one.epoch for one, other in pairwise(told) if one.epoch == other.epoch]
        faults += [f"{teller}: epoch {epoch} was told twice" for epoch in twice]
        for one in told:
            later = [two for two in told if two.sent_ms > one.answered_ms]
            faults += [
                f"{teller}: epoch {two.epoch} was told after {one.epoch}"
                for two in later
                if two.epoch < one.epoch
            ]
    for transfer in ledger.transfers.values():
        place = transfer.position
        if place is None or transfer.id not in there:
            continue
        for life in lives.get(place.teller, ()):
            faults += [
                f"{transfer.id} is there: {why}"
                for why in _ruled_out_by(life, place, commits.get(transfer.id, []))
            ]
    if not fenced:
        faults.append("no producer was fenced: nothing was shown")
    return verdict(
        "money: a new epoch fences the old ones",
        f"{len(ledger.lives):,} lives of {len(lives)} producers, {fenced:,} requests fenced",
        faults,
    )


# ---------------------------------------------------------------- T14, T15: orders


def check_offsets_move_with_rows(ledger: Ledger, end: MoneyEnd, groups: Sequence[str]) -> Verdict:
    """Check that the answered ranges of orders lie end to end up to the commit (T14, T15)."""
    there = set(_copies(end.books))
    ranges: dict[tuple[str, int], list[tuple[int, int, str]]] = defaultdict(list)
    for transfer in ledger.transfers.values():
        if transfer.orders is not None and transfer.id in there:
            group, partition, first, last = transfer.orders
            ranges[group, partition].append((first, last, transfer.id))
    faults: list[str] = []
    for (group, partition), found in sorted(ranges.items()):
        found.sort()
        due = 0
        for first, last, name in found:
            if first != due:
                what = "again" if first < due else "after a gap"
                faults.append(f"{name}: {group} answered {partition}/{first} {what}, due was {due}")
            due = max(due, last)
        committed = end.committed.get(group, {}).get(partition, 0)
        if committed != due:
            faults.append(f"{group}: {committed} is committed in {partition}, answered to {due}")
    for group in groups:
        if not any(of == group for of, _ in ranges):
            faults.append(f"{group} answered no order")
        for partition, offset in end.committed.get(group, {}).items():
            if offset > 0 and (group, partition) not in ranges:
                faults.append(f"{group}: {offset} is committed in {partition}, nothing answered")
    total = sum(last - first for found in ranges.values() for first, last, _ in found)
    return verdict(
        "money: each order once, with its offset",
        f"{total:,} orders answered by {len(groups)} groups in {len(ranges)} partitions",
        faults,
    )


def check_offsets_stay(ledger: Ledger) -> Verdict:
    """Check that no broker tells an older offset than was told or answered before (T14).

    A read counts those that were answered before it was sent, and offsets of complete transfers.
    """
    known: dict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)
    for one in ledger.requests:
        orders = ledger.transfers[one.transfer].orders
        if one.what == "commit" and one.told == "complete" and orders is not None:
            known[orders.group, orders.partition].append((one.answered_ms, orders.end))
    for read in ledger.offset_reads:
        known[read.group, read.partition].append((read.answered_ms, read.offset))
    ends = {key: ToldEnds.rising(times) for key, times in known.items()}
    faults = [
        f"{read.group} {read.partition}: broker {read.broker} told {read.offset}, {due} was known"
        for read in ledger.offset_reads
        if max(0, read.offset) < (due := ends[read.group, read.partition].before(read.sent_ms))
    ]
    if not any(read.offset > 0 for read in ledger.offset_reads):
        faults.append("no committed offset was read")
    return verdict(
        "money: offsets never go back", f"{len(ledger.offset_reads):,} offsets read", faults
    )


def check_order_of_answers(ledger: Ledger, books: Mapping[str, Reading]) -> Verdict:
    """Check that answers to one partition of orders stand in its order in each target (T15)."""
    faults: list[str] = []
    last: dict[tuple[str, int, str, int], tuple[int, int]] = {}
    rows = 0
    for topic in BOOKS:
        for partition, line, row in _rows(books[topic]):
            transfer = ledger.transfers.get(row.transfer)
            if transfer is None or transfer.orders is None:
                continue
            rows += 1
            source = transfer.orders
            key = (source.group, source.partition, topic, partition)
            place = (source.first, row.row)
            if place < last.get(key, (-1, -1)):
                faults.append(
                    f"{topic} {partition}/{line.offset}: the answer to {source.partition}/"
                    f"{source.first} of {source.group} stands behind a later one"
                )
            last[key] = place
    if not rows:
        faults.append("no order was answered")
    return verdict("money: answers in the order of orders", f"{rows:,} rows of answers", faults)


def check_orders_once(told: Sequence[bytes], orders: Reading) -> Verdict:
    """Check that an order that was sent under a key until it was stored is there once (S7)."""
    copies = Counter(line.value for lines in orders.partitions.values() for line in lines)
    faults = [f"{value!r}: {count} copies" for value, count in copies.items() if count > 1]
    faults += [f"{value!r} was told as stored, not there" for value in told if not copies[value]]
    if not told:
        faults.append("no order was stored")
    return verdict("money: a produce with a key happens once", f"{len(copies):,} orders", faults)


# ---------------------------------------------------------------- T16: sums


def balances(books: Mapping[str, Reading]) -> dict[int, int]:
    """Return account → its balance, by the rows alone."""
    found = dict.fromkeys(range(ACCOUNTS), OPENING_BALANCE)
    for topic in BOOKS:
        for _, _, row in _rows(books[topic]):
            found[row.account] += row.amount
    return found


def check_sum(books: Mapping[str, Reading]) -> Verdict:
    """Check that the sum of all accounts is what it was (T16)."""
    found = balances(books)
    total, due = sum(found.values()), ACCOUNTS * OPENING_BALANCE
    faults = [] if total == due else [f"{total - due:+}"]
    moved = sum(balance != OPENING_BALANCE for balance in found.values())
    if not moved:
        faults.append("no account has moved: nothing was shown")
    return verdict(
        "money: the sum of all accounts stays",
        f"{total:,} in {ACCOUNTS} accounts, {moved} of them moved",
        faults,
    )


def check_shown_once_told(
    ledger: Ledger, books: Mapping[str, Reading], faults_made: Sequence[Fault]
) -> Verdict:
    """Check that a fetch sent after a transfer's 200 does not end before its rows (T16).

    So a reader that counts only transfers with a 200 finds them whole at any time. A broker that is
    cut off may serve less until it knows that it is deposed: fetches during a fault are only
    counted.
    """
    told: dict[str, int] = {}
    for one in ledger.requests:
        if one.what == "commit" and one.told == "complete":
            told[one.transfer] = min(one.answered_ms, told.get(one.transfer, one.answered_ms))
    broken = [(one.at_ms, (one.healed_ms or one.at_ms) + SETTLED_MS) for one in faults_made]
    faults: list[str] = []
    checked = excused = 0
    for topic in BOOKS:
        ends = _due_ends(books[topic], told)
        for seen in ledger.seen.get(topic, ()):
            if not seen.lines:
                continue
            checked += 1
            due = ends.get(seen.partition, _NO_ENDS).before(seen.sent_ms)
            if seen.lines[-1].offset + 1 >= due:
                continue
            if any(since <= seen.answered_ms and seen.sent_ms <= to for since, to in broken):
                excused += 1
                continue
            faults.append(
                f"{topic} {seen.partition}: broker {seen.broker} served up to "
                f"{seen.lines[-1].offset}, a row before {due} was told as complete"
            )
    if not checked:
        faults.append("no reader saw a row")
    return verdict(
        "money: what was told can be read",
        f"{checked:,} fetches, {excused:,} by brokers amid a fault",
        faults,
    )


@dataclass(slots=True)
class ToldEnds:
    """Ends of a partition that were due from a time on: (time, end), both rising."""

    steps: list[tuple[int, int]] = field(default_factory=list)

    @classmethod
    def rising(cls, times: Iterable[tuple[int, int]]) -> ToldEnds:
        """Return the highest end known from each time on."""
        ends, highest = cls(), 0
        for told_ms, end in sorted(times):
            if end > highest:
                highest = end
                ends.steps.append((told_ms, end))
        return ends

    def before(self, at_ms: int) -> int:
        """Return the end that every fetch sent at this time must reach."""
        due = 0
        for told_ms, end in self.steps:
            if told_ms >= at_ms:
                break
            due = end
        return due


_NO_ENDS = ToldEnds()


def _due_ends(book: Reading, told: Mapping[str, int]) -> dict[int, ToldEnds]:
    found: dict[int, ToldEnds] = {}
    for partition, lines in book.partitions.items():
        times = [
            (told[name], line.offset + 1)
            for line in lines
            if (name := booked(line).transfer) in told
        ]
        found[partition] = ToldEnds.rising(times)
    return found


# ---------------------------------------------------------------- T10, T11, T12, and proof


def check_numbers(disks: Mapping[int, Mapping[str, Sequence[NumberedBatch]]]) -> Verdict:
    """Check that the row numbers of each numbering are 0, 1, 2… in each replica's log (T10).

    Args:
        disks: broker → partition → its numbered batches, in the order of the file.
    """
    faults: list[str] = []
    rows = 0
    for broker, partitions in disks.items():
        for partition, batches in partitions.items():
            due: dict[int, int] = {}
            for batch in batches:
                expected = due.get(batch.numbering, 0)
                if batch.first != expected:
                    faults.append(
                        f"broker {broker} {partition}: numbering {batch.numbering:x} goes on with "
                        f"{batch.first}, due was {expected}"
                    )
                due[batch.numbering] = batch.first + batch.rows
                rows += batch.rows
    if not rows:
        faults.append("no disk holds a numbered row")
    return verdict(
        "money: row numbers are dense on every disk",
        f"{rows:,} rows on the disks of {len(disks)} brokers",
        faults,
    )


def check_late_repeats(end: MoneyEnd) -> Verdict:
    """Check that recorded requests, sent again late, change no book and no decision (T11)."""
    faults = [
        f"{one.transfer}: {one.what} was {one.first}, a late repeat was told {one.again} "
        f"{one.reason}"
        for one in end.repeats
        if (one.first == "complete") != (one.again == "complete") and one.again != "unknown"
    ]
    for topic, book in end.books.items():
        later = end.later_books[topic].partitions
        for partition, lines in book.partitions.items():
            if later[partition] != lines:
                count = len(later[partition]) - len(lines)
                faults.append(f"{topic} {partition}: {count:+} rows behind the late repeats")
    decided = sum(one.first == one.again == "complete" for one in end.repeats)
    if not decided or decided == len(end.repeats):
        faults.append(f"{decided} of {len(end.repeats)} repeats were of decided transfers")
    return verdict(
        "money: late repeats change nothing",
        f"{len(end.repeats):,} requests sent again, {decided:,} of decided transfers",
        faults,
    )


def check_completed(end: MoneyEnd, limit_ms: int) -> Verdict:
    """Check that every decision was complete in time once all was whole (T12)."""
    took = end.completed_ms
    faults = [f"{name} is committing" for name in end.waiting]
    if took is None or took > limit_ms:
        faults.append(f"not within {limit_ms} ms")
    told = "never" if took is None else f"after {took / 1000:.1f} s"
    return verdict(
        "money: every decision completes", f"{told}, limit {limit_ms / 1000:g} s", faults
    )


def check_enough(ledger: Ledger, floor: int, since_ms: int) -> Verdict:
    """Check that each kind of transfer was made often enough, after the faults too."""
    made: Counter[str] = Counter()
    after: Counter[str] = Counter()
    codes: Counter[int] = Counter(one.code for one in ledger.requests)
    told: Counter[str] = Counter(one.told for one in ledger.requests)
    counted: set[str] = set()
    for one in ledger.requests:
        if one.what == "commit" and one.told == "complete" and one.transfer not in counted:
            counted.add(one.transfer)
            kind = ledger.transfers[one.transfer].kind
            made[kind] += 1
            after[kind] += one.sent_ms >= since_ms
    faults = [
        f"{kind}: {count[kind]} complete {when}, at least {floor}"
        for count, when in ((made, "in all"), (after, "after the faults"))
        for kind in KINDS
        if count[kind] < floor
    ]
    faults += [
        f"no {what}"
        for what, count in (
            ("rival was refused", codes[OTHER_CONTENT]),
            ("transfer was aborted", told["aborted"]),
            ("offset was another than expected", codes[NOT_EXPECTED]),
        )
        if not count
    ]
    shown = ", ".join(f"{made[kind]:,} {kind} ({after[kind]:,} after)" for kind in KINDS)
    asides = (
        f"{codes[OTHER_CONTENT]} rivals refused, {told['aborted']} aborted, "
        f"{codes[NOT_EXPECTED]} unexpected offsets, {told['committing']} answered 202, "
        f"{told['unknown']} unknown"
    )
    return verdict("money: enough was moved to prove something", f"{shown}; {asides}", faults)
