"""Path and query parameters of a request, parsed strictly.

Routes call these functions. A refusal is a `RestError` that names the value and the expectation.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from http_api.contract.errors import RestCode, RestError, shown
from http_api.contract.v2 import check_name
from raft_metadata.common.ids import BrokerId, PartitionId, TopicName

if TYPE_CHECKING:
    from collections.abc import Mapping

_INTEGER = re.compile(r"-?[0-9]{1,18}")
"""At most 18 digits, which always fit into 64 bits."""
_TRUE = {"true": True, "false": False}


def topic_name(raw: str) -> TopicName:
    """Return a topic's name from a path; `check_name` raises the refusals."""
    return TopicName(check_name("topic_name", raw))


def partition_id(raw: str) -> PartitionId:
    """Return a partition's number from a path; no number is a 404, as no such resource exists."""
    return PartitionId(_path_integer(raw))


def broker_id(raw: str) -> BrokerId:
    """Return a broker's id from a path; no number is a 404."""
    return BrokerId(_path_integer(raw))


def _path_integer(raw: str) -> int:
    if not _INTEGER.fullmatch(raw):
        raise RestError(
            404, RestCode.NOT_FOUND, f"HTTP 404 Not Found: '{shown(raw)}' is not a number"
        )
    return int(raw)


def bad_parameter(name: str, value: str | None, expected: str) -> RestError:
    """Return the 400 for a query parameter; ``value`` None: the parameter is missing."""
    got = "is missing" if value is None else f"is '{shown(value)}'"
    return RestError(
        400, RestCode.KAFKA_BAD_REQUEST, f"Parameter '{name}' {got}: expected {expected}"
    )


def integer(raw: str) -> int | None:
    """Return the number that ``raw`` spells in decimal (at most 18 digits), or None."""
    return int(raw) if _INTEGER.fullmatch(raw) else None


def query_integer(
    query: Mapping[str, str], name: str, default: int | None, low: int, high: int
) -> int:
    """Return a number of the query between ``low`` and ``high``; mandatory without ``default``."""
    raw = query.get(name)
    if raw is None and default is not None:
        return default
    if raw is None or not _INTEGER.fullmatch(raw) or not low <= int(raw) <= high:
        raise bad_parameter(name, raw, f"an integer from {low} to {high}")
    return int(raw)


def query_flag(query: Mapping[str, str], name: str) -> bool:
    """Return a ``true`` or ``false`` of the query; absent is false."""
    raw = query.get(name, "false")
    value = _TRUE.get(raw.lower())
    if value is None:
        raise bad_parameter(name, raw, "true or false")
    return value
