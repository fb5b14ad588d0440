"""``metadata.version``: the records that the log may hold at each feature level (KIP-584).

A record of a newer level is refused by the deciding controller while the level is lower, and a
level that some node can't follow is refused when it is raised: a node that is too old never meets
an unknown record at run time. There is one level until a release adds a record or a field that
changes what an image means; that release raises `SUPPORTED_FEATURE_LEVEL` and gives the record its
row in `NEWER_RECORDS`.
"""

from __future__ import annotations

from collections.abc import Mapping

from raft_metadata.common.errors import NewerVersionError
from raft_metadata.records.records import MetadataRecord

FIRST_LEVEL = 1
"""The level of all records that have no row in `NEWER_RECORDS`."""
SUPPORTED_FEATURE_LEVEL = FIRST_LEVEL
"""The highest level at which this version can decide and apply records."""
NEWER_RECORDS: Mapping[type[MetadataRecord], int] = {}
"""The records that need a level above `FIRST_LEVEL`, with that level."""


def check_supported(level: int) -> None:
    """Raise `NewerVersionError` for a ``metadata.version`` above `SUPPORTED_FEATURE_LEVEL`."""
    if level > SUPPORTED_FEATURE_LEVEL:
        message = (
            f"the cluster's metadata.version is {level}, this version of quorumlog follows "
            f"{SUPPORTED_FEATURE_LEVEL} at most: start a newer version"
        )
        raise NewerVersionError(message)


def level_of(record: MetadataRecord) -> int:
    """Return the lowest feature level at which every node understands all of this record."""
    return NEWER_RECORDS.get(type(record), FIRST_LEVEL)
