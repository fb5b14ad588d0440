"""``spark.read.format("quorumlog")``: resolves both ends once, plans tasks, reads in tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition
from typing_extensions import override

from spark_source import offsets
from spark_source.cluster import Cluster
from spark_source.options import LATEST
from spark_source.schema import chosen_columns
from spark_source.task_reader import ReadSettings, TaskRanges, read_task
from spark_source.typed import typed_schema

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from spark_source.offsets import Range
    from spark_source.options import SourceOptions


def read_settings(options: SourceOptions, schema: StructType) -> ReadSettings:
    """Return the options that tasks need.

    Raises:
        SchemaError: columns that cannot be read.
    """
    typed = typed_schema(schema) if options.typed_values else None
    return ReadSettings(
        connection=options.connection,
        columns=()
        if options.typed_values
        else chosen_columns(schema, include_headers=options.include_headers),
        typed=typed,
        fail_on_data_loss=options.fail_on_data_loss,
        fetch_bytes=options.fetch_bytes,
    )


def plan(cluster: Cluster, found: Sequence[Range], options: SourceOptions) -> list[InputPartition]:
    """Return the tasks for these ranges; the division depends on nothing but the ranges."""
    if not found:
        return []
    cluster.cluster_id()
    times = {one.topic: cluster.timestamp_type(one.topic, one.topic_id) for one in found}
    return [TaskRanges(task, cluster.urls, times) for task in offsets.tasks(found, options)]


class QuorumlogBatchReader(DataSourceReader):
    """Planner on the driver and reader in tasks. Pickled by Spark, so it holds only options."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._settings = read_settings(options, schema)

    @override
    def partitions(self) -> list[InputPartition]:
        """Resolve both ends once, now: the query reads these offsets and nothing later."""
        options = self._options
        cluster = Cluster(options.connection)
        try:
            ends = {topic: cluster.ends(topic) for topic in options.topics}
            start = offsets.resolve(
                ends,
                options.starting,
                options.starting_default,
                fail_on_data_loss=options.fail_on_data_loss,
            )
            end = offsets.resolve(
                ends, options.ending, LATEST, fail_on_data_loss=options.fail_on_data_loss
            )
            found = offsets.ranges(start, end, fail_on_data_loss=options.fail_on_data_loss)
            return plan(cluster, found, options)
        finally:
            cluster.close()

    @override
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_task(partition, self._settings)
