"""Pages of v3 lists: `page_of` cuts the page out of a list that a query names.

A list is ordered by keys of names and numbers that stay with their items. A token names the key of
the last item of a page, and the next page begins behind that key; so whatever is there throughout
is in exactly one page, though items come and go between the requests. Tokens are opaque to clients
and hold on any broker, after any restart.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar
from urllib.parse import urlencode

import orjson

from http_api.contract.operations.parameters import bad_parameter
from http_api.contract.operations.shared import PAGE_SIZE, PAGE_TOKEN

T = TypeVar("T")

PageKey = tuple[str | int, ...]
"""Names and numbers of an item, the same kinds in the same places for all items of a list."""
_EXPECTED = f"the {PAGE_TOKEN.name} of the `metadata.next` of an earlier page of this list"


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Items of a page in order, and the URL of the next page; None at the end of the list."""

    items: Sequence[T]
    next_url: str | None


def page_of(
    query: Mapping[str, str], url: str, items: Iterable[T], key: Callable[[T], PageKey]
) -> Page[T]:
    """Return the page of ``items`` that a query names; all of them if it names no size.

    ``url`` is the list's without a query; the next page's has the other parameters of this one.

    Raises:
        RestError: 400/40002 for a size out of range, or a token of another list.
    """
    size = PAGE_SIZE.read_optional(query)
    token = PAGE_TOKEN.read(query)
    ordered = sorted(items, key=key)
    if token is not None:
        behind = _key_of(token, url)
        if ordered and tuple(map(type, key(ordered[0]))) != tuple(map(type, behind)):
            raise bad_parameter(PAGE_TOKEN.name, token, _EXPECTED)
        ordered = [item for item in ordered if key(item) > behind]
    if size is None or len(ordered) <= size:
        return Page(ordered, None)
    kept = ordered[:size]
    following = {**query, PAGE_TOKEN.name: _token_of(key(kept[-1]), url)}
    return Page(kept, f"{url}?{urlencode(following)}")


def _token_of(key: PageKey, url: str) -> str:
    text = orjson.dumps([_list_number(url), *key])
    return base64.urlsafe_b64encode(text).rstrip(b"=").decode()


def _key_of(token: str, url: str) -> PageKey:
    """Return the key in a token of this list."""
    try:
        padded = token.encode("ascii") + b"=" * (-len(token) % 4)
        text = base64.b64decode(padded, altchars=b"-_", validate=True)
        number, *key = orjson.loads(text)
    except (UnicodeEncodeError, binascii.Error, orjson.JSONDecodeError, TypeError, ValueError):
        raise bad_parameter(PAGE_TOKEN.name, token, _EXPECTED) from None
    if number != _list_number(url) or not all(type(part) in {str, int} for part in key):
        raise bad_parameter(PAGE_TOKEN.name, token, _EXPECTED)
    return tuple(key)


def _list_number(url: str) -> int:
    """Return a number that stands for a list's path, so that no other list takes its tokens.

    The host is left out: any broker may answer the next page.
    """
    return binascii.crc32(url.partition("/v3/")[2].encode())
