"""The index of a stage is the fold of its log: kept up as chunks come, or loaded (rules G1, S9)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from broker.transactions.stage_index import StageIndex
from tests.support.stage_world import StageLog, chunk, home_of

CHUNKS = st.builds(
    chunk,
    st.sampled_from("abc"),
    st.integers(0, 2),
    number=st.integers(0, 1),
    attempt=st.sampled_from(["x", "y"]),
    targets=st.integers(1, 3),
    rows=st.integers(1, 3),
    digest=st.sampled_from(["d", "e"]),
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("chunk"), CHUNKS),
        st.tuples(st.just("copy"), st.integers(0, 50)),
        st.tuples(st.just("trim"), st.integers(0, 8)),
        st.tuples(st.just("cut"), st.integers(0, 4)),
    ),
    max_size=40,
)


def content(index: StageIndex) -> dict[str, Any]:
    """All of an index that must be a function of the log's records from its start on."""
    first_bytes = next((place.before_bytes for place in index.places.values()), 0)
    return {
        "places": {
            base: (
                place.end,
                place.chunk.key,
                place.targets,
                place.layout,
                place.since_ms,
                place.before_bytes - first_bytes,
                place.stored_bytes,
                index.first_of_home(place),
                index.is_moved(place),
                base in index.released or index.bytes_blocked(place),
            )
            for base, place in index.places.items()
        },
        "attempts": {
            key: (
                attempt.size_bytes,
                list(attempt.living),
                {
                    sequence: (one.digest, one.size_bytes, one.rows, [p.base for p in one.places])
                    for sequence, one in sorted(attempt.chunks.items())
                },
            )
            for key, attempt in index.attempts.items()
        },
        "homes": index.homes,
        "stored_bytes": index.stored_bytes,
    }


@settings(max_examples=200, deadline=None)
@given(STEPS)
def test_rule_s9_an_index_kept_up_is_the_one_that_a_new_leader_loads(
    steps: list[tuple[str, Any]],
) -> None:
    log, index = StageLog(), StageIndex(home_of)
    for now_ms, (kind, what) in enumerate(steps):
        if kind == "chunk":
            attempt = index.attempts.get((what.key.id, what.key.attempt_id))
            if attempt is not None and attempt.number != what.key.number:
                continue
            known = None if attempt is None else attempt.chunks.get(what.key.sequence)
            if known is None:
                index.append(what, log.append(what, now_ms), now_ms)
            else:
                assert (index.find(known.key, known.digest) is None) is False
        elif kind == "copy" and index.places:
            place = list(index.places.values())[what % len(index.places)]
            copy = replace(log.chunk_at(place), since_ms=place.since_ms)
            index.append(copy, log.append(copy, now_ms), now_ms)
        elif kind == "trim":
            ends = [log.start, *(place.end for place in index.places.values())]
            start = ends[min(what, len(ends) - 1)]
            log.trim(start)
            index.trim(start)
        elif kind == "cut":
            bases = [*index.places, log.end]
            log.cut(bases[max(0, len(bases) - 1 - what)])
            index = log.load()  # another leader: what was cut is not there any more
        assert content(index) == content(log.load())


@settings(max_examples=100, deadline=None)
@given(st.lists(CHUNKS, min_size=1, max_size=10), st.data())
def test_a_log_that_begins_within_a_chunk_is_read_from_the_next_one(
    chunks: list[Any], data: st.DataObject
) -> None:
    log = StageLog()
    bases = [log.append(one, 5).offset for one in chunks]
    start = data.draw(st.integers(0, log.end))
    log.trim(start)
    index = log.load()
    assert list(index.places) == [base for base in bases if base >= start]
