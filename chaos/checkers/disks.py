"""What a broken disk must be told as, and how a node on it must end."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from chaos.checkers.verdict import Verdict, verdict

if TYPE_CHECKING:
    from chaos.history import History


def check_told(history: History, words: str) -> Verdict:
    """Attempts were refused in these words, and each of them as one that wrote nothing."""
    saying = [failure for failure in history.unacknowledged if words in failure.reason]
    unknown = sum(1 for failure in saying if failure.unknown)
    faults = [] if saying else [f"nobody was told {words!r}"]
    if unknown:
        faults.append(f"{unknown} of them left it open whether they wrote")
    return verdict("the fault is told to writers", f"{len(saying)} refused: {words}", faults)


def check_ended_with(said: str, node: str, status: int) -> Verdict:
    """The supervisor saw the node's process end with this exit status, and with no other.

    Args:
        said: what `quorumlog up` printed.
        node: its name, as ``broker-1``.
        status: the documented one.
    """
    found = [int(one) for one in re.findall(rf"{re.escape(node)} ended exit=(\d+) ", said)]
    faults = [f"exit {one}, expected {status}" for one in found if one != status]
    if not found:
        faults.append(f"{node} was not seen to end")
    return verdict("the node ends as documented", f"{node} ended with {found}", faults)
