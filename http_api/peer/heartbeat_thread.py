"""Heartbeats and session connections to every controller, from a thread of their own (rule M7).

The controller channel starts the thread. The broker's loop sets the content of heartbeats many
times a session, which also proves that the loop makes progress; the thread sends it to each
controller and hands the answers back to the loop. A session connection lets every controller notice
at once that this broker's process has died.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import aiohttp

from http_api.peer import controller_paths as paths
from http_api.peer.controller_link import ControllerLink
from raft_metadata.common.errors import KafkaError
from raft_metadata.common.ids import BrokerEpoch, BrokerId
from raft_metadata.records.commands import BrokerHeartbeat, HeartbeatAnswer, next_page

if TYPE_CHECKING:
    from raft_metadata.common.clock import Clock
    from raft_metadata.common.ids import NodeId, TopicIdPartition


TICK_MS = 100
"""Interval at which the thread checks the loop's progress."""
BEAT_GAP_MS = 5
"""Least time between two heartbeats on a connection, those requested out of turn included."""
PAGE_GAP_MS = 50
"""Time between two pages of damaged replicas: 10,000 are named in 5 s, 300 KB/s on each link."""
JOIN_TIMEOUT_S = 5.0
"""Time for the thread to close its connections; a slower one is left to the process's end."""

BACKOFF_FIRST_MS = 20
"""Far below ``broker_disconnect_grace_ms`` (300): a cut that heals at once costs no leadership."""
BACKOFF_MAX_MS = 1_000
STABLE_AFTER_S = 2.0
"""Duration of a session after which the back-off begins anew."""
MISSED_PINGS = 3

_log = logging.getLogger("controller.heartbeats")

OnResult = Callable[["NodeId", HeartbeatAnswer | KafkaError, int], None]
"""Takes a controller, its answer, and when the heartbeat was sent (monotonic milliseconds)."""


@dataclass(frozen=True, slots=True)
class _HeartbeatContent:
    """Content of heartbeats: one object, swapped as a whole, goes from the loop to the thread."""

    life: int
    command: BrokerHeartbeat


class _RunningThread(NamedTuple):
    """The thread with its own event loop."""

    thread: threading.Thread
    loop: asyncio.AbstractEventLoop


class LoopWatch:
    """Judge of the broker's loop, which has to make progress (rule M7). On the heartbeat thread.

    It counts its own turns, so that a stop of the whole process is not held against the loop.
    """

    def __init__(self, progress_max_ms: int) -> None:
        self.is_alive = True
        self.idle_ms = 0
        """Time without progress."""
        self._progress_max_ms = progress_max_ms
        self._seen: int | None = None
        self._ran_ms: int | None = None

    def judge(self, now_ms: int, progress: int | None) -> bool:
        """Take the loop's progress, None while it need not show any; return if it is alive."""
        passed_ms = 0 if self._ran_ms is None else min(now_ms - self._ran_ms, 2 * TICK_MS)
        self._ran_ms = now_ms
        moved = progress is None or progress != self._seen
        self._seen = progress
        self.idle_ms = 0 if moved else self.idle_ms + passed_ms
        self.is_alive = self.idle_ms < self._progress_max_ms
        return self.is_alive


class HeartbeatThread:
    """Heartbeats to all controllers, as long as the broker's loop makes progress.

    Owned by the controller channel, on the broker's loop; ``start`` first, ``stop`` last.

    Two hand-over points and no lock: `set_content` swaps one reference that the thread reads, and
    `_deliver`, queued on the broker's loop, calls ``on_result`` there. Everything else belongs to
    one side: the connections to the thread, all judgement of answers to the loop. Invariant: an
    answer reaches ``on_result`` only while the life (one registration) that sent it lasts.

    ``progress_max_ms`` is how long the loop may stand still: one broker session. Stalls of some
    hundred milliseconds (a large image, a collection, a burst) cost nothing. A loop that did
    nothing for a session is as dead to its clients as a process that stopped; then the heartbeats
    end and the session connections are closed, so that the controllers fence after their disconnect
    grace, not after another session: 1.5 s after the loop's last turn by default. The thread counts
    the stall in its own ticks, so that a stop of the whole process does not count.
    """

    def __init__(
        self,
        links: Sequence[ControllerLink],
        *,
        interval_ms: int,
        progress_max_ms: int,
        clock: Clock,
        on_result: OnResult,
    ) -> None:
        """Take ``links`` of this thread's own, which it opens and closes."""
        self._links = links
        self._interval_ms = interval_ms
        self._clock = clock
        self._on_result = on_result
        self._sessions = ControllerSessions(links)
        self._running: _RunningThread | None = None
        self._failure: BaseException | None = None
        # Written by the broker's loop, read by the thread:
        self._life = 0
        self._progress = 0
        self._content: _HeartbeatContent | None = None
        self._registered: tuple[BrokerId, BrokerEpoch] | None = None
        # The thread's:
        self._watch_loop = LoopWatch(progress_max_ms)
        self._requested = [asyncio.Event() for _ in links]
        self._changed = asyncio.Event()
        self._ended = asyncio.Event()

    # -- on the broker's loop

    def start(self) -> None:
        """Start the thread; it connects once there is a heartbeat to send."""
        loop = asyncio.new_event_loop()
        thread = threading.Thread(
            target=self._main,
            args=(loop, asyncio.get_running_loop()),
            name="heartbeats",
            daemon=True,
        )
        self._running = _RunningThread(thread, loop)
        thread.start()

    async def stop(self) -> None:
        """End the sessions, close every connection, end the thread."""
        self.stop_heartbeats()
        self._call_on_thread(self._ended.set)
        if self._running is not None and self._running.thread.is_alive():
            await asyncio.to_thread(self._running.thread.join, JOIN_TIMEOUT_S)

    def open_sessions(self, broker_id: BrokerId, broker_epoch: BrokerEpoch) -> None:
        """Keep sessions of this epoch open from now on; those of an older epoch end."""
        self._registered = (broker_id, broker_epoch)
        self._call_on_thread(self._changed.set)

    def set_content(self, command: BrokerHeartbeat, *, at_once: bool) -> None:
        """Set the content of every heartbeat from now on; the call counts as progress of the loop.

        Raises RuntimeError when the thread has died: this broker must end, not be fenced in
        silence.
        """
        if self._failure is not None:
            raise RuntimeError("the heartbeat thread failed") from self._failure
        self._progress += 1
        self._content = _HeartbeatContent(self._life, command)
        if at_once:
            self._call_on_thread(self._request_heartbeats)

    def stop_heartbeats(self) -> None:
        """Stop the heartbeats until the next `set_content`; drop answers under way."""
        self._life += 1
        self._content = None

    def _call_on_thread(self, function: Callable[[], object]) -> None:
        if self._running is not None and self._running.thread.is_alive():
            with suppress(RuntimeError):  # the thread's loop has just been closed
                self._running.loop.call_soon_threadsafe(function)

    def _deliver(
        self, life: int, node_id: NodeId, result: HeartbeatAnswer | KafkaError, sent_ms: int
    ) -> None:
        if life == self._life:
            self._on_result(node_id, result, sent_ms)

    # -- on the thread

    def _main(
        self, loop: asyncio.AbstractEventLoop, broker_loop: asyncio.AbstractEventLoop
    ) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: loop) as runner:
                runner.run(self._run(broker_loop))
        except BaseException as error:  # noqa: BLE001 `set_content` raises it, which ends the process
            _log.critical("heartbeat thread failed error=%r", error, exc_info=error)
            self._failure = error

    async def _run(self, broker_loop: asyncio.AbstractEventLoop) -> None:
        for link in self._links:
            link.open()
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._watch(), name="watch")]
                for link, requested in zip(self._links, self._requested, strict=True):
                    sending = self._send_heartbeats(link, requested, broker_loop)
                    tasks.append(group.create_task(sending))
                await self._ended.wait()
                for task in tasks:
                    task.cancel()
        finally:
            await self._sessions.stop()
            for link in self._links:
                await link.close()

    def _request_heartbeats(self) -> None:
        for requested in self._requested:
            requested.set()

    async def _watch(self) -> None:
        """Check the loop's progress, and keep the sessions open as long as it lasts."""
        opened: tuple[BrokerId, BrokerEpoch] | None = None
        while True:
            self._judge(self._clock.monotonic_ms())
            wanted = self._registered if self._watch_loop.is_alive else None
            if wanted != opened:
                opened = wanted
                await self._sessions.stop()
                if wanted is not None:
                    await self._sessions.open(*wanted)
            await _pause(self._changed, TICK_MS / 1000)
            self._changed.clear()

    def _judge(self, now_ms: int) -> None:
        """Judge the loop's progress, log a change, and send heartbeats at once if it resumes."""
        watch = self._watch_loop
        was_alive = watch.is_alive
        is_alive = watch.judge(now_ms, None if self._content is None else self._progress)
        if is_alive and not was_alive:
            _log.warning("the event loop progresses again, heartbeats resume")
            self._request_heartbeats()
        elif was_alive and not is_alive:
            _log.error(
                "heartbeats end, the broker shows no progress ms=%d: its loop stands still, or it "
                "keeps silent because its disk does",
                watch.idle_ms,
            )

    async def _send_heartbeats(
        self,
        link: ControllerLink,
        requested: asyncio.Event,
        broker_loop: asyncio.AbstractEventLoop,
    ) -> None:
        """Send heartbeats to one controller, on its own time and not that of the slowest; endless.

        If more is damaged than one heartbeat names, each controller gets its own pages.
        """
        loop = asyncio.get_running_loop()
        named_up_to: TopicIdPartition | None = None
        while True:
            due = loop.time() + self._interval_ms / 1000
            requested.clear()  # a request from here on gets a heartbeat of its own
            content = self._content
            if content is not None and self._watch_loop.is_alive:
                # An answer proves the state of a time before its heartbeat was sent (rule G3).
                sent_ms = self._clock.monotonic_ms()
                page = next_page(content.command, named_up_to)
                result = await self._send(link, page)
                with suppress(RuntimeError):  # the broker's loop is closed: no use for the result
                    broker_loop.call_soon_threadsafe(
                        self._deliver, content.life, link.node_id, result, sent_ms
                    )
                if isinstance(result, HeartbeatAnswer):
                    named_up_to = page.failed_up_to
                if named_up_to is not None:
                    due = min(due, loop.time() + PAGE_GAP_MS / 1000)
                await asyncio.sleep(BEAT_GAP_MS / 1000)
            await _pause(requested, due - loop.time())

    async def _send(
        self, link: ControllerLink, beat: BrokerHeartbeat
    ) -> HeartbeatAnswer | KafkaError:
        try:
            return await link.post(
                paths.HEARTBEAT, beat, HeartbeatAnswer, self._interval_ms, urgent=True
            )
        except KafkaError as error:
            return error


async def _pause(event: asyncio.Event, seconds: float) -> None:
    """Wait until the event is set, for at most so many seconds."""
    try:
        async with asyncio.timeout(max(seconds, 0.001)):
            await event.wait()
    except TimeoutError:
        pass


class ControllerSessions:
    """Open requests, one to each controller, each reopened whenever it breaks.

    Owner: the heartbeat thread, which opens them with each registration. The end of a session is
    only an early sign (``broker_disconnect_grace_ms``): heartbeats decide.
    """

    def __init__(self, links: Sequence[ControllerLink]) -> None:
        self._links = links
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self, broker_id: BrokerId, broker_epoch: BrokerEpoch) -> None:
        """Keep sessions of this epoch open from now on; those of an older epoch end."""
        await self.stop()
        loop = asyncio.get_running_loop()
        self._tasks = {
            loop.create_task(self._keep(link, broker_id, broker_epoch)) for link in self._links
        }

    async def stop(self) -> None:
        """Close the sessions; the controllers notice at once."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = set()

    async def _keep(
        self, link: ControllerLink, broker_id: BrokerId, broker_epoch: BrokerEpoch
    ) -> None:
        loop = asyncio.get_running_loop()
        query = {"broker_id": str(broker_id), "broker_epoch": str(broker_epoch)}
        backoff_ms = BACKOFF_FIRST_MS
        while True:
            began = loop.time()
            try:
                reason = await self._hold_session(link, query)
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                reason = repr(error)
            _log.debug("session ended controller=%d reason=%s", link.node_id, reason)
            if loop.time() - began > STABLE_AFTER_S:
                backoff_ms = BACKOFF_FIRST_MS
            await asyncio.sleep(backoff_ms / 1000)
            backoff_ms = min(2 * backoff_ms, BACKOFF_MAX_MS)

    async def _hold_session(self, link: ControllerLink, query: dict[str, str]) -> str:
        """Hold one session until the controller ends it; raise when the connection breaks."""
        patience_s = MISSED_PINGS * paths.SESSION_PING_MS / 1000
        async with link.session(query, _open_body(), patience_s) as response:
            if response.status != 200:
                return f"refused status={response.status}"
            async for _ in response.content.iter_any():
                pass
        return "closed by the controller"


async def _open_body() -> AsyncIterator[bytes]:
    """Yield one line break, then stay open without end."""
    yield b"\n"
    await asyncio.get_running_loop().create_future()
