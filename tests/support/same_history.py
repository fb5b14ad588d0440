"""Comparison of what the controllers of a live cluster report about one history."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chaos.checkers.verdict import Verdict, verdict

if TYPE_CHECKING:
    from collections.abc import Mapping


def common_index(states: Mapping[int, Mapping[str, object]]) -> int | None:
    """Return the newest Raft entry that every controller has applied.

    None if one does not report it.

    Args:
        states: controller → the body of its ``/controller/v1/state``.
    """
    applied = [state.get("applied_index") for state in states.values()]
    known = [index for index in applied if isinstance(index, int)]
    return min(known) if known and len(known) == len(applied) else None


def check_same_history(states: Mapping[int, Mapping[str, object]], controllers: int) -> Verdict:
    """Check that the controllers' state machines have equal hashes at equal indexes (R12).

    Args:
        states: controller → its ``/controller/v1/state?index=N``, with the same N for all.
        controllers: their number; one that did not answer proves nothing.
    """
    faults = [] if len(states) == controllers > 1 else [f"{len(states)} of {controllers} answered"]
    histories: dict[tuple[object, object, object], list[int]] = {}
    for controller, state in states.items():
        reported = state.get("state_hash")
        if not isinstance(reported, dict) or reported.get("value") is None:
            faults.append(f"controller {controller} has no hash there: {reported}")
        else:
            key = (reported.get("index"), reported.get("next_offset"), reported["value"])
            histories.setdefault(key, []).append(controller)
    if len(histories) > 1:
        faults += [f"controllers {several}: {key}" for key, several in histories.items()]
    index, offset, _ = next(iter(histories), (None, None, None))
    figures = f"{len(states)} controllers at entry {index}, metadata offset {offset}"
    return verdict("controllers have one history", figures, faults)
