"""``df.write`` and ``df.writeStream`` with ``format("quorumlog")``: append, at least once.

A task that Spark repeats, a batch that is replayed after a crash and a request whose answer was
lost each write their records again. Nothing acknowledged to Spark is ever missing.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import BinaryType, IntegerType, StringType
from typing_extensions import override

from raft_metadata.common.record_placement import KeylessRotation, keyless_candidates
from spark_source.cluster import UnknownTopicError, cached_cluster
from spark_source.encoding import encode
from spark_source.errors import SchemaError
from spark_source.schema import HEADERS_COLUMN
from spark_source.sender import Sender

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa
    from pyspark.sql.types import DataType, StructType

    from spark_source.cluster import Cluster
    from spark_source.options import SinkOptions

EXPECTED = (
    "expected value (string or binary) and, as wanted, key (string or binary), topic (string), "
    "partition (int), headers (array<struct<key:string,value:binary>>)"
)


@dataclass
class Written(WriterCommitMessage):
    """Result of a task."""

    rows: int


def check_columns(schema: StructType, options: SinkOptions, *, overwrite: bool) -> None:
    """Check the columns before the first row is written.

    Raises:
        SchemaError: a column is missing, unknown or of another type; or not an append.
    """
    if overwrite:
        msg = (
            "a log is only ever appended to: use mode('append') or outputMode('append'); for the "
            "whole result of every batch use foreachBatch and append it"
        )
        raise SchemaError(msg)
    found = {field.name: field.dataType for field in schema.fields}
    for name, kind in found.items():
        if not _is_fit(name, kind):
            msg = f"column {name} {kind.simpleString()} can't be written: {EXPECTED}"
            raise SchemaError(msg)
    if "value" not in found:
        msg = f"there is no column value: {EXPECTED}"
        raise SchemaError(msg)
    if options.topic is None and "topic" not in found:
        msg = "no topic is named: set option topic, or have a column topic (string)"
        raise SchemaError(msg)


def _is_fit(name: str, kind: DataType) -> bool:
    match name:
        case "key" | "value":
            return isinstance(kind, StringType | BinaryType)
        case "topic":
            return isinstance(kind, StringType)
        case "partition":
            return isinstance(kind, IntegerType)
        case "headers":
            return bool(kind.simpleString() == HEADERS_COLUMN[0].simpleString())
        case _:
            return False


class Topics:
    """The topics of a task, each looked up once; implements `encoding.Placement`."""

    def __init__(self, cluster: Cluster, start: Callable[[int], int] = secrets.randbits) -> None:
        self._cluster = cluster
        self._start = start
        self._leaders: dict[str, list[bool]] = {}
        """By topic, True for each partition that had a leader when the topic was looked up."""
        self._rotations: dict[str, KeylessRotation] = {}

    def partitions(self, topic: str) -> int:
        """Return the number of partitions; 0 while the topic does not exist (writes create it)."""
        if topic not in self._leaders:
            try:
                self._leaders[topic] = self._cluster.learn_leaders(topic)
            except UnknownTopicError:
                return 0
        return len(self._leaders[topic])

    def unkeyed(self, topic: str) -> int:
        """Return the next partition in turn that has a leader, starting at a random one."""
        rotation = self._rotations.get(topic)
        if rotation is None:
            rotation = self._rotations[topic] = KeylessRotation(self._start(32))
        return rotation.next_of(keyless_candidates(self._leaders[topic]))


class _Writer:
    """Row writer of a task. Pickled by Spark.

    Spark constructs a new one to commit each batch, so construction makes no requests.
    """

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write_rows(self, batches: Iterator[pa.RecordBatch]) -> Written:
        """Write every row; return once all are acknowledged."""
        cluster = cached_cluster(self._options.connection)
        topics = Topics(cluster)
        sender = Sender(cluster.client, self._options)
        rows = 0
        for batch in batches:
            for chunk in encode(batch, self._options, topics):
                sender.send(chunk)
            rows += batch.num_rows
        return Written(rows)


class QuorumlogBatchWriter(_Writer, DataSourceArrowWriter):
    """Writer of ``df.write``.

    Records are in the log as soon as the tasks write them: there is nothing to commit or to undo.
    """

    @override
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self.write_rows(iterator)


class QuorumlogStreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Writer of ``df.writeStream``; as in `QuorumlogBatchWriter` there is nothing to commit."""

    @override
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self.write_rows(iterator)
