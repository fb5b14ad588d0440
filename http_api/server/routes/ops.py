"""Liveness and readiness, for operators, load balancers and `quorumlog up`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from http_api.contract.media_types import TEXT, V2
from http_api.server.context import ApiContext, reply

if TYPE_CHECKING:
    from aiohttp import web

    from http_api.server.routing import Router


class OpsRoutes:
    """Routes ``/``, ``/healthz`` and ``/readyz``. Owner: the app, for its whole life."""

    def __init__(self, context: ApiContext) -> None:
        self._apis = context.apis

    def add_to(self, router: Router) -> None:
        router.add("GET", "/", self.root, V2)
        router.add("GET", "/healthz", self.healthz, TEXT)
        router.add("GET", "/readyz", self.readyz, TEXT)

    async def root(self, request: web.Request) -> web.Response:
        """Answer ``{}``, Confluent's liveness answer."""
        return reply(b"{}", V2)

    async def healthz(self, request: web.Request) -> web.Response:
        """Answer 200 while the process answers at all."""
        return reply(b"ok\n", TEXT)

    async def readyz(self, request: web.Request) -> web.Response:
        """Answer 200 if every reason is ok, else 503; one line per reason in both cases."""
        rows = self._apis.readiness()
        ready = all(ok for _, ok in rows)
        lines = [f"[{'+' if ok else '-'}]{reason}{' ok' if ok else ''}\n" for reason, ok in rows]
        return reply("".join(lines).encode(), TEXT, 200 if ready else 503)
