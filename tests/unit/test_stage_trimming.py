"""A stage goes by its home's word (rule S10): what is asked, moved and trimmed, and in which order.

The index and the decisions are the product's; log and home are `tests.support.stage_world`.
`tests/simulation/test_stage_simulation.py` lets chance drive both.
"""

from __future__ import annotations

from dataclasses import replace

import orjson
import pytest

from broker.transactions import stage_messages, stage_trimming
from broker.transactions.chunk_records import ChunkKey, RowsChunk
from broker.transactions.messages import AttemptNamed
from broker.transactions.stage_index import ChunkPlace, StageIndex
from broker.transactions.stage_messages import StatusQuestion, Word
from broker.transactions.stage_trimming import (
    TrimRound,
    last_questions,
    log_start_of,
    next_moves,
    next_questions,
)
from raft_metadata.common.ids import PartitionId
from tests.support.stage_world import (
    HOMES,
    ModelHome,
    OpenDecision,
    StageLog,
    chunk,
    home_of,
    place_at,
)

STAGE = PartitionId(3)

FORCED = -(1 << 40)
"""Bytes that every living chunk blocks, so that it is moved."""


class World:
    """One stage, its leader's index, and the homes of ids that end in even and odd letters."""

    def __init__(self) -> None:
        self.log = StageLog()
        self.index = StageIndex(home_of)
        self.homes = [ModelHome() for _ in range(HOMES)]
        self.now_ms = 0
        self.max_age_ms = 1_000

    def home(self, key: ChunkKey) -> ModelHome:
        return self.homes[home_of(key.id).partition]

    def stage(self, new: RowsChunk) -> None:
        self.index.append(new, self.log.append(new, self.now_ms), self.now_ms)

    def commit(self) -> None:
        """The high watermark reaches the end."""
        self.log.high_watermark = self.log.end

    def questions(self, trim_round: TrimRound | None = None) -> list[StatusQuestion]:
        found = next_questions(
            self.index,
            STAGE,
            self.log.high_watermark,
            trim_round or TrimRound(),
            lambda place: self.now_ms - place.since_ms > self.max_age_ms,
        )
        return [question for question, _ in found]

    def wave(self, trim_round: TrimRound) -> int:
        """Ask one wave and take the words; how many there were."""
        asked = self.questions(trim_round)
        for question in asked:
            word = self.home(self.index.places[question.place.offset].chunk.key).status(question)
            self.take(trim_round, question, word)
        return len(asked)

    def take(self, trim_round: TrimRound, question: StatusQuestion, word: Word) -> None:
        trim_round.note(question, word, home_of(question.id))
        if word is Word.GONE:
            self.index.release(question.place.offset)

    def move(self, trim_round: TrimRound, move_bytes: int) -> list[ChunkPlace]:
        found = next_moves(self.index, self.log.high_watermark, trim_round.kept, move_bytes)
        for place in found:
            self.stage(replace(self.log.chunk_at(place), since_ms=place.since_ms))
        return found

    def trim(self) -> int:
        start = log_start_of(self.index, self.log.high_watermark)
        if start > self.log.start:
            self.log.trim(start)
        self.index.trim(self.log.start)
        return self.log.start


@pytest.fixture
def world() -> World:
    return World()


def test_rule_s10_nothing_is_trimmed_without_a_word_however_old_it_is(world: World) -> None:
    world.stage(chunk("a"))
    world.stage(chunk("b"))
    world.commit()
    world.now_ms = 1 << 40
    assert world.trim() == 0
    world.index.release(1)
    assert world.trim() == 0  # the first one is alive
    world.index.release(0)
    assert world.trim() == 2


def test_rule_s10_an_uncommitted_end_is_neither_asked_about_nor_trimmed(world: World) -> None:
    world.stage(chunk("a", targets=2))
    world.log.high_watermark = 1
    assert world.questions() == []
    world.index.release(0)
    assert world.trim() == 1


def test_rule_s10_a_finished_attempt_is_asked_about_at_once_a_living_one_by_its_first(
    world: World,
) -> None:
    for name in ("a", "c"):
        for sequence in range(3):
            world.stage(chunk(name, sequence))
    world.commit()
    over = chunk("c").key
    world.home(over).newest[over.id] = OpenDecision((9, 9))
    trim_round = TrimRound()
    assert [q.place.offset for q in world.questions(TrimRound())] == [0, 3]
    world.wave(trim_round)
    assert [q.place.offset for q in world.questions(trim_round)] == [4, 5]
    world.wave(trim_round)
    assert world.questions(trim_round) == []
    assert sorted(world.index.released) == [3, 4, 5]


def test_rule_s10_only_the_first_chunk_of_a_home_expires(world: World) -> None:
    world.stage(chunk("a"))
    world.now_ms = 600
    world.stage(chunk("c"))
    world.stage(chunk("b"))
    world.commit()
    world.now_ms = 1_700
    aged = {question.place.offset: question.is_aged for question in world.questions()}
    assert aged == {0: True, 1: False, 2: True}  # a and c have one home
    world.wave(TrimRound())
    assert sorted(world.index.released) == [0, 2]
    assert {q.place.offset: q.is_aged for q in world.questions()} == {1: True}


def test_rule_s10_only_the_first_chunk_of_a_home_that_must_stay_is_moved(world: World) -> None:
    for name in ("a", "c", "b"):
        world.stage(chunk(name))
    world.commit()
    trim_round = TrimRound()
    assert world.move(trim_round, FORCED) == []  # no home has said anything
    world.wave(trim_round)
    assert world.move(trim_round, 0) == []  # all that is behind them lives
    assert [place.base for place in world.move(trim_round, FORCED)] == [0, 2]
    assert world.move(trim_round, FORCED) == []  # and not twice


def test_rule_s10_little_behind_a_living_chunk_moves_nothing(world: World) -> None:
    world.stage(chunk("a"))
    world.stage(chunk("b"))
    world.commit()
    trim_round = TrimRound()
    world.wave(trim_round)
    assert world.move(trim_round, 0) == []  # b lives, too
    world.index.release(1)
    blocked = world.index.bytes_blocked(world.index.places[0])
    assert blocked > 0
    assert world.move(trim_round, blocked) == []
    assert len(world.move(trim_round, blocked - 1)) == 1


def test_rule_s10_a_large_transaction_is_not_moved_for_its_own_chunks(world: World) -> None:
    for sequence in range(20):
        world.stage(chunk("a", sequence=sequence))
    world.commit()
    trim_round = TrimRound()
    world.wave(trim_round)
    assert world.move(trim_round, 0) == []


def test_rule_s10_a_copy_is_told_once_it_is_committed_and_asked_about_after_the_old_place(
    world: World,
) -> None:
    world.stage(chunk("a", targets=2))
    world.stage(chunk("b"))
    world.commit()
    trim_round = TrimRound()
    world.wave(trim_round)
    world.move(trim_round, -1)  # of the first one only
    before = world.questions()
    assert [(q.place.offset, q.records, q.copy) for q in before] == [(0, 2, None), (2, 1, None)]
    world.commit()
    after = world.questions()
    assert [(q.place.offset, q.copy) for q in after] == [(0, place_at(3)), (2, None)]
    world.index.release(0)
    assert [q.place.offset for q in world.questions()] == [3, 2]
    for question in (before[0], after[0]):
        head = orjson.loads(orjson.dumps(stage_messages.encode_status(question).head))
        assert stage_messages.decode_status(head) == question


def test_rule_s10_a_chunk_that_was_staged_anew_is_a_copy_in_the_same_layout_only(
    world: World,
) -> None:
    """A decision that names the old place would be made to name rows of another target."""
    world.stage(chunk("a", targets=1))
    world.stage(chunk("a", targets=2))  # let go by the word to a leader that is deposed by now
    world.stage(chunk("c"))
    world.commit()
    trim_round = TrimRound()
    assert world.wave(trim_round) == 2
    assert [question.copy for question in world.questions()] == [None, None]
    (moved,) = world.move(trim_round, FORCED)
    world.commit()
    assert (moved.base, world.questions()[0].copy) == (0, place_at(4))


def test_rule_s10_a_copy_is_named_once_it_is_committed(world: World) -> None:
    world.stage(chunk("a"))
    world.stage(chunk("b"))
    world.commit()
    trim_round = TrimRound()
    world.wave(trim_round)
    world.move(trim_round, FORCED)
    key, named = chunk("a").key, AttemptNamed("1.0", 1, 1)

    def place() -> int:
        (ref,) = world.index.refs(key.id, (1, 0), named, world.log.high_watermark).refs
        return ref.at.offset

    assert place() == 0
    world.commit()
    assert place() == 2


def test_rule_s10_a_copy_keeps_the_age_of_its_chunk(world: World) -> None:
    world.stage(chunk("a"))
    world.stage(chunk("b"))
    world.commit()
    trim_round = TrimRound()
    world.wave(trim_round)
    world.now_ms = 900
    world.move(trim_round, FORCED)
    world.commit()
    assert world.index.places[2].since_ms == world.log.load().places[2].since_ms == 0
    world.index.release(0)
    world.now_ms = 1_001
    assert {q.place.offset: q.is_aged for q in world.questions()} == {1: True, 2: True}


def test_a_home_that_does_not_answer_is_not_asked_again_in_a_round(world: World) -> None:
    world.stage(chunk("a"))
    world.commit()
    trim_round = TrimRound()
    (question,) = world.questions(trim_round)
    trim_round.note(question, None, home_of(question.id))
    assert world.questions(trim_round) == []
    assert world.move(trim_round, FORCED) == []
    assert world.questions() == [question]


def test_rule_s10_each_home_is_asked_last_about_its_last_place_that_goes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So its horizon rises over all that goes of it, and over nothing that stays."""
    for name in "abcde":
        world.stage(chunk(name, targets=2))
    world.commit()
    for base in (0, 2, 4, 6):
        world.index.release(base)
    assert log_start_of(world.index, world.log.high_watermark) == 8
    asked = last_questions(world.index, STAGE, 8)
    assert {(q.id.name, q.place, q.records, q.is_passed) for q in asked} == {
        ("c", place_at(4), 2, True),
        ("d", place_at(6), 2, True),
    }
    head = orjson.loads(orjson.dumps(stage_messages.encode_status(asked[0]).head))
    assert stage_messages.decode_status(head) == asked[0]
    monkeypatch.setattr(stage_trimming, "TRIMMED_MAX", 3)
    assert log_start_of(world.index, world.log.high_watermark) == 6
    assert last_questions(world.index, STAGE, 0) == []
