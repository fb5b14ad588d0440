"""The group consumer of the SDK: what it does where answers get lost, without a socket."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar, cast

import orjson
import pytest

from http_api.client import groups
from http_api.client.async_client import AsyncClient
from http_api.client.calls import Answer, Call, Request, error_of
from http_api.client.client_errors import (
    ApiError,
    OutcomeUnknownError,
    QuorumlogError,
    UnreachableError,
)
from http_api.client.group_consumer import MAX_NAMES_TRIED, GroupConsumer
from http_api.client.routes import Exchange, Routes
from http_api.client.transport import Client
from tests.unit.test_client_transports import hang_up, server

T = TypeVar("T")
FLIGHTS_0, FLIGHTS_1 = ("flights", 0), ("flights", 1)


def records(*places: tuple[int, int]) -> Answer:
    rows = [
        {"topic": "flights", "partition": partition, "offset": offset, "key": None, "value": offset}
        for partition, offset in places
    ]
    return Answer(status=200, body=orjson.dumps(rows))


def refusal(status: int, code: int, **more: object) -> ApiError:
    body = orjson.dumps({"error_code": code, "message": "no", **more})
    return error_of(Answer(status=status, body=body))


LOST = OutcomeUnknownError("no answer")
GONE = refusal(404, 40403)
UNKNOWN = refusal(503, 50302, retriable=True, outcome="unknown")
NOT_OURS = refusal(409, 40903)


class FakeClient:
    """Answers what the script says for a path's end, 204 for all else; notes every request."""

    def __init__(self) -> None:
        self.script: list[tuple[str, Answer | QuorumlogError]] = []
        self.requests: list[Request] = []

    def on(self, end: str, *answers: Answer | QuorumlogError) -> None:
        self.script += [(end, answer) for answer in answers]

    def run(self, call: Call[T], *, retry_s: float | None = None) -> T:
        self.requests.append(call.request)
        path = call.request.path.partition("?")[0]
        for index, (end, answer) in enumerate(self.script):
            if path.endswith(end):
                del self.script[index]
                if isinstance(answer, QuorumlogError):
                    raise answer
                return call.parse(answer)
        return call.parse(Answer(status=204))

    @property
    def said(self) -> list[tuple[str, str]]:
        """(method, what), instances by the order they were made in: ``i1``, ``i2``."""
        names: list[str] = []
        told = []
        for request in self.requests:
            parts = request.path.partition("?")[0].split("/")[3:]
            if not parts:
                names.append(orjson.loads(request.body or b"")["name"])
                told.append((request.method, f"i{len(names)}"))
                continue
            told.append((request.method, "/".join([f"i{names.index(parts[1]) + 1}", *parts[2:]])))
        return told

    def body(self, index: int) -> Any:
        return orjson.loads(self.requests[index].body or b"null")


@pytest.fixture
def client() -> FakeClient:
    return FakeClient()


def consumer(client: FakeClient) -> GroupConsumer:
    made = GroupConsumer(cast("Client", client), "pilots")
    made.subscribe(["flights"])
    return made


def test_a_consumer_commits_received_records_as_the_next_to_read(client: FakeClient) -> None:
    reading = consumer(client)
    assert client.body(0)["enable.auto.commit"] is False  # and so offsets are stored as given
    client.on("records", records((0, 5), (0, 6), (1, 2)))
    assert len(reading.poll()) == 3
    assert reading.commit() == frozenset()
    rows = [
        {"topic": "flights", "partition": 0, "offset": 7},
        {"topic": "flights", "partition": 1, "offset": 3},
    ]
    assert client.body(-1) == {"offsets": rows}
    count = len(client.requests)
    assert reading.commit() == frozenset()
    assert len(client.requests) == count  # nothing new: nothing is said


@pytest.mark.parametrize("trouble", [LOST, UNKNOWN, GONE])
def test_rule_f2_after_a_lost_read_a_new_instance_goes_on_from_the_last_commit(
    client: FakeClient, trouble: QuorumlogError
) -> None:
    reading = consumer(client)
    client.on("records", records((0, 5)), trouble)
    reading.poll()
    assert reading.poll() == []
    assert client.said[-3:] == [
        ("POST", "i2"),
        ("POST", "i2/subscription"),
        ("DELETE", "i1"),  # last: while the group has a reader, it remembers where it started
    ]
    assert reading.positions == {}
    assert reading.commit() == frozenset()  # nothing of before is committed by the new one
    assert ("POST", "i2/offsets") not in client.said


def test_rule_f2_a_consumer_reads_no_further_until_the_new_instance_is_there(
    client: FakeClient,
) -> None:
    reading = consumer(client)
    client.on("records", LOST)
    client.on("subscription", UnreachableError("down"))
    with pytest.raises(UnreachableError):
        reading.poll()
    assert client.said[-1] == ("DELETE", "i2")  # not left behind
    client.on("records", records())
    assert reading.poll() == []
    assert client.said[-4:] == [
        *(("POST", "i3"), ("POST", "i3/subscription"), ("DELETE", "i1"), ("GET", "i3/records")),
    ]


def test_a_refusal_of_a_read_is_the_callers(client: FakeClient) -> None:
    reading = consumer(client)
    client.on("records", refusal(422, 42203))
    with pytest.raises(ApiError):
        reading.poll()
    client.on("records", records((0, 1)))
    assert len(reading.poll()) == 1


def test_a_partition_of_another_member_is_refused_and_the_others_are_committed(
    client: FakeClient,
) -> None:
    reading = consumer(client)
    client.on("records", records((0, 5), (1, 2)))
    reading.poll()
    client.on("offsets", NOT_OURS, NOT_OURS, Answer(status=204))
    assert reading.commit() == {FLIGHTS_0}
    assert client.body(-1)["offsets"] == [{"topic": "flights", "partition": 1, "offset": 3}]
    assert reading.positions == {FLIGHTS_1: 3}
    count = len(client.requests)
    assert reading.commit() == frozenset()
    assert len(client.requests) == count


def test_an_expired_instance_commits_nothing(client: FakeClient) -> None:
    reading = consumer(client)
    client.on("records", records((0, 5)))
    reading.poll()
    client.on("offsets", GONE)
    assert reading.commit() == {FLIGHTS_0}
    client.on("records", records())
    reading.poll()
    assert ("POST", "i2") in client.said


def test_an_assignment_by_hand_keeps_its_positions(client: FakeClient) -> None:
    reading = GroupConsumer(cast("Client", client), "pilots")
    reading.assign([FLIGHTS_0, FLIGHTS_1])
    reading.seek({FLIGHTS_0: 10, FLIGHTS_1: 20})
    client.on("records", records((0, 10), (0, 11)), LOST)
    reading.poll()
    assert reading.poll() == []
    assert client.said[-4:] == [
        *(("POST", "i2"), ("POST", "i2/assignments"), ("POST", "i2/positions"), ("DELETE", "i1")),
    ]
    assert client.body(-2)["offsets"] == [
        {"topic": "flights", "partition": 0, "offset": 12},
        {"topic": "flights", "partition": 1, "offset": 20},
    ]


def test_a_create_whose_answer_is_lost_is_tried_under_another_name(client: FakeClient) -> None:
    client.on("consumers/pilots", LOST, UNKNOWN)
    reading = consumer(client)
    assert client.said[:5] == [
        *(("POST", "i1"), ("DELETE", "i1"), ("POST", "i2"), ("DELETE", "i2"), ("POST", "i3")),
    ]
    assert reading.instance is not None
    client.on("consumers/pilots", *[LOST] * MAX_NAMES_TRIED)
    with pytest.raises(OutcomeUnknownError):
        consumer(client)


def test_closing_leaves_the_group(client: FakeClient) -> None:
    with consumer(client) as reading:
        pass
    assert client.said[-1] == ("DELETE", "i1")
    reading.close()
    assert client.said.count(("DELETE", "i1")) == 1


# what goes again and what does not


POLL = groups.poll("pilots", "one", wait_ms=0)
COMMIT = groups.commit("pilots", "one", {FLIGHTS_0: 1})


def test_rule_f2_a_read_of_a_group_is_never_sent_again() -> None:
    exchange = Exchange(Routes(["http://a:1", "http://b:1"]), POLL.request, 0, 10)
    with pytest.raises(OutcomeUnknownError):
        exchange.report_lost("broken", 0)


def test_a_call_that_may_be_repeated_goes_to_the_next_broker() -> None:
    routes = Routes(["http://a:1", "http://b:1"])
    for call in (COMMIT, groups.subscribe("pilots", "one", ["t"])):
        exchange = Exchange(routes, call.request, 0, 10)
        first = exchange.url
        assert exchange.report_lost("broken", 0) == 0
        assert exchange.url != first
    create = groups.create_instance("pilots", "one", groups.InstanceSettings())
    with pytest.raises(OutcomeUnknownError):
        Exchange(routes, create.request, 0, 10).report_lost("broken", 0)


async def test_rule_f2_aiohttp_does_not_send_a_read_of_a_group_again_by_itself() -> None:
    async def count(call: Call[Any]) -> list[str]:
        async with server(hang_up) as (url, seen), AsyncClient([url], retry_s=0) as client:
            with pytest.raises(OutcomeUnknownError):
                await client.run(call)
            return seen

    assert await count(POLL) == [
        "get /consumers/pilots/instances/one/records?timeout=0&max_bytes=1048576 http/1.1"
    ]
    assert len(await count(groups.group_offsets("c", "pilots"))) > 1  # a pure read, it does


async def test_rule_f2_the_blocking_client_sends_a_read_of_a_group_once() -> None:
    async with server(hang_up) as (url, seen):
        run: Callable[..., object] = Client([url], retry_s=0.5).run
        with pytest.raises(OutcomeUnknownError):
            await asyncio.to_thread(run, POLL)
        assert len(seen) == 1
