"""What is left of a damaged log becomes one that opens, and no crash on the way loses either."""

from __future__ import annotations

import random
import shutil
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from click import UsageError
from click.testing import CliRunner
from typing_extensions import override

from broker.log.directory_files import DirectoryFiles
from broker.log.inspection import check_folder, clean_ends
from broker.log.log_directory import LogConfig
from broker.log.recovery import LEADER_EPOCH_FILE
from broker.log.salvage import COPY_MARK, SCRATCH, ByteRange, LostOffsets, Salvage, plan_salvage
from broker.log.swap import STATE_FILE, read_state
from broker.record.batch import HEADER_SIZE, walk
from raft_metadata.common.disk import Disk
from raft_metadata.common.errors import CorruptionError
from raft_metadata.common.ids import PartitionId, TopicId
from tests.support.logs import TOPIC_ID, Life, append, values_of
from tests.support.simulated_disk import SimulatedDisk

if TYPE_CHECKING:
    from pathlib import Path

    from broker.log.salvage import SalvageResult

ROOT = "/data/log"
NAME = "orders-0"
HERE = f"{ROOT}/{NAME}"
ZERO = PartitionId(0)
COPY = f"{ROOT}/.deleted/{TOPIC_ID}:0{COPY_MARK}"


class KilledError(BaseException):
    """The process is no more."""


def segment(base: int, folder: str = HERE) -> str:
    return f"{folder}/{base:020d}.log"


def written(
    segment_bytes: int = 1 << 30, epochs: tuple[int, ...] = (1,) * 12, *, clean: bool = False
) -> SimulatedDisk:
    """Batches of three records, one for each epoch named, each of them durable by now."""
    disk = SimulatedDisk()
    life = Life(disk, LogConfig(segment_bytes=segment_bytes))
    log = life.log()
    for number, epoch in enumerate(epochs):
        append(log, [f"{number}.{n}" for n in range(3)], epoch=epoch, now_ms=1_000 + number)
        life.flush()
    if clean:
        life.close()
    disk.kill()
    return disk


def batch_at(disk: SimulatedDisk, offset: int) -> tuple[str, int, int]:
    """(file, position, size) of the batch that holds it."""
    for path in sorted(disk.live):
        inode = disk.live[path]
        if path.startswith(HERE + "/") and path.endswith(".log") and inode is not None:
            for at, header in walk(bytes(inode.cache)):
                if header.base_offset <= offset < header.next_offset:
                    return path, at, header.size
    raise AssertionError(offset)


def rot(disk: SimulatedDisk, offset: int, at: int = HEADER_SIZE + 5) -> ByteRange:
    """Flip a bit of the batch that holds the offset; where that batch stands."""
    path, position, size = batch_at(disk, offset)
    inode = disk.live[path]
    assert inode is not None
    inode.cache[position + at] ^= 1
    inode.durable[position + at] ^= 1
    return ByteRange(path, position, position + size)


def salvage(disk: SimulatedDisk) -> SalvageResult:
    return Salvage(disk, ROOT, NAME).run()


def opened(disk: SimulatedDisk) -> tuple[list[tuple[int, str]], list[tuple[int, int]], int]:
    """What the broker serves once it leads by an unclean election: records, epochs, log end."""
    life = Life(disk)
    manager = life.manager
    assert [key.topic_id for key in manager.unclean] == [TOPIC_ID], "reported at registration"
    assert manager.get(TOPIC_ID, ZERO) is None, "nobody counts on it before"
    assert manager.open_offline(TOPIC_ID, ZERO)
    log = manager.get(TOPIC_ID, ZERO)
    assert log is not None
    found: list[dict[str, Any]] = []
    offset = log.log_start_offset
    while pieces := log.read(offset, 1 << 20, log.log_end_offset):
        for piece in pieces:
            found += [orjson.loads(line) for line in bytes(piece.lines).split(b"\n")[:-1]]
        offset = pieces[-1].next_offset
    append(log, ["next"], epoch=99)
    life.flush()
    assert log.read(log.log_end_offset - 1, 100, log.log_end_offset)
    disk.kill()
    values = [(record["offset"], record["value"]) for record in found]
    return values, log.epoch_entries[:-1], log.log_end_offset - 1


def expected(*offsets: int, count: int = 36) -> list[tuple[int, str]]:
    """All records but these."""
    return [(n, f"{n // 3}.{n % 3}") for n in range(count) if n not in offsets]


def test_a_damaged_batch_is_covered_and_the_others_stay_byte_for_byte() -> None:
    disk = written()
    place = rot(disk, 4)
    before = bytes(disk.live[segment(0)].cache)  # type: ignore[union-attr]
    done = salvage(disk)
    assert done.plan.lost == [LostOffsets(3, 5, (place,), is_covered=True)]
    assert done.copy == COPY
    assert bytes(disk.live[segment(0, COPY)].cache) == before  # type: ignore[union-attr]
    after = bytes(disk.live[segment(0)].cache)  # type: ignore[union-attr]
    gone = place.end - place.start
    assert after[: place.start] == before[: place.start]
    assert after[place.start + HEADER_SIZE :] == before[place.end :]
    assert len(after) == len(before) - gone + HEADER_SIZE
    assert not plan_salvage(disk, HERE).is_damaged
    assert opened(disk) == (expected(3, 4, 5), [(1, 0)], 36)


def test_a_header_that_rotted_takes_no_sound_batch_with_it() -> None:
    """Its length is believed by nobody: the next batch is looked for byte by byte."""
    disk = written()
    for at in (0, 4, 24, 32):
        disk = written()
        rot(disk, 4, at)
        assert [lost[:2] for lost in salvage(disk).plan.lost] == [(3, 5)]
        assert opened(disk)[0] == expected(3, 4, 5)


def test_a_lost_end_that_was_durable_is_cut_and_said() -> None:
    disk = written(clean=True)
    place = rot(disk, 35)
    done = salvage(disk)
    assert done.plan.lost == [LostOffsets(33, 35, (place,), is_covered=False)]
    assert (done.plan.log_end, done.plan.offsets_lost) == (33, 3)
    life = Life(disk)
    assert "salvaged: 3 offsets lost 33..35" in next(iter(life.manager.unclean.values()))
    disk.kill()
    assert opened(disk) == (expected(33, 34, 35), [(1, 0)], 33)


def test_rule_q5_what_nothing_proves_is_a_torn_tail_that_a_start_cuts() -> None:
    disk = written()
    rot(disk, 35)
    done = salvage(disk)
    assert not done.plan.is_damaged
    assert done.copy == ""
    assert COPY not in disk.live
    life = Life(disk)
    assert not life.manager.unclean
    assert values_of(life.log())[-1] == "10.2"


def test_a_sound_log_is_left_alone() -> None:
    disk = written(clean=True)
    before = {path: inode and bytes(inode.cache) for path, inode in disk.live.items()}
    assert not salvage(disk).plan.is_damaged
    assert {path: inode and bytes(inode.cache) for path, inode in disk.live.items()} == before


def epochs_of_covers(disk: SimulatedDisk) -> list[tuple[int, int, int]]:
    plan = plan_salvage(disk, HERE)
    return [
        (piece.first_offset, piece.next_offset, piece.epoch)
        for piece in plan.pieces
        if not hasattr(piece, "file")
    ]


def test_invariant_l11_no_empty_batch_lies_across_leader_epochs() -> None:
    """The epochs' starts come from their file; a cache rebuilt from the log equals it."""
    disk = written(epochs=(1, 1, 2, 3, 3, 7, 7, 7), clean=True)
    for offset in (4, 7, 10, 13):
        rot(disk, offset)
    assert epochs_of_covers(disk) == [(3, 6, 1), (6, 9, 2), (9, 15, 3)]
    salvage(disk)
    assert opened(disk)[1] == [(1, 0), (2, 6), (3, 9), (7, 15)]


def test_epochs_that_nobody_knows_any_more_begin_with_a_record_that_is_there() -> None:
    disk = written(epochs=(1, 1, 2, 3, 3, 7, 7, 7), clean=True)
    for offset in (4, 7, 10, 13):
        rot(disk, offset)
    disk.unlink(f"{HERE}/{LEADER_EPOCH_FILE}")
    assert epochs_of_covers(disk) == [(3, 15, 1)]
    salvage(disk)
    assert opened(disk)[1] == [(1, 0), (7, 15)]


def test_a_segment_that_is_gone_is_covered_and_so_is_the_first_one() -> None:
    disk = written(segment_bytes=700)
    bases = [int(path[len(HERE) + 1 : -4]) for path in sorted(disk.live) if path.endswith(".log")]
    assert len(bases) > 3
    disk.unlink(segment(bases[0]))
    disk.unlink(segment(bases[2]))
    disk.synced = dict(disk.live)
    done = salvage(disk)
    assert done.plan.lost == [
        LostOffsets(bases[0], bases[1] - 1, (), is_covered=True),
        LostOffsets(bases[2], bases[3] - 1, (), is_covered=True),
    ]
    gone = [*range(bases[0], bases[1]), *range(bases[2], bases[3])]
    assert opened(disk)[0] == expected(*gone)


def test_of_a_log_that_is_lost_whole_no_offset_is_given_twice() -> None:
    disk = written(clean=True)
    disk.unlink(segment(0))
    disk.synced = dict(disk.live)
    done = salvage(disk)
    assert done.plan.lost == [LostOffsets(0, 35, (), is_covered=False)]
    life = Life(disk)
    assert life.manager.open_offline(TOPIC_ID, ZERO)
    log = life.log()
    assert (log.log_start_offset, log.log_end_offset) == (36, 36)


def test_whose_log_it_is_can_be_said() -> None:
    disk = written()
    disk.live[f"{HERE}/partition.json"].cache[3] ^= 1  # type: ignore[union-attr]
    with pytest.raises(CorruptionError, match="must be given"):
        salvage(disk)
    done = Salvage(disk, ROOT, NAME, topic_id=TopicId(TOPIC_ID)).run()
    assert done.plan.identity_is_lost
    assert opened(disk)[0] == expected()


def test_a_replacement_under_way_counts_as_a_start_would_count_it() -> None:
    """A whole one stands for what it replaces; of a damaged one what it was to replace is read."""
    for damaged in (False, True):
        disk = written(segment_bytes=700)
        first, second, *_ = sorted(path for path in disk.live if path.endswith(".log"))
        swap = first + ".swap"
        whole = bytes(disk.live[first].cache) + bytes(disk.live[second].cache)  # type: ignore[union-attr]
        fd = disk.open(swap, create=True)
        disk.write(fd, whole[: -5 if damaged else len(whole)], 0)
        disk.sync_file(fd)
        disk.close(fd)
        if not damaged:
            disk.unlink(second)
        disk.synced = dict(disk.live)
        rot(disk, 25)
        done = salvage(disk)
        assert [lost[:2] for lost in done.plan.lost] == [(24, 26)]
        assert not [path for path in disk.live if path.startswith(HERE) and "swap" in path]
        assert opened(disk)[0] == expected(24, 25, 26)


def test_rule_r7_where_it_is_lost_how_far_tombstones_went_all_may_be_gone() -> None:
    """A lagging replica might miss one otherwise: it is filled from the beginning."""
    disk = written()
    fd = disk.open(f"{HERE}/{STATE_FILE}", create=True)
    disk.write(fd, b"rotten", 0)
    disk.sync_file(fd)
    disk.close(fd)
    done = salvage(disk)
    assert done.plan.state_is_lost
    assert done.plan.lost == []
    assert read_state(disk, HERE, 36).dropped_to == 36
    assert opened(disk)[0] == expected()


def test_a_second_salvage_keeps_the_first_copy() -> None:
    disk = written()
    rot(disk, 4)
    salvage(disk)
    rot(disk, 7)
    done = salvage(disk)
    assert done.copy == COPY + "-2"
    assert [lost[:2] for lost in done.plan.lost] == [(6, 8)]
    assert segment(0, COPY) in disk.live
    assert opened(disk)[0] == expected(*range(3, 9))


def test_a_full_disk_leaves_the_old_log_and_the_next_run_goes_on() -> None:
    disk = written()
    rot(disk, 4)
    before = bytes(disk.live[segment(0)].cache)  # type: ignore[union-attr]
    disk.room = 500
    with pytest.raises(OSError, match="space"):
        salvage(disk)
    assert bytes(disk.live[segment(0)].cache) == before  # type: ignore[union-attr]
    disk.kill()
    salvage(disk)
    assert opened(disk)[0] == expected(3, 4, 5)


def kept_somewhere(disk: SimulatedDisk, before: dict[str, bytes]) -> list[str]:
    """The folders that hold the damaged log as it was."""
    places = [HERE, f"{ROOT}/{SCRATCH}/{NAME}", COPY]
    return [
        place
        for place in places
        if all(
            (inode := disk.live.get(f"{place}/{name}")) is not None and bytes(inode.cache) == data
            for name, data in before.items()
        )
    ]


@pytest.mark.parametrize("power", [False, True], ids=["killed", "power"])
def test_a_crash_at_any_point_leaves_the_old_log_or_the_new_one(*, power: bool) -> None:
    """Whole either way, the old one kept, marked before it counts; the next run ends it."""
    crashes = 0
    for call in range(200):
        disk = written(segment_bytes=700, clean=True)
        rot(disk, 4)
        rot(disk, 20)
        before = {
            path[len(HERE) + 1 :]: bytes(inode.cache)
            for path, inode in disk.live.items()
            if path.startswith(HERE + "/") and inode is not None
        }
        left = call

        def crash(operation: str, path: str) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise KilledError

        disk.before = crash
        try:
            salvage(disk)
        except KilledError:
            crashes += 1
        disk.before = None
        done = left >= 0
        if power:
            disk.cut_power(random.Random(call))
        else:
            disk.kill()
        plan = Salvage(disk, ROOT, NAME).plan()
        kept = kept_somewhere(disk, before)
        assert kept, call
        if kept == [HERE]:
            assert [lost[:2] for lost in plan.lost] == [(3, 5), (18, 20)], "as it was"
        else:
            assert not plan.is_damaged, call
            said = DirectoryFiles(disk, ROOT).read_damaged()
            assert list(said) == [plan.key], "nobody counts on what lacks something"
        salvage(disk)
        assert kept_somewhere(disk, before) == [COPY]
        assert opened(disk)[0] == expected(3, 4, 5, 18, 19, 20)
        if done:
            break
    assert crashes > 25


@pytest.mark.parametrize("seed", range(40))
def test_whatever_is_damaged_what_is_left_is_as_written_and_what_is_not_is_named(seed: int) -> None:
    rng = random.Random(seed)
    epochs = tuple(sorted(rng.choices(range(1, 6), k=12)))
    disk = written(rng.choice((400, 900, 1 << 30)), epochs, clean=rng.random() < 0.5)
    files = [path for path in sorted(disk.live) if path.endswith(".log")]
    for _ in range(rng.randint(1, 4)):
        inode = disk.live.get(path := rng.choice(files))
        if inode is None or not inode.cache:
            continue
        kind = rng.random()
        if kind < 0.1:
            disk.unlink(path)
        elif kind < 0.3:
            del inode.cache[rng.randrange(len(inode.cache)) :]
        elif kind < 0.5:
            start = rng.randrange(len(inode.cache))
            end = min(start + rng.randrange(1, 600), len(inode.cache))
            inode.cache[start:end] = bytes(end - start)
        else:
            inode.cache[rng.randrange(len(inode.cache))] ^= 1 << rng.randrange(8)
        inode.durable[:] = inode.cache
    disk.synced = dict(disk.live)
    done = salvage(disk)
    assert not Salvage(disk, ROOT, NAME).plan().is_damaged
    if not done.plan.is_damaged:
        return
    values, entries, end = opened(disk)
    assert values == sorted(values)
    assert set(values) <= set(expected())
    lost = {n for each in done.plan.lost for n in range(each.first_offset, each.last_offset + 1)}
    assert {offset for offset, _ in values} == set(range(end)) - lost
    assert [epoch for epoch, _ in entries] == sorted({epoch for epoch, _ in entries})


def test_a_disk_that_gives_back_only_some_pages_loses_no_more_than_they_hold() -> None:
    class Sick(SimulatedDisk):
        sick = True

        @override
        def read(self, fd: int, length: int, position: int) -> bytes:
            path = self.descriptors[fd][0]
            if (
                self.sick
                and path == segment(0)
                and position < 4_096 * 2
                and position + length > 4_096
            ):
                raise OSError(5, "Input/output error")
            return super().read(fd, length, position)

    healthy = written(epochs=(1,) * 60)
    disk = Sick()
    disk.live, disk.synced = healthy.live, healthy.synced
    done = salvage(disk)
    (lost,) = done.plan.lost
    assert lost.is_covered
    _, first, _ = batch_at(healthy, lost.first_offset - 1)
    assert first < 4_096, "all that lies before it"
    left = expected(*range(lost.first_offset, lost.last_offset + 1), count=180)
    disk.sick = False
    assert opened(disk)[0] == left
    assert lost.last_offset - lost.first_offset < 80


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """The folder of a partition in a broker's that was stopped; its last batch is damaged."""
    life = Life(Disk(), data_dir=str(tmp_path))
    for number in range(12):
        append(life.log(), [f"{number}.{n}" for n in range(3)])
        life.flush()
    life.close()
    path = tmp_path / "log" / NAME / f"{0:020d}.log"
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)
    return path.parent


def quorumlog(*arguments: str) -> tuple[int, str]:
    """Exit code and what was said, on either output."""
    from http_api.cli.log import log
    from http_api.node.exits import NodeExit

    try:
        result = CliRunner().invoke(log, arguments, standalone_mode=False, catch_exceptions=False)
    except NodeExit as error:
        return error.code, error.message
    except UsageError as error:
        return 2, error.message
    return result.return_value, result.output


def test_the_command_says_what_is_lost_and_what_to_do_next(node: Path) -> None:
    code, dry = quorumlog("salvage", str(node), "--dry-run")
    assert code == 0
    assert "lost: offsets 33 to 35 (3)" in dry
    assert "the log ends at 33: new records get these offsets again" in dry
    assert not list(node.parent.glob(".deleted/*"))
    code, text = quorumlog("salvage", str(node))
    assert code == 0
    assert text.startswith(dry.splitlines()[0])
    assert "quorumlog elect unclean orders:0 --yes" in text
    (copy,) = node.parent.glob(".deleted/*:salvaged")
    assert f"the damaged log is kept in {copy}" in text
    report = check_folder(node, clean_ends(node.parent).get(node.name))
    assert (report.is_damaged, report.end, report.findings) == (False, 33, [])
    code, text = quorumlog("salvage", str(node))
    assert (code, "it can be opened, nothing was changed" in text) == (0, True)
    assert "reports it as unclean (salvaged: 3 offsets lost 33..35)" in text
    code, text = quorumlog("salvage", str(node), "--format", "json")
    said = orjson.loads(text)
    assert (code, said["is_damaged"], said["copy"]) == (0, False, None)
    assert "elect unclean" in said["next_command"]


def test_rule_q4_the_command_waits_for_nobody_and_breaks_into_nothing(node: Path) -> None:
    life = Life(Disk(), data_dir=str(node.parent.parent))
    assert quorumlog("salvage", str(node))[0] == 75
    life.close()
    assert quorumlog("salvage", str(node.parent))[0] == 2
    (node / "partition.json").write_bytes(b"?")
    code, text = quorumlog("salvage", str(node))
    assert (code, "its topic's id" in text) == (74, True)


def test_the_command_says_how_much_room_it_needs(
    node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1_000))
    code, text = quorumlog("salvage", str(node))
    assert (code, "1000 are free: nothing was changed" in text) == (74, True)
    assert not list(node.parent.glob(".deleted/*"))
