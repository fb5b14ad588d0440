"""Many answers at once leave the loop its turns; few go at once; deadlines of what is parked."""

from __future__ import annotations

import asyncio

from broker.replication.delayed_produces import DelayedProduce, DelayedProduces
from broker.server.local_partitions import CALLS_PER_TURN, TurnBudget


async def test_a_few_calls_are_made_at_once() -> None:
    slices, called = TurnBudget(), list[int]()
    for number in range(CALLS_PER_TURN):
        slices.call(called.append, number)
    assert called == list(range(CALLS_PER_TURN))


async def test_20_000_calls_are_made_in_slices_and_in_order() -> None:
    slices, called, turns = TurnBudget(), list[int](), list[int]()
    for number in range(20_000):
        slices.call(called.append, number)
    while len(called) < 20_000:
        turns.append(len(called))
        await asyncio.sleep(0)
    assert called == list(range(20_000))
    assert len(turns) >= 20_000 // CALLS_PER_TURN - 1
    slices.call(called.append, 7)
    slices.call(called.append, 8)
    await asyncio.sleep(0)
    assert called[-2:] == [7, 8]


async def test_a_call_that_fails_does_not_keep_the_others() -> None:
    slices, called = TurnBudget(), list[int]()
    loop = asyncio.get_running_loop()
    failures: list[object] = []
    loop.set_exception_handler(lambda _, context: failures.append(context["exception"]))

    def fail() -> None:
        raise ValueError

    for number in range(CALLS_PER_TURN + 1):
        slices.call(called.append, number)
    slices.call(fail)
    slices.call(called.append, 999)
    for _ in range(5):
        await asyncio.sleep(0)
    assert called[-1] == 999
    assert len(failures) == 1


def test_each_parked_produce_is_told_at_its_own_deadline() -> None:
    queue, told = DelayedProduces(), list[tuple[int, int]]()

    def park(deadline_ms: int, now: list[int]) -> None:
        queue.add(
            DelayedProduce(
                1,
                0,
                0,
                bool(deadline_ms % 2),
                deadline_ms,
                lambda _: told.append((deadline_ms, now[0])),
            )
        )

    now = [0]
    for deadline_ms in (500, 101, 300, 900):
        park(deadline_ms, now)
    for now_ms in range(0, 700, 50):
        now[0] = now_ms
        queue.expire(now_ms)
        if now_ms == 300:
            queue.hasten(450)
        if now_ms == 400:
            park(420, now)
    assert sorted(told) == [(101, 150), (300, 300), (420, 450), (500, 450), (900, 450)]
    assert len(queue) == 0
