"""Heartbeats from a thread (rule M7): a busy loop is fenced nowhere, a hung one everywhere.

The controllers run on a loop and a thread of their own, as in life; each judges with the real
`HeartbeatTracker`, with the default times.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest

from broker.config import BrokerConfig, BrokerTimeouts
from broker.server.lifecycle import Lifecycle
from http_api.peer import heartbeat_thread
from http_api.peer.controller_channel import HttpControllerChannel
from http_api.peer.controller_server import ControllerServer
from raft_metadata.common.clock import SystemClock
from raft_metadata.common.ids import (
    BrokerEpoch,
    BrokerId,
    ClusterId,
    DirectoryId,
    IncarnationId,
    LeaderEpoch,
    MetadataOffset,
    NodeId,
    PartitionEpoch,
    PartitionId,
    TopicId,
)
from raft_metadata.controller.broker_sessions import DamageReports, HeartbeatTracker
from raft_metadata.image.metadata_image import MetadataImage
from raft_metadata.records.commands import (
    DAMAGED_REPLICAS_MAX,
    BrokerHeartbeat,
    BrokerRegistered,
    DamagedReplica,
    HeartbeatAnswer,
    RegisterBroker,
)
from raft_metadata.records.partition_set import PartitionSet
from raft_metadata.records.records import BrokerState
from tests.support.doors.http import break_judgement, set_believed_active
from tests.support.tcp_relay import TcpRelay
from tests.support.waiting import until

CLUSTER = ClusterId("A" * 22)
BROKER, EPOCH = BrokerId(1), BrokerEpoch(12)
WHO = (BROKER, EPOCH)
A, B, C = NodeId(101), NodeId(102), NodeId(103)
TIMES = BrokerTimeouts()
SESSION_S = TIMES.broker_session_timeout_ms / 1000
GRACE_S = TIMES.broker_disconnect_grace_ms / 1000
BUSY_S = 0.6
JUDGE_TICK_S = 0.05
NO_FENCE_S = 1.0
SLACK_S = 0.7


@dataclass
class JudgingController:
    """Judges sessions as the active controller does; `fenced_at` is when it would have fenced."""

    node_id: NodeId
    clock: SystemClock = field(default_factory=SystemClock)
    fenced_at: float | None = None
    beats: int = 0
    registrations: int = 0
    shutdowns_asked: int = 0
    answer: HeartbeatAnswer = HeartbeatAnswer(
        is_active=True,
        state=BrokerState.UNFENCED,
        should_shut_down=False,
        committed_offset=MetadataOffset(0),
    )

    tracker: HeartbeatTracker = field(init=False)

    def __post_init__(self) -> None:
        self.tracker = HeartbeatTracker(
            session_timeout_ms=TIMES.broker_session_timeout_ms,
            disconnect_grace_ms=TIMES.broker_disconnect_grace_ms,
            now_ms=self.clock.monotonic_ms(),
        )

    async def judge(self) -> None:
        while True:
            self.tracker.judge(self.clock.monotonic_ms())
            if self.fenced_at is None and self.tracker.has_expired(BROKER, EPOCH):
                self.fenced_at = time.monotonic()
            await asyncio.sleep(JUDGE_TICK_S)

    async def execute(self, command: object) -> Any:
        """Registrations only: this broker sends no other command."""
        assert isinstance(command, RegisterBroker), command
        self.registrations += 1
        return BrokerRegistered(broker_epoch=BrokerEpoch(EPOCH + 100 * (self.registrations - 1)))

    def __getattr__(self, name: str) -> Any:
        """Requests that a broker is not answered here: of metadata."""
        if name.startswith("_"):
            raise AttributeError(name)

        async def refuse(command: object) -> Any:
            raise NotImplementedError

        return refuse

    def heartbeat(self, command: BrokerHeartbeat) -> HeartbeatAnswer:
        self.beats += 1
        self.shutdowns_asked += command.want_shutdown
        self.tracker.record_heartbeat(
            command.broker_id, command.broker_epoch, command.metadata_offset,
            self.clock.monotonic_ms(), want_shutdown=command.want_shutdown,
        )  # fmt: skip
        self.tracker.record_damage(command)
        return self.answer

    def session_opened(self, broker_id: BrokerId, broker_epoch: BrokerEpoch) -> None:
        self.tracker.connection_opened(broker_id, broker_epoch, self.clock.monotonic_ms())

    def session_closed(self, broker_id: BrokerId, broker_epoch: BrokerEpoch) -> None:
        self.tracker.connection_closed(broker_id, broker_epoch, self.clock.monotonic_ms())

    def status(self) -> Mapping[str, object]:
        return {"leader_id": self.node_id}

    @property
    def connections(self) -> int:
        session = self.tracker.session(BROKER, EPOCH)
        return 0 if session is None else session.connections


@contextmanager
def elsewhere(controllers: list[JudgingController]) -> Iterator[dict[NodeId, str]]:
    """Serve the controllers from another thread; their addresses."""
    addresses: dict[NodeId, str] = {}
    ready, loop = threading.Event(), asyncio.new_event_loop()
    ended = asyncio.Event()

    async def serve() -> None:
        servers = []
        async with asyncio.TaskGroup() as group:
            judges = [group.create_task(one.judge()) for one in controllers]
            for one in controllers:
                server = ControllerServer(
                    "127.0.0.1:0", node_id=one.node_id, cluster_id=CLUSTER,
                    controller=cast("Any", one), voters=cast("Any", None), view=cast("Any", None),
                )  # fmt: skip
                await server.start()
                servers.append(server)
                addresses[one.node_id] = server.address
            ready.set()
            await ended.wait()
            for judge in judges:
                judge.cancel()
            for server in servers:
                await server.stop()

    def main() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(serve())

    thread = threading.Thread(target=main)
    thread.start()
    try:
        assert ready.wait(5)
        yield addresses
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join(10)
        assert not thread.is_alive()


@dataclass
class FakeLoader:
    """An image that is up to date, and knows this broker."""

    image: MetadataImage = field(default_factory=MetadataImage)
    loaded: asyncio.Event = field(default_factory=asyncio.Event)

    def note_committed(self, offset: MetadataOffset) -> None: ...


class LiveBroker:
    """A broker that does nothing but live, on this test's loop."""

    def __init__(self, folder: Path, addresses: Mapping[NodeId, str]) -> None:
        self.channel = HttpControllerChannel(controllers=addresses, cluster_id=CLUSTER)
        self.loader = FakeLoader()
        self.loader.loaded.set()
        config = BrokerConfig(
            broker_id=BROKER,
            cluster_id=CLUSTER,
            directory_id=DirectoryId("D" * 22),
            data_dir=folder,
            advertised_http="127.0.0.1:1",
            advertised_peer="127.0.0.1:2",
        )
        self.lifecycle = Lifecycle(
            config,
            IncarnationId("I" * 22),
            self.channel,
            cast("Any", self.loader),
            PartitionSet,
            SystemClock(),
        )

    async def __aenter__(self) -> LiveBroker:
        await self.channel.start()
        self.task = asyncio.get_running_loop().create_task(self.lifecycle.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        await self.channel.stop()


def judges() -> list[JudgingController]:
    return [JudgingController(node_id) for node_id in (A, B, C)]


async def test_rule_m7_a_busy_loop_is_fenced_nowhere(tmp_path: Path) -> None:
    """Twice 600 ms without a turn, one shortly after the other: heartbeats go on meanwhile."""
    controllers = judges()
    with elsewhere(controllers) as addresses:
        async with LiveBroker(tmp_path, addresses):
            await until(lambda: all(one.connections and one.beats > 1 for one in controllers))
            for _ in range(2):
                before = [one.beats for one in controllers]
                time.sleep(BUSY_S)  # noqa: ASYNC251 the fault itself
                for one, then in zip(controllers, before, strict=True):
                    assert one.beats > then, "heartbeats wait for no turn of the loop"
                await asyncio.sleep(0.06)
            await asyncio.sleep(NO_FENCE_S)
            assert [one.fenced_at for one in controllers] == [None] * 3


async def test_rule_m7_a_loop_that_hangs_is_fenced_and_comes_back(tmp_path: Path) -> None:
    """Its process lives, and so do its threads and connections: only progress tells."""
    controllers = judges()
    with elsewhere(controllers) as addresses:
        async with LiveBroker(tmp_path, addresses):
            await until(lambda: all(one.connections and one.beats > 1 for one in controllers))
            hung_at = time.monotonic()
            while any(one.fenced_at is None for one in controllers):
                time.sleep(0.02)  # noqa: ASYNC251 the loop hangs
                assert time.monotonic() - hung_at < 2 * SESSION_S + SLACK_S
            took = [(one.fenced_at or 0) - hung_at for one in controllers]
            assert min(took) > SESSION_S, took
            assert max(took) < SESSION_S + GRACE_S + SLACK_S, took
            before = [one.beats for one in controllers]
            await until(
                lambda: all(
                    one.beats > then and one.connections and not one.tracker.has_expired(*WHO)
                    for one, then in zip(controllers, before, strict=True)
                )
            )


async def test_rule_g3_a_proof_does_not_wait_for_controllers_that_hang(tmp_path: Path) -> None:
    controllers = judges()
    with elsewhere(controllers) as addresses:
        async with TcpRelay(addresses[A]) as first, TcpRelay(addresses[B]) as second:
            first.lose_answers = second.lose_requests = True
            reachable = {A: first.address, B: second.address, C: addresses[C]}
            async with LiveBroker(tmp_path, reachable) as broker:
                set_believed_active(broker.channel, C)
                await until(lambda: controllers[2].beats > 0)
                for _ in range(5):
                    broker.lifecycle.proven_ms = None
                    began = time.monotonic()
                    assert await broker.lifecycle.prove(5_000)
                    assert time.monotonic() - began < TIMES.broker_heartbeat_interval_ms / 1000 / 2


async def test_a_wish_to_shut_down_is_said_at_once(tmp_path: Path) -> None:
    controllers = judges()
    with elsewhere(controllers) as addresses:
        async with LiveBroker(tmp_path, addresses) as broker:
            await until(lambda: all(one.beats > 0 for one in controllers))
            granted = HeartbeatAnswer(
                is_active=True,
                state=BrokerState.CONTROLLED_SHUTDOWN,
                should_shut_down=True,
                committed_offset=MetadataOffset(0),
            )
            for one in controllers:
                one.answer = granted
            began = time.monotonic()
            broker.lifecycle.want_shutdown()
            async with asyncio.timeout(TIMES.broker_heartbeat_interval_ms / 1000 / 2):
                await broker.lifecycle.may_stop.wait()
            assert not broker.lifecycle.check_proof(), "a leaver proves nothing"
            await until(lambda: all(one.shutdowns_asked for one in controllers))
            assert time.monotonic() - began < SESSION_S


async def test_a_dead_heartbeat_thread_ends_the_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that went on without the thread would be fenced, and stay so, without a log line."""

    def broken(*_: object) -> None:
        raise ValueError("planted")

    controllers = judges()
    with elsewhere(controllers) as addresses:
        async with LiveBroker(tmp_path, addresses) as broker:
            await until(lambda: all(one.beats > 0 for one in controllers))
            break_judgement(monkeypatch, broken)
            with pytest.raises(RuntimeError, match="heartbeat thread"):
                async with asyncio.timeout(5):
                    await broker.task


async def test_answers_of_an_earlier_registration_are_dropped(tmp_path: Path) -> None:
    """Rule G3: what was said to another life of this broker proves nothing to this one."""
    controllers = judges()
    heard: list[HeartbeatAnswer] = []
    beat = BrokerHeartbeat(broker_id=BROKER, broker_epoch=EPOCH, metadata_offset=MetadataOffset(0))
    with elsewhere(controllers) as addresses:
        channel = HttpControllerChannel(controllers=addresses, cluster_id=CLUSTER)
        await channel.start()
        with channel.heartbeats(lambda answer, _: heard.append(answer)) as beats:
            beats.set_content(beat, at_once=True)
            while any(one.beats < 1 for one in controllers):
                time.sleep(0.005)  # noqa: ASYNC251 answers wait for this loop
            time.sleep(0.05)  # noqa: ASYNC251
        with channel.heartbeats(lambda answer, _: heard.append(answer)):
            await asyncio.sleep(0.05)
        assert heard == []
        await channel.stop()


async def test_every_controller_is_told_all_that_is_damaged_page_by_page(tmp_path: Path) -> None:
    controllers = judges()
    count = 2 * DAMAGED_REPLICAS_MAX + 50
    failed = tuple(
        DamagedReplica(
            topic_id=TopicId("t"), partition=PartitionId(index), leader_epoch=LeaderEpoch(1),
            can_lead=True, partition_epoch=PartitionEpoch(3),
        )
        for index in range(count)
    )  # fmt: skip
    beat = BrokerHeartbeat(
        broker_id=BROKER,
        broker_epoch=EPOCH,
        metadata_offset=MetadataOffset(0),
        failed=failed,
        number=1,
    )
    with elsewhere(controllers) as addresses:
        channel = HttpControllerChannel(controllers=addresses, cluster_id=CLUSTER)
        await channel.start()
        with channel.heartbeats(lambda *_: None) as beats:
            beats.set_content(beat, at_once=True)
            sessions = [one.tracker.session for one in controllers]

            def damage() -> list[DamageReports]:
                return [found.damage for each in sessions if (found := each(BROKER, EPOCH))]

            await until(
                lambda: [one.is_report_complete for one in damage()] == [True] * len(controllers)
            )
            assert [len(one.failed) for one in damage()] == [count] * len(controllers)
            beats.set_content(replace(beat, failed=failed[1:2], number=2), at_once=True)
            await until(lambda: [len(one.failed) for one in damage()] == [1] * len(controllers))
        await channel.stop()


def test_rule_m7_the_stall_of_a_whole_process_is_not_the_loops_fault() -> None:
    """The thread is a judge as well: what it slept through itself it does not count."""
    watch = heartbeat_thread.LoopWatch(progress_max_ms=1_200)
    now_ms = 0
    watch.judge(now_ms, progress=1)
    for _ in range(3):
        now_ms += 60_000
        assert watch.judge(now_ms, progress=1)
    for _ in range(12):
        now_ms += 100
        watch.judge(now_ms, progress=1)
    assert not watch.is_alive, "it ran and saw the loop stand still for a session"
    assert watch.judge(now_ms + 100, progress=2)


async def test_a_broker_that_is_unregistered_while_it_runs_registers_again(tmp_path: Path) -> None:
    controllers = [JudgingController(A)]
    with elsewhere(controllers) as addresses:
        async with LiveBroker(tmp_path, addresses) as broker:
            await until(lambda: all(one.beats > 0 for one in controllers))
            assert controllers[0].registrations == 1
            broker.loader.image = MetadataImage(next_offset=MetadataOffset(EPOCH + 1))
            await until(lambda: controllers[0].registrations == 2)
            await until(lambda: broker.lifecycle.broker_epoch == EPOCH + 100)
            # Once is enough.
            await asyncio.sleep(0.12)
            assert controllers[0].registrations == 2
            # One that is leaving goes: there is nothing left to give up.
            broker.lifecycle.want_shutdown()
            broker.loader.image = MetadataImage(next_offset=MetadataOffset(EPOCH + 101))
            async with asyncio.timeout(2):
                await broker.lifecycle.may_stop.wait()
            assert controllers[0].registrations == 2
