"""The log of one partition on one broker: append, read, truncate, and the durable end.

All of it runs on the loop (syncs are the flusher's), without an await: nobody sees half a change.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from typing_extensions import override

from broker.log.cut_segments import WriteError
from broker.log.disk import PASSING
from broker.log.flusher import FlushToken
from broker.log.leader_epoch_cache import LeaderEpochCache
from broker.log.log_directory import AppendInfo
from broker.log.log_producers import LogProducers
from broker.log.log_segments import LogSegments
from broker.log.readable_log import ReadableLog
from broker.record.batch import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    BatchError,
    RecordFormat,
    stamp_run,
    verify_run,
    writable,
)
from broker.record.compression import ZSTD, pack
from broker.record.lines import BATCH_BYTES_MAX, encode_batches
from raft_metadata.common.errors import CorruptionError, ErrorCode, KafkaError, Outcome
from raft_metadata.common.producer_claims import Claim

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from broker.log.log_directory import LogConfig, LogDirectory
    from broker.log.producer_state import ProducerStates, Remembered
    from broker.log.recovery import RecoveredLog
    from broker.log.segment import Segment
    from broker.record.lines import ProduceRecord
    from raft_metadata.common.ids import PartitionId, TopicId, TopicName

_NO_EPOCHS = LeaderEpochCache()
_NO_SEGMENTS: list[Segment] = []
"""Of every log that never had one: nothing is ever added to these two."""


class PartitionLog(ReadableLog):
    """Batches in segments, the newest one being written; about 0.7 KB while it holds nothing.

    Invariants: log_start_offset <= durable_end <= log_end_offset. ``log_end_offset`` moves only
    behind a whole write (rule R2), ``durable_end`` only behind a sync begun in the present
    ``generation`` (rule Q3). The files are `LogSegments`'.
    """

    __slots__ = (
        "_epochs", "_producers", "_shared", "_start_wanted", "_stored", "config", "durable_end",
        "failed", "generation", "high_watermark", "last_epoch", "log_end_offset",
        "log_start_offset", "name", "on_durable", "partition", "topic", "topic_id",
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
        self._start_wanted = 0
        """Where the log is to begin, once that is durable."""
        self._epochs = _NO_EPOCHS
        self._producers: LogProducers | None = None

    def restore(self, found: RecoveredLog) -> None:
        """Take what recovery found; the caller syncs before it counts as durable (rule Q1)."""
        self._stored = LogSegments.restored(self._shared, self.directory, found)
        self._epochs = found.epochs
        if found.producers is not None:
            self._producers = LogProducers(self._shared, found.producers, found.snapshots)
        self.log_start_offset = self._start_wanted = found.log_start_offset
        self.log_end_offset = found.log_end_offset
        self.durable_end = found.proven_end
        self.last_epoch = self._epochs.last_epoch(self.log_end_offset)

    @property
    def directory(self) -> str:
        return f"{self._shared.root}/{self.name}"

    @property
    @override
    def segments(self) -> list[Segment]:
        """Oldest first, the last one being written. Not to be changed."""
        return _NO_SEGMENTS if self._stored is None else self._stored.segments

    @property
    def stored(self) -> LogSegments | None:
        """The files, for compaction; None of a log that never had any."""
        return self._stored

    @property
    def dropped_to(self) -> int:
        """Tombstones below it may be gone here (rule R7)."""
        return 0 if self._stored is None else self._stored.cleaned.dropped_to

    def note_dropped(self, offset: int) -> None:
        """The leader that fills this log has dropped tombstones below it (rule R7). Durable.

        Raises:
            KafkaError: KAFKA_STORAGE_ERROR.
        """
        try:
            (self._stored or self._store()).note_dropped(offset)
        except (WriteError, OSError) as error:
            if isinstance(error, OSError) and error.errno not in PASSING:
                self._fail(error)
            self._storage_error(error, Outcome.NOT_WRITTEN)

    @property
    def recovery_point(self) -> int:
        """An unclean start scans from here on."""
        return 0 if self._stored is None else self._stored.recovery_point

    # producers

    @property
    def producers(self) -> ProducerStates | None:
        """What is remembered of those that write here; None: nobody ever said who it is."""
        return None if self._producers is None else self._producers.states

    def repeated(
        self, claim: Claim, count: int, now_ms: int, *, may_begin: bool = True
    ) -> Remembered | None:
        """The batch that so many records of this claim would repeat: `ProducerStates.check`."""
        return self._known_producers().states.check(claim, count, now_ms, may_begin=may_begin)

    def _known_producers(self) -> LogProducers:
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
        producer_id: int = NO_PRODUCER_ID,
        producer_epoch: int = NO_PRODUCER_EPOCH,
        base_sequence: int = NO_SEQUENCE,
    ) -> AppendInfo:
        """Number, encode and write records: all of them or none (rule R2).

        With ``flush_before_ack`` a sync is asked for; ``on_durable`` tells when it is done. What
        has a producer id is one batch, however large (`broker.log.producer_state`).

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
            batch_bytes_max=BATCH_BYTES_MAX if producer_id < 0 else sys.maxsize,
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
        if producer_id >= 0:
            claim = Claim(producer_id, producer_epoch, base_sequence)
            last, committed_end = self.log_end_offset - 1, self.high_watermark
            self._known_producers().states.note(claim, base, last, now_ms, committed_end)
        self._written()
        return AppendInfo(base, self.log_end_offset - 1, raw)

    def append_as_follower(self, batches: bytes | bytearray | memoryview) -> None:
        """Write whole batches as the leader sent them, under this replica's own stamp (rule Q5).

        Raises:
            KafkaError: CORRUPT_MESSAGE, the bytes are not whole valid batches;
                KAFKA_STORAGE_ERROR as in `append_as_leader`. The log is as before.
            ValueError: a gap, or an epoch that goes back: this stream is not for this log.
        """
        raw = writable(batches)
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
                self._known_producers().states.applied(header, self.high_watermark)
            if header.leader_epoch != self._epochs.newest:
                self._assign_epoch(header.leader_epoch, header.base_offset)
        self.last_epoch = headers[-1].leader_epoch
        self.log_end_offset = headers[-1].next_offset
        self._written()

    def _write(self, raw: bytes | bytearray | memoryview, now_ms: int) -> Segment:
        """Write at the end of the active segment, whole or not at all; the caller notes it."""
        if self.failed is not None:
            self._refuse()
        try:
            stored = self._stored or self._store()
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

    @override
    def request_flush(self) -> None:
        """Ask the flusher; ``durable_end`` moves later, and ``on_durable`` is called then."""
        if self.failed is None and (
            self.durable_end < self.log_end_offset or self._start_wanted > self.log_start_offset
        ):
            self._shared.flusher.request(self)

    def begin_flush(self) -> FlushToken | None:
        """The flusher's: what to sync so that everything written by now is durable."""
        starts = self._start_wanted > min(self.log_start_offset, self.durable_end)
        if self.failed is not None or not (starts or self.durable_end < self.log_end_offset):
            return None
        token = FlushToken(self, self.generation, self.log_end_offset)
        if starts:
            token.log_start = self._start_wanted
        assert self._stored is not None, "a log without files has no end to prove"
        self._stored.fill(token, self._epochs, self.log_start_offset)
        if self._producers is not None:
            self._producers.join(token, self.segments)
        self._shared.dirty.discard(self)
        return token

    def end_flush(self, token: FlushToken, *, synced: bool) -> None:
        """The flusher's: the sync of this token is over."""
        if self._stored is not None:
            self._stored.end_flush(token, synced=synced, cut=token.generation != self.generation)
        if not synced or token.generation != self.generation:
            return  # rule Q3: those bytes may have been replaced since
        if self._producers is not None and not token.checkpoints_failed:
            self._producers.written(token)
        if token.log_start >= 0 and not self._start_is_durable(token):
            return
        if token.end_offset > self.durable_end:
            self.durable_end = token.end_offset
            if self.on_durable is not None:
                self.on_durable()

    # log start

    def advance_log_start(self, offset: int) -> bool:
        """Forget what is below this offset; False if that is forgotten, or asked for, already.

        ``log_start_offset`` moves once it is durable (and the shared ``on_log_start`` is told):
        what a reader was refused never comes back. Whole segments are removed after that.

        Raises:
            KafkaError: KAFKA_STORAGE_ERROR, the log is offline.
            ValueError: behind the log's end.
        """
        if offset > self.log_end_offset:
            raise ValueError(f"{self.name} ends at {self.log_end_offset}, can't start at {offset}")
        if self.failed is not None:
            self._refuse()
        if offset <= self._start_wanted:
            return False
        self._start_wanted = offset
        self._shared.flusher.request(self)
        return True

    @property
    def is_start_moving(self) -> bool:
        """Whether a new log start waits to be durable."""
        return self._start_wanted > self.log_start_offset and self.failed is None

    def _start_is_durable(self, token: FlushToken) -> bool:
        """The data is synced; whether the log start is too, or the disk was full."""
        if token.checkpoints_failed:
            self._shared.dirty.add(self)  # the background flush asks again
            return self.durable_end >= self.log_start_offset
        if token.log_start > self.log_start_offset:
            self.log_start_offset = token.log_start
            self._epochs.truncate_from_start(token.log_start)
        self._shared.on_log_start(self)
        return True

    def start_over(self, offset: int) -> None:
        """Be empty from here on, beginning and ending at this offset.

        The leader's log begins behind this one's end (or ends before its start). Start, end,
        epochs and high watermark move together (invariant L8). At or behind the end, a flush makes
        it durable, and ``durable_end`` tells when; below the end it is durable on return.

        Raises:
            KafkaError: KAFKA_STORAGE_ERROR.
            ValueError: the offset is negative.
        """
        if offset < 0:
            msg = f"log {self.name} can't begin at {offset}"
            raise ValueError(msg)
        if self.failed is not None:
            self._refuse()
        self.generation += 1  # rule Q3
        self._shared.flusher.drain(self)
        try:
            stored = self._stored or self._store()
        except OSError as error:
            self._storage_error(error, Outcome.NOT_WRITTEN)
        try:
            if offset >= self.log_end_offset:
                stored.put_aside(offset)
                # Not before the flush: until then this log may come back with all it had.
                self.durable_end = min(self.durable_end, max(offset - 1, 0))
            else:
                stored.empty(offset, self._epochs, self.log_start_offset)
                self.durable_end = 0 if stored.is_new else offset
        except WriteError as error:
            if not stored.segments and offset < self.log_end_offset:
                self.durable_end = min(self.durable_end, self.log_start_offset)
                self._be_empty(self.log_start_offset)
            self._not_cut(error)
        except (OSError, CorruptionError) as error:
            self._fail_in_doubt(error)
            self._storage_error(error, Outcome.UNKNOWN)
        self._be_empty(offset)
        self.request_flush()

    def _be_empty(self, offset: int) -> None:
        self.log_start_offset = self._start_wanted = self.log_end_offset = offset
        self.high_watermark = offset
        self.last_epoch = -1
        self._epochs = _NO_EPOCHS
        self._producers = None

    def roll(self) -> None:
        """Write to a new segment from here on, unless the present one is empty.

        Raises:
            KafkaError: KAFKA_STORAGE_ERROR; the log is as before.
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
        """Remove everything from this offset on, or from the start of the batch that it lies in.

        Durable on return. A crash leaves the longer log or the shorter one. Below the log start,
        or inside the batch that holds it, nothing is left: `start_over`.

        Raises:
            KafkaError: KAFKA_STORAGE_ERROR; the log has failed, unless nothing was written.
        """
        if end_offset >= self.log_end_offset:
            return
        if end_offset < self.log_start_offset:
            self.start_over(end_offset)
            return
        if self.failed is not None:
            self._refuse()
        assert self._stored is not None, "a log without files has nothing to cut"
        anew = end_offset < self._start_wanted  # which may be on the disk by now
        try:
            if self._producers is not None:
                self._producers.prepare_cut(self, self._stored.boundary(end_offset))
            self.generation += 1  # rule Q3: a sync in flight proves nothing from here on
            self._shared.flusher.drain(self)
            end = self._stored.truncate(
                end_offset, self._epochs, self.log_start_offset, start_anew=anew
            )
            if anew:
                self._start_wanted = self.log_start_offset
            if self._producers is not None:
                self._producers.truncated(end)
        except WriteError as error:
            self._not_cut(error)
        except (OSError, CorruptionError) as error:
            self._fail_in_doubt(error)
            self._storage_error(error, Outcome.UNKNOWN)
        self.log_end_offset = end
        self.durable_end = min(self.durable_end, self.log_end_offset)
        self._epochs.truncate_from_end(self.log_end_offset)
        self.last_epoch = self._epochs.last_epoch(self.log_end_offset)
        self.high_watermark = min(self.high_watermark, self.log_end_offset)
        if self.log_end_offset < self._start_wanted:
            self.start_over(self._start_wanted)
        elif self.durable_end < self.log_end_offset:
            self._written()
        self.request_flush()

    def start_epoch(self, epoch: int) -> None:
        """This replica leads from here on in this epoch.

        ValueError: the log has records of a newer epoch.
        """
        self._assign_epoch(epoch, self.log_end_offset)

    def _assign_epoch(self, epoch: int, start_offset: int) -> None:
        if self._epochs is _NO_EPOCHS:
            self._epochs = LeaderEpochCache()
        self._epochs.assign(epoch, start_offset)

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
            if self._producers is not None:
                end = self.log_end_offset
                self._producers.write_for_close(self.directory, self.segments, end)
            self._stored.checkpoint_for_close(self._epochs, self.log_start_offset)
