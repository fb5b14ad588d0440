"""Pages of v3 lists: every list has them, and nothing that stays is repeated or left out."""

from __future__ import annotations

import base64
import json
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.coordinator.group_messages import (
    DescribeGroup,
    GroupDescription,
    GroupOffsetRow,
    GroupOffsets,
    GroupState,
    MemberDescription,
)
from broker.transactions.messages import (
    TransactionalId,
    TransactionDescription,
    TransactionState,
)
from http_api.server.pages import page_of
from raft_metadata.common.ids import (
    BrokerId,
    GroupId,
    InstanceId,
    PartitionId,
    TopicName,
    TopicPartition,
)
from tests.support.fake_broker_apis import FakeBrokerApis
from tests.support.http_door import ADVERTISED, V3, Door, open_door

TOPICS = V3 + "/topics"
GROUPS = V3 + "/consumer-groups"
FLIGHTS = TopicName("flights")
LISTS = {
    "/v3/clusters": 1,
    f"{V3}/brokers?include=all": 2,
    f"{V3}/brokers/1/partition-replicas": 5,
    f"{V3}/brokers/1/configs": 10,
    f"{V3}/brokers/-/configs": 20,
    f"{V3}/broker-configs": 10,
    TOPICS: 3,
    f"{TOPICS}/flights/configs": 10,
    f"{TOPICS}/-/configs": 30,
    f"{TOPICS}/flights/partitions": 3,
    f"{TOPICS}/flights/partitions/0/replicas": 2,
    f"{TOPICS}/-/partitions/-/reassignment": 0,
    GROUPS: 2,
    f"{GROUPS}/pilots/consumers": 2,
    f"{GROUPS}/pilots/consumers/two/assignments": 2,
    f"{GROUPS}/pilots/lags": 3,
    f"{GROUPS}/pilots/offsets": 3,
    f"{V3}/transactions": 4,
    f"{GROUPS}/pilots/transactions": 2,
}
"""Every list and the fewest rows that it has here."""


def group(name: str, *members: MemberDescription) -> GroupDescription:
    return GroupDescription(
        group=GroupId(name),
        state=GroupState.STABLE,
        assignor="uniform",
        coordinator=BrokerId(2),
        group_epoch=3,
        members=members,
    )


def member(name: str, *numbers: int) -> MemberDescription:
    return MemberDescription(
        instance=InstanceId(name),
        client_id="",
        assignment=tuple(TopicPartition(FLIGHTS, PartitionId(number)) for number in numbers),
        is_manual=False,
        member_epoch=3,
        topics=(FLIGHTS,),
    )


@pytest.fixture
def airport(door: Door) -> Door:
    """Three topics, two groups, one of them with two members."""
    apis = door.apis
    apis.add_topic("b-10", 1)
    apis.add_topic("b-9", 1)
    apis.add_topic("flights", 3)
    pilots = group("pilots", member("two", 1, 2), member("one", 0))
    apis.groups = [pilots, group("crew")]
    apis.group_answers[DescribeGroup] = pilots
    apis.group_answers[GroupOffsets] = tuple(
        GroupOffsetRow(FLIGHTS, PartitionId(number), 5, "", 7) for number in (2, 0, 1)
    )
    apis.transactions.found = [
        TransactionDescription(
            id=TransactionalId(GroupId(group_name), name),
            epoch=-1,
            last=None,
            state=TransactionState.STAGING,
            home_leader=BrokerId(2),
            home_partition=PartitionId(4),
        )
        for group_name in ("pilots", "")
        for name in ("key:b", "a")
    ]
    return door


async def walk(door: Door, path: str, size: int) -> list[Any]:
    """The rows of all pages of a size, by the URLs that the pages name."""
    found: list[Any] = []
    separator = "&" if "?" in path else "?"
    following: str | None = f"{path}{separator}page_size={size}"
    while following is not None:
        page = (await door.get(following)).json
        assert len(page["data"]) <= size
        found += page["data"]
        url = page["metadata"]["next"]
        assert url is None or (url.startswith(ADVERTISED) and len(page["data"]) == size)
        following = None if url is None else url.removeprefix(ADVERTISED)
    return found


@pytest.mark.parametrize("path", LISTS)
async def test_the_pages_of_every_list_are_the_list(airport: Door, path: str) -> None:
    whole = (await airport.get(path)).json
    assert whole["metadata"]["next"] is None
    assert len(whole["data"]) >= LISTS[path]
    for size in (1, 2, 10_000):
        assert await walk(airport, path, size) == whole["data"]


async def test_every_list_of_the_document_is_tried_here(airport: Door) -> None:
    found = (await airport.get("/openapi.json")).json["paths"]
    lists = [
        path
        for path, methods in found.items()
        if any(
            one.get("name") == "page_size" for one in methods.get("get", {}).get("parameters", ())
        )
    ]
    tried = {path.partition("?")[0].replace("/-/configs", "/1/configs") for path in LISTS}
    assert len(lists) == len(tried) - 1  # topics' configs are here under two names


async def test_the_order_is_that_of_names_and_numbers(airport: Door) -> None:
    names = [row["topic_name"] for row in await walk(airport, TOPICS, 1)]
    assert names == sorted(names)
    lags = await walk(airport, f"{GROUPS}/pilots/lags", 1)
    assert [row["partition_id"] for row in lags] == [0, 1, 2]


async def test_what_comes_and_goes_between_pages_changes_nothing_for_the_rest(
    airport: Door,
) -> None:
    first = (await airport.get(TOPICS + "?page_size=2")).json
    assert [row["topic_name"] for row in first["data"]] == ["b-10", "b-9"]
    airport.apis.add_topic("a-new", 1)
    airport.apis.add_topic("c-new", 1)
    image = airport.apis.image
    airport.apis.set_topics({key: one for key, one in image.topics.items() if one.name != "b-9"})
    second = (await airport.get(first["metadata"]["next"].removeprefix(ADVERTISED))).json
    assert [row["topic_name"] for row in second["data"]] == ["c-new", "flights"]


async def test_a_token_is_good_on_any_broker() -> None:
    apis = FakeBrokerApis()
    for name in ("a", "b", "c"):
        apis.add_topic(name)
    async with open_door(apis) as first:
        url = (await first.get(TOPICS + "?page_size=1")).json["metadata"]["next"]
    async with open_door(apis) as second:
        page = (await second.get(url.removeprefix(ADVERTISED))).json
    assert [row["topic_name"] for row in page["data"]] == ["b"]


async def test_the_next_page_keeps_the_other_parameters(airport: Door) -> None:
    page = (await airport.get(f"{V3}/brokers?include=all&page_size=1")).json
    assert "include=all&page_size=1&page_token=" in page["metadata"]["next"]


@pytest.mark.parametrize("size", ["0", "10001", "-1", "x", ""])
async def test_a_page_of_another_size_is_refused(airport: Door, size: str) -> None:
    answer = await airport.get(f"{TOPICS}?page_size={size}")
    text = f"Parameter 'page_size' is '{size}': expected an integer from 1 to 10000"
    assert (answer.status, answer.json) == (400, {"error_code": 40002, "message": text})


def encoded(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


@pytest.mark.parametrize(
    "token",
    [
        "",
        "x",
        "é",
        "!!!!",
        "A" * 5_000,
        encoded([]),
        encoded({}),
        encoded([1, "b"]),
        encoded("text"),
        encoded([None, 1]),
        encoded([1, [2]]),
        encoded([1.5, True]),
    ],
)
async def test_a_bad_token_is_refused(airport: Door, token: str) -> None:
    answer = await airport.get(f"{TOPICS}?page_token={quote(token)}")
    assert (answer.status, answer.json["error_code"]) == (400, 40002)
    assert answer.json["message"].startswith("Parameter 'page_token' is '")


async def test_a_token_of_another_list_is_refused(airport: Door) -> None:
    url = (await airport.get(TOPICS + "?page_size=1")).json["metadata"]["next"]
    token = url.rpartition("page_token=")[2]
    for path in (f"{V3}/broker-configs", f"{TOPICS}/flights/partitions", GROUPS):
        answer = await airport.get(f"{path}?page_token={token}")
        assert (answer.status, answer.json["error_code"]) == (400, 40002), path


@given(
    st.sets(st.tuples(st.text(max_size=3), st.integers(0, 3)), max_size=12),
    st.lists(st.sets(st.tuples(st.text(max_size=3), st.integers(0, 3)), max_size=5), max_size=12),
    st.integers(1, 4),
)
def test_whatever_changes_each_lasting_item_is_in_one_page(
    lasting: set[tuple[str, int]], others: list[set[tuple[str, int]]], size: int
) -> None:
    """``others`` come and go: page by page another set of them is there beside the lasting ones."""
    url = "http://b/v3/list"
    query = {"page_size": str(size)}
    seen: list[tuple[str, int]] = []
    number = 0
    while True:
        there = lasting | (others[number] if number < len(others) else set())
        page = page_of(query, url, there, lambda item: item)
        seen += page.items
        number += 1
        if page.next_url is None:
            break
        token = page.next_url.rpartition("page_token=")[2]
        query = {"page_size": str(size), "page_token": token}
    assert seen == sorted(set(seen))
    assert lasting <= set(seen)
