"""A stage goes by its home's word (rule S10): what is asked, moved and trimmed, and in which order.

The index and the decisions are the product's; log and home are `tests.support.stage_world`. The
last test lets chance drive both through fail-overs, moves and expiry, and checks that no open
decision ever loses a row.
"""

from __future__ import annotations

import random
from collections.abc import Callable
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
    log_start_of,
    next_moves,
    next_questions,
)
from raft_metadata.common.ids import PartitionId
from tests.support.stage_world import HOMES, ModelHome, OpenDecision, StageLog, chunk, home_of

STAGE = PartitionId(3)
SEEDS = 60
STEPS = 100


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

    def stage(self, new: RowsChunk) -> int:
        base = self.log.append(new, self.now_ms)
        self.index.append(new, base, self.now_ms)
        return base

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
            word = self.home(self.index.places[question.place].chunk.key).status(question)
            self.take(trim_round, question, word)
        return len(asked)

    def take(self, trim_round: TrimRound, question: StatusQuestion, word: Word) -> None:
        trim_round.note(question, word, home_of(question.id))
        if word is Word.GONE:
            self.index.release(question.place)

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
    assert [q.place for q in world.questions(TrimRound())] == [0, 3]
    world.wave(trim_round)
    assert [q.place for q in world.questions(trim_round)] == [4, 5]
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
    aged = {question.place: question.is_aged for question in world.questions()}
    assert aged == {0: True, 1: False, 2: True}  # a and c have one home
    world.wave(TrimRound())
    assert sorted(world.index.released) == [0, 2]
    assert {q.place: q.is_aged for q in world.questions()} == {1: True}


def test_rule_s10_only_the_first_chunk_of_a_home_that_must_stay_is_moved(world: World) -> None:
    for name in ("a", "c", "b"):
        world.stage(chunk(name))
    world.commit()
    trim_round = TrimRound()
    assert world.move(trim_round, 0) == []  # no home has said anything
    world.wave(trim_round)
    assert [place.base for place in world.move(trim_round, 0)] == [0]  # nothing is behind b
    assert [place.base for place in world.move(trim_round, 0)] == [2]
    assert world.move(trim_round, 0) == []  # and not twice


def test_rule_s10_little_behind_a_living_chunk_moves_nothing(world: World) -> None:
    world.stage(chunk("a"))
    world.stage(chunk("b"))
    world.commit()
    trim_round = TrimRound()
    world.wave(trim_round)
    behind = world.index.bytes_behind(world.index.places[0])
    assert world.move(trim_round, behind) == []
    assert len(world.move(trim_round, behind - 1)) == 1


def test_rule_s10_a_copy_is_told_once_it_is_committed_and_asked_about_after_the_old_place(
    world: World,
) -> None:
    world.stage(chunk("a", targets=2))
    world.stage(chunk("b"))
    world.commit()
    trim_round = TrimRound()
    world.wave(trim_round)
    world.move(trim_round, 0)
    before = world.questions()
    assert [(q.place, q.records, q.copy) for q in before] == [(0, 2, None), (2, 1, None)]
    world.commit()
    assert [(q.place, q.copy) for q in world.questions()] == [(0, 3), (2, None)]
    world.index.release(0)
    assert [q.place for q in world.questions()] == [3, 2]
    head = orjson.loads(orjson.dumps(stage_messages.encode_status(before[0]).head))
    assert stage_messages.decode_status(head) == before[0]


def test_rule_s10_a_copy_is_named_once_it_is_committed(world: World) -> None:
    world.stage(chunk("a"))
    world.stage(chunk("b"))
    world.commit()
    trim_round = TrimRound()
    world.wave(trim_round)
    world.move(trim_round, 0)
    key, named = chunk("a").key, AttemptNamed("1.0", 1, 1)

    def place() -> int:
        (ref,) = world.index.refs(key.id, (1, 0), named, world.log.high_watermark).refs
        return ref.offset

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
    world.move(trim_round, 0)
    world.commit()
    assert world.index.places[2].since_ms == world.log.load().places[2].since_ms == 0
    world.index.release(0)
    world.now_ms = 1_001
    assert {q.place: q.is_aged for q in world.questions()} == {1: True, 2: True}


def test_a_home_that_does_not_answer_is_not_asked_again_in_a_round(world: World) -> None:
    world.stage(chunk("a"))
    world.commit()
    trim_round = TrimRound()
    (question,) = world.questions(trim_round)
    trim_round.note(question, None, home_of(question.id))
    assert world.questions(trim_round) == []
    assert world.move(trim_round, 0) == []
    assert world.questions() == [question]


# ---- chance


class Chance(World):
    """Producers, commits, completions, fail-overs; checks that what is decided is there."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.rng = random.Random(seed)
        self.contents: dict[ChunkKey, RowsChunk] = {}
        self.decided: dict[ChunkKey, list[ChunkKey]] = {}
        """Open decisions: position → chunks, in order."""
        self.counts: dict[str, int] = dict.fromkeys(("decided", "moved", "expired", "trimmed"), 0)
        self.numbers: dict[str, int] = {}

    def step(self) -> None:
        step = self.rng.choice(
            [self.produce, self.produce, self.end, self.complete, self.ask, self.ask, self.fail]
        )
        step()
        self.now_ms += self.rng.choice([0, 10, 300])
        if self.rng.random() < 0.7:
            self.commit()
        self.check()

    def produce(self) -> None:
        name = self.rng.choice("abcd")
        number = self.numbers.get(name, 0)
        new = chunk(name, self.rng.randrange(3), number=number, targets=self.rng.randint(1, 2))
        if new.key in self.contents:
            new = self.contents[new.key]
        if self.index.find(new.key, new.digest) is None:
            self.stage(new)
            self.contents[new.key] = new

    def end(self) -> None:
        """Commit or abort the present position of an id, as its home does it."""
        name = self.rng.choice("abcd")
        number = self.numbers.get(name, 0)
        key = chunk(name, number=number).key
        home = self.home(key)
        last = home.newest.get(key.id)
        if last is not None and last.sources:
            return  # the last decision is not complete
        if self.rng.random() < 0.3:
            home.decide(key, [])
            self.numbers[name] = number + 1
            return
        keys = [one for one in self.contents if one[:4] == key[:4]]
        rows = sum(len(self.contents[one].targets) for one in keys)
        named = AttemptNamed(key.attempt_id, len(keys), rows)
        found = self.index.refs(key.id, (1, number), named, self.log.high_watermark)
        offsets = [ref.offset for ref in found.refs]
        if offsets and self.rng.random() < 0.3:
            self.ask()  # a move or an expiry comes between
        if found.refs and home.decide(key, offsets):
            self.decided[key] = sorted(keys, key=lambda one: one.sequence)
            self.numbers[name] = number + 1
            self.counts["decided"] += 1
            self.check()

    def take(self, trim_round: TrimRound, question: StatusQuestion, word: Word) -> None:
        place = self.index.places[question.place]
        key = place.chunk.key
        last = self.home(key).newest.get(key.id)
        is_over = last is not None and (key.epoch, key.number) <= last.at
        is_aged = self.now_ms - place.since_ms > self.max_age_ms
        if word is Word.GONE and not is_over and not is_aged:
            assert self.index.is_moved(place), "a living chunk was let go"
        super().take(trim_round, question, word)

    def complete(self) -> None:
        if not self.decided:
            return
        key = self.rng.choice(list(self.decided))
        del self.decided[key]
        self.home(key).newest[key.id].sources = []

    def ask(self) -> None:
        trim_round = TrimRound()
        for _ in range(self.rng.randint(1, 4)):
            before = [home.horizon for home in self.homes]
            self.wave(trim_round)
            self.counts["expired"] += before != [home.horizon for home in self.homes]
            moved = self.move(trim_round, self.rng.choice([0, 1_000]))
            self.counts["moved"] += len(moved)
            if self.rng.random() < 0.5:
                self.commit()
                trim_round.kept.clear()
        start = self.log.start
        self.counts["trimmed"] += self.trim() > start

    def fail(self) -> None:
        """Another leader, which lacks what was not committed, loads the log."""
        self.log.cut(max(self.log.high_watermark, self.log.start))
        for key in [one for one in self.contents if not self.is_in_log(one)]:
            del self.contents[key]  # never acknowledged, or let go
        self.index = self.log.load()
        self.commit()

    def is_in_log(self, key: ChunkKey) -> bool:
        attempt = self.log.load().attempts.get((key.id, key.attempt_id))
        return attempt is not None and key.sequence in attempt.chunks

    def check(self) -> None:
        loaded = self.log.load()
        for key, chunks in self.decided.items():
            sources = self.home(key).newest[key.id].sources
            wanted = [rows.records for one in chunks for rows in self.contents[one].targets]
            assert min(sources) >= self.log.start, "a decided row was trimmed"
            assert max(sources) < max(self.log.high_watermark, self.log.start)
            found = [self.rows_at(loaded, source) for source in sources]
            assert found == wanted, "a decision names other rows"

    def rows_at(self, index: StageIndex, offset: int) -> bytes:
        for place in index.places.values():
            if place.base <= offset < place.end:
                return self.log.chunk_at(place).targets[offset - place.base].records
        raise AssertionError(f"nothing at {offset}")


def survey(seeds: int) -> dict[str, int]:
    counts: dict[str, int] = {}
    for seed in range(seeds):
        world = Chance(seed)
        for _ in range(STEPS):
            world.step()
        drain(world)
        for name, count in world.counts.items():
            counts[name] = counts.get(name, 0) + count
    return counts


def drain(world: Chance) -> None:
    """Complete what is decided, let the rest grow old: the stage is trimmed to its end (T12)."""
    world.commit()
    while world.decided:
        world.complete()
    world.now_ms += 10 * world.max_age_ms
    for _ in range(len(world.index.places) + 1):
        world.ask()
        world.commit()
    world.check()
    assert (world.log.start, world.index.places) == (world.log.end, {})


def test_rule_s10_no_decided_row_is_lost_and_nothing_stays_staged() -> None:
    counts = survey(SEEDS)
    assert min(counts.values()) > SEEDS, counts


Mutant = Callable[[pytest.MonkeyPatch], None]


def copy_asked_first(patch: pytest.MonkeyPatch) -> None:
    def askable(index: StageIndex, attempt: object, high_watermark: int) -> list[ChunkPlace]:
        living = attempt.living  # type: ignore[attr-defined]
        found = [index.places[base] for base in reversed(living)]
        return [place for place in found if place.end <= high_watermark]

    patch.setattr(stage_trimming, "askable", askable)


def horizon_overtakes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StageIndex, "first_of_home", lambda _self, _place: True)


def move_seen_early(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StageIndex, "committed_place", lambda _self, chunk, _hw: chunk.places[-1])


def trim_by_age(patch: pytest.MonkeyPatch) -> None:
    honest = log_start_of

    def start(index: StageIndex, high_watermark: int) -> int:
        return high_watermark if len(index.places) > 4 else honest(index, high_watermark)

    patch.setitem(globals(), "log_start_of", start)


@pytest.mark.parametrize(
    "plant", [copy_asked_first, horizon_overtakes, move_seen_early, trim_by_age]
)
def test_rule_s10_chance_finds_each_planted_fault(
    plant: Mutant, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises((AssertionError, KeyError, ValueError)):
        survey(SEEDS)
