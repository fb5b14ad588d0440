"""What the data source refuses or can't do, in words for whoever runs the query.

Spark shows the last line of a Python error to the user, so each message is complete by itself.
"""

from __future__ import annotations


class SparkSourceError(Exception):
    """Whatever this data source raises on purpose."""


class OptionError(SparkSourceError, ValueError):
    """An option that is missing, unknown, or not what it should be."""


class SchemaError(SparkSourceError, ValueError):
    """Columns that can't be read or written."""


class DataLossError(SparkSourceError):
    """Records the query was to read are not there any more (``failOnDataLoss``)."""


class NotServedError(SparkSourceError):
    """The cluster did not do what was asked within ``retryTimeoutMs``."""


class RejectedError(SparkSourceError):
    """A record that the cluster will never take."""
