"""What every test shares. Fixtures of one area live beside its tests or in tests/support."""

from __future__ import annotations

import os
import signal
import sys
from importlib import import_module
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

from tests.support import seeds, workers

POWER_CUT = "tests.support.power_cut"
"""The module that counts power cuts: loaded by the tests that use it, and to print the counts."""

# Properties draw new examples on a developer's machine and the same ones in CI: a red run there
# means the change. Both print the blob that repeats a failure. Deadlines measure the machine.
settings.register_profile(
    "developer", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("ci", parent=settings.get_profile("developer"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "developer")


def pytest_addoption(parser: pytest.Parser) -> None:
    seeds.add_options(parser)
    parser.addoption(
        "--rewrite-transcripts", action="store_true", help="write tests/transcripts anew"
    )


def pytest_configure(config: pytest.Config) -> None:
    seeds.choose_base(config)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # As in the background of a shell script. The programs that tests start would inherit it,
        # and no interrupt could end them.
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_report_header(config: pytest.Config) -> str:
    return seeds.describe(config)


# ---------------------------------------------------------------- the two workers


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling | None:
    is_by_units = config.getoption("dist") == "loadfile"
    return workers.UnitScheduling(config, log) if is_by_units else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):
        workers.sort_items(items)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Pass on from a worker what the summary counts."""
    sent: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
    if sent is not None and POWER_CUT in sys.modules:
        sent[POWER_CUT] = sys.modules[POWER_CUT].cuts_by_kind


def pytest_testnodedown(node: WorkerController) -> None:
    """Add what a worker counted, in the process that prints the summary."""
    received: dict[str, Any] = getattr(node, "workeroutput", {})
    for kind, cuts in received.get(POWER_CUT, {}).items():
        counted = import_module(POWER_CUT).cuts_by_kind
        counted[kind] = counted.get(kind, 0) + cuts


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print which kind of power was cut, and why not the other: no silent stand-in (rules.md K)."""
    power_cut = sys.modules.get(POWER_CUT)
    if power_cut is None or not power_cut.cuts_by_kind:
        return
    terminalreporter.section("power cuts")
    for kind, cuts in power_cut.cuts_by_kind.items():
        terminalreporter.line(f"{cuts} × {kind}")
    if power_cut.why_no_loop():
        terminalreporter.line(f"no true power loss on this machine: {power_cut.why_no_loop()}")
