"""No invariant of the metadata is forgotten: each is judged, listed, and seen when it is broken."""

from __future__ import annotations

import inspect
import re

from tests.architecture.tree import ROOT
from tests.simulation.test_metadata_simulation import JUDGED
from tests.support import metadata_invariants
from tests.support.planted.every import FAULTS
from tests.support.planted.registry import METADATA

IDS = {
    *(f"R{number}" for number in range(1, 20)),
    *(f"C{number}" for number in range(1, 16)),
    *(f"P{number}" for number in range(1, 15)),
}
NOT_JUDGED = {"R15", "C15"}
"""Nothing to judge (voters never change), and a benchmark's."""
WITHOUT_FAULT = {
    "R1": "two leaders need two votes (R3) or two quorums (R8), whose faults turn red first",
    "R5": "the library never takes its commit index back: no line of ours keeps that",
    "R15": "nothing to judge",
    "C1": "an epoch is its record's own offset: the fold asserts it",
    "C9": "brokers are sent the log's own bytes",
    "C10": "the same",
    "C12": "an id is the requester's choice; a second use is refused by the fold as well",
    "C15": "a benchmark",
    "P1": "a draft asserts it before there is a record",
    "P4": "the same",
    "P13": "a broker that follows nothing is C14's red",
    "P14": "a leader epoch is counted where the leader is set",
}


def judged_functions() -> set[str]:
    names = (name for name, _ in inspect.getmembers(metadata_invariants, inspect.isfunction))
    return {match[1].upper() for name in names if (match := re.match(r"([rcp]\d+)_", name))}


def test_every_invariant_has_its_function_and_is_counted() -> None:
    assert judged_functions() == IDS - NOT_JUDGED
    assert set(JUDGED) - {"T5"} == IDS - NOT_JUDGED


def test_every_invariant_is_listed_in_the_claims() -> None:
    text = (ROOT / "docs/claims.md").read_text()
    section = text.partition("## Invariants of the metadata\n")[2].partition("\n## ")[0]
    listed = re.findall(r"(?m)^(?:\| |- )([RCP]\d+)[:,]", section)
    assert sorted(listed) == sorted(IDS), "each once"


def test_every_invariant_is_turned_red_by_a_planted_fault_or_it_is_said_why_not() -> None:
    red = {name for fault in FAULTS if fault.world == METADATA for name in fault.caught_by}
    assert sorted(IDS - red - WITHOUT_FAULT.keys()) == []
    assert sorted(red & WITHOUT_FAULT.keys()) == []
