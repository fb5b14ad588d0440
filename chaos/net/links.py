"""Which links there are between nodes, and what a fault asks of each: pure data.

A *link* is one node's own way to one listener of another node, and has a proxy of its own. It is
directed by who dials: requests run upstream (source to target), answers downstream. What a fault
means is said in terms of nodes ("nothing from 1 reaches 2") and becomes toxics on links here.

Controllers keep one connection per pair, dialled by the one with the greater id, so
there one link carries both directions (guarantees §5.4).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

FIRST_CONTROLLER_ID = 101
"""Ids from here on are controllers' (interfaces §1)."""


class Plane(Enum):
    """What a listener is for."""

    HTTP = "http"
    """Brokers to controllers: registration, heartbeats, sessions, metadata, ISR changes."""
    PEER = "peer"
    """Brokers to brokers: forwarded requests and replication."""
    RAFT = "raft"
    """Controllers to controllers."""


class Link(NamedTuple):
    """`source` dials `target`. Both are node ids."""

    source: int
    target: int
    plane: Plane

    @property
    def name(self) -> str:
        """The proxy's name; safe in a path."""
        return f"{self.source}-to-{self.target}-{self.plane.value}"

    @property
    def dial_key(self) -> str:
        """What the source's ``[dial]`` calls the target, as ``broker-2.peer``."""
        return f"{node_name(self.target)}.{self.plane.value}"


class Flow(NamedTuple):
    """One direction between two nodes, whoever dialled: what the first says to the second."""

    speaker: int
    listener: int


@dataclass(frozen=True, slots=True)
class LinkState:
    """What a proxy is to do. Dropped bytes vanish, and connections stay open, on either side."""

    drops_requests: bool = False
    drops_answers: bool = False
    refuses: bool = False
    """Connections are reset and none is accepted: a fast failure, unlike the silence above."""
    latency_ms: int = 0
    """Everything arrives so much later, either way."""
    slice_bytes: int = 0
    """Everything arrives in pieces of about this size, either way: no read is a whole frame."""


OPEN = LinkState()


def node_name(node: int) -> str:
    """``broker-1``, ``controller-101``: a node's folder, and its name in ``[dial]``."""
    return f"{'controller' if node >= FIRST_CONTROLLER_ID else 'broker'}-{node}"


def all_links(controllers: Iterable[int], brokers: Iterable[int]) -> tuple[Link, ...]:
    """Every way one node dials another."""
    voters, servers = sorted(controllers), sorted(brokers)
    links = [Link(broker, voter, Plane.HTTP) for broker in servers for voter in voters]
    links += [Link(one, other, Plane.PEER) for one in servers for other in servers if one != other]
    links += [Link(one, other, Plane.RAFT) for one in voters for other in voters if one > other]
    return tuple(links)


def both_ways(one: Iterable[int], other: Iterable[int]) -> frozenset[Flow]:
    """Everything the nodes of one group say to those of the other, and back."""
    firsts, seconds = set(one), set(other)
    pairs = {Flow(a, b) for a in firsts for b in seconds if a != b}
    return frozenset(pairs | {Flow(b, a) for a, b in pairs})


@dataclass(frozen=True, slots=True)
class Faults:
    """Everything that is to be wrong with the network now.

    Attributes:
        silent: flows of which nothing arrives, on every link that carries them.
        states: links with a fault of their own, over and above.
    """

    silent: frozenset[Flow] = frozenset()
    states: tuple[tuple[Link, LinkState], ...] = ()

    def state_of(self, link: Link) -> LinkState:
        """What this asks of one link."""
        own = dict(self.states).get(link, OPEN)
        return LinkState(
            drops_requests=own.drops_requests or Flow(link.source, link.target) in self.silent,
            drops_answers=own.drops_answers or Flow(link.target, link.source) in self.silent,
            refuses=own.refuses,
            latency_ms=own.latency_ms,
            slice_bytes=own.slice_bytes,
        )

    def touches(self, links: Iterable[Link]) -> tuple[Link, ...]:
        """The links that are not open under this."""
        return tuple(link for link in links if self.state_of(link) != OPEN)


NO_FAULTS = Faults()


def answers_lost(links: Iterable[Link]) -> Faults:
    """Requests get through and run; what they are answered never arrives."""
    return on_each(links, LinkState(drops_answers=True))


def refused(links: Iterable[Link]) -> Faults:
    """Nobody answers at the other end."""
    return on_each(links, LinkState(refuses=True))


def on_each(links: Iterable[Link], state: LinkState) -> Faults:
    """The same on each of these links."""
    return Faults(states=tuple((link, state) for link in links))


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes a proxy read and passed on, of connections that have ended (Toxiproxy counts then)."""

    requests_read: int = 0
    requests_passed: int = 0
    answers_read: int = 0
    answers_passed: int = 0

    @property
    def swallowed(self) -> int:
        """Bytes that came in and never went out."""
        return self.requests_read - self.requests_passed + self.answers_read - self.answers_passed


def swallowed_since(before: Mapping[Link, Traffic], now: Mapping[Link, Traffic]) -> dict[Link, int]:
    """Bytes each link swallowed between two looks, where it did."""
    none = Traffic()
    grown = {link: now[link].swallowed - before.get(link, none).swallowed for link in now}
    return {link: count for link, count in grown.items() if count > 0}
