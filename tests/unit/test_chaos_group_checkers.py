"""The checkers of the group leg: each with an innocent and a guilty history, written by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from chaos.checkers.groups import Delivery, check_all_delivered, check_one_owner, check_taken_over
from chaos.demo.group_member import ROW, deliveries, digest
from chaos.history import Line, Reading

if TYPE_CHECKING:
    from pathlib import Path

HELD = Reading(1, {0: [Line(n, b'"k"', b"%d" % n) for n in range(4)], 1: [Line(0, b"null", b"9")]})
DIGESTS = {
    (p, line.offset): digest(line.key, line.value) for p in (0, 1) for line in HELD.partitions[p]
}


def given(at_ms: int, partition: int, *offsets: int) -> list[Delivery]:
    return [Delivery(at_ms, partition, n, DIGESTS[partition, n]) for n in offsets]


INNOCENT = {
    "a": given(100, 0, 0, 1),  # killed at 150: 1 was not committed
    "b": [*given(100, 1, 0), *given(900, 0, 1, 2, 3)],
}


def test_innocent() -> None:
    assert check_all_delivered(HELD, DIGESTS, INNOCENT).passed
    one = check_one_owner(INNOCENT, "a")
    assert one.passed
    assert one.figures.startswith("1 records")
    taken = check_taken_over(INNOCENT, "a", 0, 150, 1000)
    assert taken.passed
    assert "a killed at offset 2 of partition 0, b went on after 0.8 s" in taken.figures


def test_all_delivered_guilty_of_a_skipped_record() -> None:
    skipped = INNOCENT | {"b": [*given(100, 1, 0), *given(900, 0, 1, 3)]}
    found = check_all_delivered(HELD, DIGESTS, skipped)
    assert (found.passed, found.examples) == (
        False,
        ("partition 0 offset 2 was delivered to nobody",),
    )


@pytest.mark.parametrize("offset", [3, 7])
def test_all_delivered_guilty_of_a_changed_or_invented_record(offset: int) -> None:
    changed = INNOCENT | {"c": [Delivery(950, 0, offset, 12345)]}
    assert not check_all_delivered(HELD, DIGESTS, changed).passed


def test_all_delivered_guilty_of_proving_nothing() -> None:
    assert not check_all_delivered(Reading(1, {0: []}), {}, {"a": []}).passed


def test_one_owner_guilty_of_two_living_ones() -> None:
    assert not check_one_owner(INNOCENT | {"c": given(950, 0, 3)}, "a").passed


def test_one_owner_guilty_of_going_back() -> None:
    assert not check_one_owner({"a": [], "b": given(100, 0, 1, 0)}, "a").passed


def test_one_owner_guilty_of_giving_a_record_to_one_member_twice() -> None:
    assert not check_one_owner({"a": [], "b": given(100, 0, 0, 1, 1)}, "a").passed


def test_taken_over_guilty_of_nobody_too_late_and_never_owned() -> None:
    assert check_taken_over(INNOCENT, "a", 0, 150, 750).passed
    assert check_taken_over(INNOCENT, "a", 0, 150, 90_000).figures.endswith("limit 90 s")
    assert check_taken_over(INNOCENT, "a", 0, 150, 749).examples == ("750 ms",)
    nobody = check_taken_over({"a": given(100, 0, 0), "b": []}, "a", 0, 150, 700)
    assert nobody.examples == ("a was not taken over from partition 0",)
    never = check_taken_over(INNOCENT, "a", 1, 50, 5000)
    assert never.examples == ("a never owned partition 1",)


def test_a_members_file_without_its_torn_last_row(tmp_path: Path) -> None:
    out = tmp_path / "rows"
    assert deliveries(out) == []
    row = Delivery(1, 2, 3, 4)
    out.write_bytes(ROW.pack(*row) + ROW.pack(*row)[:10])
    assert deliveries(out) == [row]
