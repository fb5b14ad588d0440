"""Errors of the data source, worded for the user who runs the query.

Spark shows the last line of a Python error to the user, so each message is complete by itself.
"""

from __future__ import annotations


class SparkSourceError(Exception):
    """Base of all errors that this data source raises on purpose."""


class OptionError(SparkSourceError, ValueError):
    """An option that is missing, unknown or invalid."""


class SchemaError(SparkSourceError, ValueError):
    """Columns that cannot be read or written."""


class DataLossError(SparkSourceError):
    """Records of the query's range no longer exist (``failOnDataLoss``)."""


class NotServedError(SparkSourceError):
    """The cluster did not serve a request within ``retryTimeoutMs``."""


class RejectedError(SparkSourceError):
    """A record that the cluster will never accept."""
