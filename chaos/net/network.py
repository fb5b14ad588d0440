"""The network of one run: its desired state, applied to Toxiproxy and verified after each change.

`ProxiedCluster` starts it and lays the links; scenarios call `shape` and `heal`.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from chaos.net.links import NO_FAULTS, Faults, Link, LinkState, Traffic
from chaos.net.toxiproxy import (
    ANSWERS,
    REQUESTS,
    NetworkError,
    ProxyView,
    Toxic,
    ToxiproxyApi,
    ToxiproxyServer,
)
from raft_metadata.common.local_ports import LOOPBACK, free_port

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

RECONCILE_ATTEMPTS = 3
"""Attempts to reach the desired state; another process may change the server between a change and
its verification."""


class Network:
    """All proxies of a run, one per link, on a private server. `async with`; one caller at a time.

    The desired state is authoritative: `shape` sets it and brings the server to it, whatever was
    done to the server meanwhile. A server that does not reach it is an error.
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
        """The server process, for tests that pause it."""
        return self._server

    @property
    def links(self) -> tuple[Link, ...]:
        """All links, in the order of their creation."""
        return tuple(self._addresses)

    @property
    def faults(self) -> Faults:
        """The desired faults of the network."""
        return self._faults

    def start(self, reserved: Iterable[int] = ()) -> None:
        """Start the server. Call it on the main thread, to which the parent-death signal is tied.

        Args:
            reserved: ports of nodes that do not listen yet and that no proxy may occupy.
        """
        self._reserved = frozenset(reserved)
        self._api = self._server.start(self._reserved)

    def stop(self) -> None:
        """End the server and with it every link. Works without a loop."""
        self._server.stop()
        self._api = None

    async def lay(self, targets: Mapping[Link, str]) -> dict[Link, str]:
        """Create a proxy for each link, given the real address of its target.

        Returns:
            The ``host:port`` that each link's source has to dial.
        """
        for link, target in targets.items():
            self._addresses[link] = (f"{LOOPBACK}:{free_port(self._reserved)}", target)
        await self.shape(NO_FAULTS)
        return {link: listen for link, (listen, _) in self._addresses.items()}

    async def shape(self, faults: Faults) -> None:
        """Apply these faults to the network, and verify them.

        Raises:
            NetworkError: the server does not answer in time, or does not reach the desired state.
        """
        async with self._turn:
            self._faults = faults
            await asyncio.to_thread(self._reconcile)

    async def heal(self) -> None:
        """Remove all faults."""
        await self.shape(NO_FAULTS)

    async def traffic(self) -> dict[Link, Traffic]:
        """Return bytes per link, of connections that have ended."""
        async with self._turn:
            counts = await asyncio.to_thread(self.server_api().bytes_by_proxy)
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

    def server_api(self) -> ToxiproxyApi:
        """Return the API of the running server; raise NetworkError before `start`."""
        if self._api is None:
            msg = "the network is not started"
            raise NetworkError(msg)
        return self._api

    # -- desired and real

    def _reconcile(self) -> None:
        api = self.server_api()
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
    """Return the toxics that put a proxy into this state, with their names.

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
