"""One Spark and one cluster for the whole folder: starting them is most of the time.

They end with the folder's last test: six idle processes would slow the tests after it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from spark_source.pipelines.flights import NO_JAVA, has_java
from tests.support.live_cluster import running
from tests.support.spark_log import Log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="package")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    if not has_java():
        (pytest.fail if os.environ.get("CI") else pytest.skip)(NO_JAVA)
    from spark_source import session

    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PYSPARK_PYTHON", raising=False)
        patch.delenv("SPARK_LOCAL_IP", raising=False)
        warehouse = str(tmp_path_factory.mktemp("warehouse"))
        made = session("tests", quick=True, conf={"spark.sql.warehouse.dir": warehouse})
        made.sparkContext.setLogLevel("OFF")
        yield made
        made.stop()


@pytest.fixture(scope="package")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Log]:
    # Tests start what they killed: at once, or only after another replica was elected.
    with running(tmp_path_factory.mktemp("spark-cluster"), "--no-restart") as cluster:
        yield Log(cluster)


@pytest.fixture
def restarted(log: Log) -> Iterator[None]:
    """For tests that kill brokers: leaves none dead to the next one, however the test ended."""
    yield
    names = [f"broker-{broker.id}" for broker in log.cluster.brokers]
    for name in names:
        if log.cluster.pid(name) is None:
            log.cluster.start_node(name)
    asyncio.run(log.cluster.wait_healthy())
