"""Lines of a stage's index and of its letting go, each switched off (rules S9, S10)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from broker.transactions import stage_trimming
from broker.transactions.messages import AttemptNamed
from broker.transactions.stage_index import (
    AttemptRefs,
    ChunkPlace,
    ChunksOfAttempt,
    StagedChunk,
    StageIndex,
)
from tests.support.planted.registry import Patch, stage_fault


@stage_fault("rule S9: rows and chunks of a commit are not counted", "S9")
def _rows_unchecked(patch: Patch) -> None:
    real = StageIndex.refs

    def refs(self: StageIndex, id_: Any, at: Any, named: AttemptNamed, high: int) -> AttemptRefs:
        found = real(self, id_, at, named, high)
        for less in range(1, 3):
            if found.missing is None:
                break
            fewer = named._replace(chunks=named.chunks - less, rows=named.rows - less)
            found = real(self, id_, at, fewer, high)
        return found

    patch.setattr(StageIndex, "refs", refs)


@stage_fault("rule S10: the log start passes old chunks without a word", "S10")
def _trim_by_age(patch: Patch) -> None:
    real = stage_trimming.log_start_of

    def log_start_of(index: StageIndex, high_watermark: int) -> int:
        return high_watermark if len(index.places) > 4 else real(index, high_watermark)

    patch.setattr(stage_trimming, "log_start_of", log_start_of)


@stage_fault("rule S10: a chunk expires or moves before an older one of its home", "S10", first=53)
def _horizon_overtakes(patch: Patch) -> None:
    patch.setattr(StageIndex, "first_of_home", lambda _index, _place: True)


@stage_fault("rule S10: a copy is named before it is committed", "S10", first=28)
def _move_seen_early(patch: Patch) -> None:
    def newest(index: StageIndex, staged: StagedChunk, _high: int) -> ChunkPlace | None:
        left = [one for one in staged.places if one.base not in index.released]
        return left[-1] if left else None

    patch.setattr(StageIndex, "committed_place", newest)


@stage_fault("rule S10: a home is told of a copy before it is committed", "S10", first=1700)
def _copy_told_early(patch: Patch) -> None:
    real = StageIndex.next_copy
    patch.setattr(StageIndex, "next_copy", lambda index, place, _high: real(index, place, 1 << 60))


@stage_fault("rule S10: a copy is asked about before its old place is free", "S10", "S9")
def _copy_asked_first(patch: Patch) -> None:
    def askable(
        index: StageIndex, attempt: ChunksOfAttempt, high_watermark: int
    ) -> Iterator[ChunkPlace]:
        for base in reversed(attempt.living):
            if index.places[base].end <= high_watermark:
                yield index.places[base]

    patch.setattr(stage_trimming, "askable", askable)


@stage_fault("rule S10: a home hears of the first record of a chunk only", "S10")
def _one_record_moved(patch: Patch) -> None:
    real = stage_trimming.next_questions

    def next_questions(*args: Any) -> Any:
        return [(replace(question, records=1), place) for question, place in real(*args)]

    patch.setattr(stage_trimming, "next_questions", next_questions)


@stage_fault("rule S10: a chunk that is moved becomes young", "T12")
def _copy_is_young(patch: Patch) -> None:
    real = StageIndex.fold
    patch.setattr(
        StageIndex,
        "fold",
        lambda index, head, *args: real(index, replace(head, since_ms=None), *args),
    )
