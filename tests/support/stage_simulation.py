"""A stage and the homes of its chunks under chance: fail-overs, moves, expiry, fences, rivals.

Index, trimming and homes are the product's own classes; the stage's log is in memory. What is
decided must be in the log, where the decision names it and byte for byte, until it is complete
(S9, S10); nothing that lives is let go, and in the end nothing stays staged (T12).
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

from broker.server.home_words import chunk_placed
from broker.transactions import stage_trimming
from broker.transactions.chunk_records import ChunkKey, RowsChunk
from broker.transactions.home_decisions import Content, Part
from broker.transactions.home_records import StagedPlace, Target, TransactionValue
from broker.transactions.messages import AttemptNamed, ProducerPosition, TransactionalId
from broker.transactions.stage_index import ChunkPlace, StageIndex
from broker.transactions.stage_messages import StatusQuestion, Word
from broker.transactions.stage_trimming import TrimRound
from raft_metadata.common.ids import GroupId, LeaderEpoch, PartitionId
from tests.support.home_turns import HomeTurns
from tests.support.stage_world import HOMES, StageLog, chunk, home_of

STEPS = 100
NAMES = "abcd"
STAGE = PartitionId(3)
AGE_MAX_MS = 4_000


class StageViolation(Exception):
    """A broken promise, by the name of its rule."""

    def __init__(self, check: str, detail: str) -> None:
        super().__init__(f"{check}: {detail}")
        self.check = check


def id_of(name: str) -> TransactionalId:
    return TransactionalId(GroupId(""), name)


class StageSimulation:
    """One seed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.log = StageLog()
        self.index = StageIndex(home_of)
        self.homes = [HomeTurns() for _ in range(HOMES)]
        self.now_ms = 0
        self.positions = {
            name: ProducerPosition(self.home(id_of(name)).init(id_of(name)).epoch, 0)
            for name in NAMES
        }
        self.contents: dict[ChunkKey, RowsChunk] = {}
        """Chunks that were sent, by key; each has one content."""
        self.acknowledged: set[ChunkKey] = set()
        self.decided: dict[TransactionalId, list[bytes]] = {}
        """The rows of each open decision, unit by unit."""
        self.counts: Counter[str] = Counter()

    def home(self, id_: TransactionalId) -> HomeTurns:
        return self.homes[home_of(id_).partition]

    def step(self) -> None:
        steps = [self.produce] * 6 + [self.end] * 2 + [self.complete] * 2 + [self.ask] * 4
        self.rng.choice([*steps, self.fail_stage, self.fail_home, self.fence])()
        self.now_ms += self.rng.choice([0, 10, 200])
        if self.rng.random() < 0.7:
            self.commit()
        self.check()

    def commit(self) -> None:
        """Everything in the stage's log is committed, and its producers are told."""
        self.log.high_watermark = self.log.end
        for place in self.index.places.values():
            if place.base not in self.index.released:
                self.acknowledged.add(place.chunk.key)

    # ---- producers

    def produce(self) -> None:
        name = self.rng.choice(NAMES)
        epoch, number = self.positions[name]
        targets = self.rng.randint(1, 2)
        at = (id_of(name), epoch, number)
        sent = len({key.sequence for key in self.contents if key[:3] == at})
        sequence = min(self.rng.randint(0, sent), 2)
        new = chunk(name, sequence, number=number, epoch=epoch, targets=targets)
        new = self.contents.setdefault(new.key, new)
        if self.index.find(new.key, new.digest) is None:
            self.stage(new)

    def stage(self, new: RowsChunk) -> None:
        self.index.append(new, self.log.append(new, self.now_ms), self.now_ms)

    def fence(self) -> None:
        """The producer's next life begins; the chunks of the old one are nobody's."""
        name = self.rng.choice(NAMES)
        epoch = self.home(id_of(name)).init(id_of(name)).epoch
        self.positions[name] = ProducerPosition(epoch, 0)

    def end(self) -> None:
        """Commit or abort the present position of a producer."""
        name = self.rng.choice(NAMES)
        id_, position = id_of(name), self.positions[name]
        home = self.home(id_)
        if self.rng.random() < 0.3:
            home.abort(id_, position)
        else:
            self.commit_position(home, id_, position)
        last = home.home.newest.get(id_)
        if last is not None and last.at == tuple(position):
            self.positions[name] = position._replace(number=position.number + 1)

    def commit_position(
        self, home: HomeTurns, id_: TransactionalId, position: ProducerPosition
    ) -> None:
        attempt_id = f"{position.epoch}.{position.number}"
        keys = sorted(
            (key for key in self.acknowledged if key[:4] == (id_, *position, attempt_id)),
            key=lambda key: key.sequence,
        )
        if not keys:
            return
        rows = sum(len(self.contents[key].targets) for key in keys)
        is_honest = self.rng.random() < 0.8
        named = AttemptNamed(attempt_id, len(keys) + (not is_honest), rows + (not is_honest))
        found = self.index.refs(id_, tuple(position), named, self.log.high_watermark)
        if found.missing is not None:
            if is_honest and [key.sequence for key in keys] == list(range(len(keys))):
                raise StageViolation("S9", f"acknowledged chunks are not there: {found.missing}")
            self.counts["incomplete"] += 1
            return
        if not is_honest:
            raise StageViolation("S9", f"{named} was named with {rows} rows of {len(keys)} chunks")
        if self.rng.random() < 0.3:
            self.ask()  # a move or an expiry comes between
        parts = [
            Part(Target(*ref.target[:2]), ref.target.rows, StagedPlace(STAGE, ref.at))
            for ref in found.refs
        ]
        answer = home.commit(Content(id_, position, "digest"), parts)
        if isinstance(answer, TransactionValue):
            texts = [rows.records for key in keys for rows in self.contents[key].targets]
            self.decided[id_] = texts
            self.counts["decided"] += 1
            self.check()

    def complete(self) -> None:
        if self.decided:
            id_ = self.rng.choice(sorted(self.decided))
            del self.decided[id_]
            self.home(id_).complete(id_)

    # ---- the stage

    def fail_stage(self) -> None:
        """Another leader, which lacks what was not committed, loads the log."""
        self.log.cut(max(self.log.high_watermark, self.log.start))
        self.log.epoch = LeaderEpoch(self.log.epoch + 1)
        self.index = self.log.load()
        self.commit()
        self.counts["stage elections"] += 1

    def fail_home(self) -> None:
        self.rng.choice(self.homes).load()

    def is_aged(self, place: ChunkPlace) -> bool:
        return self.now_ms - place.since_ms > AGE_MAX_MS

    def ask(self) -> None:
        """Some waves of a round; then the log start moves."""
        trim_round = TrimRound()
        for _ in range(self.rng.randint(1, 4)):
            wave = stage_trimming.next_questions(
                self.index, STAGE, self.log.high_watermark, trim_round, self.is_aged
            )
            for question, place in wave:
                if self.rng.random() < 0.1:
                    trim_round.note(question, None, home_of(question.id))
                    continue
                is_free = self.home(question.id).may_go(chunk_placed(question))
                self.take(trim_round, question, place, Word.GONE if is_free else Word.KEEP)
            moves = stage_trimming.next_moves(
                self.index, self.log.high_watermark, trim_round.kept, self.rng.choice([0, 1_000])
            )
            for place in moves:
                self.stage(replace(self.log.chunk_at(place), since_ms=place.since_ms))
                self.counts["moved"] += 1
            if self.rng.random() < 0.5:
                self.commit()
                trim_round.kept.clear()
        start = stage_trimming.log_start_of(self.index, self.log.high_watermark)
        for question in stage_trimming.last_questions(self.index, STAGE, start):
            if not self.home(question.id).may_go(chunk_placed(question)):
                # No position is ever forgotten here, so that no word is over.
                raise StageViolation("S10", f"{question} was let go, and is named")
        if start > self.log.start:
            self.log.trim(start)
            self.counts["trimmed"] += 1
        self.index.trim(self.log.start)

    def take(
        self, trim_round: TrimRound, question: StatusQuestion, place: ChunkPlace, word: Word
    ) -> None:
        """Take a word; nothing that may yet be named is let go."""
        trim_round.note(question, word, home_of(question.id))
        if word is Word.KEEP:
            return
        at, home = (question.epoch, question.number), self.home(question.id).home
        last = home.newest.get(question.id)
        is_over = last is not None and at <= last.at
        if not is_over and at[0] == home.epochs[question.id].epoch:
            if not self.is_aged(place) and not self.index.is_moved(place):
                raise StageViolation("S10", f"{question} was let go, young and undecided")
            self.counts["expired"] += not self.index.is_moved(place)
        self.index.release(question.place.offset)
        if not any(one.base not in self.index.released for one in place.chunk.places):
            self.acknowledged.discard(place.chunk.key)

    # ---- what must hold

    def check(self) -> None:
        for id_, texts in self.decided.items():
            value = self.home(id_).home.newest[id_]
            if len(value.units) != len(texts):
                raise StageViolation("S9", f"{id_.name}: {len(value.units)} units of {len(texts)}")
            for unit, text in zip(value.units, texts, strict=True):
                assert isinstance(unit.source, StagedPlace)
                at = unit.source.at
                if not self.log.start <= at.offset < max(self.log.high_watermark, self.log.start):
                    raise StageViolation("S10", f"{id_.name}: nothing is committed at {at}")
                if self.log.records_at(at) != text:
                    raise StageViolation("S10", f"{id_.name}: other rows stand at {at}")

    def drain(self) -> None:
        """Complete what is decided and let the rest grow old: the stage is trimmed to its end."""
        self.commit()
        while self.decided:
            self.complete()
        self.now_ms += 10 * AGE_MAX_MS
        for _ in range(len(self.index.places) + 20):
            self.ask()
            self.commit()
            self.check()
        if self.log.start != self.log.end or self.index.places:
            raise StageViolation("T12", f"{len(self.index.places)} chunks stay staged")


def run(seed: int) -> Counter[str]:
    """Run a seed and return its counts; raise `StageViolation` at the first broken promise."""
    world = StageSimulation(seed)
    for _ in range(STEPS):
        world.step()
    world.drain()
    return world.counts
