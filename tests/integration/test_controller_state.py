"""A controller's state over HTTP: the page for people and checkers, the call for brokers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, cast

import aiohttp
import pytest

from http_api.contract.foreign_pages import TrustedHosts
from http_api.peer.controller_channel import HttpControllerChannel
from http_api.peer.controller_server import Controller, ControllerServer
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import MetadataOffset, NodeId
from raft_metadata.records.quorum_view import ControllerState, StateHash
from tests.support.fake_broker_apis import CLUSTER_ID
from tests.support.quorum_views import controller_state

NODE = NodeId(102)


@dataclass
class FakeView:
    asked: list[int | None] = field(default_factory=list)
    hashes: int = 0

    def state(self, index: int | None = None) -> ControllerState:
        self.asked.append(index)
        if index is not None and index > 69:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"entry {index} is not applied here yet")
        said = StateHash(index=index or 69, next_offset=MetadataOffset(42), value="ab" * 16)
        return controller_state(state_hash=said)

    async def image_hash(self) -> tuple[int, str]:
        self.hashes += 1
        return 42, "cd" * 16


@pytest.fixture
async def view() -> FakeView:
    return FakeView()


@pytest.fixture
async def server(view: FakeView) -> AsyncIterator[ControllerServer]:
    class NoController:
        def __getattr__(self, name: str) -> object:
            return None

    made = ControllerServer(
        "127.0.0.1:0",
        node_id=NODE,
        cluster_id=CLUSTER_ID,
        controller=cast("Controller", NoController()),
        voters=cast("Any", None),
        view=view,
        trusted=TrustedHosts(is_loopback=True),
    )
    await made.start()
    yield made
    await made.stop()


async def get(server: ControllerServer, query: str = "") -> tuple[int, Any]:
    url = f"http://{server.address}/controller/v1/state{query}"
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        return answer.status, await answer.json()


async def test_the_state_says_everything_a_checker_needs(server: ControllerServer) -> None:
    status, body = await get(server)
    assert status == 200
    assert list(body) == [
        *("node_id", "cluster_id", "directory_id", "monotonic_ms", "wall_ms", "role"),
        *("is_leader", "is_active", "leader_id", "leader_contact_age_ms", "term", "vote", "fence"),
        *("first_index", "snapshot_index", "commit_index", "applied_index", "last_index"),
        *("durable_index", "next_offset", "controller_epoch", "feature_level"),
        *("feature_level_max", "voters", "observers", "state_hash"),
    ]
    assert body["vote"] == 102
    assert body["voters"][0] == {
        "voter_id": 101,
        "directory_id": f"{101:d>22}",
        "is_connected": True,
        "match_index": 65,
        "lag": 5,
        "contact_age_ms": 40,
        "caught_up_age_ms": 100,
        "feature_level_max": 2,
    }
    assert body["state_hash"] == {"index": 69, "next_offset": 42, "value": "ab" * 16}


async def test_an_index_and_the_images_hash_are_told_when_asked_for(
    server: ControllerServer, view: FakeView
) -> None:
    _, body = await get(server, "?index=7")
    assert (body["state_hash"]["index"], view.asked, view.hashes) == (7, [7], 0)
    _, body = await get(server, "?image_hash=true")
    assert body["image_hash"] == {"next_offset": 42, "value": "cd" * 16}


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("?index=x", "index is 'x': expected the number of a Raft entry"),
        ("?index=-1", "index is '-1': expected the number of a Raft entry"),
        (f"?index={'9' * 5000}", "expected the number of a Raft entry"),
        ("?index=70", "entry 70 is not applied here yet"),
        ("?image_hash=yes", "image_hash is 'yes': expected true or false"),
    ],
)
async def test_a_bad_question_says_what_was_expected(
    server: ControllerServer, query: str, why: str
) -> None:
    status, body = await get(server, query)
    assert status == 400
    assert why in body["message"]


async def test_a_broker_reads_the_same_state_over_its_channel(server: ControllerServer) -> None:
    channel = HttpControllerChannel(controllers={NODE: server.address}, cluster_id=CLUSTER_ID)
    await channel.start()
    try:
        said = await channel.describe_quorum(NODE, 2_000)
        assert said == FakeView().state()
        assert channel.controller_url(NODE) == f"http://{server.address}"
    finally:
        await channel.stop()


@pytest.mark.parametrize("headers", [{"Origin": "https://evil.example"}, {"Host": "evil.example"}])
async def test_a_foreign_web_page_commands_no_controller(
    server: ControllerServer, headers: dict[str, str]
) -> None:
    url = f"http://{server.address}/controller/v1/accept-voter"
    async with (
        aiohttp.ClientSession() as session,
        session.post(url, data=b"{}", headers=headers) as answer,
    ):
        assert answer.status == 403
        assert "hosts in [listeners]" in (await answer.json())["message"]
