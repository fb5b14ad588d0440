"""A broker that no controller has told anything knows of no topic, and says no more than that."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import cast
from unittest.mock import MagicMock

import pytest

from broker.config import BrokerConfig
from broker.ports import ControllerChannel, PeerChannel
from broker.server import topic_requests
from broker.server.metadata_loader import MetadataLoader
from broker.server.topic_requests import TopicRequests
from raft_metadata.common.clock import SystemClock
from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome
from raft_metadata.common.ids import TopicName
from raft_metadata.image.metadata_image import MetadataImage

NAME = TopicName("orders")


async def no_controller_answers() -> None:
    raise KafkaError(ErrorCode.NOT_CONTROLLER, "nobody is active")


def topics(*, loaded: bool) -> TopicRequests:
    loader = SimpleNamespace(
        image=MetadataImage(),
        loaded=asyncio.Event(),
        newest_offset=no_controller_answers,
        wait_for=None,
    )
    if loaded:
        loader.loaded.set()
    nobody = MagicMock()
    return TopicRequests(
        cast("BrokerConfig", nobody),
        cast("MetadataLoader", loader),
        cast("ControllerChannel", nobody),
        cast("PeerChannel", nobody),
        SystemClock(),
        bytes,
    )


async def test_a_broker_that_has_just_started_calls_no_topic_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A 404 would send a reader back to the start, or make a writer create it (pause-kill)."""
    monkeypatch.setattr(topic_requests, "CATCH_UP_MS", 10)
    with pytest.raises(KafkaError) as refused:
        await topics(loaded=False).catch_up_with(NAME)
    assert refused.value.code is ErrorCode.LEADER_NOT_AVAILABLE
    assert refused.value.outcome is Outcome.NOT_WRITTEN
    await topics(loaded=True).catch_up_with(NAME)
