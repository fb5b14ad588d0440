"""The network of one run: what it is to be, made so, and looked at again after each change."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from chaos.net.links import NO_FAULTS, Faults, Link, LinkState, Traffic
from chaos.net.toxiproxy_api import (
    ANSWERS,
    BLACKHOLE,
    REQUESTS,
    NetworkError,
    ProxyView,
    ToxiproxyApi,
)
from chaos.net.toxiproxy_server import LOOPBACK, ToxiproxyServer, free_port

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_STREAMS = {REQUESTS: "drops_requests", ANSWERS: "drops_answers"}
RECONCILE_ATTEMPTS = 3
"""Somebody else may change the server between our change and our look."""


class Network:
    """One proxy per link, on one server of our own. `async with`; one caller at a time.

    The desired state is the truth: `shape` sets it and makes the server agree, whatever was done
    to the server meanwhile. A server that can't be made to agree is an error, never a shrug.
    """

    def __init__(self, binary: Path, log: Path) -> None:
        self._server = ToxiproxyServer(binary, log)
        self._api: ToxiproxyApi | None = None
        self._addresses: dict[Link, tuple[str, str]] = {}
        self._faults = NO_FAULTS
        self._turn = asyncio.Lock()

    @property
    def server(self) -> ToxiproxyServer:
        """The process, for tests that pause it."""
        return self._server

    @property
    def links(self) -> tuple[Link, ...]:
        """All links, in the order they were made."""
        return tuple(self._addresses)

    @property
    def faults(self) -> Faults:
        """What is wrong with the network now, because we said so."""
        return self._faults

    def start(self) -> None:
        """Start the server. Called by the main thread: the parent-death signal is tied to it."""
        self._api = self._server.start()

    def stop(self) -> None:
        """End the server; every link with it. Works without a loop."""
        self._server.stop()
        self._api = None

    async def lay(self, targets: Mapping[Link, str]) -> dict[Link, str]:
        """Put a proxy on each link, given the real address of its target.

        Returns:
            The ``host:port`` each link's source has to dial.
        """
        taken: set[int] = set()
        for link, target in targets.items():
            self._addresses[link] = (f"{LOOPBACK}:{free_port(taken)}", target)
        await self.shape(NO_FAULTS)
        return {link: listen for link, (listen, _) in self._addresses.items()}

    async def shape(self, faults: Faults) -> None:
        """Make the network be like this, and see that it is.

        Raises:
            NetworkError: the server does not answer in time, or is not as it was told to be.
        """
        async with self._turn:
            self._faults = faults
            await asyncio.to_thread(self._reconcile)

    async def heal(self) -> None:
        """Everything flows again."""
        await self.shape(NO_FAULTS)

    async def traffic(self) -> dict[Link, Traffic]:
        """Bytes per link, of connections that have ended."""
        async with self._turn:
            counts = await asyncio.to_thread(self._required().bytes_by_proxy)
        found = {}
        for link in self._addresses:
            count = counts.get(link.name, {})
            found[link] = Traffic(
                requests_read=count.get(("received", REQUESTS), 0),
                requests_passed=count.get(("sent", REQUESTS), 0),
                answers_read=count.get(("received", ANSWERS), 0),
                answers_passed=count.get(("sent", ANSWERS), 0),
            )
        return found

    def _required(self) -> ToxiproxyApi:
        if self._api is None:
            msg = "the network is not started"
            raise NetworkError(msg)
        return self._api

    # -- desired and real

    def _reconcile(self) -> None:
        api = self._required()
        differences: list[str] = []
        for _ in range(RECONCILE_ATTEMPTS):
            self._change(api, api.proxies())
            differences = self._differences(api.proxies())
            if not differences:
                return
            time.sleep(0.05)
        msg = f"the proxy server is not as it was told to be: {'; '.join(differences[:5])}"
        raise NetworkError(msg)

    def _change(self, api: ToxiproxyApi, found: Mapping[str, ProxyView]) -> None:
        names = {link.name for link in self._addresses}
        for stranger in found.keys() - names:
            api.destroy(stranger)
        for link, (listen, target) in self._addresses.items():
            present = found.get(link.name)
            if present is not None and (present.listen, present.upstream) != (listen, target):
                api.destroy(link.name)
                present = None
            if present is None:
                api.create(link.name, listen, target)
            self._change_one(api, link, present)

    def _change_one(self, api: ToxiproxyApi, link: Link, present: ProxyView | None) -> None:
        state = self._faults.state_of(link)
        toxics = () if present is None else present.toxics
        if toxics != _toxics(state):
            wanted = _streams(state)
            for name in api.toxic_names(link.name) if toxics else ():
                if _is_ours(name, toxics) and name.removeprefix(f"{BLACKHOLE}_") in wanted:
                    continue
                api.remove_toxic(link.name, name)
            held = set(api.toxic_names(link.name))
            for stream in wanted:
                if f"{BLACKHOLE}_{stream}" not in held:
                    api.add_blackhole(link.name, stream)
        enabled = present is None or present.enabled
        if enabled is state.refuses:
            api.enable(link.name, enabled=not state.refuses)

    def _differences(self, found: Mapping[str, ProxyView]) -> list[str]:
        differences = []
        for link, (listen, target) in self._addresses.items():
            state = self._faults.state_of(link)
            wanted = ProxyView(link.name, listen, target, not state.refuses, _toxics(state))
            if found.get(link.name) != wanted:
                differences.append(f"wanted {wanted}, found {found.get(link.name)}")
        strangers = found.keys() - {link.name for link in self._addresses}
        return differences + [f"nobody asked for proxy {name}" for name in sorted(strangers)]


def _streams(state: LinkState) -> list[str]:
    return [stream for stream, field in _STREAMS.items() if getattr(state, field)]


def _toxics(state: LinkState) -> tuple[tuple[str, str, float, tuple[tuple[str, int], ...]], ...]:
    return tuple(sorted((BLACKHOLE, stream, 1.0, (("timeout", 0),)) for stream in _streams(state)))


def _is_ours(
    name: str, toxics: tuple[tuple[str, str, float, tuple[tuple[str, int], ...]], ...]
) -> bool:
    """Whether the toxic of this name is a whole blackhole, as we make them."""
    stream = name.removeprefix(f"{BLACKHOLE}_")
    return (BLACKHOLE, stream, 1.0, (("timeout", 0),)) in toxics
