"""Whole controllers under one seeded scheduler: cut links, lost and late messages, kills, power
cuts, stalls, snapshots, lost disks, and brokers and operators that do what they do.

Every invariant of the metadata (R, C, P of the table in docs/claims.md) is judged after each event
or at the end of a seed; one that was never judged is red. tests/support/seeds.py describes which
seeds run and how to replay one.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b

import pytest

from tests.support.metadata_sim_story import LONG, LONG_EVERY, SHORT, length_of, tell
from tests.support.metadata_witness import Witness
from tests.support.quorum_sim import quorum_world
from tests.support.seeds import Seeds, printed_by_another_process, too_rare

__all__ = ["quorum_world"]
pytestmark = pytest.mark.usefixtures("quorum_world")

JUDGED = (
    *(f"R{number}" for number in range(1, 20) if number != 15),
    *(f"C{number}" for number in range(1, 15)),
    *(f"P{number}" for number in range(1, 15)),
    "T5",
)
"""R15 is empty (voters never change) and C15 is a benchmark's: see docs/claims.md."""
MUST_HAPPEN = (
    *("create ok", "create NOT_CONTROLLER", "create OUTCOME_UNKNOWN", "delete ok", "alter ok"),
    *("register ok", "register DUPLICATE_BROKER_REGISTRATION", "shutdowns granted", "fences"),
    *("alter FENCED_LEADER_EPOCH", "alter INVALID_UPDATE_VERSION", "alter STALE_BROKER_EPOCH"),
    *("alter INELIGIBLE_REPLICA", "elections", "activations", "controller disks lost"),
    *("snapshots installed", "snapshots to brokers", "power cut at the disk", "cut_power"),
    *("pause_controller", "intrude", "fetch METADATA_BEHIND", "fetch METADATA_STALE_SOURCE"),
    *("reassignments", "reassignments ended", "unclean elections", "producer ids ok"),
    *("AddPartitions ok", "AlterConfigs ok", "DrainBroker ok", "ElectLeaders ok"),
    *("UnregisterBroker ok", "UpgradeMetadata ok", "a minority and one that forgot"),
)

KEPT = {
    499: "a late tick ended the session of a broker whose heartbeats waited (rule M7)",
    1536: "a broker is unregistered, and a leader elected uncleanly",
    3172: "a broker hung up, and its next heartbeat came to a controller that stood still (C5)",
    10160: "a broker is fenced while its heartbeat waits to be read (C5)",
    14066: "the same, and the tick was late by less than a stall (C5)",
    18127: "partitions added to a deleted topic come to the new one of its name (C13)",
    33299: "a deposed controller answers from what was in flight before it was asked (R14)",
    29040: "a reassignment would drop the last known replica of a leaderless partition (P11)",
    43984: "a voter that had promised an entry writes its journal anew (R6)",
    59881: "a broker that lags behind is unfenced after another was let go (C8)",
    11008: "a config sent to a deleted topic comes to the new one of its name (P5)",
}


def counts_of(witness: Witness) -> tuple[Mapping[str, int], Mapping[str, int]]:
    return witness.tally, witness.counts


seeds_run = Seeds(
    module=__name__, simulate_one=tell, counts=counts_of, kept=KEPT, everyday=300, per_test=25
)
pytest_generate_tests = seeds_run.parametrize


@pytest.mark.simulate
def test_invariants_r1_to_r19_c1_to_c14_p1_to_p14_hold(seeds: list[int]) -> None:
    seeds_run.run_all(seeds)


def test_every_invariant_was_judged_and_every_fault_was_met() -> None:
    floor = seeds_run.number() // 100
    assert too_rare(JUDGED, seeds_run.judged, floor) == {}
    assert too_rare(MUST_HAPPEN, seeds_run.happened, max(floor // 5, 1)) == {}


def history_of(seed: int) -> str:
    witness = tell(seed)
    seen = (sorted(witness.counts.items()), sorted(witness.tally.items()), witness.batches)
    return blake2b(repr(seen).encode(), digest_size=16).hexdigest()


@pytest.mark.parametrize("length", [SHORT, LONG], ids=["short", "long"])
def test_a_seed_is_one_history_in_every_process(length: object) -> None:
    """Strings hash differently in each process: nothing may hang on that."""
    seed = next(seed for seed in range(1, 2 * LONG_EVERY) if length_of(seed) is length)
    code = (
        "import pytest;"
        "from tests.simulation.test_metadata_simulation import history_of, quorum_world;"
        "quorum_world._get_wrapped_function()(pytest.MonkeyPatch());"
        f"print(history_of({seed}))"
    )
    assert printed_by_another_process(code) == [history_of(seed)]
