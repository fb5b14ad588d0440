"""Checks of faults: felt, survived in time, reported as documented, with enough load around them.

A run proves something only if its faults were felt, enough was acknowledged around them, and no
node ended by itself or bypassed its proxies. Gaps in acknowledgements after a fault are limited. A
disk fault must be reported to writers, and its node must end with the documented status.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from chaos.checkers.verdict import Verdict, verdict

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from chaos.history import Fault, History


@dataclass(frozen=True, slots=True)
class Gap:
    """Milliseconds in which a partition acknowledged nothing although a record waited."""

    ms: int
    partition: int


def windows(history: History) -> list[tuple[Fault, int | None]]:
    """Return each fault with the time of the next one (None: until the end)."""
    ends: list[int | None] = [fault.at_ms for fault in history.faults[1:]]
    return list(zip(history.faults, [*ends, None], strict=False))


def longest_produce_gap(history: History, since_ms: int, until_ms: int | None) -> Gap:
    """Return the longest gap that ended in the window, over all partitions.

    A partition's gap ends with an acknowledgement and begins with the one before, or when the
    record was due if that is later: time counts only while a record waits. Rows that were never
    acknowledged end no gap; `check_load` reports them.
    """
    last: dict[int, int] = {}
    longest = Gap(0, -1)
    for ack in sorted(history.acknowledgements, key=lambda ack: ack.answered_ms):
        in_window = ack.answered_ms >= since_ms and (until_ms is None or ack.answered_ms < until_ms)
        for partition in {position.partition for position in ack.positions}:
            waited = ack.answered_ms - max(ack.due_ms, last.get(partition, ack.due_ms))
            last[partition] = ack.answered_ms
            if in_window and waited > longest.ms:
                longest = Gap(waited, partition)
    return longest


def check_produce_gap(
    history: History, fault: Fault, until_ms: int | None, limit_ms: int
) -> Verdict:
    """Check that writes continued within the limit after the fault."""
    gap = longest_produce_gap(history, fault.at_ms, until_ms)
    faults = [] if gap.ms <= limit_ms else [f"partition {gap.partition}: {gap.ms} ms"]
    if not any(ack.answered_ms > fault.at_ms for ack in history.acknowledgements):
        faults.append("nothing was acknowledged after the fault")
    return verdict(
        f"writes go on: {fault.name}",
        f"longest gap between acknowledgements {gap.ms / 1000:.2f} s, "
        f"limit {limit_ms / 1000:g} s; {fault.target}; {fault.evidence}",
        faults,
    )


def check_metadata_gap(
    history: History, fault: Fault, until_ms: int | None, limit_ms: int
) -> Verdict:
    """Check that metadata writes continued within the limit after the fault."""
    answers = [write.answered_ms for write in history.metadata_writes if write.ok]
    before = [at for at in answers if at <= fault.at_ms]
    after = [at for at in answers if at > fault.at_ms and (until_ms is None or at < until_ms)]
    marks = [before[-1] if before else fault.at_ms, *after]
    longest = max((b - a for a, b in zip(marks, after, strict=False)), default=0)
    faults = [] if longest <= limit_ms else [f"{longest} ms without a metadata write"]
    if not before or not after:
        faults.append(f"{len(before)} metadata writes before the fault, {len(after)} after it")
    return verdict(
        f"metadata writes go on: {fault.name}",
        f"longest gap between metadata writes {longest / 1000:.2f} s, limit {limit_ms / 1000:g} s; "
        f"{len(after)} after it; {fault.target}; {fault.evidence}",
        faults,
    )


def check_load(history: History, min_load_after_fault_ms: int) -> Verdict:
    """Check that enough was acknowledged for the other checks to mean something.

    All input rows must be, and after each fault there must be load for long enough, on every
    partition that had any before it. A run in which everything is unknown or refused is
    inconclusive and fails.
    """
    rows = {position.row for ack in history.acknowledgements for position in ack.positions}
    faults: list[str] = []
    if len(rows) != len(history.records):
        faults.append(f"{len(history.records) - len(rows)} rows were never acknowledged")
    seen = [
        (ack.answered_ms, {position.partition for position in ack.positions})
        for ack in history.acknowledgements
    ]
    last = max((at for at, _ in seen), default=0)
    shortest: int | None = None
    for fault, until in windows(history):
        before = {p for at, partitions in seen if at < fault.at_ms for p in partitions}
        after = {
            p
            for at, partitions in seen
            if at > fault.at_ms and (until is None or at < until)
            for p in partitions
        }
        if before - after:
            faults.append(f"after {fault.name}: nothing on partitions {sorted(before - after)}")
        followed = (last if until is None else until) - fault.at_ms
        shortest = followed if shortest is None else min(shortest, followed)
        if followed < min_load_after_fault_ms:
            faults.append(f"only {followed} ms of load after {fault.name}")
    refused = sum(1 for failure in history.unacknowledged if not failure.unknown)
    unknown = len(history.unacknowledged) - refused
    return verdict(
        "everything sent was acknowledged in the end",
        f"{len(rows):,} of {len(history.records):,} rows in {len(seen):,} answers, {refused} "
        f"refused, {unknown} unknown; at least {(shortest or 0) / 1000:.1f} s of load per fault",
        faults,
    )


def check_felt(history: History) -> Verdict:
    """Check that every fault has countable effects, and that each of them grew.

    A fault without evidence may not have happened; a run with one proves nothing.
    """
    faults = [] if history.faults else ["nothing was broken"]
    felt = []
    for fault in history.faults:
        if not fault.effects:
            faults.append(f"{fault.name}: no evidence of any effect")
        faults += [
            f"{fault.name}: {effect.what} stayed at {effect.after} (was {effect.before})"
            for effect in fault.effects
            if effect.after <= effect.before
        ]
        effects = ", ".join(f"{one.what} {one.before} → {one.after}" for one in fault.effects)
        felt.append(f"{fault.name} ({fault.target}): {effects}")
    return verdict("faults were felt", "; ".join(felt), faults)


def check_floor(
    history: History,
    partitions: int,
    floor: int,
    *,
    sheltered: Iterable[int] = (),
) -> Verdict:
    """Check that enough was acknowledged on every partition before, during and after each fault.

    A run in which everything became unknown or 503 would pass every other check although it proves
    nothing. `sheltered`: partitions that a fault may stop while it lasts; they must continue after
    it.
    """
    answered: dict[int, list[int]] = {partition: [] for partition in range(partitions)}
    for ack in history.acknowledgements:
        for position in ack.positions:
            answered.setdefault(position.partition, []).append(ack.answered_ms)
    spared = set(sheltered)
    faults: list[str] = [] if history.faults else ["nothing was broken"]
    least: int | None = None
    for name, since, until in _phases(history.faults):
        for partition, times in answered.items():
            if name.startswith("during") and partition in spared:
                continue
            count = sum(1 for at in times if since <= at < until)
            least = count if least is None else min(least, count)
            if count < floor:
                faults.append(f"partition {partition}: {count} acknowledged {name}")
    return verdict(
        "enough was acknowledged to prove something",
        f"at least {least or 0} per partition and window, floor {floor}; "
        f"{len(history.acknowledgements):,} in all",
        faults,
    )


def _phases(faults: list[Fault]) -> list[tuple[str, float, float]]:
    """Return (name, from, to) before, during and after each fault, in milliseconds."""
    found: list[tuple[str, float, float]] = []
    since = float("-inf")
    for fault in faults:
        found.append((f"before {fault.name}", since, fault.at_ms))
        since = fault.at_ms if fault.healed_ms is None else fault.healed_ms
        if fault.healed_ms is not None:
            found.append((f"during {fault.name}", fault.at_ms, fault.healed_ms))
    if faults:
        found.append((f"after {faults[-1].name}", since, float("inf")))
    return found


def check_bypass(connections: int, proxied: Mapping[str, int]) -> Verdict:
    """Check that no node reached another on a path without a proxy.

    Args:
        connections: made to the address that nodes are configured with and must not use.
        proxied: bytes that passed the proxies, by plane; 0 would mean that no node used them.
    """
    faults = [] if connections == 0 else [f"{connections} connections went round the proxies"]
    faults += [
        f"nothing went through the proxies of {plane}" for plane in proxied if not proxied[plane]
    ]
    if not proxied:
        faults.append("no proxy was looked at")
    figures = ", ".join(f"{plane} {count:,}" for plane, count in proxied.items())
    return verdict(
        "nodes keep to their proxies",
        f"{connections} connections elsewhere, bytes through proxies: {figures}",
        faults,
    )


def check_alive(
    before: Mapping[str, int | None], after: Mapping[str, int | None], killed: Collection[str]
) -> Verdict:
    """Check that no process ended except the killed ones.

    A broken invariant ends a node with a message in its log.

    Args:
        before: node → pid when everything was ready.
        after: the same at the end; a restarted node has another pid.
        killed: the nodes that the run itself killed.
    """
    faults = [
        f"{node} ended by itself (pid {pid}, now {after.get(node)}); read its log"
        for node, pid in before.items()
        if node not in killed and after.get(node) != pid
    ]
    if not before:
        faults.append("no process was looked at")
    return verdict(
        "no process ended by itself", f"{len(before)} nodes, {len(killed)} killed", faults
    )


def check_back_to_normal(name: str, took_ms: int | None, limit_ms: int, state: str) -> Verdict:
    """Check that every replica was in sync again within the limit after the heal (None: never)."""
    late = took_ms is None or took_ms > limit_ms
    took = "never" if took_ms is None else f"after {took_ms / 1000:.1f} s"
    return verdict(
        f"whole again: {name}",
        f"{state} {took}, limit {limit_ms / 1000:g} s",
        [f"{state} {took}"] if late else [],
    )


def check_logs(logs: Mapping[str, str]) -> Verdict:
    """Check that no node logged a stack trace: an expected failure is logged in a line of its own.

    Args:
        logs: node → the log output of all its lives.
    """
    stacks = {node: text.count("Traceback (most recent call last)") for node, text in logs.items()}
    faults = [
        f"{node} wrote {count} stacks; read its log" for node, count in stacks.items() if count
    ]
    if not any(logs.values()):
        faults.append("no log was looked at")
    lines = sum(text.count("\n") for text in logs.values())
    return verdict("nodes know what befell them", f"{lines:,} lines in {len(logs)} logs", faults)


def check_refused_with(history: History, words: str) -> Verdict:
    """Check that attempts were refused with this text, each as surely not written."""
    saying = [failure for failure in history.unacknowledged if words in failure.reason]
    unknown = sum(1 for failure in saying if failure.unknown)
    faults = [] if saying else [f"nobody was told {words!r}"]
    if unknown:
        faults.append(f"{unknown} of them left it open whether they wrote")
    return verdict("the fault is told to writers", f"{len(saying)} refused: {words}", faults)


def check_ended_with(output: str, node: str, status: int) -> Verdict:
    """Check that the node's process ended with this exit status, and with no other.

    Args:
        output: the output of `quorumlog up`.
        node: its name, such as ``broker-1``.
        status: the documented one.
    """
    found = [int(one) for one in re.findall(rf"{re.escape(node)} ended exit=(\d+) ", output)]
    faults = [f"exit {one}, expected {status}" for one in found if one != status]
    if not found:
        faults.append(f"{node} was not seen to end")
    return verdict("the node ends as documented", f"{node} ended with {found}", faults)
