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
from tests.support.replication_world import run

pytestmark = pytest.mark.usefixtures("no_logs")

SEEDS = 60


@pytest.fixture
def frames(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How many batches were appended as what, and how many were unpacked."""
    counted: Counter[str] = Counter()
    chance = random.Random("frames or lines")
    encode, unpack = partition_log.encode_batches, compression._decompressed

    def encoded(*records: Any, **fields: Any) -> Any:
        kind = chance.choice(("frames", "frames", "lines"))
        counted[kind] += 1
        if kind == "frames":
            fields["pack"] = compression._compressed
        return encode(*records, **fields)

    def unpacked(frame: Any) -> bytes:
        counted["unpacked"] += 1
        return unpack(frame)

    monkeypatch.setattr(partition_log, "encode_batches", encoded)
    monkeypatch.setattr(compression, "_decompressed", unpacked)
    monkeypatch.setattr(compression, "MIN_LINES_BYTES", 1)
    monkeypatch.setattr(compression, "_shorter", compression._compressed)
    return counted


def test_invariants_of_the_log_hold_over_frames(frames: Counter[str]) -> None:
    happened: Counter[str] = Counter()
    for seed in range(SEEDS):
        try:
            world = run(seed)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
        happened.update(world.happened())
    assert min(frames["frames"], frames["lines"], frames["unpacked"]) > SEEDS
    for fact in ("compacted away", "tombstones dropped", "repeats found", "read from a follower"):
        assert happened[fact], fact
