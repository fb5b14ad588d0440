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


@dataclass(frozen=True, slots=True)
class PageRequest:
    """The page that a query names: how many rows at most, and behind which key."""

    query: Mapping[str, str]
    url: str
    size: int | None
    behind: PageKey | None

    @classmethod
    def of(cls, query: Mapping[str, str], url: str) -> PageRequest:
        """Return the page of the list at ``url`` (without a query) that ``query`` names.

        Raises:
            RestError: 400/40002 for a size out of range, or a token of another list.
        """
        size = PAGE_SIZE.read_optional(query)
        token = PAGE_TOKEN.read(query)
        return cls(query, url, size, None if token is None else _key_of(token, url))

    def holds(self, key: PageKey) -> bool:
        """Return True if an item belongs to this page or to one behind it.

        Raises:
            RestError: 400/40002, the token's key is of another kind than this list's.
        """
        if self.behind is None:
            return True
        if tuple(map(type, key)) != tuple(map(type, self.behind)):
            raise bad_parameter(PAGE_TOKEN.name, self.query[PAGE_TOKEN.name], _EXPECTED)
        return key > self.behind

    def next_url(self, last: PageKey) -> str:
        """Return the URL of the next page; it has the other parameters of this one."""
        following = {**self.query, PAGE_TOKEN.name: _token_of(last, self.url)}
        return f"{self.url}?{urlencode(following)}"


def page_of(
    query: Mapping[str, str], url: str, items: Iterable[T], key: Callable[[T], PageKey]
) -> Page[T]:
    """Return the page of ``items`` that a query names; all of them if it names no size.

    Raises:
        RestError: as `PageRequest.of`.
    """
    wanted = PageRequest.of(query, url)
    ordered = sorted((item for item in items if wanted.holds(key(item))), key=key)
    if wanted.size is None or len(ordered) <= wanted.size:
        return Page(ordered, None)
    kept = ordered[: wanted.size]
    return Page(kept, wanted.next_url(key(kept[-1])))


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
