"""Fields of a v3 body: kinds are checked here, ranges and meaning by whoever acts on them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from http_api.contract.errors import RestCode, RestError, shown, shown_value
from http_api.contract.v2 import check_name
from raft_metadata.common.ids import BrokerId, TopicName

if TYPE_CHECKING:
    from collections.abc import Sequence

_INT32_MAX = 2**31 - 1


def check_fields(fields: dict[str, Any], known: Sequence[str], where: str = "") -> None:
    """Refuse a field that would be ignored: it is more likely mistyped than superfluous."""
    for name in sorted(fields):
        if name not in known:
            said = f"unknown field '{shown(where + name)}': expected {', '.join(known)}"
            raise RestError(400, RestCode.BAD_REQUEST, said)


def wrong_kind(field: str, value: object, expected: str) -> RestError:
    """400, naming the field, what it is, and what was expected."""
    said = f"Bad Request: '{field}' is {shown_value(value)}, expected {expected}"
    return RestError(400, RestCode.BAD_REQUEST, said)


def integer(fields: dict[str, Any], name: str) -> int | None:
    """A whole number of 32 bits, or None where it is absent or null."""
    value = fields.get(name)
    if value is None:
        return None
    if not is_integer(value):
        raise wrong_kind(name, value, "an integer")
    return int(value)


def needed_integer(fields: dict[str, Any], name: str) -> int:
    """As `integer`, and it must be there."""
    value = fields.get(name)
    if not is_integer(value):
        raise wrong_kind(name, value, "an integer")
    return int(value)  # type: ignore[arg-type] # it is an integer


def is_integer(value: object) -> bool:
    """Whether it is a whole number of 32 bits, and no boolean."""
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _INT32_MAX


def flag(fields: dict[str, Any], name: str) -> bool:
    """True or false; absent or null is false."""
    value = fields.get(name) or False
    if not isinstance(value, bool):
        raise wrong_kind(name, value, "true or false")
    return value


def word(fields: dict[str, Any], name: str, words: Sequence[str], default: str | None) -> str:
    """One of a few words; ``default`` None: it must be there."""
    value = fields.get(name, default)
    if not isinstance(value, str) or value not in words:
        raise wrong_kind(name, value, " or ".join(f'"{each}"' for each in words))
    return value


def rows(fields: dict[str, Any], limit: int, expected: str) -> list[dict[str, Any]]:
    """The objects of ``data``: at least one, at most ``limit``."""
    data = fields.get("data")
    if not isinstance(data, list) or not data:
        raise wrong_kind("data", data, f"a list of at least one {expected}")
    if len(data) > limit:
        said = f"{len(data)} rows of data, expected at most {limit}: send several requests"
        raise RestError(413, RestCode.TOO_LARGE, said)
    for row in data:
        if not isinstance(row, dict):
            raise wrong_kind("data", row, expected)
    return data


def topic_in(fields: dict[str, Any]) -> TopicName:
    """``topic_name`` of a body."""
    name = fields.get("topic_name")
    if not isinstance(name, str):
        raise wrong_kind("topic_name", name, "a string")
    return TopicName(check_name("topic_name", name))


def broker_ids(field: str, value: object) -> tuple[BrokerId, ...]:
    """A list of broker ids."""
    if not isinstance(value, list) or not all(map(is_integer, value)):
        raise wrong_kind(field, value, "a list of broker ids like [1, 2, 3]")
    return tuple(map(BrokerId, value))


def config_text(name: str, value: object) -> str | None:
    """A config's value; numbers and booleans are taken in their JSON spelling."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return str(value)
    if not isinstance(value, str | None):
        raise wrong_kind(name, value, "a string")
    return value
