"""Lines as zstd frames: bounds, broken and lying frames, and what each place makes of them."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import pytest
import zstandard

from broker.log.cleaner import ReplicaFacts
from broker.log.compaction import CompactionConfig, without_front
from broker.log.log_directory import LogConfig
from broker.record import compression
from broker.record.batch import (
    COMPRESSION_SHIFT,
    HEADER_SIZE,
    BatchError,
    BatchHeader,
    BatchSlice,
    RecordFormat,
    parse_header,
    rebuilt,
    verify,
    walk,
)
from broker.record.compression import (
    MIN_LINES_BYTES,
    ZSTD,
    PackedSlice,
    framed,
    lines_of,
    pack,
    stored_as,
    unpacked_size,
)
from broker.record.lines import BATCH_LINES_MAX
from http_api.contract.media_types import accepts_zstd
from raft_metadata.common.errors import CorruptionError
from raft_metadata.common.ids import Claim
from tests.support.compaction_model import (
    Stepped,
    append_keyed,
    cleaning,
    headers_of,
    read_all,
)
from tests.support.logs import Life, append, offset_for_timestamp, records, values_of
from tests.support.simulated_disk import SimulatedDisk

VALUES = [{"name": f"flight {n}", "delay": n, "to": "JFK"} for n in range(50)]
PLAIN = LogConfig()
PACKED = LogConfig(zstd=True)
CODEC = ZSTD << COMPRESSION_SHIFT


def raw_of(values: list[dict[str, object]] | None = None, config: LogConfig = PACKED) -> bytes:
    return append(Life(SimulatedDisk(), config).log(), VALUES if values is None else values)


def test_the_codec_is_kafkas_and_count_and_offsets_stay_in_the_header() -> None:
    raw, plain = raw_of(), raw_of(config=PLAIN)
    header, same = verify(raw), verify(plain)
    assert header.attributes >> 6 & 0b111 == 4
    assert header.is_compressed
    assert len(raw) < len(plain) / 3
    assert lines_of(header, raw[HEADER_SIZE:]) == plain[HEADER_SIZE:]
    assert header._replace(attributes=0, length=0, crc=0, durable_check=0) == same._replace(
        attributes=0, length=0, crc=0, durable_check=0
    )


def test_a_body_that_gets_no_shorter_is_stored_as_it_is() -> None:
    assert pack(b"x" * (MIN_LINES_BYTES - 1)) is None
    assert pack(os.urandom(10_000)) is None
    assert pack(b"x" * MIN_LINES_BYTES) is not None
    short = raw_of([{"a": 1}])
    assert not verify(short).is_compressed
    assert short[HEADER_SIZE:].startswith(b'{"offset":0')


BROKEN = {
    "cut short": lambda frame: frame[:-1],
    "nothing": lambda frame: b"",
    "no frame": lambda frame: b"x" + frame,
    "more behind it": lambda frame: frame + b"x",
    "another frame behind it": lambda frame: frame + frame,
    "a bit": lambda frame: frame[:40] + bytes([frame[40] ^ 64]) + frame[41:],
    "an unknown size": lambda frame: zstandard.ZstdCompressor(write_content_size=False).compress(
        b"{}\n" * 100
    ),
    "half a line": lambda frame: zstandard.compress(b"{}\n{}"),
    "a skippable frame": lambda frame: b"\x50\x2a\x4d\x18\x04\0\0\0abcd",
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_frame_is_an_error_and_the_next_one_is_read(how: str) -> None:
    raw = raw_of()
    frame = raw[HEADER_SIZE:]
    with pytest.raises(BatchError):
        lines_of(parse_header(raw), BROKEN[how](frame))
    assert lines_of(parse_header(raw), frame).count(b"\n") == len(VALUES)  # type: ignore[union-attr]


def lying(size: int) -> bytes:
    """A frame that says it holds so many bytes, and holds less."""
    return b"\x28\xb5\x2f\xfd\xe0" + size.to_bytes(8, "little") + b"\x01\x00\x00"


@pytest.mark.parametrize("size", [0, BATCH_LINES_MAX + 1, 1 << 40, (1 << 64) - 3])
def test_a_bomb_is_refused_by_what_it_says(size: int) -> None:
    with pytest.raises(BatchError, match="zstd frame"):
        unpacked_size(lying(size))
    with pytest.raises(BatchError, match="zstd frame"):
        lines_of(parse_header(raw_of()), lying(size))


def test_a_frame_that_holds_more_than_it_says() -> None:
    frame = zstandard.ZstdCompressor(write_checksum=False).compress(b"x" * 99_999 + b"\n")
    assert zstandard.frame_content_size(frame) == 100_000
    at = frame.index((100_000).to_bytes(4, "little"))
    less = frame[:at] + (50_000).to_bytes(4, "little") + frame[at + 4 :]
    assert unpacked_size(less) == 50_000
    with pytest.raises(BatchError, match="broken"):
        lines_of(parse_header(raw_of()), less)


def test_an_unknown_codec_is_named() -> None:
    header = parse_header(raw_of(config=PLAIN))
    for codec in (1, 2, 3, 5, 6, 7):
        with pytest.raises(BatchError, match=f"codec {codec} is not known"):
            lines_of(header._replace(attributes=codec << COMPRESSION_SHIFT), b"whatever")


def test_the_largest_batch_there_can_be_comes_back() -> None:
    lines = b'{"offset":0,"key":null,"value":"' + b"a" * (BATCH_LINES_MAX - 40) + b'"}\n'
    header = parse_header(raw_of())
    frame = pack(lines)
    assert frame is not None
    assert lines_of(header, frame) == lines


def test_a_frame_needs_no_more_room_than_any_reader_has() -> None:
    """RFC 9659: 8 MB of window, however long the content is."""
    for size in (600, 5_000, 2_000_000, 20_000_000):
        frame = pack(b"0123456789" * (size // 10))
        assert frame is not None
        assert zstandard.get_frame_parameters(frame).window_size <= 1 << 23


# ---- what a log makes of them


@pytest.mark.parametrize("how", sorted(BROKEN.keys() - {"nothing"}))
def test_invariant_l22_a_frame_that_cant_be_unpacked_is_rot_reported_and_never_served(
    how: str,
) -> None:
    life = Life(SimulatedDisk(), PACKED)
    log = life.log()
    append(log, VALUES)
    frame = BROKEN[how](raw_of()[HEADER_SIZE:])
    bad = parse_header(raw_of())._replace(
        base_offset=50, length=len(frame), attributes=CODEC, durable_end=0
    )
    log.append_as_follower(rebuilt(bad, frame))
    assert len(values_of_first(log)) == 50
    with pytest.raises(CorruptionError, match="offset=50"):
        log.read(50, 1 << 20, 100)
    assert isinstance(log.failed, CorruptionError)


def values_of_first(log: object) -> list[bytes]:
    (piece,) = log.read(0, 1, 50)  # type: ignore[attr-defined]
    (rest,) = log.read(1, 1 << 20, 50)  # type: ignore[attr-defined]
    return (bytes(piece.lines) + bytes(rest.lines)).splitlines()


def test_invariant_l22_a_bomb_is_found_before_it_is_passed_on() -> None:
    log = Life(SimulatedDisk(), PACKED).log()
    bad = parse_header(raw_of())._replace(length=len(lying(1 << 40)), durable_end=0)
    log.append_as_follower(rebuilt(bad, lying(1 << 40)))
    with pytest.raises(CorruptionError, match="offset=0"):
        log.read_packed(0, 1 << 20, 50)


def test_a_follower_stores_the_leaders_bytes_and_never_unpacks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    raw = raw_of()
    follower = Life(SimulatedDisk(), PLAIN).log()
    monkeypatch.setattr(compression, "lines_of", None)
    monkeypatch.setattr(zstandard, "ZstdDecompressor", None)
    monkeypatch.setattr(compression, "decompress", None)
    follower.append_as_follower(raw)
    assert follower.read_raw(0, 1 << 20, 50)[20:] == raw[20:]
    monkeypatch.undo()
    assert values_of(follower) == VALUES


def test_the_type_is_switched_live_and_a_log_mixes() -> None:
    log = Life(SimulatedDisk(), PLAIN).log()
    for config in (PLAIN, PACKED, PLAIN, PACKED):
        log.config = config
        append(log, VALUES)
    raw = log.read_raw(0, 1 << 20, log.log_end_offset)
    assert [header.is_compressed for _, header in walk(raw)] == [False, True, False, True]
    assert values_of(log) == VALUES * 4
    for offset in (0, 49, 50, 77, 151, 199):
        assert values_of(log, offset, max_bytes=100) == (VALUES * 4)[offset:]


@pytest.mark.parametrize(("claim", "batches"), [(None, 4), (Claim(7, 0, 0), 1)])
def test_batches_are_cut_by_their_lines_not_by_what_is_left_of_them(
    claim: Claim | None, batches: int
) -> None:
    log = Life(SimulatedDisk(), PACKED).log()
    many = [{"n": n, "text": "t" * 1_000} for n in range(3_000)]
    log.append_as_leader(
        records(many),
        key_format=RecordFormat.JSON,
        value_format=RecordFormat.JSON,
        leader_epoch=1,
        now_ms=1_000,
        claim=claim,
    )
    assert len(list(walk(log.read_raw(0, 1 << 26, 3_000)))) == batches
    assert values_of(log) == many


def test_the_offset_of_a_time_is_found_inside_a_frame() -> None:
    log = Life(SimulatedDisk(), PACKED).log()
    append(log, VALUES, now_ms=1_000)
    append(log, VALUES, now_ms=2_000)
    assert offset_for_timestamp(log, 1_500) == 50
    assert offset_for_timestamp(log, 1_000) == 0
    assert offset_for_timestamp(log, 2_001) is None


def test_the_front_of_a_frame_is_left_out_for_a_follower_that_begins_inside() -> None:
    leader = Life(SimulatedDisk(), PACKED).log()
    append(leader, VALUES)
    append(leader, VALUES)
    raw = leader.read_raw(20, 1 << 20, 100)
    first = verify(raw)
    assert (first.base_offset, first.count, first.next_offset) == (20, 30, 50)
    assert first.is_compressed
    follower = Life(SimulatedDisk(), PLAIN).log()
    follower.start_over(20)
    follower.append_as_follower(raw)
    assert values_of(follower, 20) == (VALUES + VALUES)[20:]
    last = without_front(raw_of(), parse_header(raw_of()), 49)
    assert not verify(last).is_compressed, "one short line is left"


def test_a_cut_frame_that_grows_is_sent_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Together with others it could exceed the largest frame that a follower takes."""
    leader = Life(SimulatedDisk(), PACKED).log()
    append(leader, VALUES[:12])
    append(leader, VALUES)
    whole = parse_header(leader.read_raw(0, 1, 12))
    assert whole.is_compressed
    monkeypatch.setattr(compression, "compress_if_shorter", lambda _: None)
    raw = leader.read_raw(7, 1 << 20, 62)
    grown = verify(raw)
    assert not grown.is_compressed
    assert grown.size == len(raw) > whole.size
    raw = leader.read_raw(12, 1 << 20, 62)
    assert verify(raw).count == 50
    raw = leader.read_raw(0, 1 << 20, 62)
    assert len(list(walk(raw))) == 2


def test_cleaning_makes_no_log_longer() -> None:
    """The rest of a frame was stored as lines below half a kilobyte: nearly three times its size.

    A segment could pass the 4 GiB that its index can name.
    """
    config = LogConfig(segment_bytes=600, zstd=True, compaction=CompactionConfig(segment_bytes=600))
    life = Life(SimulatedDisk(), config)
    log = life.log()
    for number in range(30):
        append_keyed(log, [(0, "v" * 300), (100 + number, "v" * 300)], epoch=1, now_ms=1_000)
    life.flush()
    log.high_watermark = log.log_end_offset
    before = headers_of(log)
    stepped = Stepped(cleaning(log, 2_000, facts=lambda: ReplicaFacts(60, 60)))
    while not stepped.over:
        stepped.step()
    after = headers_of(log)
    assert sum(header.count for header in after) < sum(header.count for header in before)
    assert sum(header.size for header in after) < sum(header.size for header in before)
    assert all(segment.size < 600 + before[0].size for segment in log.segments)


def test_a_compact_log_is_cleaned_under_its_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule R7: keys are read, what is old goes, what stays is a frame again."""
    monkeypatch.setattr(compression, "MIN_LINES_BYTES", 1)
    config = LogConfig(segment_bytes=600, zstd=True, compaction=CompactionConfig(segment_bytes=600))
    life = Life(SimulatedDisk(), config)
    log = life.log()
    for number in range(30):
        pairs: list[tuple[int | None, int | None]] = [(key, number) for key in range(6)]
        pairs.append((100 + number, 1))
        append_keyed(log, pairs, epoch=1, now_ms=1_000)
    life.flush()
    log.high_watermark = log.log_end_offset
    before = headers_of(log)
    assert all(header.is_compressed for header in before)
    stepped = Stepped(cleaning(log, 2_000, facts=lambda: ReplicaFacts(210, 210)))
    while not stepped.over:
        stepped.step()
    cleaned = [header for header in headers_of(log) if header.count and not header.is_dense]
    assert len(cleaned) > 10
    kept = read_all(log, 0, 1 << 20)
    assert len(kept) < 110
    newest = {pair[0]: pair[1] for _, pair in sorted(kept.items())}
    assert newest == dict.fromkeys(range(6), 29) | {100 + number: 1 for number in range(30)}


def test_stored_as_keeps_the_codec_only_where_it_pays() -> None:
    header = parse_header(raw_of())
    lines = bytes(lines_of(header, raw_of()[HEADER_SIZE:]))
    smaller, payload = stored_as(header, lines, 50)
    assert (smaller.is_compressed, smaller.length) == (True, len(payload))
    for few, count in ((lines[: lines.index(b"\n") + 1], 1), (b"", 0)):
        plain, payload = stored_as(header, few, count)
        assert (plain.is_compressed, plain.length, plain.count) == (False, len(few), count)
        assert payload == few
        verify(rebuilt(plain, payload))


# ---- what is passed on


def pieces_of(lines: list[bytes], kinds: str) -> list[BatchSlice | PackedSlice]:
    """p: plain, z: a frame, c: cut out of a frame."""
    pieces: list[BatchSlice | PackedSlice] = []
    header = parse_header(raw_of())
    for each, kind in zip(lines, kinds, strict=True):
        if kind == "z":
            frame = pack(each)
            assert frame is not None
            pieces.append(PackedSlice(header, frame, 0, 1, 1, len(each)))
        else:
            attributes = CODEC if kind == "c" else 0
            pieces.append(BatchSlice(header._replace(attributes=attributes), each, 0, 1, 1))
    return pieces


@pytest.mark.parametrize("kinds", ["z", "zzz", "pz", "ppzpp", "czc", "zpcpz", "cpz"])
@pytest.mark.parametrize("size", [30, 1_000, 300_000, 1_500_000, 5_000_000])
def test_frames_one_behind_the_other_are_the_lines(kinds: str, size: int) -> None:
    lines = [b"%c" % (65 + n) * max(size, 600 if k == "z" else 0) for n, k in enumerate(kinds)]
    lines = [each + b"\n" for each in lines]
    for before in (None, lambda piece: b"about\n"):
        found = framed(pieces_of(lines, kinds), before)
        expected = b"".join((b"" if before is None else b"about\n") + each for each in lines)
        assert decoded(b"".join(found.parts)) == expected
        assert found.lines_size == len(expected)


def decoded(body: bytes) -> bytes:
    reader = zstandard.ZstdDecompressor(max_window_size=1 << 23).stream_reader(
        body, read_across_frames=True
    )
    return bytes(reader.read())


def test_every_frame_made_here_passes_the_library_alone() -> None:
    """Not only its reader of many frames: sizes, blocks and ends are right in each."""
    for size in (1, 131_071, 131_072, 131_073, 1_048_576):
        found = framed(pieces_of([b"x" * (size - 1) + b"\n"], "p"))
        frame = b"".join(found.parts)
        assert zstandard.frame_content_size(frame) == size
        assert len(zstandard.decompress(frame)) == size
        assert len(frame) <= size + 40


# ---- who is sent frames

ACCEPTS = {
    None: False,
    "": False,
    "zstd": True,
    "ZSTD": True,
    "gzip, deflate, br, zstd": True,
    "gzip, zstd;q=0.1": True,
    "zstd;q=0": False,
    "zstd; q=0.000": False,
    "*": False,
    "*, zstd;q=0": False,
    "identity": False,
    "identity, zstd;q=0.5": False,
    "identity;q=0.5, zstd": True,
    "zstdx": False,
    "x-zstd, gzip": False,
    "zstd;q=nonsense": False,
    ",".join(["gzip"] * 40) + ",zstd": False,
}


@pytest.mark.parametrize("accept", ACCEPTS)
def test_zstd_goes_to_who_names_it(accept: str | None) -> None:
    assert accepts_zstd(accept) is ACCEPTS[accept]


def test_headers_are_what_lines_of_goes_by() -> None:
    empty = BatchHeader(*parse_header(raw_of()))._replace(count=0, length=0)
    assert lines_of(empty, b"") == b"", "an emptied batch holds no frame"


def test_a_frame_that_would_not_say_the_same_is_never_stored(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Rule R12's kind of promise: what was taken is what is given, or lines are stored."""
    log = Life(SimulatedDisk(), PACKED).log()
    append(log, VALUES)
    whole = compression.compress
    for wrong in (
        lambda lines: whole(bytes(lines).replace(b"JFK", b"LGA")),
        lambda lines: whole(lines)[:-5],
        lambda lines: whole(bytes(lines)[:-100]),
    ):
        monkeypatch.setattr(compression, "compress", wrong)
        append(log, VALUES)
    monkeypatch.undo()
    append(log, VALUES)
    raw = log.read_raw(0, 1 << 20, log.log_end_offset)
    kinds = [header.is_compressed for _, header in walk(raw)]
    assert kinds == [True, False, False, False, True]
    assert values_of(log) == VALUES * 5
    assert caplog.text.count("compressed wrongly") == 3


def test_threads_that_compress_at_once_do_not_mix_their_lines() -> None:
    """The loop and the cleaner's thread share what is idle, never what is in use."""

    def work(number: int) -> bool:
        header = parse_header(raw_of())
        for size in range(2, 120):
            lines = (f'{{"thread":{number},"size":{size}}}\n' * (size * 20)).encode()
            frame = pack(lines)
            assert frame is not None
            if lines_of(header, frame) != lines:
                return False
        return True

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(work, range(8)))
