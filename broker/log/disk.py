"""The file operations a log is made of, and nothing else: the one place tests put faults into.

Paths are strings: ten thousand partitions hold some, and a Path costs half a kilobyte.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import resource
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_libc = ctypes.CDLL(None, use_errno=True)
_FILE_MODE = 0o644
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
_one_byte = bytearray(1)
"""What `Disk.is_cached` reads into; nobody looks at it."""
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""The disk is full, not broken: what failed is put back, and may work later."""
OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)
"""Too many open files here, or on the whole machine: says nothing about the disk."""
PASSING = (*DISK_FULL, *OUT_OF_DESCRIPTORS)
"""What is refused now may work later, without a restart (rule R2, invariant L26)."""


_DESCRIPTORS_KEPT = 64
"""For what opens now and then: small files, directories, the journal."""


def descriptors_for_segments() -> int:
    """How many segments may be open: three quarters of what this process may open at all.

    The rest is for connections, which are refused when it is used up.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return sys.maxsize
    return max(soft - soft // 4 - _DESCRIPTORS_KEPT, soft // 4)


@dataclass(slots=True)
class ReadCounts:
    """Bytes that fetches asked the log files of a broker for: see `page_cache`."""

    cached_bytes: int = 0
    cold_bytes: int = 0


class Disk:
    """Real files. Every method raises OSError; none retries what failed (rule Q2).

    ``write`` writes everything or raises. A subclass in the tests forgets what was not synced,
    fills up at any byte, fails any sync.
    """

    def open(self, path: str, *, create: bool = False) -> int:
        """A descriptor for reading and writing; ``create`` makes the file if it is not there."""
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return os.open(path, flags, _FILE_MODE)

    def open_directory(self, path: str) -> int:
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    @contextlib.contextmanager
    def directory(self, path: str) -> Iterator[int]:
        """An open directory, for a while."""
        fd = self.open_directory(path)
        try:
            yield fd
        finally:
            self.close(fd)

    def close(self, fd: int) -> None:
        os.close(fd)

    def size(self, fd: int) -> int:
        return os.fstat(fd).st_size

    def read(self, fd: int, length: int, position: int) -> bytes:
        """Up to ``length`` bytes; fewer at the end of the file only (below 2 GiB)."""
        return os.pread(fd, length, position)

    def is_cached(self, fd: int, position: int, length: int) -> bool:
        """Whether a read of this range, whose ends are looked at, would not wait for the disk."""
        try:
            for at in (position, position + length - 1):
                os.preadv(fd, [_one_byte], at, os.RWF_NOWAIT)
        except BlockingIOError:
            return False
        except (OSError, AttributeError):  # this file system, or system, can't tell: no harm done
            return True
        return True

    def write(self, fd: int, data: bytes | bytearray | memoryview, position: int) -> None:
        """Write all of it. On an OSError any part may have been written (rule R2)."""
        written = os.pwrite(fd, data, position)
        if written == len(data):
            return
        with memoryview(data) as view:
            while written < len(view):
                written += os.pwrite(fd, view[written:], position + written)

    def truncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def sync_data(self, fd: int) -> None:
        """Data, and the metadata needed to read it back."""
        os.fdatasync(fd)

    def sync_file(self, fd: int) -> None:
        """Everything, a shrunk size included."""
        os.fsync(fd)

    def sync_directory(self, path: str) -> None:
        """Names made, renamed or removed in this directory (rule Q6)."""
        with self.directory(path) as fd:
            self.sync_names(fd)

    def sync_names(self, fd: int) -> None:
        """`sync_directory`, of one that is open: needs no descriptor."""
        os.fsync(fd)

    def sync_filesystem(self, fd: int) -> None:
        """All files of the filesystem ``fd`` lies on; errors since ``fd`` was opened are seen."""
        if _libc.syncfs(fd) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    def read_file(self, path: str) -> bytes | None:
        """The whole file, or None where there is none."""
        try:
            return Path(path).read_bytes()
        except FileNotFoundError:
            return None

    def names(self, path: str) -> list[str]:
        """What a directory holds, sorted."""
        return sorted(os.listdir(path))  # noqa: PTH208 names, not Paths

    def exists(self, path: str) -> bool:
        return Path(path).exists()

    def make_directory(self, path: str) -> None:
        """Make it and its parents, unless they exist."""
        Path(path).mkdir(parents=True, exist_ok=True)

    def rename(self, source: str, target: str) -> None:
        Path(source).replace(target)

    def exchange(self, one: str, other: str) -> None:
        """Two directories take each other's names, in one step."""
        if not hasattr(_libc, "renameat2"):
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS), one, None, other)
        paths = (_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other))
        if _libc.renameat2(*paths, _RENAME_EXCHANGE) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), one, None, other)

    def unlink(self, path: str) -> None:
        """Remove the file, if it is there."""
        Path(path).unlink(missing_ok=True)

    def remove_tree(self, path: str) -> None:
        shutil.rmtree(path)

    def lock(self, fd: int) -> None:
        """Take the exclusive lock of a file, or raise BlockingIOError (rule Q4)."""
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
