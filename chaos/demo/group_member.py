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

import msgspec

from chaos.checkers.groups import Delivery
from chaos.http import JSON_V2, CallError, Http

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


def digest(key: bytes, value: bytes) -> int:
    """Return the crc32 of a record's JSON texts."""
    return zlib.crc32(value, zlib.crc32(key))


def deliveries(out: Path) -> list[Delivery]:
    """Return the content of a member's file; a row cut short by a kill is left out."""
    content = out.read_bytes() if out.exists() else b""
    whole = content[: len(content) // ROW.size * ROW.size]
    return [Delivery(*row) for row in ROW.iter_unpack(whole)]


async def _read(http: Http, instance: str, max_bytes: int) -> bytes:
    """Return the rows of one answer."""
    url = f"{instance}/records?timeout={READ_TIMEOUT_MS}&max_bytes={max_bytes}"
    answer = await http.call("GET", url, accept=JSON_V2, timeout_s=CALL_TIMEOUT_S)
    now_ms = time.monotonic_ns() // 1_000_000
    return b"".join(
        ROW.pack(now_ms, one.partition, one.offset, digest(bytes(one.key), bytes(one.value)))
        for one in _decode(answer.body)
    )


async def _run(options: argparse.Namespace) -> None:
    loop = asyncio.get_running_loop()
    out = os.open(options.out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    stdin = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stdin), sys.stdin)
    settings = {
        "auto.commit.enable": "true",
        "auto.commit.interval.ms": AUTO_COMMIT_INTERVAL_MS,
        "session.timeout.ms": SESSION_TIMEOUT_MS,
    }
    group = f"{options.url}/consumers/{options.group}"
    instance = f"{group}/instances/{options.name}"
    async with Http() as http:
        await http.join_group(group, options.name, options.topic, settings, CALL_TIMEOUT_S)
        sys.stdout.write("joined\n")
        sys.stdout.flush()
        await stdin.readline()
        while not stdin.at_eof():
            os.write(out, await _read(http, instance, options.max_bytes))
            await asyncio.sleep(WORK_S)
        await http.call("DELETE", instance, timeout_s=CALL_TIMEOUT_S)
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
    except CallError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
