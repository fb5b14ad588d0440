"""Limits in bytes a second to and from replicas that are not in sync (KIP-73).

`LeaderStream` takes from the bucket to followers before it pushes; `Throttles.filled` takes from
the bucket from leaders after a push and requests a pause. An in-sync replica is never throttled,
because every produce would wait for it. In Kafka the throttled replicas are configured; here all
replicas outside the ISR are throttled while they are outside. `TokenBucket` is pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raft_metadata.common.configs.table import (
    FOLLOWER_REPLICATION_THROTTLED_RATE,
    LEADER_REPLICATION_THROTTLED_RATE,
    NO_RATE_LIMIT,
)
from raft_metadata.image.metadata_image import broker_layers

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from broker.config import BrokerConfig
    from broker.replication.follower_stream import LeaderLink
    from broker.replication.replica import Replica
    from raft_metadata.common.clock import Clock
    from raft_metadata.image.metadata_image import ConfigKey, MetadataImage

BURST_MS = 100
"""The bytes of this time, at the rate, may be taken at once after a pause."""
MIN_QUANTUM_BYTES = 16_384
"""Smallest push under a rate; a slower rate is kept by pauses between such pushes."""


class TokenBucket:
    """A budget of bytes a second. Times are arguments (milliseconds, monotonic).

    A batch can't be split, so the budget may be overdrawn; the next push waits until it is not
    negative.
    """

    __slots__ = ("_at_ms", "_level", "rate")

    def __init__(self, rate: int, now_ms: int) -> None:
        self.rate = rate
        self._at_ms = now_ms
        self._level = self._burst()

    def _burst(self) -> float:
        return self.rate * BURST_MS / 1000

    def _fill(self, now_ms: int) -> None:
        if now_ms > self._at_ms:
            grown = self._level + self.rate * (now_ms - self._at_ms) / 1000
            self._level, self._at_ms = min(grown, self._burst()), now_ms

    def set_rate(self, rate: int, now_ms: int) -> None:
        """Set another rate in bytes a second; a debt remains, counted in bytes."""
        self._fill(now_ms)
        self.rate = rate
        self._level = min(self._level, self._burst())

    def take(self, size: int, now_ms: int) -> None:
        """Take these bytes from the budget, which may become negative."""
        self._fill(now_ms)
        self._level -= size

    def pause_ms(self, now_ms: int) -> int:
        """Return the time until bytes may be taken, in milliseconds; 0 if they may be taken now."""
        self._fill(now_ms)
        return 0 if self._level >= 0 else int(-self._level * 1000 / self.rate) + 1

    def quantum(self) -> int:
        """Return the bytes to take at once, so that bytes flow evenly."""
        return max(MIN_QUANTUM_BYTES, int(self._burst()))


class Throttles:
    """The two rate limits of this broker, by the newest image. Owned by the `ReplicaManager`."""

    def __init__(self, config: BrokerConfig, clock: Clock) -> None:
        self._broker_id = config.broker_id
        self._static = config.static()
        self._clock = clock
        self._configs: Mapping[ConfigKey, Mapping[str, str]] | None = None
        self.to_followers: TokenBucket | None = None
        """Limit of all bytes that this broker sends to out-of-sync replicas; None: no limit."""
        self.from_leaders: TokenBucket | None = None
        """Limit of all bytes that this broker receives for out-of-sync replicas; None: no limit."""

    def configure(self, image: MetadataImage) -> None:
        """Apply the rates of an image; a new rate applies from the next byte on."""
        if image.configs is self._configs:
            return
        self._configs = image.configs
        layers = broker_layers(image, self._broker_id, self._static)
        now_ms = self._clock.monotonic_ms()
        self.to_followers = _bucket(
            self.to_followers, layers.number(LEADER_REPLICATION_THROTTLED_RATE), now_ms
        )
        self.from_leaders = _bucket(
            self.from_leaders, layers.number(FOLLOWER_REPLICATION_THROTTLED_RATE), now_ms
        )

    def filled(
        self, replica: Replica, size: int, image: MetadataImage, links: Iterable[LeaderLink]
    ) -> None:
        """Count bytes that were pushed to a replica here, if it is not in sync.

        They are synced soon, whatever the topic's flush mode: pages that wait to be written would
        delay every other sync here (rule R9). If the limit is exceeded, all leaders are requested
        to pause.
        """
        bucket = self.from_leaders
        if bucket is None and replica.partition.settings.by_durable:
            return
        registration = image.partition(*replica.partition.id)
        if registration is None or self._broker_id in registration.isr:
            return
        replica.log.request_flush()
        if bucket is None:
            return
        now_ms = self._clock.monotonic_ms()
        bucket.take(size, now_ms)
        pause_ms = bucket.pause_ms(now_ms)
        if pause_ms:
            for link in links:
                if link.stream is not None:
                    link.stream.ask_pause(pause_ms, now_ms)


def _bucket(present: TokenBucket | None, rate: int, now_ms: int) -> TokenBucket | None:
    if rate >= NO_RATE_LIMIT:
        return None
    if present is None:
        return TokenBucket(rate, now_ms)
    present.set_rate(rate, now_ms)
    return present
