"""One replicated partition under one seeded scheduler: lost, late and replayed frames, the flusher
as its own actor, kills, power cuts that lose any unsynced pages and names, full and failing disks,
rotten bytes, pauses, fences, moves, reassignments, departures, `flush` switched live, records that
are deleted, numbered batches that are sent again, unclean elections. Some topics are compacted, or
keep their records for a time or up to a size: cleaner and retention are actors of their own, by
clocks that go wrong (rules R7, R10). Bits rot under running brokers, which have it mended as they
run, by controllers that take turns (decision 0009): in records, in each field of a batch's header,
in the small files that nothing else can stand for; and, outside of any budget, in those that can be
made again (`replica_rot`). What brokers serve is read through the product's own doors.

In most seeds the log is the product's own, over a simulated disk. Every invariant of the table in
docs/claims.md is judged after each event or at the end of a seed; one that was never judged is red.
tests/support/seeds.py describes which seeds run and how to replay one.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b

import pytest

from broker.log.swap import STATE_FILE
from tests.support.replica_rot import KINDS_OF_ROT
from tests.support.replication_judge import JUDGED, JUDGED_OF_SOME
from tests.support.replication_world import World, run
from tests.support.seeds import Seeds, printed_by_another_process, too_rare

pytestmark = pytest.mark.usefixtures("no_logs")

MUST_HAPPEN = (
    *("kill", "power", "disk", "rotted", "pause", "fence", "move", "cut_all", "shutdown"),
    *("eio", "full", "cut_at", "flush", "reassigned", "cancel", "unclean elections", "departures"),
    *("ended by OSError", "ended by PowerCut", "found rotten"),
    *("rotted live", "found while running", "set aside", "takeover"),
    *(f"rotted: {kind}" for kind in KINDS_OF_ROT if kind != STATE_FILE),
    *("trims", "repeats found", "reassignments finished"),
    *("cleanings", "segments replaced", "compacted away", "tombstones dropped", "retained"),
    *("read from the leader", "read from a follower", "clock", "policy"),
    *("answered ok", "answered not_written", "answered unknown"),
)

KEPT = {
    122: "a durable check and a header's producer rot",
    349: "a header's last offset delta rots",
    1233: "a header's magic byte, base offset and count rot",
    1903: "the first produce of an ending meets damage below the log start: its leader hands over",
    2505: "a durable end and a recovery point rot",
    3110: "a header's leader epoch and times rot, and the policy of a topic changes",
    3196: "an unclean election",
    3424: "a header's length, checksum and attributes rot",
    5599: "a rotten file of epochs, then a cut that is killed: the old recovery point stood",
    17976: "the first place of a record that was deleted counts as its offset",
    23177: "a rotten file lies in quarantine, and the log of its name is another one",
    23591: "a start fails, and what was there is found by the next one",
    25683: "a start cuts rotten bytes, and new records stand in their place",
    35342: "a broker that was just started again is not the life that leaves",
    37355: "a follower that may lack tombstones starts over, and must get to the end",
    42063: "a recovery point rots before another one was written",
}


def counts_of(world: World) -> tuple[Mapping[str, int], Mapping[str, int]]:
    return world.judge.tally, world.happened()


seeds_run = Seeds(
    module=__name__, simulate_one=run, counts=counts_of, kept=KEPT, everyday=600, per_test=50
)
pytest_generate_tests = seeds_run.parametrize


@pytest.mark.simulate
def test_invariants_l1_to_l27_hold(seeds: list[int]) -> None:
    seeds_run.run_all(seeds)


def test_every_invariant_was_judged_and_every_fault_was_met() -> None:
    number = seeds_run.number()
    judged, happened = seeds_run.judged, seeds_run.happened
    assert too_rare(JUDGED, judged, number // 2) == {}
    assert too_rare(JUDGED_OF_SOME, judged, number // 40) == {}
    assert too_rare(MUST_HAPPEN, happened, max(number // 400, 1)) == {}
    assert happened["exposed"] > 5 * number
    assert happened["leader epochs"] > 4 * number
    assert happened["answered ok"] > 3 * number
    assert happened["given up"] < number // 50, "the partition waits for an operator too often"


def history_of(seed: int) -> str:
    world = run(seed)
    answers = sorted((value, fate.value) for value, fate in world.judge.answers.items())
    seen = (world.judge.exposed, sorted(world.judge.tally.items()), answers)
    return blake2b(repr(seen).encode(), digest_size=16).hexdigest()


def test_a_seed_is_one_history_in_every_process() -> None:
    """Strings hash differently in each process: nothing may hang on that."""
    code = (
        "from tests.simulation.test_replication_simulation import history_of;"
        "print(*[history_of(seed) for seed in range(6)])"
    )
    assert printed_by_another_process(code) == [history_of(seed) for seed in range(6)]
