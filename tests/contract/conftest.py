"""The door every contract test knocks at."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.http_door import Door, open_door


@pytest.fixture
async def door() -> AsyncIterator[Door]:
    async with open_door() as opened:
        yield opened
