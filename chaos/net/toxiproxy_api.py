"""Client of Toxiproxy's HTTP API through ``toxiproxy-python``, which only this module imports.

The library 0.1.1 keeps one server per process in class attributes, has no timeout on any request (a
paused server hangs its caller) and treats a 5xx as success (guarantees §5.2). Here each object has
a consumer class of its own, every request a timeout, and every answer is checked.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, NoReturn

try:
    import toxiproxy.api as library
    from toxiproxy.exceptions import InvalidToxic, NotFound, ProxyExists
except ImportError:  # pragma: no cover an installation without the extra
    library = None

REQUEST_TIMEOUT_S = (1.0, 2.0)
"""Timeouts to connect, and between two bytes of the answer; the server answers in under 10 ms."""
REQUESTS, ANSWERS = "upstream", "downstream"
_NO_PROXY_FOR_THIS = {"http": None, "all": None}
"""Disables the machine's HTTP_PROXY for requests to the local server."""
_METRIC = re.compile(
    r'^toxiproxy_proxy_(received|sent)_bytes_total\{direction="(\w+)",.*proxy="([^"]+)".*\} (\S+)$',
    re.MULTILINE,
)


class NetworkError(Exception):
    """The proxy server does not do what is requested, which makes a run's results meaningless."""


@dataclass(frozen=True, slots=True, order=True)
class Toxic:
    """An effect on one stream of a proxy's connections.

    `toxicity` is the share of them affected.
    """

    type: str
    stream: str
    attributes: tuple[tuple[str, int], ...]
    toxicity: float = 1.0

    @property
    def name(self) -> str:
        """The name that Toxiproxy gives to an unnamed toxic: one of a type per stream."""
        return f"{self.type}_{self.stream}"


@dataclass(frozen=True, slots=True)
class ProxyView:
    """A proxy as the server describes it, with its toxics by name."""

    name: str
    listen: str
    upstream: str
    enabled: bool
    toxics: tuple[tuple[str, Toxic], ...]


class ToxiproxyApi:
    """The API of one server.

    Blocking; owned by one `Network`, which calls it from one thread at a time.

    Raises:
        NetworkError: from every method: no answer in time, or an answer with an error.
    """

    def __init__(self, host: str, port: int) -> None:
        if library is None:
            msg = "toxiproxy-python is not installed: pip install 'quorumlog[chaos]'"
            raise NetworkError(msg)
        # A class per object, so that two servers in one process do not share an address.
        self._consumer = type("Consumer", (library.APIConsumer,), {"host": host, "port": port})

    def version(self) -> str:
        """Return the server's version; a server built from source returns ``git``."""
        return str(self._ask("GET", "/version").get("version", ""))

    def proxies(self) -> dict[str, ProxyView]:
        """Return every proxy with its toxics, by name."""
        return {name: _view(body) for name, body in self._ask("GET", "/proxies").items()}

    def create(self, name: str, listen: str, upstream: str) -> None:
        """Create a proxy that forwards `listen` to `upstream` (both ``host:port``)."""
        body = {"name": name, "listen": listen, "upstream": upstream, "enabled": True}
        self._ask("POST", "/proxies", body)

    def destroy(self, name: str) -> None:
        """Remove a proxy and close its connections."""
        self._ask("DELETE", f"/proxies/{name}")

    def enable(self, name: str, *, enabled: bool) -> None:
        """Enable or disable a proxy; disabling resets its connections and refuses new ones."""
        self._ask("POST", f"/proxies/{name}", {"enabled": enabled})

    def add_toxic(self, name: str, toxic: Toxic) -> None:
        """Add a toxic to a proxy; it affects open connections at once."""
        body = {
            "name": toxic.name,
            "type": toxic.type,
            "stream": toxic.stream,
            "toxicity": toxic.toxicity,
            "attributes": dict(toxic.attributes),
        }
        self._ask("POST", f"/proxies/{name}/toxics", body)

    def remove_toxic(self, name: str, toxic: str) -> None:
        """Remove a toxic; removing one that dropped all bytes closes its connections."""
        self._ask("DELETE", f"/proxies/{name}/toxics/{toxic}")

    def bytes_by_proxy(self) -> dict[str, dict[tuple[str, str], int]]:
        """Return, per proxy, bytes of ended connections by (``received`` or ``sent``, stream)."""
        found: dict[str, dict[tuple[str, str], int]] = {}
        for what, stream, proxy, count in _METRIC.findall(self._text("GET", "/metrics")):
            found.setdefault(proxy, {})[what, stream] = int(float(count))
        return found

    def _ask(self, method: str, path: str, body: object = None) -> Any:
        answer = self._request(method, path, body)
        if answer.status_code == 204:
            return {}
        try:
            return answer.json()
        except ValueError as error:
            _fail(method, path, f"not JSON: {answer.content[:200]!r}", error)

    def _text(self, method: str, path: str) -> str:
        return str(self._request(method, path, None).text)

    def _request(self, method: str, path: str, body: object) -> Any:
        options: dict[str, Any] = {"timeout": REQUEST_TIMEOUT_S, "proxies": _NO_PROXY_FOR_THIS}
        if body is not None:
            options["json"] = body
        call = getattr(self._consumer, method.lower())
        try:
            answer = call(path, **options)
        except (NotFound, ProxyExists, InvalidToxic) as error:
            _fail(method, path, f"{type(error).__name__}: {error}", error)
        except OSError as error:  # every exception of requests is one
            _fail(method, path, f"no answer: {error}", error)
        if answer.status_code >= 300:
            _fail(method, path, f"{answer.status_code} {answer.content[:200]!r}", None)
        return answer


def _fail(method: str, path: str, reason: str, cause: Exception | None) -> NoReturn:
    msg = f"toxiproxy {method} {path}: {reason}"
    raise NetworkError(msg) from cause


def _view(body: dict[str, Any]) -> ProxyView:
    toxics = sorted(
        (
            str(toxic["name"]),
            Toxic(
                type=str(toxic["type"]),
                stream=str(toxic["stream"]),
                toxicity=float(toxic["toxicity"]),
                attributes=tuple(sorted(toxic["attributes"].items())),
            ),
        )
        for toxic in body["toxics"]
    )
    return ProxyView(
        name=str(body["name"]),
        listen=str(body["listen"]),
        upstream=str(body["upstream"]),
        enabled=bool(body["enabled"]),
        toxics=tuple(toxics),
    )
