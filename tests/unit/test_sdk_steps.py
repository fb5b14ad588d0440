"""Both shells run the same steps: requests, pauses, errors, interrupts, and an end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from typing_extensions import override

from http_api.client.calls import Call, Request
from http_api.client.client_errors import ApiError, OutcomeUnknownError
from http_api.client.sdk.client_context import ClientContext
from http_api.client.sdk.settings import CommonConfig
from http_api.client.sdk.steps import AsyncShell, BlockingShell, Pause, Steps, steps_of
from tests.support.waiting import until


class Server:
    """A broker that answers its cluster's id, the path of any other request, and hangs on one."""

    def __init__(self) -> None:
        release = self.release = threading.Event()
        arrived = self.arrived = threading.Event()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                body = self.path.encode()
                if self.path == "/v3/clusters":
                    body = b'{"data":[{"cluster_id":"c"}]}'
                if self.path == "/hang":
                    arrived.set()
                    release.wait(20)
                self.send_response(404 if self.path == "/missing" else 200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            @override
            def log_message(self, *arguments: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"
        self.thread = threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True)
        self.thread.start()

    def stop(self) -> None:
        self.release.set()
        self.http.shutdown()
        self.http.server_close()
        self.thread.join()


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.stop()


def context_of(server: Server) -> ClientContext:
    return ClientContext("test", CommonConfig(bootstrap_servers=(server.url,)))


def get(context: ClientContext, path: str, now_s: Callable[[], float]) -> Steps[bytes]:
    request = Request(method="GET", path=path, repeatable=False)
    return steps_of(Call(request, lambda answer: answer.body), context, now_s, 0.0)


def test_steps_run_in_the_callers_thread(server: Server) -> None:
    context = context_of(server)
    shell = BlockingShell(context)
    assert shell.run(get(context, "/a", shell.now_s)) == b"/a"
    assert context.routes.cluster_id == "c"
    with pytest.raises(ApiError):
        shell.run(get(context, "/missing", shell.now_s))
    shell.stop()


async def test_steps_run_in_the_callers_task(server: Server) -> None:
    context = context_of(server)
    shell = AsyncShell(context)
    assert await shell.run(get(context, "/a", shell.now_s)) == b"/a"
    with pytest.raises(ApiError):
        await shell.run(get(context, "/missing", shell.now_s))
    await shell.stop()


def test_a_paused_thread_goes_on_when_it_is_notified(server: Server) -> None:
    shell = BlockingShell(context_of(server))
    seen: list[str] = []

    def steps() -> Steps[None]:
        while not shell.is_stopping:
            seen.append("turn")
            shell.notify()
            yield Pause(None)

    shell.start("turns", steps)
    with shell.lock:
        assert shell.wait_until(lambda: len(seen) == 1, 5)
        shell.notify()
        assert shell.wait_until(lambda: len(seen) == 2, 5)
        assert not shell.wait_until(lambda: len(seen) == 3, 0.01)
    shell.stop()
    assert threading.active_count() < 50


async def test_a_paused_task_goes_on_when_it_is_notified(server: Server) -> None:
    shell = AsyncShell(context_of(server))
    seen: list[str] = []

    def steps() -> Steps[None]:
        while not shell.is_stopping:
            seen.append("turn")
            shell.notify()
            yield Pause(None)

    shell.start("turns", steps)
    assert await shell.wait_until(lambda: len(seen) == 1, 5)
    shell.notify()
    assert await shell.wait_until(lambda: len(seen) == 2, 5)
    assert not await shell.wait_until(lambda: len(seen) == 3, 0.01)
    await shell.stop()


def hanging(context: ClientContext, shell: BlockingShell | AsyncShell, seen: list[object]) -> None:
    def steps() -> Steps[None]:
        try:
            yield from get(context, "/hang", shell.now_s)
        except OutcomeUnknownError as error:
            seen.append(error)
        seen.append((yield from get(context, "/after", shell.now_s)))

    shell.start("hanging", steps)


def test_an_interrupted_request_of_a_thread_is_lost_and_its_steps_go_on(server: Server) -> None:
    context = context_of(server)
    shell = BlockingShell(context)
    seen: list[object] = []
    hanging(context, shell, seen)
    assert server.arrived.wait(5)
    shell.interrupt("hanging")
    for thread in threading.enumerate():
        if thread.name == "quorumlog-test-hanging":
            thread.join(5)
    assert isinstance(seen[0], OutcomeUnknownError)
    assert seen[1:] == [b"/after"]
    shell.stop()


async def test_an_interrupted_request_of_a_task_is_lost_and_its_steps_go_on(
    server: Server,
) -> None:
    context = context_of(server)
    shell = AsyncShell(context)
    seen: list[object] = []
    hanging(context, shell, seen)
    assert await asyncio.to_thread(server.arrived.wait, 5)
    shell.interrupt("hanging")
    await until(lambda: len(seen) == 2)
    assert isinstance(seen[0], OutcomeUnknownError)
    assert seen[1:] == [b"/after"]
    await shell.stop()


def test_stop_ends_a_request_that_hangs(server: Server) -> None:
    context = context_of(server)
    shell = BlockingShell(context)
    seen: list[object] = []
    hanging(context, shell, seen)
    assert server.arrived.wait(5)
    shell.stop()
    assert isinstance(seen[0], OutcomeUnknownError)
