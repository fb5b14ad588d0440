"""The load generator counts good answers only, however they are cut; the floor is a real log."""

from __future__ import annotations

import socket
import threading
import urllib.request
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import orjson
import pytest

from benchmarks.load import Generator, produce_body, render_post
from benchmarks.processes import Load, Measured, child, run_load
from benchmarks.produce import floor

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

GOOD = b'{"offsets":[{"error_code":null}]}'
REQUEST = render_post("/topics/t/partitions/0", b"{}", "application/json")
EXPECT = b'"error_code":null'


def answer(body: bytes, status: bytes = b"200 OK") -> bytes:
    return b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body)


@contextmanager
def scripted(pieces: list[bytes]) -> Iterator[tuple[str, int]]:
    """A server that answers each request with these pieces, one send each."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with suppress(OSError), listener.accept()[0] as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while connection.recv(65536):
                for piece in pieces:
                    connection.sendall(piece)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield listener.getsockname()
    finally:
        listener.close()
        thread.join()


def run(pieces: list[bytes]) -> dict[str, object]:
    with scripted(pieces) as address:
        generator = Generator([address], [REQUEST], 1, EXPECT)
        try:
            return generator.run(0.0, 0.1)
        finally:
            generator.close()


@pytest.mark.parametrize(
    "pieces",
    [
        [answer(GOOD)],
        [answer(GOOD)[:-20], GOOD[-20:]],
        [answer(GOOD)[: -len(GOOD)], GOOD],
        [
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
            b"%x\r\n%b\r\n" % (len(GOOD), GOOD),
            b"0\r\n\r\n",
        ],
    ],
    ids=["whole", "cut in the body", "head apart", "chunked"],
)
def test_good_answers_are_counted(pieces: list[bytes]) -> None:
    figures = run(pieces)
    assert figures["errors"] == 0, figures
    assert figures["requests"] > 10  # type: ignore[operator]
    assert figures["p50_ms"] > 0  # type: ignore[operator]


@pytest.mark.parametrize(
    "pieces",
    [
        [answer(b'{"error_code":50302}', b"503 Service Unavailable")],
        [answer(b'{"offsets":[{"error_code":50003}]}')],
        [answer(GOOD, b"503 Service Unavailable")],
        [answer(b"")],
    ],
    ids=["503", "failed record", "good text, bad status", "empty"],
)
def test_bad_answers_are_errors(pieces: list[bytes]) -> None:
    figures = run(pieces)
    assert figures["requests"] == 0
    assert figures["errors"] > 0  # type: ignore[operator]
    assert str(figures["first_error"]).startswith("HTTP/1.1")


def test_a_closed_connection_is_not_survived() -> None:
    with scripted([]) as address:
        generator = Generator([address], [REQUEST], 1, EXPECT)
        next(iter(generator.sockets())).shutdown(socket.SHUT_RDWR)
        with pytest.raises(OSError, match=r"closed|pipe|reset"):
            generator.run(0.0, 0.2)
        generator.close()


@pytest.mark.parametrize("fsync", [True, False])
def test_floor_stores_dense_offsets_and_answers_for_all_replicas(*, fsync: bool) -> None:
    with floor(fsync=fsync) as (address, _):
        bases = []
        for count in (3, 1000, 1):
            request = urllib.request.Request(
                f"http://{address}/", produce_body(count, 100, 1), {"Connection": "keep-alive"}
            )
            with urllib.request.urlopen(request, timeout=10) as response:
                bases.append(orjson.loads(response.read()))
    assert bases == [
        {"base_offset": 0, "count": 3},
        {"base_offset": 3, "count": 1000},
        {"base_offset": 1003, "count": 1},
    ]


def test_a_problem_is_told_in_the_servers_words() -> None:
    figures = {
        "errors": 3,
        "first_error": '503 {"offsets":[{"error":"NO_LEADER: p"',
    }
    assert Measured(figures, {}).problem == "3 errors: NO_LEADER: p"
    assert Measured({**figures, "errors": 0}, {}).problem == ""
    moved = Measured({**figures, "errors": 0}, {}, moved=True)
    assert moved.problem == "the leader moved meanwhile"


def test_floor_under_load() -> None:
    with floor(fsync=True) as (address, pids):
        load = Load(
            targets=[address],
            requests=[render_post("/", produce_body(10, 100, 1), "application/json")],
            connections=8,
            seconds=0.3,
            warm_up_s=0.1,
            expect='"count":10',
        )
        measured = run_load(load, pids)
    assert measured.problem == ""
    assert measured.requests_per_s > 10
    assert set(measured.cpu_s) == {"leader", "follower 1", "follower 2"}


def test_sendfile_server_serves_the_file_again_and_again(tmp_path: Path) -> None:
    file = tmp_path / "data"
    file.write_bytes(b'{"offset":1}\n' * 200_000)
    with child("benchmarks.sendfile_server", file, 1 << 20) as server:
        address = f"127.0.0.1:{server.words[0]}"
        load = Load(
            targets=[address],
            requests=[b"GET / HTTP/1.1\r\n\r\n"],
            connections=2,
            seconds=0.3,
            warm_up_s=0.0,
            expect='"offset":1',
        )
        measured = run_load(load, {"server": server.pid})
    assert measured.problem == ""
    figures = measured.figures
    assert figures["body_bytes"] == figures["requests"] << 20
