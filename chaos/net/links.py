"""Links between nodes, and the effect of a fault on each of them: pure data.

A *link* is one node's own connection path to one listener of another node, and has a proxy of its
own. Its direction is that of the dialling: requests run upstream (source to target), answers
downstream. Scenarios state faults in terms of nodes ("nothing from 1 reaches 2"); `network.py` asks
here for each link's state and turns it into toxics.

Controllers keep one connection per pair, dialled by the one with the greater id, so there one link
carries both directions.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

FIRST_CONTROLLER_ID = 101
"""Lowest controller id; smaller ids belong to brokers (interfaces §1)."""


class Plane(Enum):
    """The purpose of a listener."""

    HTTP = "http"
    """Brokers to controllers: registration, heartbeats, sessions, metadata, ISR changes."""
    PEER = "peer"
    """Brokers to brokers: forwarded requests and replication."""
    RAFT = "raft"
    """Controllers to controllers."""


class Link(NamedTuple):
    """A connection path: node `source` dials node `target`."""

    source: int
    target: int
    plane: Plane

    @property
    def name(self) -> str:
        """The proxy's name; safe in a path."""
        return f"{self.source}-to-{self.target}-{self.plane.value}"

    @property
    def dial_key(self) -> str:
        """The target's key in the source's ``[dial]`` table, such as ``broker-2.peer``."""
        return f"{node_name(self.target)}.{self.plane.value}"


class Flow(NamedTuple):
    """A direction between two nodes, from `speaker` to `listener`, whichever of them dialled."""

    speaker: int
    listener: int


@dataclass(frozen=True, slots=True)
class LinkState:
    """The required state of a proxy.

    Dropped bytes vanish, and connections stay open, on either side.
    """

    drops_requests: bool = False
    drops_answers: bool = False
    refuses: bool = False
    """Connections are reset and none is accepted: a fast failure, unlike dropped bytes."""
    latency_ms: int = 0
    """Delay of all bytes, in both directions."""
    slice_bytes: int = 0
    """Bytes arrive in pieces of about this size, in both directions, so that no read is a whole
    frame; 0 for no slicing."""


OPEN = LinkState()


def node_name(node: int) -> str:
    """Return ``broker-1`` or ``controller-101``: a node's folder, and its name in ``[dial]``."""
    return f"{'controller' if node >= FIRST_CONTROLLER_ID else 'broker'}-{node}"


def all_links(controllers: Iterable[int], brokers: Iterable[int]) -> tuple[Link, ...]:
    """Return every link between the given nodes."""
    voters, servers = sorted(controllers), sorted(brokers)
    links = [Link(broker, voter, Plane.HTTP) for broker in servers for voter in voters]
    links += [Link(one, other, Plane.PEER) for one in servers for other in servers if one != other]
    links += [Link(one, other, Plane.RAFT) for one in voters for other in voters if one > other]
    return tuple(links)


def both_ways(one: Iterable[int], other: Iterable[int]) -> frozenset[Flow]:
    """Return all flows between the nodes of one group and those of the other."""
    firsts, seconds = set(one), set(other)
    pairs = {Flow(a, b) for a in firsts for b in seconds if a != b}
    return frozenset(pairs | {Flow(b, a) for a, b in pairs})


@dataclass(frozen=True, slots=True)
class Faults:
    """All faults that the network must have at a time.

    Attributes:
        silent: flows of which nothing arrives, on every link that carries them.
        states: links with a fault of their own, in addition.
    """

    silent: frozenset[Flow] = frozenset()
    states: tuple[tuple[Link, LinkState], ...] = ()

    def state_of(self, link: Link) -> LinkState:
        """Return the required state of one link."""
        own = dict(self.states).get(link, OPEN)
        return LinkState(
            drops_requests=own.drops_requests or Flow(link.source, link.target) in self.silent,
            drops_answers=own.drops_answers or Flow(link.target, link.source) in self.silent,
            refuses=own.refuses,
            latency_ms=own.latency_ms,
            slice_bytes=own.slice_bytes,
        )

    def touches(self, links: Iterable[Link]) -> tuple[Link, ...]:
        """Return the links that these faults affect."""
        return tuple(link for link in links if self.state_of(link) != OPEN)


NO_FAULTS = Faults()


def answers_lost(links: Iterable[Link]) -> Faults:
    """Return faults under which requests arrive and run, and their answers never arrive."""
    return on_each(links, LinkState(drops_answers=True))


def refused(links: Iterable[Link]) -> Faults:
    """Return faults under which connections on these links are refused."""
    return on_each(links, LinkState(refuses=True))


def on_each(links: Iterable[Link], state: LinkState) -> Faults:
    """Return faults that put the same state on each of these links."""
    return Faults(states=tuple((link, state) for link in links))


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes that a proxy read and passed on, of ended connections; Toxiproxy counts only those."""

    requests_read: int = 0
    requests_passed: int = 0
    answers_read: int = 0
    answers_passed: int = 0

    @property
    def swallowed(self) -> int:
        """Number of bytes read and not passed on."""
        return self.requests_read - self.requests_passed + self.answers_read - self.answers_passed


def swallowed_since(before: Mapping[Link, Traffic], now: Mapping[Link, Traffic]) -> dict[Link, int]:
    """Return the bytes that each link swallowed between two measurements.

    Links without any are left out.
    """
    none = Traffic()
    grown = {link: now[link].swallowed - before.get(link, none).swallowed for link in now}
    return {link: count for link, count in grown.items() if count > 0}
