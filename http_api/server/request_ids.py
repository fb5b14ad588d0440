"""``X-Request-Id`` of every answer: the client's own id, else a new one."""

from __future__ import annotations

import itertools
import re
import secrets

_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")


class RequestIds:
    """Source of request ids; one per listener, shared by the fast lane and the routes.

    New ids are a random prefix and a counter, so they are unique without a random draw per request.
    """

    def __init__(self) -> None:
        self._prefix = secrets.token_hex(4)
        self._count = itertools.count(1)

    def of(self, given: str | None) -> str:
        """Return the id for the answer: ``given`` if it is well formed, else a new one."""
        if given is None or not _REQUEST_ID.fullmatch(given):
            return f"{self._prefix}-{next(self._count):x}"
        return given
