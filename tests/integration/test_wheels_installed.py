"""The wheels of `make wheels`, each installed into an empty environment that reads no checkout.

An environment gets exactly the third-party packages that its wheel requires, as links to those of
this Python, and pip installs the wheel without an index: a requirement too few fails either pip or
the program that is run.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import venv
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from spark_source.pipelines.flights import NO_JAVA, has_java
from tests.support.live_cluster import LiveCluster, running

ROOT = Path(__file__).resolve().parents[2]
RECORDS = 200

WITHOUT_THE_SERVER = """
from importlib.util import find_spec
for name in ("broker", "raft_metadata.quorum", "http_api.server", "pysyncobj", "zstandard"):
    assert find_spec(name) is None, name
"""
WRITE_AND_READ = (
    WITHOUT_THE_SERVER
    + f"""
import sys
from quorumlog import Admin, Consumer, NewTopic, Producer

servers = sys.argv[1]
with Admin(servers) as admin:
    admin.create_topics([NewTopic("packed", 2, config={{"compression.type": "zstd"}})])
with Producer(servers) as producer:
    for number in range({RECORDS}):
        producer.produce("packed", {{"number": number, "text": "text " * 20}}, key=str(number))
with Consumer(servers, group_id="readers", auto_offset_reset="earliest") as consumer:
    consumer.subscribe(["packed"])
    found = set()
    while len(found) < {RECORDS}:
        found.update(record.value["number"] for record in consumer.consume(50, 1.0))
assert found == set(range({RECORDS})), found
assert "aiohttp" not in sys.modules
"""
)
READ_WITH_SPARK = (
    WITHOUT_THE_SERVER
    + f"""
import json, sys
import spark_source

spark = spark_source.session("wheel", quick=True)
rows = (
    spark.read.format("quorumlog").option("url", sys.argv[1]).option("subscribe", "spark").load()
)
found = [json.loads(row.value)["number"] for row in rows.select("value").collect()]
assert sorted(found) == list(range({RECORDS})), found
spark.stop()
"""
)


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, ROOT / ".ci" / "wheels.py", str(found)], check=True)
    return found


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    with running(tmp_path_factory.mktemp("cluster")) as started:
        asyncio.run(started.wait_healthy())
        yield started


class Environment:
    """An environment of its own in a test's folder, at first without any package."""

    def __init__(self, folder: Path) -> None:
        venv.create(folder / "venv", with_pip=False, symlinks=True)
        self._folder = folder
        self.bin = folder / "venv" / "bin"
        (self._packages,) = (folder / "venv" / "lib").glob("python*/site-packages")

    def install(self, wheel: str, *required: str) -> None:
        """Link these packages and all that they require, then install the wheel."""
        for name in required:
            self._link(name)
        command = [sys.executable, "-m", "pip", "--python", str(self.bin / "python"), "install"]
        subprocess.run(
            [*command, "--quiet", "--no-index", "--disable-pip-version-check", wheel], check=True
        )

    def run(self, *command: str) -> str:
        """Run a command of the environment; return its output, with its errors if it fails."""
        kept = {name: value for name, value in os.environ.items() if name in {"PATH", "JAVA_HOME"}}
        done = subprocess.run(
            [str(self.bin / command[0]), *command[1:]],
            cwd=self._folder,
            env={**kept, "HOME": str(self._folder)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def _link(self, name: str) -> None:
        found = distribution(name)
        for top in {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}:
            place = self._packages / top
            if not place.exists():
                place.symlink_to(Path(str(found.locate_file(top))))
        for requirement in map(Requirement, found.requires or ()):
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                self._link(requirement.name)


def urls(cluster: LiveCluster) -> str:
    return ",".join(broker.url for broker in cluster.brokers)


async def write_compressed(cluster: LiveCluster, topic: str) -> None:
    await cluster.create_topic(topic, 1, 3, 1, compression_type="zstd")
    values = [{"number": number, "text": "text " * 20} for number in range(RECORDS)]
    answer = await cluster.produce(1, topic, *values)
    assert answer.status == 200, answer


@pytest.mark.slow
def test_the_clients_wheel_alone_writes_and_reads(
    dist: Path, cluster: LiveCluster, tmp_path: Path
) -> None:
    """Three packages suffice; a topic that is stored compressed is read without zstandard."""
    made = Environment(tmp_path)
    (wheel,) = dist.glob("quorumlog_client-*.whl")
    made.install(str(wheel), "orjson", "msgspec", "typing-extensions")
    made.run("python", "-c", "import quorumlog")
    made.run("python", "-c", WRITE_AND_READ, urls(cluster))


@pytest.mark.slow
def test_spark_reads_with_the_clients_wheel(
    dist: Path, cluster: LiveCluster, tmp_path: Path
) -> None:
    """The driver and the workers use an environment of the wheel, pyspark and pyarrow only."""
    if not has_java():
        (pytest.fail if os.environ.get("CI") else pytest.skip)(NO_JAVA)
    made = Environment(tmp_path)
    (wheel,) = dist.glob("quorumlog_client-*.whl")
    required = ("orjson", "msgspec", "typing-extensions", "pyspark", "pyarrow")
    made.install(f"{wheel}[spark]", *required)
    asyncio.run(write_compressed(cluster, "spark"))
    made.run("python", "-c", READ_WITH_SPARK, urls(cluster))


@pytest.mark.slow
def test_the_servers_wheel_is_installed_beside_the_clients(dist: Path, tmp_path: Path) -> None:
    """The server's needs the client's; neither loses a file to the other, installed or removed."""
    made = Environment(tmp_path)
    (client,) = dist.glob("quorumlog_client-*.whl")
    (server,) = dist.glob("quorumlog-*.whl")
    made.install(str(client), "orjson", "msgspec", "typing-extensions")
    made.install(
        str(server), "pysyncobj", "aiohttp", "zstandard", "prometheus-client", "click", "rich"
    )
    assert made.run("quorumlog", "--version").startswith("quorumlog 0.")
    made.run("quorumlog", "up", "--format-only", "--data-dir", str(tmp_path / "data"))
    assert (tmp_path / "data" / "cluster.json").is_file()

    pip = [sys.executable, "-m", "pip", "--python", str(made.bin / "python")]
    subprocess.run([*pip, "--quiet", "uninstall", "--yes", "quorumlog"], check=True)
    made.run("python", "-c", "import quorumlog; quorumlog.Producer")
