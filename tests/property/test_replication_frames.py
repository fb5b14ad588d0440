"""Frames of the replication stream: what is encoded comes back, and bad bytes are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.replication import frames
from broker.replication.frames import (
    Ack,
    Diverging,
    FrameError,
    Key,
    Open,
    Push,
    Refused,
    Skip,
    Valid,
)
from raft_metadata.common.ids import PartitionId, TopicId, TopicIdPartition, id_from_bytes

i32 = st.integers(-(2**31), 2**31 - 1)
i64 = st.integers(-(2**63), 2**63 - 1)
u64 = st.integers(0, 2**64 - 1)
keys = st.builds(Key, st.binary(min_size=16, max_size=16), st.integers(0, 2**32 - 1))
told = st.none() | st.binary(min_size=1, max_size=100)
"""Producers that a leader tells of: a snapshot, which is never empty, or none."""
control = st.one_of(
    st.builds(Open, u64, i32, i64, i32, i64, i64, i64),
    st.builds(Valid, u64, i32, u64, i64, i64, told),
    st.builds(Diverging, u64, i32, i32, i64, told),
    st.builds(Skip, u64, i32, i64, st.binary(max_size=100)),
    st.builds(Refused, u64, i32, i32),
    st.builds(Ack, u64, i32, i64, i64, i64),
)


@given(keys, control)
def test_control_frames_round_trip(
    key: Key, frame: Open | Valid | Diverging | Skip | Refused | Ack
) -> None:
    raw = frames.encode(key, frame)
    length, kind = frames.PREFIX.unpack_from(raw)
    assert length == len(raw) - frames.PREFIX.size
    assert frames.decode(kind, memoryview(raw)[frames.PREFIX.size :]) == (key, frame)


@given(keys, st.builds(Push, u64, i32, i64, i64, i64, i64, st.binary(max_size=100), i64))
def test_pushes_round_trip(key: Key, push: Push) -> None:
    raw = frames.encode_push_head(key, push, len(push.batches)) + bytes(push.batches)
    length, kind = frames.PREFIX.unpack_from(raw)
    assert length == len(raw) - frames.PREFIX.size
    found_key, found = frames.decode(kind, memoryview(raw)[frames.PREFIX.size :])
    assert isinstance(found, Push)
    assert (found_key, found._replace(batches=bytes(found.batches))) == (key, push)


@given(st.integers(0, 255), st.binary(max_size=80))
def test_any_bytes_are_a_frame_or_a_frame_error(kind: int, body: bytes) -> None:
    try:
        frames.decode(kind, memoryview(body))
    except FrameError:
        pass


def test_an_unknown_type_is_refused() -> None:
    with pytest.raises(FrameError, match="unknown frame type 99"):
        frames.decode(99, memoryview(bytes(60)))


@given(st.binary(min_size=16, max_size=16), st.integers(0, 9_999))
def test_partition_ids_round_trip(raw: bytes, partition: int) -> None:
    here = TopicIdPartition(TopicId(id_from_bytes(raw)), PartitionId(partition))
    assert frames.partition_of(frames.key_of(*here)) == here
