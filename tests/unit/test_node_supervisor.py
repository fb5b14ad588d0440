"""The supervisor over stand-in nodes: readiness that never comes, refusals, restarts."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from http_api.node import local_cluster, node_process
from http_api.node.cluster_file import ClusterDescription, read_cluster_file
from http_api.node.cluster_plan import UpOptions, prepare_cluster
from http_api.node.exits import EXIT_NOT_READY, EXIT_PORT_IN_USE, EXIT_STORAGE, NodeExit
from http_api.node.local_cluster import ClusterSupervisor
from http_api.node.node_folder import FolderLock
from raft_metadata.common.clock import SystemClock

Supervise = Callable[..., Awaitable[int]]


@pytest.fixture
def supervise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Supervise:
    """Runs a 1 + 1 cluster whose nodes run ``code`` instead."""

    async def run(code: str, *, ready_within_s: float = 0.5, restart: bool = True) -> int:
        command = [sys.executable, "-S", "-c", code]
        monkeypatch.setattr(node_process, "node_command", lambda entry: [*command, entry.name])
        monkeypatch.setattr(local_cluster, "READY_WITHIN_S", ready_within_s)
        data = tmp_path / "data"
        options = UpOptions(data_dir=data, controllers=1, brokers=1, port=0, restart=restart)
        made = await prepare_cluster(options, {}, FolderLock(data / "lock"))
        cluster = ClusterSupervisor(
            options, made, clock=SystemClock(), environment={}, announce=_never_ready
        )
        return await cluster.run()

    return run


def _never_ready(description: ClusterDescription) -> None:
    raise AssertionError(f"announced {description.cluster_id}")


async def test_not_ready_in_time_names_who_is_missing_and_the_log(
    supervise: Supervise, tmp_path: Path
) -> None:
    with pytest.raises(NodeExit) as caught:
        await supervise("import time; time.sleep(60)")
    assert caught.value.code == EXIT_NOT_READY
    assert "broker-1: no answer" in caught.value.message
    assert str(tmp_path / "data" / "logs" / "broker-1.log") in caught.value.message
    left = read_cluster_file(tmp_path / "data")
    assert left is not None
    assert (left.state.value, [entry.pid for entry in left.nodes]) == ("stopped", [None, None])


async def test_a_node_that_refuses_to_start_ends_the_start_with_its_exit_code(
    supervise: Supervise,
) -> None:
    code = "import sys; print('port 5 is in use', file=sys.stderr); sys.exit(69)"
    async with asyncio.timeout(10):
        with pytest.raises(NodeExit) as caught:
            await supervise(code, ready_within_s=60)
    assert caught.value.code == EXIT_PORT_IN_USE
    assert "refused to start: port 5 is in use" in caught.value.message


async def test_a_dead_node_is_started_again_after_delays_that_grow(
    supervise: Supervise, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(NodeExit):
        await supervise("import sys; print('life'); sys.exit(3)", ready_within_s=2.0)
    lives = (tmp_path / "data" / "logs" / "broker-1.log").read_text().count("life")
    assert 3 <= lives <= 4, "not before 0, 0.2, 0.6 and 1.4 s"
    delays = re.findall(r"starting broker-1 again delay_ms=(\d+)", caplog.text)
    assert delays[:2] == ["200", "400"]
    assert "broker-1 ended exit=3" in caplog.text


async def test_with_no_restart_the_dead_stay_dead(supervise: Supervise, tmp_path: Path) -> None:
    with pytest.raises(NodeExit, match="broker-1: not running"):
        await supervise("print('life')", restart=False)
    assert (tmp_path / "data" / "logs" / "broker-1.log").read_text() == "life\n"


async def test_a_controller_that_has_its_folder_is_started_again_after_exit_74(
    supervise: Supervise, tmp_path: Path
) -> None:
    with pytest.raises(NodeExit):
        await supervise(f"import sys; print('life'); sys.exit({EXIT_STORAGE})", ready_within_s=0.7)
    assert (tmp_path / "data" / "logs" / "controller-101.log").read_text().count("life") > 1
