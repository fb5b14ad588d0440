"""The log of one partition on one broker: append, read, truncate, flush and the durable end.

Replication appends (`append_as_leader`, `append_as_follower`), reads, truncates and moves the log
start. The log writes to its `LogSegments`, records leader epochs and producers, and requests a
flush; the `Flusher` calls `begin_flush` and `end_flush`, and the latter moves ``durable_end`` and
calls ``on_durable``. Reads are done in `log_reader`; a damaged batch or a read error takes the log
offline and is reported, never served (invariant L22). All of it runs on the event loop without an
await (only syncs run on the flusher's thread), so no other task sees half a change.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Concatenate, NoReturn, ParamSpec, TypeVar

from broker.log import log_reader
from broker.log.flusher import FlushToken
from broker.log.leader_epoch_cache import LeaderEpochCache
from broker.log.log_directory import AppendInfo, InDoubtError, UnreadableError
from broker.log.log_producers import LogProducers
from broker.log.log_reader import ColdRange, cold_range
from broker.log.producer_snapshot import decode_snapshot, encode_told, snapshot_name
from broker.log.segments import LogSegments, WriteError
from broker.record.batch import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    BatchError,
    Lines,
    RecordFormat,
    stamp_run,
    verify_run,
)
from broker.record.compression import ZSTD, pack
from broker.record.lines import BATCH_BYTES_MAX, encode_batches
from raft_metadata.common.disk import OUT_OF_DESCRIPTORS, TRANSIENT_ERRNOS
from raft_metadata.common.errors import CorruptionError, ErrorCode, KafkaError, Outcome
from raft_metadata.common.ids import Claim

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from broker.log.log_directory import LogConfig, LogDirectory
    from broker.log.log_reader import TimeSearch
    from broker.log.producer_state import ProducerStates, RememberedBatch
    from broker.log.recovery import RecoveredLog
    from broker.log.segment import OpenFiles, Segment
    from broker.record.batch import BatchSlice
    from broker.record.compression import Piece
    from broker.record.lines import ProduceRecord
    from raft_metadata.common.ids import PartitionId, TopicId, TopicName


P = ParamSpec("P")
T = TypeVar("T")


_NO_CLAIM = Claim(NO_PRODUCER_ID, NO_PRODUCER_EPOCH, NO_SEQUENCE)
_NO_EPOCHS = LeaderEpochCache()
_NO_SEGMENTS: list[Segment] = []
"""Shared with `_NO_EPOCHS` by every log without a segment; nothing is ever added to the two."""


class PartitionLog:
    """Batches in segments, the newest one being written; about 0.7 KB of memory while empty.

    Owned by the LogManager, on the event loop. Invariants: log_start_offset <= durable_end <=
    log_end_offset. ``log_end_offset`` moves only after a complete write (rule R2), ``durable_end``
    only after a sync that began in the present ``generation`` (rule Q3). `LogSegments` owns the
    files.
    """

    __slots__ = (
        "_epochs",
        "_producers",
        "_shared",
        "_stored",
        "config",
        "durable_end",
        "failed",
        "generation",
        "high_watermark",
        "is_closed",
        "is_served_damaged",
        "last_epoch",
        "log_end_offset",
        "log_start_offset",
        "name",
        "on_durable",
        "partition",
        "requested_log_start",
        "topic",
        "topic_id",
    )  # fmt: skip

    def __init__(
        self,
        shared: LogDirectory,
        topic: TopicName,
        partition: PartitionId,
        topic_id: TopicId,
        config: LogConfig,
    ) -> None:
        """Create an empty log. Nothing is written to the disk before the first append."""
        self._shared = shared
        self.topic = topic
        self.partition = partition
        self.topic_id = topic_id
        self.name = f"{topic}-{partition}"
        self.config = config
        self.log_start_offset = 0
        self.log_end_offset = 0
        self.durable_end = 0
        self.high_watermark = 0
        """Set by replication; the LogManager writes it to a checkpoint file."""
        self.generation = 0
        self.last_epoch = -1
        self.failed: BaseException | None = None
        """Reason why the log is offline: it takes no bytes and refuses reads; None while served."""
        self.is_closed = False
        """True once its files may be moved, or be those of another log of the same name."""
        self.is_served_damaged = False
        """True if its bytes are damaged and no replica has more: reads of the rest are served."""
        self.on_durable: Callable[[], None] | None = None
        self._stored: LogSegments | None = None
        self.requested_log_start = 0
        """The log start offset to take effect once it is durable; at least the present one."""
        self._epochs = _NO_EPOCHS
        self._producers: LogProducers | None = None

    def restore(self, found: RecoveredLog) -> None:
        """Take over the result of recovery, durable only after the caller's sync (rule Q1)."""
        self._stored = LogSegments.restored(self._shared, self.directory, found)
        self._epochs = found.epochs
        if found.producers is not None:
            self._producers = LogProducers(self._shared, found.producers, found.snapshots)
        self.log_start_offset = self.requested_log_start = found.log_start_offset
        self.log_end_offset = found.log_end_offset
        self.durable_end = found.proven_end
        self.last_epoch = self._epochs.last_epoch(self.log_end_offset)

    @property
    def directory(self) -> str:
        return f"{self._shared.root}/{self.name}"

    @property
    def segments(self) -> list[Segment]:
        """All segments, oldest first; the last one is written to. The caller must not change it."""
        return _NO_SEGMENTS if self._stored is None else self._stored.segments

    @property
    def stored(self) -> LogSegments | None:
        """The files of this log, for compaction; None while it has none."""
        return self._stored

    @property
    def dropped_to(self) -> int:
        """The offset below which tombstones may be missing from this log (rule R7)."""
        return 0 if self._stored is None else self._stored.cleaned.dropped_to

    def note_dropped(self, offset: int) -> None:
        """Record that the leader of this replica dropped tombstones below ``offset`` (R7). Durable.

        Raises:
            KafkaError: KAFKA_STORAGE_ERROR.
        """
        try:
            (self._stored or self._create_files()).note_dropped(offset)
        except (WriteError, OSError) as error:
            if isinstance(error, OSError) and error.errno not in TRANSIENT_ERRNOS:
                self._fail(error)
            self._storage_error(error, Outcome.NOT_WRITTEN)

    @property
    def recovery_point(self) -> int:
        """The offset from which the next start scans the log, unless the shutdown is clean."""
        return 0 if self._stored is None else self._stored.recovery_point

    # producers

    @property
    def producers(self) -> ProducerStates | None:
        """The producers that have written to this log; None if no batch names a producer."""
        return None if self._producers is None else self._producers.states

    def repeated(
        self, claim: Claim, count: int, now_ms: int, *, may_begin: bool = True
    ) -> RememberedBatch | None:
        """Return the batch, or part of one, that ``count`` records of this claim would repeat.

        See `ProducerStates.check`.
        """
        return self._ensure_producers().states.check(claim, count, now_ms, may_begin=may_begin)

    def producers_told(self, as_of: int) -> bytes | None:
        """Return what a replica is told that begins anew at this log's start (rule S5).

        That are the producers without any batch that reaches ``as_of``, at least the log start: for
        `start_over`. None: they are being read from the log; ask again later.
        """
        states: ProducerStates | None = self._shared.producers.states()
        if self._producers is not None:
            states = self._producers.as_of(
                self,
                as_of,
                self.log_start_offset,
                lambda: as_of if self._stored is None else self._stored.boundary(as_of),
            )
        return None if states is None else encode_told(states, self.log_start_offset)

    def _ensure_producers(self) -> LogProducers:
        if self._producers is None:
            self._producers = LogProducers(self._shared)
        return self._producers

    # append

    def append_as_leader(
        self,
        records: Sequence[ProduceRecord],
        *,
        key_format: RecordFormat,
        value_format: RecordFormat,
        leader_epoch: int,
        now_ms: int,
        claim: Claim | None = None,
        whole: bool = False,
        keep_times: bool = False,
    ) -> AppendInfo:
        """Assign offsets to the records, encode and write them: all of them or none (rule R2).

        ``keep_times``: the records keep their own times, whatever the topic's timestamp type is.

        With ``flush_before_ack`` a sync is requested, and ``on_durable`` is called when it is done.
        Records with a claim become a single batch, however large (`broker.log.producer_state`). So
        do those with ``whole``: no replica ever has some of them only (rule S1).

        Raises:
            KafkaError: KAFKA_STORAGE_ERROR, with outcome NOT_WRITTEN if the file is unchanged;
                MESSAGE_TOO_LARGE, a single batch above `BATCH_LINES_MAX`.
            ValueError: no records, or a leader epoch older than the log's last one.
        """
        if leader_epoch < self.last_epoch or not records:
            msg = f"epoch {leader_epoch} is behind {self.last_epoch}, or nothing to append"
            raise ValueError(msg)
        base = self.log_end_offset
        producer_id, producer_epoch, base_sequence = claim or _NO_CLAIM
        batches = encode_batches(
            records,
            key_format=key_format,
            value_format=value_format,
            base_offset=base,
            leader_epoch=leader_epoch,
            append_timestamp=now_ms,
            durable_end=self.durable_end,
            append_time=self.config.append_time and not keep_times,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            batch_bytes_max=BATCH_BYTES_MAX if claim is None and not whole else sys.maxsize,
            codec=ZSTD,
            pack=pack if self.config.zstd else None,
        )
        raw = batches[0].raw if len(batches) == 1 else b"".join([b.raw for b in batches])
        segment = self._write(raw, now_ms)
        for batch in batches:
            segment.note(
                batch.base_offset, batch.next_offset, len(batch.raw), batch.max_timestamp, now_ms
            )
        if leader_epoch != self.last_epoch:
            self._assign_epoch(leader_epoch, base)
            self.last_epoch = leader_epoch
        self.log_end_offset = batches[-1].next_offset
        if claim is not None:
            last, committed_end = self.log_end_offset - 1, self.high_watermark
            self._ensure_producers().states.note(claim, base, last, now_ms, committed_end)
        self._schedule_flush()
        return AppendInfo(base, self.log_end_offset - 1, raw)

    def append_as_follower(self, batches: bytes | bytearray | memoryview) -> None:
        """Write whole batches as the leader sent them, with this replica's own stamp (rule Q5).

        Raises:
            KafkaError: CORRUPT_MESSAGE, the bytes are not whole valid batches; KAFKA_STORAGE_ERROR
                as in `append_as_leader`. The log is unchanged.
            ValueError: a gap, or a leader epoch that goes back: these batches belong to another
                log.
        """
        if isinstance(batches, memoryview) and not batches.readonly:
            raw: bytearray | memoryview = batches  # stamped where the stream received it
        else:
            raw = bytearray(batches)
        try:
            headers = verify_run(raw, self.log_end_offset, self.last_epoch)
        except BatchError as error:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"log {self.name}: {error}") from None
        if not headers:
            return
        stamp_run(raw, headers, self.durable_end)
        segment = self._write(raw, headers[0].append_timestamp)
        for header in headers:
            segment.note_header(header)
            if header.producer_id >= 0:
                self._ensure_producers().states.applied(header, self.high_watermark)
            if header.leader_epoch != self._epochs.newest:
                self._assign_epoch(header.leader_epoch, header.base_offset)
        self.last_epoch = headers[-1].leader_epoch
        self.log_end_offset = headers[-1].next_offset
        self._schedule_flush()

    def _write(self, raw: bytes | bytearray | memoryview, now_ms: int) -> Segment:
        """Write at the end of the active segment, completely or not at all, and return the segment.

        The caller must account for the batches with `Segment.note`.
        """
        if self.failed is not None:
            self._refuse()
        try:
            stored = self._stored or self._create_files()
            segment = stored.write(raw, self.log_end_offset, now_ms, self.config)
        except WriteError as error:
            if error.broken:
                self._fail(error.cause)
            self._storage_error(error.cause, error.outcome)
        except OSError as error:
            self._storage_error(error, Outcome.NOT_WRITTEN)
        if self._producers is not None and not segment.size:
            self._producers.rolled(self.log_end_offset)
        return segment

    def _create_files(self) -> LogSegments:
        """Create the log's directory and files, for its first byte."""
        self._stored = LogSegments.create(
            self._shared, self.directory, self.topic, self.partition, self.topic_id
        )
        return self._stored

    def _schedule_flush(self) -> None:
        if self.config.flush_before_ack:
            self._shared.flusher.request(self)
        else:
            self._shared.dirty.add(self)

    # durability

    def request_flush(self) -> None:
        """Request a sync; ``durable_end`` moves later, and ``on_durable`` is called then."""
        if self.failed is None and (
            self.durable_end < self.log_end_offset
            or self.requested_log_start > self.log_start_offset
        ):
            self._shared.flusher.request(self)

    def begin_flush(self) -> FlushToken | None:
        """Return a token that names what to sync to make everything written so far durable.

        Called by the flusher. None if there is nothing to sync, or the log is offline.
        """
        starts = self.requested_log_start > min(self.log_start_offset, self.durable_end)
        if self.failed is not None or not (starts or self.durable_end < self.log_end_offset):
            return None
        token = FlushToken(self, self.generation, self.log_end_offset)
        if starts:
            token.log_start = self.requested_log_start
        assert self._stored is not None, "a log without files has no end to prove"
        self._stored.fill(token, self._epochs, self.log_start_offset)
        if self._producers is not None:
            self._producers.join(token, self.segments)
        self._shared.dirty.discard(self)
        return token

    def end_flush(self, token: FlushToken, *, synced: bool) -> None:
        """Complete the sync of this token: move the log start and the durable end.

        Called by the flusher.
        """
        if self._stored is not None:
            self._stored.end_flush(token, synced=synced, cut=token.generation != self.generation)
        if not synced or token.generation != self.generation:
            return  # those bytes may have been replaced since (rule Q3)
        if self._producers is not None and not token.checkpoints_failed:
            self._producers.written(token)
        if token.log_start >= 0 and not self._finish_log_start(token):
            return
        if token.end_offset > self.durable_end:
            self.durable_end = token.end_offset
            if self.on_durable is not None:
                self.on_durable()

    # log start

    def advance_log_start(self, offset: int) -> bool:
        """Request a higher log start; return False if it is already reached or requested.

        ``log_start_offset`` moves once it is durable, and the shared ``on_log_start`` is called
        then: records once refused to a reader never become readable again. Whole segments are
        removed later.

        Raises:
            KafkaError: KAFKA_STORAGE_ERROR, the log is offline.
            ValueError: ``offset`` is behind the log's end.
        """
        if offset > self.log_end_offset:
            raise ValueError(f"{self.name} ends at {self.log_end_offset}, can't start at {offset}")
        if self.failed is not None:
            self._refuse()
        if offset <= self.requested_log_start:
            return False
        self.requested_log_start = offset
        self._shared.flusher.request(self)
        return True

    @property
    def is_start_moving(self) -> bool:
        """Return True while a requested log start is not yet durable."""
        return self.requested_log_start > self.log_start_offset and self.failed is None

    def _finish_log_start(self, token: FlushToken) -> bool:
        """Move the log start after the data is synced; return False if it could not be recorded.

        The disk was too full then, and the durable end does not move either.
        """
        if token.checkpoints_failed:
            self._shared.dirty.add(self)  # the background flush requests a sync again
            return self.durable_end >= self.log_start_offset
        if token.log_start > self.log_start_offset:
            self.log_start_offset = token.log_start
            self._epochs.truncate_from_start(token.log_start)
        self._shared.on_log_start(self)
        return True

    def start_over(self, offset: int, producers: bytes | None = None) -> None:
        """Remove all records: the log begins and ends at ``offset`` from now on.

        ``producers``: what the leader told of the producers below it (`producers_told`); durable
        with the new start (rule S5). None: there were none, or nothing is left that knows them.

        Needed where the leader's log begins behind this log's end, or ends before its start. Start,
        end, epochs and high watermark move together (invariant L8). At or behind the end, a later
        flush makes it durable, and ``durable_end`` moves then; below the end it is durable on
        return.

        Raises:
            KafkaError: KAFKA_STORAGE_ERROR; CORRUPT_MESSAGE, ``producers`` are not those of this
                offset, and nothing has changed.
            ValueError: the offset is negative.
        """
        if offset < 0:
            msg = f"log {self.name} can't begin at {offset}"
            raise ValueError(msg)
        if self.failed is not None:
            self._refuse()
        told = self._decode_told(offset, producers)
        self.generation += 1  # a sync in flight proves nothing from here on (Q3)
        self._shared.flusher.drain(self)
        try:
            stored = self._stored or self._create_files()
        except OSError as error:
            self._storage_error(error, Outcome.NOT_WRITTEN)
        try:
            if offset >= self.log_end_offset:
                stored.start_over_behind_end(offset)
                # Until the flush, a crash may restore this log with all its old records.
                self.durable_end = min(self.durable_end, max(offset - 1, 0))
            else:
                told_file = None
                if told is not None:
                    told_file = snapshot_name(offset), encode_told(told, offset)
                stored.empty(offset, self._epochs, self.log_start_offset, told_file)
                self.durable_end = 0 if stored.is_new else offset
        except WriteError as error:
            if not stored.segments and offset < self.log_end_offset:
                # What was told holds here as well, and counts with the next flush, as below.
                start = self.log_start_offset
                self.durable_end = min(self.durable_end, max(start - 1, 0))
                self._reset_to_empty(start)
                self._take_told(start, told)
            self._raise_not_truncated(error)
        except (OSError, CorruptionError) as error:
            self._fail_in_doubt(error)
            self._storage_error(error, Outcome.UNKNOWN)
        self._reset_to_empty(offset)
        self._take_told(offset, told)
        self.request_flush()

    def _take_told(self, offset: int, told: ProducerStates | None) -> None:
        if told is not None:
            snapshot = snapshot_name(offset), encode_told(told, offset)
            self._producers = LogProducers(self._shared, told, [snapshot])

    def _decode_told(self, offset: int, producers: bytes | None) -> ProducerStates | None:
        """Return the producers of a log that begins anew; None if none were ever known here."""
        limits, name = self._shared.producers, f"told of {self.name}"
        if producers is None:
            if self._producers is None:
                return None
            return limits.states(end_offset=offset)
        try:
            found = decode_snapshot(producers, name, offset, limits)
        except CorruptionError as error:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, str(error)) from None
        if found is None:
            text = f"{name}: not its producers below offset {offset}"
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, text)
        if not len(found) and self._producers is None:
            return None
        return found

    def _reset_to_empty(self, offset: int) -> None:
        self.log_start_offset = self.requested_log_start = self.log_end_offset = offset
        self.high_watermark = offset
        self.last_epoch = -1
        self._epochs = _NO_EPOCHS
        self._producers = None

    def roll(self) -> None:
        """Write to a new segment from now on, unless the present one is empty.

        Raises:
            KafkaError: KAFKA_STORAGE_ERROR; the log is unchanged.
        """
        if self._stored is None or not self.segments or not self.segments[-1].size:
            return
        try:
            self._stored.roll(self.log_end_offset)
        except OSError as error:
            self._storage_error(error, Outcome.NOT_WRITTEN)
        if self._producers is not None:
            self._producers.rolled(self.log_end_offset)

    # truncation and epochs

    def truncate_to(self, end_offset: int) -> None:
        """Remove everything from ``end_offset`` on, or from the start of the batch that holds it.

        Durable on return. A crash leaves the longer log or the shorter one. Below the log start, or
        inside the batch that holds it, no record is left: see `start_over`.

        Raises:
            KafkaError: KAFKA_STORAGE_ERROR; the log is offline, unless nothing was written.
        """
        if end_offset >= self.log_end_offset:
            return
        if end_offset < self.log_start_offset:
            self.start_over(end_offset)
            return
        if self.failed is not None:
            self._refuse()
        assert self._stored is not None, "a log without files has nothing to cut"
        anew = end_offset < self.requested_log_start  # that start may already be on the disk
        try:
            if self._producers is not None:
                self._producers.prepare_truncation(self, self._stored.boundary(end_offset))
            self.generation += 1  # a sync in flight proves nothing from here on (rule Q3)
            self._shared.flusher.drain(self)
            end = self._stored.truncate(
                end_offset, self._epochs, self.log_start_offset, start_anew=anew
            )
            if anew:
                self.requested_log_start = self.log_start_offset
            if self._producers is not None:
                self._producers.truncated(end)
        except WriteError as error:
            self._raise_not_truncated(error)
        except (OSError, CorruptionError) as error:
            self._fail_in_doubt(error)
            self._storage_error(error, Outcome.UNKNOWN)
        self.log_end_offset = end
        self.durable_end = min(self.durable_end, self.log_end_offset)
        self._epochs.truncate_from_end(self.log_end_offset)
        self.last_epoch = self._epochs.last_epoch(self.log_end_offset)
        self.high_watermark = min(self.high_watermark, self.log_end_offset)
        if self.log_end_offset < self.requested_log_start:
            self.start_over(self.requested_log_start)
        elif self.durable_end < self.log_end_offset:
            self._schedule_flush()
        self.request_flush()

    def start_epoch(self, epoch: int) -> None:
        """Record that this replica leads from here on in ``epoch``.

        Raises:
            ValueError: the log has records of a newer epoch.
        """
        self._assign_epoch(epoch, self.log_end_offset)

    def _assign_epoch(self, epoch: int, start_offset: int) -> None:
        if self._epochs is _NO_EPOCHS:
            self._epochs = LeaderEpochCache()
        self._epochs.assign(epoch, start_offset)

    # life

    def close(self) -> None:
        """Release descriptors and refuse reads from now on.

        The manager has flushed the log before, or has given it up.
        """
        self.is_closed = True
        self.generation += 1
        self._shared.flusher.drain(self)
        self._shared.dirty.discard(self)
        if self._stored is not None:
            self._stored.close()

    def checkpoint_for_close(self) -> None:
        """Write the index and the checkpoints of a synced log, so that the next start is quick.

        Raises:
            OSError: a file could not be written; then the shutdown is not clean.
        """
        if self._stored is not None and self.durable_end >= self.log_end_offset:
            if self._producers is not None:
                end = self.log_end_offset
                self._producers.write_for_close(self.directory, self.segments, end)
            self._stored.checkpoint_for_close(self._epochs, self.log_start_offset)

    # reading

    @property
    def compacted_to(self) -> int:
        """The offset below which compaction may have removed records.

        0 if it never removed any (R7).
        """
        stored = self._stored
        ever = self.config.compaction is not None or (stored is not None and stored.cleaned.marks)
        return self.segments[-1].base_offset if ever and self.segments else 0

    def read(self, from_offset: int, max_bytes: int, up_to_offset: int) -> list[BatchSlice]:
        """Return records from ``from_offset`` up to, not including, ``up_to_offset``.

        See `log_reader.read`.

        Raises:
            KafkaError: OFFSET_OUT_OF_RANGE, naming both ends.
            CorruptionError: a batch is damaged; the log is offline now.
        """
        log_reader.check_range(from_offset, self.log_start_offset, self.log_end_offset)
        if from_offset >= up_to_offset:
            return []
        return self._reading(log_reader.read, from_offset, max_bytes, up_to_offset)

    def read_lines(self, from_offset: int, max_bytes: int, up_to_offset: int) -> Lines:
        """Return only the lines of `read`, which is cheaper: see `log_reader.read_lines`.

        Raises:
            KafkaError, CorruptionError: as `read`.
        """
        log_reader.check_range(from_offset, self.log_start_offset, self.log_end_offset)
        if from_offset >= up_to_offset:
            return Lines((), from_offset)
        return self._reading(log_reader.read_lines, from_offset, max_bytes, up_to_offset)

    def read_packed(self, from_offset: int, max_bytes: int, up_to_offset: int) -> Sequence[Piece]:
        """Return the records of `read`.

        Compressed batches that are wanted whole stay as they are stored.

        Raises:
            KafkaError, CorruptionError: as `read`.
        """
        log_reader.check_range(from_offset, self.log_start_offset, self.log_end_offset)
        if from_offset >= up_to_offset:
            return []
        return self._reading(
            log_reader.read_pieces, from_offset, max_bytes, up_to_offset, packed=True
        )

    def cold_range(self, from_offset: int, max_bytes: int) -> ColdRange | None:
        """Return the range that such a read would wait for, or None: see `page_cache`."""
        return self._reading(cold_range, from_offset, max_bytes)

    def read_raw(self, from_offset: int, max_bytes: int, up_to_offset: int) -> bytes:
        """Return whole batches, for a follower that catches up: see `log_reader.read_raw`.

        Raises:
            KafkaError, CorruptionError: as `read`.
        """
        log_reader.check_range(from_offset, self.log_start_offset, self.log_end_offset)
        if from_offset >= up_to_offset:
            return b""
        return self._reading(log_reader.read_raw, from_offset, max_bytes, up_to_offset)

    def step_time_search(self, search: TimeSearch) -> bool:
        """Run the next step of a search by time; return True when it is over (`time_search`).

        Raises:
            CorruptionError: a batch is damaged; the log is offline now.
        """
        return self._reading(search.step, self.log_start_offset, self.generation)

    def _reading(
        self,
        function: Callable[Concatenate[OpenFiles, list[Segment], P], T],
        *arguments: P.args,
        **options: P.kwargs,
    ) -> T:
        """Call a reading function; bytes that are damaged or unreadable take the log offline.

        Damaged bytes are never served; the records before them are, if there are any. A closed log
        is not read: opening its segments again would look for them where they no longer are.
        """
        if self.is_closed:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"log {self.name} is closed")
        try:
            return function(self._shared.files, self.segments, *arguments, **options)
        except (CorruptionError, OSError) as error:
            if isinstance(error, OSError) and error.errno in OUT_OF_DESCRIPTORS:
                self._storage_error(error, Outcome.NOT_WRITTEN)
            self._fail(error)
            if isinstance(error, OSError):
                raise
            before = self._read_before_damage(function, arguments, options)
            if before is None:
                raise UnreadableError(self.name, error) from error
            return before

    def _read_before_damage(
        self,
        function: Callable[..., T],
        arguments: tuple[object, ...],
        options: dict[str, object],
    ) -> T | None:
        """Return the records such a read finds before the damage.

        None if there are none, or it searches.

        Tries half as many bytes each time, so that only records from the damaged batch on are
        refused.
        """
        if len(arguments) != 3:  # (from_offset, max_bytes, up_to_offset)
            return None
        start, size, end = arguments
        left = size if isinstance(size, int) else 0
        while left > 1:
            left //= 2
            with suppress(CorruptionError):
                return function(self._shared.files, self.segments, start, left, end, **options)
        return None

    # epochs

    @property
    def epoch_entries(self) -> list[tuple[int, int]]:
        """All (leader epoch, start offset), oldest first."""
        return self._epochs.entries

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        """Return the largest epoch <= ``epoch`` that has records here, and the offset behind them.

        (-1, log start) if there is none (KIP-320's OffsetForLeaderEpoch).
        """
        return self._epochs.end_offset_for(epoch, self.log_start_offset, self.log_end_offset)

    def epoch_at(self, offset: int) -> int:
        """Return the leader epoch of the record at ``offset``, -1 if there is none (rule R5)."""
        return self._epochs.epoch_of(offset) if offset < self.log_end_offset else -1

    def holds_record(self, from_offset: int, before_offset: int) -> bool:
        """Return True if there is a record in this range; compaction may have left none."""
        return bool(self.read_lines(from_offset, 1, before_offset).pieces)

    # errors

    def take_offline(self, error: BaseException) -> None:
        """Refuse appends and reads from now on; the first error stays the reason."""
        self.failed = self.failed or error

    def serve_damaged(self, disk_failure: BaseException | None) -> None:
        """Take appends and serve the readable rest, unless the disk has failed (rule Q2)."""
        self.failed = disk_failure
        self.is_served_damaged = True

    def _refuse(self) -> NoReturn:
        raise KafkaError(
            ErrorCode.KAFKA_STORAGE_ERROR, f"log {self.name} is offline: {self.failed}"
        )

    def _fail(self, error: BaseException) -> None:
        if self.failed is None:
            self.failed = error
            doubtful = None if isinstance(error, OSError) else self.name
            self._shared.on_failed(doubtful, error)

    def _fail_in_doubt(self, error: OSError | CorruptionError) -> None:
        """Take the log offline: a change of its files stopped halfway."""
        self._fail(error if isinstance(error, OSError) else InDoubtError(str(error)))

    def _raise_not_truncated(self, error: WriteError) -> NoReturn:
        """Raise the storage error of a truncation that was refused with the log unchanged.

        The sync that was under way is void, so a new one is requested.
        """
        self.request_flush()
        self._storage_error(error.cause, error.outcome)

    def _storage_error(self, error: BaseException, outcome: Outcome) -> NoReturn:
        if isinstance(error, OSError) and error.errno in OUT_OF_DESCRIPTORS:
            self._shared.files.make_room()
        raise KafkaError(
            ErrorCode.KAFKA_STORAGE_ERROR, f"log {self.name}: {error}", outcome=outcome
        ) from error
