"""The checkers of money: each meets an innocent ledger and a guilty one for each thing it finds."""

from __future__ import annotations

from dataclasses import replace

import orjson
import pytest

from chaos.checkers.money import (
    balances,
    check_as_told,
    check_completed,
    check_enough,
    check_epochs,
    check_late_repeats,
    check_not_early,
    check_not_torn,
    check_numbers,
    check_offsets_move_with_rows,
    check_offsets_stay,
    check_order_of_answers,
    check_orders_once,
    check_shown_once_told,
    check_sum,
    fates,
)
from chaos.history import Fault, Line, Observation, Reading
from chaos.ledger import (
    CREDITS,
    DEBITS,
    Entry,
    Kind,
    Ledger,
    MoneyEnd,
    NumberedBatch,
    OffsetRead,
    OrderRange,
    Repeat,
    TellerLife,
    TellerPosition,
    Told,
    Transfer,
    TransferRequest,
    What,
)

ENTRIES = (Entry(DEBITS, 1, -5), Entry(CREDITS, 2, 3), Entry(CREDITS, 3, 2))


def transfer(
    name: str,
    kind: Kind = "one shot",
    *,
    of: str = "",
    position: tuple[str, int, int] | None = None,
    orders: tuple[str, int, int, int] | None = None,
) -> Transfer:
    return Transfer(
        id=name,
        transaction=of or name,
        kind=kind,
        entries=ENTRIES,
        position=TellerPosition(*position) if position else None,
        orders=OrderRange(*orders) if orders else None,
    )


def asked(
    name: str, told: Told, *, code: int = 0, at: int = 10, took: int = 5, what: What = "commit"
) -> TransferRequest:
    return TransferRequest(
        transfer=name,
        what=what,
        broker=1,
        sent_ms=at,
        answered_ms=at + took,
        told=told,
        code=code,
    )


def life(
    epoch: int, *, at: int, last: tuple[int, int, str] | None = None, took: int = 5
) -> TellerLife:
    return TellerLife(
        teller="t", epoch=epoch, last=last, forgotten_to_epoch=-1, sent_ms=at, answered_ms=at + took
    )


SHOT = transfer("shot")
RIVAL = transfer("rival", of="shot")
FIRST = transfer("first", "staged", position=("t", 0, 0))
ZOMBIE = transfer("zombie", "staged", position=("t", 0, 1))
ANSWER = transfer("answer", "members", orders=("g", 0, 0, 2))
NEXT = transfer("next", "members", orders=("g", 0, 2, 3))


def ledger(
    *events: TransferRequest | TellerLife, transfers: tuple[Transfer, ...] = (SHOT, RIVAL)
) -> Ledger:
    made = Ledger()
    for one in transfers:
        made.plan(one)
    for event in events:
        made.add(event)
    return made


def line(offset: int, one: Transfer, row: int) -> Line:
    return Line(offset, b"null", one.value(row))


def books(*transfers: Transfer) -> dict[str, Reading]:
    """All rows of these in partition 0 of each book, in this order."""
    found: dict[str, Reading] = {}
    for topic in (DEBITS, CREDITS):
        rows = [
            (one, row)
            for one in transfers
            for row, entry in enumerate(one.entries)
            if entry.topic == topic
        ]
        found[topic] = Reading(2, {0: [line(at, *each) for at, each in enumerate(rows)]})
    return found


def without(found: dict[str, Reading], topic: str, offset: int) -> dict[str, Reading]:
    lines = [one for one in found[topic].partitions[0] if one.offset != offset]
    return found | {topic: Reading(2, {0: lines})}


ONE_TOLD = ledger(asked("shot", "complete"), asked("rival", "refused", code=40908))


# -- torn


def test_not_torn_innocent() -> None:
    found = check_not_torn(ONE_TOLD, books(SHOT))
    assert found.passed
    assert found.figures == "1 of 2 transfers are there, each whole"


def test_not_torn_guilty_of_a_missing_row() -> None:
    found = check_not_torn(ONE_TOLD, without(books(SHOT), CREDITS, 1))
    assert found.examples == ("shot: 3 rows sent, there are row → copies {0: 1, 1: 1}",)


def test_not_torn_guilty_of_a_row_that_is_there_twice() -> None:
    doubled = books(SHOT)
    doubled[DEBITS].partitions[0].append(line(1, SHOT, 0))
    assert not check_not_torn(ONE_TOLD, doubled).passed


def test_not_torn_guilty_of_a_changed_row() -> None:
    changed = replace(SHOT, entries=(Entry(DEBITS, 1, -6), *ENTRIES[1:]))
    assert not check_not_torn(ONE_TOLD, books(changed)).passed


def test_not_torn_guilty_of_a_row_in_the_other_topic() -> None:
    moved = books(SHOT)
    moved[CREDITS].partitions[0].append(moved[DEBITS].partitions[0].pop())
    assert not check_not_torn(ONE_TOLD, moved).passed


def test_not_torn_guilty_of_two_rivals() -> None:
    found = check_not_torn(ONE_TOLD, books(SHOT, RIVAL))
    assert len(found.examples) == 1
    assert found.examples[0].startswith("shot: both ")


def test_not_torn_guilty_of_a_row_that_was_not_sent() -> None:
    assert not check_not_torn(ONE_TOLD, books(SHOT, transfer("other"))).passed


def test_not_torn_guilty_of_proving_nothing() -> None:
    assert not check_not_torn(ONE_TOLD, books()).passed


# -- as told


def test_as_told_innocent() -> None:
    assert check_as_told(ONE_TOLD, books(SHOT)).passed


def test_as_told_guilty_of_losing_a_decided_one() -> None:
    assert check_as_told(ONE_TOLD, books()).examples == ("shot: told as decided, not there",)


def test_as_told_guilty_of_losing_one_answered_with_202() -> None:
    told = ledger(asked("shot", "committing"), asked("rival", "refused", code=40908))
    assert not check_as_told(told, books()).passed


def test_as_told_guilty_of_showing_a_refused_one() -> None:
    assert not check_as_told(ONE_TOLD, books(SHOT, RIVAL)).passed


def test_as_told_guilty_of_showing_one_without_a_commit() -> None:
    staged = ledger(asked("shot", "complete"), transfers=(SHOT, FIRST))
    assert not check_as_told(staged, books(SHOT, FIRST)).passed


def test_as_told_guilty_of_showing_an_aborted_one() -> None:
    told = ledger(
        asked("shot", "complete"),
        asked("first", "unknown"),
        asked("first", "aborted", what="abort"),
        transfers=(SHOT, FIRST),
    )
    assert check_as_told(told, books(SHOT)).passed
    assert not check_as_told(told, books(SHOT, FIRST)).passed


def test_as_told_guilty_of_a_contradiction() -> None:
    told = ledger(asked("shot", "complete"), asked("shot", "refused", code=40908))
    assert check_as_told(told, books(SHOT)).examples[0].startswith("shot: told complete by")


def test_as_told_guilty_of_proving_nothing() -> None:
    assert not check_as_told(ledger(asked("shot", "unknown")), books(SHOT)).passed


def test_a_refusal_beside_an_unknown_attempt_rules_nothing_out() -> None:
    told = ledger(asked("shot", "unknown"), asked("shot", "refused", code=50003))
    assert fates(told)[0] == {"shot": "open", "rival": "absent"}


def test_an_init_tells_the_fate_of_an_unknown_commit() -> None:
    for state, fate in (("complete", "there"), ("committing", "there"), ("aborted", "absent")):
        told = ledger(
            asked("first", "unknown"), life(1, at=50, last=(0, 0, state)), transfers=(FIRST,)
        )
        assert fates(told) == ({"first": fate}, [])
    behind = ledger(asked("zombie", "unknown"), life(1, at=50, last=(0, 0, "complete")),
                    transfers=(ZOMBIE,))  # fmt: skip
    assert fates(behind)[0] == {"zombie": "absent"}


# -- early


def seen(*lines: Line, at: int, topic: str = DEBITS) -> dict[str, list[Observation]]:
    one = Observation(broker=3, partition=0, offset=0, sent_ms=at - 1, answered_ms=at, lines=lines)
    return {topic: [one]}


def with_seen(found: Ledger, what: dict[str, list[Observation]]) -> Ledger:
    return replace(found, seen=what)


def test_not_early_innocent() -> None:
    assert check_not_early(with_seen(ONE_TOLD, seen(line(0, SHOT, 0), at=11))).passed


def test_not_early_guilty_of_a_row_before_its_commit_was_sent() -> None:
    assert not check_not_early(with_seen(ONE_TOLD, seen(line(0, SHOT, 0), at=9))).passed


def test_not_early_guilty_of_a_staged_row() -> None:
    staged = ledger(asked("first", "complete", what="stage"), transfers=(FIRST,))
    assert not check_not_early(with_seen(staged, seen(line(0, FIRST, 0), at=90))).passed


def test_not_early_guilty_of_proving_nothing() -> None:
    assert not check_not_early(ONE_TOLD).passed


# -- epochs


FENCED = ledger(
    life(0, at=0),
    asked("first", "complete", at=10),
    life(1, at=50, last=(0, 0, "complete")),
    asked("zombie", "refused", code=40907, at=60),
    transfers=(FIRST, ZOMBIE),
)


def test_epochs_innocent() -> None:
    assert check_epochs(FENCED, books(FIRST)).passed


def test_epochs_guilty_of_a_zombie() -> None:
    assert not check_epochs(FENCED, books(FIRST, ZOMBIE)).passed


def test_epochs_guilty_of_deciding_a_new_position_after_a_later_init_of_unknown_last() -> None:
    told = ledger(
        life(1, at=50, last=(0, 9, "complete")),
        asked("zombie", "complete", at=60),
        asked("first", "refused", code=40907, at=60),
        transfers=(FIRST, ZOMBIE),
    )
    assert not check_epochs(told, books(ZOMBIE)).passed


def test_epochs_guilty_of_an_epoch_told_twice() -> None:
    assert not check_epochs(
        ledger(*FENCED.lives, *FENCED.requests, life(1, at=70), transfers=(FIRST, ZOMBIE)),
        books(FIRST),
    ).passed


def test_epochs_guilty_of_going_back() -> None:
    back = ledger(
        life(5, at=0), life(4, at=20), asked("zombie", "refused", code=40907), transfers=(ZOMBIE,)
    )
    assert check_epochs(back, books()).examples == ("t: epoch 4 was told after 5",)


def test_epochs_of_two_inits_at_once_may_come_in_either_order() -> None:
    at_once = ledger(
        life(5, at=0), life(4, at=3), asked("zombie", "refused", code=40907), transfers=(ZOMBIE,)
    )
    assert check_epochs(at_once, books()).passed


def test_epochs_guilty_of_proving_nothing() -> None:
    assert not check_epochs(ledger(life(0, at=0)), books(FIRST)).passed


# -- orders


ANSWERED = ledger(asked("answer", "complete"), asked("next", "complete"), transfers=(ANSWER, NEXT))


def end(*transfers: Transfer, committed: int = 3) -> MoneyEnd:
    return MoneyEnd(books=books(*transfers), committed={"g": {0: committed}})


def test_offsets_innocent() -> None:
    found = check_offsets_move_with_rows(ANSWERED, end(ANSWER, NEXT), ("g",))
    assert found.passed
    assert found.figures == "3 orders answered by 1 groups in 1 partitions"


@pytest.mark.parametrize(
    ("there", "committed"),
    [
        ((ANSWER, NEXT), 2),  # decided without its offset
        ((ANSWER,), 3),  # an offset without its rows
        ((NEXT,), 3),  # an order is skipped
        ((), 3),
        ((), 0),  # proves nothing
    ],
)
def test_offsets_guilty(there: tuple[Transfer, ...], committed: int) -> None:
    found = end(*there, committed=committed)
    assert not check_offsets_move_with_rows(ANSWERED, found, ("g",)).passed


def test_offsets_guilty_of_answering_an_order_twice() -> None:
    again = transfer("again", "members", orders=("g", 0, 1, 3))
    made = ledger(transfers=(ANSWER, NEXT, again))
    found = check_offsets_move_with_rows(made, end(ANSWER, again), ("g",))
    assert found.examples == ("again: g answered 0/1 again, due was 2",)


def offset_read(offset: int, at: int) -> OffsetRead:
    return OffsetRead(
        group="g", partition=0, offset=offset, broker=1, sent_ms=at, answered_ms=at + 5
    )


def with_reads(*reads: OffsetRead) -> Ledger:
    return replace(ledger(asked("answer", "complete", at=10), transfers=(ANSWER,)),
                   offset_reads=list(reads))  # fmt: skip


def test_offsets_stay_innocent() -> None:
    assert check_offsets_stay(with_reads(offset_read(-1, 0), offset_read(2, 20))).passed
    assert check_offsets_stay(with_reads(offset_read(3, 30), offset_read(2, 33))).passed, "at once"


@pytest.mark.parametrize(
    "reads",
    [
        (offset_read(3, 30), offset_read(2, 36)),  # back behind another read
        (offset_read(1, 20),),  # back behind a commit that was answered
        (offset_read(-1, 0),),  # proves nothing
        (),
    ],
)
def test_offsets_stay_guilty(reads: tuple[OffsetRead, ...]) -> None:
    assert not check_offsets_stay(with_reads(*reads)).passed


def test_order_of_answers() -> None:
    assert check_order_of_answers(ANSWERED, books(ANSWER, NEXT)).passed
    assert not check_order_of_answers(ANSWERED, books(NEXT, ANSWER)).passed
    assert not check_order_of_answers(ANSWERED, books()).passed


def test_orders_once() -> None:
    once = Reading(1, {0: [Line(0, b"null", b"1")], 1: [Line(0, b"null", b"2")]})
    assert check_orders_once([b"1"], once).passed
    assert not check_orders_once([b"1", b"3"], once).passed
    once.partitions[1].append(Line(1, b"null", b"1"))
    assert not check_orders_once([b"1"], once).passed
    assert not check_orders_once([], Reading(1, {0: []})).passed


# -- sums


def test_sum_innocent() -> None:
    assert check_sum(books(SHOT)).passed
    found = balances(books(SHOT))
    assert (found[1], found[2], found[3], found[4]) == (95, 103, 102, 100)


def test_sum_guilty_of_a_lost_row_and_of_proving_nothing() -> None:
    assert check_sum(without(books(SHOT), CREDITS, 1)).examples == ("-2",)
    assert not check_sum(books()).passed


SECOND = transfer("second")
TWO_TOLD = ledger(
    asked("shot", "complete", at=10), asked("second", "complete", at=30), transfers=(SHOT, SECOND)
)
"""Told at 15 and at 35."""


def shown(at: int, *lines: Line, faults: tuple[Fault, ...] = ()) -> bool:
    found = with_seen(TWO_TOLD, seen(*lines, at=at))
    return check_shown_once_told(found, books(SHOT, SECOND), faults).passed


def test_shown_once_told_innocent() -> None:
    assert shown(36, line(0, SHOT, 0)), "sent in the moment of the answer"
    assert shown(90, line(0, SHOT, 0), line(1, SECOND, 0))


def test_shown_once_told_guilty_of_ending_before_a_told_row() -> None:
    assert not shown(90, line(0, SHOT, 0))


def test_shown_once_told_excuses_a_broker_amid_a_fault_only() -> None:
    fault = Fault(name="cut", target="", at_ms=80, healed_ms=100)
    assert shown(90, line(0, SHOT, 0), faults=(fault,))
    assert not shown(50, line(0, SHOT, 0), faults=(fault,))
    assert not shown(9000, line(0, SHOT, 0), faults=(fault,))


def test_shown_once_told_guilty_of_proving_nothing() -> None:
    assert not check_shown_once_told(TWO_TOLD, books(SHOT, SECOND), ()).passed


# -- numbers


def disk(*batches: tuple[int, int, int]) -> dict[int, dict[str, list[NumberedBatch]]]:
    return {1: {"debits-0": [NumberedBatch(*batch) for batch in batches]}}


def test_numbers_innocent() -> None:
    assert check_numbers(disk((7, 0, 2), (8, 0, 1), (7, 2, 3), (8, 1, 1))).passed


@pytest.mark.parametrize(
    "batches",
    [
        ((7, 0, 2), (7, 3, 1)),  # a gap
        ((7, 0, 2), (7, 1, 1)),  # a repeat
        ((7, 1, 1),),  # not from 0 on
        (),  # proves nothing
    ],
)
def test_numbers_guilty(batches: tuple[tuple[int, int, int], ...]) -> None:
    assert not check_numbers(disk(*batches)).passed


# -- late repeats


def repeated(*repeats: Repeat, later: dict[str, Reading] | None = None) -> MoneyEnd:
    found = books(SHOT)
    return MoneyEnd(books=found, later_books=later or books(SHOT), repeats=list(repeats))


KNOWN = Repeat("shot", "commit", "complete", "complete")
REFUSED = Repeat("rival", "commit", "refused", "refused")


def test_late_repeats_innocent() -> None:
    assert check_late_repeats(repeated(KNOWN, REFUSED)).passed


def test_late_repeats_guilty_of_a_new_row() -> None:
    assert not check_late_repeats(repeated(KNOWN, REFUSED, later=books(SHOT, RIVAL))).passed


@pytest.mark.parametrize(
    "repeats",
    [
        (KNOWN, REFUSED, replace(KNOWN, again="refused")),
        (KNOWN, REFUSED, replace(REFUSED, again="complete")),
        (KNOWN,),
        (REFUSED,),
        (),
    ],
)
def test_late_repeats_guilty(repeats: tuple[Repeat, ...]) -> None:
    assert not check_late_repeats(repeated(*repeats)).passed


# -- in time, enough


def test_completed() -> None:
    assert check_completed(MoneyEnd(completed_ms=4000), 5000).passed
    assert not check_completed(MoneyEnd(completed_ms=6000), 5000).passed
    found = check_completed(MoneyEnd(waiting=("key:k",)), 5000)
    assert found.examples[0] == "key:k is committing"
    assert not found.passed


KINDS_MADE = (SHOT, RIVAL, FIRST, ANSWER, transfer("cas", "expected", orders=("h", 0, 0, 1)))
ENOUGH = ledger(
    *(asked(one.id, "complete", at=100) for one in KINDS_MADE if one is not RIVAL),
    asked("rival", "refused", code=40908),
    asked("cas", "refused", code=40912),
    asked("first", "aborted", what="abort"),
    transfers=KINDS_MADE,
)


def test_enough_innocent() -> None:
    found = check_enough(ENOUGH, 1, 50)
    assert found.passed
    assert found.figures.startswith("1 one shot (1 after), 1 staged (1 after), 1 members")


def test_enough_guilty_of_too_few_and_of_none_after_the_faults() -> None:
    assert not check_enough(ENOUGH, 2, 50).passed
    assert check_enough(ENOUGH, 1, 101).examples[0].startswith("one shot: 0 complete after")


@pytest.mark.parametrize("code", [40908, 40912])
def test_enough_guilty_without_a_refusal_of_each_kind(code: int) -> None:
    kept = [one for one in ENOUGH.requests if one.code != code]
    assert not check_enough(ledger(*kept, transfers=KINDS_MADE), 1, 50).passed


def test_enough_guilty_without_an_abort() -> None:
    kept = [one for one in ENOUGH.requests if one.what != "abort"]
    assert not check_enough(ledger(*kept, transfers=KINDS_MADE), 1, 50).passed


def test_a_ledger_writes_a_line_for_each_event() -> None:
    lines: list[bytes] = []
    made = Ledger(lines.append)
    made.plan(SHOT)
    made.add(asked("shot", "complete"))
    made.add(life(3, at=1))
    keys = [next(iter(orjson.loads(each))) for each in lines]
    assert keys == ["transfer", "transferrequest", "tellerlife"]
