"""Checks of leadership and metadata: one leader per epoch, one controller per term, few elections.

The last checks compare the metadata that the controllers have applied.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chaos.checkers.verdict import Verdict, verdict

if TYPE_CHECKING:
    from collections.abc import Mapping

    from chaos.history import Fault, History


def check_one_leader_and_controller(history: History) -> Verdict:
    """Check that no epoch of a partition had two leaders, and no term two active controllers."""
    leaders: dict[tuple[int, int], set[int]] = {}
    for leadership in history.leaderships:
        if leadership.leader is not None:
            leaders.setdefault((leadership.partition, leadership.epoch), set()).add(
                leadership.leader
            )
    active: dict[int, set[int]] = {}
    for report in history.controller_terms:
        active.setdefault(report.term, set()).add(report.controller)
    faults = [
        f"partition {partition} epoch {epoch}: leaders {sorted(several)}"
        for (partition, epoch), several in leaders.items()
        if len(several) > 1
    ]
    faults += [
        f"term {term}: controllers {sorted(several)} say they are active"
        for term, several in active.items()
        if len(several) > 1
    ]
    if not leaders or not active:
        faults.append(f"{len(leaders)} epochs and {len(active)} terms were seen")
    return verdict(
        "one ruler per epoch and term",
        f"{len(leaders)} partition epochs, {len(active)} terms",
        faults,
    )


def check_churn(history: History, fault: Fault, terms_max: int) -> Verdict:
    """Check that controllers change at most `terms_max` times while a fault lasts.

    A controller that receives nothing must not depose, again and again, one that the majority
    follows. Without pre-votes, three depositions within 2 s were measured while the fault lasted.
    """
    until = float("inf") if fault.healed_ms is None else fault.healed_ms
    terms = {
        report.term for report in history.controller_terms if fault.at_ms <= report.seen_ms < until
    }
    faults = [] if len(terms) <= terms_max else [f"terms {sorted(terms)}"]
    if not history.controller_terms:
        faults.append("no reign was seen at all")
    return verdict(
        f"few elections: {fault.name}",
        f"{len(terms)} new terms in {(until - fault.at_ms) / 1000:.1f} s, at most {terms_max}",
        faults,
    )


def check_topics(history: History, present: frozenset[str]) -> Verdict:
    """Check that acknowledged creations and deletions of topics hold in the end.

    A name whose last attempt has an unknown outcome is not checked. The probe's writes read
    ``create NAME`` or ``delete NAME``.
    """
    last: dict[str, tuple[str, bool]] = {}
    for write in history.metadata_writes:
        verb, name = write.what.split(":", 1)[0].split()
        last[name] = (verb, write.ok)
    created = {name for name, state in last.items() if state == ("create", True)}
    deleted = {name for name, state in last.items() if state == ("delete", True)}
    faults = [f"{name} was created and is gone" for name in sorted(created - present)]
    faults += [f"{name} was deleted and is back" for name in sorted(deleted & present)]
    if not created or not deleted:
        faults.append(f"only {len(created)} creations and {len(deleted)} deletions to judge by")
    return verdict(
        "acknowledged metadata stays",
        f"{len(created)} topics created, {len(deleted)} deleted, "
        f"{sum(1 for write in history.metadata_writes if not write.ok)} attempts failed",
        faults,
    )


def check_stepped_down(took_ms: int | None, limit_ms: int) -> Verdict:
    """Check that a controller without a majority stopped being active within the limit.

    `took_ms` None: not measured, which fails.
    """
    late = took_ms is None or took_ms > limit_ms
    figures = "not looked at" if took_ms is None else f"after {took_ms / 1000:.2f} s"
    return verdict(
        "a cut-off controller stops ruling",
        f"{figures}, limit {limit_ms / 1000:g} s",
        [figures] if late else [],
    )


def check_controllers_agree(facts: Mapping[int, Mapping[str, object]]) -> Verdict:
    """Check that in the end every controller has applied the same records (rule M1).

    Args:
        facts: controller → its report of applied state; one that did not answer is missing.
    """
    faults = [] if len(facts) > 1 else [f"only {len(facts)} controllers answered"]
    first = next(iter(facts.values()), {})
    faults += [
        f"controller {controller}: {dict(reported)}, not {dict(first)}"
        for controller, reported in facts.items()
        if reported != first
    ]
    figures = ", ".join(f"{name} {value}" for name, value in first.items())
    return verdict("controllers agree", f"{len(facts)} of them: {figures}", faults)
