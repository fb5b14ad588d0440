"""``format("quorumlog")``: the class that Spark finds, which creates readers and writers.

Spark imports this module in every look-up of any Python data source, so it imports nothing but
pyspark, which is loaded already.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from typing_extensions import override

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceArrowWriter,
        DataSourceReader,
        DataSourceStreamArrowWriter,
        DataSourceStreamReader,
    )
    from pyspark.sql.types import StructType

NAME = "quorumlog"


class DefaultSource(DataSource):
    """The data source. Spark pickles it, so it holds nothing but the options."""

    @classmethod
    @override
    def name(cls) -> str:
        return NAME

    @override
    def schema(self) -> StructType:
        """Return Kafka's columns."""
        from spark_source.schema import kafka_schema

        wants_headers = {name.lower(): value for name, value in self.options.items()}
        return kafka_schema(
            include_headers=wants_headers.get("includeheaders", "false").lower() == "true"
        )

    @override
    def reader(self, schema: StructType) -> DataSourceReader:
        from spark_source.batch_reader import QuorumlogBatchReader
        from spark_source.options import source_options

        options = source_options(self.options, os.environ, streaming=False)
        return QuorumlogBatchReader(options, schema)

    @override
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from spark_source.options import source_options
        from spark_source.stream_reader import QuorumlogStreamReader

        options = source_options(self.options, os.environ, streaming=True)
        return QuorumlogStreamReader(options, schema)

    @override
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        from spark_source.options import sink_options
        from spark_source.writer import QuorumlogBatchWriter, check_columns

        options = sink_options(self.options, os.environ)
        check_columns(schema, options, overwrite=overwrite)
        return QuorumlogBatchWriter(options)

    @override
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        from spark_source.options import sink_options
        from spark_source.writer import QuorumlogStreamWriter, check_columns

        options = sink_options(self.options, os.environ)
        check_columns(schema, options, overwrite=overwrite)
        return QuorumlogStreamWriter(options)
