"""The changes of a partition's ISR that the leader has sent and that may be committed. Pure.

A `LeaderState` holds the committed ISR and one `IsrState`, which the functions below replace:

    state       proposed    refused                  released     superseded
    committed   pending     -                        -            -
    pending     error       unresolved, committed    unresolved   overtaken
    unresolved  pending     unresolved, committed    -            committed
    overtaken   error       committed                committed    -

The last three columns name the fate of an attempt: *refused* is a certain answer of the controller,
*released* an answer without a certain outcome, *superseded* a higher partition epoch, from an image
or an answer. An accepted attempt is superseded and then released. Until its fate is known, each
attempt is part of the maximal ISR; a refusal removes only its own attempt (rule M3).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import assert_never

from raft_metadata.common.ids import BrokerEpoch, BrokerId, LeaderEpoch, PartitionEpoch

Attempts = Mapping[int, frozenset[BrokerId]]
"""The ISRs of attempts that may be committed, by the number of the attempt."""


class IsrChangeKind(Enum):
    """Purpose of an ISR change; the value begins its reason in logs and events."""

    EXPAND = "joined"
    SHRINK = "lag_time removed"
    CONFIRM = "settle unknown attempts"
    """The committed ISR is proposed again: its higher partition epoch settles earlier attempts."""


@dataclass(frozen=True, slots=True)
class IsrChange:
    """An ISR that the leader sends to the controller, once, as attempt ``attempt`` (rule M3)."""

    attempt: int
    leader_epoch: LeaderEpoch
    partition_epoch: PartitionEpoch
    isr: tuple[tuple[BrokerId, BrokerEpoch], ...]
    kind: IsrChangeKind
    replicas: tuple[BrokerId, ...] = ()
    """The replicas that join or leave."""

    @property
    def reason(self) -> str:
        """Text for logs and events: the kind, and the replicas that join or leave."""
        return f"{self.kind.value}={list(self.replicas)}" if self.replicas else self.kind.value


@dataclass(frozen=True, slots=True)
class CommittedIsr:
    """No attempt is in flight, and none may be committed: the maximal ISR is the committed one."""


@dataclass(frozen=True, slots=True)
class PendingIsr:
    """A change is in flight; ``attempts`` holds it and earlier ones of unknown outcome."""

    change: IsrChange
    attempts: Attempts


@dataclass(frozen=True, slots=True)
class UnresolvedIsr:
    """No attempt is in flight, but earlier ones may be committed; the next from ``retry_ms`` on."""

    attempts: Attempts
    retry_ms: int


@dataclass(frozen=True, slots=True)
class OvertakenIsr:
    """A higher partition epoch came before the answer to ``change``, which the next change awaits.

    The attempt itself is settled: it is committed as part of that partition epoch, or never will.
    """

    change: IsrChange


IsrState = CommittedIsr | PendingIsr | UnresolvedIsr | OvertakenIsr

COMMITTED = CommittedIsr()
"""The only object of its class, so that an idle partition costs no memory."""


def open_attempts(state: IsrState) -> Attempts:
    """Return the attempts that may be committed."""
    match state:
        case PendingIsr(attempts=attempts) | UnresolvedIsr(attempts=attempts):
            return attempts
        case CommittedIsr() | OvertakenIsr():
            return {}
        case _:
            assert_never(state)


def in_flight(state: IsrState) -> IsrChange | None:
    """Return the change that has no answer yet."""
    match state:
        case PendingIsr(change=change) | OvertakenIsr(change=change):
            return change
        case CommittedIsr() | UnresolvedIsr():
            return None
        case _:
            assert_never(state)


def may_propose(state: IsrState, now_ms: int) -> bool:
    """Return True if the next change may be sent now."""
    if state is COMMITTED:
        return True
    return isinstance(state, UnresolvedIsr) and now_ms >= state.retry_ms


def proposed(state: IsrState, change: IsrChange) -> PendingIsr:
    """Return the state with ``change`` in flight. Raises ValueError if another one is."""
    if in_flight(state) is not None:
        msg = f"attempt {change.attempt} while another ISR change is in flight"
        raise ValueError(msg)
    isr = frozenset(broker for broker, _ in change.isr)
    return PendingIsr(change, {**open_attempts(state), change.attempt: isr})


def refused(state: IsrState, attempt: int) -> IsrState:
    """Return the state without an attempt that will surely not be committed."""
    match state:
        case PendingIsr(change, attempts) if change.attempt != attempt:
            return PendingIsr(change, _without(attempts, attempt))
        case PendingIsr(attempts=attempts):
            rest = _without(attempts, attempt)
            return UnresolvedIsr(rest, 0) if rest else COMMITTED
        case UnresolvedIsr(attempts, retry_ms):
            rest = _without(attempts, attempt)
            return UnresolvedIsr(rest, retry_ms) if rest else COMMITTED
        case CommittedIsr() | OvertakenIsr():
            return released(state, attempt, 0)
        case _:
            assert_never(state)


def released(state: IsrState, attempt: int, retry_ms: int) -> IsrState:
    """Return the state after an answer that leaves the outcome of an attempt open."""
    match state:
        case PendingIsr(change, attempts) if change.attempt == attempt:
            return UnresolvedIsr(attempts, retry_ms)
        case OvertakenIsr(change) if change.attempt == attempt:
            return COMMITTED
        case _:
            return state


def superseded(state: IsrState) -> IsrState:
    """Return the state after a higher partition epoch, which settles all attempts."""
    match state:
        case PendingIsr(change=change):
            return OvertakenIsr(change)
        case UnresolvedIsr():
            return COMMITTED
        case CommittedIsr() | OvertakenIsr():
            return state
        case _:
            assert_never(state)


def _without(attempts: Attempts, attempt: int) -> Attempts:
    return {number: isr for number, isr in attempts.items() if number != attempt}
