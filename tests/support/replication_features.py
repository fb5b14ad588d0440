"""What a seed of the simulated partition is about: each its own mix."""

from __future__ import annotations

import random
from dataclasses import dataclass

PUSH_BYTES, SLOWLY = (1, 500, 8_000), (1, 1, 500)
"""How much a leader pushes at once; a batch at least."""


@dataclass(frozen=True, slots=True)
class Features:
    """What a seed is about: each its own mix."""

    on_disk: bool = True
    moves: bool = False
    """Replicas are reassigned between four brokers."""
    flush: bool = False
    """`flush` is switched between ack and os."""
    unclean: bool = False
    """The topic allows unclean elections."""
    numbered: bool = False
    """A client numbers its batches and sends each until it is there (invariants T1, T4)."""
    trims: bool = False
    """Records are deleted from the beginning."""
    compacts: bool = False
    """The topic is compacted (rule R7)."""
    retains: bool = False
    """Its records are deleted as they grow old, or many (rule R10)."""
    rots: bool = False
    """Bits rot under running brokers, one after the other; controllers take turns."""


def draw_features(rng: random.Random, topics: random.Random, rots: random.Random) -> Features:
    roll = rng.random()
    on_disk, unclean = rng.random() < 0.7, roll > 0.95
    return Features(
        on_disk=on_disk,
        moves=roll < 0.2,
        flush=0.15 < roll < 0.35,
        unclean=unclean,
        trims=rng.random() < 0.4,
        numbered=rng.random() < 0.6,
        compacts=topics.random() < 0.15 and on_disk,
        retains=topics.random() < 0.12 and on_disk,
        rots=rots.random() < 0.4 and on_disk,
    )
