"""What brokers say of their damaged replicas, as one controller has heard it: soft state.

A report tells of the log that lay there when it was made. That log may have been set aside since,
and the one that was filled in its place may be all there is. So a report names the partition epoch
that its broker had seen, and is *believed* only while the partition is as it was then: an emptied
log counts again only by a change of the partition, behind which the report is of the past. One that
is not believed takes nobody out of ISR and ELR. Elections pass that replica by all the same: its
broker's next heartbeat says how it is now, a moment later (rules R6, M7).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from raft_metadata.common.ids import BrokerId, TopicIdPartition
from raft_metadata.controller.broker_views import NOTHING_FAILED, Failed
from raft_metadata.records.commands import BrokerHeartbeat, FailedReplica
from raft_metadata.records.damage_pages import place_of

Reported = Mapping[TopicIdPartition, FailedReplica]
"""Of one broker."""
NOTHING_REPORTED: Reported = MappingProxyType({})


class News(NamedTuple):
    """What a heartbeat changed in what is known of its broker's logs."""

    places: tuple[TopicIdPartition, ...]
    """Where something new is said, or no more."""
    is_told: bool
    """From now on all of it is known: before, no replica of that broker is surely sound."""


NO_NEWS = News((), is_told=False)


@dataclass(slots=True)
class DamageReports:
    """Of one registration of a broker."""

    failed: Reported = field(default_factory=lambda: NOTHING_REPORTED)
    is_told: bool = False
    """Whether it has said all of it once, to this controller."""
    number: int = 0
    """Of the newest heartbeat: one that it overtook says nothing."""
    covered: TopicIdPartition | None = None
    """Up to here it has said all of it, page by page from the first one on."""

    def take(self, beat: BrokerHeartbeat) -> News:
        """A heartbeat of this registration."""
        if beat.number < self.number:
            return NO_NEWS
        self.number = beat.number
        first, last = beat.failed_after, beat.failed_up_to
        places = self._replace(beat) if beat.failed or self.failed else ()
        was_told = self.is_told
        if first is None or (self.covered is not None and first <= self.covered):
            self.is_told = self.is_told or last is None
            self.covered = last
        return News(places, is_told=self.is_told and not was_told)

    def is_back(self) -> None:
        """Its session was over for a while: who looked meanwhile took it for one that says nothing.

        What it said stays, and is news with its next round.
        """
        self.is_told, self.covered = False, None

    def _replace(self, beat: BrokerHeartbeat) -> tuple[TopicIdPartition, ...]:
        first, last = beat.failed_after, beat.failed_up_to
        said = {place_of(one): one for one in beat.failed}
        known = {
            where: one
            for where, one in self.failed.items()
            if (first is None or where > first) and (last is None or where <= last)
        }
        if said == known:
            return ()
        others = {where: one for where, one in self.failed.items() if where not in known}
        self.failed = MappingProxyType(others | said)
        return tuple(where for where in {**known, **said} if known.get(where) != said.get(where))


class DamageByPlace:
    """The reports of all brokers by partition, made anew only when one of them has changed."""

    def __init__(self) -> None:
        self._of: dict[BrokerId, Reported] = {}
        self._failed: Failed = NOTHING_FAILED

    def of(self, reported: dict[BrokerId, Reported]) -> Failed:
        """``reported``: of each broker that is heard of now and has damaged replicas."""
        same = reported.keys() == self._of.keys() and all(
            self._of[broker_id] is failed for broker_id, failed in reported.items()
        )
        if not same:
            found: dict[TopicIdPartition, dict[BrokerId, FailedReplica]] = {}
            for broker_id, failed in reported.items():
                for where, one in failed.items():
                    found.setdefault(where, {})[broker_id] = one
            self._of, self._failed = reported, found
        return self._failed
