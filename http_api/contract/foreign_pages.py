"""Refusal of requests that a foreign web page makes through its reader's browser. Pure.

The listeners of brokers and controllers call `TrustedHosts.check` before a request is handled
there; the fast lane calls `is_trusted_host` and leaves every request with an ``Origin`` to the
routes. Two attacks are refused:

- A page of another site sends a request that changes something. A browser sends such requests
  without asking first (CORS guards only the answer), and adds the page's ``Origin``.
- A page lets its own host name resolve to this machine (DNS rebinding). To the browser this
  listener then belongs to the page's site, but ``Host`` still holds the page's name.

Clients that are not browsers send no ``Origin``, and the ``Host`` that they were given.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from http_api.contract.errors import RestCode, RestError, excerpt
from http_api.contract.origins import (
    DEFAULT_PORTS,
    NO_ORIGINS,
    AllowedOrigins,
    Authority,
    parse_authority,
    parse_origin,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from http_api.contract.forwarding import Forwarded

_READS: Final = frozenset({"GET", "HEAD"})
_SCHEME: Final = "http"
"""Scheme of this listener, which has no TLS, where no proxy reports another one."""


@dataclass(frozen=True, slots=True)
class TrustedHosts:
    """The names under which a listener may be reached. Immutable."""

    is_loopback: bool = False
    """True: only this machine reaches the listener, so ``Host`` is checked. On another listener a
    rebound name gains nothing: the page's own server could connect itself."""
    advertised: str = "localhost"
    """Host of the address that the broker advertises."""
    named: frozenset[Authority] = field(default_factory=frozenset[Authority])
    """Entries of ``[listeners] hosts``."""

    def check(
        self,
        method: str,
        hosts: Sequence[str],
        origins: Sequence[str],
        *,
        forwarded: Forwarded | None = None,
        allowed: AllowedOrigins = NO_ORIGINS,
    ) -> None:
        """Refuse a request of a foreign page; ``hosts`` and ``origins`` hold the headers' values.

        ``forwarded`` is the report of a trusted proxy: an origin is compared with the site that it
        names, for that is the one which a browser knows. ``Host`` is always that of the connection,
        so that no page passes by the check of names with headers that it writes itself. Pages of
        ``allowed`` origins are served.

        Raises:
            RestError: 403/403, naming the header's value and the config that permits it.
        """
        for host in hosts:
            if not self.is_trusted_host(host):
                raise _refusal(
                    f"this listener is not known as '{excerpt(host)}': expected an IP address, "
                    "localhost or the advertised host in the header Host; if a proxy on this "
                    "machine uses that name, add it to hosts in [listeners] of config.toml"
                )
        if method in _READS:
            return
        for origin in origins:
            if not (allowed.allows(origin) or self._is_own_site(origin, hosts, forwarded)):
                raise _refusal(
                    f"{method} from a page of '{excerpt(origin)}' is refused: it is another "
                    "site than this listener's; if it is yours, add its host to hosts in "
                    "[listeners] of config.toml, or the origin to cors.allowed.origins"
                )

    def is_trusted_host(self, host: str) -> bool:
        """Return True if a request with this ``Host`` is served; its port has no effect."""
        if not self.is_loopback:
            return True
        authority = parse_authority(host)
        if authority is None:
            return False
        name = authority[0]
        return (
            name in {"localhost", self.advertised.lower()}
            or any(name == known for known, _ in self.named)
            or _is_ip_address(name)
        )

    def _is_own_site(self, origin: str, hosts: Sequence[str], forwarded: Forwarded | None) -> bool:
        site = parse_origin(origin)
        if site is None:
            return False  # `null`, or no origin at all
        scheme, name, port = site
        here = _SCHEME
        if forwarded is not None:
            here = forwarded.scheme or _SCHEME
            hosts = hosts if forwarded.host is None else [forwarded.host]
        for host in hosts:
            own = parse_authority(host)
            if own is not None and site == (here, own[0], own[1] or DEFAULT_PORTS[here]):
                return True
        return any(
            name == known and port == (its_port or DEFAULT_PORTS[scheme])
            for known, its_port in self.named
        )


ANY_HOST: Final = TrustedHosts()
"""The names of a listener for a network."""


def _is_ip_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _refusal(text: str) -> RestError:
    return RestError(403, RestCode.FOREIGN_PAGE, text)
