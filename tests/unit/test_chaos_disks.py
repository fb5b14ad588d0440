"""The shim under a small process: what it is told happens, and a power cut takes the unsynced."""

from __future__ import annotations

import ast
import errno
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import cast

import pytest

from chaos.disks import shim as shim_module
from chaos.disks.power import PowerLoss, cut_power, read_tape, unsynced
from chaos.disks.shim import (
    DiskFault,
    Shim,
    ShimError,
    broken,
    build,
    clock_ahead,
    full,
    lying,
    slow,
)

NODE = "broker-1"
BODY = """
import ctypes, os, sys, time
os.chdir(os.path.dirname(sys.argv[1]))
libc = ctypes.CDLL(None, use_errno=True)
def make(name, data=b"", sync=True):
    fd = os.open(os.path.abspath(name), os.O_RDWR | os.O_CREAT)
    os.pwrite(fd, data, 0)
    if sync:
        os.fdatasync(fd)
    return fd
def sync_names(path="."):
    fd = os.open(os.path.abspath(path), os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(fd)
    os.close(fd)
def tried(call, *arguments):
    try:
        return call(*arguments)
    except OSError as error:
        return -error.errno
here = os.path.abspath
"""


class Bench:
    """One node's folder and the shim under whatever is run there."""

    def __init__(self, directory: Path) -> None:
        self.folder = directory / "cluster" / NODE
        self.folder.mkdir(parents=True)
        (self.folder / "config.toml").touch()
        self.shim = Shim(directory / "cluster", directory / "disks", tape=True)

    def run(self, script: str, *faults: DiskFault) -> list[object]:
        """What the script printed, line by line, evaluated."""
        self.shim.set(NODE, *faults)
        done = subprocess.run(
            [sys.executable, "-c", BODY + script, str(self.folder / "config.toml")],
            env=os.environ | self.shim.environment(),
            capture_output=True,
            text=True,
            check=True,
            timeout=30,
        )
        return [ast.literal_eval(line) for line in done.stdout.splitlines()]

    def cut(self, keep: float = 0.0, seed: int = 1) -> PowerLoss:
        tape = self.shim.control / f"{NODE}.tape"
        return cut_power(self.folder, tape, random.Random(seed), keep)

    def content(self, name: str) -> bytes | None:
        path = self.folder / name
        return path.read_bytes() if path.exists() else None


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_synced_bytes_stay_and_others_go(bench: Bench) -> None:
    bench.run("""
fd = make("log", b"a" * 5000)
sync_names()
os.pwrite(fd, b"b" * 5000, 5000)
make("unnamed", b"its content is synced, its name is not")
""")
    assert str(bench.cut()) == "2 of 2 unsynced pages, 1 names"
    assert bench.content("log") == b"a" * 5000
    assert bench.content("unnamed") is None
    assert bench.cut() == PowerLoss(0, 0, 0), "what a cut left is what the disk holds"


def test_pages_are_lost_in_any_order_and_leave_zeros_where_later_ones_stayed(bench: Bench) -> None:
    bench.run("""
fd = make("log", b"")
sync_names()
for page in range(8):
    os.pwrite(fd, bytes([65 + page]) * 4096, page * 4096)
""")
    seed = next(s for s in range(99) if self_kept(s))
    bench.cut(keep=0.5, seed=seed)
    content = bench.content("log")
    assert content is not None
    pages = [content[at : at + 1] for at in range(0, len(content), 4096)]
    assert len(pages) == 8
    assert b"\0" in pages[:-1], pages
    assert set(pages) - {b"\0"} <= {bytes([65 + page]) for page in range(8)}


def self_kept(seed: int) -> bool:
    return random.Random(seed).random() < 0.5  # the first draw keeps the file's new length


def test_an_overwritten_page_and_a_cut_tail_come_back_as_they_were(bench: Bench) -> None:
    bench.run("""
fd = make("log", b"a" * 9000)
sync_names()
os.pwrite(fd, b"X" * 10, 100)
os.ftruncate(fd, 4500)
os.pwrite(fd, b"Y" * 100, 4500)
""")
    bench.cut()
    assert bench.content("log") == b"a" * 9000


def test_a_file_replaced_without_a_sync_of_its_directory_is_the_old_one_again(
    bench: Bench,
) -> None:
    script = """
make("state", b"old")
sync_names()
make("state.tmp", b"new")
os.rename(here("state.tmp"), here("state"))
os.unlink(here("config.toml"))
"""
    bench.run(script)
    bench.cut()
    assert bench.content("state") == b"old"
    assert bench.content("config.toml") == b""
    bench.run(script + "sync_names()")
    bench.cut()
    assert bench.content("state") == b"new"
    assert bench.content("config.toml") is None


def test_a_directory_whose_name_was_never_synced_is_gone_with_all_in_it(bench: Bench) -> None:
    bench.run("""
os.mkdir(here("t-0"))
make("t-0/log", b"a")
sync_names("t-0")
""")
    bench.cut()
    assert not (bench.folder / "t-0").exists()


def test_a_sync_of_the_file_system_covers_everything_that_came_before_it(bench: Bench) -> None:
    bench.run("""
os.mkdir(here("t-0"))
fd = make("t-0/log", b"a" * 100, sync=False)
libc.syncfs(fd)
os.pwrite(fd, b"b" * 100, 100)
""")
    assert bench.cut().pages_lost == 1
    assert bench.content("t-0/log") == b"a" * 100


def test_a_sync_that_began_before_a_write_says_nothing_of_it(bench: Bench) -> None:
    """The flusher syncs on a thread while the loop writes on."""
    bench.run(
        """
import threading
fd = make("log", b"a" * 100)
sync_names()
sync = threading.Thread(target=os.fdatasync, args=(fd,))
sync.start()
time.sleep(0.1)
os.pwrite(fd, b"b" * 100, 100)
sync.join()
""",
        slow("sync", 300, part="/log"),
    )
    bench.cut()
    assert bench.content("log") == b"a" * 100


def test_an_unsynced_change_outlives_its_process_and_is_lost_with_a_later_one(
    bench: Bench,
) -> None:
    """Rule Q1: a restart syncs nothing by itself."""
    bench.run('make("log", b"a" * 100); sync_names()')
    bench.run('os.pwrite(make("log", b""), b"b" * 100, 100)', lying())
    bench.run('print(len(open(here("log"), "rb").read()))')
    bench.cut()
    assert bench.content("log") == b"a" * 100


@pytest.mark.parametrize(
    ("fault", "call", "answer"),
    [
        (broken("sync"), "os.fdatasync, fd", -errno.EIO),
        (broken("sync"), "os.fsync, fd", -errno.EIO),
        (broken("sync"), "libc.syncfs, fd", -1),
        (broken("write"), 'os.pwrite, fd, b"x", 0', -errno.EIO),
        (broken("write", part="other"), 'os.pwrite, fd, b"x", 0', 1),
        (broken("rename"), 'os.rename, here("log"), here("log2")', -errno.EIO),
        (full(10), 'os.pwrite, fd, b"x" * 30, 3', 10),
        (full(0), 'os.pwrite, fd, b"x" * 30, 3', -errno.ENOSPC),
        (full(0), 'os.pwrite, fd, b"xyz", 0', 3),
        (full(0), 'os.open, here("new"), os.O_CREAT | os.O_RDWR', -errno.ENOSPC),
    ],
)
def test_a_call_fails_as_it_was_told(
    bench: Bench, fault: DiskFault, call: str, answer: int
) -> None:
    bench.run('make("log", b"old")')
    script = f'fd = os.open(here("log"), os.O_RDWR)\nprint(tried({call}))'
    assert bench.run(script, fault) == [answer]
    fails = answer < 0 or answer == 10
    assert bench.shim.hit_count(NODE) == (1 if fails else 0), "and leaves evidence of it"


def test_an_error_can_be_told_to_happen_once_and_every_fault_ends_while_the_process_runs(
    bench: Bench,
) -> None:
    told = bench.run(
        """
fd = make("log", b"a", sync=False)
print([tried(os.fdatasync, fd) for _ in range(3)])
os.unlink(sys.argv[1] and here("../../disks/broker-1.faults"))
print(tried(os.fdatasync, fd))
""",
        broken("sync", times=1),
    )
    assert told == [[-errno.EIO, None, None], None]


def test_the_wall_clock_jumps_and_the_monotonic_one_does_not(bench: Bench) -> None:
    script = "print((time.time(), time.monotonic()))"
    year = 365 * 86_400
    [(wall, monotonic)] = cast("list[tuple[float, float]]", bench.run(script))
    [(ahead, after)] = cast("list[tuple[float, float]]", bench.run(script, clock_ahead(year)))
    assert 0 <= ahead - wall - year < 60
    assert 0 <= after - monotonic < 60


def test_processes_that_are_no_node_of_the_cluster_are_left_alone(bench: Bench) -> None:
    bench.shim.set(NODE, broken("write"), broken("sync"))
    environment = os.environ | bench.shim.environment()
    script = (
        "import os; fd = os.open('x', os.O_CREAT | os.O_RDWR); os.write(fd, b'x'); os.fsync(fd)"
    )
    subprocess.run(
        [sys.executable, "-c", script], env=environment, cwd=bench.folder, check=True, timeout=30
    )
    assert not bench.shim.hit_count(NODE)


def test_a_tape_that_a_kill_tore_off_ends_there(bench: Bench) -> None:
    bench.run('fd = make("log", b"a" * 100, sync=False)')
    tape = bench.shim.control / f"{NODE}.tape"
    whole = list(read_tape(tape))
    assert whole
    tape.write_bytes(tape.read_bytes()[:-1])
    assert list(read_tape(tape)) == whole[:-1]
    assert not unsynced(read_tape(bench.shim.control / "none")).contents


def test_without_a_compiler_it_says_what_is_needed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(shim_module, "CACHE", tmp_path / "cache")
    monkeypatch.setattr("chaos.disks.shim.shutil.which", lambda _: None)
    with pytest.raises(ShimError, match="need a C compiler"):
        build()
