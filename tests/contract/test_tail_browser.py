"""A browser's own ``EventSource`` follows a topic, and goes on when its broker comes back."""

from __future__ import annotations

import orjson

from broker.config import BrokerLimits
from http_api.server.app import HttpServer, build_app
from tests.support.browser import Page, chromium, open_page
from tests.support.fake_broker_apis import FakeBrokerApis
from tests.support.http_door import ADVERTISED, Door

JSON_V2 = "application/vnd.kafka.json.v2+json"
FOLLOW = """
window.got = []; window.ends = []; window.opened = 0;
window.source = new EventSource("/topics/flights/records?offset=earliest");
source.onopen = () => { opened += 1 };
source.onmessage = event => { got.push(JSON.parse(event.data).value) };
source.addEventListener("end", event => { ends.push(JSON.parse(event.data).reason) });
true
"""


async def write(door: Door, *values: int) -> None:
    rows = [{"value": value} for value in values]
    path = f"/topics/flights/partitions/{values[0] % 2}"
    assert (await door.post(path, orjson.dumps({"records": rows}), JSON_V2)).status == 200


async def values(page: Page, count: int) -> list[int]:
    await page.until(f"got.length >= {count}")
    found: list[int] = await page.value("got")
    return found


async def test_an_event_source_gets_every_record_once_over_a_restart() -> None:
    chromium()  # skips before a server is there to be left open
    apis = FakeBrokerApis()
    apis.add_topic("flights", 2)
    limits = BrokerLimits()
    server = HttpServer(build_app(apis, limits, ADVERTISED), limits, shutdown_grace_s=1.0)
    address = await server.start("127.0.0.1:0")
    door = Door(apis, server, address)
    await write(door, 1, 3)
    await write(door, 2)
    async with open_page(f"http://{address}/healthz") as page:
        await page.value(FOLLOW)
        assert sorted(await values(page, 3)) == [1, 2, 3]
        await write(door, 4)
        assert (await values(page, 4))[3:] == [4]
        await server.stop()
        await page.until("ends.length == 1")
        assert await page.value("ends") == ["shutdown"]
        again = HttpServer(build_app(apis, limits, ADVERTISED), limits, shutdown_grace_s=1.0)
        try:
            await again.start(address)
            door = Door(apis, again, address)
            await write(door, 5)
            assert sorted(await values(page, 5)) == [1, 2, 3, 4, 5], "by the id of the last one"
            assert await page.value("opened") == 2
            await page.value("source.close()")
        finally:
            await again.stop()
