"""The file operations that durability rests on, behind one port, so that a test can cut the power.

Nothing in this folder touches a file in another way. Every method may raise OSError.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol

from raft_metadata.common.errors import CorruptionError, StorageError

NEW_SUFFIX = ".new"
"""A file that has not got its name yet. Left over after a crash; never read."""


class FileHandle(Protocol):
    """One open file. Owned by one thread."""

    def pwrite(self, data: bytes, offset: int) -> None:
        """Write all of `data` or raise."""
        ...

    def pread(self, size: int, offset: int) -> bytes:
        """Up to `size` bytes; fewer only at the end of the file."""
        ...

    def sync(self) -> None:
        """The content is on disk afterwards. After an error it must never be believed (rule Q2)."""
        ...

    def close(self) -> None:
        """Close; a lock held by the handle goes with it."""
        ...


class Files(Protocol):
    """A file system."""

    def exists(self, path: Path) -> bool:
        """Whether there is a file or directory of this name."""
        ...

    def names(self, directory: Path) -> list[str]:
        """Names in a directory, sorted."""
        ...

    def read(self, path: Path) -> bytes:
        """The whole file."""
        ...

    def open(self, path: Path, *, create: bool = False) -> FileHandle:
        """Open for reading and writing; `create` makes it, or empties it."""
        ...

    def rename(self, source: Path, target: Path) -> None:
        """Give a file a name, replacing what had it."""
        ...

    def unlink(self, path: Path) -> None:
        """Remove a name."""
        ...

    def make_directory(self, path: Path) -> None:
        """Make a directory; its parent must exist. One that exists already is fine."""
        ...

    def sync_directory(self, path: Path) -> None:
        """Names given and removed in the directory are on disk afterwards (rule Q6)."""
        ...

    def lock(self, directory: Path) -> FileHandle:
        """Hold the directory for this process; BlockingIOError where another one holds it."""
        ...


class _DiskHandle:
    def __init__(self, fd: int, *, sync: bool) -> None:
        self._fd = fd
        self._sync = sync

    def pwrite(self, data: bytes, offset: int) -> None:
        view = memoryview(data)
        while view:
            written = os.pwrite(self._fd, view, offset)
            view, offset = view[written:], offset + written

    def pread(self, size: int, offset: int) -> bytes:
        return os.pread(self._fd, size, offset)

    def sync(self) -> None:
        if self._sync:
            os.fdatasync(self._fd)

    def close(self) -> None:
        os.close(self._fd)


class DiskFiles:
    """The real file system. ``sync=False`` is for tests that do not judge durability."""

    def __init__(self, *, sync: bool = True) -> None:
        self._sync = sync

    def exists(self, path: Path) -> bool:
        """See `Files`."""
        return path.exists()

    def names(self, directory: Path) -> list[str]:
        """See `Files`."""
        return sorted(entry.name for entry in directory.iterdir())

    def read(self, path: Path) -> bytes:
        """See `Files`."""
        return path.read_bytes()

    def open(self, path: Path, *, create: bool = False) -> FileHandle:
        """See `Files`."""
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT | os.O_TRUNC if create else 0)
        return _DiskHandle(os.open(path, flags, 0o644), sync=self._sync)

    def rename(self, source: Path, target: Path) -> None:
        """See `Files`."""
        source.rename(target)

    def unlink(self, path: Path) -> None:
        """See `Files`."""
        path.unlink()

    def make_directory(self, path: Path) -> None:
        """See `Files`."""
        path.mkdir(exist_ok=True)

    def sync_directory(self, path: Path) -> None:
        """See `Files`."""
        if not self._sync:
            return
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def lock(self, directory: Path) -> FileHandle:
        """See `Files`."""
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            raise
        return _DiskHandle(fd, sync=self._sync)


def replace_file(files: Files, path: Path, pieces: Iterable[bytes]) -> None:
    """Durable content first, then the name, then the directory (rules Q1, Q6)."""
    new = path.with_name(path.name + NEW_SUFFIX)
    handle = files.open(new, create=True)
    try:
        offset = 0
        for piece in pieces:
            handle.pwrite(piece, offset)
            offset += len(piece)
        handle.sync()
    finally:
        handle.close()
    files.rename(new, path)
    files.sync_directory(path.parent)


def write_checked(files: Files, path: Path, body: bytes) -> None:
    """Replace a small file by one line of `body` and its crc32."""
    replace_file(files, path, [body + b"\n%d\n" % zlib.crc32(body)])


def read_checked(files: Files, path: Path) -> bytes | None:
    """The body, None where there is no such file, CorruptionError where it can't be trusted."""
    if not files.exists(path):
        return None
    body, _, crc = files.read(path).removesuffix(b"\n").rpartition(b"\n")
    if not crc.isdigit() or zlib.crc32(body) != int(crc):
        msg = f"checksum mismatch file={path}"
        raise CorruptionError(msg)
    return body


@contextlib.contextmanager
def storage_errors(doing: str, path: Path) -> Iterator[None]:
    """Turn the system's error into ours, which names the file (exit 74)."""
    try:
        yield
    except OSError as error:
        msg = f"{doing} failed file={path} error={error}"
        raise StorageError(msg) from error
