"""Read tokens (rule G5): what a token acknowledges, what it brings again, what it refuses."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from broker.coordinator import instances
from broker.coordinator.group_messages import ConsumerSettings, OffsetReset
from broker.coordinator.read_tokens import ANSWERS_KEPT, Held
from raft_metadata.common.errors import ErrorCode, KafkaError
from tests.support.group_world import BY_HAND, EARLIEST, GroupWorld

NO_RESET = ConsumerSettings(auto_offset_reset=OffsetReset.EARLIEST, auto_commit_interval_ms=1)


def one_partition(settings: ConsumerSettings = EARLIEST) -> GroupWorld:
    world = GroupWorld(partitions=1)
    world.join("a", settings)
    return world


def refused(code: ErrorCode) -> pytest.RaisesExc[KafkaError]:
    return pytest.RaisesExc(KafkaError, check=lambda error: error.code is code)


def test_rule_g5_an_answer_that_was_lost_comes_again() -> None:
    world = one_partition()
    first, held = world.read_after("a", "0")
    assert held == {0: range(10)}
    _, lost = world.read_after("a", first)
    assert lost == {0: range(10, 20)}
    again, held = world.read_after("a", first, 15)
    assert held == {0: range(10, 25)}
    world.commit_after("a", again)
    assert world.committed(0) == 25


def test_rule_g5_what_was_sent_and_not_acknowledged_is_not_committed() -> None:
    world = one_partition(NO_RESET)
    first, _ = world.read_after("a", "0")
    world.state.judge_ms += 10
    world.read_after("a", first)
    world.state.judge_ms += 10
    instances.tick(world.state, world.topics, 30_000)
    assert world.committed(0) == 10
    world.commit_all("a")
    assert world.committed(0) == 10
    world.delete("a")
    assert world.committed(0) == 10


def test_a_token_of_an_answer_that_was_overtaken_moves_nothing() -> None:
    world = one_partition()
    first, _ = world.read_after("a", "0")
    second, _ = world.read_after("a", first)
    third, _ = world.read_after("a", second)
    with refused(ErrorCode.ILLEGAL_STATE):
        world.read_after("a", first)
    assert world.read_after("a", third)[1] == {0: range(30, 40)}


def test_a_late_answer_may_be_acknowledged_after_a_repeat() -> None:
    world = one_partition()
    first, _ = world.read_after("a", "0")
    late, _ = world.read_after("a", first, 5)
    world.read_after("a", first, 20)
    assert world.read_after("a", late)[1] == {0: range(15, 25)}


def test_only_the_last_answers_can_be_acknowledged() -> None:
    world = one_partition()
    first, _ = world.read_after("a", "0")
    lost = [world.read_after("a", first)[0] for _ in range(ANSWERS_KEPT + 1)]
    with refused(ErrorCode.ILLEGAL_STATE):
        world.read_after("a", lost[0])
    assert world.read_after("a", lost[1])[1] == {0: range(20, 30)}


def test_a_client_that_holds_nothing_reads_on_from_the_commit() -> None:
    world = one_partition(BY_HAND)
    first, _ = world.read_after("a", "0")
    world.commit_after("a", first)
    second, _ = world.read_after("a", first)
    assert world.read_after("a", "0")[1] == {0: range(10, 20)}
    with refused(ErrorCode.ILLEGAL_STATE):
        world.read_after("a", second)


def test_a_token_of_another_coordinator_goes_on_from_the_commit() -> None:
    world = one_partition(BY_HAND)
    first, _ = world.read_after("a", "0")
    world.commit_after("a", first)
    second, _ = world.read_after("a", first)
    world.fail_over()
    _, _, session = world.state.find(world.key("a"))
    assert session.tokens.check(second) is Held.FOREIGN
    with refused(ErrorCode.ILLEGAL_STATE):
        world.commit_after("a", second)
    assert world.read_after("a", second)[1] == {0: range(10, 20)}


def test_a_seek_wins_over_a_token_before_it() -> None:
    world = GroupWorld(partitions=2)
    world.join("a", BY_HAND)
    first, _ = world.read_after("a", "0")
    second, _ = world.read_after("a", first)
    world.seek("a", 0, 3)
    assert world.read_after("a", second)[1] == {0: range(3, 13), 1: range(20, 30)}
    world.seek("a", 0, 3)
    assert world.read_after("a", second)[1] == {0: range(3, 13), 1: range(20, 30)}


def test_a_token_reader_stays_one() -> None:
    world = one_partition()
    world.read_after("a", "0")
    world.fail_over()
    with refused(ErrorCode.ILLEGAL_STATE):
        instances.acknowledge_answer(world.state, world.key("a"), None)


def test_a_client_may_begin_with_tokens_after_plain_reads() -> None:
    world = one_partition()
    world.read("a")
    _, _, session = world.state.find(world.key("a"))
    token = session.tokens.note([])
    assert world.read_after("a", token)[1] == {0: range(10, 20)}


def test_what_was_sent_delays_no_rebalance_once_the_instance_reads_again() -> None:
    world = GroupWorld(partitions=2)
    world.join("a", BY_HAND)
    first, _ = world.read_after("a", "0")
    world.commit_after("a", first)
    world.read_after("a", first)
    world.join("b", BY_HAND)
    assert (world.owned("a"), world.owned("b")) == ({0, 1}, set())
    world.read_after("a", first)
    world.call("b")
    assert (world.owned("a"), world.owned("b")) == ({0}, {1})


@pytest.mark.parametrize("token", ["", "7", "x-", "-1", "a-b", "é-1", "a-1\n", "a" * 60 + "-1"])
def test_a_text_that_is_no_token_is_refused(token: str) -> None:
    world = one_partition()
    with refused(ErrorCode.INVALID_REQUEST):
        world.read_after("a", token)


class LossyReads(RuleBasedStateMachine):
    """One token reader behind a network that loses, delays and repeats answers (rule G5)."""

    def __init__(self) -> None:
        super().__init__()
        self.world = GroupWorld(partitions=2)
        self.world.join("a", NO_RESET)
        self.token = "0"
        self.held: dict[int, set[int]] = {0: set(), 1: set()}
        """Offsets that the client received, by partition."""
        self.late: list[tuple[str, dict[int, range]]] = []

    def _receive(self, token: str, answer: dict[int, range]) -> None:
        self.token = token
        for number, offsets in answer.items():
            self.held[number].update(offsets)

    @rule(count=st.integers(1, 7))
    def read(self, count: int) -> None:
        self._receive(*self.world.read_after("a", self.token, count))

    @rule(count=st.integers(1, 7))
    def read_and_lose_the_answer(self, count: int) -> None:
        self.late.append(self.world.read_after("a", self.token, count))

    @precondition(lambda self: self.late)
    @rule()
    def receive_a_late_answer(self) -> None:
        token, answer = self.late.pop()
        try:
            found = self.world.read_after("a", token)
        except KafkaError as error:
            assert error.code is ErrorCode.ILLEGAL_STATE  # noqa: PT017 overtaken is expected
            return
        self._receive(token, answer)
        self._receive(*found)
        self.late.clear()

    @rule()
    def commit(self) -> None:
        if self.token != "0":
            self.world.commit_after("a", self.token)

    @rule()
    def pass_time(self) -> None:
        self.world.state.judge_ms += 5
        instances.tick(self.world.state, self.world.topics, 30_000)
        self.world.write()

    @rule()
    def lose_the_coordinator(self) -> None:
        self.world.fail_over()
        self.token = "0"
        self.late.clear()

    @invariant()
    def nothing_is_skipped(self) -> None:
        for offsets in self.held.values():
            assert offsets == set(range(len(offsets)))

    @invariant()
    def nothing_is_committed_that_the_client_did_not_hold(self) -> None:
        for number, offsets in self.held.items():
            assert (self.world.committed(number) or 0) <= len(offsets)


TestRuleG5LossyReads = LossyReads.TestCase
TestRuleG5LossyReads.settings = settings(max_examples=150, stateful_step_count=30)
