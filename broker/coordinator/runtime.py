"""A led partition of a coordinator's topic: a state, decided in order and written behind.

A shard is what groups and transactions have in common. A decision is made and folded at once, in
one turn of the event loop, and its records are written by the shard's one task: while one append is
replicated, later decisions gather for the next one (group commit). The records of one decision are
never parted (rule S1). No request is answered before the records that the answer depends on are
committed. An append that fails, or whose outcome is unknown, invalidates everything decided since:
the state is dropped and read back from the log before the next answer.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from broker.coordinator.records import (
    ProbeKey,
    ProbeValue,
    ShardRecord,
    UndecodableRecord,
    UndecodableRecords,
)
from raft_metadata.common.clock import Clock
from raft_metadata.common.errors import CorruptionError, ErrorCode, KafkaError, Outcome
from raft_metadata.common.ids import LeaderEpoch, PartitionId

_log = logging.getLogger("broker.coordinator")
T = TypeVar("T")

LOAD_RETRY_MS = 100
"""Pause before a load that failed is tried again."""
PROOF_WAIT_MS = 100
"""Time to wait for a heartbeat that proves this broker's leadership; then an append must prove
it."""
UNHURRIED_MS = 250
"""Time for which records that no request waits for are kept for the next append."""
PARKED_DECISIONS_MAX = 20_000
"""Most records that wait to be written; QUEUE_FULL beyond."""


class Proof(Protocol):
    """Port for proof that no other broker became the leader unnoticed (rule G3)."""

    def check_proof(self) -> bool: ...

    async def prove(self, timeout_ms: int) -> bool: ...


class ShardLog(Protocol):
    """Port to a partition of a coordinator's topic, in the leader epoch that the shard is made for.

    Every method raises NOT_LEADER_OR_FOLLOWER once this broker does not lead in that epoch.
    """

    @property
    def bounds(self) -> tuple[int, int]:
        """Log start and log end."""
        ...

    def read(
        self, from_offset: int, up_to_offset: int
    ) -> tuple[list[ShardRecord | UndecodableRecord], int]:
        """Return some records, committed or not, and the offset behind them."""
        ...

    async def until_committed(self, offset: int) -> None:
        """Wait until the high watermark reaches this offset and the leader epoch's start."""
        ...

    def check_leads(self) -> None:
        """Raise NOT_LEADER_OR_FOLLOWER if this broker does not lead in that epoch any more."""
        ...

    def check_may_append(self) -> None:
        """Raise NOT_ENOUGH_REPLICAS if an append would be refused."""
        ...

    async def append(self, decisions: Sequence[Sequence[ShardRecord]]) -> None:
        """Append the records of decisions, in order, with acks=all; return once all are committed.

        The records of one decision are in one batch (rule S1).
        """
        ...


class ShardState(Protocol):
    """State of a shard: the fold of its log, and what was decided on it and not written yet."""

    entries: list[ShardRecord]
    trusted_ms: int | None

    def fold(self, entry: ShardRecord) -> None:
        """Apply a record that was decided here or read from the log."""
        ...

    def apply(self, *entries: ShardRecord) -> None:
        """Fold records that were just decided, and keep them to be written."""
        ...

    def take(self) -> list[ShardRecord]:
        """Return the records to be written since the last call."""
        ...


S = TypeVar("S", bound=ShardState)


class _Batch:
    """Decisions that are written together, and the event on which their requests wait."""

    __slots__ = ("count", "decisions", "done", "error")

    def __init__(self) -> None:
        self.decisions: list[list[ShardRecord]] = []
        self.count = 0
        self.done = asyncio.Event()
        self.error: KafkaError | None = None

    def add(self, entries: list[ShardRecord]) -> None:
        self.decisions.append(entries)
        self.count += len(entries)

    def fail(self, error: KafkaError) -> None:
        self.error = error
        self.done.set()


class ShardRuntime(ABC, Generic[S]):
    """The state of one led partition of a coordinator's topic, in one leader epoch.

    Owned by its coordinator, on the event loop; `run` is its one task. Invariant: while `is_ready`,
    the state is the fold of the log and of the records that wait to be written.
    """

    name = "coordinator"
    """Name of the state in the log file."""

    def __init__(
        self, partition: PartitionId, epoch: LeaderEpoch, log: ShardLog, clock: Clock,
        is_clock_trusted: Callable[[], bool],
    ) -> None:  # fmt: skip
        self.partition = partition
        self.epoch = epoch
        self.generation = 0
        """Grows whenever the state is dropped; a caller that waited compares it with its own."""
        self._log = log
        self._clock = clock
        self._is_clock_trusted = is_clock_trusted
        self._state = self._empty_state()
        self._is_loaded = self._closed = False
        self._loading_since_ms = clock.monotonic_ms()
        self._gathering: _Batch | None = None
        self._writing: _Batch | None = None
        self._wake_writer = asyncio.Event()
        self._later: asyncio.TimerHandle | None = None
        """The time at which records that wait for the next append are written without one."""
        self.on_loaded: Callable[[], None] = _nothing
        """Called in the turn of a load; all that was found is committed then (rule G1)."""
        self.on_committed: Callable[[Sequence[ShardRecord]], None] = _nothing
        """Called with the records of decisions, in order, once they are committed."""

    # ---- the state's own part

    @abstractmethod
    def _empty_state(self) -> S:
        """Return the state of an empty log."""

    @abstractmethod
    def _loaded(self, state: S, undecodable: Sequence[UndecodableRecord]) -> bool:
        """Begin with a state that was just loaded, and records that this broker can't decode.

        False: the shard can't answer now; it is loaded again later.
        """

    def _decided(self, entries: Sequence[ShardRecord]) -> None:
        """Note the records of a decision that was just made."""

    def _dropped(self) -> None:
        """Note that the state was dropped."""

    def _described(self, state: S) -> str:
        """Return facts about a loaded state for the log file."""
        return ""

    @property
    def is_ready(self) -> bool:
        """True if the shard is loaded and not closed."""
        return self._is_loaded and not self._closed

    @property
    def loading_ms(self) -> int:
        """Time for which the shard has been loading; 0 if it is loaded."""
        return 0 if self._is_loaded else self._clock.monotonic_ms() - self._loading_since_ms

    # ---- decisions

    def state(self, generation: int | None = None) -> S:
        """Return the present state.

        Raises:
            KafkaError: NOT_COORDINATOR, or COORDINATOR_LOAD_IN_PROGRESS; the latter also if the
                state is not of this ``generation`` any more. Nothing was recorded.
        """
        if self._closed:
            raise KafkaError(ErrorCode.NOT_COORDINATOR)
        if not self._is_loaded or generation not in (None, self.generation):
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return self._state

    def decide(
        self, decision: Callable[[S], T], generation: int | None = None, *, unhurried: bool = False
    ) -> T:
        """Make a decision on the state and hand its records to the writer, without an ``await``.

        ``unhurried``: no request waits for the records; they are written with those of the next
        decision, or with the next answer that depends on them, or after `UNHURRIED_MS`.
        A decision that raises after it has changed something is a bug: the state is dropped.
        """
        state = self.state(generation)
        self._log.check_may_append()
        waiting = 0 if self._gathering is None else self._gathering.count
        if waiting > PARKED_DECISIONS_MAX:
            raise KafkaError(ErrorCode.QUEUE_FULL, "the coordinator's writer is behind")
        state.trusted_ms = self._clock.wall_ms() if self._is_clock_trusted() else None
        try:
            answer = decision(state)
        except BaseException:
            if state.entries:
                self._drop(KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
            raise
        entries = state.take()
        if entries:
            if self._gathering is None:
                self._gathering = _Batch()
            self._gathering.add(entries)
            if not unhurried:
                self._wake_writer.set()
            elif self._later is None:
                loop = asyncio.get_running_loop()
                self._later = loop.call_later(UNHURRIED_MS / 1000, self._wake_writer.set)
        self._decided(entries)
        return answer

    async def settled(self) -> None:
        """Wait until everything decided so far is committed. Await it directly after `decide`.

        A caller that awaits anything else in between must check the generation too.

        Raises:
            KafkaError: the records are not committed; its outcome says whether they may be later.
        """
        batch = self._gathering or self._writing
        if batch is None:
            return
        if batch is self._gathering:
            self._wake_writer.set()
        await batch.done.wait()
        if batch.error is not None:
            error = batch.error
            raise KafkaError(error.code, error.message, outcome=error.outcome)

    def check_leads(self) -> None:
        """Raise NOT_COORDINATOR if this broker's replica has taken another role (rule G3).

        Roles of a large image are taken in steps, and shards are closed after the last of them. In
        between this replica may already follow a new leader, and help it to commit.
        """
        try:
            self._log.check_leads()
        except KafkaError as error:
            raise KafkaError(ErrorCode.NOT_COORDINATOR, error.message) from None

    async def probe(self) -> None:
        """Commit an append that begins now; no in-sync replica has a newer epoch then (G3)."""
        self.state()
        if self._gathering is None:
            self.decide(lambda state: state.apply(ShardRecord(ProbeKey(), ProbeValue())))
        await self.settled()

    async def prove(self, proof: Proof) -> None:
        """Wait for proof that this broker still leads: an acknowledged heartbeat or append.

        If no controller answers, an append that every in-sync replica acknowledged is proof: none
        of them has seen a newer epoch. It proves that for its own moment only, so it must begin
        after the request (rule G3).

        Raises:
            KafkaError: NOT_COORDINATOR.
        """
        if proof.check_proof() or await proof.prove(PROOF_WAIT_MS):
            self.check_leads()
            return
        try:
            await self.probe()
        except KafkaError as error:
            text = f"this broker can't prove that it leads: {error.message}"
            raise KafkaError(ErrorCode.NOT_COORDINATOR, text) from None

    async def confirm(self, proof: Proof) -> None:
        """Prove that what was read is of the newest state, all of it committed (rule G3).

        Raises:
            KafkaError: NOT_COORDINATOR if that can't be proven.
        """
        try:
            await self.settled()
            await self.prove(proof)
            self.state()
        except KafkaError as error:
            raise KafkaError(ErrorCode.NOT_COORDINATOR, error.message) from None

    # ---- life

    async def run(self) -> None:
        """Load, write, and load again after a failed append, until closed or cancelled."""
        while not self._closed:
            if not self._is_loaded and not await self._load():
                await asyncio.sleep(LOAD_RETRY_MS / 1000)
                continue
            await self._wake_writer.wait()
            self._wake_writer.clear()
            await self._write()

    def close(self) -> None:
        """Drop the state, because this broker no longer leads, and end every wait.

        An append in flight keeps its own outcome: it may still be committed.
        """
        self._closed = True
        if self._later is not None:
            self._later.cancel()
        self._drop(KafkaError(ErrorCode.NOT_COORDINATOR))
        self._wake_writer.set()

    def _drop(self, error: KafkaError) -> None:
        """Drop the state and the gathered records, which were never written."""
        self.generation += 1
        if self._is_loaded:
            self._loading_since_ms = self._clock.monotonic_ms()
        self._is_loaded = False
        self._state = self._empty_state()
        gathered, self._gathering = self._gathering, None
        if gathered is not None:
            gathered.fail(error)
        self._wake_writer.set()
        self._dropped()

    async def _load(self) -> bool:
        """Fold the log to its end and wait until all of it is committed; False if not (rule G1)."""
        state = self._empty_state()
        generation = self.generation
        started_ms = self._clock.monotonic_ms()
        undecodable = UndecodableRecords()
        try:
            offset, end = self._log.bounds
            while offset < end:
                entries, offset = self._log.read(offset, end)
                for entry in entries:
                    if isinstance(entry, UndecodableRecord):
                        undecodable.note(entry)
                        continue
                    undecodable.replace(entry)
                    state.fold(entry)
                await asyncio.sleep(0)
            await self._log.until_committed(end)
        except CorruptionError:
            _log.exception("%s can't load partition=%d", self.name, self.partition)
            return False
        except KafkaError as error:
            _log.info("%s not loaded partition=%d: %s", self.name, self.partition, error)
            return False
        if self._closed or generation != self.generation:
            return False
        self._state, self._is_loaded = state, True
        if not self._loaded(state, list(undecodable.by_key.values())):
            if self._is_loaded:  # else the state would be served all the same
                self._drop(KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
            return False
        self.on_loaded()
        _log.info(
            "%s loaded partition=%d leader_epoch=%d entries=%d %s ms=%d",
            self.name, self.partition, self.epoch, end, self._described(state),
            self._clock.monotonic_ms() - started_ms,
        )  # fmt: skip
        return True

    async def _write(self) -> None:
        batch, self._gathering = self._gathering, None
        if self._later is not None:
            self._later.cancel()
            self._later = None
        if batch is None or self._closed:
            return
        self._writing = batch
        try:
            await self._log.append(batch.decisions)
        except KafkaError as error:
            _log.warning(
                "%s: decisions not committed partition=%d outcome=%s error=%s",
                self.name, self.partition, error.outcome.value, error,
            )  # fmt: skip
            # The records gathered meanwhile were decided on a state that may not be committed.
            self._drop(KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
            batch.fail(_failed(error))
        else:
            self.on_committed([entry for decision in batch.decisions for entry in decision])
            batch.done.set()
        finally:
            self._writing = None


def _nothing(*_: object) -> None:
    """Take no notice."""


def _failed(error: KafkaError) -> KafkaError:
    """Return the error that a client gets for a failed append."""
    if error.outcome is Outcome.UNKNOWN:
        text = f"the coordinator's log has not acknowledged it: {error.message}"
        return KafkaError(ErrorCode.OUTCOME_UNKNOWN, text)
    return KafkaError(error.code, error.message, outcome=Outcome.NOT_WRITTEN)
