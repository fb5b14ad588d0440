"""A Spark session with settings that avoid known traps.

Each setting is here because its default is slow or fails; the user's own settings take precedence.
"""

from __future__ import annotations

import atexit
import os
import pkgutil
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

LOCAL_MASTER = "local[2,4]"
"""Two cores, and four attempts per task: plain local[N] fails a query at a task's first failure."""

STACK = "spark.driver.extraJavaOptions"
PRESETS: Mapping[str, str] = {
    # Spark's regular expression over a long error text overflows the stack when a query with
    # foreachBatch is stopped; the query then never ends.
    STACK: "-Xss16m",
    # 200 tasks per shuffle make a stateful query of a few rows take 12 s a batch on two cores.
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
}
LOCAL_PRESETS: Mapping[str, str] = {
    # The wheel has no native Hadoop library: the default checkpoint writer forks chmod and readlink
    # some 20 times a micro-batch, 110 to 150 ms of it. These two write directly; for local disks.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing."
        "FileSystemBasedCheckpointFileManager"
    ),
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "spark.ui.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
}

QUICK_JVM = "-Xss16m -XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""JVM options for runs too short for the JVM's second compiler to pay off."""
QUICK_PYTHON = """#!/bin/sh
PYTHONPATH=${PYTHONPATH#*pyspark.zip:} exec '%s' "$@"
"""
"""Script that starts a worker with the installed pyspark. The JVM puts an archive of pyspark,
without compiled files, first on each worker's path; compiling it anew costs 0.4 s per process."""


def session(
    name: str = "quorumlog",
    *,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    quick: bool = False,
) -> SparkSession:
    """Return the session of this process, created with presets for a single machine.

    Args:
        name: Spark's name of the application.
        master: default `LOCAL_MASTER`; presets for local disks only with a local one.
        quick: for short local runs (demos, tests): starts sooner, computes more slowly.
        conf: settings that override the presets, e.g. ``{"spark.sql.shuffle.partitions": "8"}``.
    """
    chosen = master or LOCAL_MASTER
    # Workers must use this Python: another one may lack pyarrow, and fails only by time-out.
    os.environ.setdefault("PYSPARK_PYTHON", _quick_python() if quick else sys.executable)
    if chosen.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    from pyspark.sql import SparkSession

    builder: SparkSession.Builder = SparkSession.builder
    builder = builder.appName(name).master(chosen)
    local = LOCAL_PRESETS if chosen.startswith("local") else {}
    faster = {STACK: QUICK_JVM} if quick else {}
    for key, value in {**PRESETS, **local, **faster, **(conf or {})}.items():
        builder = builder.config(key, value)
    made = builder.getOrCreate()
    if not _is_auto_registered():
        from spark_source.data_source import DefaultSource

        made.dataSource.register(DefaultSource)
    return made


def _quick_python() -> str:
    """Return a script that starts this Python; it is deleted when the program ends."""
    folder = Path(tempfile.mkdtemp(prefix="quorumlog-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    script = folder / "python"
    script.write_text(QUICK_PYTHON % sys.executable)
    script.chmod(0o700)
    return str(script)


def _is_auto_registered() -> bool:
    """Return True if Spark's look-up finds the source; not in an editable install by plain pip."""
    return any(found.name == "pyspark_quorumlog" for found in pkgutil.iter_modules())
