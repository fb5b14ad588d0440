"""The simulated partition with `compression.type` switched from one append to the next.

Every frame is taken, however short: what is cut, compacted, pushed from the middle of a batch, torn
by a power cut or read by a follower is a frame as often as it is lines.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from broker.log import partition_log
from broker.record import compression
from tests.support.replication_world import World, run
from tests.support.seeds import Counts, Seeds

pytestmark = pytest.mark.usefixtures("no_logs")

CHANCE = random.Random()
"""Chooses between frames and lines; begins anew with each seed, which makes it one history."""
counted: Counter[str] = Counter()
"""How many batches were appended as frames or as lines, and how many were unpacked."""


@pytest.fixture
def frames(monkeypatch: pytest.MonkeyPatch) -> None:
    """Append two batches of three as frames, however short they are."""
    encode, unpack = partition_log.encode_batches, compression.decompress

    def encoded(*records: Any, **fields: Any) -> Any:
        kind = CHANCE.choice(("frames", "frames", "lines"))
        counted[kind] += 1
        if kind == "frames":
            fields["pack"] = compression.compress
        return encode(*records, **fields)

    def unpacked(frame: Any) -> bytes:
        counted["unpacked"] += 1
        return unpack(frame)

    monkeypatch.setattr(partition_log, "encode_batches", encoded)
    monkeypatch.setattr(compression, "decompress", unpacked)
    monkeypatch.setattr(compression, "MIN_LINES_BYTES", 1)
    monkeypatch.setattr(compression, "compress_if_shorter", compression.compress)


def simulate(seed: int) -> World:
    CHANCE.seed(seed)
    return run(seed)


def counts_of(world: World) -> Counts:
    return world.judge.tally, world.happened()


seeds_run = Seeds(
    module=__name__, simulate_one=simulate, counts=counts_of, everyday=60, per_test=20, one_in=10
)
pytest_generate_tests = seeds_run.parametrize


@pytest.mark.simulate
@pytest.mark.usefixtures("frames")
def test_invariants_of_the_log_hold_over_frames(seeds: list[int]) -> None:
    seeds_run.run_all(seeds)


def test_there_were_frames_lines_and_readers_of_both() -> None:
    number, happened = seeds_run.number(), seeds_run.happened
    assert min(counted["frames"], counted["lines"], counted["unpacked"]) > number
    for fact in ("compacted away", "tombstones dropped", "repeats found", "read from a follower"):
        assert happened[fact], fact
