"""Planted faults: each line that keeps a rule or closes a defect, removed, turns a test red.

Slow: every fault is a copy of the packages and a run of the tests that should see it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
QUORUM = Path("raft_metadata/quorum")


@dataclass(frozen=True, slots=True)
class Mutant:
    """In `file`, `line` becomes `instead`; one of the `tests` must fail for it."""

    name: str
    file: str
    line: str
    instead: str
    tests: tuple[str, ...]


MUTANTS = (
    Mutant(
        "q1 open without rewrite",
        "journal.py",
        "        self.vote = self._open()",
        "        self.vote = self._open()\n"
        "        if self.entries:\n"
        "            data = files.read(self._path)\n"
        "            self._handle = files.open(self._path)\n"
        "            self._length = self._durable_end = len(data)\n"
        "            self._mark, self._handed = data[8:16], len(self.entries)\n"
        "            self._durable_index = self.entries[-1][1]\n"
        "            return",
        ("journal",),
    ),
    Mutant(
        "q1/q6 directory not synced",
        "files.py",
        "    files.rename(new, path)\n    files.sync_directory(path.parent)",
        "    files.rename(new, path)",
        ("journal", "power_loss"),
    ),
    Mutant(
        "q2 EIO ignored",
        "journal.py",
        "            handle.sync()\n            return handle",
        "            try: handle.sync()\n"
        "            except OSError: pass\n"
        "            return handle",
        ("journal", "flusher"),
    ),
    Mutant(
        "q2 vote exception not fatal",
        "journal.py",
        '            self._faults.fatal(f"vote write failed file={self._vote_path}", error)',
        "            raise",
        ("journal",),
    ),
    Mutant(
        "q5 no durable end in records",
        "journal.py",
        "encode_record(mark, entry, durable_end) for",
        "encode_record(mark, entry, 0) for",
        ("journal",),
    ),
    Mutant(
        "q5 any good record behind is corruption",
        "journal_format.py",
        "    if scan.end < scan.proven:",
        "    if scan.end < scan.proven or data.find(mark, scan.end + 1) >= 0:",
        ("journal",),
    ),
    Mutant(
        "q5 no proof record",
        "journal.py",
        "        if idle and not self._tail_proven and self._in_flight is None:",
        "        if False:",
        ("journal",),
    ),
    Mutant(
        "q5 later records prove nothing",
        "journal_format.py",
        "            proven = max(proven, later.durable_end)",
        "            pass",
        ("journal",),
    ),
    Mutant(
        "q5 fixed mark",
        "journal.py",
        "self._mark = self._random_bytes(MARK_BYTES)",
        "self._mark = b'markmark'",
        ("journal",),
    ),
    Mutant(
        "q5 truncates in place",
        "journal.py",
        "        if position < self._handed:\n            self._must_rewrite = True\n",
        "        if position < self._handed:\n"
        "            start = file_bytes(self.entries)\n"
        '            self._handle.content.cache[start:] = b""\n'
        "            self._length, self._handed = start, position\n"
        "            self._durable_end = min(self._durable_end, start)\n",
        ("journal",),
    ),
    Mutant(
        "truncating committed allowed",
        "journal.py",
        "if index <= self.commit_index:",
        "if False:",
        ("journal",),
    ),
    Mutant(
        "vote file optional",
        "journal.py",
        "if vote is None or (self",
        "if vote is None: vote = Vote(0,None)\n        if (self",
        ("journal",),
    ),
    Mutant(
        "defect 2 follower acks before sync",
        "transport.py",
        'return int(message["next_node_idx"]) - 1',
        "return 0",
        ("flusher",),
    ),
    Mutant(
        "defect 2 leader counts before sync",
        "raft_node.py",
        "        if allowed < index:\n"
        "            self.lower_commit_index(allowed)\n"
        "        return allowed",
        "        return index",
        ("reigns",),
    ),
    Mutant(
        "defect 2 only the journal is told that the leader does not count",
        "raft_node.py",
        "            self.lower_commit_index(allowed)\n",
        "            pass\n",
        ("reigns", "flusher"),
    ),
    Mutant(
        "defect 2 an earlier term's entry is committed by being on disks",
        "raft_node.py",
        "if entry is None or entry[2] != self.raftCurrentTerm:",
        "if entry is None:",
        ("flusher",),
    ),
    Mutant(
        "defect 2 nothing is committed without the leader's own disk",
        "raft_node.py",
        "        allowed = max(allowed, self.journal.commit_index)\n",
        "        allowed = max(\n"
        "            min(allowed, self.journal.durable_index), self.journal.commit_index\n"
        "        )\n",
        ("elections",),
    ),
    Mutant(
        "q7 consent outlives a leader's word",
        "raft_node.py",
        "        self._pre_vote.forget()\n",
        "",
        ("elections",),
    ),
    Mutant(
        "g3 votes against a leader that was just heard",
        "transport.py",
        "        if has_a_leader and message",
        "        if False and message",
        ("elections",),
    ),
    Mutant(
        "g3 a successor waits",
        "transport.py",
        "                self._takes_over_in = term + 1",
        "                pass",
        ("elections",),
    ),
    Mutant(
        "g3 answers count from their arrival",
        "raft_node.py",
        "min(sent_at, self.now())",
        "self.now()",
        ("elections",),
    ),
    Mutant(
        "half a snapshot stays",
        "snapshots.py",
        "            self._drop_failed(path)\n",
        "",
        ("snapshots",),
    ),
    Mutant(
        "a failed snapshot is tried again at once",
        "library_adapters.py",
        "        if self._now() < self._not_before:\n",
        "        if False:\n",
        ("snapshots",),
    ),
    Mutant(
        "a leader whose disk hangs leads for ever",
        "raft_node.py",
        "            self.step_down()\n",
        "            pass\n",
        ("elections",),
    ),
    Mutant(
        "a voter whose disk hangs stands",
        "raft_node.py",
        "        self.election_deadline = self.now() + self.conf.raftMaxTimeout  # nor is",
        "        # nor is",
        ("elections",),
    ),
    Mutant(
        "defect 2 votes before sync",
        "transport.py",
        "return self._journal.last[1]  # it speaks",
        "return 0  # it speaks",
        ("flusher",),
    ),
    Mutant(
        "q3 truncation bumps no generation",
        "journal.py",
        "        self.generation += 1\n",
        "",
        ("flusher",),
    ),
    Mutant(
        "q3 an old flush is believed",
        "journal.py",
        "if flush.generation != self.generation:",
        "if False:",
        ("flusher",),
    ),
    Mutant(
        "q3 an old flush is dropped and nothing written anew",
        "journal.py",
        "            self._must_rewrite = True\n            return\n",
        "            return\n",
        ("flusher",),
    ),
    Mutant(
        "q3 truncation keeps the durable index",
        "journal.py",
        "        self._durable_index = min(self._durable_index, max(0, index - 1))\n",
        "",
        ("flusher",),
    ),
    Mutant(
        "q3 answers of an older log leave",
        "transport.py",
        "if held.generation != journal.generation or held.term != term:",
        "if False:",
        ("flusher",),
    ),
    Mutant(
        "m7 no sign of life while the disk is slow",
        "transport.py",
        "            self._send_now(node, alive)\n",
        "            pass\n",
        ("flusher",),
    ),
    Mutant(
        "m7 the loop waits for the disk",
        "journal.py",
        "        self._flusher.start(flush.work, lambda: self._flushed(flush))",
        "        self._flusher.start(flush.work, lambda: None)\n"
        "        self._flusher.wait()\n"
        "        self._flushed(flush)",
        ("flusher",),
    ),
    Mutant(
        "q2 a flush that failed is believed",
        "journal.py",
        "        if flush.handle is None:\n            # rule Q2",
        "        flush.handle = flush.handle or self._handle\n"
        "        if flush.handle is None:\n            # rule Q2",
        ("flusher",),
    ),
    Mutant(
        "q4 a fence is lifted by what is in memory",
        "elections.py",
        "if entry is None or contact.commit_index > journal.durable_index:",
        "if entry is None:",
        ("flusher",),
    ),
    Mutant(
        "a flush that waits begins by itself never",
        "journal.py",
        "        self.on_durable()\n        self.flush()\n",
        "        self.on_durable()\n",
        ("flusher",),
    ),
    Mutant(
        "defect 4 align clears",
        "journal.py",
        "if self.at(previous[1]) == previous and self.at(last[1]) == last:",
        "if False:",
        ("journal", "reigns"),
    ),
    Mutant(
        "defect 4 suffix dropped",
        "journal.py",
        "            self.entries.extend(old[position + 1 :])",
        "            pass",
        ("journal",),
    ),
    Mutant(
        "defect 4 ack claims the suffix",
        "transport.py",
        'claimed = min(message["next_node_idx"], journal.installed + 1)',
        'claimed = message["next_node_idx"]',
        ("reigns", "power_loss"),
    ),
    Mutant(
        "defect 6 chunk commits",
        "transport.py",
        'message["commit_index"] = min(message["commit_index"], raft.raftCommitIndex)',
        "pass",
        ("reigns",),
    ),
    Mutant(
        "defect 6 old snapshot taken",
        "transport.py",
        "if part is not None and part[3] <= raft.raftCommitIndex:",
        "if False:",
        ("reigns",),
    ),
    Mutant(
        "defect 7 truncates",
        "transport.py",
        "            if not self._already_have(node, message):",
        "            if True:",
        ("reigns",),
    ),
    Mutant(
        "defect 7 acks more",
        "transport.py",
        "self._answer(node, last + 1, success=True)",
        "self._answer(node, journal.last[1] + 1, success=True)",
        ("reigns",),
    ),
    Mutant(
        "defect 8",
        "transport.py",
        'message["next_node_idx"] = self._raft.raftCommitIndex + 1',
        "pass",
        ("reigns",),
    ),
    Mutant(
        "defect 9 stale counts",
        "transport.py",
        'elif message["term"] == term:',
        "else:",
        ("elections",),
    ),
    Mutant(
        "defect 9 higher ignored",
        "transport.py",
        '            self.adopt(node, message["term"])\n        elif',
        "            pass\n        elif",
        ("elections",),
    ),
    Mutant(
        "defect 9 silent",
        "transport.py",
        "            self._answer(node, 1)\n",
        "",
        ("elections",),
    ),
    Mutant(
        "defect 10",
        "transport.py",
        "if node.node_id not in self._voters_counted:",
        "if True:",
        ("elections",),
    ),
    Mutant(
        "waiters not failed on deposition",
        "raft_node.py",
        "            _fail(queued.future, KafkaError(ErrorCode.OUTCOME_UNKNOWN, text))",
        "            pass",
        ("reigns",),
    ),
    Mutant(
        "defect 13 uncommitted without limit",
        "raft_node.py",
        " or uncommitted > MAX_UNCOMMITTED",
        "",
        ("reigns",),
    ),
    Mutant(
        "defect 14 waits for the heartbeat",
        "raft_node.py",
        "        if self._isLeader() and (appended or self._commit_moved):",
        "        if False:",
        ("reigns",),
    ),
    Mutant(
        "defect 17 hears commands",
        "wire.py",
        '    "ping": {},',
        '    "ping": {},\n    "apply_command": {},',
        ("reigns",),
    ),
    Mutant(
        "m3 says not controller",
        "raft_node.py",
        "KafkaError(ErrorCode.OUTCOME_UNKNOWN, text)",
        "KafkaError(ErrorCode.NOT_CONTROLLER, text)",
        ("reigns",),
    ),
    Mutant(
        "m2 not checked at the append",
        "raft_node.py",
        "            if not self.leading_in(queued.term):",
        "            if not self._isLeader():",
        ("reigns",),
    ),
    Mutant(
        "m2 not checked at submit",
        "raft_node.py",
        "        if not self.leading_in(term):\n            return _not",
        "        if not self._isLeader():\n            return _not",
        ("reigns",),
    ),
    Mutant(
        "m2 active at election",
        "raft_node.py",
        "        if command[0] == NO_OP and self.leading_in(term):",
        "        if command[0] == NO_OP and self._isLeader():",
        ("reigns",),
    ),
    Mutant(
        "apply twice",
        "raft_node.py",
        'self.faults.fatal(f"apply failed index={index} term={term}", error)',
        "raise",
        ("reigns",),
    ),
    Mutant(
        "no pause",
        "transport.py",
        "            self._raft.pause(node)",
        "            pass",
        ("reigns",),
    ),
    Mutant(
        "q7 question ignored+answer ignored",
        "raft_node.py",
        "self.transport.adopt(node,",
        "(lambda *a: None)(node,",
        ("elections",),
    ),
    Mutant(
        "q7 no prevote",
        "raft_node.py",
        "elif self._would_stand() and",
        "elif False and",
        ("elections",),
    ),
    Mutant(
        "q7 adopt counts as contact",
        "transport.py",
        "        request = {\n"
        '            "type": "request_vote",\n'
        '            "term": term,\n'
        '            "last_log_term": -1,',
        "        self._raft.contact.when = self._raft.now()\n"
        "        request = {\n"
        '            "type": "request_vote",\n'
        '            "term": term,\n'
        '            "last_log_term": -1,',
        ("elections",),
    ),
    Mutant(
        "q7 granted despite leader",
        "raft_node.py",
        "and self.now() - self.contact.when > self._min_election_s",
        "",
        ("elections",),
    ),
    Mutant(
        "step down late",
        "raft_node.py",
        "leaderFallbackTimeout=(",
        "leaderFallbackTimeout=30+(",
        ("elections",),
    ),
    Mutant(
        "q4 no lock",
        "data_dir.py",
        "self._lock: FileHandle = files.lock(raft_dir)",
        "self._lock = files.open(raft_dir / META_FILE)",
        ("rejoin",),
    ),
    Mutant(
        "q4 any directory id",
        "data_dir.py",
        "return cluster_id == self._meta.cluster_id and directory_id == expected",
        "return True",
        ("rejoin",),
    ),
    Mutant(
        "q4 not meant for us",
        "data_dir.py",
        "            and to_directory == self._meta.directory_id\n",
        "",
        ("rejoin",),
    ),
    Mutant(
        "q4 majority of answers",
        "elections.py",
        "if self.others <= self.terms.keys() else None",
        "if 2*len(self.terms) >= len(self.others) else None",
        ("rejoin",),
    ),
    Mutant(
        "q4 takes appends before it asked",
        "transport.py",
        'if self._home.meta.fence == "ask" or kind == "timeout_now":',
        'if kind == "timeout_now":',
        ("rejoin",),
    ),
    Mutant(
        "q4 votes while fenced",
        "transport.py",
        '            message["last_log_term"] = message["last_log_index"] = -1\n        return',
        "            pass\n        return",
        ("rejoin",),
    ),
    Mutant(
        "q4 prevotes while fenced",
        "raft_node.py",
        "            not self.home.fenced\n            and question",
        "            question",
        ("rejoin",),
    ),
    Mutant(
        "q4 fence lifted once asked",
        "raft_node.py",
        "self.home.adopt_fence_term(highest)",
        "self.home.lift_fence()",
        ("rejoin",),
    ),
    Mutant(
        "q4 older term commit enough",
        "elections.py",
        "entry[2] == contact.term and ",
        "",
        ("rejoin",),
    ),
    Mutant(
        "q4 lost acks count",
        "raft_node.py",
        "        self.forget_match(node)\n",
        "",
        ("rejoin",),
    ),
    Mutant(
        "q4 free vote",
        "raft_node.py",
        "self.adopt_term(highest, LOST_VOTE)",
        "self.adopt_term(highest, None)",
        ("rejoin",),
    ),
    Mutant(
        "q4 smaller id may dial",
        "introductions.py",
        "if dialled is None and node <= self._home.meta.node_id:",
        "if False:",
        ("rejoin",),
    ),
    Mutant(
        "journal gone accepted",
        "voter_disk.py",
        "if home.meta.used and not",
        "if False and not",
        ("rejoin",),
    ),
    Mutant(
        "snapshot gone accepted",
        "voter_disk.py",
        "elif disk.journal.entries and",
        "elif False and",
        ("rejoin",),
    ),
    Mutant(
        "snapshot crc",
        "snapshots.py",
        "or zlib.crc32(chunk) != crc",
        "",
        ("snapshots",),
    ),
    Mutant(
        "snapshot total crc",
        "snapshots.py",
        "if crc != total or start",
        "if start",
        ("snapshots",),
    ),
    Mutant(
        "snapshot generation",
        "snapshots.py",
        "            if generation != self._generation:\n"
        "                self._files.unlink(path)\n"
        "                return\n",
        "",
        ("snapshots",),
    ),
    Mutant(
        "received not synced",
        "snapshots.py",
        "            self._incoming.sync()\n",
        "            pass\n",
        ("snapshots",),
    ),
    Mutant(
        "commit not raised",
        "raft_node.py",
        "            self.raise_commit_index(header.last[1])\n",
        "",
        ("reigns",),
    ),
    Mutant(
        "defect 18 frame cap",
        "peer_connection.py",
        "if length > self._max_frame_bytes:",
        "if False:",
        ("links",),
    ),
    Mutant(
        "defect 18 strangers may say as much as voters",
        "peer_connection.py",
        "self._max_frame_bytes = MAX_HELLO_BYTES",
        "self._max_frame_bytes = MAX_FRAME_BYTES",
        ("links",),
    ),
    Mutant(
        "defect 18 strangers stay",
        "peer_links.py",
        "async with asyncio.timeout(INTRODUCTION_TIMEOUT_S):\n                if self._tls",
        "async with asyncio.timeout(1000):\n                if self._tls",
        ("links",),
    ),
    Mutant(
        "defect 18 any number of strangers",
        "peer_links.py",
        "if len(self._strangers) >= MAX_STRANGERS:",
        "if False:",
        ("links",),
    ),
    Mutant(
        "defect 19 accept gives up",
        "peer_links.py",
        "await asyncio.sleep(ACCEPT_RETRY_S)\n                continue",
        "return",
        ("links",),
    ),
    Mutant(
        "defect 20 no alive sign",
        "peer_connection.py",
        "            self._write(_ALIVE)\n",
        "            pass\n",
        ("links",),
    ),
    Mutant(
        "unread bytes without limit",
        "peer_connection.py",
        "if self.unsent_bytes > MAX_UNSENT_BYTES:",
        "if False:",
        ("links",),
    ),
    Mutant(
        "silent voters stay",
        "peer_connection.py",
        "if now - self._heard_at > silence_s:",
        "if False:",
        ("links",),
    ),
    Mutant(
        "voters that read nothing stay",
        "peer_connection.py",
        "if now - self._drained_at > silence_s:",
        "if False:",
        ("links",),
    ),
    Mutant(
        "m7 own stall blames peers",
        "peer_links.py",
        "stalled = now - self._watched_at > 2 * KEEPALIVE_S",
        "stalled = False",
        ("links",),
    ),
    Mutant(
        "two connections per pair",
        "peer_links.py",
        '            old.close("replaced by a new one")\n',
        "            pass\n",
        ("links",),
    ),
    Mutant(
        "defect 18 strangers take the loop",
        "peer_links.py",
        "            await asyncio.sleep(0)\n",
        "            pass\n",
        ("links",),
    ),
    Mutant(
        "defect 15 lost connections stay open",
        "peer_links.py",
        '                connection.close("")\n                accepted.close()',
        "                pass",
        ("links",),
    ),
    Mutant(
        "tls without the dialled name",
        "../common/tls.py",
        "        context.minimum_version",
        "        context.check_hostname = False\n        context.minimum_version",
        ("tls",),
    ),
    Mutant(
        "tls asks for passwords",
        "../common/tls.py",
        ', password=lambda: b"")',
        ', password=lambda: b"secret")',
        ("tls",),
    ),
    Mutant(
        "tls resumes",
        "../common/tls.py",
        "    server.num_tickets = 0",
        "    server.num_tickets = 2",
        ("tls",),
    ),
    Mutant(
        "q4 whoever answers the dial",
        "introductions.py",
        "if dialled is not None and node != dialled:",
        "if False:",
        ("rejoin",),
    ),
    Mutant(
        "q4 any certificate",
        "introductions.py",
        "if names is not None and certificate_name(node) not in names:",
        "if False:",
        ("rejoin",),
    ),
)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mutants")
    for name in ("raft_metadata", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: str(mutant.name).replace(" ", "-"))
def test_a_planted_fault_is_caught(mutant: Mutant, copy: Path) -> None:
    good = (ROOT / QUORUM / mutant.file).read_text()
    assert mutant.line in good, "the line is not there any more"
    planted = copy / QUORUM / mutant.file
    planted.write_text(good.replace(mutant.line, mutant.instead))
    tests = [
        str(found.relative_to(ROOT))
        for name in mutant.tests
        for found in (ROOT / "tests").glob(f"*/test_quorum_{name}.py")
    ]
    try:
        run = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests],
            cwd=copy,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
            env={**os.environ, "CI": "1", "PYTHONDONTWRITEBYTECODE": "1"},
        )
    finally:
        planted.write_text(good)
    assert run.returncode == 1, f"survived: {run.stdout[-500:]}"
    assert re.search(r"^FAILED ", run.stdout, re.MULTILINE), run.stdout[-500:]
