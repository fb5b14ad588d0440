"""A level of ``metadata.version`` above the product's, for tests of how a cluster is raised to it.

`support_next_level` is what a release would do that needs a new level: the processes of the test
follow it, and one record (`NEWER_RECORD`) may not be written below it.
"""

from __future__ import annotations

import sys

import pytest

from raft_metadata.records import feature_levels
from raft_metadata.records.feature_levels import SUPPORTED_FEATURE_LEVEL
from raft_metadata.records.records import BrokerDrainRecord

PRESENT_LEVEL = SUPPORTED_FEATURE_LEVEL
NEXT_LEVEL = SUPPORTED_FEATURE_LEVEL + 1
NEWER_RECORD = BrokerDrainRecord
_PACKAGES = ("raft_metadata", "broker", "http_api")


def support_next_level(patch: pytest.MonkeyPatch) -> None:
    """Make every module of the product support `NEXT_LEVEL`."""
    for name, module in list(sys.modules.items()):
        if name.startswith(_PACKAGES) and hasattr(module, "SUPPORTED_FEATURE_LEVEL"):
            patch.setattr(module, "SUPPORTED_FEATURE_LEVEL", NEXT_LEVEL)
    patch.setattr(feature_levels, "NEWER_RECORDS", {NEWER_RECORD: NEXT_LEVEL})
