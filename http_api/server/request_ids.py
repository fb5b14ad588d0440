"""``X-Request-Id``: the client's own, else a new one."""

from __future__ import annotations

import itertools
import re
import secrets

_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")


class RequestIds:
    """New ones are a random prefix and a counter: unique without a random draw per request.

    One of a listener: both of its ways to an answer draw from it.
    """

    def __init__(self) -> None:
        self._prefix = secrets.token_hex(4)
        self._count = itertools.count(1)

    def of(self, given: str | None) -> str:
        """The id of an answer to a request that brought this one, or none."""
        if given is None or not _REQUEST_ID.fullmatch(given):
            return f"{self._prefix}-{next(self._count):x}"
        return given
