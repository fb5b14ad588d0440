"""A live cluster as the tests of the Spark source talk to it beside Spark: by HTTP."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

    from tests.support.live_cluster import LiveCluster

JSON = "application/vnd.kafka.json.v2+json"
BINARY = "application/vnd.kafka.binary.v2+json"

Record = dict[str, Any]


@dataclass(frozen=True)
class Log:
    """Blocking calls; each waits for its answer."""

    cluster: LiveCluster

    @property
    def url(self) -> str:
        """All brokers, as the option wants them."""
        return ",".join(broker.url for broker in self.cluster.brokers)

    def create(self, topic: str, partitions: int = 3) -> str:
        """The topic's id."""
        return asyncio.run(self.cluster.create_topic(topic, partitions))

    def grow(self, topic: str, partitions: int) -> None:
        """Add partitions, up to this number."""
        url = f"{self.cluster.topics_url(1)}/{topic}"
        body = {"partitions_count": partitions}
        assert asyncio.run(self.cluster.ask("PATCH", url, body)).status == 200

    def delete(self, topic: str) -> None:
        url = f"{self.cluster.topics_url(1)}/{topic}"
        assert asyncio.run(self.cluster.ask("DELETE", url)).status == 204

    def post(self, topic: str, *records: Record, binary: bool = False) -> None:
        """Write, all acknowledged."""
        url = f"{self.cluster.brokers[0].url}/topics/{topic}"
        kind = {"Content-Type": BINARY if binary else JSON}
        answer = asyncio.run(self.cluster.ask("POST", url, {"records": records}, kind))
        assert answer.status == 200, answer
        assert all(one["error_code"] is None for one in answer.body["offsets"]), answer

    def read(self, topic: str, partitions: int = 3) -> dict[tuple[int, int], Record]:
        """What curl reads through the binary door, decoded: (partition, offset) → record."""
        return asyncio.run(self._read(topic, partitions))

    async def _read(self, topic: str, partitions: int) -> dict[tuple[int, int], Record]:
        found = {}
        for partition in range(partitions):
            url = f"{self.cluster.brokers[0].url}/topics/{topic}/partitions/{partition}/records"
            offset = 0
            while True:
                query = f"?offset={offset}&timeout=100&max_bytes=16000000"
                answer = await self.cluster.ask("GET", url + query, headers={"Accept": BINARY})
                assert answer.status == 200, answer
                if not answer.body:
                    break
                for row in answer.body:
                    row["key"], row["value"] = _bytes(row["key"]), _bytes(row["value"])
                    found[partition, row["offset"]] = row
                offset = answer.body[-1]["offset"] + 1
        return found

    # -- through Spark

    def load(self, spark: SparkSession, topic: str, **options: Any) -> DataFrame:
        """A batch read."""
        reader = spark.read.format("quorumlog").option("url", self.url)
        return reader.option("subscribe", topic).options(**options).load()

    def load_stream(self, spark: SparkSession, topic: str, **options: Any) -> DataFrame:
        """A streaming read, from the earliest record on."""
        reader = spark.readStream.format("quorumlog").option("url", self.url)
        reader = reader.option("subscribe", topic).option("startingOffsets", "earliest")
        return reader.options(**options).load()


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def places(rows: list[Row]) -> list[tuple[int, int]]:
    return sorted((row.partition, row.offset) for row in rows)


def run_to_the_end(
    frame: DataFrame, checkpoint: Path, each: Callable[[list[Row]], object]
) -> list[int]:
    """Rows of each micro-batch of a run over what is there now."""
    sizes: list[int] = []

    def take(batch: DataFrame, _number: int) -> None:
        rows = batch.collect()
        sizes.append(len(rows))
        each(rows)

    query = (
        frame.writeStream.foreachBatch(take)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return sizes
