"""What every test shares. Fixtures of one area live beside its tests or in tests/support."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

from tests.support import seeds

# Properties draw new examples on a developer's machine and the same ones in CI: a red run there
# means the change. Both print the blob that repeats a failure. Deadlines measure the machine.
settings.register_profile(
    "developer", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("ci", parent=settings.get_profile("developer"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "developer")


def pytest_addoption(parser: pytest.Parser) -> None:
    seeds.add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    seeds.choose_base(config)


def pytest_report_header(config: pytest.Config) -> str:
    return seeds.describe(config)
