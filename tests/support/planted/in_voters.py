"""Lines of a voter, each switched off: its queue, its fence, when it stands, what it says (Q)."""

from __future__ import annotations

from tests.support.planted.registry import SOURCE_FAULTS, SourceFault

SOURCE_FAULTS += (
    SourceFault(
        "defect 2 leader counts before sync",
        "        if allowed < index:\n"
        "            self.lower_commit_index(allowed)\n"
        "        return allowed",
        "        return index",
        ("reigns",),
    ),
    SourceFault(
        "defect 2 only the journal is told that the leader does not count",
        "            self.lower_commit_index(allowed)\n",
        "            pass\n",
        ("reigns", "flusher"),
    ),
    SourceFault(
        "defect 2 an earlier term's entry is committed by being on disks",
        "if entry is None or entry[2] != self.raftCurrentTerm:",
        "if entry is None:",
        ("flusher",),
    ),
    SourceFault(
        "defect 2 nothing is committed without the leader's own disk",
        "        allowed = max(allowed, self.journal.commit_index)\n",
        "        allowed = max(\n"
        "            min(allowed, self.journal.durable_index), self.journal.commit_index\n"
        "        )\n",
        ("elections",),
    ),
    SourceFault(
        "q7 consent outlives a leader's word",
        "        self._pre_vote.reset()\n",
        "",
        ("elections",),
    ),
    SourceFault(
        "g3 answers count from their arrival",
        "min(sent_at, self.now())",
        "self.now()",
        ("elections",),
    ),
    SourceFault(
        "a failed snapshot is tried again at once",
        "        if self._now() < self._not_before:\n",
        "        if False:\n",
        ("snapshots",),
    ),
    SourceFault(
        "a leader whose disk hangs leads for ever",
        "            self.step_down()\n",
        "            pass\n",
        ("elections",),
    ),
    SourceFault(
        "a voter whose disk hangs stands",
        "        self.election_deadline = self.now() + self.conf.raftMaxTimeout  # nor is",
        "        # nor is",
        ("elections",),
    ),
    SourceFault(
        "q4 a fence is lifted by what is in memory",
        "if entry is None or contact.commit_index > journal.durable_index:",
        "if entry is None:",
        ("flusher",),
    ),
    SourceFault(
        "waiters not failed on deposition",
        "            _fail(queued.future, KafkaError(ErrorCode.OUTCOME_UNKNOWN, text))",
        "            pass",
        ("reigns",),
    ),
    SourceFault(
        "defect 13 uncommitted without limit",
        " or uncommitted > MAX_UNCOMMITTED",
        "",
        ("reigns",),
    ),
    SourceFault(
        "defect 14 waits for the heartbeat",
        "        if self._isLeader() and (appended or self._commit_moved):",
        "        if False:",
        ("reigns",),
    ),
    SourceFault(
        "m3 says not controller",
        "KafkaError(ErrorCode.OUTCOME_UNKNOWN, text)",
        "KafkaError(ErrorCode.NOT_CONTROLLER, text)",
        ("reigns",),
    ),
    SourceFault(
        "m2 not checked at the append",
        "            if not self.leading_in(queued.term):",
        "            if not self._isLeader():",
        ("reigns",),
    ),
    SourceFault(
        "m2 not checked at submit",
        "        if not self.leading_in(term):\n            return _not",
        "        if not self._isLeader():\n            return _not",
        ("reigns",),
    ),
    SourceFault(
        "m2 active at election",
        "        if command[0] == NO_OP and self.leading_in(term):",
        "        if command[0] == NO_OP and self._isLeader():",
        ("reigns",),
    ),
    SourceFault(
        "apply twice",
        'self.faults.fatal(f"apply failed index={index} term={term}", error)',
        "raise",
        ("reigns",),
    ),
    SourceFault(
        "q7 question ignored+answer ignored",
        "self.transport.adopt(node,",
        "(lambda *a: None)(node,",
        ("elections",),
    ),
    SourceFault(
        "q7 no prevote",
        "elif self._would_stand() and",
        "elif False and",
        ("elections",),
    ),
    SourceFault(
        "q7 granted despite leader",
        "and self.now() - self.contact.when > self._min_election_s",
        "",
        ("elections",),
    ),
    SourceFault(
        "step down late",
        "leaderFallbackTimeout=(",
        "leaderFallbackTimeout=30+(",
        ("elections",),
    ),
    SourceFault(
        "q4 majority of answers",
        "if self.others <= self.terms.keys() else None",
        "if 2*len(self.terms) >= len(self.others) else None",
        ("rejoin",),
    ),
    SourceFault(
        "q4 prevotes while fenced",
        "            not self.home.fenced\n            and question",
        "            question",
        ("rejoin",),
    ),
    SourceFault(
        "q4 fence lifted once asked",
        "self.home.adopt_fence_term(highest)",
        "self.home.lift_fence()",
        ("rejoin",),
    ),
    SourceFault(
        "q4 older term commit enough",
        "entry[2] == contact.term and ",
        "",
        ("rejoin",),
    ),
    SourceFault(
        "q4 lost acks count",
        "        self.forget_match(node)\n",
        "",
        ("rejoin",),
    ),
    SourceFault(
        "q4 free vote",
        "self.adopt_term(highest, LOST_VOTE)",
        "self.adopt_term(highest, None)",
        ("rejoin",),
    ),
    SourceFault(
        "commit not raised",
        "            self.raise_commit_index(header.last[1])\n",
        "",
        ("reigns",),
    ),
)
