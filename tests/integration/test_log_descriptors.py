"""More partitions than file descriptors, with real files, the flusher's thread and a real limit."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = """
import asyncio, json, os, resource, sys, time
from pathlib import Path

from broker.log.log_directory import LogConfig
from broker.log.log_manager import LogManager
from raft_metadata.common.errors import KafkaError
from raft_metadata.common.ids import BrokerEpoch, PartitionId, TopicId, TopicName
from tests.support.logs import append, values_of

directory, (partitions, limit, turns) = Path(sys.argv[1]), map(int, sys.argv[2:5])
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
failures, refused, most = [], 0, 0


async def put(log, value):
    global refused, most
    while True:
        try:
            append(log, [value])
            break
        except KafkaError as error:
            assert error.outcome.value == "not_written", error
            refused += 1
            await asyncio.sleep(0.005)  # until the flusher has synced some
    most = max(most, len(manager._files))


async def main():
    global manager
    config = LogConfig(flush_before_ack=False)
    manager = LogManager(
        directory, on_failed=failures.append, default_config=config, flush_interval_ms=1000
    )
    manager.open()
    manager.start(asyncio.get_running_loop())
    background = asyncio.create_task(manager.run())
    topic, topic_id = TopicName("many"), TopicId("M" * 22)
    logs = [manager.get_or_create(topic, PartitionId(n), topic_id) for n in range(partitions)]
    started = time.monotonic()
    for turn in range(turns):
        for number, log in enumerate(logs):
            await put(log, f"{turn}-{number}")
            if number % 50 == 0:
                await asyncio.sleep(0)
    seconds = time.monotonic() - started
    for number, log in enumerate(logs):
        assert values_of(log) == [f"{turn}-{number}" for turn in range(turns)]
        if number % 50 == 0:
            await asyncio.sleep(0)
    background.cancel()
    manager.close(BrokerEpoch(1))
    started = time.monotonic()
    again = LogManager(directory, on_failed=failures.append)
    again.open()
    opened = time.monotonic() - started
    assert not again.offline and len(list(again.logs())) == partitions
    assert all(log.durable_end == turns for log in again.logs())
    again.close(BrokerEpoch(2))
    print(json.dumps({"failures": len(failures), "refused": refused, "most": most,
        "appends_s": round(seconds, 2), "open_s": round(opened, 2)}))


asyncio.run(main())
"""


def filled(directory: Path, partitions: int, limit: int, turns: int) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(directory), *map(str, (partitions, limit, turns))],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


def test_a_log_directory_has_more_partitions_than_it_may_open_files(tmp_path: Path) -> None:
    told = filled(tmp_path, 600, 128, 2)
    assert told["failures"] == 0
    assert told["most"] <= 128


@pytest.mark.slow
def test_20000_partitions_under_a_limit_of_4096_descriptors(tmp_path: Path) -> None:
    told = filled(tmp_path, 20_000, 4_096, 1)
    assert told["failures"] == 0
    assert told["most"] <= 4_096
