"""The door every contract test knocks at."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.support.http_door import FAST_LANE, Door, open_door

BOTH_WAYS = (
    "tests/contract/test_v2_produce.py",
    "tests/contract/test_v2_fetch.py",
    "tests/contract/test_produce_contradictions.py",
    "tests/contract/test_produce_forms.py",
    "tests/contract/test_record_places.py",
    "tests/contract/test_transactional_produce.py",
)
"""Run with the fast lane and without it."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.definition.nodeid.startswith(BOTH_WAYS):
        metafunc.parametrize("fast_lane", [True, False], ids=["lane", "usual"], indirect=True)


@pytest.fixture(autouse=True)
def fast_lane(request: pytest.FixtureRequest) -> Iterator[None]:
    token = FAST_LANE.set(getattr(request, "param", True))
    yield
    FAST_LANE.reset(token)


@pytest.fixture
async def door() -> AsyncIterator[Door]:
    async with open_door() as opened:
        yield opened
