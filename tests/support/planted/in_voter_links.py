"""Lines of what passes between voters, each switched off: filter, connections, hellos (rule Q4)."""

from __future__ import annotations

from tests.support.planted.registry import SOURCE_FAULTS, SourceFault

SOURCE_FAULTS += (
    SourceFault(
        "defect 2 follower acks before sync",
        'return int(message["next_node_idx"]) - 1',
        "return 0",
        ("flusher",),
    ),
    SourceFault(
        "g3 votes against a leader that was just heard",
        "        if has_a_leader and message",
        "        if False and message",
        ("elections",),
    ),
    SourceFault(
        "g3 a successor waits",
        "                self._take_over_term = term + 1",
        "                pass",
        ("elections",),
    ),
    SourceFault(
        "defect 2 votes before sync",
        "return self._journal.last[1]  # it speaks",
        "return 0  # it speaks",
        ("flusher",),
    ),
    SourceFault(
        "q3 answers of an older log leave",
        "if held.generation != journal.generation or held.term != term:",
        "if False:",
        ("flusher",),
    ),
    SourceFault(
        "m7 no sign of life while the disk is slow",
        "            self._send_now(node, alive)\n",
        "            pass\n",
        ("flusher",),
    ),
    SourceFault(
        "defect 4 ack claims the suffix",
        'claimed = min(message["next_node_idx"], journal.installed_snapshot_index + 1)',
        'claimed = message["next_node_idx"]',
        ("reigns", "power_loss"),
    ),
    SourceFault(
        "defect 6 chunk commits",
        'message["commit_index"] = min(message["commit_index"], raft.raftCommitIndex)',
        "pass",
        ("reigns",),
    ),
    SourceFault(
        "defect 6 old snapshot taken",
        "if part is not None and part[3] <= raft.raftCommitIndex:",
        "if False:",
        ("reigns",),
    ),
    SourceFault(
        "defect 7 truncates",
        "            if not self._strip_known_entries(node, message):",
        "            if True:",
        ("reigns",),
    ),
    SourceFault(
        "defect 7 acks more",
        "self._answer(node, last + 1, success=True)",
        "self._answer(node, journal.last[1] + 1, success=True)",
        ("reigns",),
    ),
    SourceFault(
        "defect 8",
        'message["next_node_idx"] = self._raft.raftCommitIndex + 1',
        "pass",
        ("reigns",),
    ),
    SourceFault(
        "defect 9 stale counts",
        'elif message["term"] == term:',
        "else:",
        ("elections",),
    ),
    SourceFault(
        "defect 9 higher ignored",
        '            self.adopt(node, message["term"])\n        elif',
        "            pass\n        elif",
        ("elections",),
    ),
    SourceFault(
        "defect 9 silent",
        "            self._answer(node, 1)\n",
        "",
        ("elections",),
    ),
    SourceFault(
        "defect 10",
        "if node.node_id not in self._voters_counted:",
        "if True:",
        ("elections",),
    ),
    SourceFault(
        "defect 17 hears commands",
        '    "timeout_now": {"term": _is_number},',
        '    "timeout_now": {"term": _is_number},\n    "apply_command": {},',
        ("reigns",),
    ),
    SourceFault(
        "no pause",
        "            self._raft.pause(node)",
        "            pass",
        ("reigns",),
    ),
    SourceFault(
        "q7 adopt counts as contact",
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
    SourceFault(
        "q4 takes appends before it asked",
        'if self._home.meta.fence == "ask" or kind == "timeout_now":',
        'if kind == "timeout_now":',
        ("rejoin",),
    ),
    SourceFault(
        "q4 votes while fenced",
        '            message["last_log_term"] = message["last_log_index"] = -1\n        return',
        "            pass\n        return",
        ("rejoin",),
    ),
    SourceFault(
        "q4 smaller id may dial",
        "if dialled is None and node <= self._home.meta.node_id:",
        "if False:",
        ("rejoin",),
    ),
    SourceFault(
        "defect 18 frame cap",
        "if fields[0] > self.max_frame_bytes:",
        "if False:",
        ("links",),
    ),
    SourceFault(
        "defect 18 strangers may say as much as voters",
        "max_frame_bytes=MAX_HELLO_BYTES,",
        "max_frame_bytes=MAX_FRAME_BYTES,",
        ("links",),
    ),
    SourceFault(
        "defect 18 strangers stay",
        "async with asyncio.timeout(HELLO_TIMEOUT_S):\n                if self._tls",
        "async with asyncio.timeout(1000):\n                if self._tls",
        ("links",),
    ),
    SourceFault(
        "defect 18 any number of strangers",
        "if len(self._strangers) >= MAX_STRANGERS:",
        "if False:",
        ("links",),
    ),
    SourceFault(
        "defect 19 accept gives up",
        "await asyncio.sleep(ACCEPT_RETRY_S)\n                continue",
        "return",
        ("links",),
    ),
    SourceFault(
        "defect 20 no alive sign",
        "            self._write(_ALIVE)\n",
        "            pass\n",
        ("links",),
    ),
    SourceFault(
        "unread bytes without limit",
        "if self.unsent_bytes > MAX_UNSENT_BYTES:",
        "if False:",
        ("links",),
    ),
    SourceFault(
        "silent voters stay",
        "if now - self._received_at > silence_s:",
        "if False:",
        ("links",),
    ),
    SourceFault(
        "voters that read nothing stay",
        "if now - self._drained_at > silence_s:",
        "if False:",
        ("links",),
    ),
    SourceFault(
        "m7 own stall blames peers",
        "stalled = now - self._watched_at > 2 * KEEPALIVE_S",
        "stalled = False",
        ("links",),
    ),
    SourceFault(
        "two connections per pair",
        '            old.close("replaced by a new one")\n',
        "            pass\n",
        ("links",),
    ),
    SourceFault(
        "defect 18 strangers take the loop",
        "            await asyncio.sleep(0)\n",
        "            pass\n",
        ("links",),
    ),
    SourceFault(
        "defect 15 lost connections stay open",
        '                connection.close("")\n                accepted.close()',
        "                pass",
        ("links",),
    ),
    SourceFault(
        "tls without the dialled name",
        "        context.minimum_version",
        "        context.check_hostname = False\n        context.minimum_version",
        ("tls",),
    ),
    SourceFault(
        "tls asks for passwords",
        ', password=lambda: b"")',
        ', password=lambda: b"secret")',
        ("tls",),
    ),
    SourceFault(
        "tls resumes",
        "    server.num_tickets = 0",
        "    server.num_tickets = 2",
        ("tls",),
    ),
    SourceFault(
        "q4 whoever answers the dial",
        "if dialled is not None and node != dialled:",
        "if False:",
        ("rejoin",),
    ),
    SourceFault(
        "q4 any certificate",
        "if names is not None and certificate_name(node) not in names:",
        "if False:",
        ("rejoin",),
    ),
)
