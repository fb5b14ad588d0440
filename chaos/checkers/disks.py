"""Checks of disk faults: the error that writers receive, and the exit status of the node."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from chaos.checkers.verdict import Verdict, verdict

if TYPE_CHECKING:
    from chaos.history import History


def check_told(history: History, words: str) -> Verdict:
    """Check that attempts were refused with this text, each as surely not written."""
    saying = [failure for failure in history.unacknowledged if words in failure.reason]
    unknown = sum(1 for failure in saying if failure.unknown)
    faults = [] if saying else [f"nobody was told {words!r}"]
    if unknown:
        faults.append(f"{unknown} of them left it open whether they wrote")
    return verdict("the fault is told to writers", f"{len(saying)} refused: {words}", faults)


def check_ended_with(said: str, node: str, status: int) -> Verdict:
    """Check that the node's process ended with this exit status, and with no other.

    Args:
        said: the output of `quorumlog up`.
        node: its name, such as ``broker-1``.
        status: the documented one.
    """
    found = [int(one) for one in re.findall(rf"{re.escape(node)} ended exit=(\d+) ", said)]
    faults = [f"exit {one}, expected {status}" for one in found if one != status]
    if not found:
        faults.append(f"{node} was not seen to end")
    return verdict("the node ends as documented", f"{node} ended with {found}", faults)
