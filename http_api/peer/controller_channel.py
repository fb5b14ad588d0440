"""A broker's way to the controllers: commands to the active one, heartbeats and sessions to all."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar

from http_api.peer import controller_paths as paths
from http_api.peer.controller_link import ControllerLink, RefusedError
from http_api.peer.heartbeat_thread import HeartbeatThread
from raft_metadata.common.clock import Clock, SystemClock
from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome
from raft_metadata.common.ids import ClusterId, MetadataOffset, NodeId
from raft_metadata.records.commands import (
    ADMIN_COMMANDS,
    ADMIN_NAMES,
    A,
    AdminCommand,
    AlterPartition,
    AlterPartitions,
    BrokerRegistered,
    CreateTopic,
    DeleteTopic,
    FetchMetadata,
    FetchMetadataAnswer,
    HeartbeatAnswer,
    PartitionAltered,
    PartitionsAltered,
    RegisterBroker,
    TopicCreated,
    TopicDeleted,
)
from raft_metadata.records.quorum_view import ControllerState, DescribeQuorum

CONNECT_TIMEOUT_MS = 500
"""A controller behind a black hole costs a command this much before the next one is asked."""
COMMAND_TIMEOUT_MS = 5_000
"""For commands whose caller names no deadline: registration and AlterPartition."""
FETCH_MARGIN_MS = 2_000
"""A long poll that is this late isn't coming: a slow snapshot must still fit in."""
ROUND_BACKOFF_FIRST_MS = 20
ROUND_BACKOFF_MAX_MS = 250
"""Pause after every controller has been asked in vain; an election takes about half a second."""
LOOP_PROGRESS_MAX_MS = 1_200
"""How long the broker's loop may stand still: its session (see `HeartbeatThread`)."""
LAST_ATTEMPT_MS = 50
"""With less time left nobody is asked any more: the answer could not come, only the doubt."""
MIN_ATTEMPT_MS = 1_000
"""A repeatable command gives one attempt a third of its time, but not less than this."""

_SURELY_NOT_APPENDED = frozenset(
    {ErrorCode.NOT_CONTROLLER, ErrorCode.QUEUE_FULL, ErrorCode.NETWORK_EXCEPTION}
)

_log = logging.getLogger("controller.channel")
_A = TypeVar("_A")


class HttpControllerChannel:
    """`broker.ports.ControllerChannel` over the controllers' HTTP listeners.

    Owner: the broker's node; single-threaded, on its loop; call `start` first, `stop` last.
    Invariant (rule F1): a command whose attempt may have been appended is not sent again, but for
    create_topic, whose topic id lets the controller recognise the repeat.
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
        self._beats = HeartbeatThread(
            list(links().values()),
            interval_ms=heartbeat_interval_ms,
            progress_max_ms=loop_progress_max_ms,
            clock=clock or SystemClock(),
            on_result=self._heard,
        )
        self._command_timeout_ms = command_timeout_ms
        self._active = next(iter(self._links))
        self._on_answer: Callable[[HeartbeatAnswer, int], None] = lambda _answer, _sent_ms: None
        self._claims: dict[NodeId, MetadataOffset] = {}
        """Who says that it is active, and how far it has committed."""
        self._refusals: dict[NodeId, KafkaError] = {}

    @property
    def controllers(self) -> tuple[NodeId, ...]:
        """All controllers, from the config file."""
        return tuple(self._links)

    @property
    def believed_active(self) -> NodeId:
        """The controller the next command goes to first."""
        return self._active

    @property
    def heartbeat_refusals(self) -> Mapping[NodeId, KafkaError]:
        """Who refused the last heartbeat, and why (STALE_BROKER_EPOCH: register again)."""
        return self._refusals

    async def start(self) -> None:
        """Open the HTTP clients; connections are made when first needed."""
        for link in self._links.values():
            link.open()
        self._beats.start()

    async def stop(self) -> None:
        """End the sessions, close every connection."""
        await self._beats.stop()
        for link in self._links.values():
            await link.close()

    # -- commands

    async def register_broker(self, command: RegisterBroker) -> BrokerRegistered:
        """See the Protocol. With the answer the sessions of the new broker epoch are opened."""
        registered = await self._command(
            paths.REGISTER_BROKER, command, BrokerRegistered, self._command_timeout_ms
        )
        self._beats.open_sessions(command.broker_id, registered.broker_epoch)
        return registered

    async def alter_partition(self, command: AlterPartition) -> PartitionAltered:
        """One attempt to one controller (rule M3): the caller's next attempt is a new proposal."""
        return await self._once(paths.ALTER_PARTITION, command, PartitionAltered)

    async def alter_partitions(self, command: AlterPartitions) -> PartitionsAltered:
        """As `alter_partition`, for all attempts together."""
        return await self._once(paths.ALTER_PARTITIONS, command, PartitionsAltered)

    async def _once(self, path: str, command: object, answer: type[_A]) -> _A:
        target = self._active
        try:
            return await self._links[target].post(path, command, answer, self._command_timeout_ms)
        except KafkaError as error:
            if _surely_not_appended(error):
                self._look_elsewhere(target, error)
            raise

    async def create_topic(self, command: CreateTopic, timeout_ms: int) -> TopicCreated:
        """See the Protocol. Repeated after an unknown outcome: the topic id is recognised."""
        return await self._command(
            paths.CREATE_TOPIC, command, TopicCreated, timeout_ms, repeatable=True
        )

    async def delete_topic(self, command: DeleteTopic, timeout_ms: int) -> TopicDeleted:
        """See the Protocol. Never repeated after an unknown outcome: the name may live again."""
        return await self._command(paths.DELETE_TOPIC, command, TopicDeleted, timeout_ms)

    async def ask(self, command: AdminCommand[A], timeout_ms: int) -> A:
        """See the Protocol. Repeated after an unknown outcome only where its row says so."""
        name = ADMIN_NAMES[type(command)]
        row = ADMIN_COMMANDS[name]
        answer: type[A] = row.answer
        return await self._command(
            paths.PREFIX + name, command, answer, timeout_ms, repeatable=row.is_repeatable
        )

    async def _command(
        self,
        path: str,
        command: object,
        answer: type[_A],
        timeout_ms: int,
        *,
        repeatable: bool = False,
    ) -> _A:
        """Find the active controller and follow it until the deadline."""
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
                return await self._links[target].post(path, command, answer, left_ms)
            except KafkaError as error:
                unknown = error.outcome is Outcome.UNKNOWN
                uncertain = uncertain or unknown
                if not (_surely_not_appended(error) or (unknown and repeatable)):
                    if uncertain and not unknown:
                        raise _doubtful(error) from error
                    raise
                self._look_elsewhere(target, error)
                attempts += 1
                pause_s = 0.0
                if attempts % len(self._links) == 0 or error.code is ErrorCode.QUEUE_FULL:
                    pause_s = backoff_ms / 1000
                    backoff_ms = min(2 * backoff_ms, ROUND_BACKOFF_MAX_MS)
                if loop.time() + pause_s + LAST_ATTEMPT_MS / 1000 >= deadline:
                    raise _gave_up(timeout_ms, error, uncertain=uncertain) from error
            await asyncio.sleep(pause_s)

    def _look_elsewhere(self, target: NodeId, error: KafkaError) -> None:
        """Follow the hint of a controller that isn't active, else ask the next one in turn."""
        if self._active != target:
            return  # another caller, or a heartbeat, knows better meanwhile
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
        """See the Protocol. Refusals are kept in `heartbeat_refusals`."""
        self._on_answer = on_answer
        try:
            yield self._beats
        finally:
            self._beats.hush()

    def _heard(self, node_id: NodeId, result: HeartbeatAnswer | KafkaError, sent_ms: int) -> None:
        """A controller's answer, or why there is none; called on the broker's loop."""
        if isinstance(result, RefusedError):
            if node_id not in self._refusals:
                _log.warning("heartbeat refused controller=%d error=%s", node_id, result.code.name)
            self._refusals[node_id] = result
        elif isinstance(result, KafkaError):
            _log.debug("heartbeat unanswered controller=%d error=%s", node_id, result)
        if isinstance(result, KafkaError):
            self._claims.pop(node_id, None)
            return
        self._refusals.pop(node_id, None)
        self._claims.pop(node_id, None)
        if result.is_active:
            # Two may believe for a moment: the one that has committed more is the later one.
            if all(result.committed_offset >= other for other in self._claims.values()):
                self._active = node_id
            self._claims[node_id] = result.committed_offset
        self._on_answer(replace(result, controller_id=node_id), sent_ms)

    async def fetch_metadata(self, source: NodeId, request: FetchMetadata) -> FetchMetadataAnswer:
        """See the Protocol: a long poll of at most ``max_wait_ms`` and a margin."""
        return await self._links[source].post(
            paths.FETCH_METADATA,
            request,
            FetchMetadataAnswer,
            request.max_wait_ms + FETCH_MARGIN_MS,
            max_answer_bytes=paths.MAX_METADATA_ANSWER_BYTES,
        )

    async def describe_quorum(self, source: NodeId, timeout_ms: int) -> ControllerState:
        """See the Protocol."""
        return await self._links[source].post(
            paths.DESCRIBE_QUORUM, DescribeQuorum(), ControllerState, timeout_ms
        )

    def controller_url(self, controller: NodeId) -> str:
        """See the Protocol."""
        return f"http://{self._advertised[controller]}"


def _surely_not_appended(error: KafkaError) -> bool:
    return error.outcome is Outcome.NOT_WRITTEN and error.code in _SURELY_NOT_APPENDED


def _doubtful(error: KafkaError) -> KafkaError:
    """A late refusal proves nothing about an earlier attempt that may still be on its way."""
    return KafkaError(error.code, error.message, outcome=Outcome.UNKNOWN)


def _gave_up(timeout_ms: int, last: KafkaError, *, uncertain: bool) -> KafkaError:
    code = ErrorCode.OUTCOME_UNKNOWN if uncertain else ErrorCode.REQUEST_TIMED_OUT
    return KafkaError(
        code,
        f"no controller took the command within {timeout_ms} ms: {last.message}",
        outcome=Outcome.UNKNOWN if uncertain else Outcome.NOT_WRITTEN,
    )
