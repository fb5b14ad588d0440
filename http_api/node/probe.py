"""HTTP/1.1 probe of a node, with nothing but the standard library.

The supervisor runs beside the nodes for months: it imports no HTTP framework.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass

from http_api.node.config import Address

PROBE_TIMEOUT_S = 1.0
MAX_ANSWER_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class ProbeAnswer:
    """Status and body of a small answer."""

    status: int
    body: bytes


async def probe(address: Address, path: str) -> ProbeAnswer | None:
    """GET ``path``; None without an HTTP answer within `PROBE_TIMEOUT_S`."""
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            return await _get(address, path)
    except (OSError, TimeoutError, ValueError, IndexError):
        return None


async def _get(address: Address, path: str) -> ProbeAnswer:
    reader, writer = await asyncio.open_connection(address.host, address.port)
    try:
        request = f"GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n"
        writer.write(request.encode())
        await writer.drain()
        answer = await _read_all(reader)
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
    head, _, body = answer.partition(b"\r\n\r\n")
    return ProbeAnswer(int(head.split()[1]), body)


async def _read_all(reader: asyncio.StreamReader) -> bytes:
    chunks = bytearray()
    while len(chunks) < MAX_ANSWER_BYTES and (chunk := await reader.read(MAX_ANSWER_BYTES)):
        chunks += chunk
    return bytes(chunks)
