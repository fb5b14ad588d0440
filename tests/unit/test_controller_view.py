"""Who has caught up when, by KIP-595's rule."""

from __future__ import annotations

from raft_metadata.quorum.controller_view import CaughtUpTimes


def test_a_follower_that_keeps_up_under_steady_load_is_caught_up_as_of_a_moment_ago() -> None:
    caught_up = CaughtUpTimes()
    for step in range(10):
        # Always five entries behind the present end, ten come per step.
        caught_up.note({"b": 10 * step - 5}, 10 * step, 100 * step)
    assert caught_up.age_ms("b", 900) == 100


def test_a_follower_that_falls_behind_ages_from_when_it_last_had_everything() -> None:
    caught_up = CaughtUpTimes()
    caught_up.note({"b": 10}, 10, 1_000)
    for step in range(1, 5):
        caught_up.note({"b": 10}, 10 + 10 * step, 1_000 + 100 * step)
    assert caught_up.age_ms("b", 1_450) == 450


def test_one_that_was_never_level_has_no_age_and_one_that_left_is_forgotten() -> None:
    caught_up = CaughtUpTimes()
    caught_up.note({"b": 3, "c": 10}, 10, 1_000)
    assert caught_up.age_ms("b", 1_000) is None
    assert caught_up.age_ms("c", 1_000) == 0
    caught_up.note({"b": 3}, 10, 1_100)
    assert caught_up.age_ms("c", 1_200) is None
