"""The driver against the real Toxiproxy: cut, heal, reconcile, and a server that is silent."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from chaos.cluster import runs
from chaos.net.links import (
    Faults,
    Flow,
    Link,
    LinkState,
    Plane,
    answers_lost,
    on_each,
    refused,
)
from chaos.net.network import Network
from chaos.net.toxiproxy import ANSWERS, NetworkError, Toxic, ToxiproxyApi, ToxiproxyServer
from raft_metadata.common import local_ports
from tests.architecture.tree import ROOT
from tests.chaos.conftest import EchoServer

LINK = Link(1, 2, Plane.PEER)
BACK = Link(2, 1, Plane.PEER)
ANSWER_S = 1.0
"""Ten times what a machine that runs other tests takes; silence costs it whole."""
OWNER = """
import pathlib, signal, sys
from chaos.net.toxiproxy import ToxiproxyServer
from raft_metadata.common import local_ports
server = ToxiproxyServer(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))
server.start()
print(server.pid, flush=True)
signal.pause()
"""


class Caller:
    """One connection that sends lines. Every one is closed after its test."""

    made: ClassVar[list[Caller]] = []

    def __init__(self, address: str) -> None:
        host, port = address.split(":")
        self._socket = socket.create_connection((host, int(port)), timeout=2)
        self._socket.settimeout(ANSWER_S)
        self.made.append(self)

    def ask_all(self, line: bytes) -> bytes:
        """The whole answer, in however many pieces it comes."""
        answer = self.ask(line)
        while answer and len(answer) < len(line):
            answer += self._socket.recv(1000)
        return answer or b""

    def ask(self, line: bytes) -> bytes | None:
        """The answer; None if none comes. b"" if the connection was closed."""
        try:
            self._socket.sendall(line)
            return self._socket.recv(1000)
        except TimeoutError:
            return None
        except OSError:
            return b""

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(autouse=True)
def no_socket_is_left() -> Iterator[None]:
    yield
    while Caller.made:
        Caller.made.pop().close()


@pytest.fixture
async def network(binary: Path, tmp_path: Path) -> AsyncIterator[Network]:
    made = Network(binary, tmp_path / "toxiproxy.log")
    made.start()
    yield made
    made.stop()


async def test_a_laid_link_passes_bytes_and_a_cut_one_none_on_open_connections(
    network: Network, echo: EchoServer
) -> None:
    ways = await network.lay({LINK: echo.address})
    caller = Caller(ways[LINK])
    assert caller.ask(b"one\n") == b"one\n"
    await network.shape(Faults(frozenset({Flow(1, 2), Flow(2, 1)})))
    assert caller.ask(b"two\n") is None, "silent, not closed"
    assert echo.seen == [b"one\n"]
    await network.heal()
    caller.close()
    again = Caller(ways[LINK])
    assert again.ask(b"three\n") == b"three\n"
    again.close()
    assert echo.seen == [b"one\n", b"three\n"]


async def test_a_proxy_never_sits_on_a_port_that_a_node_will_listen_on(
    binary: Path, echo: EchoServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nodes are formatted first and started last: nobody listens on their ports meanwhile."""
    monkeypatch.setattr(local_ports, "EPHEMERAL_RANGE", tmp_path / "none")
    monkeypatch.setattr(local_ports, "PORTS_FROM", 31_000)
    open_to_all = {32_111, 32_222, 32_333}
    network = Network(binary, tmp_path / "toxiproxy.log")
    network.start(set(range(31_000, 32_768)) - open_to_all)
    try:
        ways = await network.lay({LINK: echo.address})
        (way,) = ways.values()
        assert int(way.rpartition(":")[2]) in open_to_all
    finally:
        network.stop()


async def test_lost_answers_let_the_request_run_and_are_counted(
    network: Network, echo: EchoServer
) -> None:
    ways = await network.lay({LINK: echo.address})
    before = await network.traffic()
    caller = Caller(ways[LINK])
    assert caller.ask(b"one\n") == b"one\n"
    await network.shape(answers_lost([LINK]))
    assert caller.ask(b"two\n") is None
    assert echo.seen == [b"one\n", b"two\n"], "it ran"
    await network.heal()
    caller.close()
    async with asyncio.timeout(3):
        while (await network.traffic())[LINK].swallowed == before[LINK].swallowed:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    assert (await network.traffic())[LINK].swallowed == len(b"two\n")


async def test_a_flow_in_one_direction_leaves_the_other_link_alone(
    network: Network, echo: EchoServer
) -> None:
    ways = await network.lay({LINK: echo.address, BACK: echo.address})
    await network.shape(Faults(frozenset({Flow(1, 2)})))
    there, back = Caller(ways[LINK]), Caller(ways[BACK])
    assert there.ask(b"lost\n") is None
    assert back.ask(b"its answer is lost\n") is None
    assert echo.seen == [b"its answer is lost\n"]
    there.close()
    back.close()


async def test_a_refused_link_resets_and_comes_back_at_the_same_address(
    network: Network, echo: EchoServer
) -> None:
    ways = await network.lay({LINK: echo.address})
    caller = Caller(ways[LINK])
    assert caller.ask(b"one\n") == b"one\n"
    await network.shape(refused([LINK]))
    assert caller.ask(b"two\n") == b""
    caller.close()
    with pytest.raises(ConnectionRefusedError):
        Caller(ways[LINK])
    await network.heal()
    again = Caller(ways[LINK])
    assert again.ask(b"three\n") == b"three\n"
    again.close()


async def test_a_slow_link_is_late_and_a_sliced_one_whole(
    network: Network, echo: EchoServer
) -> None:
    ways = await network.lay({LINK: echo.address})
    caller = Caller(ways[LINK])
    await network.shape(on_each([LINK], LinkState(latency_ms=100)))
    began = time.monotonic()
    assert caller.ask(b"late\n") == b"late\n"
    assert time.monotonic() - began >= 0.19, "there and back"
    await network.shape(on_each([LINK], LinkState(slice_bytes=2)))
    (view,) = network.server_api().proxies().values()
    assert [name for name, _ in view.toxics] == ["slicer_downstream", "slicer_upstream"]
    assert caller.ask_all(b"in pieces\n") == b"in pieces\n"
    assert echo.seen == [b"late\n", b"in pieces\n"]
    caller.close()


async def test_reconcile_undoes_what_somebody_else_did(network: Network, echo: EchoServer) -> None:
    ways = await network.lay({LINK: echo.address, BACK: echo.address})
    await network.shape(answers_lost([LINK]))
    api = network.server_api()
    api.destroy(LINK.name)
    api.enable(BACK.name, enabled=False)
    api.add_toxic(BACK.name, Toxic("timeout", ANSWERS, (("timeout", 0),)))
    api.add_toxic(BACK.name, Toxic("bandwidth", ANSWERS, (("rate", 1),)))
    api.create("stranger", "127.0.0.1:0", echo.address)
    await network.shape(answers_lost([LINK]))
    found = api.proxies()
    assert set(found) == {LINK.name, BACK.name}
    assert found[LINK.name].listen == ways[LINK], "at the address that nodes dial"
    assert [name for name, _ in found[LINK.name].toxics] == ["timeout_downstream"]
    assert (found[BACK.name].enabled, found[BACK.name].toxics) == (True, ())


async def test_a_server_that_cannot_be_made_to_agree_is_an_error(
    network: Network, echo: EchoServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The change is believed only when a GET shows it."""
    await network.lay({LINK: echo.address})
    monkeypatch.setattr(ToxiproxyApi, "add_toxic", lambda *_: None)
    with pytest.raises(NetworkError, match="not as it was told to be"):
        await network.shape(answers_lost([LINK]))


async def test_a_paused_server_is_a_time_out_not_a_hang(network: Network, echo: EchoServer) -> None:
    await network.lay({LINK: echo.address})
    network.server.signal(signal.SIGSTOP)
    began = time.monotonic()
    try:
        with pytest.raises(NetworkError, match="no answer"):
            await network.shape(answers_lost([LINK]))
    finally:
        network.server.signal(signal.SIGCONT)
    assert time.monotonic() - began < 5
    await network.shape(answers_lost([LINK]))  # and the next one finds it back


async def test_two_networks_in_one_process_do_not_share_a_server(
    network: Network, echo: EchoServer, binary: Path, tmp_path: Path
) -> None:
    other = Network(binary, tmp_path / "other.log")
    other.start()
    try:
        await network.lay({LINK: echo.address})
        await other.lay({BACK: echo.address})
        assert set(network.server_api().proxies()) == {LINK.name}
        assert set(other.server_api().proxies()) == {BACK.name}
    finally:
        other.stop()


def test_stop_ends_the_process(binary: Path, tmp_path: Path) -> None:
    server = ToxiproxyServer(binary, tmp_path / "log")
    api = server.start()
    pid = server.pid
    assert pid is not None
    assert api.version() in {"git", "2.12.0"}
    server.stop()
    assert not runs(pid)
    with pytest.raises(NetworkError, match="no answer"):
        api.proxies()


def test_the_server_ends_with_its_owner(binary: Path, tmp_path: Path) -> None:
    """Killed with -9, the owner can't stop anything; the kernel does."""
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, str(binary), str(tmp_path / "log")],
        cwd=ROOT,
        stdout=subprocess.PIPE,
    ) as owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        assert runs(pid)
        owner.kill()
    deadline = time.monotonic() + 2
    while runs(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not runs(pid)


def test_an_error_answer_of_the_server_is_an_error(binary: Path, tmp_path: Path) -> None:
    server = ToxiproxyServer(binary, tmp_path / "log")
    api = server.start()
    try:
        with pytest.raises(NetworkError, match="NotFound"):
            api.destroy("nobody")
        api.create("one", "127.0.0.1:0", "127.0.0.1:1")
        with pytest.raises(NetworkError, match="ProxyExists"):
            api.create("one", "127.0.0.1:0", "127.0.0.1:1")
    finally:
        server.stop()
