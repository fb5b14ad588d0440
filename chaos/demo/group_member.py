"""A member of a consumer group as a process of its own, over plain HTTP.

`python -m chaos.demo.group_member --url U --group G --name N --topic T --max-bytes B --out FILE`

Joins, prints ``joined``, reads from the first line on its standard input until that ends, leaves.
Each answer is written to FILE before the next request, so that a killed member leaves its
deliveries: 24 bytes a record, see `deliveries`.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import struct
import sys
import time
import zlib
from pathlib import Path

import aiohttp
import msgspec

from chaos.checkers.groups import Delivery
from chaos.http import JSON_V2, V2

SESSION_TIMEOUT_MS = 3_000
AUTO_COMMIT_INTERVAL_MS = 500
READ_TIMEOUT_MS = 500
WORK_S = 0.02
"""Simulated processing time for the records of one answer."""
CALL_TIMEOUT_S = 15.0
ROW = struct.Struct("<QIQI")
"""Format of a delivery: time (ms of the monotonic clock), partition, offset, digest."""


class _FetchedRecord(msgspec.Struct, gc=False):
    partition: int
    offset: int
    key: msgspec.Raw
    value: msgspec.Raw


_decode = msgspec.json.Decoder(list[_FetchedRecord]).decode


class MemberError(Exception):
    """The broker refused or did not answer; a read whose answer is lost cannot be repeated."""


def digest(key: bytes, value: bytes) -> int:
    """Return the crc32 of a record's JSON texts."""
    return zlib.crc32(value, zlib.crc32(key))


def deliveries(out: Path) -> list[Delivery]:
    """Return the content of a member's file; a row cut short by a kill is left out."""
    content = out.read_bytes() if out.exists() else b""
    whole = content[: len(content) // ROW.size * ROW.size]
    return [Delivery(*row) for row in ROW.iter_unpack(whole)]


class Member:
    """A consumer instance, always through the same broker. Owned by `main`."""

    def __init__(self, session: aiohttp.ClientSession, url: str, group: str, name: str) -> None:
        self._session = session
        self._group = f"{url}/consumers/{group}"
        self._name = name
        self._instance = f"{self._group}/instances/{name}"

    async def join(self, topic: str) -> None:
        """Create the instance and subscribe."""
        await self._call(
            "POST",
            self._group,
            {
                "name": self._name,
                "format": "json",
                "auto.offset.reset": "earliest",
                "auto.commit.enable": "true",
                "auto.commit.interval.ms": AUTO_COMMIT_INTERVAL_MS,
                "session.timeout.ms": SESSION_TIMEOUT_MS,
            },
        )
        await self._call("POST", f"{self._instance}/subscription", {"topics": [topic]})

    async def read(self, max_bytes: int) -> bytes:
        """Return the rows of one answer."""
        query = f"timeout={READ_TIMEOUT_MS}&max_bytes={max_bytes}"
        body = await self._call("GET", f"{self._instance}/records?{query}", accept=JSON_V2)
        now_ms = time.monotonic_ns() // 1_000_000
        return b"".join(
            ROW.pack(now_ms, one.partition, one.offset, digest(bytes(one.key), bytes(one.value)))
            for one in _decode(body)
        )

    async def leave(self) -> None:
        """Delete the instance."""
        await self._call("DELETE", self._instance)

    async def _call(self, method: str, url: str, body: object = None, accept: str = V2) -> bytes:
        data = None if body is None else msgspec.json.encode(body)
        headers = {"Accept": accept} | ({"Content-Type": V2} if data is not None else {})
        try:
            async with self._session.request(method, url, data=data, headers=headers) as answer:
                text = await answer.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            msg = f"{method} {url}: {error!r}"
            raise MemberError(msg) from error
        if not answer.ok:
            msg = f"{method} {url}: {answer.status} {text[:300]!r}"
            raise MemberError(msg)
        return text


async def _run(options: argparse.Namespace) -> None:
    loop = asyncio.get_running_loop()
    out = os.open(options.out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    timeout = aiohttp.ClientTimeout(total=CALL_TIMEOUT_S)
    stdin = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stdin), sys.stdin)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        member = Member(session, options.url, options.group, options.name)
        await member.join(options.topic)
        sys.stdout.write("joined\n")
        sys.stdout.flush()
        await stdin.readline()
        while not stdin.at_eof():
            os.write(out, await member.read(options.max_bytes))
            await asyncio.sleep(WORK_S)
        await member.leave()
    os.close(out)


def main() -> int:
    """Return the exit status: 0 left the group at the end of input, 1 refused or not answered."""
    parser = argparse.ArgumentParser(prog="python -m chaos.demo.group_member", description=__doc__)
    for name in ("url", "group", "name", "topic"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--max-bytes", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    try:
        asyncio.run(_run(parser.parse_args()))
    except MemberError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
