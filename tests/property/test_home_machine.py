"""Turns of a home that Hypothesis chooses, against a model of what was decided (T9, T10, T13, S2).

The model and its checks are those of `HomeWorld`: each position is decided once, by one content,
and decided stays decided; an open decision is only completed; row numbers of each target are dense,
across the end of a sequence, too; no epoch is given twice, and none below the newest decides; no
decision names a chunk that is gone; a repeat hears the fate of the first; "not written" is true.
"""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from broker.transactions.home_decisions import Content
from broker.transactions.messages import ProducerPosition, TransactionalId
from tests.support.home_turns import folded
from tests.support.home_world import (
    KEYS,
    NUMBERED,
    PRODUCERS,
    SEQUENCES,
    HomeWorld,
    compacted,
    facts,
    run,
)

producers = st.sampled_from(PRODUCERS)
ids = st.sampled_from([*PRODUCERS, *NUMBERED, *KEYS])
backs = st.sampled_from([0, 0, 0, 1])
steps = st.sampled_from([1, 0, -1, 2])
digests = st.sampled_from("AABCD")
variants = st.integers(0, 11)
which = st.integers(0, 7)


class TurnsOfAHome(RuleBasedStateMachine):
    """Producers, numbered ids and keys at one home, over one stage."""

    def __init__(self) -> None:
        super().__init__()
        self.world = HomeWorld()

    @initialize(first_number=st.sampled_from([0, SEQUENCES - 5, SEQUENCES - 2]))
    def begin(self, first_number: int) -> None:
        self.world = HomeWorld(first_number)

    @rule(id_=producers)
    def init(self, id_: TransactionalId) -> None:
        self.world.init(id_)

    @rule(id_=ids, back=backs, step=steps, variant=variants, digest=digests)
    def commit(self, id_: TransactionalId, back: int, step: int, variant: int, digest: str) -> None:
        position = self.world.position(id_, back, step, variant)
        self.world.commit(Content(id_, position, digest))

    @precondition(lambda self: self.world.sent)
    @rule(back=st.integers(0, 30))
    def repeat(self, back: int) -> None:
        self.world.repeat(back)

    @rule(id_=producers, back=backs, step=steps)
    def abort(self, id_: TransactionalId, back: int, step: int) -> None:
        position = self.world.position(id_, back, step, 0)
        assert isinstance(position, ProducerPosition)
        self.world.abort(id_, position)

    @precondition(lambda self: self.world.model.open)
    @rule(which=which)
    def complete(self, which: int) -> None:
        self.world.complete(which)

    @rule(id_=ids)
    def forget(self, id_: TransactionalId) -> None:
        self.world.forget(id_)

    @rule(by_ms=st.sampled_from([1, 50, 101, 151]))
    def age(self, by_ms: int) -> None:
        self.world.age(by_ms)

    @rule()
    def load(self) -> None:
        self.world.load()

    @rule(id_=ids, back=backs, step=steps, variant=variants, rows=st.integers(1, 3), digest=digests)
    def stage(
        self, id_: TransactionalId, back: int, step: int, variant: int, rows: int, digest: str
    ) -> None:
        position = self.world.position(id_, back, step, variant)
        self.world.stage(id_, position, rows)
        self.world.ask_stages(Content(id_, position, digest))

    @precondition(lambda self: self.world.asked)
    @rule(which=which)
    def commit_staged(self, which: int) -> None:
        self.world.commit_staged(which)

    @precondition(lambda self: self.world.chunks)
    @rule(move=st.booleans(), is_aged=st.booleans())
    def ask_home(self, *, move: bool, is_aged: bool) -> None:
        self.world.ask_home(move=move, is_aged=is_aged)

    @invariant()
    def ids_are_counted(self) -> None:
        home = self.world.home
        ids = {id_ for id_ in (*home.epochs, *home.newest) if not id_.is_key}
        assert home.ids_count == len(ids)
        assert {*home.keys, *home.once} == {id_ for id_ in home.newest if id_.is_key}
        assert home.open_bytes == sum(home.newest[id_].inline_bytes for id_ in home.open)


TurnsOfAHome.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
TestTurnsOfAHome = TurnsOfAHome.TestCase


@given(seed=st.integers(0, 1 << 30), cut=st.floats(0, 1))
@settings(max_examples=30)
def test_invariant_t18_the_fold_of_a_compacted_log_is_the_fold_of_the_log(
    seed: int, cut: float
) -> None:
    """The cleaner has seen a beginning of the log only; what is behind it stands as it was."""
    log = [record for batch in run(seed).turns.log for record in batch]
    clean = int(cut * len(log))
    assert facts(folded([*compacted(log[:clean]), *log[clean:]])) == facts(folded(log))
    assert facts(folded(compacted(log))) == facts(folded(log))


def test_stories_reach_every_kind_of_turn() -> None:
    """The machine's world is not vacuous: the seeds meet each answer that a home has."""
    worlds = [run(seed) for seed in range(12)]
    facts_met = {
        "moved": any(world.copies for world in worlds),
        "gone": sum(len(world.gone) for world in worlds) > 10,
        "forgotten": any(world.model.forgotten for world in worlds),
        "runs": any(world.model.brought for world in worlds),
        "refused": sum(len(world.model.never) for world in worlds) > 10,
        "decided": sum(len(each) for world in worlds for each in world.model.fates.values()) > 60,
    }
    assert all(facts_met.values()), facts_met
