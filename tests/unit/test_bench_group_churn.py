"""The churn of a group counts two owners, and its rows say what was missed."""

from __future__ import annotations

import random
import time
from typing import cast

import aiohttp
import pytest

from benchmarks.group_churn import (
    SESSION_S,
    Churn,
    DirectMember,
    GroupError,
    ObservedGroup,
    rows,
)
from benchmarks.report import missed
from chaos.cluster import ClusterFile

CLUSTER = ClusterFile(
    cluster_id="c", state="running", supervisor_pid=None, controllers=(), brokers=()
)


def group_of(*names: str) -> tuple[ObservedGroup, list[DirectMember]]:
    http = cast("aiohttp.ClientSession", None)  # no request is sent
    group = ObservedGroup(CLUSTER, "t", 2, http, random.Random(1))
    return group, [DirectMember(group, name) for name in names]


def granted(*partitions: int) -> dict[str, object]:
    return {
        "member_epoch": 1,
        "assignment": [{"partition_id": partition, "offset": 0} for partition in partitions],
    }


def test_a_partition_of_two_members_within_their_sessions_is_counted() -> None:
    group, (one, other) = group_of("one", "other")
    now_s = time.monotonic()
    one.take(granted(0), now_s)
    other.take(granted(1), now_s)
    assert (group.double_owners, group.granted) == ([], 2)
    other.take(granted(0, 1), now_s)
    assert group.double_owners == ["t-0 is owned by one and by other"]


def test_a_member_whose_session_is_over_owns_nothing() -> None:
    group, (one, other) = group_of("one", "other")
    now_s = time.monotonic()
    one.take(granted(0), now_s - SESSION_S)
    other.take(granted(0), now_s)
    assert group.double_owners == []


def test_skipped_records_are_an_error() -> None:
    group, _ = group_of()
    group.deliver(0, 0)
    group.deliver(0, 0)
    with pytest.raises(GroupError, match="t-0: 1 to 1 were skipped"):
        group.deliver(0, 2)


def test_two_owners_and_a_late_end_miss_their_budgets() -> None:
    def found(settled_s: float, *double_owners: str) -> str:
        churn = Churn(
            settled_s=settled_s,
            double_owners=double_owners,
            granted=9,
            joins_ms=(1.0, 2.0),
            heartbeats_ms=(0.0,),
        )
        return missed(rows(churn, 15.0))

    assert found(3.9) == "all 2 budgets met"
    assert "MISSED: 200 members that come and go for 15 s: last one gone → settled" in found(4.1)
    assert "with two owners: 1.00, budget ≤ 0" in found(3.9, "t-0 is owned by one and by other")
