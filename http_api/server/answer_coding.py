"""gzip for answers of the routes: which ones, and where it is computed.

`app.py` calls `may_gzip` before a handler and `gzipped` with its answer. Answers that say nothing
of records (lists, descriptions, documents) go as gzip by default; those to reads and writes of
records only with ``http.gzip=all``, because client libraries accept gzip unasked and it costs
ten times the CPU of a read. Streams are never compressed: a record would wait for the block that it
is in.
"""

from __future__ import annotations

import asyncio
import gzip
from typing import TYPE_CHECKING, Final

from aiohttp import hdrs, web

from http_api.contract.media_types import GZIP, accepts_coding
from http_api.server.live_settings import GZIP_OFF

if TYPE_CHECKING:
    from http_api.server.live_settings import HttpSettings

GZIP_BYTES_MIN: Final = 1_024
"""Shorter bodies are sent as they are: the packet is not shorter with gzip."""
THREAD_BYTES_MIN: Final = 65_536
"""Bodies of this size are compressed in a thread, so that the loop serves others meanwhile."""
GZIP_LEVEL: Final = 1
"""The fastest level: a list shrinks to a fifteenth at 400 MB/s; level 6 takes twice as long for a
twentieth."""
MAY_GZIP = web.RequestKey("may_gzip", bool)
"""True if the answer to this request may go as gzip, if the client accepts it; else missing."""


def may_gzip(settings: HttpSettings, *, carries_records: bool) -> bool:
    """Return True if ``http.gzip`` compresses answers of a route."""
    return settings.gzips_records or (settings.gzip != GZIP_OFF and not carries_records)


async def gzipped(request: web.Request, response: web.StreamResponse) -> web.StreamResponse:
    """Return an answer compressed, if ``http.gzip`` and the client want that and it gets shorter.

    ``Vary`` is added wherever another client would get another coding.
    """
    if not (request.get(MAY_GZIP, False) and isinstance(response, web.Response)):
        return response
    body = response.body
    if not isinstance(body, bytes) or len(body) < GZIP_BYTES_MIN or response.prepared:
        return response
    if hdrs.CONTENT_ENCODING in response.headers:
        return response  # stored zstd frames
    add_vary(response, hdrs.ACCEPT_ENCODING)
    if not accepts_coding(",".join(request.headers.getall(hdrs.ACCEPT_ENCODING, ())), GZIP):
        return response
    if len(body) < THREAD_BYTES_MIN:
        shorter = gzip.compress(body, GZIP_LEVEL, mtime=0)
    else:
        shorter = await asyncio.to_thread(gzip.compress, body, GZIP_LEVEL, mtime=0)
    if len(shorter) < len(body):
        response.body = shorter
        response.headers[hdrs.CONTENT_ENCODING] = GZIP
    return response


def add_vary(response: web.StreamResponse, name: str) -> None:
    """Add the name of a request header on which the answer depends to ``Vary``."""
    present = response.headers.get(hdrs.VARY)
    if present is None:
        response.headers[hdrs.VARY] = name
    elif name.lower() not in (one.strip().lower() for one in present.split(",")):
        response.headers[hdrs.VARY] = f"{present}, {name}"
