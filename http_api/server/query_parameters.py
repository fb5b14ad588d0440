"""Query parameters: the check of their names by the route's declaration, the start of a read. Pure.

`app.py` calls `check_parameters` for every request with a query that the routes handle, before the
handler parses values. A parameter without a meaning here is more likely mistyped than superfluous:
``?ack=0`` answered as if it had an effect would be a wrong answer. The fast lane leaves a query
with any other name than its own to the routes, so both refuse with the same text.

`read_start` and `read_end` parse where a read begins and ends, in the grammar that the command line
uses, too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from broker.server.requests import UNKNOWN_EPOCH
from http_api.contract.errors import RestCode, RestError, excerpt
from http_api.contract.grammar import (
    POSITION_EXPECTED,
    AtOffset,
    FromTime,
    GrammarError,
    Position,
    nearest,
    parse_position,
)
from http_api.contract.operations.fetch_operations import (
    END_OFFSET,
    END_TIMESTAMP,
    LEADER_EPOCH,
    OFFSET,
    READ_TOPIC_ID,
    TIMESTAMP,
)
from http_api.contract.operations.parameters import bad_parameter
from http_api.contract.operations.shared import SEEN_EPOCH
from raft_metadata.common.ids import TopicId

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from http_api.contract.operations.parameters import IntegerParameter

IGNORED_PARAMETERS_HEADER: Final = "Quorumlog-Ignored-Parameters"
IGNORED_PREFIX: Final = "_"
"""First character of names without a meaning: clients add such parameters to pass by caches."""
IGNORED_NAMED_MAX: Final = 32
"""Most ignored names in the header, to limit its size."""
TOPIC_ID = re.compile(r"[A-Za-z0-9_-]{22}")
IGNORED_CHARS_MAX: Final = 100
"""Longest part of an ignored name in the header."""


def check_parameters(
    given: Iterable[str], known: Collection[str], ignorable: Collection[str] = ()
) -> tuple[str, ...]:
    """Return the names that are ignored, in order, each once.

    ``given`` holds the decoded name of each parameter of the query, ``known`` those of the route,
    ``ignorable`` those of ``http.ignored.parameters``.

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
        elif name.startswith(IGNORED_PREFIX) or name in ignorable:
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


@dataclass(frozen=True, slots=True)
class ReadEnd:
    """The end of a read, exclusive; of two bounds the earlier holds."""

    offset: int | None
    timestamp_ms: int | None
    """The read ends before the first record at or after this time."""


def read_end(query: Mapping[str, str], start: Position) -> ReadEnd | None:
    """Return the bounds that ``end_offset`` and ``end_timestamp`` name; None without one.

    Raises:
        RestError: 400/40002 for a value that is no number, or an end before the start.
    """
    end = ReadEnd(END_OFFSET.read_optional(query), END_TIMESTAMP.read_optional(query))
    if end.offset is None and end.timestamp_ms is None:
        return None
    if isinstance(start, AtOffset) and end.offset is not None and end.offset < start.offset:
        raise end_before_start(END_OFFSET.name, end.offset, start.offset)
    until_ms = end.timestamp_ms
    if isinstance(start, FromTime) and until_ms is not None and until_ms < start.timestamp_ms:
        raise end_before_start(END_TIMESTAMP.name, until_ms, start.timestamp_ms)
    return end


def offset_epoch(query: Mapping[str, str], position: Position) -> int:
    """Return ``leader_epoch``, the epoch of the offset to read from (KIP-320); -1 without one.

    Raises:
        RestError: 400/40002 for a value that is no epoch, or beside another position.
    """
    epoch = _epoch(query, LEADER_EPOCH)
    if epoch != UNKNOWN_EPOCH and not isinstance(position, AtOffset):
        text = "Parameter 'leader_epoch' belongs to an offset: expected it beside 'offset=N' only"
        raise RestError(400, RestCode.KAFKA_BAD_REQUEST, text)
    return epoch


def seen_epoch(query: Mapping[str, str]) -> int:
    """Return ``seen_epoch``, the largest leader epoch that the reader has seen; -1 without one.

    Raises:
        RestError: 400/40002 for a value that is no epoch.
    """
    return _epoch(query, SEEN_EPOCH)


def _epoch(query: Mapping[str, str], parameter: IntegerParameter) -> int:
    epoch = parameter.read_optional(query)
    return UNKNOWN_EPOCH if epoch is None else epoch


def topic_id_of(query: Mapping[str, str]) -> TopicId | None:
    """Return ``topic_id``, the topic that is meant; None without one.

    Raises:
        RestError: 400/40002 for a value that is no topic id.
    """
    topic_id = READ_TOPIC_ID.read(query)
    if topic_id is not None and not TOPIC_ID.fullmatch(topic_id):
        raise bad_parameter(READ_TOPIC_ID.name, topic_id, "22 characters, as in Quorumlog-Topic-Id")
    return None if topic_id is None else TopicId(topic_id)


def end_before_start(name: str, end: int, start: int) -> RestError:
    """Return the refusal of a read that ends before it begins."""
    return bad_parameter(name, str(end), f"at least the start of the read, {start}")


def read_start(query: Mapping[str, str]) -> Position:
    """Return the position that ``offset`` names, or the time in ``timestamp``.

    Raises:
        RestError: 400/40002 unless exactly one of them is given, in the grammar of positions.
    """
    offset = query.get(OFFSET.name)
    if TIMESTAMP.name in query:
        if offset is not None:
            text = "Parameters 'offset' and 'timestamp' are both given: expected one of them"
            raise RestError(400, RestCode.KAFKA_BAD_REQUEST, text)
        return FromTime(TIMESTAMP.read(query))
    if offset is None:
        raise bad_parameter(OFFSET.name, None, POSITION_EXPECTED)
    try:
        return parse_position(offset)
    except GrammarError as error:
        # In a query a bare + stands for a space, which no position has.
        hint = "; in a URL, write the + of a zone as %2B" if " " in offset else ""
        text = f"Parameter 'offset' is {error}{hint}"
        raise RestError(400, RestCode.KAFKA_BAD_REQUEST, text) from None
