"""docs/guides/spark.md: every Python block, top to bottom, as a reader would run them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.spark_log import Log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "spark.md"


def test_the_guide_does_what_it_says(
    spark: SparkSession, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = re.findall(r"(?ms)^```python\n(.*?)^```$", GUIDE.read_text())
    # The brokers stand in the environment of the reader's JVM; that of this test started earlier.
    url = f'.option("url", {log.url!r})'
    names: dict[str, Any] = {}
    for block in blocks:
        code = block.replace('format("quorumlog")', f'format("quorumlog"){url}')
        code = code.replace("OPTIONS (", f"OPTIONS (url '{log.url}', ")
        exec(compile(code, str(GUIDE), "exec"), names)
    assert names["spark"] is spark
    assert {row[0]: row[1] for row in names["total"]} == {"tea": 3.5, "rye": 4.0}
    copied = log.read("orders-copy", 1)
    assert sorted(one["value"] for one in copied.values()) == sorted(
        one["value"] for one in log.read("orders", 1).values()
    )
    assert len(copied) == 2
    documented = set(re.findall(r"`(\w+)`", GUIDE.read_text()))
    from spark_source import options

    assert {*options.COMMON, *options.SOURCE, *options.SINK} <= documented
