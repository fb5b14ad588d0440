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
from spark_source.latest import LatestOffsets
from spark_source.offsets import TopicOffsets
from spark_source.task_reader import read_task

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from spark_source.offsets import NextOffset, Place, Position, TopicEnds
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
        max_rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return offsets.to_json(self._at_driver().latest(offsets.from_json(start), max_rows))

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
        self._latest = LatestOffsets(self.cluster, options)
        self._target: Position | None = None
        """End of the stream; None: it has none."""
        self.seen: Position | None = None
        """Latest offsets as last seen; None before the first request."""

    def initial(self) -> Position:
        """Return the start of a query without a checkpoint."""
        options = self._options
        return offsets.resolve(
            self._ends(),
            options.starting,
            options.starting_default,
            fail_on_data_loss=options.fail_on_data_loss,
        )

    def set_target(self) -> None:
        """End the stream at the present latest offsets."""
        self._target = {
            topic: ends.latest
            for topic, ends in self._ends(skip_unknown=not self._options.fail_on_data_loss).items()
        }

    def latest(self, begin: Position, max_rows: int | None = None) -> Position:
        """Return the latest offsets, at most ``max_rows`` behind ``begin``.

        Where nothing is new, news are waited for once; in a stream that ends, nothing is.
        """
        if self._target is None:
            news = self._latest.news(begin, self._options.long_poll_ms)
        else:
            news = self._latest.checked_news(begin)
        end = news.end_of(self._latest.restarted(begin), self._latest.topics)
        self.seen = end
        if self._target is not None:
            if news.moved:
                self.set_target()  # of the log that is there now
            end = self._up_to_target(begin, end, news.moved)
        return end if max_rows is None else offsets.limit(begin, end, max_rows, news.epochs)

    def _up_to_target(
        self, begin: Position, end: Position, moved: Mapping[Place, NextOffset]
    ) -> Position:
        """Return the target, but for partitions that go on elsewhere in another log."""
        assert self._target is not None
        fail = self._options.fail_on_data_loss
        found = offsets.advance(begin, self._target, fail_on_data_loss=fail)
        return {
            topic: TopicOffsets(
                held.topic_id,
                {
                    partition: end[topic].partitions[partition]
                    if (topic, partition) in moved
                    else at
                    for partition, at in held.partitions.items()
                },
            )
            for topic, held in found.items()
        }

    def _ends(self, *, skip_unknown: bool = False) -> dict[str, TopicEnds]:
        found = {}
        for topic in self._options.topics:
            try:
                found[topic] = self.cluster.ends(topic)
            except UnknownTopicError:
                if not skip_unknown:
                    raise
        return found
