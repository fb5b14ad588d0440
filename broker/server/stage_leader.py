"""The leader of one partition of `__staged`: takes chunks, names them to homes, lets them go.

`Stages` makes a `StageLeader` for each stage partition that this broker leads, in one leader epoch.
It loads the index of its log, answers once all that it found is committed (rule G1), and appends
each chunk as one batch with acks=all. Its one task then asks the homes of old chunks, in rounds,
moves what is alive and blocks the log's beginning, and moves the log start (rule S10).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from broker.coordinator.runtime import PROOF_WAIT_MS
from broker.log.log_reader import warm
from broker.record.batch import RecordFormat
from broker.record.lines import ProduceRecord, make_raw
from broker.record.values import NULL
from broker.server.local_partitions import Append
from broker.server.requests import ACKS_ALL
from broker.transactions.chunk_records import (
    PROBE_KEY,
    RowsChunk,
    chunk_in,
    decode_head,
    encode_chunk,
    rows_in,
)
from broker.transactions.messages import LogPlace
from broker.transactions.stage_index import (
    REFS_MAX,
    AttemptRefs,
    ChunkHome,
    ChunkPlace,
    StageIndex,
    StageLimits,
)
from broker.transactions.stage_messages import StatusQuestion, Word
from broker.transactions.stage_trimming import (
    TrimRound,
    last_questions,
    log_start_of,
    next_moves,
    next_questions,
)
from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome, StorageError
from raft_metadata.common.ids import LeaderEpoch, TopicIdPartition

if TYPE_CHECKING:
    from broker.coordinator.runtime import Proof
    from broker.log.partition_log import PartitionLog
    from broker.record.batch import BatchSlice
    from broker.replication.log_start_manager import LogTrimming
    from broker.replication.replica import Replica
    from broker.server.local_partitions import LocalPartitions
    from broker.transactions.messages import StagedAttempt, TargetRows, TransactionalId
    from broker.transactions.stage_messages import FindRefs, StageChunk
    from raft_metadata.common.clock import Clock

LOAD_BYTES: Final = 131_072
"""Bytes that a load reads in one turn of the loop, or one record if that is larger: 200 records of
few rows take 3 ms."""
ANSWER_BYTES_MAX: Final = 16_777_216
"""Bytes of staged rows in one answer, or one record if that is larger."""
READ_BYTES: Final = 1_048_576
"""Bytes of one read of rows, or one record if that is larger."""
FORGOTTEN_AT_ONCE: Final = 500
"""Places that one turn of the loop forgets: 3 ms."""
LOAD_RETRY_MS: Final = 100
"""Pause before a load that failed is tried again."""
DAMAGED_RETRY_MS: Final = 5_000
"""Pause before a load of a damaged log is tried again: another replica has to lead."""
TRIM_INTERVAL_MS: Final = 1_000
"""Time between two rounds of questions to homes."""
TRIM_BYTES_MIN: Final = 1_048_576
"""Bytes for which the log start moves: each move replaces a file, which delays appends."""
TRIM_REST_MS: Final = 60_000
"""Time after which it moves for fewer bytes."""
WAVES_MAX: Final = 500
"""Most waves of questions in one round."""
ANSWER_TIMEOUT_MS: Final = 5_000
"""Time for a home's word; it asks nothing of others but commits what it says."""
WRITE_TIMEOUT_MS: Final = 5_000
"""Time for a probe, and for a chunk that is moved."""


HomePort = Callable[[StatusQuestion], Awaitable[Word]]
"""The home of a chunk, here or elsewhere. `Word.GONE` is committed in its log."""

_log = logging.getLogger("broker.stages")


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSettings:
    """Limits and times of a stage, as the cluster's configs have them now."""

    limits: StageLimits
    age_max_ms: int
    move_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePorts:
    """All that the leaders of stages on one broker share. Owned by `Stages`."""

    local: LocalPartitions
    trimming: LogTrimming
    clock: Clock
    """Wall time near the active controller's, for ages (rule R10)."""
    proof: Proof
    ask_home: HomePort
    home_of: Callable[[TransactionalId], ChunkHome]
    settings: Callable[[], StageSettings]
    is_clock_trusted: Callable[[], bool]
    clock_error_max_ms: int


class StageLeader:
    """One stage partition, led here in one leader epoch.

    Owned by `Stages`, on the broker's loop; `run` is its one task. Every method raises
    NOT_LEADER_OR_FOLLOWER once that epoch has ended. Invariant: while `is_ready`, the index is the
    fold of the log up to its end.
    """

    def __init__(self, place: TopicIdPartition, epoch: LeaderEpoch, ports: StagePorts) -> None:
        self.place = place
        self.epoch = epoch
        self._ports = ports
        self._index = StageIndex(ports.home_of)
        self._ready = self._closed = False
        self._trimmed_ms = ports.clock.monotonic_ms()
        self._doubted: dict[int, int] = {}
        """Places whose append time can't be right → monotonic time since they are known here."""

    @property
    def is_ready(self) -> bool:
        """True once all that the load found is committed."""
        return self._ready and not self._closed

    def close(self) -> None:
        """End the leader: this broker does not lead the partition in this epoch any more."""
        self._closed = True

    def _leading(self) -> Replica:
        replica, role = self._ports.local.leading(self.place)
        if role.epoch != self.epoch or self._closed:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the leader epoch changed")
        return replica

    def _serving(self) -> Replica:
        replica = self._leading()
        if not self._ready:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return replica

    # ---- chunks

    async def stage(self, request: StageChunk) -> int:
        """Append a chunk, unless it is here, and return its layout once it is committed (S9).

        The layout is that of the chunk's first request, which may have given its keyless rows
        other partitions.

        Raises:
            KafkaError: TRANSACTION_CONFLICT, MESSAGE_TOO_LARGE, THROTTLING_QUOTA_EXCEEDED,
                NOT_ENOUGH_REPLICAS; REQUEST_TIMED_OUT, it may be staged later.
        """
        replica, chunk = self._serving(), request.chunk
        found = self._index.find(chunk.key, chunk.digest)
        if found is None:
            self._index.check_room(chunk, self._ports.settings().limits)
            place, committed = self._append(replica, chunk, request.timeout_ms)
            await committed
            return place.layout
        await self._until_committed(found.end, request.timeout_ms)
        return found.layout

    def _append(
        self, replica: Replica, chunk: RowsChunk, timeout_ms: int
    ) -> tuple[ChunkPlace, asyncio.Future[None]]:
        """Append a chunk as one batch and take it into the index, in one turn of the loop.

        The future is done once the chunk is committed.
        """
        records = [
            ProduceRecord(key=make_raw(key), value=make_raw(value))
            for key, value in encode_chunk(chunk)
        ]
        self._ports.home_of(chunk.key.id)  # raises, if it does, before anything is appended
        base, committed = self._write(replica, records, timeout_ms)
        at = LogPlace(self.epoch, base)
        self._index.append(chunk, at, self._ports.clock.wall_ms())
        return self._index.places[base], committed

    def _write(
        self, replica: Replica, records: Sequence[ProduceRecord], timeout_ms: int
    ) -> tuple[int, asyncio.Future[None]]:
        """Append with acks=all; return the offset, and a future that is done once committed."""
        base = replica.log.log_end_offset
        committed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def answered(_partition: int, _base: int, error: KafkaError | None) -> None:
            if committed.done():
                return
            if error is None:
                committed.set_result(None)
            else:
                committed.set_exception(error)

        append = Append(
            partition=self.place,
            records=records,
            key_format=RecordFormat.JSON,
            value_format=RecordFormat.JSON,
            acks=ACKS_ALL,
            timeout_ms=timeout_ms,
            whole=True,
        )
        self._ports.local.append_directly(append, [(0, answered)])
        return base, committed

    async def _until_committed(self, end: int, timeout_ms: int) -> None:
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._ports.local.until_high_watermark(self.place, self.epoch, end)
        except TimeoutError:
            text = f"the chunk is not on all in-sync replicas within {timeout_ms} ms"
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, text, outcome=Outcome.UNKNOWN) from None
        except KafkaError as error:
            raise KafkaError(error.code, error.message, outcome=Outcome.UNKNOWN) from None

    async def refs(self, request: FindRefs) -> tuple[AttemptRefs, ...]:
        """Return the committed chunks of the named attempts; what is missing only with proof (G3).

        Raises:
            KafkaError: MESSAGE_TOO_LARGE, they have more than `REFS_MAX` records.
        """
        found = self._refs(request)
        if any(one.missing is not None for one in found):
            await self._prove()
            found = self._refs(request)
        if sum(len(one.refs) for one in found) > REFS_MAX:
            text = f"the chunks have more than {REFS_MAX} records: stage larger chunks"
            raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, text)
        return found

    def _refs(self, request: FindRefs) -> tuple[AttemptRefs, ...]:
        high_watermark = self._serving().partition.high_watermark
        position = (request.epoch, request.number)
        return tuple(
            self._index.refs(request.id, position, named, high_watermark)
            for named in request.attempts
        )

    async def read(self, places: Sequence[LogPlace]) -> list[TargetRows | None]:
        """Return the rows at places, as far as one answer holds, at least one.

        None: they are gone for good. That is said with proof only (rule G3), and by a leader that
        is loaded: the log that it found is what is left. It has another record there, or ends
        before the place, or begins behind it.

        Raises:
            KafkaError: OFFSET_NOT_AVAILABLE, a place is not committed here yet;
                KAFKA_STORAGE_ERROR, the rows are damaged.
        """
        found: list[TargetRows | None] = []
        size, is_proven = 0, False
        for at in places:
            try:
                rows = await self._rows_at(at)
            except StorageError as error:  # the unit waits for another leader, not more
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
            if rows is None and not is_proven:
                await self._prove()
                is_proven = True
            found.append(rows)
            size += 0 if rows is None else len(rows.records)
            if size >= ANSWER_BYTES_MAX:
                break
        return found

    async def _rows_at(self, at: LogPlace) -> TargetRows | None:
        replica = self._leading()
        if at.leader_epoch > self.epoch:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "a newer leader appended the record")
        if at.offset < replica.partition.high_watermark:
            return await read_place(replica, at)
        if at.leader_epoch in {self.epoch, replica.log.epoch_at(at.offset)}:
            raise KafkaError(ErrorCode.OFFSET_NOT_AVAILABLE)
        return None

    async def _prove(self) -> None:
        """Wait for proof that no other broker leads, which may know of more chunks (rule G3)."""
        proof = self._ports.proof
        if proof.check_proof() or await proof.prove(PROOF_WAIT_MS):
            self._serving()
            return
        probe = ProduceRecord(key=make_raw(PROBE_KEY), value=make_raw(NULL))
        _, committed = self._write(self._serving(), [probe], WRITE_TIMEOUT_MS)
        await committed

    def attempts(self) -> list[tuple[TransactionalId, StagedAttempt]]:
        """Return the attempts that hold rows which no home has let go."""
        self._serving()
        return list(self._index.descriptions(self._ports.clock.wall_ms()))

    # ---- life

    async def run(self) -> None:
        """Load, then let go of what homes release, until closed or cancelled."""
        while not self._closed:
            try:
                await self.load()
                break
            except KafkaError as error:
                _log.info("stage not loaded partition=%d: %s", self.place.partition, error)
            except StorageError:
                _log.exception("stage can't be loaded partition=%d", self.place.partition)
                await asyncio.sleep(DAMAGED_RETRY_MS / 1000)
            await asyncio.sleep(LOAD_RETRY_MS / 1000)
        while not self._closed:
            try:
                await self.trim_round()
            except (KafkaError, StorageError) as error:
                _log.info("stage not trimmed partition=%d: %s", self.place.partition, error)
            await asyncio.sleep(TRIM_INTERVAL_MS / 1000)

    async def load(self) -> None:
        """Fold the log to its end and wait until all of it is committed (rule G1)."""
        started_ms = self._ports.clock.monotonic_ms()
        index = StageIndex(self._ports.home_of)
        log = self._leading().log
        offset, end = log.log_start_offset, log.log_end_offset
        while offset < end:
            log = (await self._warmed(offset)).log
            for piece in log.read(offset, LOAD_BYTES, end):
                first = _place_of(piece)
                for number, line in enumerate(_lines(piece.lines)):
                    head = decode_head(line)
                    if head is not None:
                        index.fold(head, first.moved(number), piece.header.append_timestamp)
                offset = piece.next_offset
            await asyncio.sleep(0)
        _, role = self._ports.local.leading(self.place)
        until = max(end, role.epoch_start)
        await self._ports.local.until_high_watermark(self.place, self.epoch, until)
        self._index, self._ready = index, True
        _log.info(
            "stage loaded partition=%d leader_epoch=%d chunks=%d bytes=%d ms=%d",
            self.place.partition, self.epoch, len(index.places), index.stored_bytes,
            self._ports.clock.monotonic_ms() - started_ms,
        )  # fmt: skip

    async def _warmed(self, offset: int) -> Replica:
        """Return the replica, once the next records are in the page cache."""
        cold = self._leading().log.cold_range(offset, LOAD_BYTES)
        if cold is not None:
            await warm(cold)
        return self._leading()

    # ---- letting go

    async def trim_round(self) -> None:
        """Ask homes in waves until none has more to say, move what blocks, move the log start."""
        index, trim_round = self._index, TrimRound()
        await self._forget()
        if not index.places and self._leading().log.log_start_offset == self._end():
            return
        for _ in range(WAVES_MAX):
            wave = next_questions(
                index, self.place.partition, self._high_watermark(), trim_round, self._is_aged
            )
            words = await asyncio.gather(*(self._word(question) for question, _ in wave))
            self._leading()
            for (question, place), word in zip(wave, words, strict=True):
                trim_round.note(question, word, index.home_of(question.id))
                if word is Word.GONE:
                    index.release(place.base)
            move_bytes = self._ports.settings().move_bytes
            moves = next_moves(index, self._high_watermark(), trim_round.kept, move_bytes)
            for place in moves:
                await self._move(place)
                trim_round.kept.discard((place.chunk.key.id, place.chunk.key.attempt_id))
            await self._advance(trim_round)
            await self._forget()
            await asyncio.sleep(0)
            if not wave and not moves and trim_round.cursor >= len(index.attempts):
                return

    async def _forget(self) -> None:
        """Forget the places below the log start, in turns of the loop."""
        while True:
            start = self._leading().log.log_start_offset
            if not self._index.trim(start, FORGOTTEN_AT_ONCE):
                return
            await asyncio.sleep(0)

    def _high_watermark(self) -> int:
        return self._leading().partition.high_watermark

    def _end(self) -> int:
        return self._leading().log.log_end_offset

    async def _word(self, question: StatusQuestion) -> Word | None:
        """Return the home's word, or None if it gives none now."""
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_MS / 1000):
                return await self._ports.ask_home(question)
        except (KafkaError, TimeoutError) as error:
            _log.debug(
                "no word about a chunk stage=%d place=%d: %s",
                question.partition, question.place.offset, error,
            )  # fmt: skip
            return None

    async def _move(self, place: ChunkPlace) -> None:
        """Append a living chunk once more, so that the log's beginning may go."""
        replica = await self._warmed(place.base)
        lines = lines_at(replica.log, range(place.base, place.end))
        chunk = replace(chunk_in(lines), since_ms=place.since_ms)
        if self._index.is_moved(place) or place.base not in self._index.places:
            return  # it was let go, or staged anew, while its rows were read
        copy, committed = self._append(self._leading(), chunk, WRITE_TIMEOUT_MS)
        _log.info(
            "staged chunk moved partition=%d from=%d to=%d id=%s",
            self.place.partition, place.base, copy.base, place.chunk.key.id.name,
        )  # fmt: skip
        await committed

    def _is_aged(self, place: ChunkPlace) -> bool:
        """Return whether a chunk may be given up for its age; never while the clock is doubted.

        A chunk from the future was stamped by a clock that was wrong: its age is the time since it
        is known here (rule R10).
        """
        if not self._ports.is_clock_trusted():
            return False
        now_ms, monotonic_ms = self._ports.clock.wall_ms(), self._ports.clock.monotonic_ms()
        age_ms = now_ms - place.since_ms
        if age_ms < -self._ports.clock_error_max_ms:
            age_ms = monotonic_ms - self._doubted.setdefault(place.base, monotonic_ms)
        return age_ms > self._ports.settings().age_max_ms

    async def _advance(self, trim_round: TrimRound) -> None:
        """Move the log start to the first place that is left, if that frees enough.

        Before that, each home of what goes raises its horizon, unless it has decided some of it
        anew since it let it go (rule S10).
        """
        replica, index = self._leading(), self._index
        start = log_start_of(index, replica.partition.high_watermark)
        log = replica.log
        for base in [one for one in self._doubted if one not in index.places]:
            del self._doubted[base]
        if start <= log.requested_log_start or trim_round.is_blocked:
            return
        freed = 0
        for base, place in index.places.items():
            if base >= start or freed >= TRIM_BYTES_MIN:
                break
            freed += place.stored_bytes
        now_ms = self._ports.clock.monotonic_ms()
        if freed < TRIM_BYTES_MIN and now_ms - self._trimmed_ms < TRIM_REST_MS:
            return
        questions = last_questions(index, self.place.partition, start)
        words = await asyncio.gather(*map(self._word, questions))
        trim_round.is_blocked = any(word is not Word.GONE for word in words)
        if not trim_round.is_blocked:
            self._trimmed_ms = now_ms
            self._ports.trimming.move_log_start(self.place, self.epoch, start)


def lines_at(log: PartitionLog, offsets: range) -> list[bytes]:
    """Return the stored lines at these offsets.

    Raises:
        KafkaError: OFFSET_OUT_OF_RANGE, the log begins behind the first of them, or ends before
            the last.
    """
    found: list[bytes] = []
    offset = offsets.start
    while offset < offsets.stop:
        pieces = log.read(offset, READ_BYTES, offsets.stop)
        if not pieces:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, f"no record at offset {offset}")
        for piece in pieces:
            found += _lines(piece.lines)
            offset = piece.next_offset
    return found


async def read_place(replica: Replica, at: LogPlace) -> TargetRows | None:
    """Return the staged rows at a place below the replica's high watermark; None if they are gone.

    They are trimmed, or an unclean election has given the offset to another record.
    """
    log = replica.log
    if at.offset >= log.log_start_offset:
        cold = log.cold_range(at.offset, 1)
        if cold is not None:
            await warm(cold)
    return None if at.offset < log.log_start_offset else rows_at(log, at)


def rows_at(log: PartitionLog, place: LogPlace) -> TargetRows | None:
    """Return the staged rows of a record; None if the log has another one there, or none.

    An unclean election may have cut the record, and given its offset to another one, whose rows may
    be of a transaction that is not decided (T7).

    Raises:
        KafkaError: OFFSET_OUT_OF_RANGE, the log begins behind the place, or ends before it.
    """
    pieces = log.read(place.offset, READ_BYTES, place.offset + 1)
    if not pieces or _place_of(pieces[0]) != place:
        return None
    (line,) = _lines(pieces[0].lines)
    return rows_in(line)


def _place_of(piece: BatchSlice) -> LogPlace:
    """Return the place of the first record of a piece."""
    return LogPlace(LeaderEpoch(piece.header.leader_epoch), piece.first_offset)


def _lines(lines: bytes | memoryview) -> list[bytes]:
    return bytes(lines).split(b"\n")[:-1]
