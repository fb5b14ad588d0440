"""Who may stand for election: pre-vote (rule Q7), and the fence after a lost disk (rule Q4).

Both decide; the library then runs the election itself.

Times are monotonic seconds, as the library counts them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from raft_metadata.common.ids import NodeId
from raft_metadata.quorum.journal import DurableJournal
from raft_metadata.quorum.journal_format import Entry
from raft_metadata.quorum.wire import Message

NEVER = float("-inf")
DISK_HANG_S = 5.0
"""A disk that has finished nothing for so long hangs; one that is slow takes 400 ms (rule M7)."""
OWN_STALL_S = 0.5
"""Between two ticks, many a second: then it was this process that stood still."""


@dataclass(slots=True)
class LeaderContact:
    """When a leader was last heard, and what it said was committed.

    Never set by anything else than its appends: a higher term that was seen is not a leader heard
    (rule Q7).
    """

    when: float = NEVER
    term: int = 0
    commit_index: int = 0


@dataclass(slots=True)
class PreVote:
    """Defect 11: nobody raises the term who could not win.

    Without it a voter that was cut off comes back with a higher term and deposes the leader; with
    silent refusals two voters can refuse each other for ever (rule Q7).
    """

    voters: int
    asked_term: int = 0
    granted: set[NodeId] = field(default_factory=set)
    may_stand_in: int = 0
    """The one term this voter has a majority's consent for; spent when used."""

    def ask(self, current_term: int, last: Entry) -> Message:
        """The question, which carries the asker's term; starts counting anew."""
        self.asked_term = current_term + 1
        self.granted = set()
        return {
            "type": "pre_vote",
            "term": current_term,
            "last_log_index": last[1],
            "last_log_term": last[2],
        }

    def forget(self) -> None:
        """A leader was heard: nobody's consent, given or still under way, holds any more."""
        self.asked_term = self.may_stand_in = 0
        self.granted = set()

    def count(self, current_term: int) -> bool:
        """Whether a majority, this voter included, agrees that it stands now."""
        enough = 2 * (len(self.granted) + 1) > self.voters
        if enough and self.asked_term == current_term + 1:
            self.may_stand_in = self.asked_term
            return True
        return False

    def spend(self, current_term: int) -> bool:
        """True once per consent."""
        if self.may_stand_in != current_term + 1:
            return False
        self.may_stand_in = 0
        return True


@dataclass(slots=True)
class DiskWatch:
    """Whether entries wait, and the disk gets no further. What waits is in memory only."""

    durable_index: int = -1
    since: float = NEVER
    ticked_at: float = 0.0

    def hangs(self, journal: DurableJournal, now: float) -> bool:
        """To be asked with every tick."""
        stood_still_s, self.ticked_at = now - self.ticked_at, now
        if stood_still_s > OWN_STALL_S:
            self.since += stood_still_s  # rule M7: what the disk has done by now is not read yet
        if journal.durable_index != self.durable_index or journal.is_durable:
            self.durable_index, self.since = journal.durable_index, now
        return now - self.since > DISK_HANG_S


def up_to_date(question: Message, last: Entry) -> bool:
    """Raft §5.4.1: the asker's log is at least as complete as ours."""
    return (question["last_log_term"], question["last_log_index"]) >= (last[2], last[1])


@dataclass(slots=True)
class Rejoin:
    """The answers a voter without its disk is waiting for.

    *Every* other voter's, because its lost vote may have gone to any of them.
    """

    others: frozenset[NodeId]
    terms: dict[NodeId, int] = field(default_factory=dict)
    ask_again_at: float = NEVER

    def answered(self, node: NodeId, term: int) -> int | None:
        """The highest term once all have answered."""
        self.terms[node] = term
        return max(self.terms.values()) if self.others <= self.terms.keys() else None


def fence_may_lift(contact: LeaderContact, journal: DurableJournal, fence_term: int) -> bool:
    """Whether a rejoining voter holds all that was ever committed.

    It must hold the entry at the leader's commit index on disk, and that entry must be of the
    leader's own term: a new leader's commit index may lie below older commits (lesson 4).
    """
    entry = journal.at(contact.commit_index)
    if entry is None or contact.commit_index > journal.durable_index:
        return False
    return entry[2] == contact.term and contact.term >= fence_term
