"""The network of one run: what it is to be, made so, and looked at again after each change."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from chaos.net.links import NO_FAULTS, Faults, Link, LinkState, Traffic
from chaos.net.toxiproxy_api import (
    ANSWERS,
    REQUESTS,
    NetworkError,
    ProxyView,
    Toxic,
    ToxiproxyApi,
)
from chaos.net.toxiproxy_server import LOOPBACK, ToxiproxyServer, free_port

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

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
        self._reserved: frozenset[int] = frozenset()
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

    def start(self, reserved: Iterable[int] = ()) -> None:
        """Start the server. Called by the main thread: the parent-death signal is tied to it.

        Args:
            reserved: ports of nodes that do not listen yet: a proxy there would keep them from it.
        """
        self._reserved = frozenset(reserved)
        self._api = self._server.start(self._reserved)

    def stop(self) -> None:
        """End the server; every link with it. Works without a loop."""
        self._server.stop()
        self._api = None

    async def lay(self, targets: Mapping[Link, str]) -> dict[Link, str]:
        """Put a proxy on each link, given the real address of its target.

        Returns:
            The ``host:port`` each link's source has to dial.
        """
        taken = set(self._reserved)
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
        wanted = toxics_of(state)
        held = () if present is None else present.toxics
        for name, toxic in held:
            if (name, toxic) not in wanted:
                api.remove_toxic(link.name, name)
        for name, toxic in wanted:
            if (name, toxic) not in held:
                api.add_toxic(link.name, toxic)
        enabled = present is None or present.enabled
        if enabled is state.refuses:
            api.enable(link.name, enabled=not state.refuses)

    def _differences(self, found: Mapping[str, ProxyView]) -> list[str]:
        differences = []
        for link, (listen, target) in self._addresses.items():
            state = self._faults.state_of(link)
            wanted = ProxyView(link.name, listen, target, not state.refuses, toxics_of(state))
            if found.get(link.name) != wanted:
                differences.append(f"wanted {wanted}, found {found.get(link.name)}")
        strangers = found.keys() - {link.name for link in self._addresses}
        return differences + [f"nobody asked for proxy {name}" for name in sorted(strangers)]


def toxics_of(state: LinkState) -> tuple[tuple[str, Toxic], ...]:
    """What a proxy must have to be in this state, by name.

    A ``timeout`` of 0 ms drops everything for ever and closes nothing, until it is removed.
    """
    found = []
    for stream, drops in ((REQUESTS, state.drops_requests), (ANSWERS, state.drops_answers)):
        if drops:
            found.append(Toxic("timeout", stream, (("timeout", 0),)))
        if state.latency_ms:
            late = (("jitter", 0), ("latency", state.latency_ms))
            found.append(Toxic("latency", stream, late))
        if state.slice_bytes:
            size = state.slice_bytes
            pieces = (("average_size", size), ("delay", 0), ("size_variation", size // 2))
            found.append(Toxic("slicer", stream, pieces))
    return tuple(sorted((toxic.name, toxic) for toxic in found))
