"""``spark.readStream.format("quorumlog")``.

Spark fixes the offsets of a micro-batch in its checkpoint before it runs it, and runs the very same
offsets again after a crash. Offsets are immutable in the log (nothing past the high watermark is
ever served), so a batch that is run again holds the same records.
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
    """One per query on the driver (its planner methods), and a copy in each task (`read`).

    The driver's copy gets a `Driver`, lazily; that of a task never does, and only it is pickled.
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
        """From now on the stream ends here."""
        self._at_driver().set_target()

    @override
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Where the next micro-batch ends; ``start`` if there is nothing new within the wait."""
        begin = offsets.from_json(start)
        end = self._at_driver().latest(begin)
        if isinstance(limit, ReadMaxRows):
            end = offsets.limit(begin, end, limit.max_rows)
        return offsets.to_json(end)

    @override
    def reportLatestOffset(self) -> dict[str, Any] | None:
        """What Spark shows as the source's latest offset: as last seen, it costs no request."""
        seen = self._at_driver().seen
        return None if seen is None else offsets.to_json(seen)

    @override
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The tasks of a micro-batch: the same offsets give the same tasks, also in a re-run."""
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
        """Nothing: the checkpoint is Spark's, and Spark does not call this for a last batch."""

    def _at_driver(self) -> Driver:
        if self._driver is None:
            self._driver = Driver(self._options)
        return self._driver

    @override
    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_driver": None}


class Driver:
    """The part of a stream that asks the cluster. Owned by one `QuorumlogStreamReader`."""

    def __init__(self, options: SourceOptions) -> None:
        self.cluster = Cluster(options.connection)
        self._options = options
        self._target: Position | None = None
        self._poll: LongPoll | None = None
        self._idle_at: Position | None = None
        self.seen: Position | None = None
        """The latest offsets as last seen."""

    def initial(self) -> Position:
        """Where a query without a checkpoint starts."""
        options = self._options
        ends = {topic: self.cluster.ends(topic) for topic in options.topics}
        return offsets.resolve(
            ends,
            options.starting,
            options.starting_default,
            fail_on_data_loss=options.fail_on_data_loss,
        )

    def set_target(self) -> None:
        self._target = self._ask({})

    def latest(self, begin: Position) -> Position:
        """The latest offsets; if they are ``begin``, those after a wait for new ones."""
        if self._target is not None:
            return self._advance(begin, self._target)
        if begin != self._idle_at:
            end = self._advance(begin, self._ask(begin))
            if end != begin or not self._options.long_poll_ms:
                return end
        self._idle_at = None
        if not self._wait(begin):
            self._idle_at = begin
            return begin
        return self._advance(begin, self._ask(begin))

    def _wait(self, begin: Position) -> bool:
        if self._poll is None:
            self._poll = LongPoll(self._options.connection, self._options.long_poll_ms)
        watched = {topic: begin[topic] for topic in self._options.topics if topic in begin}
        return self._poll.wait(watched, self.cluster.urls)

    def _advance(self, begin: Position, latest: Position) -> Position:
        return offsets.advance(begin, latest, fail_on_data_loss=self._options.fail_on_data_loss)

    def _ask(self, begin: Position) -> Position:
        """The latest offsets of the topics. A topic that went away keeps where it was, or fails."""
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
