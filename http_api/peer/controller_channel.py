"""A broker's channel to the controllers: commands to the active one, heartbeats to all.

The broker calls `HttpControllerChannel` on its loop. A command follows the active controller from
one `ControllerLink` to the next, by the hints of inactive ones, by heartbeats' answers, or in turn.
The `HeartbeatThread`, which also holds the sessions, has links of its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from http_api.peer import controller_paths as paths
from http_api.peer.controller_link import ControllerLink, RefusedError
from http_api.peer.heartbeat_thread import HeartbeatThread
from raft_metadata.common.clock import Clock, SystemClock
from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome
from raft_metadata.common.ids import ClusterId, MetadataOffset, NodeId
from raft_metadata.records.commands import (
    COMMAND_NAMES,
    COMMANDS,
    A,
    BrokerRegistered,
    Command,
    CommandRow,
    FetchMetadata,
    FetchMetadataAnswer,
    HeartbeatAnswer,
    RegisterBroker,
    RepeatRule,
)
from raft_metadata.records.quorum_view import ControllerState, DescribeQuorum

CONNECT_TIMEOUT_MS = 500
"""Time for a connection: the cost of a controller behind a black hole before the next is tried."""
COMMAND_TIMEOUT_MS = 5_000
"""Time for commands whose caller names no deadline: registration and AlterPartition."""
FETCH_MARGIN_MS = 2_000
"""Time for a long poll's answer beyond its own wait; a slow snapshot must still fit in."""
ROUND_BACKOFF_FIRST_MS = 20
ROUND_BACKOFF_MAX_MS = 250
"""Pauses after every controller has been tried in vain; an election takes about half a second."""
LOOP_PROGRESS_MAX_MS = 1_200
"""Time for which the broker's loop may stand still: its session (see `HeartbeatThread`)."""
LAST_ATTEMPT_MS = 50
"""With less time left no attempt is made: its answer could not come, only an unknown outcome."""
MIN_ATTEMPT_MS = 1_000
"""Least time for an attempt of a repeatable command, which gets a third of the command's time."""

_SURELY_NOT_APPENDED = frozenset(
    {ErrorCode.NOT_CONTROLLER, ErrorCode.QUEUE_FULL, ErrorCode.NETWORK_EXCEPTION}
)

_log = logging.getLogger("controller.channel")


class HttpControllerChannel:
    """`broker.ports.ControllerChannel` over the controllers' HTTP listeners.

    Owner: the broker's node; single-threaded, on its loop; call `start` first, `stop` last.
    Invariant (rule F1): a command whose attempt may have been appended is sent again only if its
    row in `COMMANDS` allows it.
    """

    def __init__(
        self,
        *,
        controllers: Mapping[NodeId, str],
        cluster_id: ClusterId,
        dial: Mapping[NodeId, str] | None = None,
        heartbeat_interval_ms: int = 250,
        loop_progress_max_ms: int = LOOP_PROGRESS_MAX_MS,
        connect_timeout_ms: int = CONNECT_TIMEOUT_MS,
        command_timeout_ms: int = COMMAND_TIMEOUT_MS,
        clock: Clock | None = None,
    ) -> None:
        def links() -> dict[NodeId, ControllerLink]:
            return {
                node_id: ControllerLink(
                    node_id,
                    (dial or {}).get(node_id, advertised),
                    cluster_id=cluster_id,
                    connect_timeout_ms=connect_timeout_ms,
                )
                for node_id, advertised in controllers.items()
            }

        self._advertised = dict(controllers)
        self._links = links()
        self._heartbeats = HeartbeatThread(
            list(links().values()),
            interval_ms=heartbeat_interval_ms,
            progress_max_ms=loop_progress_max_ms,
            clock=clock or SystemClock(),
            on_result=self._take_result,
        )
        self._command_timeout_ms = command_timeout_ms
        self._active = next(iter(self._links))
        self._on_answer: Callable[[HeartbeatAnswer, int], None] = lambda _answer, _sent_ms: None
        self._active_claims: dict[NodeId, MetadataOffset] = {}
        """Controllers that report to be active, with their committed offsets."""
        self._refusals: dict[NodeId, KafkaError] = {}
        """Refusals of the last heartbeat, by controller; the first of several is logged."""

    @property
    def controllers(self) -> tuple[NodeId, ...]:
        """All controllers, from the config file."""
        return tuple(self._links)

    async def start(self) -> None:
        """Open the HTTP clients; connections are made when first needed."""
        for link in self._links.values():
            link.open()
        self._heartbeats.start()

    async def stop(self) -> None:
        """End the sessions and close every connection."""
        await self._heartbeats.stop()
        for link in self._links.values():
            await link.close()

    # -- commands

    async def execute(self, command: Command[A], timeout_ms: int | None = None) -> A:
        """Find the active controller, send it the command, and follow it until the deadline.

        The command's row says after which failures it is sent again. A registration opens the
        sessions of its new broker epoch. Without ``timeout_ms`` the channel's time-out applies.
        """
        row = COMMANDS[COMMAND_NAMES[type(command)]]
        timeout_ms = self._command_timeout_ms if timeout_ms is None else timeout_ms
        answer: A = await self._deliver(command, row, timeout_ms)
        if isinstance(command, RegisterBroker) and isinstance(answer, BrokerRegistered):
            self._heartbeats.open_sessions(command.broker_id, answer.broker_epoch)
        return answer

    async def _deliver(self, command: Command[Any], row: CommandRow, timeout_ms: int) -> Any:
        path, repeatable = paths.command_path(row.command), row.repeat is RepeatRule.ALWAYS
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_ms / 1000
        backoff_ms = ROUND_BACKOFF_FIRST_MS
        uncertain = False
        attempts = 0
        while True:
            left_ms = max(1, round((deadline - loop.time()) * 1000))
            if repeatable:
                left_ms = min(left_ms, max(MIN_ATTEMPT_MS, timeout_ms // 3))
            target = self._active
            try:
                return await self._links[target].post(path, command, row.answer, left_ms)
            except KafkaError as error:
                not_appended = _surely_not_appended(error)
                if not_appended and row.repeat is RepeatRule.NEVER:
                    self._look_elsewhere(target, error)
                    raise
                unknown = error.outcome is Outcome.UNKNOWN
                uncertain = uncertain or unknown
                if not (not_appended or (unknown and repeatable)):
                    if uncertain and not unknown:
                        # A late refusal proves nothing about an earlier attempt on its way.
                        raise KafkaError(
                            error.code, error.message, outcome=Outcome.UNKNOWN
                        ) from error
                    raise
                self._look_elsewhere(target, error)
                attempts += 1
                pause_s = 0.0
                if attempts % len(self._links) == 0 or error.code is ErrorCode.QUEUE_FULL:
                    pause_s = backoff_ms / 1000
                    backoff_ms = min(2 * backoff_ms, ROUND_BACKOFF_MAX_MS)
                if loop.time() + pause_s + LAST_ATTEMPT_MS / 1000 >= deadline:
                    raise _deadline_error(timeout_ms, error, uncertain=uncertain) from error
            await asyncio.sleep(pause_s)

    def _look_elsewhere(self, target: NodeId, error: KafkaError) -> None:
        """Choose another controller: the one that an inactive one names, else the next in turn."""
        if self._active != target:
            return  # another caller or a heartbeat has already chosen another one
        hint = error.leader_id if isinstance(error, RefusedError) else None
        if hint is not None and hint != target and hint in self._links:
            self._active = hint
            return
        if error.code is ErrorCode.QUEUE_FULL:
            return
        everyone = self.controllers
        self._active = everyone[(everyone.index(target) + 1) % len(everyone)]

    # -- heartbeats and reads

    @contextmanager
    def heartbeats(
        self, on_answer: Callable[[HeartbeatAnswer, int], None]
    ) -> Iterator[HeartbeatThread]:
        """Send heartbeats until the block is left."""
        self._on_answer = on_answer
        try:
            yield self._heartbeats
        finally:
            self._heartbeats.stop_heartbeats()

    def _take_result(
        self, node_id: NodeId, result: HeartbeatAnswer | KafkaError, sent_ms: int
    ) -> None:
        """Take a controller's answer, or the error in its place; called on the broker's loop."""
        if isinstance(result, RefusedError):
            if node_id not in self._refusals:
                _log.warning("heartbeat refused controller=%d error=%s", node_id, result.code.name)
            self._refusals[node_id] = result
        elif isinstance(result, KafkaError):
            _log.debug("heartbeat unanswered controller=%d error=%s", node_id, result)
        if isinstance(result, KafkaError):
            self._active_claims.pop(node_id, None)
            return
        self._refusals.pop(node_id, None)
        self._active_claims.pop(node_id, None)
        if result.is_active:
            # Two may report so for a moment: the one that has committed more is the later one.
            if all(result.committed_offset >= other for other in self._active_claims.values()):
                self._active = node_id
            self._active_claims[node_id] = result.committed_offset
        self._on_answer(replace(result, controller_id=node_id), sent_ms)

    async def fetch_metadata(self, source: NodeId, request: FetchMetadata) -> FetchMetadataAnswer:
        """Long-poll a controller for at most ``max_wait_ms`` and a margin."""
        return await self._links[source].post(
            paths.FETCH_METADATA,
            request,
            FetchMetadataAnswer,
            request.max_wait_ms + FETCH_MARGIN_MS,
            max_answer_bytes=paths.MAX_METADATA_ANSWER_BYTES,
        )

    async def describe_quorum(self, source: NodeId, timeout_ms: int) -> ControllerState:
        return await self._links[source].post(
            paths.DESCRIBE_QUORUM, DescribeQuorum(), ControllerState, timeout_ms
        )

    def controller_url(self, controller: NodeId) -> str:
        return f"http://{self._advertised[controller]}"


def _surely_not_appended(error: KafkaError) -> bool:
    return error.outcome is Outcome.NOT_WRITTEN and error.code in _SURELY_NOT_APPENDED


def _deadline_error(timeout_ms: int, last: KafkaError, *, uncertain: bool) -> KafkaError:
    code = ErrorCode.OUTCOME_UNKNOWN if uncertain else ErrorCode.REQUEST_TIMED_OUT
    return KafkaError(
        code,
        f"no controller took the command within {timeout_ms} ms: {last.message}",
        outcome=Outcome.UNKNOWN if uncertain else Outcome.NOT_WRITTEN,
    )
