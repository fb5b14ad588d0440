"""What the summary of a run says of its integration tests."""

from __future__ import annotations

from _pytest.terminal import TerminalReporter

from tests.support import power_cut


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    """Never a silent stand-in (rules.md K): which kind of power was cut, and why not the other."""
    if not power_cut.cuts_by_kind:
        return
    terminalreporter.section("power cuts")
    for kind, cuts in power_cut.cuts_by_kind.items():
        terminalreporter.line(f"{cuts} × {kind}")
    if power_cut.why_no_loop():
        terminalreporter.line(f"no true power loss on this machine: {power_cut.why_no_loop()}")
