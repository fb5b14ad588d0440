"""What every simulation shares."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture
def no_logs() -> Iterator[None]:
    """Nothing is logged while thousands of lives go wrong; whatever runs later logs again."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)
