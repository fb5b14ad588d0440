"""Every planted fault, registered by the modules of this folder, which this one imports.

Those of `SECOND_LINES` no seed shows: a second line of defence hides each, which has a test of its
own in ``tests/unit``, named in docs/claims.md.
"""

from __future__ import annotations

from tests.support.planted import (
    in_controllers,
    in_damage,
    in_deletion,
    in_groups,
    in_homes,
    in_logs,
    in_metadata,
    in_repairs,
    in_replication,
    in_rot,
    in_stages,
    in_transactions,
    in_upkeep,
    in_voter_disks,
    in_voter_links,
    in_voters,
)
from tests.support.planted.registry import FAULTS, SOURCE_FAULTS

SECOND_LINES = {
    "rule R4: acknowledgements of any session count": "sessions end with the epoch that counts",
    "rule R6: an outdated registration still counts": "the settling of the newer one",
    "rule R7: a replica without a tombstone is filled further": "tombstones wait for every replica",
    "rule R7: a filled replica does not learn which tombstones are gone": "the same",
    "rule R10: the cleaner uses a clock that is not trusted": "a tombstone is rarely the newest",
    "rule S4: a target takes a unit whose predecessors it lacks": "homes send them in order",
    "rule G3: a home that may be deposed lets a chunk go": "it commits its word",
    "P8: a removed replica counts while it waits for its produces": "the epoch of the reassignment",
}

__all__ = [
    "FAULTS",
    "SECOND_LINES",
    "SOURCE_FAULTS",
    "in_controllers",
    "in_damage",
    "in_deletion",
    "in_groups",
    "in_homes",
    "in_logs",
    "in_metadata",
    "in_repairs",
    "in_replication",
    "in_rot",
    "in_stages",
    "in_transactions",
    "in_upkeep",
    "in_voter_disks",
    "in_voter_links",
    "in_voters",
]
