"""Address at which a client sees this broker through a proxy (RFC 7239, X-Forwarded-*). Pure.

The listener reads the headers with `TrustedProxies.forwarded_by` only on connections that come from
one of ``[listeners] forwarded_from``; on any other connection they mean nothing, because a client
could write what it likes there. Every URL of the answer then begins with `Forwarded.base_url`.

Each part that can't be used (a host with other characters, a scheme that is not http or https, a
prefix that is no plain path) is left out alone; the advertised address has its place.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from http_api.contract.origins import DEFAULT_PORTS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

HEADERS: Final = (
    "Forwarded",
    "X-Forwarded-For",
    "X-Forwarded-Host",
    "X-Forwarded-Path",
    "X-Forwarded-Port",
    "X-Forwarded-Prefix",
    "X-Forwarded-Proto",
)
"""Headers of a forwarded request. One of them is enough, even if its value can't be used."""
PREFIX_CHARS_MAX: Final = 255
HOPS_MAX: Final = 32
"""Most addresses of a chain of proxies that are looked at, from its end."""
_HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9.-]{1,255})(?::([0-9]{1,5}))?")
_PORT: Final = re.compile(r"[0-9]{1,5}")
_PREFIX: Final = re.compile(r"(?:/[A-Za-z0-9._~-]+)+/?")
_PAIR: Final = re.compile(
    r"[ \t]*([A-Za-z0-9!#$%&'*+.^_`|~-]+)=(?:\"((?:[^\"\\]|\\.)*)\"|([^\s\",;]*))[ \t]*([;,]|$)"
)


@dataclass(frozen=True, slots=True)
class Forwarded:
    """The parts of the address that a client uses, as its proxy reports them. Immutable."""

    scheme: str | None = None
    """``http`` or ``https``."""
    host: str | None = None
    """Host and port, ready for a URL; without the port if it is the scheme's default."""
    prefix: str = ""
    """Path in front of every path of this broker, without a slash at its end."""
    client: str | None = None
    """IP address of the client; None: the proxy names none."""

    def base_url(self, advertised_url: str) -> str:
        """Return the URL in front of every path.

        ``advertised_url`` (``http://host:port``) has the place of the parts that are not known.
        """
        scheme, _, host = advertised_url.partition("://")
        return f"{self.scheme or scheme}://{self.host or host}{self.prefix}"


@dataclass(frozen=True, slots=True)
class TrustedProxies:
    """The networks of ``[listeners] forwarded_from``. Immutable."""

    networks: tuple[Network, ...] = ()

    def includes(self, address: str | None) -> bool:
        """Return True if connections from this IP address are a trusted proxy's."""
        return self.networks != () and self._includes(_ip(address))

    def _includes(self, found: IpAddress | None) -> bool:
        return found is not None and any(found in network for network in self.networks)

    def forwarded_by(self, lines: Sequence[tuple[str, str]]) -> Forwarded | None:
        """Return what a trusted proxy reports; None if the request was not forwarded.

        ``lines`` holds names and values of the request's headers, in order.
        """
        found: dict[str, list[str]] = {}
        for name, value in lines:
            lower = name.lower()
            if lower.startswith("x-forwarded-") or lower == "forwarded":
                found.setdefault(lower, []).append(value)
        if not any(name.lower() in found for name in HEADERS):
            return None
        hops = list(_hops(found.get("forwarded", ())))
        first = hops[0] if hops else {}
        if not ("host" in first or "proto" in first):
            first = {
                name: _first(found.get(f"x-forwarded-{name}")) for name in ("proto", "host", "port")
            }
        scheme = _scheme(first.get("proto"))
        return Forwarded(
            scheme=scheme,
            host=_authority(first.get("host"), first.get("port"), scheme),
            prefix=_prefix(found.get("x-forwarded-prefix") or found.get("x-forwarded-path")),
            client=self._client([hop.get("for", "") for hop in hops] or _chain(found)),
        )

    def _client(self, chain: Sequence[str]) -> str | None:
        """Return the right-most address of a chain that is no trusted proxy's.

        What is further to the left was written by the client itself. None if an entry before that
        is not an IP address.
        """
        leftmost = None
        for entry in list(reversed(chain))[:HOPS_MAX]:
            found = _ip(_bare(entry))
            if found is None:
                return leftmost
            leftmost = str(found)
            if not self._includes(found):
                return leftmost
        return leftmost


NO_PROXIES: Final = TrustedProxies()
"""No proxy is trusted: the headers of forwarded requests have no effect."""


def _hops(lines: Sequence[str]) -> Iterator[dict[str, str]]:
    """Yield the elements of ``Forwarded``; the first malformed one ends them."""
    for line in lines:
        at, hop = 0, dict[str, str]()
        while at < len(line):
            match = _PAIR.match(line, at)
            if match is None:
                return
            quoted = match[2]
            value = match[3] if quoted is None else re.sub(r"\\(.)", r"\1", quoted)
            hop.setdefault(match[1].lower(), value)
            at = match.end()
            if match[4] != ";":
                yield hop
                hop = {}
        if hop:
            yield hop


def _first(lines: Sequence[str] | None) -> str:
    return lines[0].partition(",")[0].strip() if lines else ""


def _chain(found: dict[str, list[str]]) -> list[str]:
    lines = found.get("x-forwarded-for", ())
    return [entry.strip() for line in lines for entry in line.rsplit(",", HOPS_MAX)]


def _scheme(text: str | None) -> str | None:
    lower = (text or "").lower()
    return lower if lower in DEFAULT_PORTS else None


def _authority(host: str | None, port: str | None, scheme: str | None) -> str | None:
    """Return host and port for a URL; a port of the host's own goes before ``port``."""
    match = _HOST.fullmatch(host or "")
    if match is None or len(match[0]) > PREFIX_CHARS_MAX:
        return None
    if match[1].startswith("[") and _ip(match[1][1:-1]) is None:
        return None
    number = match[2] or (port if port and _PORT.fullmatch(port) else "")
    if number and not 0 < int(number) < 65_536:
        return None
    if not number or int(number) == DEFAULT_PORTS[scheme or "http"]:
        return match[1]
    return f"{match[1]}:{int(number)}"


def _prefix(lines: Sequence[str] | None) -> str:
    text = _first(lines)
    if len(text) > PREFIX_CHARS_MAX or not _PREFIX.fullmatch(text):
        return ""
    path = text.rstrip("/")
    return "" if {".", ".."} & set(path.split("/")) else path


def _bare(entry: str) -> str:
    """Return an address without its port and brackets (RFC 7239, section 6)."""
    text = entry.strip().strip('"')
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0] if text.count(":") == 1 else text


def _ip(text: str | None) -> IpAddress | None:
    """Return an IP address; one of IPv4 that is written as IPv6 is the former."""
    try:
        found = ipaddress.ip_address(text or "")
    except ValueError:
        return None
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return mapped or found
