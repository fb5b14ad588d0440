"""A simulated replica's log in memory, with no file beneath it: cheap, each fault of one kind."""

from __future__ import annotations

import random
from typing import Protocol

from broker.log.log_directory import LogConfig
from broker.record.lines import ProduceRecord
from raft_metadata.common.ids import BrokerEpoch, Claim
from raft_metadata.image.metadata_image import MetadataImage
from tests.support.memory_log import MemoryLog, encode
from tests.support.replication_invariants import Entry


class StoreHost(Protocol):
    """What a store asks of the simulated broker that owns it."""

    rng: random.Random

    def note(self, entry: Entry, offset: int) -> None:
        """An entry was appended."""

    def cut(self, end: int) -> None:
        """The log is about to be cut."""

    def durable(self) -> None:
        """The durable end moved."""

    def record_of(self, value: int) -> ProduceRecord:
        """The record that bears this number."""
        ...


class MemoryStore:
    """A `MemoryLog`: cheap, with no file beneath it. Every fault of it is one of this class."""

    real = False

    def __init__(self, host: StoreHost) -> None:
        self.host = host
        self.failed: BaseException | None = None
        self.unclean = self.offline = self.is_marked = False
        self.damaged = self.cache_lost = False
        self.renew()

    def renew(self) -> None:
        self.log = CuttingLog(self.host)
        self.damaged = False

    @property
    def mirror(self) -> list[Entry]:
        return self.log.entries

    def platter(self) -> list[Entry]:
        return self.log.synced

    # life

    def start(self, incarnation: str) -> bool:
        self.log.synced = list(self.log.entries)  # rule Q1: open means synced
        self.log.durable_end = len(self.log.entries)
        self.log.generation, self.log.flush = 0, None
        self.unclean = self.damaged
        return True

    def take(self, image: MetadataImage, config: LogConfig) -> MemoryLog:
        """The log of the assigned replica."""
        return self.log

    def look_at(self, image: MetadataImage) -> None:
        """Nothing: what is damaged is forgotten when the controller has recorded it."""

    def quarantined(self) -> list[str]:
        return []

    def set_aside(self) -> None:
        """The replica was removed from this broker."""
        self.renew()

    def stop(self, *, power: bool) -> None:
        """SIGKILL keeps the page cache; a power cut keeps at least what was synced."""
        log, rng = self.log, self.host.rng
        if power:
            same = 0
            while same < min(len(log.entries), len(log.synced)):
                if log.entries[same] != log.synced[same]:
                    break
                same += 1
            if rng.random() < 0.4:
                log.synced = log.entries[: rng.randint(same, len(log.entries))]
            log.recover(log.synced, keep_cache=False)
        else:
            log.recover(log.entries, keep_cache=rng.random() < 0.5)

    def close(self, broker_epoch: BrokerEpoch | None) -> None:
        self.log.flush_now()
        self.stop(power=False)

    def lose_disk(self) -> None:
        self.renew()

    def rot(self, *, everywhere: bool = False) -> str:
        """Durable bytes are gone under the same directory id; recovery notices (rules Q5, R6)."""
        kept = self.log.entries[: self.host.rng.randint(0, len(self.log.entries))]
        self.log.recover(kept, keep_cache=False)
        self.log.synced = list(self.log.entries)
        self.damaged = True
        return "record"

    def recorded(self) -> None:
        """The controller knows of the damage, and has taken the replica out."""
        self.damaged = False

    # log

    def append(
        self, epoch: int, values: list[int], now_ms: int, claim: Claim | None = None
    ) -> None:
        for value in values:
            self.log.append((epoch, value))

    def read(self, start: int, high: int, max_bytes: int) -> tuple[bytes, int]:
        entries = self.log.entries[start : min(high, start + 2)]  # catch-up in small quanta
        return encode(entries), start + len(entries)

    def flush_step(self) -> None:
        if self.log.flush is None:
            self.log.flush_start()
        elif self.log.flush_end():
            self.host.durable()

    def flush_all(self) -> None:
        self.log.flush_start()
        if self.log.flush_end():
            self.host.durable()

    def idle(self) -> None:
        """What a broker does now and then."""


class CuttingLog(MemoryLog):
    """Says before it is cut, as `ToldLog` does."""

    def __init__(self, host: StoreHost) -> None:
        super().__init__(host.note)
        self._host = host

    def truncate_to(self, end_offset: int) -> None:
        if end_offset < len(self.entries):
            self._host.cut(end_offset)
        super().truncate_to(end_offset)
