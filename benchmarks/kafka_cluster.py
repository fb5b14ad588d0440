"""Apache Kafka from Maven Central, three nodes that are broker and controller, for a comparison.

`make kafka` fetches it and confluent-kafka into ``.cache/kafka``; nothing of it is in the tree.
Kafka runs with its defaults: a record is acknowledged once all in-sync replicas have it in memory,
not on disk.
"""

from __future__ import annotations

import base64
import secrets
import subprocess
import tempfile
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.processes import ROOT
from chaos.cluster import die_with_parent
from raft_metadata.common.local_ports import LOOPBACK, free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

FETCHED: Final = ROOT / ".cache" / "kafka"
LIBRARIES: Final = FETCHED / "libs"
PYTHON: Final = FETCHED / "venv" / "bin" / "python"
"""An interpreter with confluent-kafka."""
NODES: Final = 3
HEAP: Final = "-Xmx768m"
START_S: Final = 60.0
STOP_S: Final = 20.0


def is_fetched() -> bool:
    """Return True if `make kafka` was run."""
    return LIBRARIES.is_dir() and PYTHON.exists()


@contextmanager
def kafka_running() -> Iterator[str]:
    """Run a cluster until the block ends; gives its ``bootstrap.servers``.

    Raises:
        RuntimeError: It did not start.
    """
    cluster_id = base64.urlsafe_b64encode(secrets.token_bytes(16)).decode().rstrip("=")
    ports: list[int] = []
    while len(ports) < 2 * NODES:
        ports.append(free_port(ports))
    brokers, controllers = ports[:NODES], ports[NODES:]
    voters = ",".join(f"{node}@{LOOPBACK}:{port}" for node, port in enumerate(controllers, 1))
    with tempfile.TemporaryDirectory(prefix="kafka-") as directory, ExitStack() as running:
        for node, (broker, controller) in enumerate(zip(brokers, controllers, strict=True), 1):
            folder = Path(directory) / str(node)
            folder.mkdir()
            config = folder / "server.properties"
            config.write_text(
                f"process.roles=broker,controller\n"
                f"node.id={node}\n"
                f"controller.quorum.voters={voters}\n"
                f"controller.listener.names=CONTROLLER\n"
                f"listeners=PLAINTEXT://{LOOPBACK}:{broker},CONTROLLER://{LOOPBACK}:{controller}\n"
                f"log.dirs={folder / 'data'}\n"
                f"offsets.topic.replication.factor={NODES}\n"
                f"default.replication.factor={NODES}\n"
                f"min.insync.replicas=2\n"
                f"group.initial.rebalance.delay.ms=0\n"
            )
            format_data = ["kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(config)]
            subprocess.run(_java(*format_data), check=True, capture_output=True, timeout=START_S)
            running.enter_context(_node(folder, config))
        servers = ",".join(f"{LOOPBACK}:{port}" for port in brokers)
        _wait_until_ready(servers)
        yield servers


@contextmanager
def _node(folder: Path, config: Path) -> Iterator[None]:
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            _java("kafka.Kafka", str(config)),
            stdout=log,
            stderr=subprocess.STDOUT,
            preexec_fn=die_with_parent,  # noqa: PLW1509 it only makes one system call
        )
    try:
        yield
    finally:
        process.kill()
        process.wait(STOP_S)


def _java(*arguments: str) -> list[str]:
    return ["java", HEAP, "-XX:+UseG1GC", "-cp", f"{LIBRARIES}/*", *arguments]


_READY: Final = """
import sys
from confluent_kafka.admin import AdminClient
found = AdminClient({"bootstrap.servers": sys.argv[1]}).list_topics(timeout=5)
sys.exit(len(found.brokers) != int(sys.argv[2]))
"""


def _wait_until_ready(servers: str) -> None:
    until_s = time.monotonic() + START_S
    while time.monotonic() < until_s:
        asked = subprocess.run(
            [PYTHON, "-c", _READY, servers, str(NODES)], capture_output=True, check=False
        )
        if asked.returncode == 0:
            return
    msg = f"Kafka was not ready in {START_S:.0f} s: {asked.stderr.decode()[-200:]}"
    raise RuntimeError(msg)
