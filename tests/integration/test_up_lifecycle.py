"""``quorumlog up`` from start to stop: ready line, files, signals, no orphans."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from http_api.node.cluster_file import CONTROLLER_HTTP_OFFSET, PEER_OFFSET, RAFT_OFFSET
from http_api.node.node_start import SUPERVISOR_VARIABLE
from raft_metadata.common.local_ports import LOOPBACK, free_port, is_free, reserve
from tests.support.up_process import Up, is_alive, run_quorumlog, status_of, wait_for

SMALL = ("--controllers", "1", "--brokers", "1", "--port", "0")


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    with Up(tmp_path / "data", *SMALL) as running:
        yield running.ready()


def test_the_ready_line_the_file_and_a_clean_stop(up: Up) -> None:
    assert re.fullmatch(r"quorumlog ready http://127\.0\.0\.1:\d+", up.out[0])
    wait_for("three lines", lambda: len(up.out) >= 3)
    assert up.out[1] == f"export QUORUMLOG_URL={up.out[0].split()[2]}"
    assert up.out[2].startswith("curl ")
    assert up.urls[0] in up.out[1]
    cluster = up.cluster()
    assert cluster["state"] == "ready"
    assert cluster["supervisor"]["pid"] == up.process.pid
    assert cluster["brokers"][0]["url"] == up.urls[0]
    pids = up.pids()
    assert len(pids) == 2
    assert all(is_alive(pid) for pid in pids)
    assert status_of(f"{up.urls[0]}/readyz") == 200
    for node in up.nodes():
        assert Path(node["config"]).is_file()
        assert Path(node["log"]).is_file()
        assert (Path(node["config"]).parent / "node.pid").read_text() == f"{node['pid']}\n"

    started = time.monotonic()
    assert up.stop() == 0
    assert time.monotonic() - started < 15

    assert not any(is_alive(pid) for pid in pids)
    cluster = up.cluster()
    assert cluster["state"] == "stopped"
    assert cluster["supervisor"] == {"pid": None}
    assert [node["pid"] for node in up.nodes()] == [None, None]
    assert cluster["brokers"][0]["url"] == up.urls[0]


def test_every_process_raises_its_open_file_limit(up: Up) -> None:
    for pid in (up.process.pid, *up.pids()):
        limits = Path(f"/proc/{pid}/limits").read_text()
        soft, hard = re.findall(r"Max open files +(\d+|unlimited) +(\d+|unlimited)", limits)[0]
        assert soft == hard


def test_no_orphans_when_the_supervisor_is_killed(up: Up) -> None:
    pids = up.pids()
    os.kill(pids[1], signal.SIGSTOP)  # even one that can't look at its pipe
    up.process.kill()
    up.process.wait()
    wait_for("the nodes to end", lambda: not any(map(is_alive, pids)))


def test_a_node_that_dies_is_started_again_and_the_exit_is_logged(up: Up) -> None:
    for node_id, name in ((1, "broker-1"), (101, "controller-101")):
        killed = up.kill(node_id)
        wait_for("another process", lambda: up.pid(node_id) not in (None, killed))  # noqa: B023
        assert f"{name} ended exit=SIGKILL" in up.errors()
    wait_for("ready again", lambda: status_of(f"{up.urls[0]}/readyz") == 200)


def test_a_second_signal_kills_at_once(up: Up) -> None:
    pids = up.pids()
    up.kill(1, signal.SIGSTOP)  # so that the clean stop can't be done
    up.process.send_signal(signal.SIGINT)
    wait_for("stopping", lambda: up.cluster()["state"] == "stopping")
    up.process.send_signal(signal.SIGINT)
    assert up.process.wait(3) == 130
    wait_for("the nodes to end", lambda: not any(map(is_alive, pids)))


def test_no_restart_leaves_the_dead_dead(tmp_path: Path) -> None:
    with Up(tmp_path / "data", *SMALL, "--no-restart") as up:
        up.ready()
        up.kill(1)
        wait_for("its end to be noticed", lambda: "broker-1 stays down" in up.errors())
        assert up.pid(1) is None
        assert up.cluster()["brokers"][0]["pid"] is None
        assert up.process.poll() is None
        assert up.stop() == 0


def test_a_directory_in_use_is_exit_75_naming_the_pid(up: Up) -> None:
    done = run_quorumlog("up", "--data-dir", str(up.data_dir))
    assert done.returncode == 75
    assert f"pid {up.process.pid}" in done.stderr
    assert done.stdout == ""


def base_port_of_a_free_scheme() -> int:
    """Return a base port whose every port is free: only what a test opens there is in use."""
    offsets = (PEER_OFFSET, CONTROLLER_HTTP_OFFSET, RAFT_OFFSET)
    while True:
        base = free_port()
        if all(reserve(base + offset) and is_free(LOOPBACK, base + offset) for offset in offsets):
            return base


def test_a_port_in_use_is_exit_69_naming_it(tmp_path: Path) -> None:
    port = base_port_of_a_free_scheme()
    with socket.create_server((LOOPBACK, port)):
        arguments = ("--port", str(port), "--controllers", "1", "--brokers", "1")
        done = run_quorumlog("up", "--data-dir", str(tmp_path / "data"), *arguments)
    assert (done.returncode, done.stdout) == (69, "")
    assert f"port {port} is in use" in done.stderr
    assert not (tmp_path / "data" / "broker-1").exists(), "nothing is made before ports are known"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--set", "broker_sesion_timeout_ms=1"), "broker_session_timeout_ms"),
        (("--set", "flush=never"), "ack or os"),
        (("--controllers", "2"), "1, 3, 5, 7"),
    ],
)
def test_wrong_usage_is_exit_2(tmp_path: Path, arguments: tuple[str, ...], named: str) -> None:
    done = run_quorumlog("up", "--data-dir", str(tmp_path / "data"), *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert named in done.stderr


def test_a_node_whose_parent_is_not_its_supervisor_ends_at_once(tmp_path: Path) -> None:
    """The supervisor died between fork and the request for its death signal."""
    command = [sys.executable, "-m", "http_api.cli", "broker", "--config", str(tmp_path / "none")]
    environment = {**os.environ, SUPERVISOR_VARIABLE: "1"}
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE) as node:
        assert node.wait(10) == -signal.SIGKILL


def test_a_node_ends_when_its_pipe_does() -> None:
    code = (
        "import os, time; from http_api.node.node_start import end_with_supervisor;"
        "end_with_supervisor(os.environ); print('up', flush=True); time.sleep(60)"
    )
    environment = {**os.environ, SUPERVISOR_VARIABLE: str(os.getpid())}
    with subprocess.Popen(
        [sys.executable, "-c", code],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stdout.readline() == b"up\n"
        assert child.poll() is None
        child.stdin.close()
        assert child.wait(2) == -signal.SIGKILL
