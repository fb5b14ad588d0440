"""The PySpark data source: ``spark.read.format("quorumlog")``, its session and its pipelines."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spark_source.presets import session as session

__all__ = ["session"]


def __getattr__(name: str) -> object:
    """Import `session` on first use: Spark imports this package in every data source look-up."""
    if name == "session":
        from spark_source.presets import session

        return session
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)
