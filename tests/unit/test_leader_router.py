"""Which attempts the router makes again, and how long it awaits a leader's answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from broker.server import router as module
from broker.server.router import LeaderRouter
from raft_metadata.common.clock import SystemClock
from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome
from raft_metadata.image.metadata_image import MetadataImage
from tests.support.one_broker import HERE, ME, OTHER, image

LOST = KafkaError(ErrorCode.NETWORK_EXCEPTION, "the connection broke", outcome=Outcome.UNKNOWN)
REFUSED = KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
FINAL = KafkaError(ErrorCode.INVALID_RECORD)
DUPLICATE = KafkaError(ErrorCode.DUPLICATE_SEQUENCE_NUMBER)


class Elsewhere:
    """The loader of an image, and the channel to a leader that never answers."""

    def __init__(self) -> None:
        self.image: MetadataImage = image(1, (ME, OTHER), leader=OTHER)

    async def changed(self) -> None:
        await asyncio.sleep(0)

    async def call(self, *_: object) -> bytes:
        await asyncio.get_running_loop().create_future()
        raise AssertionError


def routed_through(
    *outcomes: KafkaError | str, deadline_ms: int = 1_000, **more: Any
) -> tuple[Callable[[], Awaitable[str]], list[KafkaError | str]]:
    """Return the request, and the outcomes that its attempts have not had yet."""
    fake: Any = Elsewhere()
    clock = SystemClock()
    left = list(outcomes)

    async def attempt(*_: object) -> str:
        outcome = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(outcome, KafkaError):
            raise outcome
        left.clear()
        return outcome

    async def run() -> str:
        router = LeaderRouter(fake, fake, clock)
        return await router.routed(HERE, attempt, clock.monotonic_ms() + deadline_ms, **more)

    return run, left


async def test_a_refusal_is_repeated_and_a_final_one_is_raised() -> None:
    run, left = routed_through(REFUSED, REFUSED, "found", repeat_unknown=False)
    assert (await run(), left) == ("found", [])
    run, left = routed_through(FINAL, "found", repeat_unknown=True)
    with pytest.raises(KafkaError) as error:
        await run()
    assert error.value is FINAL
    assert left == ["found"]


async def test_rule_f1_an_unknown_outcome_is_repeated_only_for_a_caller_that_asks_for_it() -> None:
    run, left = routed_through(LOST, "found", repeat_unknown=False)
    with pytest.raises(KafkaError) as error:
        await run()
    assert error.value is LOST
    assert left == ["found"]
    doubts: list[KafkaError] = []
    run, left = routed_through(LOST, REFUSED, "found", repeat_unknown=True, doubts=doubts)
    assert (await run(), left) == ("found", [])
    assert doubts == [LOST]


async def test_rule_f1_a_duplicate_whose_place_is_forgotten_is_not_sent_again() -> None:
    doubts: list[KafkaError] = []
    run, left = routed_through(DUPLICATE, "found", repeat_unknown=True, doubts=doubts)
    with pytest.raises(KafkaError) as error:
        await run()
    assert error.value is DUPLICATE
    assert (left, doubts) == (["found"], [])


async def test_the_deadline_ends_the_repeats_and_the_doubts_are_kept() -> None:
    doubts: list[KafkaError] = []
    run, _ = routed_through(LOST, deadline_ms=20, repeat_unknown=True, doubts=doubts)
    with pytest.raises(KafkaError, match="the connection broke") as error:
        await run()
    assert error.value.code is ErrorCode.LEADER_NOT_AVAILABLE
    assert doubts
    assert set(doubts) == {LOST}


async def test_a_leader_that_a_newer_epoch_replaced_is_awaited_for_a_short_grace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "DEPOSED_GRACE_MS", 10)
    elsewhere: Any = Elsewhere()
    router = LeaderRouter(elsewhere, elsewhere, SystemClock())
    before = elsewhere.image
    registration = before.partition(*HERE)
    async with asyncio.timeout(5), asyncio.TaskGroup() as tasks:
        call = router.forward(HERE, registration, 1, b"", 60_000)
        waiting = tasks.create_task(_error_of(call))
        await asyncio.sleep(0)
        router.image_changed(before, before)
        await asyncio.sleep(0.03)
        assert not waiting.done(), "it still leads"
        router.image_changed(before, image(2, (ME, OTHER), leader=ME))
    error = waiting.result()
    assert (error.code, error.outcome) == (ErrorCode.REQUEST_TIMED_OUT, Outcome.UNKNOWN)


async def _error_of(call: Awaitable[bytes]) -> KafkaError:
    with pytest.raises(KafkaError) as error:
        await call
    return error.value
