"""The file operations that logs use, and nothing else: the one place where tests inject faults.

Paths are strings: ten thousand partitions hold some each, and a Path costs half a kilobyte.
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
"""The buffer that `Disk.is_cached` reads into; its content is never used."""
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Error numbers of a full disk, which is not a broken one: the same call may succeed later."""
OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)
"""Error numbers of too many open files, in the process or the machine; not a fault of the disk."""
TRANSIENT_ERRNOS = (*DISK_FULL, *OUT_OF_DESCRIPTORS)
"""Error numbers of calls that may succeed later, without a restart (rule R2, invariant L26)."""


_DESCRIPTORS_KEPT = 64
"""Descriptors reserved for files that are open briefly: small files, directories, the journal."""


def descriptors_for_segments() -> int:
    """Return the number of segments that may be open: three quarters of the process's limit.

    The rest is for connections, which are refused when it is used up.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return sys.maxsize
    return max(soft - soft // 4 - _DESCRIPTORS_KEPT, soft // 4)


@dataclass(slots=True)
class ReadCounts:
    """Bytes that fetches requested from the log files of a broker, by `page_cache` state."""

    cached_bytes: int = 0
    cold_bytes: int = 0


class Disk:
    """Real files. Every method raises OSError; none retries after a failure (rule Q2).

    ``write`` writes everything or raises. A subclass in the tests forgets bytes that were not
    synced, fills up at any byte, and fails any sync.
    """

    def open(self, path: str, *, create: bool = False) -> int:
        """Open a file for reading and writing; ``create`` makes it if it does not exist."""
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return os.open(path, flags, _FILE_MODE)

    def open_directory(self, path: str) -> int:
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    @contextlib.contextmanager
    def directory(self, path: str) -> Iterator[int]:
        """Yield an open descriptor of a directory, closed afterwards."""
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
        """Return up to ``length`` bytes; fewer only at the end of the file (below 2 GiB)."""
        return os.pread(fd, length, position)

    def is_cached(self, fd: int, position: int, length: int) -> bool:
        """Return True if the first and last byte of this range are in the page cache.

        A read of the range then does not wait for the disk. Also True if the system cannot tell.
        """
        try:
            for at in (position, position + length - 1):
                os.preadv(fd, [_one_byte], at, os.RWF_NOWAIT)
        except BlockingIOError:
            return False
        except (OSError, AttributeError):  # this file system, or system, can't tell
            return True
        return True

    def write(self, fd: int, data: bytes | bytearray | memoryview, position: int) -> None:
        """Write all of the data. After an OSError any part may have been written (rule R2)."""
        written = os.pwrite(fd, data, position)
        if written == len(data):
            return
        with memoryview(data) as view:
            while written < len(view):
                written += os.pwrite(fd, view[written:], position + written)

    def truncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def sync_data(self, fd: int) -> None:
        """Sync the data, and the metadata needed to read it back."""
        os.fdatasync(fd)

    def sync_file(self, fd: int) -> None:
        """Sync data and all metadata, a reduced size included."""
        os.fsync(fd)

    def sync_directory(self, path: str) -> None:
        """Sync names that were created, renamed or removed in this directory (rule Q6)."""
        with self.directory(path) as fd:
            self.sync_names(fd)

    def sync_names(self, fd: int) -> None:
        """Sync an open directory as `sync_directory` does, without opening a descriptor."""
        os.fsync(fd)

    def sync_filesystem(self, fd: int) -> None:
        """Sync all files of ``fd``'s filesystem; errors since ``fd`` was opened are reported."""
        if _libc.syncfs(fd) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    def read_file(self, path: str) -> bytes | None:
        """Return the whole file, or None if it does not exist."""
        try:
            return Path(path).read_bytes()
        except FileNotFoundError:
            return None

    def names(self, path: str) -> list[str]:
        """Return the names in a directory, sorted."""
        return sorted(os.listdir(path))  # noqa: PTH208 names, not Paths

    def exists(self, path: str) -> bool:
        return Path(path).exists()

    def make_directory(self, path: str) -> None:
        """Make the directory and its parents, unless they exist."""
        Path(path).mkdir(parents=True, exist_ok=True)

    def rename(self, source: str, target: str) -> None:
        Path(source).replace(target)

    def exchange(self, one: str, other: str) -> None:
        """Exchange the names of two directories, in one step."""
        if not hasattr(_libc, "renameat2"):
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS), one, None, other)
        paths = (_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other))
        if _libc.renameat2(*paths, _RENAME_EXCHANGE) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), one, None, other)

    def unlink(self, path: str) -> None:
        """Remove the file, if it exists."""
        Path(path).unlink(missing_ok=True)

    def remove_tree(self, path: str) -> None:
        shutil.rmtree(path)

    def lock(self, fd: int) -> None:
        """Take the exclusive lock of a file, or raise BlockingIOError (rule Q4)."""
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
