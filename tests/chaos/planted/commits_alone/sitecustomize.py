"""Planted: the active controller calls committed what only its own journal holds."""

import sys

if "controller" in sys.orig_argv:
    from raft_metadata.quorum.raft_node import RaftNode

    _append_queued = RaftNode.append_queued

    def append_queued(self):
        _append_queued(self)
        if self._isLeader():
            self._SyncObj__raftCommitIndex = self.journal.last[1]
            self.apply_committed()

    RaftNode.append_queued = append_queued
