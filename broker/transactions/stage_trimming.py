"""Letting go of staged rows, decided: which places a home is asked about, moved, trimmed. Pure.

A stage goes by its home's word only (rule S10). `StageLeader` asks in waves (`next_questions`),
notes the words in the index, appends what is alive and blocks much once more (`next_moves`), and
moves the log start to `log_start_of`, once each home has raised its horizon behind what goes
(`last_questions`): its words hold only until it forgets a position. Of a home only the first place
that is left may expire or be moved, because the home's horizon, which then rises behind that place,
must not pass what is alive. A copy is not asked about while an older place of its chunk is left:
its home may yet be asked to name the copy in place of the older one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from broker.transactions.stage_index import (
    AttemptKey,
    ChunkHome,
    ChunkPlace,
    ChunksOfAttempt,
    StageIndex,
)
from broker.transactions.stage_messages import StatusQuestion, Word
from raft_metadata.common.ids import PartitionId

QUESTIONS_MAX: Final = 100
"""Questions of one wave: all are under way at once."""
ATTEMPTS_MAX: Final = 5_000
"""Attempts that one wave looks at: about 3 ms of the loop."""
TRIMMED_MAX: Final = 5_000
"""Most places that the log start passes at once, of 300 bytes at least."""


@dataclass(slots=True)
class TrimRound:
    """The words of homes in one round of questions, which takes several waves. Used once."""

    kept: set[AttemptKey] = field(default_factory=set)
    """Attempts of which a place must stay: not asked about again in this round."""
    silent: set[ChunkHome] = field(default_factory=set)
    """Homes that did not answer: not asked anything more in this round."""
    released: set[AttemptKey] = field(default_factory=set)
    """Attempts that are over: all their places are asked about."""
    cursor: int = 0
    """Attempts that this round has looked at."""
    is_blocked: bool = False
    """True once a home did not let the log start pass: none is asked for it again in this round."""

    def note(self, question: StatusQuestion, word: Word | None, home: ChunkHome) -> None:
        """Note the word of a home for a place, or null for none.

        A place that went because of its copy or age shows nothing of the others of its attempt.
        """
        key = (question.id, question.attempt_id)
        if word is None:
            self.silent.add(home)
        elif word is Word.KEEP:
            self.kept.add(key)
        elif question.copy is None and not question.is_aged:
            self.released.add(key)


def next_questions(
    index: StageIndex,
    partition: PartitionId,
    high_watermark: int,
    trim_round: TrimRound,
    is_aged: Callable[[ChunkPlace], bool],
) -> list[tuple[StatusQuestion, ChunkPlace]]:
    """Return the questions of the next wave; none if the round is over.

    ``is_aged``: whether a place is older than the cluster keeps undecided rows; False while the
    clock is doubted (rule R10).
    """
    found: list[tuple[StatusQuestion, ChunkPlace]] = []
    asked = set(trim_round.kept)
    for key in _next_attempts(index, trim_round):
        if key in asked or key not in index.attempts:
            continue
        if index.home_of(key[0]) in trim_round.silent:
            continue
        asked.add(key)
        room = QUESTIONS_MAX - len(found) if key in trim_round.released else 1
        places = askable(index, index.attempts[key], high_watermark)
        found += [
            (_question(index, partition, high_watermark, place, is_aged), place)
            for place in islice(places, room)
        ]
        if len(found) >= QUESTIONS_MAX:
            break
    return found


def _next_attempts(index: StageIndex, trim_round: TrimRound) -> Iterator[AttemptKey]:
    """Yield those that hold the homes' first places, those that are over, and the next others."""
    for living in index.homes.values():
        first = index.places[next(iter(living))].chunk.key
        yield first.id, first.attempt_id
    yield from list(trim_round.released)
    for key in islice(index.attempts, trim_round.cursor, trim_round.cursor + ATTEMPTS_MAX):
        trim_round.cursor += 1
        yield key


def _question(
    index: StageIndex,
    partition: PartitionId,
    high_watermark: int,
    place: ChunkPlace,
    is_aged: Callable[[ChunkPlace], bool],
) -> StatusQuestion:
    key, first = place.chunk.key, index.first_of_home(place)
    copy = index.next_copy(place, high_watermark) if first else None
    return StatusQuestion(
        partition=partition,
        id=key.id,
        epoch=key.epoch,
        number=key.number,
        attempt_id=key.attempt_id,
        place=place.at,
        records=len(place.targets),
        copy=None if copy is None else copy.at,
        is_aged=first and is_aged(place),
    )


def askable(
    index: StageIndex, attempt: ChunksOfAttempt, high_watermark: int
) -> Iterator[ChunkPlace]:
    """Yield the committed living places of an attempt that wait for no older one of their chunk."""
    for base in attempt.living:
        place = index.places[base]
        if place.end > high_watermark:
            return
        oldest = next(p for p in place.chunk.places if p.base not in index.released)
        if oldest is place:
            yield place


def next_moves(
    index: StageIndex, high_watermark: int, kept: Set[AttemptKey], move_bytes: int
) -> list[ChunkPlace]:
    """Return the living places to append again, because they block more than ``move_bytes``.

    Of each home only its first place, only if its home has just said that it must stay, and only
    once.
    """
    found: list[ChunkPlace] = []
    for living in index.homes.values():
        place = index.places[next(iter(living))]
        key = (place.chunk.key.id, place.chunk.key.attempt_id)
        if (
            key in kept
            and place.end <= high_watermark
            and not index.is_moved(place)
            and index.bytes_blocked(place) > move_bytes
        ):
            found.append(place)
    return found


def log_start_of(index: StageIndex, high_watermark: int) -> int:
    """Return the offset below which everything was let go and is committed.

    It passes at most `TRIMMED_MAX` places.
    """
    first = index.first_living()
    start = high_watermark if first is None else min(first, high_watermark)
    behind = next(islice(index.places, TRIMMED_MAX, None), start)
    return min(start, behind)


def last_questions(
    index: StageIndex, partition: PartitionId, log_start: int
) -> list[StatusQuestion]:
    """Return a question to each home of which the new log start passes a place: about its last."""
    last: dict[ChunkHome, ChunkPlace] = {}
    for base, place in index.places.items():
        if base >= log_start:
            break
        last[index.home_of(place.chunk.key.id)] = place
    return [
        StatusQuestion(
            partition=partition,
            id=place.chunk.key.id,
            epoch=place.chunk.key.epoch,
            number=place.chunk.key.number,
            attempt_id=place.chunk.key.attempt_id,
            place=place.at,
            records=len(place.targets),
            is_passed=True,
        )
        for place in last.values()
    ]
