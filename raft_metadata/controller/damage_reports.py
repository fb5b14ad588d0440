"""Damaged replicas as brokers' heartbeats report them to one controller: soft state.

A report describes the log that existed when it was made. That log may have been emptied and filled
again since, and the new one may be the only complete copy. So a report names the partition epoch
that its broker had seen, and is *believed* only while the partition still has that epoch: an
emptied log counts again only after a change of the partition, which makes the report outdated. An
outdated report removes no replica from ISR and ELR. Elections avoid the replica nevertheless, until
its broker's next heartbeat reports its present state a moment later (rules R6, M7).
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
"""The damaged replicas of one broker, by partition."""
NOTHING_REPORTED: Reported = MappingProxyType({})


class News(NamedTuple):
    """The changes that a heartbeat made to the known damaged replicas of its broker."""

    places: tuple[TopicIdPartition, ...]
    """Partitions whose report is new, changed or withdrawn."""
    is_told: bool
    """True if the heartbeat completes the report: before, no replica of that broker was known to be
    healthy."""


NO_NEWS = News((), is_told=False)


@dataclass(slots=True)
class DamageReports:
    """The reported damaged replicas of one registration of a broker."""

    failed: Reported = field(default_factory=lambda: NOTHING_REPORTED)
    is_told: bool = False
    """True if it has reported all its damaged replicas to this controller in this session."""
    number: int = 0
    """The number of the newest heartbeat; an older one that arrives later is ignored."""
    covered: TopicIdPartition | None = None
    """The last partition up to which it has reported everything, page by page from the first."""

    def take(self, beat: BrokerHeartbeat) -> News:
        """Apply a heartbeat of this registration and return what it changed."""
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
        """Require a complete report again, because the broker's session had expired for a while.

        Decisions made meanwhile treated it as a broker without a report. The known damage stays;
        the next complete round is news.
        """
        self.is_told, self.covered = False, None

    def _replace(self, beat: BrokerHeartbeat) -> tuple[TopicIdPartition, ...]:
        """Replace the known damage in the range of this page; return the changed partitions."""
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
    """The reports of all brokers by partition, rebuilt only when one of them has changed."""

    def __init__(self) -> None:
        self._of: dict[BrokerId, Reported] = {}
        self._failed: Failed = NOTHING_FAILED

    def of(self, reported: dict[BrokerId, Reported]) -> Failed:
        """Return the damaged replicas by partition.

        ``reported``: the reports of the live brokers that have damaged replicas.
        """
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
