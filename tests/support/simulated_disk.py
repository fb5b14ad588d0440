"""A disk in memory that forgets what was not synced, page by page, and fails on demand.

The power-loss stand-in (rules, K): it works at 4 KiB pages, remembers what was synced across
restarts of the process, and treats directory entries like data. It is unkind on purpose: of the
unsynced pages and names any subset survives, in any order; but a rename happened or did not, as
every journaling file system promises, also one of a directory. A failed sync loses its pages and
leaves the cache looking clean, as Linux does.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from typing_extensions import override

from broker.log.disk import Disk

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

PAGE = 4096


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

    def lose(self, rng: Random) -> None:
        """The power goes: each dirty page is on the disk or not, and so is the size."""
        size = rng.choice((len(self.cache), len(self.durable)))
        content = bytearray(self.durable[:size])
        content.extend(bytes(size - len(content)))
        for page in self.dirty:
            if rng.random() < 0.5:
                new = self.cache[page * PAGE : page * PAGE + PAGE]
                end = min(page * PAGE + len(new), size)
                if end > page * PAGE:
                    content[page * PAGE : end] = new[: end - page * PAGE]
        self.cache, self.durable = content, bytearray(content)
        self.dirty.clear()


class SimulatedDisk(Disk):
    """Files by path. One process at a time; `kill` and `cut_power` end its life."""

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

    def kill(self) -> None:
        """SIGKILL: descriptors and locks go, the page cache stays."""
        self.descriptors.clear()
        self.locked.clear()
        self.before = None
        self.room = None

    def cut_power(self, rng: Random) -> None:
        self.kill()
        for pair in list(self.moved):
            self._settle_move(pair, happened=rng.random() < 0.5)
        for one, other in self.exchanged:
            self._swap(self.synced if rng.random() < 0.5 else self.live, one, other)
        self.exchanged.clear()
        names: dict[str, Inode | None] = {}
        coins: dict[str, bool] = {}
        for source, target in self.renames:
            coins[source] = coins[target] = coins.get(source, coins.get(target, rng.random() < 0.5))
        self.renames.clear()
        for path in sorted({*self.live, *self.synced}):
            versions = [names_of[path] for names_of in (self.live, self.synced) if path in names_of]
            if len(versions) == 2 and versions[0] is versions[1]:
                names[path] = versions[0]
            elif coins[path] if path in coins else rng.random() < 0.5:
                if path in self.live:
                    names[path] = self.live[path]
            elif path in self.synced:
                names[path] = self.synced[path]
        self.live = {
            path: inode
            for path, inode in names.items()
            if all(parent in names for parent in self._parents(path))
        }
        for inode in dict.fromkeys(inode for inode in self.live.values() if inode):
            inode.lose(rng)
        self.synced = dict(self.live)

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
        """Let the next such call on a path that contains ``path`` raise, if ``allowed`` then.

        A sync that fails loses its pages.
        """

        def check(called: str, on: str) -> None:
            if called == operation and path in on and allowed():
                self.before = None
                if operation.startswith("sync"):
                    for name, inode in self.live.items():
                        if inode and (name == on or operation == "sync_filesystem"):
                            inode.dirty.clear()
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

    @override
    def sync_data(self, fd: int) -> None:
        self._call("sync_data", self.descriptors[fd][0])
        self._inode(fd).sync()

    @override
    def sync_file(self, fd: int) -> None:
        self._call("sync_file", self.descriptors[fd][0])
        self._inode(fd).sync()

    @override
    def sync_directory(self, path: str) -> None:
        self._call("sync_directory", path)
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
        self._call("sync_filesystem", self.descriptors[fd][0])
        for inode in self.live.values():
            if inode:
                inode.sync()
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
