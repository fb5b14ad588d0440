"""The port scheme of interfaces.md §1, free ports, ports in use."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from http_api.node.cluster_file import NodeAddresses
from http_api.node.cluster_plan import UpOptions, check_ports, plan_added, plan_new
from http_api.node.exits import EXIT_PORT_IN_USE, NodeConfigError, NodeExit


def ports(nodes: list[NodeAddresses]) -> list[tuple[str, int, int]]:
    return [(node.name, node.http.port, node.inner.port) for node in nodes]


def test_ports_follow_the_scheme() -> None:
    controllers, brokers = plan_new(UpOptions(data_dir=Path("x")))
    assert ports(brokers) == [
        ("broker-1", 8082, 9082),
        ("broker-2", 8083, 9083),
        ("broker-3", 8084, 9084),
    ]
    assert ports(controllers) == [
        ("controller-101", 10082, 11082),
        ("controller-102", 10083, 11083),
        ("controller-103", 10084, 11084),
    ]


def test_a_port_too_high_is_refused_with_what_it_would_need() -> None:
    with pytest.raises(NodeConfigError, match="65536"):
        plan_new(UpOptions(data_dir=Path("x"), port=62_536, controllers=1, brokers=1))


def test_port_zero_picks_distinct_free_ports_outside_the_ephemeral_range() -> None:
    controllers, brokers = plan_new(UpOptions(data_dir=Path("x"), port=0))
    chosen = [a.port for node in (*controllers, *brokers) for a in (node.http, node.inner)]
    assert len(set(chosen)) == 12
    ephemeral = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert all(1024 < port < ephemeral for port in chosen)


FIRST_FREE = """
import secrets, sys
from raft_metadata.common import local_ports
secrets.randbelow = lambda end: 0
print(local_ports.free_port(), flush=True)
sys.stdin.read()
"""


class Chooser:
    """A process that has chosen the first free port and lives on; nothing listens there."""

    def __enter__(self) -> int:
        self.process = subprocess.Popen(
            [sys.executable, "-c", FIRST_FREE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        return int(self.process.stdout.readline())

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


def test_no_two_processes_choose_the_same_port_though_nobody_listens_yet() -> None:
    """Seconds pass until a node listens. The port is free again when its process has ended."""
    with Chooser() as first:
        with Chooser() as second:
            assert second > first
        with Chooser() as third:
            assert third == second


def test_added_brokers_follow_the_scheme_of_the_cluster() -> None:
    controllers, brokers = plan_new(UpOptions(data_dir=Path("x"), port=20_000, brokers=2))
    added = plan_added(4, [*controllers, *brokers])
    assert ports(added) == [("broker-3", 20_002, 21_002), ("broker-4", 20_003, 21_003)]


def test_brokers_added_to_a_cluster_on_free_ports_get_free_ones() -> None:
    controllers, brokers = plan_new(UpOptions(data_dir=Path("x"), port=0, controllers=1, brokers=1))
    added = plan_added(2, [*controllers, *brokers])
    taken = {a.port for node in (*controllers, *brokers) for a in (node.http, node.inner)}
    assert added[0].name == "broker-2"
    assert not {added[0].http.port, added[0].inner.port} & taken


async def test_a_port_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        _, brokers = plan_new(UpOptions(data_dir=Path("x"), port=port, controllers=1, brokers=1))
        with pytest.raises(NodeExit, match=f"port {port} is in use, broker-1") as caught:
            await check_ports(brokers, wait_s=0.0)
    assert caught.value.code == EXIT_PORT_IN_USE
    await check_ports(brokers, wait_s=0.0)
