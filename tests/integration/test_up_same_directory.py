"""The same directory finds everything again: after kill -9 of all, with a disk gone, grown."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from tests.support.up_process import ROOT, Up, run_quorumlog, status_of, wait_for


def produce(url: str, topic: str, lines: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "http_api.cli", "produce", topic, "--url", url],
        input=lines,
        text=True,
        check=False,
        capture_output=True,
        cwd=ROOT,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr


def consume(url: str, topic: str) -> list[str]:
    done = run_quorumlog("consume", topic, "--url", url)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def kill_everything(up: Up) -> None:
    """At once: the supervisor first, so that nothing is started again."""
    up.process.send_signal(signal.SIGSTOP)
    for pid in up.pids():
        os.kill(pid, signal.SIGKILL)
    up.process.kill()
    up.process.wait()


def test_kill_9_of_everything_and_one_brokers_disk_gone_lose_nothing(tmp_path: Path) -> None:
    data = tmp_path / "data"
    lines = [f"record {number}" for number in range(50)]
    with Up(data, "--controllers", "1", "--brokers", "3", "--port", "0") as up:
        up.ready()
        cluster_id, urls = up.cluster()["cluster_id"], up.urls
        produce(urls[0], "flights", "\n".join(lines) + "\n")
        kill_everything(up)
    shutil.rmtree(data / "broker-2")

    with Up(data) as up:
        up.ready()
        assert up.cluster()["cluster_id"] == cluster_id
        assert up.urls == urls
        assert "folder of broker-2 is gone, formatting it anew" in up.errors()
        for url in urls:
            assert consume(url, "flights") == lines
        assert up.stop() == 0

    for arguments, both in (
        (("--brokers", "2"), ("--brokers 2", "3 brokers")),
        (("--controllers", "3"), ("--controllers 3", "1 controllers")),
        (("--port", "9"), ("--port 9", "port " + urls[0].rpartition(":")[2])),
    ):
        done = run_quorumlog("up", "--data-dir", str(data), *arguments)
        assert done.returncode == 2
        assert all(part in done.stderr for part in both)


def test_more_brokers_are_added(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with Up(data, "--controllers", "1", "--brokers", "1", "--port", "0") as up:
        up.ready()
        produce(up.urls[0], "flights", "kept\n")
        assert up.stop() == 0
    with Up(data, "--brokers", "2") as up:
        up.ready()
        assert len(up.urls) == 2
        assert consume(up.urls[1], "flights") == ["kept"]
        made = run_quorumlog("topic", "create", "two", "-r", "2", "--url", up.urls[1])
        assert made.returncode == 0, made.stderr
        assert up.stop() == 0


def test_rule_q4_a_controller_without_its_disk_stays_down_until_told_to_rejoin(
    tmp_path: Path,
) -> None:
    data = tmp_path / "data"
    with Up(data, "--brokers", "1", "--port", "0") as up:
        up.ready()
        produce(up.urls[0], "flights", "kept\n")
        assert up.stop() == 0
    shutil.rmtree(data / "controller-102")

    with Up(data) as up:
        up.ready()
        wait_for("its refusal", lambda: "controller-102 ended exit=74" in up.errors())
        wait_for("the advice", lambda: "controller-102 stays down until" in up.errors())
        assert up.pid(102) is None
        assert up.errors().count("controller-102 ended") == 1, "it is not tried again and again"
        config = next(node["config"] for node in up.nodes() if node["id"] == 102)
        assert not (data / "controller-102" / "raft").exists()

        done = run_quorumlog("controller", "rejoin", "--config", config, "--format", "json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["node_id"] == 102
        wait_for("the controller", lambda: up.pid(102))
        url = next(node["url"] for node in up.nodes() if node["id"] == 102)
        wait_for("it to know the leader", lambda: status_of(f"{url}/readyz") == 200)
        assert consume(up.urls[0], "flights") == ["kept"]

        again = run_quorumlog("controller", "rejoin", "--config", config)
        assert again.returncode == 75, "a running node holds its folder"
        assert up.stop() == 0


def test_rule_q4_a_controller_with_a_damaged_vote_says_what_brings_it_back(tmp_path: Path) -> None:
    """The commands are typed here as they are printed; the damaged folder is kept."""
    folder = tmp_path / "a folder" / "controller-102"
    with Up(folder.parent, "--brokers", "1", "--port", "0") as up:
        up.ready()
        pid = up.pid(102)
        assert pid is not None
        vote = folder / "raft" / "vote.json"
        content = bytearray(vote.read_bytes())
        content[3] ^= 1
        vote.write_bytes(content)
        os.kill(pid, signal.SIGKILL)
        wait_for("the remedy", lambda: "controller-102 says: " in up.errors())
        [said] = [line for line in up.errors().splitlines() if "controller-102 says: " in line]
        assert f"checksum mismatch file={vote}" in said
        last = (folder.parent / "logs" / "controller-102.log").read_text().splitlines()[-1]
        assert last.removeprefix("quorumlog: ") in said
        assert up.process.poll() is None

        command = said.rpartition(" say: ")[2]
        binary = f"{sys.executable} -m http_api.cli"
        shell = command.replace("quorumlog controller", f"{binary} controller")
        done = subprocess.run(
            shell, shell=True, cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert "controller 102 may join again" in done.stdout
        wait_for("the controller", lambda: up.pid(102))
        url = next(node["url"] for node in up.nodes() if node["id"] == 102)
        wait_for("it to know the leader", lambda: status_of(f"{url}/readyz") == 200)
        [kept] = folder.glob("raft.damaged-*")
        assert (kept / "vote.json").read_bytes() == content
        assert up.stop() == 0
