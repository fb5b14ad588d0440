"""File operations that durability depends on, behind one port that tests replace.

Every file access of the quorum passes through `Files`; `DiskFiles` is the real implementation, and
tests have one that simulates a power loss. Every method may raise OSError. The functions at the end
replace files atomically and read or write small files with a checksum.
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
"""Suffix of a file that is not renamed to its final name yet. A crash may leave it behind; such a
file is never read."""


class FileHandle(Protocol):
    """An open file. Owned by one thread."""

    def pwrite(self, data: bytes, offset: int) -> None:
        """Write all of `data` or raise."""
        ...

    def pread(self, size: int, offset: int) -> bytes:
        """Return up to `size` bytes from `offset`; fewer only at the end of the file."""
        ...

    def sync(self) -> None:
        """Make the content durable. After an error the content must never be trusted (rule Q2)."""
        ...

    def close(self) -> None:
        """Close the file and release a lock that the handle holds."""
        ...


class Files(Protocol):
    """A port to a file system."""

    def exists(self, path: Path) -> bool:
        """Return whether a file or directory of this name exists."""
        ...

    def names(self, directory: Path) -> list[str]:
        """Return the names in a directory, sorted."""
        ...

    def read(self, path: Path) -> bytes:
        """Return the content of the file."""
        ...

    def open(self, path: Path, *, create: bool = False) -> FileHandle:
        """Open a file for reading and writing; `create` creates it, or empties an existing one."""
        ...

    def rename(self, source: Path, target: Path) -> None:
        """Rename a file, replacing `target` if it exists."""
        ...

    def unlink(self, path: Path) -> None:
        """Remove a name."""
        ...

    def make_directory(self, path: Path) -> None:
        """Create a directory unless it exists; its parent must exist."""
        ...

    def sync_directory(self, path: Path) -> None:
        """Make names created and removed in the directory durable (rule Q6)."""
        ...

    def lock(self, directory: Path) -> FileHandle:
        """Lock the directory for this process.

        Raises BlockingIOError if another process holds it.
        """
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
    """The real file system. ``sync=False`` is for tests that do not check durability."""

    def __init__(self, *, sync: bool = True) -> None:
        self._sync = sync

    def exists(self, path: Path) -> bool:
        """Return whether a file or directory of this name exists."""
        return path.exists()

    def names(self, directory: Path) -> list[str]:
        """Return the names in a directory, sorted."""
        return sorted(entry.name for entry in directory.iterdir())

    def read(self, path: Path) -> bytes:
        """Return the content of the file."""
        return path.read_bytes()

    def open(self, path: Path, *, create: bool = False) -> FileHandle:
        """Open a file for reading and writing; `create` creates it, or empties an existing one."""
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT | os.O_TRUNC if create else 0)
        return _DiskHandle(os.open(path, flags, 0o644), sync=self._sync)

    def rename(self, source: Path, target: Path) -> None:
        """Rename a file, replacing `target` if it exists."""
        source.rename(target)

    def unlink(self, path: Path) -> None:
        """Remove a name."""
        path.unlink()

    def make_directory(self, path: Path) -> None:
        """Create a directory unless it exists; its parent must exist."""
        path.mkdir(exist_ok=True)

    def sync_directory(self, path: Path) -> None:
        """Make names created and removed in the directory durable (rule Q6)."""
        if not self._sync:
            return
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def lock(self, directory: Path) -> FileHandle:
        """Lock the directory for this process.

        Raises BlockingIOError if another process holds it.
        """
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            raise
        return _DiskHandle(fd, sync=self._sync)


def replace_file(files: Files, path: Path, pieces: Iterable[bytes]) -> None:
    """Replace a file durably: write and sync the content, then rename, then sync the directory.

    A crash leaves the old or the new content, never a mixture (rules Q1, Q6).
    """
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
    """Replace a small file by `body` and a second line with its crc32."""
    replace_file(files, path, [body + b"\n%d\n" % zlib.crc32(body)])


def read_checked(files: Files, path: Path) -> bytes | None:
    """Return the body of a checked file, or None if the file does not exist.

    Raises CorruptionError if the checksum does not match.
    """
    if not files.exists(path):
        return None
    body, _, crc = files.read(path).removesuffix(b"\n").rpartition(b"\n")
    if not crc.isdigit() or zlib.crc32(body) != int(crc):
        msg = f"checksum mismatch file={path}"
        raise CorruptionError(msg)
    return body


@contextlib.contextmanager
def storage_errors(doing: str, path: Path) -> Iterator[None]:
    """Turn an OSError into a StorageError that names the file (exit 74)."""
    try:
        yield
    except OSError as error:
        msg = f"{doing} failed file={path} error={error}"
        raise StorageError(msg) from error
