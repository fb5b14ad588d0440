"""The controller process: constructs every part of a controller and runs them until a stop.

`run_controller` is called by ``quorumlog controller``. It opens the node's folder, then starts the
quorum and the HTTP listener, and runs the active controller's loop. Controllers never carry
partition data, so that data traffic cannot starve an election.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from typing_extensions import override

from http_api.node.exits import NodeExit
from http_api.node.formatting import RAFT_FOLDER
from http_api.node.node_config import NodeConfig, load_node_config, trusted_hosts
from http_api.node.node_start import (
    OpenedNode,
    binding,
    freeze_collector,
    opened_node,
    run_loop,
    run_or_end_process,
    shorten_thread_switches,
    stop_signal,
    until_stopped,
)
from http_api.node.rejoin import with_remedy
from http_api.peer.controller_server import ControllerServer
from raft_metadata.common.clock import SystemClock
from raft_metadata.common.faults import FaultHandler, ProcessFaultHandler
from raft_metadata.common.ids import NodeId
from raft_metadata.controller.controller import ControllerConfig
from raft_metadata.controller.topic_rules import TopicDefaults
from raft_metadata.image.metadata_state_machine import MetadataStateMachine
from raft_metadata.quorum.active_controller import ActiveController
from raft_metadata.quorum.config import QuorumConfig
from raft_metadata.quorum.controller_view import ControllerView
from raft_metadata.quorum.metadata_quorum import MetadataQuorum
from raft_metadata.records.feature_levels import SUPPORTED_FEATURE_LEVEL

HAND_OVER_HEARTBEATS = 2
"""Heartbeat intervals to wait after a hand-over: until then every broker has had an answer from
the next active controller, and sends its requests there."""
HAND_OVER_WAIT_MS_MAX = 1_000
"""Longest wait after a hand-over, whatever the heartbeat interval is."""


def run_controller(path: Path, overrides: Sequence[str], *, insecure: bool, json_log: bool) -> int:
    """Run the controller of this configuration until a stop signal; return the exit code."""
    try:
        with opened_node(
            path, overrides, "controller", insecure=insecure, json_log=json_log
        ) as node:
            run_loop(_serve(node))
    except NodeExit as ending:
        if not ending.is_damage:
            raise
        config = load_node_config(path, os.environ, overrides, insecure=insecure)
        raise with_remedy(ending, config, path) from ending
    return 0


class NodeController(ActiveController):
    """The active controller, with the quorum's state for operators added to its answers."""

    def __init__(
        self,
        config: NodeConfig,
        machine: MetadataStateMachine,
        quorum: MetadataQuorum,
        faults: FaultHandler,
    ) -> None:
        clock = SystemClock()
        super().__init__(
            machine,
            controller_config(config),
            quorum,
            clock=clock,
            random_source=os.urandom,
            faults=faults,
        )
        self._voter = quorum
        self.view = ControllerView(
            config.cluster_id, quorum, machine, self.sessions, clock, lambda: self.is_active
        )
        """The state of this controller, for operators and checkers."""

    @override
    def _step(self) -> bool:
        self.view.note()
        return super()._step()

    @override
    def status(self) -> Mapping[str, object]:
        return {**super().status(), **self._voter.status()}


async def _serve(node: OpenedNode) -> None:
    """Start the quorum, which syncs its log (rule Q1), then the listener; stop in reverse."""
    config = node.config
    faults = ProcessFaultHandler()
    async with contextlib.AsyncExitStack() as stack:
        stop_requested = await stack.enter_async_context(stop_signal())
        machine = MetadataStateMachine()
        quorum = MetadataQuorum(quorum_config(node), machine, faults)
        controller = NodeController(config, machine, quorum, faults)
        with binding(config.listen_inner, config.name):
            await quorum.start(controller)
        stack.push_async_callback(quorum.stop)
        server = ControllerServer(
            str(config.listen_http),
            node_id=config.node_id,
            cluster_id=config.cluster_id,
            controller=controller,
            voters=quorum,
            view=controller.view,
            trusted=trusted_hosts(config),
        )
        with binding(config.listen_http, config.name):
            await server.start()
        stack.push_async_callback(server.stop)
        async with asyncio.TaskGroup() as group:
            running = group.create_task(
                run_or_end_process(controller.run(), faults), name="controller"
            )
            freeze_collector()
            shorten_thread_switches()
            try:
                await until_stopped(stop_requested, running)
                if await quorum.hand_over():
                    # The outcome of a command sent into a closed connection is never known. So
                    # commands are answered until every broker knows the next active controller.
                    beats_ms = HAND_OVER_HEARTBEATS * config.timeouts.broker_heartbeat_interval_ms
                    await asyncio.sleep(min(beats_ms, HAND_OVER_WAIT_MS_MAX) / 1000)
            finally:
                controller.stop()


def controller_config(config: NodeConfig) -> ControllerConfig:
    """Return the configuration of the deciding part."""
    return ControllerConfig(
        cluster_id=config.cluster_id,
        defaults=TopicDefaults(
            num_partitions=config.defaults.num_partitions,
            default_replication_factor=config.defaults.default_replication_factor,
            min_insync_replicas=config.defaults.min_insync_replicas,
            flush=config.defaults.flush,
            unclean_leader_election_enable=config.defaults.unclean_leader_election_enable,
            partitions_per_topic_max=config.limits.max_partitions_per_topic,
        ),
        broker_session_timeout_ms=config.timeouts.broker_session_timeout_ms,
        broker_disconnect_grace_ms=config.timeouts.broker_disconnect_grace_ms,
        # the longest time-out that a voter draws: a source silent for longer has lost its leader
        election_timeout_ms=2 * config.raft.election_timeout_ms,
    )


def quorum_config(node: OpenedNode) -> QuorumConfig:
    """Return the voter's configuration; the other voters' directories are in ``raft/meta.json``."""
    config = node.config
    return QuorumConfig(
        node_id=config.node_id,
        cluster_id=config.cluster_id,
        directory_id=node.meta.directory_id,
        raft_dir=config.data_dir / RAFT_FOLDER,
        bind=str(config.listen_inner),
        voters={NodeId(voter): str(each.raft) for voter, each in config.controllers.items()},
        dial=config.controller_dial("raft"),
        tls=config.tls,
        election_timeout_ms=config.raft.election_timeout_ms,
        heartbeat_ms=config.raft.raft_heartbeat_ms,
        leader_fallback_ms=config.raft.raft_step_down_ms,
        feature_level_max=SUPPORTED_FEATURE_LEVEL,
    )
