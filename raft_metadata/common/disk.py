"""The port to the file system: every file whose durability counts is read and written through it.

The broker's logs and the controllers' quorum are given a `Disk`; tests replace it by one in memory
that loses its power, fills up and fails (`tests/support/simulated_disk.py`). Paths are strings: ten
thousand partitions hold some each, and a Path costs half a kilobyte. The functions behind the class
replace files atomically, and read and write small files with a checksum.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import shutil
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from raft_metadata.common.errors import CorruptionError, StorageError

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
UNFINISHED_SUFFIX = ".tmp"
"""Suffix of a file that is not renamed to its final name yet. A crash may leave it behind; such a
file is never read."""


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
        except (FileNotFoundError, NotADirectoryError):
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


def replace_file(disk: Disk, path: str, pieces: Iterable[bytes]) -> None:
    """Replace a file durably: write and sync the content, then rename, then sync the directory.

    A crash leaves the old or the new content, never a mixture (rules Q1, Q6).
    """
    place_file(disk, path, pieces, sync=True)
    disk.sync_directory(path.rpartition("/")[0])


def place_file(disk: Disk, path: str, pieces: Iterable[bytes], *, sync: bool) -> None:
    """Write a file under another name and rename it into place.

    Without ``sync`` a later sync of the file and its directory makes it durable.
    """
    unfinished = path + UNFINISHED_SUFFIX
    fd = disk.open(unfinished, create=True)
    try:
        disk.truncate(fd, 0)
        offset = 0
        for piece in pieces:
            disk.write(fd, piece, offset)
            offset += len(piece)
        if sync:
            disk.sync_file(fd)
    finally:
        disk.close(fd)
    disk.rename(unfinished, path)


def with_checksum(body: bytes) -> bytes:
    """Return the bytes of a small file: `body`, and a second line with its crc32."""
    return body + b"\n%d\n" % zlib.crc32(body)


def checked_body(data: bytes, path: str) -> bytes:
    """Return the body in the bytes of such a file; raise CorruptionError naming ``path``."""
    body, _, crc = data.removesuffix(b"\n").rpartition(b"\n")
    if not crc.isdigit() or zlib.crc32(body) != int(crc):
        msg = f"checksum mismatch file={path}"
        raise CorruptionError(msg)
    return body


def write_checked(disk: Disk, path: str, body: bytes) -> None:
    """Replace a small file by `body` with its checksum."""
    replace_file(disk, path, [with_checksum(body)])


def read_checked(disk: Disk, path: str) -> bytes | None:
    """Return the body of a checked file, or None if the file does not exist.

    Raises CorruptionError if the checksum does not match.
    """
    data = disk.read_file(path)
    return None if data is None else checked_body(data, path)


@contextlib.contextmanager
def storage_errors(doing: str, path: str) -> Iterator[None]:
    """Turn an OSError into a StorageError that names the file (exit 74)."""
    try:
        yield
    except OSError as error:
        msg = f"{doing} failed file={path} error={error}"
        raise StorageError(msg) from error
