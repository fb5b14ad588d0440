"""Steps of the SDK's background work, and the two shells that run them: threads and asyncio.

The deciding code of a producer, consumer or admin is written once, as generators (`Steps`). A step
yields an `Attempt`, a request to one broker, and is sent its answer; or a `Pause`, which ends after
its time or when the shell is notified. `BlockingShell` runs each generator in a thread of its own,
or in the thread of the caller; `AsyncShell` in a task. So there is one way to do a thing, and the
two twins differ in how they wait.

A shell is a monitor: no two generators of one object run at once, and its methods hold the same
lock. The lock is free while a request is under way and during a pause. An error that steps raise
ends them; the shell logs it, keeps it as `failure`, and wakes what waits.

asyncio and aiohttp are imported by the methods of `AsyncShell` only, as they take a program that
uses threads most of its start.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from http_api.client.calls import Answer, Call, error_of
from http_api.client.client_errors import QuorumlogError
from http_api.client.routes import (
    Attempt,
    AttemptError,
    InterruptedAttemptError,
    attempts_at,
)
from raft_metadata.common.errors import Outcome

if TYPE_CHECKING:
    import asyncio

    from http_api.client.async_client import AsyncClient
    from http_api.client.sdk.client_context import ClientContext
    from http_api.client.transport import Client

T = TypeVar("T")

ATTEMPT_SHARE = 3
"""An attempt takes this part of the time that is left."""
SHORT_ATTEMPT_SHARE = 2
"""A short attempt takes this part of it, so that a second one follows."""
ATTEMPT_SHORT_S = 3.0
"""Longest time in seconds of a short attempt."""
ATTEMPT_LEAST_S = 0.05
JOIN_S = 5.0
"""Seconds that `stop` waits for the end of all threads or tasks."""


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait for this many seconds, or until the shell is notified; None: only until then.

    One of those that wait in a ``group`` can be woken alone, by `notify_one`.
    """

    seconds: float | None
    group: str = ""


@dataclass(frozen=True, slots=True)
class CallBacks:
    """Call a program's functions, each with its arguments, while the lock is free.

    An asyncio shell awaits what they return, if it can be awaited. What they raise is logged.
    """

    calls: Iterable[tuple[Callable[..., Any], tuple[Any, ...]]]


Step = Attempt | Pause | CallBacks
Steps = Generator[Step, Answer | None, T]
"""Attempts, pauses and callbacks to make one after the other, and the result that they lead to.

The shell sends the `Answer` of an attempt into the generator, or throws the `AttemptError` or
`QuorumlogError` that it ended with; after anything else it sends None.
"""


def steps_of(
    call: Call[T], context: ClientContext, now_s: Callable[[], float], retry_s: float
) -> Steps[T]:
    """Make attempts at a call for up to ``retry_s`` seconds and return its result."""
    return (yield from attempts_at(call, context.routes, now_s, retry_s=retry_s))


def changed(
    steps: Steps[T],
    change: Callable[[Step], Step],
    on_loss: Callable[[Exception], None] = lambda _: None,
) -> Steps[T]:
    """Run steps, each as ``change`` returns it; what that raises ends them.

    ``on_loss`` is told of each attempt that ended without an answer, before the steps are.
    """
    try:
        step = next(steps)
        while True:
            step = change(step)
            try:
                answer = yield step
            except (AttemptError, QuorumlogError) as error:
                on_loss(error)
                step = steps.throw(error)
            else:
                step = steps.send(answer)
    except StopIteration as end:
        result: T = end.value
        return result
    finally:
        steps.close()


def doubted(steps: Steps[T], doubt: Callable[[], None]) -> Steps[T]:
    """Run the steps of a write; ``doubt`` is called for each attempt that may have written.

    That is one without an answer, one that was cancelled, and one whose answer says so.
    """
    try:
        step = next(steps)
        while True:
            try:
                answer = yield step
            except (AttemptError, QuorumlogError) as error:
                doubt()
                step = steps.throw(error)
            except BaseException:
                doubt()
                raise
            else:
                if answer is not None and _is_unknown(answer):
                    doubt()
                step = steps.send(answer)
    except StopIteration as end:
        result: T = end.value
        return result
    finally:
        steps.close()


def _is_unknown(answer: Answer) -> bool:
    return answer.status >= 500 and error_of(answer).outcome is Outcome.UNKNOWN


def limited(
    steps: Steps[T],
    now_s: Callable[[], float],
    until_s: float,
    check: Callable[[], None] = lambda: None,
) -> Steps[T]:
    """Run steps with attempts that end by a time, and leave some of it to a next one.

    So a broker that takes requests and never answers does not use up the time of all others. What
    ``check`` raises, which is called before each attempt, ends the steps.
    """

    def limit(step: Step) -> Step:
        check()
        if not isinstance(step, Attempt):
            return step
        left_s = max(until_s - now_s() - step.wait_s, ATTEMPT_LEAST_S)
        short_s = min(left_s / SHORT_ATTEMPT_SHARE, ATTEMPT_SHORT_S)
        limit_s = max(left_s / ATTEMPT_SHARE, short_s)
        if step.request.timeout_s <= limit_s:
            return step
        return replace(step, request=replace(step.request, timeout_s=limit_s))

    return changed(steps, limit)


class BlockingShell:
    """Threads that run the steps of one SDK object, and the lock that they share.

    `lock` is held while code reads or changes the object's state; methods are called without it,
    unless they say otherwise. In a forked child `start` and `run` raise `ClosedError` and `stop`
    does nothing: threads of the parent are not there, and one of them may have held the lock.
    """

    def __init__(self, context: ClientContext) -> None:
        self._context = context
        self.lock = threading.Lock()
        self._changed = threading.Condition(self.lock)
        self._groups = {"": self._changed}
        self._threads: list[threading.Thread] = []
        self._idle_clients: list[Client] = []
        self._clients_of_threads: dict[str, Client] = {}
        self.is_stopping = False
        """True once `stop` was called: steps should come to their end."""
        self.failure: Exception | None = None
        """First error that ended the steps of a thread; None if none failed."""

    now_s = staticmethod(time.monotonic)

    def start(self, name: str, steps: Callable[[], Steps[None]]) -> None:
        """Run steps in a thread of their own, until they end; the lock may be held.

        After `stop` nothing is started.
        """
        self._context.check_process()
        if self.is_stopping:
            return
        self._threads = [one for one in self._threads if one.ident is None or one.is_alive()]
        thread = threading.Thread(
            target=self._run_thread,
            args=(name, steps),
            name=f"quorumlog-{self._context.kind}-{name}",
            daemon=True,  # at the interpreter's end `close` is called, with a limit
        )
        self._threads.append(thread)
        thread.start()

    def _run_thread(self, name: str, steps: Callable[[], Steps[None]]) -> None:
        client: Client | None = None
        try:
            with self._client() as client:
                self._clients_of_threads[name] = client
                self._drive(steps(), client)
        except Exception as error:
            self._context.log.exception("background work failed work=%s", name)
            with self.lock:
                self.failure = self.failure or error
                self.notify()
        finally:
            if self._clients_of_threads.get(name) is client:
                self._clients_of_threads.pop(name, None)

    def run(self, steps: Steps[T], name: str = "") -> T:
        """Run steps in the calling thread and return their result, or raise their error.

        With a ``name``, `interrupt` may end the request that they wait for.
        """
        self._context.check_process()
        with self._client() as client:
            if not name:
                return self._drive(steps, client)
            self._clients_of_threads[name] = client
            try:
                return self._drive(steps, client)
            finally:
                self._clients_of_threads.pop(name, None)

    def _drive(self, steps: Steps[T], client: Client) -> T:
        value: Answer | None = None
        error: Exception | None = None
        try:
            while True:
                with self.lock:
                    client.begin_attempt()  # with the lock, so that `stop` finds each attempt
                    step = steps.throw(error) if error is not None else steps.send(value)
                    value, error = None, None
                    if isinstance(step, Pause):
                        self._condition(step.group).wait(step.seconds)
                        continue
                if isinstance(step, CallBacks):
                    self._context.call_back_all(step.calls)
                    continue
                if step.wait_s:
                    time.sleep(step.wait_s)
                try:
                    value = client.send(step.url, step.request)
                except (AttemptError, QuorumlogError) as failure:
                    error = failure
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            with self.lock:
                steps.close()

    def is_own_thread(self) -> bool:
        """Return True in a thread of this shell: a program's callback calls back."""
        return threading.current_thread() in self._threads

    def wait_until(self, is_true: Callable[[], bool], timeout_s: float | None) -> bool:
        """Wait until a condition holds; False: not in time. The lock is held by the caller."""
        return self._changed.wait_for(is_true, timeout_s)

    def notify(self) -> None:
        """Wake what waits, and pauses outside of a group; the lock is held by the caller."""
        self._changed.notify_all()

    def notify_one(self, group: str) -> None:
        """Wake one of those that pause in a group; the lock is held by the caller."""
        self._condition(group).notify()

    def _condition(self, group: str) -> threading.Condition:
        found = self._groups.get(group)
        if found is None:
            found = self._groups[group] = threading.Condition(self.lock)
        return found

    def interrupt(self, name: str) -> None:
        """End the request that the steps of this name wait for, if any.

        The steps get an `InterruptedAttemptError`, which `steps_of` turns into an
        `OutcomeUnknownError`; its broker is not blamed. The lock may be held.
        """
        client = self._clients_of_threads.get(name)
        if client is not None:
            client.abort()

    def stop(self) -> None:
        """Ask all steps to end, end their requests, and wait for their threads up to `JOIN_S`."""
        if self._context.is_forked:
            return
        with self.lock:
            self.is_stopping = True
            for condition in self._groups.values():
                condition.notify_all()
            threads = [one for one in self._threads if one is not threading.current_thread()]
        for name in list(self._clients_of_threads):
            self.interrupt(name)
        until_s = self.now_s() + JOIN_S
        for thread in threads:
            thread.join(max(until_s - self.now_s(), 0.0))
        with self.lock:
            clients, self._idle_clients = self._idle_clients, []
        for client in clients:
            client.close()

    @contextlib.contextmanager
    def _client(self) -> Generator[Client, None, None]:
        """Lend a client with its connections to one thread."""
        with self.lock:
            client = self._idle_clients.pop() if self._idle_clients else None
        client = client or self._context.client()
        try:
            yield client
        finally:
            with self.lock:
                is_kept = not self.is_stopping
                if is_kept:
                    self._idle_clients.append(client)
            if not is_kept:
                client.close()


class AsyncShell:
    """Tasks that run the steps of one SDK object, on its event loop.

    Between two waits nothing else of the object runs, so there is no lock.
    """

    def __init__(self, context: ClientContext) -> None:
        self._context = context
        self._client: AsyncClient | None = None
        self._runs = 0
        """Number of `run`s under way; the last one after `stop` closes the client."""
        self._waiting: dict[asyncio.Future[None], str] = {}
        """The group of each wait, in the order in which they began."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._requests: dict[str, asyncio.Task[Answer]] = {}
        """The request that the steps of each name wait for."""
        self._interrupted: set[asyncio.Task[Answer]] = set()
        self.is_stopping = False
        """True once `stop` was called: steps should come to their end."""
        self.failure: Exception | None = None
        """First error that ended the steps of a task; None if none failed."""

    now_s = staticmethod(time.monotonic)

    def start(self, name: str, steps: Callable[[], Steps[None]]) -> None:
        """Run steps in a task of their own, until they end; after `stop` nothing is started."""
        import asyncio

        self._context.check_process()
        if self.is_stopping:
            return
        loop = asyncio.get_running_loop()
        task = loop.create_task(self._run_task(name, steps), name=f"quorumlog-{name}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run_task(self, name: str, steps: Callable[[], Steps[None]]) -> None:
        try:
            await self.run(steps(), name)
        except Exception as error:
            self._context.log.exception("background work failed work=%s", name)
            self.failure = self.failure or error
            self.notify()

    async def run(self, steps: Steps[T], name: str = "") -> T:
        """Run steps in the calling task and return their result, or raise their error.

        With a ``name``, `interrupt` may end the request that they wait for.
        """
        self._context.check_process()
        self._runs += 1
        try:
            return await self._drive(steps, await self._open_client(), name)
        finally:
            steps.close()
            self._runs -= 1
            if self.is_stopping and not self._runs:
                await self._close_client()

    async def _drive(self, steps: Steps[T], client: AsyncClient, name: str) -> T:
        value: Answer | None = None
        error: Exception | None = None
        try:
            while True:
                step = steps.throw(error) if error is not None else steps.send(value)
                value, error = None, None
                if isinstance(step, Pause):
                    await self._pause(step.seconds, step.group)
                    continue
                if isinstance(step, CallBacks):
                    for function, arguments in step.calls:
                        await self._context.call_back_async(function, *arguments)
                    continue
                try:
                    value = await self._send(client, step, name)
                except (AttemptError, QuorumlogError) as failure:
                    error = failure
        except StopIteration as end:
            result: T = end.value
            return result

    async def _send(self, client: AsyncClient, step: Attempt, name: str) -> Answer:
        import asyncio

        if not name:
            return await _send_later(client, step)
        current = asyncio.current_task()
        cancelled_before = 0 if current is None else current.cancelling()
        request = asyncio.get_running_loop().create_task(_send_later(client, step))
        self._requests[name] = request
        try:
            return await request
        except asyncio.CancelledError:
            is_cancelled = current is not None and current.cancelling() > cancelled_before
            if is_cancelled or request not in self._interrupted:
                raise
            msg = "interrupted"
            raise InterruptedAttemptError(msg) from None
        finally:
            self._interrupted.discard(request)
            if self._requests.get(name) is request:
                del self._requests[name]

    def interrupt(self, name: str) -> None:
        """End the request that the steps of this name wait for, if any.

        The steps get an `InterruptedAttemptError`, which `steps_of` turns into an
        `OutcomeUnknownError`; its broker is not blamed.
        """
        request = self._requests.get(name)
        if request is not None and not request.done():
            self._interrupted.add(request)
            request.cancel()

    def is_own_task(self) -> bool:
        """Return True in a task of this shell: a program's callback calls back."""
        import asyncio

        return asyncio.current_task() in self._tasks

    async def wait_until(self, is_true: Callable[[], bool], timeout_s: float | None) -> bool:
        """Wait until a condition holds; False: not in time."""
        until_s = None if timeout_s is None else self.now_s() + timeout_s
        while not is_true():
            left_s = None if until_s is None else until_s - self.now_s()
            if left_s is not None and left_s <= 0:
                return False
            await self._pause(left_s)
        return True

    async def _pause(self, seconds: float | None, group: str = "") -> None:
        import asyncio

        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[future] = group
        try:
            async with asyncio.timeout(seconds):
                await future
        except TimeoutError:
            pass
        finally:
            self._waiting.pop(future, None)

    def notify(self) -> None:
        """Wake what waits, and pauses outside of a group."""
        for future, group in self._waiting.items():
            if not group and not future.done():
                future.set_result(None)

    def notify_one(self, group: str) -> None:
        """Wake one of those that pause in a group."""
        for future, its_group in self._waiting.items():
            if its_group == group and not future.done():
                future.set_result(None)
                return

    async def stop(self) -> None:
        """Ask all steps to end, end their requests, wait up to `JOIN_S`, then cancel what is left.

        A `run` of another task that is under way goes on to its end.
        """
        import asyncio

        if self._context.is_forked:
            return
        self.is_stopping = True
        for future in self._waiting:
            if not future.done():
                future.set_result(None)
        for name in list(self._requests):
            self.interrupt(name)
        current = asyncio.current_task()
        tasks = [task for task in self._tasks if task is not current]
        try:
            if tasks:
                await asyncio.wait(tasks, timeout=JOIN_S)
        finally:
            left = [task for task in tasks if not task.done()]
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
            if not self._runs:
                await self._close_client()

    async def _open_client(self) -> AsyncClient:
        if self._client is None:
            client = self._context.async_client()
            await client.__aenter__()
            self._client = client
        return self._client

    async def _close_client(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.__aexit__(None, None, None)


async def _send_later(client: AsyncClient, step: Attempt) -> Answer:
    import asyncio

    if step.wait_s:
        await asyncio.sleep(step.wait_s)
    return await client.send(step.url, step.request)


def stats_steps(
    shell: Shell,
    on_stats: Callable[[dict[str, Any]], None],
    interval_ms: int,
    metrics: Callable[[], dict[str, Any]],
) -> Steps[None]:
    """Call ``on_stats`` with the metrics every ``interval_ms``, until the shell stops."""
    due_s = shell.now_s() + interval_ms / 1_000
    while not shell.is_stopping:
        left_s = due_s - shell.now_s()
        if left_s > 0:
            yield Pause(left_s)
        else:
            due_s += interval_ms / 1_000
            yield CallBacks([(on_stats, (metrics(),))])


Shell = BlockingShell | AsyncShell
"""Deciding code needs `now_s`, `is_stopping` and `notify` of either shell."""
