"""Place of a record: its partition, its key, else the next partition that has a leader."""

from __future__ import annotations

from itertools import islice, repeat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raft_metadata.common.record_placement import (
    KeylessRotation,
    Partitioner,
    keyless_candidates,
    partition_for_key,
    partition_of,
)

STICKY, ROUND_ROBIN = Partitioner.STICKY, Partitioner.ROUND_ROBIN


@pytest.mark.parametrize(
    ("key", "crc", "of_6", "of_12"),
    [
        (b"", 0x00000000, 0, 0),
        (b"123456789", 0xCBF43926, 2, 2),
        (b'"AA"', 0x662560FE, 0, 6),
        (b"AA", 0xA9601DBD, 3, 9),
        ('"é"'.encode(), 0x1233D6F4, 2, 8),
        (b'{"id": 1}', 0x56D44085, 3, 9),
    ],
)
def test_vectors_of_partition_for_key(key: bytes, crc: int, of_6: int, of_12: int) -> None:
    """The same in the docs, the SDK and Spark: crc32 of the bytes view, modulo partitions."""
    assert partition_for_key(key, 1 << 32) == crc
    assert (partition_for_key(key, 6), partition_for_key(key, 12)) == (of_6, of_12)


def test_a_partition_goes_before_a_key_and_a_key_before_the_rotation() -> None:
    key = b'"AA"'
    assert partition_of(5, key, 12, lambda: 3) == 5
    assert partition_of(0, None, 12, lambda: 3) == 0
    assert partition_of(None, key, 12, lambda: 3) == 6
    assert partition_of(None, b"", 12, lambda: 3) == 0, "an empty key is a key"
    assert partition_of(None, None, 12, lambda: 3) == 3


def test_a_sticky_batch_takes_one_partition_and_the_next_batch_the_next() -> None:
    rotation = KeylessRotation(7)
    batches = [rotation.for_batch(range(3), STICKY) for _ in range(4)]
    assert [[batch() for _ in range(5)] for batch in batches] == [
        [1] * 5,
        [2] * 5,
        [0] * 5,
        [1] * 5,
    ]


def test_a_batch_without_keyless_records_takes_no_turn() -> None:
    rotation = KeylessRotation(0)
    rotation.for_batch(range(3), STICKY)
    rotation.for_batch(range(3), ROUND_ROBIN)
    assert rotation.next_of(range(3)) == 0


def test_round_robin_goes_on_in_the_next_batch() -> None:
    rotation = KeylessRotation(0)
    first, second = (rotation.for_batch(range(3), ROUND_ROBIN) for _ in range(2))
    assert [first() for _ in range(4)] == [0, 1, 2, 0]
    assert [second() for _ in range(4)] == [1, 2, 0, 1]


@pytest.mark.parametrize(
    ("has_leader", "candidates"),
    [
        ([True, True, True], [0, 1, 2]),
        ([True, False, True], [0, 2]),
        ([False, False, True], [2]),
        ([False, False], [0, 1]),
        ([True], [0]),
        ([False], [0]),
    ],
)
def test_keyless_records_pass_partitions_without_a_leader(
    has_leader: list[bool], candidates: list[int]
) -> None:
    """If no partition has a leader, all are taken: the records wait, as keyed ones do."""
    assert list(keyless_candidates(has_leader)) == candidates


@given(
    st.lists(st.booleans(), min_size=1, max_size=40),
    st.integers(0, (1 << 32) - 1),
    st.sampled_from(Partitioner),
)
def test_every_candidate_gets_its_share_and_no_other_partition_gets_any(
    has_leader: list[bool], start: int, partitioner: Partitioner
) -> None:
    candidates, rotation = keyless_candidates(has_leader), KeylessRotation(start)
    batch = rotation.for_batch(candidates, partitioner)
    found = [call() for call in islice(repeat(batch), 2 * len(candidates))]
    assert set(found) <= set(candidates)
    if partitioner is ROUND_ROBIN:
        assert sorted(found) == sorted([*candidates, *candidates])
    else:
        assert len(set(found)) == 1
