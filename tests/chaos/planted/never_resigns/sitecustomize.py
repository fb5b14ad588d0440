"""Planted: a controller without a majority rules on (KAFKA-15489)."""

import sys

if "controller" in sys.orig_argv:
    from raft_metadata.quorum import raft_node

    _conf = raft_node.library_conf

    def library_conf(*arguments):
        made = _conf(*arguments)
        made.leaderFallbackTimeout = 1e9
        return made

    raft_node.library_conf = library_conf
