"""Lines of the doors to transactions and of a log's table of producers, each switched off.

No simulated world has these lines: a test of its own shows each, named in docs/claims.md.
``tests/contract/test_planted_doors.py`` plants them and expects that test to fail.
"""

from __future__ import annotations

from types import SimpleNamespace

from broker.log.partition_log import PartitionLog
from broker.server import peer_codec, produce
from broker.transactions.messages import TransactionState
from http_api.server import fast_lane
from http_api.server.routes.v2 import transactional_produce
from http_api.server.routes.v3 import transaction_bodies
from tests.support.planted.registry import Patch


def reserved_ids_are_taken(patch: Patch) -> None:
    """Rule S4: a client's produce may have a producer id of the cluster's own."""
    for door in (produce, peer_codec):
        patch.setattr(door, "check_producer_id", lambda _: None)


def the_table_is_missing_at_the_end(patch: Patch) -> None:
    """Rule S5: a log that is deleted up to its end forgets its homes."""
    patch.setattr(PartitionLog, "_decode_told", lambda *_: None)


def digests_are_equal(patch: Patch) -> None:
    """Rule S7: the content of a repeat is not compared."""
    patch.setattr(transaction_bodies, "digest_of", lambda _: "")


def the_lane_ignores_keys(patch: Patch) -> None:
    """Rule S7: the fast lane takes a produce with an `Idempotency-Key` for a plain one."""
    patch.delitem(fast_lane._ROLES, b"idempotency-key")


def committing_is_a_success(patch: Patch) -> None:
    """Rule S3: a produce with a key is answered 200 while its rows can't be read."""
    states = SimpleNamespace(COMPLETE=TransactionState.COMMITTING)
    patch.setattr(transactional_produce, "TransactionState", states)
