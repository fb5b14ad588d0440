"""Fields of a v3 request body: types are checked here.

Routes call these functions. Ranges and meaning are checked by the controller or broker that carries
the command out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from http_api.contract.errors import RestCode, RestError, shown, shown_value
from http_api.contract.v2 import check_name
from raft_metadata.common.ids import BrokerId, TopicName

if TYPE_CHECKING:
    from collections.abc import Sequence

_INT32_MAX = 2**31 - 1


def check_fields(fields: dict[str, Any], known: Sequence[str], where: str = "") -> None:
    """Refuse unknown fields: an ignored field is more likely mistyped than superfluous.

    ``where`` is a prefix for the field's name in the message.
    """
    for name in sorted(fields):
        if name not in known:
            said = f"unknown field '{shown(where + name)}': expected {', '.join(known)}"
            raise RestError(400, RestCode.BAD_REQUEST, said)


def wrong_kind(field: str, value: object, expected: str) -> RestError:
    """Return the 400 that names the field, its value and the expectation."""
    said = f"Bad Request: '{field}' is {shown_value(value)}, expected {expected}"
    return RestError(400, RestCode.BAD_REQUEST, said)


def integer(fields: dict[str, Any], name: str) -> int | None:
    """Return a 32-bit integer, or None where the field is absent or null."""
    value = fields.get(name)
    if value is None:
        return None
    if not is_integer(value):
        raise wrong_kind(name, value, "an integer")
    return int(value)


def needed_integer(fields: dict[str, Any], name: str) -> int:
    """Return a 32-bit integer that must be present."""
    value = fields.get(name)
    if not is_integer(value):
        raise wrong_kind(name, value, "an integer")
    return int(value)  # type: ignore[arg-type] # it is an integer


def is_integer(value: object) -> bool:
    """Return True for a 32-bit integer that is no boolean."""
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _INT32_MAX


def flag(fields: dict[str, Any], name: str) -> bool:
    """Return a boolean; absent or null is false."""
    value = fields.get(name) or False
    if not isinstance(value, bool):
        raise wrong_kind(name, value, "true or false")
    return value


def word(fields: dict[str, Any], name: str, words: Sequence[str], default: str | None) -> str:
    """Return one of a few words; the field is mandatory if ``default`` is None."""
    value = fields.get(name, default)
    if not isinstance(value, str) or value not in words:
        raise wrong_kind(name, value, " or ".join(f'"{each}"' for each in words))
    return value


def rows(fields: dict[str, Any], limit: int, expected: str) -> list[dict[str, Any]]:
    """Return the objects of ``data``: at least one, at most ``limit`` (else 413)."""
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
    """Return ``topic_name`` of a body, checked."""
    name = fields.get("topic_name")
    if not isinstance(name, str):
        raise wrong_kind("topic_name", name, "a string")
    return TopicName(check_name("topic_name", name))


def broker_ids(field: str, value: object) -> tuple[BrokerId, ...]:
    """Return a list of broker ids as a tuple."""
    if not isinstance(value, list) or not all(map(is_integer, value)):
        raise wrong_kind(field, value, "a list of broker ids like [1, 2, 3]")
    return tuple(map(BrokerId, value))


def config_text(name: str, value: object) -> str | None:
    """Return a config's value as text; numbers and booleans are taken in their JSON spelling."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return str(value)
    if not isinstance(value, str | None):
        raise wrong_kind(name, value, "a string")
    return value
