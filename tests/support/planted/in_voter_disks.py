"""Lines of what a voter keeps on its disk, each switched off: journal, snapshots, identity (Q)."""

from __future__ import annotations

from tests.support.planted.registry import SOURCE_FAULTS, SourceFault

SOURCE_FAULTS += (
    SourceFault(
        "q1 open without rewrite",
        "        self.vote = self._open()",
        "        self.vote = self._open()\n"
        "        if self.entries:\n"
        "            data = disk.read_file(self._path)\n"
        "            self._fd = disk.open(self._path)\n"
        "            self._length = self._durable_end = len(data)\n"
        "            self._mark, self._handed_over_count = data[8:16], len(self.entries)\n"
        "            self._durable_index = self.entries[-1][1]\n"
        "            return",
        ("journal",),
    ),
    SourceFault(
        "q1/q6 directory not synced",
        '    disk.sync_directory(path.rpartition("/")[0])',
        "    pass",
        ("journal", "power_loss"),
    ),
    SourceFault(
        "q2 EIO ignored",
        "            disk.sync_data(fd)\n            return fd",
        "            try: disk.sync_data(fd)\n"
        "            except OSError: pass\n"
        "            return fd",
        ("journal", "flusher"),
    ),
    SourceFault(
        "q2 vote exception not fatal",
        '            self._faults.fatal(f"vote write failed file={self._vote_path}", error)',
        "            raise",
        ("journal",),
    ),
    SourceFault(
        "q5 no durable end in records",
        "encode_record(mark, entry, durable_end) for",
        "encode_record(mark, entry, 0) for",
        ("journal",),
    ),
    SourceFault(
        "q5 any good record behind is corruption",
        "    if scan.end < scan.proven:",
        "    if scan.end < scan.proven or data.find(mark, scan.end + 1) >= 0:",
        ("journal",),
    ),
    SourceFault(
        "q5 no proof record",
        "        if idle and not self._tail_proven and self._in_flight is None:",
        "        if False:",
        ("journal",),
    ),
    SourceFault(
        "q5 later records prove nothing",
        "            proven = max(proven, later.durable_end)",
        "            pass",
        ("journal",),
    ),
    SourceFault(
        "q5 fixed mark",
        "self._mark = self._random_bytes(MARK_BYTES)",
        "self._mark = b'markmark'",
        ("journal",),
    ),
    SourceFault(
        "q5 truncates in place",
        "        if position < self._handed_over_count:\n            self._must_rewrite = True\n",
        "        if position < self._handed_over_count:\n"
        "            start = file_bytes(self.entries)\n"
        "            self._disk.truncate(self._fd, start)\n"
        "            self._length, self._handed_over_count = start, position\n"
        "            self._durable_end = min(self._durable_end, start)\n",
        ("journal",),
    ),
    SourceFault(
        "truncating committed allowed",
        "if index <= self.commit_index:",
        "if False:",
        ("journal",),
    ),
    SourceFault(
        "vote file optional",
        "if vote is None or (self",
        "if vote is None: vote = Vote(0,None)\n        if (self",
        ("journal",),
    ),
    SourceFault(
        "half a snapshot stays",
        "            self._drop_failed(path)\n",
        "",
        ("snapshots",),
    ),
    SourceFault(
        "q3 truncation bumps no generation",
        "        self.generation += 1\n",
        "",
        ("flusher",),
    ),
    SourceFault(
        "q3 an old flush is believed",
        "if flush.generation != self.generation:",
        "if False:",
        ("flusher",),
    ),
    SourceFault(
        "q3 an old flush is dropped and nothing written anew",
        "            self._must_rewrite = True\n            return\n",
        "            return\n",
        ("flusher",),
    ),
    SourceFault(
        "q3 truncation keeps the durable index",
        "        self._durable_index = min(self._durable_index, max(0, index - 1))\n",
        "",
        ("flusher",),
    ),
    SourceFault(
        "m7 the loop waits for the disk",
        "        self._flusher.start(flush.work, lambda: self._on_flushed(flush))",
        "        self._flusher.start(flush.work, lambda: None)\n"
        "        self._flusher.wait()\n"
        "        self._on_flushed(flush)",
        ("flusher",),
    ),
    SourceFault(
        "q2 a flush that failed is believed",
        "        if flush.fd is None:\n            # rule Q2",
        "        flush.fd = flush.fd or self._fd\n"
        "        if flush.fd is None:\n            # rule Q2",
        ("flusher",),
    ),
    SourceFault(
        "a flush that waits begins by itself never",
        "        self.on_durable()\n        self.flush()\n",
        "        self.on_durable()\n",
        ("flusher",),
    ),
    SourceFault(
        "defect 4 align clears",
        "if self.at(previous[1]) == previous and self.at(last[1]) == last:",
        "if False:",
        ("journal", "reigns"),
    ),
    SourceFault(
        "defect 4 suffix dropped",
        "            self.entries.extend(old[position + 1 :])",
        "            pass",
        ("journal",),
    ),
    SourceFault(
        "q4 no lock",
        "                self._disk.lock(self._lock)\n",
        "                pass\n",
        ("rejoin",),
    ),
    SourceFault(
        "q4 any directory id",
        "return cluster_id == self._meta.cluster_id and directory_id == expected",
        "return True",
        ("rejoin",),
    ),
    SourceFault(
        "q4 not meant for us",
        "            and to_directory == self._meta.directory_id\n",
        "",
        ("rejoin",),
    ),
    SourceFault(
        "journal gone accepted",
        "if home.meta.used and not",
        "if False and not",
        ("rejoin",),
    ),
    SourceFault(
        "snapshot gone accepted",
        "elif opened.journal.entries and",
        "elif False and",
        ("rejoin",),
    ),
    SourceFault(
        "snapshot crc",
        "or zlib.crc32(chunk) != crc",
        "",
        ("snapshots",),
    ),
    SourceFault(
        "snapshot total crc",
        "if crc != total or start",
        "if start",
        ("snapshots",),
    ),
    SourceFault(
        "snapshot generation",
        "            if generation != self._generation:\n"
        "                self._disk.unlink(path)\n"
        "                return\n",
        "",
        ("snapshots",),
    ),
    SourceFault(
        "received not synced",
        "        self._disk.sync_data(fd)  # before the rename",
        "        # before the rename",
        ("snapshots",),
    ),
)
