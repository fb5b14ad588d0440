"""Hash chains: equal logs have equal ones wherever they start, and nothing else has."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from broker.log import hash_chain
from broker.log.hash_chain import (
    CHAIN_INTERVAL,
    ChainRangeError,
    LogHashChain,
    SegmentPlace,
    places_in,
)
from broker.log.log_directory import LogConfig
from broker.record.batch import HEADER_SIZE, build_header, parse_header
from raft_metadata.common.disk import Disk
from raft_metadata.common.errors import CorruptionError
from tests.support.logs import Life, append

SMALL = LogConfig(segment_bytes=200_000)


def written(folder: Path, batches: list[tuple[int, int]], config: LogConfig = SMALL) -> list[bytes]:
    """A log of batches of so many records, each of an epoch; what was written, batch by batch."""
    life = Life(Disk(), config, str(folder))
    log = life.log()
    raws = [
        append(log, [f"{epoch}-{number}-{n}" for n in range(count)], epoch=epoch)
        for number, (count, epoch) in enumerate(batches)
    ]
    life.close()
    return raws


def copied(folder: Path, raws: list[bytes], config: LogConfig) -> None:
    """A follower's log: the same batches, other segments, stamps of its own."""
    life = Life(Disk(), config, str(folder))
    log = life.log()
    for number, raw in enumerate(raws):
        log.append_as_follower(raw)
        if number % 7 == 0:
            life.flush()
    life.close()


def chain_of(places: list[SegmentPlace], start: int, end: int) -> str:
    return LogHashChain().value(places, start, end).value


def places(folder: Path) -> list[SegmentPlace]:
    return places_in(folder / "log" / "orders-0")


BATCHES = [(random.Random(4).randrange(1, 90), 1 + n // 90) for n in range(270)]
TOTAL = sum(count for count, _ in BATCHES)


def test_replicas_with_other_segments_and_stamps_have_the_same_chain_between_any_two_offsets(
    tmp_path: Path,
) -> None:
    raws = written(tmp_path / "a", BATCHES)
    copied(tmp_path / "b", raws, LogConfig(segment_bytes=130_000))
    here, there = places(tmp_path / "a"), places(tmp_path / "b")
    assert [p.base_offset for p in here] != [p.base_offset for p in there]
    assert Path(here[0].path).read_bytes() != Path(there[0].path).read_bytes()[: here[0].size]
    one, other, chance = LogHashChain(), LogHashChain(), random.Random(1)
    for _ in range(60):
        start, end = sorted(chance.randrange(TOTAL + 1) for _ in range(2))
        expected = chain_of(here, start, end)
        assert one.value(here, start, end).value == other.value(there, start, end).value == expected
    assert one.value(here, 0, TOTAL).value.strip("0")


def test_logs_that_start_at_different_offsets_compare_from_where_both_begin(tmp_path: Path) -> None:
    written(tmp_path, BATCHES)
    whole = places(tmp_path)
    late = whole[2:]
    start = LogHashChain().value(late, None, TOTAL).first
    assert start > late[0].base_offset, "the first batch may lack its front"
    assert chain_of(late, start, TOTAL) == chain_of(whole, start, TOTAL)
    shrinking = LogHashChain()
    shrinking.value(whole, 0, TOTAL)
    for begins in (0, 1, 2):  # retention lets one segment go after the other
        first = LogHashChain().value(whole[begins:], None, TOTAL).first
        assert shrinking.value(whole[begins:], None, TOTAL).first == first
        middle = first + 3 * CHAIN_INTERVAL
        for end in (first + 40, middle, TOTAL):
            expected = chain_of(whole, first, end)
            assert shrinking.value(whole[begins:], first, end).value == expected


@pytest.mark.parametrize("zstd", [False, True])
@pytest.mark.parametrize("start", [3, 50, 73])
def test_a_replica_that_was_filled_from_inside_a_batch_differs_in_nothing(
    tmp_path: Path, start: int, zstd: bool
) -> None:
    """As where a deletion ended inside one: the leader holds all of that batch."""
    leader = Life(Disk(), LogConfig(zstd=zstd), str(tmp_path / "a"))
    follower = Life(Disk(), SMALL, str(tmp_path / "b"))
    log, other = leader.log(), follower.log()
    for number in range(4):
        append(log, [f"{number}-{n}" * 9 for n in range(50)], epoch=1)
    other.start_over(start)
    while other.log_end_offset < 200:
        other.append_as_follower(log.read_raw(other.log_end_offset, 5_000, 200))
    leader.close()
    follower.close()
    here, there = places(tmp_path / "a"), places(tmp_path / "b")
    first = LogHashChain().value(there, None, 200).first
    assert first == (start // 50 + 1) * 50
    assert chain_of(here, first, 200) == chain_of(there, first, 200)


@pytest.mark.parametrize("spoil", ["crc", "epoch", "swapped", "missing"])
def test_a_log_that_differs_anywhere_has_another_chain(tmp_path: Path, spoil: str) -> None:
    raws = written(tmp_path, [(10, 1)] * 300, LogConfig())
    (place,) = places(tmp_path)
    good = chain_of([place], 0, 3_000)
    data = bytearray(Path(place.path).read_bytes())
    at, size = sum(len(raw) for raw in raws[:123]), len(raws[123])
    if spoil == "crc":
        data[at + 20] ^= 1
    elif spoil == "epoch":
        data[at + 40] ^= 1
    elif spoil == "swapped":  # the same bytes in other places: base offsets stay in their order
        one, two = data[at + 20 : at + 24], data[at + size + 20 : at + size + 24]
        data[at + 20 : at + 24], data[at + size + 20 : at + size + 24] = two, one
    else:
        del data[at : at + size]
    Path(place.path).write_bytes(data)
    spoilt = [place._replace(size=len(data))]
    assert chain_of(spoilt, 0, 3_000) != good
    assert chain_of(spoilt, 0, 1_000) == chain_of([place], 0, 1_000)


def test_sums_are_kept_so_that_the_next_look_is_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path, BATCHES, LogConfig())
    (place,) = places(tmp_path)
    chain = LogHashChain()
    reads: list[int] = []
    real = os.pread

    def counted(fd: int, length: int, position: int) -> bytes:
        reads.append(position)
        return real(fd, length, position)

    monkeypatch.setattr(os, "pread", counted)
    chain.value([place], 0, TOTAL)
    walked = len(reads)
    assert len(chain) >= TOTAL // (CHAIN_INTERVAL + 90)
    reads.clear()
    chain.value([place], 5_000, TOTAL - 700)
    assert len(reads) <= 4 < walked


def test_a_log_that_was_cut_and_grew_again_is_walked_anew(tmp_path: Path) -> None:
    written(tmp_path / "a", [(10, 1)] * 300, LogConfig())
    written(tmp_path / "b", [(10, 1)] * 150 + [(10, 2)] * 149, LogConfig())
    (before,), (after,) = places(tmp_path / "a"), places(tmp_path / "b")
    chain = LogHashChain()
    chain.value([before], 0, 3_000)
    shorter = after._replace(path=after.path)
    assert chain.value([shorter], 0, 2_990).value == chain_of([after], 0, 2_990)


def test_of_a_very_long_log_fewer_sums_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hash_chain, "CHAIN_SUMS_MAX", 4)
    written(tmp_path, BATCHES, LogConfig())
    here = places(tmp_path)
    chain = LogHashChain()
    assert chain.value(here, 100, TOTAL).value == chain_of(here, 100, TOTAL)
    assert len(chain) <= 4
    assert chain.value(here, 7_000, 9_000).value == chain_of(here, 7_000, 9_000)


def test_bytes_that_are_no_batch_are_named(tmp_path: Path) -> None:
    raws = written(tmp_path, [(10, 1)] * 3, LogConfig())
    (place,) = places(tmp_path)
    data = bytearray(Path(place.path).read_bytes())
    second = len(raws[0])
    data[second] = 0
    Path(place.path).write_bytes(data)
    with pytest.raises(CorruptionError, match=f"position={second}"):
        chain_of([place], 0, 30)
    Path(place.path).write_bytes(data[: second + HEADER_SIZE // 2])
    with pytest.raises(CorruptionError, match="ends inside a batch"):
        chain_of([place], 0, 30)


def test_rule_r7_chains_start_behind_the_last_hole(tmp_path: Path) -> None:
    """One replica compacted, another was filled from it, a third never saw a compaction."""
    raws = written(tmp_path / "a", [(10, 1)] * 300, LogConfig())
    header = parse_header(raws[41])
    lines = raws[41][HEADER_SIZE:].split(b"\n")
    kept = b"\n".join([*lines[:3], *lines[7:]])
    rest = header._asdict() | {"count": 6, "length": len(kept)}
    fields = {
        key: rest[key] for key in rest if key not in {"magic", "length", "durable_check", "crc"}
    }
    raws[41] = build_header(kept, **fields) + kept
    copied(tmp_path / "b", raws, LogConfig())
    whole, holed = places(tmp_path / "a"), places(tmp_path / "b")
    late = LogHashChain().value(holed, None, 3_000)
    assert (late.first, late.start) == (420, 420)
    assert chain_of(whole, 420, 3_000) == late.value
    assert chain_of(whole, 0, 3_000) != late.value
    with pytest.raises(ChainRangeError, match="offset 420 or behind it, not at 410"):
        chain_of(holed, 410, 3_000)
    assert LogHashChain().value(holed, None, 400).first == 0, "nothing is missing up to there"
