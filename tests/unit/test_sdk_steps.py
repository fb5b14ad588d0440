"""Both shells run the same steps: requests, pauses, errors, interrupts, and an end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from typing_extensions import override

from http_api.client.calls import Call, Request
from http_api.client.client_errors import (
    ApiError,
    ClosedError,
    OutcomeUnknownError,
    QuorumlogError,
)
from http_api.client.routes import InterruptedAttemptError
from http_api.client.sdk.client_context import ClientContext
from http_api.client.sdk.settings import CommonConfig
from http_api.client.sdk.steps import JOIN_S, AsyncShell, BlockingShell, Pause, Steps, steps_of
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
                with contextlib.suppress(ConnectionError):  # an interrupted client is gone
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


def test_an_interrupt_without_a_request_does_nothing(server: Server) -> None:
    context = context_of(server)
    shell = BlockingShell(context)
    seen: list[object] = []

    def steps() -> Steps[None]:
        seen.append("ready")
        shell.notify()
        yield Pause(None)
        seen.append((yield from get(context, "/a", shell.now_s)))
        seen.append((yield from get(context, "/b", shell.now_s)))
        shell.notify()

    shell.interrupt("work")
    shell.start("work", steps)
    with shell.lock:
        assert shell.wait_until(lambda: bool(seen), 5)
        for _ in range(2):
            shell.interrupt("work")
        shell.notify()
        assert shell.wait_until(lambda: len(seen) == 3, 5)
    shell.interrupt("work")
    assert seen == ["ready", b"/a", b"/b"]
    shell.stop()


def test_an_interrupt_before_the_request_is_sent_ends_it(server: Server) -> None:
    """The lock is free between the step and the sending; `stop` may come just then."""
    context = context_of(server)
    shell = BlockingShell(context)
    client = context.client()
    client.begin_attempt()
    client.abort()
    client.abort()
    began_s = time.monotonic()
    steps = get(context, "/hang", shell.now_s)
    step = next(steps)
    assert not isinstance(step, Pause)
    with pytest.raises(InterruptedAttemptError) as interrupted:
        client.send(step.url, step.request)
    with pytest.raises(OutcomeUnknownError, match="interrupted"):
        steps.throw(interrupted.value)
    assert time.monotonic() - began_s < 2
    assert not server.arrived.is_set()
    client.begin_attempt()
    assert client.send(server.url, Request(method="GET", path="/after")).body == b"/after"
    client.close()


def test_an_interrupt_while_a_thread_connects_ends_its_request() -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        queued = [socket.socket() for _ in range(4)]
        for one in queued:  # fill the queue of connections, so that the next one hangs
            one.setblocking(False)
            one.connect_ex(listening.getsockname())
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        context = ClientContext(
            "test", CommonConfig(bootstrap_servers=(url,), connect_timeout_ms=500)
        )
        shell = BlockingShell(context)
        seen: list[object] = []
        started = threading.Event()

        def steps() -> Steps[None]:
            started.set()
            try:
                yield from get(context, "/x", shell.now_s)
            except QuorumlogError as error:
                seen.append(error)

        shell.start("connecting", steps)
        assert started.wait(5)
        began_s = time.monotonic()
        shell.stop()
        assert time.monotonic() - began_s < 2
        assert len(seen) == 1
        for one in queued:
            one.close()


@pytest.mark.parametrize("count", [1, 8])
def test_stop_ends_in_its_limit_though_steps_do_not_end(
    server: Server, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("http_api.client.sdk.steps.JOIN_S", 0.2)
    shell = BlockingShell(context_of(server))
    is_over = False

    def steps() -> Steps[None]:
        while not is_over:
            yield Pause(None)

    for number in range(count):
        shell.start(f"stubborn-{number}", steps)
    began_s = time.monotonic()
    shell.stop()
    assert time.monotonic() - began_s < 0.2 * 2.5
    is_over = True
    with shell.lock:
        shell.notify()
    assert JOIN_S == 5.0


async def test_stop_cancels_tasks_that_do_not_end(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("http_api.client.sdk.steps.JOIN_S", 0.1)
    shell = AsyncShell(context_of(server))
    ended: list[str] = []

    def steps() -> Steps[None]:
        try:
            while True:
                yield Pause(None)
        finally:
            ended.append("closed")

    shell.start("stubborn", steps)
    await asyncio.sleep(0)
    await shell.stop()
    assert ended == ["closed"]


def failing() -> Steps[None]:
    yield Pause(0)
    msg = "a defect"
    raise RuntimeError(msg)


def test_an_error_of_a_thread_is_logged_kept_and_wakes_those_who_wait(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    shell = BlockingShell(context_of(server))
    shell.start("failing", failing)
    with shell.lock:
        assert shell.wait_until(lambda: shell.failure is not None, 5)
    assert isinstance(shell.failure, RuntimeError)
    assert "background work failed work=failing" in caplog.text
    with pytest.raises(RuntimeError, match="a defect"):
        shell.run(failing())
    assert not shell.lock.locked()
    shell.stop()


async def test_an_error_of_a_task_is_logged_kept_and_wakes_those_who_wait(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    shell = AsyncShell(context_of(server))
    shell.start("failing", failing)
    assert await shell.wait_until(lambda: shell.failure is not None, 5)
    assert "background work failed work=failing" in caplog.text
    with pytest.raises(RuntimeError, match="a defect"):
        await shell.run(failing())
    await shell.stop()


def test_many_threads_run_steps_at_once_and_no_wake_up_is_lost(server: Server) -> None:
    context = context_of(server)
    shell = BlockingShell(context)
    turns = 0
    errors: list[BaseException] = []

    def steps(number: int) -> Steps[None]:
        """Take a turn after the one before; the last one to notify wakes the next."""
        nonlocal turns
        for turn in range(50):
            while turns != turn * 8 + number:
                yield Pause(None)
            turns += 1
            shell.notify()
        assert (yield from get(context, f"/{number}", shell.now_s)) == b"/%d" % number

    def work(number: int) -> None:
        try:
            shell.run(steps(number))
        except (AssertionError, QuorumlogError) as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert errors == []
    assert turns == 400
    shell.stop()


async def test_a_cancelled_run_closes_its_steps_and_leaves_nothing(server: Server) -> None:
    context = context_of(server)
    shell = AsyncShell(context)
    ended: list[str] = []

    def steps(first: Pause | None) -> Steps[None]:
        try:
            if first is not None:
                yield first
            yield from get(context, "/hang", shell.now_s)
        finally:
            ended.append("closed")

    for first in (Pause(None), None):
        for name in ("", "named"):
            ended.clear()
            server.arrived.clear()
            task = asyncio.create_task(shell.run(steps(first), name))
            if first is None:
                assert await asyncio.to_thread(server.arrived.wait, 5)
                shell.interrupt("other")
            else:
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert ended == ["closed"]
    server.release.set()
    await shell.stop()
    assert {one for one in asyncio.all_tasks() if one is not asyncio.current_task()} == set()


async def test_an_interrupt_and_a_cancellation_at_once_cancel(server: Server) -> None:
    context = context_of(server)
    shell = AsyncShell(context)
    task = asyncio.create_task(shell.run(get(context, "/hang", shell.now_s), "work"))
    assert await asyncio.to_thread(server.arrived.wait, 5)
    shell.interrupt("work")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await shell.stop()


async def test_a_run_that_is_under_way_at_stop_goes_on(server: Server) -> None:
    context = context_of(server)
    shell = AsyncShell(context)
    task = asyncio.create_task(shell.run(get(context, "/hang", shell.now_s)))
    assert await asyncio.to_thread(server.arrived.wait, 5)
    await shell.stop()
    server.release.set()
    assert await task == b"/hang"
    assert await shell.run(get(context, "/late", shell.now_s)) == b"/late"


async def test_no_resource_is_left_to_the_garbage_collector(server: Server) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        context = context_of(server)
        later = AsyncShell(context)
        await later.run(get(context, "/a", later.now_s))
        await later.stop()
        await later.run(get(context, "/a", later.now_s))
        now = BlockingShell(context)
        await asyncio.to_thread(now.run, get(context, "/a", now.now_s))
        await asyncio.to_thread(now.stop)
        await asyncio.to_thread(now.run, get(context, "/a", now.now_s))
        del later, now
        gc.collect()
        await asyncio.sleep(0)
    assert [str(one.message) for one in caught if one.category is ResourceWarning] == []


def test_a_keyboard_interrupt_ends_run_and_the_shell_is_usable(server: Server) -> None:
    context = context_of(server)
    shell = BlockingShell(context)
    ended: list[str] = []

    def steps() -> Steps[None]:
        try:
            yield Pause(None)
        finally:
            ended.append("closed")

    def interrupt_soon(is_ready: Callable[[], bool]) -> threading.Thread:
        def work() -> None:
            until_s = time.monotonic() + 5
            while not is_ready() and time.monotonic() < until_s:
                time.sleep(0.005)
            os.kill(os.getpid(), signal.SIGINT)

        thread = threading.Thread(target=work)
        thread.start()
        return thread

    began_s = time.monotonic()
    thread = interrupt_soon(lambda: time.monotonic() > began_s + 0.05)
    with pytest.raises(KeyboardInterrupt):
        shell.run(steps())
    thread.join()
    assert ended == ["closed"]
    thread = interrupt_soon(server.arrived.is_set)
    with pytest.raises(KeyboardInterrupt):
        shell.run(get(context, "/hang", shell.now_s))
    thread.join()
    assert shell.run(get(context, "/a", shell.now_s)) == b"/a"
    assert not shell.lock.locked()
    shell.stop()


def script(server: Server, body: str) -> subprocess.CompletedProcess[str]:
    head = f"""
        import os, sys, threading, time
        from http_api.client.calls import Call, Request
        from http_api.client.client_errors import ClosedError
        from http_api.client.sdk.client_context import ClientContext
        from http_api.client.sdk.settings import CommonConfig
        from http_api.client.sdk.steps import BlockingShell, Pause, steps_of
        context = ClientContext("test", CommonConfig(bootstrap_servers=("{server.url}",)))
        shell = BlockingShell(context)
        def get(path):
            request = Request(method="GET", path=path)
            return steps_of(Call(request, lambda a: a.body), context, shell.now_s, 0.0)
        def hang():
            yield from get("/hang")
        def pause():
            while True:
                yield Pause(None)
        shell.run(get("/first"))
        shell.start("hang", hang)
        shell.start("pause", pause)
    """
    return subprocess.run(
        [sys.executable, "-X", "dev", "-c", textwrap.dedent(head) + textwrap.dedent(body)],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )


def test_an_interpreter_ends_with_threads_under_way_silently(server: Server) -> None:
    found = script(server, 'print("end")')
    assert (found.returncode, found.stdout, found.stderr) == (0, "end\n", "")


def test_a_forked_child_refuses_use_and_closes_without_waiting(server: Server) -> None:
    found = script(
        server,
        """
        shell.lock.acquire()  # as a thread might at that moment, which is not there in the child
        pid = os.fork()
        if pid == 0:
            for use in (lambda: shell.run(get("/x")), lambda: shell.start("x", hang),
                        context.check_open):
                try:
                    use()
                    os._exit(3)
                except ClosedError as error:
                    assert "make a new one after fork" in str(error)
            assert context.close() is False
            shell.stop()
            os._exit(7)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status))
        shell.lock.release()
        print(shell.run(get("/after")))
        """,
    )
    assert found.stdout == "7\nb'/after'\n", found.stderr


async def test_asyncio_steps_are_refused_in_a_forked_child(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell = AsyncShell(context_of(server))
    await shell.run(get(context_of(server), "/a", shell.now_s))
    with monkeypatch.context() as patched:
        patched.setattr(os, "getpid", lambda: 1)
        with pytest.raises(ClosedError, match="fork"):
            shell.start("x", failing)
        steps = failing()
        with pytest.raises(ClosedError, match="fork"):
            await shell.run(steps)
        await shell.stop()
    assert not shell.is_stopping
    await shell.stop()


def test_nothing_is_started_after_stop(server: Server) -> None:
    shell = BlockingShell(context_of(server))
    shell.stop()
    shell.start("late", failing)
    assert not any(one.name.endswith("-late") for one in threading.enumerate())
    assert shell.failure is None


def test_the_blocking_half_imports_no_asyncio() -> None:
    code = (
        "import sys, http_api.client.sdk.steps, http_api.client.sdk.client_context\n"
        "print([n for n in ('asyncio', 'aiohttp', 'http_api.client.async_client')"
        " if n in sys.modules])"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=20
    )
    assert found.stdout == "[]\n"
