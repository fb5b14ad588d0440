"""Both transports meet the same troubles and raise the same errors; nothing is written twice."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from http_api.client import async_client, transport
from http_api.client.async_client import AsyncClient
from http_api.client.calls import Answer, Call, Request
from http_api.client.client_errors import (
    ApiError,
    AuthenticationError,
    ConfigError,
    OutcomeUnknownError,
    ProtocolError,
    QuorumlogError,
    UnreachableError,
)
from http_api.client.network import ClientNetwork, tune_socket
from http_api.client.routes import Routes
from http_api.client.transport import Client
from raft_metadata.common.errors import Outcome
from tests.support.raw_server import Heard, always, answer_of, hang_up, raw_server
from tests.support.waiting import until

Run = Callable[..., list[Any]]
SHORT_S = 0.3


def run_blocking(
    routes: Routes,
    calls: Sequence[Call[Any]],
    network: ClientNetwork | None = None,
    is_over: Callable[[], bool] = lambda: True,
) -> list[Any]:
    with Client(routes, retry_s=0.0, network=network) as client:
        return [client.run(call) for call in calls]


def run_async(
    routes: Routes,
    calls: Sequence[Call[Any]],
    network: ClientNetwork | None = None,
    is_over: Callable[[], bool] = lambda: True,
) -> list[Any]:
    """Run the calls, and keep the loop until all is over: transports close some turns later."""

    async def work() -> list[Any]:
        try:
            async with AsyncClient(routes, retry_s=0.0, network=network) as client:
                return [await client.run(call) for call in calls]
        finally:
            await until(is_over)

    return asyncio.run(work())


both = pytest.mark.parametrize("run", [run_blocking, run_async])


def whole(answer: Answer) -> bytes:
    return answer.body


def call_of(method: str, path: str = "/x", **given: Any) -> Call[bytes]:
    body = None if method in {"GET", "DELETE"} else b"{}"
    return Call(Request(**({"method": method, "path": path, "body": body} | given)), whole)


READ, WRITE, DELETE = call_of("GET"), call_of("POST"), call_of("DELETE")
NO_READ = call_of("GET", repeatable=False)
"""A GET that moves something: never to be sent twice (rule F2)."""


def closed_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    return f"http://127.0.0.1:{port}"


BROKEN_ANSWERS = {
    "garbage": b"\x00\xff nonsense\r\n\r\n",
    "another protocol": b"SSH-2.0-OpenSSH_9.6\r\n",
    "nothing": b"",
    "half a status line": b"HTTP/1.1 2",
    "half the headers": b"HTTP/1.1 200 OK\r\nContent-Le",
    "half a body": b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{}",
    "half a chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
    "no last chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n",
    "a chunk size that is no number": (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n"
    ),
    "a negative chunk": (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\n{}\r\n0\r\n\r\n"
    ),
    "two lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
    "a length that is no number": b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n{}",
    "a negative length": b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n{}",
    "a length and chunks": (
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"2\r\n{}\r\n0\r\n\r\n"
    ),
    "a huge header": b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000 + b"\r\n\r\n",
}


@both
@pytest.mark.parametrize("name", BROKEN_ANSWERS)
def test_rule_f1_a_broken_answer_to_a_write_is_unknown_and_not_repeated(
    run: Run, name: str
) -> None:
    with raw_server(always(BROKEN_ANSWERS[name], keeps=False)) as server:
        for call in (WRITE, DELETE, NO_READ):
            server.heard.clear()
            with pytest.raises(OutcomeUnknownError) as lost:
                run(Routes([server.url]), [call])
            assert lost.value.outcome is Outcome.UNKNOWN
            assert server.url in str(lost.value)
            assert len(server.heard) == 1


@both
@pytest.mark.parametrize("name", BROKEN_ANSWERS)
def test_a_broker_with_broken_answers_is_passed_by_and_named_if_all_are(
    run: Run, name: str
) -> None:
    bad = always(BROKEN_ANSWERS[name], keeps=False)
    with raw_server(bad, cluster=b"") as broken, raw_server(always(answer_of())) as sound:
        for call in (READ, WRITE):
            routes = Routes([broken.url, sound.url], checks_cluster=True)
            assert run(routes, [call, call]) == [b"{}"] * 2
        assert all("/v3/clusters" in one.line for one in broken.heard)
        assert len(sound.heard) == 4
        nowhere = closed_port()
        with pytest.raises(UnreachableError) as error:
            run(Routes([broken.url, nowhere], checks_cluster=True), [WRITE])
        assert f"{broken.url} (" in str(error.value)
        assert f"{nowhere} (" in str(error.value)
        assert "refused" in str(error.value).lower() or "Connect call" in str(error.value)


@both
@pytest.mark.parametrize(
    "answer",
    [
        answer_of(b'{"data":[{"cluster_id":"other"}]}'),
        answer_of(b"<h1>It works</h1>"),
        answer_of(b'{"data":[]}'),
        answer_of(b'{"data":{}}'),
        answer_of(b"[]"),
        answer_of(b"", "302 Found", "Location: http://127.0.0.1:1/"),
        answer_of(b'{"error_code":50301,"message":"starting"}', "503 Service Unavailable"),
        answer_of(b"{}", "404 Not Found"),
        answer_of(b'{"data":[{"cluster_id":"c"}]}', "200 OK", "Content-Encoding: gzip"),
    ],
    ids=["other", "html", "empty", "object", "list", "redirect", "starting", "404", "gzip"],
)
def test_a_server_that_is_no_broker_of_the_cluster_gets_no_request(run: Run, answer: bytes) -> None:
    with (
        raw_server(always(answer_of()), cluster=answer) as foreign,
        raw_server(always(answer_of())) as sound,
    ):
        routes = Routes([sound.url, foreign.url], checks_cluster=True)
        run(routes, [READ])
        routes.demote(sound.url)  # now the foreign one comes first
        assert routes.urls[0] == foreign.url
        assert run(routes, [WRITE, READ]) == [b"{}"] * 2
        assert foreign.heard == []
        assert len(sound.heard) == 3


@both
def test_a_name_that_does_not_resolve_and_a_closed_port_are_passed_by(run: Run) -> None:
    with raw_server(always(answer_of())) as sound:
        names = ["http://name.invalid:1", closed_port(), f"http://{'x' * 70}.invalid:1", sound.url]
        assert run(Routes(names, checks_cluster=True), [WRITE]) == [b"{}"]
        with pytest.raises(UnreachableError) as error:
            run(Routes(names[:3]), [WRITE])
        assert error.value.outcome is Outcome.NOT_WRITTEN
        assert all(f"{name} (" in str(error.value) for name in names[:3])


def silent(server_stops: list[Any]) -> Callable[[socket.socket, Heard], bool]:
    def behave(_sock: socket.socket, _heard: Heard) -> bool:
        server_stops[0].stopping.wait(10)
        return False

    return behave


@both
def test_a_broker_that_never_answers_costs_the_time_of_a_request(run: Run) -> None:
    holder: list[Any] = []
    with raw_server(silent(holder), cluster=b"") as server:
        holder.append(server)
        began_s = time.monotonic()
        with pytest.raises(OutcomeUnknownError, match="timed out"):
            run(Routes([server.url]), [call_of("POST", timeout_s=SHORT_S)])
        routes = Routes([server.url], checks_cluster=True)
        with pytest.raises(UnreachableError, match="timed out"):
            run(routes, [call_of("POST", timeout_s=SHORT_S)])
        assert time.monotonic() - began_s < 2 * SHORT_S + 1


@both
@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="this system has none")
def test_rule_s12_a_clients_kernel_gives_up_what_it_cannot_deliver(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A closed connection sends all that it holds, to a machine that comes back minutes later."""
    told: list[int] = []

    def tune(sock: socket.socket) -> None:
        tune_socket(sock)
        told.append(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT))

    for module in (transport, async_client):
        monkeypatch.setattr(module, "tune_socket", tune)
    with raw_server(always(answer_of(b"{}"))) as server:
        run(Routes([server.url]), [WRITE, READ])
    assert told == [15_000], "one connection, with a limit"


@both
def test_a_broker_that_drips_bytes_costs_the_time_of_a_request(run: Run) -> None:
    def drip(sock: socket.socket, _heard: Heard) -> bool:
        sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
        for _ in range(100):
            sock.sendall(b"x")
            if server.stopping.wait(0.05):
                break
        return False

    with raw_server(drip) as server:
        began_s = time.monotonic()
        with pytest.raises(OutcomeUnknownError, match="timed out"):
            run(Routes([server.url]), [call_of("POST", timeout_s=SHORT_S)])
        assert time.monotonic() - began_s < SHORT_S + 1


@both
def test_a_connection_that_never_opens_is_not_sent_whatever_limit_ends_it(run: Run) -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        address = listening.getsockname()
        queued = [socket.socket() for _ in range(4)]
        try:
            for one in queued:  # fill the queue of connections, so that the next one hangs
                one.setblocking(False)
                one.connect_ex(address)
            url = f"http://127.0.0.1:{address[1]}"
            for connect_s, timeout_s in ((0.2, 5.0), (5.0, 0.2)):
                network = ClientNetwork(connect_timeout_s=connect_s)
                began_s = time.monotonic()
                with pytest.raises(UnreachableError) as error:
                    run(Routes([url]), [call_of("POST", timeout_s=timeout_s)], network)
                assert error.value.outcome is Outcome.NOT_WRITTEN
                assert time.monotonic() - began_s < 2
        finally:
            for one in queued:
                one.close()


@both
@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}",
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.0 200 OK\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\n\r\n{}",
    ],
    ids=["close", "1.0", "1.0 to the end", "1.1 to the end"],
)
def test_a_server_that_closes_after_each_answer_gets_each_request_once(
    run: Run, answer: bytes
) -> None:
    with raw_server(always(answer, keeps=False)) as server:
        assert run(Routes([server.url]), [WRITE, WRITE, NO_READ]) == [b"{}"] * 3
        assert len(server.heard) == 3


@both
@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 100 Continue\r\n\r\n" + answer_of(),
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n1;e=1\r\n}\r\n0\r\n\r\n",
    ],
    ids=["continue", "chunked"],
)
def test_an_unusual_and_correct_answer_is_read_and_its_connection_kept(
    run: Run, answer: bytes
) -> None:
    with raw_server(always(answer)) as server:
        assert run(Routes([server.url]), [WRITE, READ]) == [b"{}"] * 2
        assert server.connections == 1


@both
@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "307 Again", "308 Moved", "304 No"])
def test_a_redirect_is_an_error_and_not_followed(run: Run, status: str) -> None:
    with raw_server(always(answer_of())) as target:
        location = f"Location: {target.url}/x"
        with raw_server(always(answer_of(b"", status, location))) as server:
            for call in (READ, WRITE, DELETE):
                with pytest.raises(ProtocolError, match=status[:3]):
                    run(Routes([server.url]), [call])
        assert target.heard == []


@both
@pytest.mark.parametrize("coding", ["gzip", "br", "zstd", "deflate", "x"])
def test_an_answer_in_a_coding_that_was_not_requested_is_an_error(run: Run, coding: str) -> None:
    answer = answer_of(b"\x1f\x8b\x08", "200 OK", f"Content-Encoding: {coding}")
    with raw_server(always(answer)) as server:
        with pytest.raises(ProtocolError, match=coding):
            run(Routes([server.url]), [WRITE])
        assert len(server.heard) == 1


@both
@pytest.mark.parametrize("size_bytes", [100, 8_000_000])
def test_an_early_refusal_of_a_body_is_the_answer(run: Run, size_bytes: int) -> None:
    def refuse(sock: socket.socket, _heard: Heard) -> bool:
        body = b'{"error_code":413,"message":"too large"}'
        sock.sendall(answer_of(body, "413 Too Large", "Connection: close"))
        sock.shutdown(socket.SHUT_WR)
        while sock.recv(1 << 16):  # without this the system would discard the answer
            pass
        return False

    with raw_server(refuse, reads_body=False) as server:
        call = call_of("POST", body=b"x" * size_bytes)
        with pytest.raises(ApiError, match="too large") as refused:
            run(Routes([server.url]), [call], is_over=server.is_idle)
        assert refused.value.status == 413
        assert refused.value.outcome is Outcome.NOT_WRITTEN
        assert len(server.heard) == 1


@both
def test_cookies_are_neither_kept_nor_sent(run: Run) -> None:
    with raw_server(always(answer_of(b"{}", "200 OK", "Set-Cookie: a=b"))) as server:
        run(Routes([server.url]), [READ, READ])
        assert ["cookie" in one.headers for one in server.heard] == [False, False]


@both
def test_rule_f1_a_write_is_repeated_only_if_it_may_be(run: Run) -> None:
    with raw_server(hang_up) as broken, raw_server(always(answer_of())) as sound:
        for call in (call_of("POST", repeatable=True), call_of("DELETE", repeatable=True)):
            assert run(Routes([broken.url, sound.url]), [call]) == [b"{}"]
        assert len(broken.heard) == 2
        with pytest.raises(OutcomeUnknownError):
            run(Routes([broken.url, sound.url]), [WRITE])
        assert (len(broken.heard), len(sound.heard)) == (3, 2)


@both
def test_rule_f1_a_lost_write_stays_unknown_though_the_next_broker_refuses_connections(
    run: Run,
) -> None:
    with raw_server(hang_up) as broken:
        routes = Routes([broken.url, closed_port()])
        with pytest.raises(OutcomeUnknownError) as error:
            run(routes, [call_of("POST", repeatable=True)])
        assert error.value.outcome is Outcome.UNKNOWN


@both
def test_rule_f2_a_get_on_a_kept_connection_that_breaks_is_sent_once(run: Run) -> None:
    def first_only(sock: socket.socket, heard: Heard) -> bool:
        if heard.number == 1:
            sock.sendall(answer_of())
        return heard.number == 1

    for call in (NO_READ, DELETE, WRITE, call_of("PUT")):
        with raw_server(first_only) as server:
            with pytest.raises(OutcomeUnknownError):
                run(Routes([server.url]), [READ, call])
            assert len(server.heard) == 2


@both
@pytest.mark.parametrize("envelope", [b'{"error_code":"x"}', b"[]", b"", b"\xff", b'{"message":1}'])
def test_an_error_with_a_strange_envelope_is_an_api_error(run: Run, envelope: bytes) -> None:
    with raw_server(always(answer_of(envelope, "400 Bad"))) as server:
        with pytest.raises(ApiError) as error:
            run(Routes([server.url]), [WRITE])
        assert (error.value.status, error.value.code) == (400, 400)


# credentials and headers


def after(statuses: Sequence[str]) -> Callable[[socket.socket, Heard], bool]:
    """Return the behaviour that answers with these statuses one after the other."""

    def behave(sock: socket.socket, heard: Heard) -> bool:
        status = statuses[min(heard.number, len(statuses)) - 1]
        sock.sendall(answer_of(b"{}", status))
        return True

    return behave


@both
def test_a_function_is_asked_for_each_connection_and_after_a_401(run: Run) -> None:
    asked: list[int] = []

    def headers() -> dict[str, str]:
        asked.append(1)
        return {"X-Number": str(len(asked))}

    network = ClientNetwork(headers=headers)
    with raw_server(after(["200 OK", "200 OK", "401 No", "200 OK"])) as server:
        assert run(Routes([server.url]), [WRITE] * 3, network) == [b"{}"] * 3
        sent = [one.headers["x-number"] for one in server.heard]
        assert sent[:3] == ["1", "1", "1"]
        assert sent[3] == "2"
        asked_before = len(asked)
    closing = answer_of(b"{}", "200 OK", "Connection: close")
    with raw_server(always(closing, keeps=False)) as server:
        run(Routes([server.url]), [WRITE] * 3, network)
        sent = [one.headers["x-number"] for one in server.heard]
        assert sent == [str(asked_before + n) for n in (1, 2, 3)]


@both
def test_a_401_goes_again_once_and_only_if_headers_can_be_new(run: Run) -> None:
    with raw_server(after(["401 No"])) as server:
        for headers, count in (({"X": "a"}, 1), (lambda: {"X": "a"}, 2)):
            server.heard.clear()
            with pytest.raises(AuthenticationError) as refused:
                run(Routes([server.url]), [WRITE], ClientNetwork(headers=headers))
            assert refused.value.outcome is Outcome.NOT_WRITTEN
            assert len(server.heard) == count


def raising() -> dict[str, str]:
    raise KeyError("the-credential")


async def coroutine() -> dict[str, str]:
    return {}


BAD_FUNCTIONS: list[Callable[[], Any]] = [
    raising,
    lambda: 5,
    lambda: "text",
    lambda: [("X", "a")],
    lambda: {"X": 5},
    lambda: {5: "a"},
    lambda: {"X": "a\r\nInjected: the-credential"},
    lambda: {"X": "ü"},
    lambda: {"A B": "the-credential"},
    lambda: {"X:": "the-credential"},
    lambda: {"": "the-credential"},
    lambda: {"content-LENGTH": "5"},
    lambda: {"Transfer-Encoding": "chunked"},
    lambda: {"Expect": "100-continue"},
    coroutine,
]


@both
@pytest.mark.parametrize("number", range(len(BAD_FUNCTIONS)))
def test_a_function_that_fails_is_a_config_error_that_names_the_setting(
    run: Run, number: int
) -> None:
    with raw_server(always(answer_of())) as server:
        network = ClientNetwork(headers=BAD_FUNCTIONS[number])
        with pytest.raises(ConfigError, match="headers") as error:
            run(Routes([server.url], checks_cluster=True), [WRITE], network)
        assert "the-credential" not in str(error.value)
        assert server.heard == []


@both
def test_a_closed_client_and_a_strange_url_raise_errors_of_the_client(run: Run) -> None:
    for url in ("http://h:99999", "ftp://h:1", "http://", "http://a b:1", "http://h:1/a b"):
        with pytest.raises(QuorumlogError):
            run(Routes([url]), [WRITE])
