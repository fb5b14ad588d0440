"""Doors into `http_api`: its listeners, its connections between nodes, and its client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from http_api.peer.heartbeat_thread import HeartbeatThread

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from http_api.peer.controller_channel import HttpControllerChannel
    from raft_metadata.common.ids import NodeId


# ---------------------------------------------------------------- between nodes


def set_believed_active(channel: HttpControllerChannel, controller: NodeId) -> None:
    """Let a broker's next command go to this controller first, as after its last answer."""
    channel._active = controller


def break_judgement(monkeypatch: pytest.MonkeyPatch, broken: Callable[..., Any]) -> None:
    """Plant a bug in the thread of heartbeats, whose end must end the broker."""
    monkeypatch.setattr(HeartbeatThread, "_judge", broken)
