"""This broker's way to one leader: dials its peer listener, keeps the stream, opens sessions."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from broker.replication.follower_stream import FollowerHost, FollowerStream
from broker.replication.partition import Following
from raft_metadata.common.errors import KafkaError

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.ports import PeerChannel
    from broker.replication.replica import Replica
    from raft_metadata.common.clock import Clock
    from raft_metadata.common.ids import BrokerId

_log = logging.getLogger("broker.replication")

OPENS_PER_TURN = 128
"""Sent at once when a connection stands: thousands would hold both ends for a heartbeat."""
REFUSED_RETRY_MS = 500
"""A refused OPEN is sent again after this long, doubling, with what the image says then."""
UNANSWERED_RETRY_MS = 5_000
"""An unanswered one waits longer: its answer may be on a slow way, and would be stale (rule R4)."""


class LeaderLink:
    """One connection to one leader broker. Its task is owned by the `ReplicaManager`."""

    def __init__(
        self,
        leader: BrokerId,
        peer_of: Callable[[BrokerId], str | None],
        peers: PeerChannel,
        host: FollowerHost,
        clock: Clock,
        *,
        backoff_ms: int,
        number: Callable[[], int],
    ) -> None:
        self.leader = leader
        self.replicas: set[Replica] = set()
        self.stream: FollowerStream | None = None
        self._unanswered: dict[Replica, None] = {}
        """Without a session, as far as is known here; looked at with every tick."""
        self._peer_of = peer_of
        self._peers = peers
        self._host = host
        self._clock = clock
        self._backoff_ms = backoff_ms
        self._number = number

    async def run(self) -> None:
        """Reconnect for as long as anything is followed there."""
        while True:
            peer = self._peer_of(self.leader)
            if peer is not None and self.replicas:
                try:
                    await self._connect(peer)
                except (OSError, KafkaError, TimeoutError) as error:
                    _log.debug("leader unreachable leader=%d error=%s", self.leader, error)
            await asyncio.sleep(self._backoff_ms / 1000)

    async def _connect(self, peer: str) -> None:
        def factory() -> FollowerStream:
            return FollowerStream(self.leader, self._host)

        _, protocol = await self._peers.open_stream(self.leader, peer, factory)
        stream = protocol
        if not isinstance(stream, FollowerStream):
            msg = f"expected a FollowerStream, got {type(stream).__name__}"
            raise TypeError(msg)
        self.stream = stream
        _log.info("stream open leader=%d partitions=%d", self.leader, len(self.replicas))
        try:
            for number, replica in enumerate(list(self.replicas)):
                if replica.link is self:
                    self.open(replica)
                if number % OPENS_PER_TURN == OPENS_PER_TURN - 1:
                    await asyncio.sleep(0)
            await stream.closed
        finally:
            self.stream = None
            stream.close()
            for replica in self.replicas:
                self.forget_session(replica)
        _log.info("stream closed leader=%d", self.leader)

    def join(self, replica: Replica) -> None:
        """This replica follows that leader now: ask for a session."""
        self.replicas.add(replica)
        replica.link = self
        self.open(replica)

    def leave(self, replica: Replica) -> None:
        """It does not any more."""
        self.replicas.discard(replica)
        self._unanswered.pop(replica, None)
        replica.link = None

    def watch(self, replica: Replica) -> None:
        """Its session is over: ask again after a pause."""
        self._unanswered[replica] = None

    def open(self, replica: Replica) -> None:
        """Ask for a session for this replica, if there is a connection to ask on."""
        self.watch(replica)
        if self.stream is None:
            return
        message = replica.partition.open_message(self._number(), self._clock.monotonic_ms())
        if message is not None:
            self.stream.send_open(replica.key, message)

    def open_again(self, now_ms: int) -> None:
        """Ask again where no answer came."""
        if self.stream is None:
            return
        for replica in list(self._unanswered):
            role = replica.partition.role
            if not isinstance(role, Following) or role.session is not None:
                del self._unanswered[replica]
                continue
            pause_ms = UNANSWERED_RETRY_MS
            if role.refused:
                pause_ms = min(pause_ms, REFUSED_RETRY_MS << min(role.refusals - 1, 10))
            if now_ms - role.asked_ms >= pause_ms:
                self.open(replica)
        if not self._unanswered:
            self._unanswered = {}  # an emptied dict would keep its table

    def acknowledge(self, replica: Replica) -> None:
        """Tell the leader this replica's ends, if it has a session."""
        role = replica.partition.role
        if self.stream is not None and isinstance(role, Following) and role.session is not None:
            self.stream.queue_ack(replica)

    def forget_session(self, replica: Replica) -> None:
        """The connection is gone, and every session with it."""
        role = replica.partition.role
        if isinstance(role, Following) and role.leader == self.leader:
            role.session = None
            self.watch(replica)
