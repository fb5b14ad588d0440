"""The SDK's producer where a program, an answer or a thread does what none should."""

from __future__ import annotations

import asyncio

import pytest

from http_api.client.sdk.client_context import ClientContext
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
