"""The broker process: constructs every part of a broker and runs them until a stop signal.

`run_broker` is called by ``quorumlog broker``. It opens the node's folder, then starts in order:
the channels to controllers and peers, the `BrokerServer` (which opens the logs), the peer listener
and the HTTP listener. On a stop signal the broker shuts down under the controller's control, and
the parts stop in reverse order (interfaces.md §1).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

from broker.server.broker_server import BrokerServer
from http_api.node.node_config import NodeConfig, trusted_hosts
from http_api.node.node_start import (
    OpenedNode,
    binding,
    freeze_collector,
    keep_freed_memory,
    opened_node,
    run_loop,
    run_or_end_process,
    stop_signal,
    until_stopped,
)
from http_api.peer.controller_channel import HttpControllerChannel
from http_api.peer.peer_channel import TcpPeerChannel
from http_api.peer.peer_server import PeerServer
from http_api.server.app import HttpServer, build_app
from raft_metadata.common.clock import SystemClock
from raft_metadata.common.faults import ProcessFaultHandler
from raft_metadata.common.ids import BrokerId, NodeId
from raft_metadata.common.standstills import Standstills

HTTP_SHUTDOWN_GRACE_S = 1.0
"""Time for requests in flight at a stop. Leaderships have moved by then, so only long polls are
cut off."""


def run_broker(path: Path, overrides: Sequence[str], *, insecure: bool, json_log: bool) -> int:
    """Run the broker of this configuration until a stop signal; return the exit code."""
    with opened_node(path, overrides, "broker", insecure=insecure, json_log=json_log) as node:
        keep_freed_memory()
        run_loop(_serve(node))
    return 0


async def _serve(node: OpenedNode) -> None:
    """Start logs, listeners and registration in this order (rule Q1); stop them in reverse."""
    config = node.config
    broker_id = BrokerId(config.node_id)
    faults = ProcessFaultHandler()
    async with contextlib.AsyncExitStack() as stack:
        stop_requested = await stack.enter_async_context(stop_signal())
        controllers = HttpControllerChannel(
            controllers={NodeId(i): str(each.http) for i, each in config.controllers.items()},
            cluster_id=config.cluster_id,
            dial=config.controller_dial("http"),
            heartbeat_interval_ms=config.timeouts.broker_heartbeat_interval_ms,
            loop_progress_max_ms=config.timeouts.broker_session_timeout_ms,
        )
        await controllers.start()
        stack.push_async_callback(controllers.stop)
        standstills = Standstills(SystemClock())
        peers = TcpPeerChannel(
            broker_id=broker_id,
            cluster_id=config.cluster_id,
            dial=_peer_dial(config),
            standstills=standstills,
        )
        stack.push_async_callback(peers.stop)
        server = BrokerServer(
            config.broker_config(node.meta.directory_id),
            controllers,
            peers,
            SystemClock(),
            faults,
            os.urandom,
        )
        await server.start()
        stack.push_async_callback(server.stop)
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(standstills.run(), name="standstills")
            running = group.create_task(run_or_end_process(server.run(), faults), name="broker")
            try:
                async with contextlib.AsyncExitStack() as listeners:
                    await _listen(node, server, standstills, listeners)
                    freeze_collector()
                    if not stop_requested.is_set():
                        await until_stopped(stop_requested, running)
                        await server.controlled_shutdown()
            finally:
                running.cancel()
                watching.cancel()


async def _listen(
    node: OpenedNode,
    server: BrokerServer,
    standstills: Standstills,
    listeners: contextlib.AsyncExitStack,
) -> None:
    config = node.config
    peer_server = PeerServer(
        str(config.listen_inner),
        broker_id=BrokerId(config.node_id),
        cluster_id=config.cluster_id,
        services=server.peer_services,
        standstills=standstills,
    )
    with binding(config.listen_inner, config.name):
        await peer_server.start()
    listeners.push_async_callback(peer_server.stop)
    http = HttpServer(
        build_app(
            server.apis,
            config.limits,
            f"http://{config.advertised_http}",
            server.debug_state,
            trusted_hosts(config),
            config.proxies,
            standstills,
        ),
        config.limits,
        timeouts=config.timeouts,
        access=config.access,
        insecure=node.insecure,
        shutdown_grace_s=HTTP_SHUTDOWN_GRACE_S,
    )
    with binding(config.listen_http, config.name):
        await http.start(str(config.listen_http))
    listeners.push_async_callback(http.stop)


def _peer_dial(config: NodeConfig) -> dict[BrokerId, str]:
    found = {}
    for target, address in config.dial.items():
        name, _, kind = target.partition(".")
        role, _, node_id = name.partition("-")
        if role == "broker" and kind == "peer":
            found[BrokerId(int(node_id))] = str(address)
    return found
