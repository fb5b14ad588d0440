"""A streamed produce through a broker that is killed half way, resumed at another (rule F1)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.support.documented_cluster import DocumentedCluster, documented_cluster

RECORDS = 20_000
KILL_AFTER = 6_000
DEADLINE_S = 60.0
TOPIC = "streamed"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DocumentedCluster]:
    with documented_cluster(tmp_path_factory.mktemp("streamed")) as found:
        yield found


def call(url: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=15) as answer:
        return json.loads(answer.read())


class Stream:
    """Records from ``first`` on, in requests of a chunked body; `receipts` gives what comes."""

    def __init__(self, url: str, path: str, headers: dict[str, str], chunk: int) -> None:
        self._address = urlsplit(url)
        lines = [f"POST {path} HTTP/1.1", f"Host: {self._address.netloc}"]
        lines += ["Content-Type: application/json", "Transfer-Encoding: chunked"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        self._head = "\r\n".join([*lines, "", ""]).encode()
        self._chunk = chunk

    @asynccontextmanager
    async def receipts(self, first: int) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
        streams = await asyncio.open_connection(self._address.hostname, self._address.port)
        reader, writer = streams
        writer.write(self._head)
        sending = asyncio.create_task(self._send(writer, first))
        try:
            yield self._read(reader)
        finally:
            sending.cancel()
            with contextlib.suppress(asyncio.CancelledError, OSError):
                await sending
            writer.close()

    async def _send(self, writer: asyncio.StreamWriter, first: int) -> None:
        for start in range(first, RECORDS, self._chunk):
            numbers = range(start, min(start + self._chunk, RECORDS))
            text = b"".join(b'{"value":{"type":"JSON","data":%d}}' % number for number in numbers)
            writer.write(b"%x\r\n%b\r\n" % (len(text), text))
            await writer.drain()
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    async def _read(self, reader: asyncio.StreamReader) -> AsyncIterator[dict[str, Any]]:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 "), head
            text = b""
            while size := int(await reader.readline(), 16):
                text += await reader.readexactly(size)
                await reader.readline()
                *lines, text = text.split(b"\r\n")
                for line in lines:
                    yield json.loads(line)
        except (asyncio.IncompleteReadError, ConnectionError, ValueError):
            return  # the broker has died


async def test_rule_f1_a_stream_goes_on_at_another_broker_and_writes_each_record_once(
    cluster: DocumentedCluster,
) -> None:
    urls = cluster.brokers()
    base = f"/v3/clusters/{call(urls[0] + '/v3/clusters')['data'][0]['cluster_id']}"
    topic = {"topic_name": TOPIC, "partitions_count": 1, "replication_factor": 3}
    call(f"{urls[0]}{base}/topics", topic)
    producer = call(f"{urls[0]}{base}/producer-ids", {})["producer_id"]
    leader = call(f"{urls[0]}/topics/{TOPIC}/partitions")[0]["leader"]
    offsets: list[int] = []
    starts: list[int] = []
    async with asyncio.timeout(DEADLINE_S):
        attempt = 0
        while len(offsets) < RECORDS:
            # The leader's broker first, and behind it the others in turn.
            url = urls[(leader - 1 + attempt) % len(urls)]
            starts.append(len(offsets))
            headers = {
                "Quorumlog-Producer-Id": str(producer),
                "Quorumlog-Producer-Epoch": "0",
                "Quorumlog-Sequence": str(len(offsets)),
            }
            stream = Stream(url, f"{base}/topics/{TOPIC}/records", headers, 97 + 60 * attempt)
            attempt += 1
            with contextlib.suppress(OSError):
                async with stream.receipts(len(offsets)) as receipts:
                    async for receipt in receipts:
                        if receipt["error_code"] != 200:
                            assert receipt["retriable"], receipt
                            break
                        offsets.append(receipt["offset"])
                        if len(offsets) == KILL_AFTER:
                            _kill(cluster, leader)
            await asyncio.sleep(0.05)
    assert offsets == list(range(RECORDS)), "each receipt names the record's own offset"
    assert len(starts) > 1, "the stream was broken"
    assert _values(urls[leader % len(urls)]) == list(range(RECORDS)), "each once, in order"


def _kill(cluster: DocumentedCluster, broker: int) -> None:
    pid = cluster.directory / f"quorumlog-data/broker-{broker}/node.pid"
    os.kill(int(Path(pid).read_text()), signal.SIGKILL)


def _values(url: str) -> list[int]:
    values: list[int] = []
    while len(values) < RECORDS:
        page = call(f"{url}/topics/{TOPIC}/partitions/0/records?offset={len(values)}")
        assert page, len(values)
        values += [record["value"] for record in page]
    return values
