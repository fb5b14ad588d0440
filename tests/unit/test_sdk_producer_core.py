"""The SDK's producer where a program, an answer or a thread does what none should."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import orjson
import pytest

from http_api.client.calls import Answer, Request
from http_api.client.sdk.client_context import ClientContext
from http_api.client.sdk.producer import Producer
from http_api.client.sdk.producer_settings import ProducerConfig
from raft_metadata.common.errors import Outcome
from tests.support.doors.http import set_flush
from tests.support.produced_world import TOPIC, ProducedWorld, Troubles


def context() -> ClientContext:
    return ClientContext("producer", ProducerConfig(bootstrap_servers=("http://a:1",)))


@pytest.mark.parametrize("raised", [SystemExit(1), KeyboardInterrupt()])
def test_a_callback_that_exits_does_not_end_the_thread_of_callbacks(raised: BaseException) -> None:
    def on_delivery() -> None:
        raise raised

    context().call_back(on_delivery)


async def test_a_coroutine_that_awaits_what_was_cancelled_does_not_end_the_callbacks() -> None:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    future.cancel()

    async def on_delivery() -> None:
        await future

    await context().call_back_async(on_delivery)


def test_a_second_close_waits_for_the_flush_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    producer = Producer("http://127.0.0.1:1")
    is_flushing, may_end = threading.Event(), threading.Event()

    def flush(timeout: float | None) -> int:
        is_flushing.set()
        may_end.wait(10)
        return 0

    set_flush(monkeypatch, producer, flush)
    first = threading.Thread(target=producer.close)
    first.start()
    assert is_flushing.wait(10)
    second = threading.Thread(target=producer.close)
    second.start()
    second.join(0.2)
    has_waited = second.is_alive()
    producer.close(0.01)
    may_end.set()
    first.join(10)
    second.join(10)
    assert has_waited
    assert not second.is_alive()


@pytest.mark.parametrize("acks", ["all", "1"])
def test_a_batch_that_is_too_deep_to_be_taken_apart_has_an_outcome(acks: str) -> None:
    world = ProducedWorld(0, Troubles(), partitions=1, value_format="json", acks=acks)
    deep = b"[" * 1_018 + b"]" * 1_018
    for value in (b'"bad"', deep, b"1"):
        world.produce(value)
    assert world.flush()
    assert all(error is not None for error, _ in world.outcomes.values())
    world.produce(b"2")
    assert world.flush()
    assert world.outcomes[b"2"][0] is None


def test_rule_f1_a_row_in_doubt_behind_a_refused_one_is_not_sent_again() -> None:
    world = ProducedWorld(0, Troubles(), partitions=1, acks="1")
    row = {"partition": None, "offset": None, "error_code": 50003, "error": "x", "retriable": True}
    outcomes = ["not_written", "unknown"]
    rows = [row | {"outcome": outcome} for outcome in outcomes]
    serve = world.append
    sent: list[Any] = []

    def append(request: Request, number: int) -> Answer:
        sent.append([row["value"] for row in orjson.loads(request.body or b"")["records"]])
        return serve(request, number) if sent[1:] else world.answer_of(503, {"offsets": rows})

    world.append = append  # type: ignore[method-assign]
    world.produce("a")
    world.produce("b")
    assert world.flush()
    assert sent == [["a", "b"], ["a"]]
    error = world.outcomes["b"][0]
    assert error is not None
    assert error.outcome is Outcome.UNKNOWN


def test_reports_are_taken_in_place_of_the_thread_of_callbacks() -> None:
    """Settled batches wait until they are taken, and count as unsettled until they are ended."""
    world = ProducedWorld(0, Troubles(), partitions=1)
    world.produce(b"1")
    world.produce(b"2")
    core = world.core
    core.seal_all()
    core.bring_worker(world)  # type: ignore[arg-type]
    assert not core.has_reports
    assert world.until(lambda: core.has_reports, 10.0)
    assert core.unsettled == 2
    ((batch, awaited),) = core.take_reports()
    assert [each[0] for each in awaited] == [0, 1]
    assert not core.has_reports
    assert core.take_reports() == ()
    assert core.unsettled == 2
    core.end_report(batch, len(awaited))
    assert core.unsettled == 0


@pytest.mark.parametrize("takes_sealed", [True, False])
def test_purged_records_fail_and_later_ones_are_written(takes_sealed: bool) -> None:
    """Records of an open batch fail as not written; the producer goes on."""
    world = ProducedWorld(0, Troubles(), partitions=1)
    world.produce(b"1")
    world.core.purge(takes_open=False, takes_sealed=True)
    assert world.core.unsettled == 1
    world.core.purge(takes_open=True, takes_sealed=takes_sealed)
    world.core.bring_worker(world)  # type: ignore[arg-type]
    assert world.flush()
    error, _ = world.outcomes[b"1"]
    assert error is not None
    assert error.outcome is Outcome.NOT_WRITTEN
    world.produce(b"2")
    assert world.flush()
    assert world.outcomes[b"2"][0] is None
    assert [len(one.log) for one in world.partitions] == [1]


@pytest.mark.parametrize("large_messages", ["refuse", "split"])
def test_a_topic_is_looked_up_with_one_request(large_messages: str) -> None:
    """Its limits come with its partitions, so values are split from the first one on."""
    world = ProducedWorld(0, Troubles(), large_messages=large_messages)
    world.run(world.core.topics.learn(TOPIC, 10.0))
    assert [path for path in world.paths if path.startswith("/topics")] == [
        f"/topics/{TOPIC}" if large_messages == "split" else f"/topics/{TOPIC}/partitions"
    ]
    limits = world.core.topics.by_name[TOPIC].limits
    assert (limits is not None) is (large_messages == "split")
    assert world.core.topics.by_name[TOPIC].partitions == 3
