"""The controllers' HTTP listener: commands and sessions of brokers, pages for operators.

A controller's node runs one `ControllerServer`. It checks the sender, decodes a command, hands it
to the controller once, and encodes the answer or the error. A broker's session is a request that
stays open; its end is reported to the controller.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Protocol, TypeVar

import orjson
from aiohttp import web

from http_api.contract.errors import RestError
from http_api.contract.foreign_pages import ANY_HOST, TrustedHosts
from http_api.peer import controller_paths as paths
from http_api.peer.connections import bound_address, split_address
from http_api.peer.frames import body_of
from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome
from raft_metadata.common.ids import BrokerEpoch, BrokerId, ClusterId, DirectoryId, NodeId
from raft_metadata.common.stoppable_waits import StoppableWaits
from raft_metadata.records.commands import (
    COMMAND_NAMES,
    A,
    BrokerHeartbeat,
    Command,
    FetchMetadata,
    FetchMetadataAnswer,
    HeartbeatAnswer,
)
from raft_metadata.records.quorum_view import ControllerState, DescribeQuorum
from raft_metadata.records.serde import from_json, to_json

MAX_HEADER_BYTES = 8_190
"""Size of a header line; the whole head has at most `MAX_HEADERS` of them."""
MAX_HEADERS = 64
BODY_TIMEOUT_S = 10.0
"""Time for a command's body; a command with a later one is dropped."""
MAX_SESSION_BYTES = 65_536
"""Size of a session's body, which holds nothing but line breaks."""
MAX_INDEX_DIGITS = 18
"""Digits of an index that always fit into 64 bits."""
KEEPALIVE_TIMEOUT_S = 75.0
"""Longer than the channel keeps an idle connection, so that the channel closes first."""
SHUTDOWN_GRACE_S = 2.0
"""Time for commands under way to be answered when the server stops."""

_log = logging.getLogger("controller.http")
_C = TypeVar("_C")


class Controller(Protocol):
    """Port to the active controller of ``raft_metadata.quorum``, which this listener serves."""

    async def execute(self, command: Command[A]) -> A: ...
    async def fetch_metadata(self, request: FetchMetadata) -> FetchMetadataAnswer: ...
    def heartbeat(self, command: BrokerHeartbeat) -> HeartbeatAnswer: ...
    def session_opened(self, broker_id: BrokerId, broker_epoch: BrokerEpoch) -> None: ...
    def session_closed(self, broker_id: BrokerId, broker_epoch: BrokerEpoch) -> None: ...
    def status(self) -> Mapping[str, object]: ...


class StateView(Protocol):
    """The controller's own state, for operators and checkers."""

    def state(self, index: int | None = None) -> ControllerState:
        """Return the state, by default now, or at a Raft entry's index.

        INVALID_REQUEST for an index that is not applied yet.
        """
        ...

    async def image_hash(self) -> tuple[int, str]:
        """Return (next offset, hash of the whole image there)."""
        ...


class VoterDirectories(Protocol):
    """Port to the voters' directory ids, for `quorumlog controller rejoin` (rule Q4)."""

    def voter_directories(self) -> Mapping[NodeId, DirectoryId]: ...
    def accept_voter(self, voter: NodeId, directory_id: DirectoryId) -> None: ...


Session = tuple[BrokerId, BrokerEpoch]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ControllerServer:
    """HTTP listener of one controller.

    Owner: the controller's node; single-threaded, on its loop. Invariants: a command is handed to
    the controller at most once per request; a lost connection does not cancel it.
    ``session_closed`` follows ``session_opened`` once no connection of that (broker, broker epoch)
    is left, so a quick reconnect that overlaps the old one closes nothing.
    """

    def __init__(
        self,
        bind: str,
        *,
        node_id: NodeId,
        cluster_id: ClusterId,
        controller: Controller,
        voters: VoterDirectories,
        view: StateView,
        trusted: TrustedHosts = ANY_HOST,
    ) -> None:
        self._trusted = trusted
        self._host, self._port = split_address(bind)
        self._node_id = node_id
        self._cluster_id = cluster_id
        self._controller = controller
        self._voters = voters
        self._view = view
        self._runner: web.AppRunner | None = None
        self._waits = StoppableWaits()
        self._sessions: Counter[Session] = Counter()

    @property
    def address(self) -> str:
        """Address ``host:port`` that is really bound."""
        assert self._runner is not None
        return bound_address(self._runner.addresses[0])

    async def start(self) -> None:
        """Listen. OSError when the port is taken."""
        app = web.Application(
            client_max_size=paths.MAX_COMMAND_BYTES, middlewares=[self._answer_errors]
        )
        app.router.add_routes(
            [
                *(
                    self._request(paths.command_path(kind), kind, self._controller.execute)
                    for kind in COMMAND_NAMES
                ),
                self._request(paths.FETCH_METADATA, FetchMetadata, self._fetch_metadata),
                self._request(paths.HEARTBEAT, BrokerHeartbeat, self._heartbeat),
                self._request(paths.DESCRIBE_QUORUM, DescribeQuorum, self._describe_quorum),
                web.post(paths.SESSION, self._session),
                web.get(paths.STATUS, self._status),
                web.get(paths.STATE, self._state),
                web.get(paths.VOTERS, self._voter_directories),
                web.post(paths.ACCEPT_VOTER, self._accept_voter),
                web.get("/healthz", self._healthz),
                web.get("/readyz", self._readyz),
                web.get("/", self._root),
            ]
        )
        self._runner = web.AppRunner(
            app,
            access_log=None,
            shutdown_timeout=SHUTDOWN_GRACE_S,
            keepalive_timeout=KEEPALIVE_TIMEOUT_S,
            max_line_size=MAX_HEADER_BYTES,
            max_field_size=MAX_HEADER_BYTES,
            max_headers=MAX_HEADERS,
            auto_decompress=False,
            lingering_time=0.0,
        )
        await self._runner.setup()
        await web.TCPSite(self._runner, self._host, self._port).start()
        _log.info("controller listener open address=%s", self.address)

    async def stop(self) -> None:
        """Stop listening, answer waiting requests, close every connection."""
        self._waits.stop()
        if self._runner is not None:
            await self._runner.cleanup()

    # -- commands

    def _request(
        self, path: str, kind: type[_C], run: Callable[[_C], Awaitable[object]]
    ) -> web.RouteDef:
        async def handle(request: web.Request) -> web.Response:
            self._check_sender(request)
            answer = await run(from_json(await _body(request), kind))
            return _json(to_json(answer))

        return web.post(path, handle)

    def _check_sender(self, request: web.Request) -> None:
        cluster_id = request.headers.get(paths.CLUSTER_HEADER)
        if cluster_id != self._cluster_id:
            raise KafkaError(
                ErrorCode.INCONSISTENT_CLUSTER_ID,
                f"controller {self._node_id} belongs to cluster {self._cluster_id}, "
                f"the header {paths.CLUSTER_HEADER} says {cluster_id}",
            )
        addressee = request.headers.get(paths.ADDRESSEE_HEADER, str(self._node_id))
        if addressee != str(self._node_id):
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"this is controller {self._node_id}, the request is for {addressee}",
            )

    async def _heartbeat(self, command: BrokerHeartbeat) -> HeartbeatAnswer:
        return self._controller.heartbeat(command)

    async def _fetch_metadata(self, request: FetchMetadata) -> FetchMetadataAnswer:
        wait_ms = min(max(request.max_wait_ms, 0), paths.MAX_METADATA_WAIT_MS)
        try:
            # Normally the controller answers first; a stop brings the deadline forward.
            async with self._waits.wait(None):
                request = replace(request, max_wait_ms=wait_ms)
                return await self._controller.fetch_metadata(request)
        except TimeoutError:
            raise KafkaError(
                ErrorCode.METADATA_STALE_SOURCE, f"controller {self._node_id} stops; use another"
            ) from None

    # -- sessions

    async def _session(self, request: web.Request) -> web.StreamResponse:
        """Hold a broker's session open as long as the broker lives; report its end."""
        self._check_sender(request)
        session = _session_of(request)
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        response.enable_chunked_encoding()
        self._enter(session)
        try:
            await response.prepare(request)
            await self._hold(request, response)
        except (OSError, web.RequestPayloadError) as error:
            _log.debug("session broken broker=%d error=%r", session[0], error)
        finally:
            self._leave(session)
        return response

    async def _hold(self, request: web.Request, response: web.StreamResponse) -> None:
        """Read until the body ends or breaks, or this server stops; send pings meanwhile."""
        received = 0
        while not self._waits.is_stopping and received <= MAX_SESSION_BYTES:
            try:
                async with self._waits.wait(paths.SESSION_PING_MS / 1000):
                    data = await request.content.readany()
            except TimeoutError:
                await response.write(b"\n")
                continue
            if not data:
                return
            received += len(data)

    def _enter(self, session: Session) -> None:
        if self._sessions[session] == 0:
            self._controller.session_opened(*session)
            _log.info("session opened broker=%d broker_epoch=%d", *session)
        self._sessions[session] += 1

    def _leave(self, session: Session) -> None:
        self._sessions[session] -= 1
        if self._sessions[session] > 0:
            return
        del self._sessions[session]
        # When this controller stops, the end of a session says nothing about the broker.
        if not self._waits.is_stopping:
            _log.info("session closed broker=%d broker_epoch=%d", *session)
            self._controller.session_closed(*session)

    # -- pages

    async def _status(self, request: web.Request) -> web.Response:
        return _json(orjson.dumps(dict(self._controller.status()), option=orjson.OPT_NON_STR_KEYS))

    async def _describe_quorum(self, _: DescribeQuorum) -> ControllerState:
        return self._view.state()

    async def _state(self, request: web.Request) -> web.Response:
        """Return the controller's state.

        `?index=N`: with the hash after that Raft entry; `?image_hash=true`: with the image's hash,
        too.
        """
        wanted = request.query.get("index")
        if wanted is not None and not (wanted.isdecimal() and len(wanted) <= MAX_INDEX_DIGITS):
            message = f"index is '{wanted[:20]}': expected the number of a Raft entry"
            raise KafkaError(ErrorCode.INVALID_REQUEST, message)
        flag = request.query.get("image_hash", "false")
        if flag not in ("true", "false"):
            message = f"image_hash is '{flag[:20]}': expected true or false"
            raise KafkaError(ErrorCode.INVALID_REQUEST, message)
        state = self._view.state(None if wanted is None else int(wanted))
        fields = orjson.loads(to_json(state))
        if flag == "true":
            next_offset, value = await self._view.image_hash()
            fields["image_hash"] = {"next_offset": next_offset, "value": value}
        return _json(orjson.dumps(fields))

    async def _healthz(self, request: web.Request) -> web.Response:
        return web.Response(text="[+]node ok\n")

    async def _readyz(self, request: web.Request) -> web.Response:
        leader_id = self._leader_id()
        if self._waits.is_stopping or leader_id is None:
            reason = "stopping" if self._waits.is_stopping else "no active controller known"
            return web.Response(status=503, text=f"[+]node ok\n[-]quorum {reason}\n")
        return web.Response(text=f"[+]node ok\n[+]quorum ok leader={leader_id}\n")

    async def _root(self, request: web.Request) -> web.Response:
        return _json(b"{}")

    def _leader_id(self) -> int | None:
        leader_id = self._controller.status().get("leader_id")
        return leader_id if isinstance(leader_id, int) else None

    # -- a voter that lost its disk

    async def _voter_directories(self, request: web.Request) -> web.Response:
        self._check_sender(request)
        known = self._voters.voter_directories()
        return _json(orjson.dumps({str(voter): directory for voter, directory in known.items()}))

    async def _accept_voter(self, request: web.Request) -> web.Response:
        self._check_sender(request)
        try:
            fields = orjson.loads(await _body(request))
            voter, directory_id = (
                NodeId(int(fields["node_id"])),
                DirectoryId(fields["directory_id"]),
            )
            self._voters.accept_voter(voter, directory_id)
        except (ValueError, KeyError, TypeError) as error:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"no other voter: {error!r}") from error
        return _json(b"{}")

    # -- errors

    @web.middleware
    async def _answer_errors(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            headers = request.headers
            hosts, origins = headers.getall("Host", ()), headers.getall("Origin", ())
            self._trusted.check(request.method, hosts, origins)
            return await handler(request)
        except RestError as error:
            text = KafkaError(ErrorCode.INVALID_REQUEST, error.message)
            return self._refusal(text, error.status)
        except KafkaError as error:
            return self._refusal(error, 503 if error.code.retriable else 400)
        except web.HTTPException as error:
            if error.status < 400:
                raise
            refusal = KafkaError(ErrorCode.INVALID_REQUEST, error.reason)
            return self._refusal(refusal, error.status)
        except Exception as error:  # noqa: BLE001 one request fails, the listener goes on
            _log.exception("controller request failed path=%s", request.path)
            unexpected = KafkaError(
                ErrorCode.UNKNOWN_SERVER_ERROR,
                f"controller {self._node_id} met {type(error).__name__}",
                outcome=Outcome.UNKNOWN,
            )
            return self._refusal(unexpected, 500)

    def _refusal(self, error: KafkaError, status: int) -> web.Response:
        body = body_of(error)
        if error.code is ErrorCode.NOT_CONTROLLER:
            body["leader_id"] = self._leader_id()
        return _json(orjson.dumps(body), status)


async def _body(request: web.Request) -> bytes:
    """Return the whole body, limited before and while it is read; a failure hands nothing on."""
    if (request.content_length or 0) > paths.MAX_COMMAND_BYTES:
        raise web.HTTPRequestEntityTooLarge(paths.MAX_COMMAND_BYTES)
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            return await request.read()
    except (TimeoutError, OSError, web.RequestPayloadError) as error:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"body not received: {error!r}") from error


def _session_of(request: web.Request) -> Session:
    try:
        broker_id, broker_epoch = (
            int(request.query[name]) for name in ("broker_id", "broker_epoch")
        )
    except (KeyError, ValueError) as error:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, "a session names broker_id and broker_epoch"
        ) from error
    return BrokerId(broker_id), BrokerEpoch(broker_epoch)


def _json(body: bytes, status: int = 200) -> web.Response:
    return web.Response(status=status, body=body, content_type="application/json")
