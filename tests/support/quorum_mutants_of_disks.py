"""Lines of what a voter keeps on its disk, each switched off: journal, snapshots, identity (Q)."""

from __future__ import annotations

from tests.support.quorum_mutants import Mutant

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
        "            self._mark, self._handed_over_count = data[8:16], len(self.entries)\n"
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
        "        if position < self._handed_over_count:\n            self._must_rewrite = True\n",
        "        if position < self._handed_over_count:\n"
        "            start = file_bytes(self.entries)\n"
        '            self._handle.content.cache[start:] = b""\n'
        "            self._length, self._handed_over_count = start, position\n"
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
        "half a snapshot stays",
        "snapshots.py",
        "            self._drop_failed(path)\n",
        "",
        ("snapshots",),
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
        "m7 the loop waits for the disk",
        "journal.py",
        "        self._flusher.start(flush.work, lambda: self._on_flushed(flush))",
        "        self._flusher.start(flush.work, lambda: None)\n"
        "        self._flusher.wait()\n"
        "        self._on_flushed(flush)",
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
)
