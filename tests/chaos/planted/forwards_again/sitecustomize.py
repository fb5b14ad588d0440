"""Planted: a broker sends a forwarded write again after an unknown outcome (breaks rule F1)."""

import asyncio
import sys

if "broker" in sys.orig_argv:
    from http_api.peer.peer_channel import TcpPeerChannel
    from raft_metadata.common.errors import KafkaError, Outcome

    _call = TcpPeerChannel.call
    APPEND = 1

    async def call(self, broker_id, peer, kind, body, timeout_ms):
        try:
            return await _call(self, broker_id, peer, kind, body, timeout_ms)
        except KafkaError as error:
            if kind != APPEND or error.outcome is not Outcome.UNKNOWN:
                raise
        for _ in range(20):
            try:
                return await _call(self, broker_id, peer, kind, body, timeout_ms)
            except KafkaError as error:
                last = error
                await asyncio.sleep(0.1)
        raise last

    TcpPeerChannel.call = call
