"""Checks that a run proves something.

Faults were felt, enough was written around them, no node ended by itself or bypassed its proxies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chaos.checkers.verdict import Verdict, verdict

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from chaos.history import Fault, History


def check_felt(history: History) -> Verdict:
    """Check that every fault has countable effects, and that each of them grew.

    A fault without evidence may not have happened; a run with one proves nothing.
    """
    faults = [] if history.faults else ["nothing was broken"]
    told = []
    for fault in history.faults:
        if not fault.effects:
            faults.append(f"{fault.name}: no evidence of any effect")
        faults += [
            f"{fault.name}: {effect.what} stayed at {effect.after} (was {effect.before})"
            for effect in fault.effects
            if effect.after <= effect.before
        ]
        felt = ", ".join(f"{one.what} {one.before} → {one.after}" for one in fault.effects)
        told.append(f"{fault.name} ({fault.target}): {felt}")
    return verdict("faults were felt", "; ".join(told), faults)


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
    for name, since, until in _windows(history.faults):
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


def _windows(faults: list[Fault]) -> list[tuple[str, float, float]]:
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
