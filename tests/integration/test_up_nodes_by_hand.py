"""``quorumlog broker`` and ``quorumlog controller``: what each refusal is called."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
from pathlib import Path

import pytest

from http_api.node.cluster_file import ClusterDescription, NodeEntry, write_cluster_file
from http_api.node.cluster_plan import UpOptions, prepare_cluster
from http_api.node.node_folder import PID_FILE, FolderLock
from tests.support.up_process import run_quorumlog


@pytest.fixture
def made(tmp_path: Path) -> ClusterDescription:
    """A formatted 1 + 1 cluster that never ran."""

    async def make() -> ClusterDescription:
        options = UpOptions(data_dir=tmp_path / "data", controllers=1, brokers=1, port=0)
        lock = FolderLock(options.data_dir / "lock")
        description = await prepare_cluster(options, {}, lock)
        write_cluster_file(options.data_dir, description)
        lock.release()
        return description

    return asyncio.run(make())


def started(entry: NodeEntry, *more: str) -> tuple[int, str]:
    done = run_quorumlog(entry.role, "--config", str(entry.config), *more)
    return done.returncode, done.stderr


@pytest.fixture(params=["broker", "controller"])
def entry(request: pytest.FixtureRequest, made: ClusterDescription) -> NodeEntry:
    return made.brokers[0] if request.param == "broker" else made.controllers[0]


def test_configuration_errors_are_exit_2(entry: NodeEntry) -> None:
    for arguments, named in (
        (("--set", "nonsense=1"), "nearest"),
        (("--set", "listeners.http=0.0.0.0:1"), "--insecure"),
        (("--set", f"node.role={'controller' if entry.role == 'broker' else 'broker'}"), "role"),
    ):
        code, text = started(entry, *arguments)
        assert code == 2, text
        assert named in text
    entry.config.unlink()
    assert started(entry)[0] == 2


def test_a_port_in_use_is_exit_69(entry: NodeEntry) -> None:
    for address in (entry.addresses.http, entry.addresses.inner):
        with socket.create_server((address.host, address.port)):
            code, text = started(entry)
        assert code == 69, text
        assert f"port {address.port} is in use" in text


def test_rule_q4_a_folder_without_identity_is_exit_74(entry: NodeEntry) -> None:
    meta = entry.config.parent / "meta.json"
    content = json.loads(meta.read_bytes())
    meta.write_text(json.dumps(content | {"cluster_id": "another"}))
    assert started(entry)[0] == 74
    meta.unlink()
    code, text = started(entry)
    assert code == 74
    assert "meta.json is missing" in text


def test_rule_q4_a_folder_in_use_is_exit_75(entry: NodeEntry) -> None:
    lock = FolderLock(entry.config.parent / PID_FILE)
    lock.acquire("the test")
    code, text = started(entry)
    lock.release()
    assert code == 75
    assert "pid" in text


def test_rule_q4_a_controller_without_its_raft_folder_is_exit_74(made: ClusterDescription) -> None:
    entry = made.controllers[0]
    shutil.rmtree(entry.config.parent / "raft")
    code, text = started(entry)
    assert code == 74
    assert "rejoin" in text

    done = run_quorumlog("controller", "rejoin", "--config", str(entry.config))
    assert done.returncode == 74, "the only controller: no other voter holds what its disk held"
