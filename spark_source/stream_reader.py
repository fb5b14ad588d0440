"""``spark.readStream.format("quorumlog")``.

Spark fixes the offsets of a micro-batch in its checkpoint before it runs it, and runs the same
offsets again after a crash. Offsets are immutable in the log (nothing above the high watermark is
ever served), so a repeated batch holds the same records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from typing_extensions import override

from spark_source import offsets
from spark_source.batch_reader import plan, read_settings
from spark_source.cluster import Cluster, UnknownTopicError
from spark_source.long_poll import LongPoll
from spark_source.task_reader import read_task

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from spark_source.offsets import Position
    from spark_source.options import SourceOptions


class QuorumlogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reader of one query: planner on the driver, and a copy in each task for `read`.

    The driver's copy creates a `Driver` on first use; the task's copies never do, and the `Driver`
    is not pickled.
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._settings = read_settings(options, schema)
        self._driver: Driver | None = None

    @override
    def initialOffset(self) -> dict[str, Any]:
        return offsets.to_json(self._at_driver().initial())

    @override
    def getDefaultReadLimit(self) -> ReadLimit:
        most = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    @override
    def prepareForTriggerAvailableNow(self) -> None:
        """End the stream at the present latest offsets."""
        self._at_driver().set_target()

    @override
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next micro-batch; ``start`` if nothing arrives within the wait."""
        begin = offsets.from_json(start)
        end = self._at_driver().latest(begin)
        if isinstance(limit, ReadMaxRows):
            end = offsets.limit(begin, end, limit.max_rows)
        return offsets.to_json(end)

    @override
    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the latest offsets for Spark's display, as last seen: no request is made."""
        seen = self._at_driver().seen
        return None if seen is None else offsets.to_json(seen)

    @override
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return a micro-batch's tasks: the same offsets give the same tasks, also in a re-run."""
        found = offsets.ranges(
            offsets.from_json(start),
            offsets.from_json(end),
            fail_on_data_loss=self._options.fail_on_data_loss,
        )
        return list(plan(self._at_driver().cluster, found, self._options))

    @override
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_task(partition, self._settings)

    @override
    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: the checkpoint is Spark's, and Spark does not call this for a last batch."""

    def _at_driver(self) -> Driver:
        if self._driver is None:
            self._driver = Driver(self._options)
        return self._driver

    @override
    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_driver": None}


class Driver:
    """The part of a stream that sends requests. Owned by one `QuorumlogStreamReader`."""

    def __init__(self, options: SourceOptions) -> None:
        self.cluster = Cluster(options.connection)
        self._options = options
        self._target: Position | None = None
        self._poll: LongPoll | None = None
        self._idle_at: Position | None = None
        self.seen: Position | None = None
        """Latest offsets as last seen; None before the first request."""

    def initial(self) -> Position:
        """Return the start of a query without a checkpoint."""
        options = self._options
        ends = {topic: self.cluster.ends(topic) for topic in options.topics}
        return offsets.resolve(
            ends,
            options.starting,
            options.starting_default,
            fail_on_data_loss=options.fail_on_data_loss,
        )

    def set_target(self) -> None:
        self._target = self._latest_offsets({})

    def latest(self, begin: Position) -> Position:
        """Return the latest offsets; if they equal ``begin``, wait for new records once."""
        if self._target is not None:
            return self._advance(begin, self._target)
        if begin != self._idle_at:
            end = self._advance(begin, self._latest_offsets(begin))
            if end != begin or not self._options.long_poll_ms:
                return end
        self._idle_at = None
        if not self._wait(begin):
            self._idle_at = begin
            return begin
        return self._advance(begin, self._latest_offsets(begin))

    def _wait(self, begin: Position) -> bool:
        if self._poll is None:
            self._poll = LongPoll(self._options.connection, self._options.long_poll_ms)
        watched = {topic: begin[topic] for topic in self._options.topics if topic in begin}
        return self._poll.wait(watched, self.cluster.urls)

    def _advance(self, begin: Position, latest: Position) -> Position:
        return offsets.advance(begin, latest, fail_on_data_loss=self._options.fail_on_data_loss)

    def _latest_offsets(self, begin: Position) -> Position:
        """Return the topics' latest offsets; a deleted topic keeps its old ones, or is an error."""
        found = {}
        for topic in self._options.topics:
            try:
                found[topic] = self.cluster.ends(topic).latest
            except UnknownTopicError:
                if self._options.fail_on_data_loss or topic not in begin:
                    raise
                found[topic] = begin[topic]
        self.seen = found
        return found
