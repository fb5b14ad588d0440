"""Every checker meets an innocent history and, for each thing it can find, a guilty one."""

from __future__ import annotations

import zlib

from chaos.checkers.faults import (
    Gap,
    check_load,
    check_metadata_gap,
    check_produce_gap,
    longest_produce_gap,
    windows,
)
from chaos.checkers.records import (
    check_offsets,
    check_order,
    check_partitioner,
    check_present,
    check_repeats,
    readers_for,
)
from chaos.checkers.verdict import shown
from chaos.history import (
    Acknowledgement,
    Fault,
    History,
    Line,
    MetadataWrite,
    Position,
    Reading,
    Record,
    Unacknowledged,
)

A = [Record(b'"A"', b'{"n": %d}' % n) for n in range(3)]
B = [Record(b'"B"', b'{"n": %d}' % n) for n in range(3)]


def ack(*positions: tuple[int, int, int], at: int = 10, due: int = 0, broker: int = 1):
    return Acknowledgement(
        broker=broker,
        due_ms=due,
        sent_ms=due,
        answered_ms=at,
        positions=tuple(Position(*position) for position in positions),
    )


def lost(*rows: int, unknown: bool, at: int = 10):
    return Unacknowledged(
        broker=1, sent_ms=0, answered_ms=at, rows=rows, unknown=unknown, reason="503"
    )


def history(*events: object, records: list[Record] | None = None) -> History:
    made = History(list(A + B if records is None else records))
    for event in events:
        made.add(event)  # type: ignore[arg-type]
    return made


def reading(partitions: dict[int, list[Record]], broker: int = 2) -> Reading:
    return Reading(
        broker,
        {
            partition: [Line(offset, *record) for offset, record in enumerate(records)]
            for partition, records in partitions.items()
        },
    )


INNOCENT = history(ack((0, 0, 0), (1, 0, 1)), ack((3, 1, 0)), ack((2, 0, 2)))
INNOCENT_LOG = {0: A, 1: B[:1]}


# -- present


def test_present_innocent() -> None:
    assert check_present(INNOCENT, [reading(INNOCENT_LOG)]).passed


def test_present_guilty_of_losing_the_tail() -> None:
    found = check_present(INNOCENT, [reading({0: A[:2], 1: B[:1]})])
    assert not found.passed
    assert "1 missing" in found.figures


def test_present_guilty_of_moving_a_record() -> None:
    assert not check_present(INNOCENT, [reading({0: [A[0], A[2], A[1]], 1: B[:1]})]).passed


def test_present_guilty_of_another_spelling_of_the_same_value() -> None:
    respelled = Record(A[1].key, A[1].value.replace(b" ", b""))
    found = check_present(INNOCENT, [reading({0: [A[0], respelled, A[2]], 1: B[:1]})])
    assert not found.passed
    assert "1 changed" in found.figures


def test_present_guilty_of_another_key() -> None:
    other = Record(b'"C"', A[1].value)
    assert not check_present(INNOCENT, [reading({0: [A[0], other, A[2]], 1: B[:1]})]).passed


def test_present_guilty_when_only_the_writing_broker_was_asked() -> None:
    assert not check_present(INNOCENT, [reading(INNOCENT_LOG, broker=1)]).passed


def test_present_names_records_that_only_the_writing_broker_served_first() -> None:
    both = history(ack((0, 0, 0), broker=2), ack((2, 0, 2), broker=1), ack((1, 0, 1), broker=1))
    found = check_present(both, [reading({0: []}, broker=2)])
    assert found.examples[0].startswith("1 records were read by no other broker")
    assert len(found.examples) == 3


def test_present_guilty_when_one_of_two_readers_lost_a_record() -> None:
    both = [reading(INNOCENT_LOG, broker=2), reading({0: A[:1], 1: B[:1]}, broker=3)]
    assert not check_present(INNOCENT, both).passed


def test_present_guilty_of_proving_nothing() -> None:
    assert not check_present(history(), [reading({})]).passed


def test_readers_for_prefers_one_that_nothing_went_through() -> None:
    assert readers_for(INNOCENT, [1, 2, 3]) == [2]


def test_readers_for_takes_two_when_all_were_written_through() -> None:
    through_all = history(
        ack((0, 0, 0), (1, 0, 1), broker=1), ack((2, 0, 2), broker=2), ack((3, 1, 0), broker=3)
    )
    assert readers_for(through_all, [1, 2, 3]) == [2, 3]


# -- offsets


def test_offsets_innocent() -> None:
    readings = [reading(INNOCENT_LOG, broker=broker) for broker in (2, 3)]
    assert check_offsets(readings).passed


def test_offsets_guilty_of_a_hole() -> None:
    holed = Reading(2, {0: [Line(0, *A[0]), Line(2, *A[2])]})
    found = check_offsets([holed])
    assert (found.passed, found.figures) == (False, "2 records served")


def test_offsets_guilty_of_serving_an_offset_twice() -> None:
    twice = Reading(2, {0: [Line(0, *A[0]), Line(0, *A[0])]})
    assert not check_offsets([twice]).passed


def test_offsets_guilty_of_two_truths() -> None:
    assert not check_offsets([reading({0: A}), reading({0: [A[0], A[2], A[1]]}, broker=3)]).passed


# -- order


def test_order_innocent_with_answers_noted_out_of_order() -> None:
    assert check_order(history(ack((2, 0, 2)), ack((0, 0, 0), (1, 0, 1)))).passed


def test_order_guilty_of_swapping() -> None:
    assert not check_order(history(ack((0, 0, 1)), ack((1, 0, 0)))).passed


def test_order_tells_the_first_fault_of_a_key() -> None:
    found = check_order(history(ack((0, 0, 2)), ack((1, 0, 1)), ack((2, 0, 0))))
    assert len(found.examples) == 1


def test_order_guilty_of_acknowledging_one_offset_twice() -> None:
    assert not check_order(history(ack((0, 0, 1)), ack((1, 0, 1)))).passed


def test_order_guilty_of_splitting_a_key() -> None:
    assert not check_order(history(ack((0, 0, 0)), ack((1, 1, 1)))).passed


def test_order_judges_keys_apart() -> None:
    assert check_order(history(ack((0, 0, 5)), ack((3, 0, 0)))).passed


def test_partitioner_innocent_and_guilty() -> None:
    right = zlib.crc32(b'"A"') % 6
    assert check_partitioner(history(ack((0, right, 0))), 6).passed
    assert not check_partitioner(history(ack((0, (right + 1) % 6, 0))), 6).passed


# -- repeats


def test_repeats_innocent() -> None:
    assert check_repeats(INNOCENT, reading(INNOCENT_LOG)).passed


def test_repeats_by_the_client_are_counted_not_blamed() -> None:
    retried = history(lost(0, 1, unknown=True), ack((0, 0, 2), (1, 0, 3)))
    found = check_repeats(retried, reading({0: [A[0], A[1], A[0], A[1]]}))
    assert found.passed
    assert found.figures.startswith("2 by client retry after 1 unknown answers, 0 by the system")


def test_repeats_unknown_that_was_never_written_is_innocent() -> None:
    retried = history(lost(0, unknown=True), ack((0, 0, 0)))
    found = check_repeats(retried, reading({0: A[:1]}))
    assert found.passed
    assert found.figures.startswith("0 by client retry")


def test_repeats_guilty_of_repeating_by_itself() -> None:
    found = check_repeats(history(ack((0, 0, 0))), reading({0: [A[0], A[0]]}))
    assert not found.passed
    assert "1 by the system" in found.figures


def test_repeats_guilty_of_sending_twice_within_one_unknown_attempt() -> None:
    retried = history(lost(0, unknown=True), ack((0, 0, 2)))
    assert not check_repeats(retried, reading({0: [A[0], A[0], A[0]]})).passed


def test_repeats_guilty_of_writing_what_it_called_not_written() -> None:
    refused = history(lost(0, unknown=False), ack((0, 0, 1)))
    assert not check_repeats(refused, reading({0: [A[0], A[0]]})).passed


def test_repeats_guilty_of_inventing_a_record() -> None:
    found = check_repeats(INNOCENT, reading({0: [*A, Record(b'"A"', b'{"n": 9}')], 1: B[:1]}))
    assert not found.passed
    assert "1 never sent" in found.figures
    assert found.examples == ('nobody sent "A" {"n": 9}',)


# -- gaps

KILL = Fault(name="leader killed", target="broker 2", at_ms=100)


def test_produce_gap_innocent() -> None:
    calm = history(ack((0, 0, 0), at=90, due=80), ack((1, 0, 1), at=400, due=110), KILL)
    found = check_produce_gap(calm, KILL, None, 1000)
    assert found.passed
    assert longest_produce_gap(calm, 100, None).ms == 290, "from when it was due"
    assert "gap between acknowledgements 0.29 s, limit 1 s;" in found.figures


def test_produce_gap_that_ends_with_the_fault_is_blamed_on_it() -> None:
    ended = history(ack((0, 0, 0), at=100, due=20), KILL)
    assert longest_produce_gap(ended, 100, None).ms == 80
    assert longest_produce_gap(ended, 0, 100).ms == 0, "a window ends before the next fault"


def test_produce_gap_guilty_of_a_long_silence() -> None:
    silent = history(ack((0, 0, 0), at=90, due=80), ack((1, 0, 1), at=1400, due=85), KILL)
    assert longest_produce_gap(silent, 100, None).ms == 1310, "from the acknowledgement before"
    assert not check_produce_gap(silent, KILL, None, 1000).passed


def test_produce_gap_sees_one_silent_partition_among_busy_ones() -> None:
    events = [ack((row, 0, row), at=100 + 100 * row, due=95 + 100 * row) for row in range(3)]
    one = history(ack((3, 1, 0), at=90, due=80), *events, ack((4, 1, 1), at=2000, due=95), KILL)
    gap = longest_produce_gap(one, 100, None)
    assert (gap.ms, gap.partition) == (1905, 1)


def test_produce_gap_of_one_fault_is_not_blamed_on_another() -> None:
    first, second = KILL, Fault(name="controller killed", target="101", at_ms=5000)
    both = history(
        ack((0, 0, 0), at=90, due=80),
        ack((1, 0, 1), at=3000, due=95),
        ack((2, 0, 2), at=5100, due=5050),
        first,
        second,
    )
    assert [(fault.name, until) for fault, until in windows(both)] == [
        ("leader killed", 5000),
        ("controller killed", None),
    ]
    assert not check_produce_gap(both, first, 5000, 1000).passed
    assert check_produce_gap(both, second, None, 1000).passed
    both.add(ack((3, 0, 3), at=9000, due=5200))
    assert longest_produce_gap(both, 100, 5000).ms == 2905
    assert not check_produce_gap(both, second, None, 1000).passed


def test_produce_gap_silence_without_waiting_records_is_none() -> None:
    idle = history(ack((0, 0, 0), at=90, due=80), ack((1, 0, 1), at=9000, due=8990), KILL)
    assert longest_produce_gap(idle, 100, None).ms == 10


def test_produce_gap_guilty_when_nothing_came_after_the_fault() -> None:
    assert not check_produce_gap(history(ack((0, 0, 0), at=90), KILL), KILL, None, 1000).passed


def write(at: int, *, ok: bool = True) -> MetadataWrite:
    return MetadataWrite(due_ms=at - 5, answered_ms=at, ok=ok, what="create probe")


def test_metadata_gap_innocent() -> None:
    assert check_metadata_gap(history(write(90), write(700), write(900)), KILL, None, 1000).passed


def test_metadata_gap_counts_from_a_write_answered_in_the_millisecond_of_the_fault() -> None:
    found = check_metadata_gap(history(write(KILL.at_ms), write(700)), KILL, None, 1000)
    assert (found.passed, found.figures.startswith("longest gap")) == (True, True)
    assert f"{(700 - KILL.at_ms) / 1000:.2f} s, limit" in found.figures


def test_metadata_gap_guilty_when_the_only_write_is_of_the_millisecond_of_the_fault() -> None:
    found = check_metadata_gap(history(write(KILL.at_ms)), KILL, None, 1000)
    assert found.examples == ("1 metadata writes before the fault, 0 after it",)


def test_metadata_gap_is_told_in_seconds() -> None:
    late = history(write(KILL.at_ms), write(KILL.at_ms + 90_000))
    found = check_metadata_gap(late, KILL, None, 1000)
    assert found.figures.startswith("longest gap between metadata writes 90.00 s, limit 1 s;")


def test_produce_gap_as_long_as_the_limit_is_innocent() -> None:
    late = history(ack((0, 0, 0), at=KILL.at_ms), ack((1, 0, 1), at=KILL.at_ms + 700, due=0))
    assert check_produce_gap(late, KILL, None, 700).passed
    assert not check_produce_gap(late, KILL, None, 699).passed


def test_a_shown_text_is_as_wide_as_it_may_be() -> None:
    assert (shown(b"x" * 60), shown(b"x" * 61)) == ("x" * 60, "x" * 59 + "…")


def test_metadata_gap_guilty_of_absence_and_failures_do_not_count() -> None:
    absent = history(write(90), write(300, ok=False), write(1200), write(1300))
    found = check_metadata_gap(absent, KILL, None, 1000)
    assert not found.passed
    assert "1.11 s" in found.figures


def test_metadata_gap_guilty_when_no_write_came_back() -> None:
    assert not check_metadata_gap(history(write(90)), KILL, None, 1000).passed
    assert not check_metadata_gap(history(write(190)), KILL, None, 1000).passed


def test_without_an_acknowledgement_no_partition_has_the_longest_produce_gap() -> None:
    assert longest_produce_gap(history(), 0, None) == Gap(0, -1)


# -- load


def complete(*extra: object) -> History:
    rows = [ack((row, 0, row), at=50 + row * 100, due=row * 100) for row in range(3)]
    return history(*rows, *extra, records=A)


def test_load_innocent() -> None:
    assert check_load(complete(KILL), 100).passed
    assert check_load(complete(KILL), 100).figures.endswith("at least 0.1 s of load per fault")
    assert check_load(complete(), 100).figures.endswith("at least 0.0 s of load per fault")


def test_load_guilty_of_rows_never_acknowledged() -> None:
    found = check_load(history(ack((0, 0, 0)), records=A), 0)
    assert found.examples == ("2 rows were never acknowledged",)


def test_load_counts_refused_and_unknown_answers_apart() -> None:
    tried = complete(lost(0, unknown=False), lost(1, unknown=True), lost(2, unknown=True))
    assert "in 3 answers, 1 refused, 2 unknown" in check_load(tried, 100).figures


def test_load_guilty_of_too_little_after_a_fault() -> None:
    assert not check_load(complete(KILL), 1000).passed


def test_load_guilty_of_a_partition_silent_after_the_fault() -> None:
    rows = [
        ack((0, 0, 0), at=50),
        ack((1, 1, 0), at=60),
        ack((2, 0, 1), at=5000),
    ]
    for last in (60, KILL.at_ms):
        rows[1] = ack((1, 1, 0), at=last)
        found = check_load(history(ack((1, 1, 0), at=60), *rows, KILL, records=A), 100)
        assert not found.passed, last
        assert "partitions [1]" in found.examples[0]
