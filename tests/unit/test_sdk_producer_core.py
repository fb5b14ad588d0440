"""The SDK's producer where a program, an answer or a thread does what none should."""

from __future__ import annotations

import asyncio
import threading

import pytest

from http_api.client.sdk.client_context import ClientContext
from http_api.client.sdk.producer import Producer
from http_api.client.sdk.producer_settings import ProducerConfig


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

    monkeypatch.setattr(producer, "_flush", flush)
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
