"""Check of the names in a request's query, by the declaration of its route. Pure.

`app.py` calls `check_parameters` for every request with a query that the routes handle, before the
handler parses values. A parameter without a meaning here is more likely mistyped than superfluous:
``?ack=0`` answered as if it had an effect would be a wrong answer. The fast lane leaves a query
with any other name than its own to the routes, so both refuse with the same text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from http_api.contract.errors import RestCode, RestError, excerpt
from http_api.contract.grammar import nearest

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

IGNORED_PARAMETERS_HEADER: Final = "Quorumlog-Ignored-Parameters"
IGNORED_PREFIX: Final = "_"
"""First character of names without a meaning: clients add such parameters to pass by caches."""
IGNORED_NAMED_MAX: Final = 32
"""Most ignored names in the header, to limit its size."""
IGNORED_CHARS_MAX: Final = 100
"""Longest part of an ignored name in the header."""


def check_parameters(given: Iterable[str], known: Collection[str]) -> tuple[str, ...]:
    """Return the names that are ignored, in order, each once.

    ``given`` holds the decoded name of each parameter of the query, ``known`` those of the route.

    Raises:
        RestError: 400/40002 for a name that is not declared, or that is given twice.
    """
    found: set[str] = set()
    ignored: dict[str, None] = {}
    for name in given:
        if name in known:
            if name in found:
                text = f"Parameter '{name}' is given twice: expected once"
                raise RestError(400, RestCode.KAFKA_BAD_REQUEST, text)
            found.add(name)
        elif name.startswith(IGNORED_PREFIX):
            ignored[name] = None
        else:
            raise _unknown(name, known)
    return tuple(ignored)


def _unknown(name: str, known: Collection[str]) -> RestError:
    """Return the refusal of a name that is not in ``known``, with the nearest one."""
    text = f"Parameter '{excerpt(name)}' is not known here"
    if not known:
        return RestError(400, RestCode.KAFKA_BAD_REQUEST, f"{text}: this path takes none")
    meant = nearest(name.lower(), known)
    hint = f": did you mean '{meant}'?" if meant is not None else "."
    text += f"{hint} Known: {', '.join(sorted(known))}"
    return RestError(400, RestCode.KAFKA_BAD_REQUEST, text)


def ignored_header(ignored: Collection[str]) -> str:
    """Return the value of `IGNORED_PARAMETERS_HEADER`: names as in a URL, which no name can end."""
    shown = [
        quote(name[:IGNORED_CHARS_MAX], safe="", errors="replace")
        for name in list(ignored)[:IGNORED_NAMED_MAX]
    ]
    if len(ignored) > IGNORED_NAMED_MAX:
        shown.append(f"and {len(ignored) - IGNORED_NAMED_MAX} more")
    return ", ".join(shown)
