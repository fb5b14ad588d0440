"""A file system in memory that can lose its power: which 4 KiB pages and which names are on the
platter, over any number of process lives. Implements `raft_metadata.quorum.files.Files`."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NoReturn

PAGE = 4096


class Killed(BaseException):
    """SIGKILL at this call. Not an Exception: no code may handle it."""


class Content:
    """One file: what the kernel shows, what is on the platter, which pages differ."""

    def __init__(self) -> None:
        self.cache = bytearray()
        self.platter = bytearray()
        self.dirty: set[int] = set()

    def write(self, data: bytes, offset: int) -> None:
        if not data:
            return
        self.cache.extend(bytes(max(0, offset - len(self.cache))))
        self.cache[offset : offset + len(data)] = data
        self.dirty.update(range(offset // PAGE, (offset + len(data) - 1) // PAGE + 1))

    def truncate(self) -> None:
        self.cache.clear()
        self.dirty.clear()

    def _copy_page(self, target: bytearray, page: int) -> None:
        data = self.cache[page * PAGE : (page + 1) * PAGE]
        target.extend(bytes(max(0, page * PAGE - len(target))))
        target[page * PAGE : page * PAGE + len(data)] = data

    def sync(self) -> None:
        for page in sorted(self.dirty):
            self._copy_page(self.platter, page)
        _resize(self.platter, len(self.cache))
        self.dirty.clear()

    def cut(self, rng: random.Random, keep: float) -> None:
        """Unsynced pages reach the platter in any order; so does the file's new length."""
        left = bytearray(self.platter)
        for page in sorted(self.dirty):
            if page * PAGE < len(self.cache) and rng.random() < keep:
                self._copy_page(left, page)
        if rng.random() < keep:
            _resize(left, len(self.cache))
        self.cache, self.platter = left, bytearray(left)
        self.dirty.clear()


def _resize(data: bytearray, length: int) -> None:
    data.extend(bytes(max(0, length - len(data))))
    del data[length:]


class Handle:
    def __init__(self, disk: PowerLossDisk, path: Path, content: Content) -> None:
        self._disk, self.path, self.content = disk, path, content

    def pwrite(self, data: bytes, offset: int) -> None:
        self._disk.step("write", self.path)
        self.content.write(data, offset)

    def pread(self, size: int, offset: int) -> bytes:
        return bytes(self.content.cache[offset : offset + size])

    def sync(self) -> None:
        try:
            self._disk.step("sync", self.path)
        except OSError:
            self.content.dirty.clear()  # as Linux: clean now, and not on the platter
            raise
        self.content.sync()

    def close(self) -> None:
        pass


class Lock(Handle):
    def __init__(self, disk: PowerLossDisk, path: Path) -> None:
        super().__init__(disk, path, Content())

    def close(self) -> None:
        self._disk.locked.discard(self.path)


class PowerLossDisk:
    """`hook(operation, path)` runs before each write, sync, rename and unlink; it may raise
    `Killed` or OSError."""

    def __init__(self) -> None:
        self.files: dict[Path, Content] = {}
        self.platter: dict[Path, Content] = {}
        self.directories: set[Path] = {Path("/")}
        self.locked: set[Path] = set()
        self.steps = 0
        self.hook: Callable[[str, Path], None] | None = None
        self._pending: dict[Path, list[Callable[[dict[Path, Content]], None]]] = defaultdict(list)

    def step(self, operation: str, path: Path) -> None:
        self.steps += 1
        if self.hook is not None:
            self.hook(operation, path)

    def _change(self, directory: Path, change: Callable[[dict[Path, Content]], None]) -> None:
        change(self.files)
        self._pending[directory].append(change)

    # -- Files

    def exists(self, path: Path) -> bool:
        return path in self.files or path in self.directories

    def names(self, directory: Path) -> list[str]:
        return sorted(path.name for path in self.files if path.parent == directory)

    def read(self, path: Path) -> bytes:
        return bytes(self.files[path].cache)

    def open(self, path: Path, *, create: bool = False) -> Handle:
        if create:
            self.step("create", path)
            content = Content()
            self._change(path.parent, lambda names: names.__setitem__(path, content))
        elif path not in self.files:
            raise FileNotFoundError(path)
        return Handle(self, path, self.files[path])

    def rename(self, source: Path, target: Path) -> None:
        self.step("rename", target)
        content = self.files[source]

        def change(names: dict[Path, Content]) -> None:
            names[target] = content
            names.pop(source, None)

        self._change(target.parent, change)

    def unlink(self, path: Path) -> None:
        self.step("unlink", path)
        self._change(path.parent, lambda names: names.pop(path, None) and None)

    def make_directory(self, path: Path) -> None:
        self.directories.add(path)

    def sync_directory(self, path: Path) -> None:
        self.step("sync", path)
        for change in self._pending.pop(path, ()):
            change(self.platter)

    def lock(self, directory: Path) -> Lock:
        if directory in self.locked:
            raise BlockingIOError(directory)
        self.locked.add(directory)
        return Lock(self, directory)

    # -- what a test does to it

    def kill(self, under: Path) -> None:
        """The processes below `under` are gone, and their locks with them."""
        self.locked = {path for path in self.locked if not path.is_relative_to(under)}

    def power_cut(self, rng: random.Random, keep: float, under: Path = Path("/")) -> None:
        """A random subset of the unsynced pages, and of each directory's unsynced changes a
        random beginning, is kept; with keep=0 nothing unsynced is. `under`: one machine."""
        self.kill(under)
        for directory in [path for path in self._pending if path.is_relative_to(under)]:
            changes = self._pending.pop(directory)
            for change in changes[: rng.randint(0, len(changes)) if keep else 0]:
                change(self.platter)
        mine = {path: file for path, file in self.platter.items() if path.is_relative_to(under)}
        for content in dict.fromkeys(mine.values()):
            content.cut(rng, keep)
        others = {p: file for p, file in self.files.items() if not p.is_relative_to(under)}
        self.files = {**others, **mine}

    def wipe(self, directory: Path) -> None:
        """Another, empty disk."""
        self.kill(directory)
        for names in (self.files, self.platter):
            for path in [path for path in names if path.is_relative_to(directory)]:
                del names[path]
        self._pending.pop(directory, None)
        self.directories.discard(directory)


def kill_at(operation: str, part: str) -> Callable[[str, Path], None]:
    """A hook: SIGKILL before the next such operation on a path that contains `part`."""

    def hook(done: str, path: Path) -> None:
        if done == operation and part in str(path):
            raise Killed

    return hook


class Died(Exception):
    """What a test's fault handler raises where a process would end."""


class RaisingFaults:
    """A FaultHandler; also remembers, in case somebody swallowed it."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, BaseException | None]] = []

    def fatal(self, what: str, error: BaseException | None = None) -> NoReturn:
        self.seen.append((what, error))
        raise Died(what) from error


def indexes(entries: Iterable[tuple[bytes, int, int]]) -> list[int]:
    return [entry[1] for entry in entries]
