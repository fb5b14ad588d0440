"""A disk in memory that forgets what was not synced, page by page, and fails on demand.

The power-loss stand-in (rules, K) of every simulated world, and of the tests of logs and voters: it
works at 4 KiB pages, remembers what was synced across restarts of the process, and treats directory
entries like data. It is unkind on purpose: of the unsynced pages and names any subset survives, in
any order; but a rename happened or did not, as every journaling file system promises, also one of a
directory. A failed sync loses its pages and leaves the cache looking clean, as Linux does.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from typing_extensions import override

from raft_metadata.common.disk import Disk

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

PAGE = 4096


class Killed(BaseException):
    """SIGKILL at this call. Not an Exception: no code may handle it."""


class Inode:
    """One file: what a process reads, what is on the platters, and which pages differ."""

    def __init__(self) -> None:
        self.cache = bytearray()
        self.durable = bytearray()
        self.dirty: set[int] = set()

    def write(self, data: bytes, position: int) -> None:
        if position > len(self.cache):
            self.cache.extend(bytes(position - len(self.cache)))
        self.cache[position : position + len(data)] = data
        self.dirty.update(range(position // PAGE, (position + len(data) - 1) // PAGE + 1))

    def sync(self) -> None:
        size = len(self.cache)
        del self.durable[size:]
        self.durable.extend(bytes(size - len(self.durable)))
        for page in self.dirty:
            self.durable[page * PAGE : page * PAGE + PAGE] = self.cache[
                page * PAGE : page * PAGE + PAGE
            ]
        del self.durable[size:]
        self.dirty.clear()

    def lose(self, rng: Random, keep: float | None) -> None:
        """The power goes: each dirty page is on the disk or not, and so is the size."""
        sizes = (len(self.cache), len(self.durable))
        size = rng.choice(sizes) if keep is None else sizes[rng.random() >= keep]
        content = bytearray(self.durable[:size])
        content.extend(bytes(size - len(content)))
        for page in self.dirty:
            if rng.random() < (0.5 if keep is None else keep):
                new = self.cache[page * PAGE : page * PAGE + PAGE]
                end = min(page * PAGE + len(new), size)
                if end > page * PAGE:
                    content[page * PAGE : end] = new[: end - page * PAGE]
        self.cache, self.durable = content, bytearray(content)
        self.dirty.clear()


class SimulatedDisk(Disk):
    """Files by path, of one process or of several machines with a directory each.

    `kill` and `cut_power` end the life of all, or of those below a directory. `before(operation,
    path)` runs before each call that changes something; it may raise OSError or `Killed`.
    """

    def __init__(self) -> None:
        self.live: dict[str, Inode | None] = {}  # None: a directory
        self.synced: dict[str, Inode | None] = {}
        self.descriptors: dict[int, tuple[str, Inode | None]] = {}
        self.locked: set[str] = set()
        self.next_descriptor = 1000
        self.room: int | None = None
        self.before: Callable[[str, str], None] | None = None
        self.calls: list[tuple[str, str]] = []
        self.renames: list[tuple[str, str]] = []
        """Of files, since their directory was synced."""
        self.moved: dict[tuple[str, str], set[str]] = {}
        """Directories (from, to), and which directories are still to be synced for it to last."""

        self.exchanged: dict[tuple[str, str], set[str]] = {}
        """Directories that took each other's names, as ``moved``."""

    # faults

    def kill(self, under: str = "") -> None:
        """SIGKILL: descriptors and locks go, the page cache stays.

        If all are killed, the faults end too.
        """
        self.descriptors = {
            fd: opened for fd, opened in self.descriptors.items() if not _is_in(opened[0], under)
        }
        self.locked = {path for path in self.locked if not _is_in(path, under)}
        if not under:
            self.before = None
            self.room = None

    def cut_power(self, rng: Random, keep: float | None = None, under: str = "") -> None:
        """Kill, and lose what was not synced, on all machines or on the one with this directory.

        `keep` is the chance of each page and name to survive; an even one if it is None. (Sizes are
        drawn in two ways for the sake of the kept seeds: each is a list of draws.)
        """
        self.kill(under)
        chance = 0.5 if keep is None else keep
        for pair in [pair for pair in self.moved if _is_in(pair[0], under)]:
            self._settle_move(pair, happened=rng.random() < chance)
        for one, other in [pair for pair in self.exchanged if _is_in(pair[0], under)]:
            del self.exchanged[one, other]
            self._swap(self.synced if rng.random() < chance else self.live, one, other)
        names: dict[str, Inode | None] = {}
        coins: dict[str, bool] = {}
        for source, target in [pair for pair in self.renames if _is_in(pair[0], under)]:
            self.renames.remove((source, target))
            happened = coins.get(source, coins.get(target, rng.random() < chance))
            coins[source] = coins[target] = happened
        for path in sorted(path for path in {*self.live, *self.synced} if _is_in(path, under)):
            versions = [names_of[path] for names_of in (self.live, self.synced) if path in names_of]
            if len(versions) == 2 and versions[0] is versions[1]:
                names[path] = versions[0]
            elif coins[path] if path in coins else rng.random() < chance:
                if path in self.live:
                    names[path] = self.live[path]
            elif path in self.synced:
                names[path] = self.synced[path]
        left = {
            path: inode
            for path, inode in names.items()
            if all(parent in names or not _is_in(parent, under) for parent in self._parents(path))
        }
        for inode in dict.fromkeys(inode for inode in left.values() if inode):
            inode.lose(rng, keep)
        for of_all in (self.live, self.synced):
            for path in [path for path in of_all if _is_in(path, under)]:
                del of_all[path]
            of_all.update(left)

    def wipe(self, under: str) -> None:
        """Put another, empty disk in the place of this directory."""
        self.kill(under)
        for names in (self.live, self.synced):
            for path in [path for path in names if _is_in(path, under)]:
                del names[path]
        self.renames = [pair for pair in self.renames if not _is_in(pair[0], under)]

    def file(self, path: str) -> Inode:
        """Return the file as processes see it."""
        inode = self.live[path]
        assert inode is not None, path
        return inode

    def _settle_move(self, pair: tuple[str, str], *, happened: bool) -> None:
        """A directory stands in one place with all that is in it, in the other with nothing."""
        del self.moved[pair]
        source, target = pair
        old, new, names = (source, target, self.synced) if happened else (target, source, self.live)
        for name in [name for name in names if name == old or name.startswith(old + "/")]:
            names[new + name[len(old) :]] = names.pop(name)
        if happened and target in self.live:
            self.synced[target] = self.live[target]

    @staticmethod
    def _swap(names: dict[str, Inode | None], one: str, other: str) -> None:
        inside = {name: names.pop(name) for name in list(names) if name.startswith(one + "/")}
        for name in [name for name in names if name.startswith(other + "/")]:
            names[one + name[len(other) :]] = names.pop(name)
        names.update({other + name[len(one) :]: inode for name, inode in inside.items()})

    def fail_once(
        self,
        operation: str,
        number: int = errno.EIO,
        path: str = "",
        allowed: Callable[[], bool] = lambda: True,
    ) -> None:
        """Let the next such call on a path that contains ``path`` raise, if ``allowed`` then."""

        def check(called: str, on: str) -> None:
            if called == operation and path in on and allowed():
                self.before = None
                raise OSError(number, os.strerror(number))

        self.before = check

    def _call(self, operation: str, path: str) -> None:
        self.calls.append((operation, path))
        if self.before is not None:
            self.before(operation, path)

    @staticmethod
    def _parents(path: str) -> list[str]:
        parts = path.strip("/").split("/")
        return ["/" + "/".join(parts[:n]) for n in range(1, len(parts))]

    def _inode(self, fd: int) -> Inode:
        inode = self.descriptors[fd][1]
        assert inode is not None
        return inode

    # Disk

    @override
    def open(self, path: str, *, create: bool = False) -> int:
        if path not in self.live:
            if not create:
                raise FileNotFoundError(errno.ENOENT, "no such file", path)
            self._call("create", path)
            self.live[path] = Inode()
        self.next_descriptor += 1
        self.descriptors[self.next_descriptor] = (path, self.live[path])
        return self.next_descriptor

    @override
    def open_directory(self, path: str) -> int:
        self.next_descriptor += 1
        self.descriptors[self.next_descriptor] = (path, None)
        return self.next_descriptor

    @override
    def close(self, fd: int) -> None:
        if fd not in self.descriptors:  # of a process that was killed
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        path, _ = self.descriptors.pop(fd)
        self.locked.discard(path)

    @override
    def size(self, fd: int) -> int:
        return len(self._inode(fd).cache)

    @override
    def read(self, fd: int, length: int, position: int) -> bytes:
        return bytes(self._inode(fd).cache[position : position + length])

    @override
    def is_cached(self, fd: int, position: int, length: int) -> bool:
        return True

    @override
    def write(self, fd: int, data: bytes | bytearray | memoryview, position: int) -> None:
        self._call("write", self.descriptors[fd][0])
        whole = bytes(data)
        if self.room is not None and len(whole) > self.room:
            if self.room:
                self._inode(fd).write(whole[: self.room], position)
            self.room = 0
            raise OSError(errno.ENOSPC, "no space left on device")
        if self.room is not None:
            self.room -= len(whole)
        if whole:
            self._inode(fd).write(whole, position)

    @override
    def truncate(self, fd: int, size: int) -> None:
        self._call("truncate", self.descriptors[fd][0])
        inode = self._inode(fd)
        del inode.cache[size:]
        if size % PAGE:
            inode.dirty.add(size // PAGE)
        inode.dirty = {page for page in inode.dirty if page * PAGE < size}

    def _sync(self, operation: str, fd: int, inodes: list[Inode]) -> None:
        try:
            self._call(operation, self.descriptors[fd][0])
        except OSError:
            for inode in inodes:
                inode.dirty.clear()  # as Linux: clean now, and not on the disk
            raise
        for inode in inodes:
            inode.sync()

    @override
    def sync_data(self, fd: int) -> None:
        self._sync("sync_data", fd, [self._inode(fd)])

    @override
    def sync_file(self, fd: int) -> None:
        self._sync("sync_file", fd, [self._inode(fd)])

    @override
    def sync_directory(self, path: str) -> None:
        self._call("sync_directory", path)
        path = path.rstrip("/")
        self.renames = [pair for pair in self.renames if pair[1].rpartition("/")[0] != path]
        for pair, waited_for in list(self.moved.items()):
            waited_for.discard(path)
            if not waited_for:
                self._settle_move(pair, happened=True)
        for pair, waited_for in list(self.exchanged.items()):
            waited_for.discard(path)
            if not waited_for:
                del self.exchanged[pair]
                self._swap(self.synced, *pair)
        on_their_way = {name for pair in self.moved for name in pair}
        inside = [
            name
            for name in {*self.live, *self.synced} - on_their_way
            if name.rpartition("/")[0] == path
        ]
        for name in inside:
            if name in self.live:
                self.synced[name] = self.live[name]
            else:
                del self.synced[name]

    @override
    def sync_names(self, fd: int) -> None:
        SimulatedDisk.sync_directory(self, self.descriptors[fd][0])

    @override
    def sync_filesystem(self, fd: int) -> None:
        self._sync("sync_filesystem", fd, [inode for inode in self.live.values() if inode])
        self.synced = dict(self.live)
        self.renames.clear()
        self.moved.clear()
        self.exchanged.clear()

    @override
    def read_file(self, path: str) -> bytes | None:
        inode = self.live.get(path)
        return None if inode is None else bytes(inode.cache)

    @override
    def names(self, path: str) -> list[str]:
        depth = len(path) + 1
        return sorted(name[depth:] for name in self.live if name.rpartition("/")[0] == path)

    @override
    def exists(self, path: str) -> bool:
        return path in self.live

    @override
    def make_directory(self, path: str) -> None:
        self._call("make_directory", path)
        for name in [*self._parents(path), path]:
            self.live.setdefault(name, None)

    @override
    def rename(self, source: str, target: str) -> None:
        self._call("rename", source)
        if self.live[source] is None:  # what a directory holds goes with it
            for name in [name for name in self.live if name.startswith(source + "/")]:
                self.live[target + name[len(source) :]] = self.live.pop(name)
            parents = {name.rpartition("/")[0] for name in (source, target)}
            self.moved[source, target] = parents
        self.live[target] = self.live.pop(source)
        if self.live[target] is not None:
            self.renames.append((source, target))

    @override
    def exchange(self, one: str, other: str) -> None:
        self._call("exchange", one)
        self._swap(self.live, one, other)
        self.exchanged[one, other] = {name.rpartition("/")[0] for name in (one, other)}

    @override
    def unlink(self, path: str) -> None:
        self._call("unlink", path)
        self.live.pop(path, None)

    @override
    def remove_tree(self, path: str) -> None:
        for name in [name for name in self.live if name == path or name.startswith(path + "/")]:
            del self.live[name]

    @override
    def lock(self, fd: int) -> None:
        path = self.descriptors[fd][0]
        if path in self.locked:
            raise BlockingIOError(errno.EWOULDBLOCK, "locked", path)
        self.locked.add(path)


def _is_in(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory + "/")


def kill_at(operation: str, part: str) -> Callable[[str, str], None]:
    """Return what `before` may be: SIGKILL at the next such call on a path with this part."""

    def before(called: str, path: str) -> None:
        if called.startswith(operation) and part in path:
            raise Killed

    return before
