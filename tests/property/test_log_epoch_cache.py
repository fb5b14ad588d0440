"""The leader epoch cache against the list of epochs it stands for (invariant L11, KIP-101)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.log.leader_epoch_cache import LeaderEpochCache

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 3)),
        st.tuples(st.just("epoch"), st.integers(1, 3)),
        st.tuples(st.just("follow"), st.integers(1, 3)),
        st.tuples(st.just("truncate"), st.integers(0, 20)),
        st.tuples(st.just("reload"), st.just(0)),
    ),
    max_size=40,
)


@given(STEPS)
def test_the_cache_says_what_the_records_say(steps: list[tuple[str, int]]) -> None:
    cache, log, epoch = LeaderEpochCache(), list[int](), 0
    for step, number in steps:
        if step == "append":
            cache.assign(epoch, len(log))
            log += [epoch] * number
        elif step == "epoch":
            epoch += number
            cache.assign(epoch, len(log))
        elif step == "follow":
            # A leader that never wrote was deposed and gets records of an epoch before its own.
            epoch = log[-1] if log else 0
            cache.assign(epoch, len(log))
            log += [epoch] * number
        elif step == "truncate":
            del log[number:]
            cache.truncate_from_end(len(log))
        else:
            cache = LeaderEpochCache(cache.entries)
        starts = cache.entries
        assert starts == sorted(starts)
        assert len({of for of, _ in starts}) == len(starts)
        assert cache.last_epoch(len(log)) == (log[-1] if log else -1)
        assert [cache.epoch_of(offset) for offset in range(len(log))] == log
        for asked in range(epoch + 2):
            held = [index for index, of in enumerate(log) if of <= asked]
            expected = (log[held[-1]], held[-1] + 1) if held else (-1, 0)
            assert cache.end_offset_for(asked, 0, len(log)) == expected


def test_an_epoch_never_goes_back() -> None:
    cache = LeaderEpochCache([(1, 0), (4, 10)])
    with pytest.raises(ValueError, match="behind"):
        cache.assign(3, 20)
    cache.assign(4, 20)
    assert cache.entries == [(1, 0), (4, 10)]


def test_an_epoch_without_records_makes_way_for_the_next() -> None:
    cache = LeaderEpochCache([(1, 0), (4, 10)])
    cache.assign(6, 10)
    assert cache.entries == [(1, 0), (6, 10)]
    assert cache.end_offset_for(4, 0, 12) == (1, 10)
