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
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from http_api.contract.errors import RestCode, RestError, excerpt

if TYPE_CHECKING:
    from collections.abc import Sequence

_HOST: Final = re.compile(r"(\[[0-9a-f:.]{2,45}\]|[a-z0-9._-]{1,255})(?::([0-9]{1,5}))?")
_ORIGIN: Final = re.compile(r"(https?)://(.{1,300})")
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_READS: Final = frozenset({"GET", "HEAD"})
_SCHEME: Final = "http"
"""Scheme of this listener: it has no TLS."""

Authority = tuple[str, int | None]
"""Host in lower case, without brackets, and port; None: the scheme's default."""


def parse_authority(text: str) -> Authority | None:
    """Return the host and the port of ``host[:port]``, or None if ``text`` has another form."""
    match = _HOST.fullmatch(text.lower())
    if match is None:
        return None
    return match[1].strip("[]").rstrip("."), None if match[2] is None else int(match[2])


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

    def check(self, method: str, hosts: Sequence[str], origins: Sequence[str]) -> None:
        """Refuse a request of a foreign page; ``hosts`` and ``origins`` hold the headers' values.

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
            if not self._is_trusted_origin(origin, hosts):
                raise _refusal(
                    f"{method} from a page of '{excerpt(origin)}' is refused: it is another "
                    "site than this listener's; if it is yours, add its host to hosts in "
                    "[listeners] of config.toml"
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

    def _is_trusted_origin(self, origin: str, hosts: Sequence[str]) -> bool:
        match = _ORIGIN.fullmatch(origin)
        site = None if match is None else parse_authority(match[2])
        if match is None or site is None:
            return False  # `null`, or no origin at all
        port = site[1] or _DEFAULT_PORTS[match[1]]
        for host in hosts:
            here = parse_authority(host)
            if here is not None and (match[1], site[0], port) == (
                _SCHEME,
                here[0],
                here[1] or _DEFAULT_PORTS[_SCHEME],
            ):
                return True
        return any(
            site[0] == name and port == (known or _DEFAULT_PORTS[match[1]])
            for name, known in self.named
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
