"""Tests of the doors to transactions prove themselves: each fails once its line is gone."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from tests.contract import test_transactional_produce as produces
from tests.support.http_door import Door
from tests.support.planted import in_doors
from tests.support.planted.registry import Patch
from tests.unit import test_idempotent_forwards as forwards
from tests.unit import test_producers_told as told
from tests.unit import test_transaction_bodies as bodies


@pytest.mark.parametrize(
    ("plant", "test"),
    [
        (
            in_doors.reserved_ids_are_taken,
            forwards.test_rule_s4_no_request_of_a_client_or_forwarded_by_a_broker_has_a_reserved_id,
        ),
        (
            in_doors.the_table_is_missing_at_the_end,
            told.test_rule_s5_a_log_that_is_trimmed_to_its_end_forgets_nothing_at_a_follower_either,
        ),
        (in_doors.digests_are_equal, bodies.test_a_digest_is_over_the_text_of_the_content),
        (
            in_doors.the_lane_ignores_keys,
            produces.test_the_fast_lane_steps_aside_amid_plain_produces,
        ),
        (
            in_doors.committing_is_a_success,
            produces.test_what_is_not_complete_in_time_is_unknown,
        ),
    ],
    ids=lambda one: one.__name__,
)
async def test_a_fault_of_a_door_is_caught(
    plant: Callable[[Patch], None], test: Callable[..., Any], door: Door
) -> None:
    async def run() -> None:
        if inspect.iscoroutinefunction(test):
            await test(door)
        else:
            test()

    with pytest.MonkeyPatch.context() as patch:
        plant(patch)
        with pytest.raises((AssertionError, pytest.fail.Exception)):
            await run()
