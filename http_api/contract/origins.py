"""Origins of web pages, and CORS: headers that let pages of other origins use the listener. Pure.

CORS (Fetch standard) is off unless ``cors.allowed.origins`` names origins. `app.py` answers a
preflight with `preflight_headers`, and adds `answer_headers` to every other answer. An allowed
origin passes the check of foreign pages (`foreign_pages.py`), too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

_HOST: Final = re.compile(r"(\[[0-9a-f:.]{2,45}\]|[a-z0-9._-]{1,255})(?::([0-9]{1,5}))?")
_ORIGIN: Final = re.compile(r"(https?)://(.{1,300})")
DEFAULT_PORTS: Final = {"http": 80, "https": 443}

Authority = tuple[str, int | None]
"""Host in lower case, without brackets, and port; None: the scheme's default."""
Origin = tuple[str, str, int]
"""Scheme, host and port, all in lower case."""


def parse_authority(text: str) -> Authority | None:
    """Return the host and the port of ``host[:port]``, or None if ``text`` has another form."""
    match = _HOST.fullmatch(text.lower())
    if match is None:
        return None
    return match[1].strip("[]").rstrip("."), None if match[2] is None else int(match[2])


def parse_origin(text: str) -> Origin | None:
    """Return the origin that a browser sent, or None for ``null`` and any other text."""
    match = _ORIGIN.fullmatch(text.lower())
    found = None if match is None else parse_authority(match[2])
    if match is None or found is None:
        return None
    return match[1], found[0], found[1] or DEFAULT_PORTS[match[1]]


ANY_ORIGIN: Final = "*"
MAX_AGE_S: Final = 600
"""Time for which a browser may remember the answer to a preflight."""
OUR_REQUEST_HEADERS: Final = (
    "Quorumlog-Attempt",
    "Quorumlog-Chunk",
    "Quorumlog-Client-Id",
    "Quorumlog-Producer-Epoch",
    "Quorumlog-Producer-Id",
    "Quorumlog-Rack",
    "Quorumlog-Sequence",
    "Quorumlog-Transaction",
    "Quorumlog-Transaction-Epoch",
    "Quorumlog-Transaction-Group",
    "Quorumlog-Transaction-Number",
)
ALLOWED_HEADERS: Final = (
    "Content-Type",
    "Accept",
    "Authorization",
    "Last-Event-ID",
    "X-Request-Id",
    "Idempotency-Key",
    *OUR_REQUEST_HEADERS,
)
"""Request headers that a page may set; browsers know no pattern such as ``Quorumlog-*``."""


@dataclass(frozen=True, slots=True)
class AllowedOrigins:
    """The origins of ``cors.allowed.origins``. Immutable."""

    named: frozenset[Origin] = frozenset()
    takes_any: bool = False
    """True: pages of any origin are served, those that are not named without credentials."""

    def __bool__(self) -> bool:
        """Return False if CORS is off."""
        return self.takes_any or bool(self.named)

    def allows(self, origin: str) -> bool:
        """Return True if pages of this origin may use the listener."""
        return self.takes_any or self._names(origin)

    def _names(self, origin: str) -> bool:
        return bool(self.named) and parse_origin(origin) in self.named

    def answer_headers(self, origin: str, carried: Iterable[str]) -> dict[str, str]:
        """Return the CORS headers of an answer; ``carried`` holds the names of its own headers.

        ``Vary`` is for the caller to add, where `varies`.
        """
        if self._names(origin):
            headers = {
                "Access-Control-Allow-Origin": origin,
                "Access-Control-Allow-Credentials": "true",
            }
        elif self.takes_any:
            headers = {"Access-Control-Allow-Origin": ANY_ORIGIN}
        else:
            return {}
        exposed = [name for name in carried if name.lower().startswith("quorumlog-")]
        if exposed:
            headers["Access-Control-Expose-Headers"] = ", ".join(exposed)
        return headers

    @property
    def varies(self) -> bool:
        """True if the headers depend on the request's origin."""
        return bool(self.named)


NO_ORIGINS: Final = AllowedOrigins()
"""CORS is off."""


def allowed_origins(items: Iterable[str]) -> AllowedOrigins:
    """Return the origins that a list names: ``https://host:port``, or `ANY_ORIGIN`."""
    texts = tuple(items)
    found = (parse_origin(text) for text in texts)
    return AllowedOrigins(frozenset(one for one in found if one is not None), ANY_ORIGIN in texts)


def preflight_headers(methods: Iterable[str]) -> dict[str, str]:
    """Return the headers of the answer to a preflight, besides `AllowedOrigins.answer_headers`."""
    return {
        "Access-Control-Allow-Methods": ", ".join(methods),
        "Access-Control-Allow-Headers": ", ".join(ALLOWED_HEADERS),
        "Access-Control-Max-Age": str(MAX_AGE_S),
    }
