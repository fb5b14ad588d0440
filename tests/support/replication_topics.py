"""Topics that are compacted, or whose records grow old: configurations and records by seed.

A record of such a topic bears its number as its time, so that a tombstone has one, too. The key of
a number, and whether it is a tombstone, is drawn once: whoever sends it again sends the same.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from broker.log.log_directory import LogConfig
from broker.record.lines import ProduceRecord, make_raw

YEAR_MS = 31_536_000_000
CLOCK_DIFFERENCE_MS = 100
"""How far a trusted clock may be from the controllers'."""
PLAIN_KEYS = tuple(
    f'"k{number}{"x" * pad}"'.encode() for number, pad in enumerate((0, 60, 900, 3_000))
)
KEYS = (
    b'"a"',
    b'"b"',
    b'"c"',
    b'"%b"' % (b"d" * 14),  # as long as a digest
    b'"%b"' % (b"e" * 90),  # longer than what stands for itself
    *(b'"n%d"' % number for number in range(16)),
)
OFTEN = 5
"""The first keys are written again and again, the others mostly in the beginning."""
FIRST_NUMBERS = 60
POLICIES = ("compact", "compact,delete", "delete")


class Said(NamedTuple):
    """What a number stands for."""

    key: int
    tombstone: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """How long it keeps what. -1: no limit."""

    policy: str
    segment_bytes: int
    segment_ms: int
    retention_ms: int = -1
    retention_bytes: int = -1
    delete_retention_ms: int = 0
    min_lag_ms: int = 0
    max_lag_ms: int = (1 << 63) - 1
    min_dirty_ratio: float = 0
    keys_per_pass: int = 1_000
    """What the cleaner's buffer has room for."""
    may_change: bool = False
    """Its policy is changed meanwhile."""

    @property
    def compacts(self) -> bool:
        return "compact" in self.policy

    def configs(self) -> dict[str, str]:
        return {
            "cleanup.policy": self.policy,
            "segment.ms": str(self.segment_ms),
            "retention.ms": str(self.retention_ms),
            "retention.bytes": str(self.retention_bytes),
            "delete.retention.ms": str(self.delete_retention_ms),
            "min.compaction.lag.ms": str(self.min_lag_ms),
            "max.compaction.lag.ms": str(self.max_lag_ms),
            "min.cleanable.dirty.ratio": str(self.min_dirty_ratio),
        }


def draw_topic(rng: random.Random, *, compacts: bool, retains: bool) -> Topic:
    """One of those that a seed may be about."""
    policy = {
        (True, True): "compact,delete",
        (True, False): "compact",
        (False, True): "delete",
    }[compacts, retains]
    retention_ms = rng.choice((600, 2_000, -1)) if retains else -1
    retention_bytes = rng.choice((600, 2_000, -1)) if retains else -1
    if retains and retention_ms == retention_bytes == -1:
        retention_ms = 1_000
    return Topic(
        policy=policy,
        segment_bytes=rng.choice((300, 700, 700, 2_000)),
        segment_ms=rng.choice((200, 1_000, 604_800_000)),
        retention_ms=retention_ms,
        retention_bytes=retention_bytes,
        delete_retention_ms=rng.choice((0, 0, 0, 400, 1_500)),
        min_lag_ms=rng.choice((0, 0, 0, 300)),
        max_lag_ms=rng.choice((1_000, (1 << 63) - 1)),
        min_dirty_ratio=rng.choice((0.0, 0.0, 0.3)),
        keys_per_pass=rng.choice((1, 3, 1_000)),
        may_change=rng.random() < 0.3,
    )


@lru_cache(maxsize=64)
def small(config: LogConfig, segment_bytes: int) -> LogConfig:
    """With segments smaller than any topic may be configured to have."""
    compaction = config.compaction
    if compaction is not None:
        compaction = replace(compaction, segment_bytes=segment_bytes)
    return replace(config, segment_bytes=segment_bytes, compaction=compaction)


class Records:
    """Of one world: what each number stands for."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.said: dict[int, Said] = {}
        self._tombstones = rng.choice((0.2, 0.5))

    def of(self, value: int) -> Said:
        known = self.said.get(value)
        if known is None:
            rng = self._rng
            seldom = rng.random() < (0.6 if len(self.said) < FIRST_NUMBERS else 0.15)
            key = rng.randrange(OFTEN, len(KEYS)) if seldom else rng.randrange(OFTEN)
            known = Said(key, rng.random() < self._tombstones)
            self.said[value] = known
        return known

    def record(self, value: int) -> ProduceRecord:
        """As a client sends it."""
        said = self.of(value)
        text = b"null" if said.tombstone else b"%d" % value
        return ProduceRecord(timestamp=value, key=make_raw(KEYS[said.key]), value=make_raw(text))
