"""0.2 s doubling to 5 s, no limit; a node that was well starts from 0.2 s again."""

from __future__ import annotations

from http_api.node.node_process import SETTLED_AFTER_MS, RestartPolicy


def delays(*lives_ms: int) -> list[int]:
    policy, found = RestartPolicy(), []
    for lived_ms in lives_ms:
        delay_ms, policy = policy.after_death(lived_ms)
        found.append(delay_ms)
    return found


def test_delays_double_to_five_seconds_and_stay_there() -> None:
    assert delays(*[10] * 9) == [200, 400, 800, 1600, 3200, 5000, 5000, 5000, 5000]


def test_a_long_life_resets_the_delay() -> None:
    assert delays(10, 10, SETTLED_AFTER_MS, 10) == [200, 400, 200, 400]
    assert delays(10, 10, SETTLED_AFTER_MS - 1) == [200, 400, 800]
