"""Conditions for election: pre-vote (rule Q7) and the fence after a lost disk (rule Q4).

`RaftNode` asks these classes on every tick and message, and the library runs the election itself.
All times are monotonic seconds of the library's clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from raft_metadata.common.ids import NodeId
from raft_metadata.quorum.journal import DurableJournal, Entry
from raft_metadata.quorum.wire import Message

NEVER = float("-inf")
DISK_HANG_S = 5.0
"""A disk that completed no flush for this long counts as hanging; a slow one takes 400 ms
(rule M7)."""
OWN_STALL_S = 0.5
"""A longer gap between two ticks, of which there are many a second, means that this process
itself was stalled."""


@dataclass(slots=True)
class LeaderContact:
    """Time, term and commit index of the last append received from a leader.

    Set by appends only: a message with a higher term does not prove that a leader exists (rule Q7).
    """

    when: float = NEVER
    term: int = 0
    commit_index: int = 0


@dataclass(slots=True)
class PreVote:
    """Pre-votes: a voter raises the term only if a majority would elect it (defect 11).

    Without it a voter that was cut off returns with a higher term and deposes the leader. Refusals
    must be sent too: with silent ones two voters can refuse each other for ever (rule Q7).
    """

    voters: int
    requested_term: int = 0
    granted: set[NodeId] = field(default_factory=set)
    granted_term: int = 0
    """The term for which a majority granted its pre-vote; 0 if none, and after it is used."""

    def request(self, current_term: int, last: Entry) -> Message:
        """Return a pre-vote request with this voter's current term, and restart the count."""
        self.requested_term = current_term + 1
        self.granted = set()
        return {
            "type": "pre_vote",
            "term": current_term,
            "last_log_index": last[1],
            "last_log_term": last[2],
        }

    def reset(self) -> None:
        """Discard all pre-votes, received or pending, because an append of a leader arrived."""
        self.requested_term = self.granted_term = 0
        self.granted = set()

    def count_grant(self, current_term: int) -> bool:
        """Return whether a majority, this voter included, grants its pre-vote for the next term."""
        enough = 2 * (len(self.granted) + 1) > self.voters
        if enough and self.requested_term == current_term + 1:
            self.granted_term = self.requested_term
            return True
        return False

    def take_grant(self, current_term: int) -> bool:
        """Return True, once per grant, if this voter may stand in the term after `current_term`."""
        if self.granted_term != current_term + 1:
            return False
        self.granted_term = 0
        return True


@dataclass(slots=True)
class DiskWatch:
    """Detector of a hanging disk.

    A disk hangs if entries wait to be durable and the durable index does not grow for
    `DISK_HANG_S`.
    """

    durable_index: int = -1
    since: float = NEVER
    ticked_at: float = 0.0

    def check_for_hang(self, journal: DurableJournal, now: float) -> bool:
        """Return whether the disk hangs at `now`. Call with every tick."""
        stood_still_s, self.ticked_at = now - self.ticked_at, now
        if stood_still_s > OWN_STALL_S:
            # The disk's results from the time of the stall are not processed yet (rule M7).
            self.since += stood_still_s
        if journal.durable_index != self.durable_index or journal.is_durable:
            self.durable_index, self.since = journal.durable_index, now
        return now - self.since > DISK_HANG_S


def up_to_date(question: Message, last: Entry) -> bool:
    """Return whether the sender's log is at least as complete as `last` (Raft §5.4.1)."""
    return (question["last_log_term"], question["last_log_index"]) >= (last[2], last[1])


@dataclass(slots=True)
class Rejoin:
    """Terms reported to a voter that lost its disk.

    It needs the term of *every* other voter, because its lost vote may have gone to any of them.
    """

    others: frozenset[NodeId]
    terms: dict[NodeId, int] = field(default_factory=dict)
    ask_again_at: float = NEVER

    def answered(self, node: NodeId, term: int) -> int | None:
        """Record a voter's term; return the highest term once every other voter has answered."""
        self.terms[node] = term
        return max(self.terms.values()) if self.others <= self.terms.keys() else None


def fence_may_lift(contact: LeaderContact, journal: DurableJournal, fence_term: int) -> bool:
    """Return whether a rejoining voter holds every entry that was ever committed.

    The entry at the leader's commit index must be on its disk, and that entry must be of the
    leader's own term: a new leader's commit index may lie below older commits (lesson 4).
    """
    entry = journal.at(contact.commit_index)
    if entry is None or contact.commit_index > journal.durable_index:
        return False
    return entry[2] == contact.term and contact.term >= fence_term
