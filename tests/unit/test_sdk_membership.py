"""A consumer's membership: when it joins, what heartbeats name, and how it ends."""

from __future__ import annotations

import pytest

from http_api.client.client_errors import OutcomeUnknownError, QuorumlogError, api_error
from http_api.client.sdk.consumer_settings import consumer_config
from http_api.client.sdk.membership import (
    ConsumerMembership,
    HeartbeatDuty,
    IdleDuty,
    JoinDuty,
    LaterDuty,
    LeaveDuty,
    Subscription,
    member_settings,
)
from http_api.contract.group_resources import AssignedPartition, GroupMembership

CONFIG = consumer_config(
    "h:1", {"group_id": "g", "session_timeout_ms": 6_000, "max_poll_interval_ms": 10_000}
)
TOPICS = Subscription(("t",), None)


def answer(*partitions: int, epoch: int = 1, revoked: tuple[int, ...] = ()) -> GroupMembership:
    return GroupMembership(
        group="g",
        member_id="m",
        static_id=None,
        member_epoch=epoch,
        group_epoch=epoch,
        assignor="uniform",
        heartbeat_interval_ms=1_000,
        session_timeout_ms=6_000,
        assignment=tuple(
            AssignedPartition(
                topic="t", topic_id="i", partition=one, offset=0, leader_epoch=None,
                is_committed=False,
            )
            for one in partitions
        ),
        revoked=tuple(("t", one) for one in revoked),
    )  # fmt: skip


def places(*partitions: int) -> list[tuple[str, int]]:
    return [("t", one) for one in partitions]


def joined(*partitions: int) -> ConsumerMembership:
    """Return a member that owns these partitions."""
    member = ConsumerMembership(CONFIG, "m")
    member.subscribe(TOPICS)
    member.poll()
    member.receive(answer(*partitions), (), 0.0, 0.0)
    member.take(places(*partitions))
    return member


def test_it_joins_with_a_poll_and_owns_what_the_program_took() -> None:
    member = ConsumerMembership(CONFIG, "m")
    assert member.duty(0.0, 0.0, "n") == IdleDuty()
    member.subscribe(TOPICS)
    assert member.duty(0.0, 0.0, "n") == IdleDuty()
    member.poll()
    assert member.duty(0.0, 0.0, "n") == JoinDuty("m")
    member.receive(answer(0, 1), (), 0.0, 5.0)
    assert member.has_change
    assert [one.partition for one in member.added()] == [0, 1]
    assert member.duty(5.0, 5.0, "n") == LaterDuty(1.0)  # an answer would come at once
    member.take(places(0, 1))
    assert not member.has_change
    assert member.duty(5.0, 5.0, "n") == HeartbeatDuty("m", 1, (("t", 0), ("t", 1)), 2_000)
    assert member.member() == ("m", 1)


def test_a_revoked_partition_is_named_until_the_program_gave_it_up() -> None:
    member = joined(0, 1)
    member.receive(answer(0, epoch=2, revoked=(1,)), places(0, 1), 0.0, 6.0)
    assert member.revoked() == places(1)
    assert member.duty(6.2, 6.0, "n") == LaterDuty(pytest.approx(0.8))
    assert member.duty(7.0, 7.0, "n") == HeartbeatDuty("m", 2, (("t", 0), ("t", 1)), 2_000)
    member.give_up(places(1))
    assert member.duty(6.2, 6.0, "n") == HeartbeatDuty("m", 2, (("t", 0),), 2_000)


def test_a_revocation_that_is_taken_back_before_it_ran_changes_nothing() -> None:
    member = joined(0, 1)
    member.receive(answer(0, epoch=2, revoked=(1,)), places(0, 1), 0.0, 6.0)
    member.receive(answer(0, 1, epoch=3), places(0, 1), 0.0, 7.0)
    assert not member.has_change


def test_what_is_given_up_is_assigned_again_by_a_later_answer_only() -> None:
    member = joined(0, 1)
    member.receive(answer(0, epoch=2, revoked=(1,)), places(0, 1), 0.0, 6.0)
    member.receive(answer(0, 1, epoch=3), places(0, 1), 0.0, 6.5)  # while on_revoke runs
    member.give_up(places(1))
    assert member.added() == []  # its offset is that of before the last commit
    assert member.duty(6.6, 6.0, "n") == HeartbeatDuty("m", 3, (("t", 0),), 2_000)
    member.receive(answer(0, 1, epoch=3), places(0, 1), 0.0, 6.7)  # to a request of before
    assert member.added() == []
    member.receive(answer(0, 1, epoch=4), places(0), 0.0, 6.8)
    assert [one.partition for one in member.added()] == [1]


def test_heartbeats_that_report_the_same_have_a_pause() -> None:
    member = joined(0)
    member.receive(answer(0), places(0), 7.0, 7.01)  # at once, by a broken broker
    assert member.duty(7.01, 7.0, "n") == LaterDuty(pytest.approx(0.49))
    member.receive(answer(0, 1), places(0), 7.0, 7.01)
    member.take(places(1))
    assert member.duty(7.01, 7.0, "n") == HeartbeatDuty("m", 1, (("t", 0), ("t", 1)), 2_000)


def test_only_what_is_held_may_be_committed() -> None:
    member = ConsumerMembership(CONFIG, "m")
    assert member.holds(places(0)) == {("t", 0): 0}  # assigned by hand
    member.subscribe(TOPICS)
    assert member.holds(places(0)) == {}
    member.poll()
    member.receive(answer(0, 1), (), 0.0, 0.0)
    assert member.holds(places(0)) == {}
    member.take(places(0, 1))
    first = member.holds(places(0, 1, 2))
    assert first == {("t", 0): 1, ("t", 1): 1}
    member.give_up(places(1))
    member.take(places(1))
    assert member.holds(places(0, 1)) == {("t", 0): 1, ("t", 1): 2}
    member.lose(may_join=True)
    assert member.holds(places(0, 1)) == {}  # although on_lost has not run yet
    member.take_loss()
    member.receive(answer(0), (), 0.0, 1.0)
    member.take(places(0))
    assert member.holds(places(0)) == {("t", 0): 3}


@pytest.mark.parametrize("code", [40_403, 40_903])
def test_a_member_that_is_gone_loses_all_and_joins_anew_with_another_id(code: int) -> None:
    member = joined(0)
    assert member.receive_error(api_error(code // 100, code, "gone", {}))
    assert member.has_change
    assert member.duty(0.0, 0.0, "n") == IdleDuty()  # on_lost runs first
    assert member.member() is None
    assert member.take_loss() == places(0)
    assert member.duty(0.0, 0.0, "n") == JoinDuty("n")
    assert member.duty(0.0, 0.0, "o") == JoinDuty("n")  # a repeat is the same member
    member.receive(answer(0), (), 0.0, 0.0)
    assert member.joins == 2
    assert [one.partition for one in member.added()] == [0]


def test_another_process_with_the_static_id_ends_it_for_good() -> None:
    member = joined(0)
    assert member.receive_error(api_error(409, 40_952, "fenced", {}))
    assert member.error is not None
    assert member.error.code == 40_952
    member.take_loss()
    member.poll()
    assert member.has_change
    assert member.duty(0.0, 0.0, "n") == IdleDuty()


@pytest.mark.parametrize("error", [OutcomeUnknownError("no answer"),
    api_error(503, 50_302, "later", {}), api_error(403, 40_301, "no", {})])  # fmt: skip
def test_other_errors_end_no_membership(error: QuorumlogError) -> None:
    member = joined(0)
    assert not member.receive_error(error)
    assert member.member() == ("m", 1)


def test_a_program_that_does_not_poll_leaves_until_it_does() -> None:
    member = joined(0)
    assert member.duty(9.0, 0.0, "n") == HeartbeatDuty("m", 1, (("t", 0),), 1_000)
    assert member.duty(10.0, 0.0, "n") == LeaveDuty("m")
    member.lose(may_join=False)
    assert member.take_loss() == places(0)
    assert member.duty(10.0, 0.0, "n") == IdleDuty()
    member.poll()
    assert member.duty(11.0, 11.0, "n") == JoinDuty("n")


def test_leaving_by_its_own_wish_loses_nothing() -> None:
    member = joined(0)
    member.subscribe(None)
    member.leave()
    assert not member.has_change
    assert member.owned == set()
    member.poll()
    assert member.duty(0.0, 0.0, "n") == IdleDuty()


def test_the_settings_of_a_join() -> None:
    settings = member_settings(CONFIG, Subscription(None, "^t"))
    assert (settings.topics, settings.topic_pattern) == (None, "^t")
    assert (settings.session_timeout_ms, settings.rebalance_timeout_ms) == (6_000, 10_000)
