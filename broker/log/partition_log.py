"""The log of one partition on one broker: append, read, truncate, and the durable end.

All of it runs on the loop (reads hit the page cache; syncs are the flusher's). There is no await
inside, so no caller ever sees half a change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Concatenate, NoReturn, ParamSpec, TypeVar

from broker.log import log_reader
from broker.log.disk import OUT_OF_DESCRIPTORS
from broker.log.flusher import FlushToken
from broker.log.leader_epoch_cache import LeaderEpochCache
from broker.log.log_directory import AppendInfo
from broker.log.log_segments import LogSegments, WriteError
from broker.record.batch import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    BatchError,
    BatchSlice,
    RecordFormat,
    stamp,
    verify_run,
)
from broker.record.lines import encode_batches
from raft_metadata.common.errors import (
    CorruptionError,
    ErrorCode,
    KafkaError,
    Outcome,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from broker.log.log_directory import LogConfig, LogDirectory
    from broker.log.recovery import RecoveredLog
    from broker.log.segment import OpenFiles, Segment
    from broker.record.lines import ProduceRecord
    from raft_metadata.common.ids import PartitionId, TopicId, TopicName

P = ParamSpec("P")
T = TypeVar("T")

_NO_EPOCHS = LeaderEpochCache()
_NO_SEGMENTS: list[Segment] = []
"""Of every log that never had one: nothing is ever added to these two."""


class PartitionLog:
    """Batches in segments, the newest one being written; about 0.7 KB while it holds nothing.

    Invariants: log_start_offset <= durable_end <= log_end_offset. ``log_end_offset`` moves only
    behind a whole write (rule R2), ``durable_end`` only behind a sync begun in the present
    ``generation`` (rule Q3). The files are `LogSegments`'.
    """

    __slots__ = (
        "_epochs", "_shared", "_stored", "config", "durable_end", "failed", "generation",
        "high_watermark", "last_epoch", "log_end_offset", "log_start_offset", "name", "on_durable",
        "partition", "topic", "topic_id",
    )  # fmt: skip

    def __init__(
        self,
        shared: LogDirectory,
        topic: TopicName,
        partition: PartitionId,
        topic_id: TopicId,
        config: LogConfig,
    ) -> None:
        """An empty log. Nothing is on the disk before the first append."""
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
        """Kept by the manager's checkpoint, owned by replication."""
        self.generation = 0
        self.last_epoch = -1
        self.failed: BaseException | None = None
        self.on_durable: Callable[[], None] | None = None
        self._stored: LogSegments | None = None
        self._epochs = _NO_EPOCHS

    def restore(self, found: RecoveredLog) -> None:
        """Take what recovery found; the caller syncs before it counts as durable (rule Q1)."""
        if found.segments:
            self._stored = LogSegments.restored(self._shared, self.directory, found)
        self._epochs = found.epochs
        self.log_start_offset = found.log_start_offset
        self.log_end_offset = found.log_end_offset
        self.durable_end = found.proven_end
        self.last_epoch = self._epochs.last_epoch(self.log_end_offset)

    @property
    def directory(self) -> str:
        return f"{self._shared.root}/{self.name}"

    @property
    def segments(self) -> list[Segment]:
        """Oldest first, the last one being written. Not to be changed."""
        return _NO_SEGMENTS if self._stored is None else self._stored.segments

    @property
    def epoch_entries(self) -> list[tuple[int, int]]:
        """(leader epoch, start offset), oldest first."""
        return self._epochs.entries

    @property
    def recovery_point(self) -> int:
        """An unclean start scans from here on."""
        return 0 if self._stored is None else self._stored.recovery_point

    # append

    def append_as_leader(
        self,
        records: Sequence[ProduceRecord],
        *,
        key_format: RecordFormat,
        value_format: RecordFormat,
        leader_epoch: int,
        now_ms: int,
        producer_id: int = NO_PRODUCER_ID,
        producer_epoch: int = NO_PRODUCER_EPOCH,
        base_sequence: int = NO_SEQUENCE,
    ) -> AppendInfo:
        """Number, encode and write records: all of them or none (rule R2).

        With ``flush_before_ack`` a sync is asked for; ``on_durable`` tells when it is done.

        Raises:
            KafkaError: KAFKA_STORAGE_ERROR, with outcome NOT_WRITTEN if the file is as before.
            ValueError: no records, or a leader epoch older than the log's last one.
        """
        if leader_epoch < self.last_epoch or not records:
            msg = f"epoch {leader_epoch} is behind {self.last_epoch}, or nothing to append"
            raise ValueError(msg)
        base = self.log_end_offset
        batches = encode_batches(
            records,
            key_format=key_format,
            value_format=value_format,
            base_offset=base,
            leader_epoch=leader_epoch,
            append_timestamp=now_ms,
            durable_end=self.durable_end,
            append_time=self.config.append_time,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
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
        self._written()
        return AppendInfo(base, self.log_end_offset - 1, raw)

    def append_as_follower(self, batches: bytes | bytearray | memoryview) -> None:
        """Write whole batches as the leader sent them, under this replica's own stamp (rule Q5).

        Raises:
            KafkaError: CORRUPT_MESSAGE, the bytes are not whole valid batches;
                KAFKA_STORAGE_ERROR as in `append_as_leader`. The log is as before.
            ValueError: a gap, or an epoch that goes back: this stream is not for this log.
        """
        raw = bytearray(batches)
        try:
            headers = verify_run(raw, self.log_end_offset, self.last_epoch)
        except BatchError as error:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"log {self.name}: {error}") from None
        if not headers:
            return
        at = 0
        for header in headers:
            stamp(raw, at, self.durable_end, header.crc)
            at += header.size
        segment = self._write(raw, headers[0].append_timestamp)
        for header in headers:
            segment.note_header(header)
            if header.leader_epoch != self._epochs.newest:
                self._assign_epoch(header.leader_epoch, header.base_offset)
        self.last_epoch = headers[-1].leader_epoch
        self.log_end_offset = headers[-1].next_offset
        self._written()

    def _write(self, raw: bytes | bytearray, now_ms: int) -> Segment:
        """Write at the end of the active segment, whole or not at all; the caller notes it."""
        if self.failed is not None:
            self._refuse()
        try:
            stored = self._stored or self._store()
            return stored.write(raw, self.log_end_offset, now_ms, self.config)
        except WriteError as error:
            if error.broken:
                self._fail(error.cause)
            self._storage_error(error.cause, error.outcome)
        except OSError as error:
            self._storage_error(error, Outcome.NOT_WRITTEN)

    def _store(self) -> LogSegments:
        """This log's place on the disk, made with its first byte."""
        self._stored = LogSegments.create(
            self._shared, self.directory, self.topic, self.partition, self.topic_id
        )
        return self._stored

    def _written(self) -> None:
        if self.config.flush_before_ack:
            self._shared.flusher.request(self)
        else:
            self._shared.dirty.add(self)

    # durability

    def request_flush(self) -> None:
        """Ask the flusher; ``durable_end`` moves later, and ``on_durable`` is called then."""
        if self.durable_end < self.log_end_offset and self.failed is None:
            self._shared.flusher.request(self)

    def begin_flush(self) -> FlushToken | None:
        """The flusher's: what to sync so that everything written by now is durable."""
        if self.failed is not None or self.durable_end >= self.log_end_offset:
            return None
        token = FlushToken(self, self.generation, self.log_end_offset)
        assert self._stored is not None, "a log without files has no end to prove"
        self._stored.fill(token, self._epochs, self.log_start_offset)
        self._shared.dirty.discard(self)
        return token

    def end_flush(self, token: FlushToken, *, synced: bool) -> None:
        """The flusher's: the sync of this token is over."""
        if self._stored is not None:
            self._stored.end_flush(token, synced=synced)
        if not synced:
            return
        if token.generation != self.generation:
            return  # rule Q3: those bytes may have been replaced since
        if token.end_offset > self.durable_end:
            self.durable_end = token.end_offset
            if self.on_durable is not None:
                self.on_durable()

    # truncation and epochs

    def truncate_to(self, end_offset: int) -> None:
        """Remove everything from this offset on. Inside a batch: from that batch's start on.

        Durable on return. A crash in between leaves the longer log or the shorter one, so the old
        tail is gone before the first new byte stands behind the cut.

        Raises:
            KafkaError: KAFKA_STORAGE_ERROR; the log has failed.
            ValueError: below the log start.
        """
        if end_offset >= self.log_end_offset:
            return
        if end_offset < self.log_start_offset:
            msg = f"can't truncate to {end_offset}, log start is {self.log_start_offset}"
            raise ValueError(msg)
        if self.failed is not None:
            self._refuse()
        self.generation += 1  # rule Q3: a sync in flight proves nothing from here on
        self._shared.flusher.drain(self)
        assert self._stored is not None, "a log without files has nothing to cut"
        try:
            end = self._stored.truncate(end_offset, self._epochs, self.log_start_offset)
        except (OSError, CorruptionError) as error:
            self._fail(error)
            self._storage_error(error, Outcome.UNKNOWN)
        self.log_end_offset = end
        self.durable_end = min(self.durable_end, self.log_end_offset)
        self._epochs.truncate_from_end(self.log_end_offset)
        self.last_epoch = self._epochs.last_epoch(self.log_end_offset)
        self.high_watermark = min(self.high_watermark, self.log_end_offset)
        if self.durable_end < self.log_end_offset:
            self._written()

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        """The largest epoch <= the given one that has records here, and the offset behind them.

        (-1, log start) where there is none (KIP-320's OffsetForLeaderEpoch).
        """
        return self._epochs.end_offset_for(epoch, self.log_start_offset, self.log_end_offset)

    def epoch_at(self, offset: int) -> int:
        """The leader epoch of the record at this offset, -1 where there is none (rule R5)."""
        return self._epochs.epoch_of(offset) if offset < self.log_end_offset else -1

    def start_epoch(self, epoch: int) -> None:
        """This replica leads from here on in this epoch.

        ValueError: the log has records of a newer epoch.
        """
        self._assign_epoch(epoch, self.log_end_offset)

    def _assign_epoch(self, epoch: int, start_offset: int) -> None:
        if self._epochs is _NO_EPOCHS:
            self._epochs = LeaderEpochCache()
        self._epochs.assign(epoch, start_offset)

    # reading

    def read(self, from_offset: int, max_bytes: int, up_to_offset: int) -> list[BatchSlice]:
        """Records from one offset up to another: see `log_reader.read`.

        Raises:
            KafkaError: OFFSET_OUT_OF_RANGE, naming both ends.
            CorruptionError: a batch is damaged; the log has failed.
        """
        log_reader.check_range(from_offset, self.log_start_offset, self.log_end_offset)
        if from_offset >= up_to_offset:
            return []
        return self._reading(log_reader.read, from_offset, max_bytes, up_to_offset)

    def read_raw(self, from_offset: int, max_bytes: int, up_to_offset: int) -> bytes:
        """Whole batches, for a follower that catches up: see `log_reader.read_raw`.

        Raises:
            KafkaError, CorruptionError: as `read`.
        """
        log_reader.check_range(from_offset, self.log_start_offset, self.log_end_offset)
        if from_offset >= up_to_offset:
            return b""
        return self._reading(log_reader.read_raw, from_offset, max_bytes, up_to_offset)

    def offset_for_timestamp(self, timestamp_ms: int) -> int | None:
        """The first offset whose record has this timestamp or a later one; None if all are older.

        Raises:
            CorruptionError: a batch is damaged; the log has failed.
        """
        return self._reading(log_reader.offset_for_timestamp, timestamp_ms)

    def _reading(
        self,
        function: Callable[Concatenate[OpenFiles, list[Segment], P], T],
        *arguments: P.args,
        **options: P.kwargs,
    ) -> T:
        """Read; bytes that rotted, or can't be read, fail the log: they are never served."""
        try:
            return function(self._shared.files, self.segments, *arguments, **options)
        except (CorruptionError, OSError) as error:
            if isinstance(error, OSError) and error.errno in OUT_OF_DESCRIPTORS:
                self._storage_error(error, Outcome.NOT_WRITTEN)
            self._fail(error)
            raise

    # life

    def close(self) -> None:
        """Release descriptors. The manager has flushed before, or gives the log up."""
        self.generation += 1
        self._shared.flusher.drain(self)
        self._shared.dirty.discard(self)
        if self._stored is not None:
            self._stored.close()

    def checkpoint_for_close(self) -> None:
        """Write index and checkpoints of a log that is synced, so that the next start is quick.

        Raises:
            OSError: one could not be written; then the shutdown is not clean.
        """
        if self._stored is not None and self.durable_end >= self.log_end_offset:
            self._stored.checkpoint_for_close(self._epochs, self.log_start_offset)

    def _refuse(self) -> NoReturn:
        raise KafkaError(
            ErrorCode.KAFKA_STORAGE_ERROR, f"log {self.name} is offline: {self.failed}"
        )

    def _fail(self, error: BaseException) -> None:
        if self.failed is None:
            self.failed = error
            doubtful = None if isinstance(error, OSError) else self.name
            self._shared.on_failed(doubtful, error)

    def _storage_error(self, error: BaseException, outcome: Outcome) -> NoReturn:
        raise KafkaError(
            ErrorCode.KAFKA_STORAGE_ERROR, f"log {self.name}: {error}", outcome=outcome
        ) from error
