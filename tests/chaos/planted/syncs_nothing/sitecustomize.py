"""Planted: a broker believes that the records it wrote are on the disk (breaks rule Q1)."""

import sys

if "broker" in sys.orig_argv:
    from broker.log import flusher
    from raft_metadata.common.disk import Disk

    flusher.SYNC_FILES_MAX = 1 << 20  # never the whole file system: names are synced, contents not
    Disk.sync_data = lambda self, fd: None
