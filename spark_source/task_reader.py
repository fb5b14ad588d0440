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
from http_api.client.calls import ApiError
from spark_source.cluster import NOT_FOUND, OUT_OF_RANGE_STATUS, cached_cluster
from spark_source.decoding import DecodingError, Source, decode
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
            self._next = page.next_offset
            progress_s = self._now_s()

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
        )
        try:
            page = self._cluster.run(call)
        except ApiError as error:
            self._refused(error)
            return None
        if page.topic_id != self._range.topic_id:
            self._lost(
                f"the topic was deleted and created anew (id {self._range.topic_id} was planned, "
                f"{page.topic_id} answers)",
                self._range.end,
            )
            return None
        return page

    def _refused(self, error: ApiError) -> None:
        """Handle a refused offset or a deleted topic: skip the records, or report them as lost."""
        if error.status == NOT_FOUND:
            self._lost(str(error), self._range.end)
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
        self._next = resume

    def _check_patience(self, page: consumer.StoredPage, progress_s: float) -> None:
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
