"""The reading Spark task: fetches its ranges page by page and decodes them.

A task keeps no state between calls but its connections. Every temporary failure is waited out here,
because outside a cluster manager Spark fails a query at the first failed task.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from http_api.client import consumer
from http_api.client.client_errors import ApiError
from spark_source.cluster import (
    LOG_TRUNCATED_CODE,
    NOT_FOUND,
    OUT_OF_RANGE_STATUS,
    TOPIC_CHANGED_CODE,
    cached_cluster,
    is_truncation,
)
from spark_source.decoding import DecodingError, Source, decode, epoch_before
from spark_source.errors import DataLossError, NotServedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa

    from spark_source.cluster import Cluster
    from spark_source.offsets import Range
    from spark_source.options import Connection

log = logging.getLogger(__name__)

FETCH_WAIT_MS = 1_000
"""Time a fetch waits at the broker: right after a leader change the high watermark may be below the
planned end."""
FIRST_RECORD_BYTES = 256
"""Assumed size of a record until the first answer is measured."""
FETCH_BYTES_MIN = 64 << 10
MARGIN = 1.1


class TaskRanges(InputPartition):
    """The ranges of one task, and the brokers known to the driver. Pickled by Spark."""

    def __init__(
        self,
        ranges: tuple[Range, ...],
        urls: tuple[str, ...],
        timestamp_types: dict[str, int],
    ) -> None:
        super().__init__(None)
        self.ranges = ranges
        self.urls = urls
        self.timestamp_types = timestamp_types
        """Topic → Kafka's number of its timestamp type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSettings:
    """The options a task needs, resolved. Pickled by Spark."""

    connection: Connection
    columns: tuple[str, ...]
    typed: pa.Schema | None
    fail_on_data_loss: bool
    fetch_bytes: int


def read_task(partition: InputPartition, settings: ReadSettings) -> Iterator[pa.RecordBatch]:
    """Yield the task's records; Spark makes up an empty partition if there is nothing to read."""
    if not isinstance(partition, TaskRanges):
        return
    cluster = cached_cluster(settings.connection, partition.urls)
    for one in partition.ranges:
        source = Source(
            topic=one.topic,
            partition=one.partition,
            timestamp_type=partition.timestamp_types.get(one.topic, 0),
            columns=settings.columns,
            typed=settings.typed,
        )
        yield from RangeReader(cluster, one, source, settings).batches()


class RangeReader:
    """Reader of one range from its start to its end. Owned by one task."""

    def __init__(
        self,
        cluster: Cluster,
        wanted: Range,
        source: Source,
        settings: ReadSettings,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._range = wanted
        self._source = source
        self._settings = settings
        self._now_s = now_s
        self._next = wanted.start
        self._epoch = wanted.start_epoch
        """Epoch of `_next`; None if it is not known."""
        self._is_replaced = False
        """True once the log was found not to be the one that the range was planned for."""
        self._record_bytes = float(FIRST_RECORD_BYTES)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the range's records.

        Raises:
            DataLossError: records no longer exist (and ``failOnDataLoss``).
            NotServedError: the cluster did not serve them in time.
        """
        progress_s = self._now_s()
        while self._next < self._range.end:
            page = self._fetch()
            if page is None:
                continue
            if page.next_offset <= self._next:
                self._check_patience(page, progress_s)
                continue
            yield from self._decoded(page)
            self._record_bytes = max(1.0, len(page.body) / (page.next_offset - self._next))
            self._next, self._epoch = page.next_offset, page.next_leader_epoch
            progress_s = self._now_s()
            if self._next >= self._range.end:
                self._check_end(page)

    def _decoded(self, page: consumer.StoredPage) -> Iterator[pa.RecordBatch]:
        try:
            yield from decode(page.body, self._source, self._range.end)
        except DecodingError as error:
            msg = f"{self._place()} at offset {self._next}: {error}"
            raise NotServedError(msg) from error

    def _fetch(self) -> consumer.StoredPage | None:
        """Return a page; None if the position was moved over a gap."""
        left = (self._range.end - self._next) * self._record_bytes * MARGIN
        call = consumer.fetch_stored(
            self._range.topic,
            self._range.partition,
            self._next,
            wait_ms=FETCH_WAIT_MS,
            max_bytes=int(min(self._settings.fetch_bytes, max(FETCH_BYTES_MIN, left))),
            leader_epoch=self._epoch,
            topic_id=self._range.topic_id,
        )
        try:
            page = self._cluster.run(call)
        except ApiError as error:
            self._refused(error)
            return None
        return page

    def _refused(self, error: ApiError) -> None:
        """Handle a refused offset or a deleted topic: skip the records, or report them as lost."""
        if error.status == NOT_FOUND or error.code == TOPIC_CHANGED_CODE:
            self._lost(str(error), self._range.end)
            return
        if error.code == LOG_TRUNCATED_CODE:
            self._take_other_log(error)
            return
        if error.status != OUT_OF_RANGE_STATUS:
            raise NotServedError(f"{self._place()}: {error}") from error
        call = consumer.ends(self._range.topic, self._range.partition)
        try:
            ends = self._cluster.run(call)
        except ApiError as gone:
            self._lost(str(gone), self._range.end)
            return
        if ends.beginning <= self._next <= ends.end:
            raise NotServedError(f"{self._place()}: {error}") from error
        if self._next < ends.beginning:
            resume = min(ends.beginning, self._range.end)
            if self._range.from_earliest:
                self._next = resume
            else:
                self._lost("retention has deleted them", resume)
        else:
            self._lost(f"the log ends at {ends.end}", self._range.end)

    def _lost(self, why: str, resume: int) -> None:
        what = f"{self._place()}: offsets {self._next} to {resume - 1} can't be read: {why}"
        if self._settings.fail_on_data_loss:
            msg = f"{what}; failOnDataLoss=false skips them"
            raise DataLossError(msg)
        log.warning("skipped records: %s", what)
        self._next, self._epoch = resume, None

    def _take_other_log(self, error: ApiError) -> None:
        """Go on in a log that is not the one that was planned, or report what is lost.

        A log that was cut is read from there on, though never below the range: what lies before it
        is read once the stream's position is found to be of another log, too.
        """
        diverging = self._next if error.diverging_offset is None else error.diverging_offset
        what = (
            f"{self._place()}: offsets {diverging} to {self._next - 1}, which the query has read, "
            f"are not in the log any more: {error}"
        )
        if self._settings.fail_on_data_loss:
            msg = f"{what}; failOnDataLoss=false goes on"
            raise DataLossError(msg)
        self._is_replaced = True
        if is_truncation(str(error)):
            self._next = max(self._range.start, min(diverging, self._next))
        self._epoch = None
        log.warning("%s; the query goes on at offset %d", what, self._next)

    def _check_end(self, page: consumer.StoredPage) -> None:
        """Check that the range ends where it was planned: in the log that was planned.

        The epoch of the last record shows it, except where compaction removed the record before the
        end; then the broker is asked, which looks for the record.
        """
        end, planned = self._range.end, self._range.end_epoch
        if planned is None or self._is_replaced:
            return
        found = page.next_leader_epoch
        if page.next_offset > end:
            found = epoch_before(page.body, end)
        if found in {None, planned}:
            return
        call = consumer.fetch_stored(
            self._range.topic, self._range.partition, end, wait_ms=0, max_bytes=1,
            leader_epoch=planned, topic_id=self._range.topic_id,
        )  # fmt: skip
        try:
            self._cluster.run(call)
        except ApiError as error:
            if error.code != LOG_TRUNCATED_CODE:
                raise NotServedError(f"{self._place()}: {error}") from error
            what = (
                f"{self._place()}: offsets {error.diverging_offset} to {end - 1} of the planned "
                f"range {self._range.start} to {end - 1} were replaced before they were read: "
                f"{error}"
            )
            if self._settings.fail_on_data_loss:
                msg = f"{what}; failOnDataLoss=false takes what is there"
                raise DataLossError(msg) from error
            log.warning("%s", what)

    def _check_patience(self, page: consumer.StoredPage, progress_s: float) -> None:
        if self._is_replaced:  # it may never grow to the planned end again
            self._lost(f"the log ends at {page.high_watermark}", self._range.end)
            return
        retry_s = self._settings.connection.retry_s
        if self._now_s() - progress_s > retry_s:
            msg = (
                f"{self._place()}: offset {self._next} of a planned range up to "
                f"{self._range.end} was not served for {retry_s:g} s (retryTimeoutMs); the high "
                f"watermark is {page.high_watermark}"
            )
            raise NotServedError(msg)

    def _place(self) -> str:
        return f"partition {self._range.partition} of topic {self._range.topic}"
