"""A node's folder: durable small files, its identity (``meta.json``) and its lock.

One process, one folder, one identity (rule Q4). Folders are formatted by ``up``: for a new cluster,
an added broker, or a broker whose folder is lost (with a new directory id, so that it does not
count as the old replica, rule R6). A node without ``meta.json`` refuses to start.
"""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import dataclass
from pathlib import Path

from http_api.node.exits import EXIT_LOCKED, EXIT_STORAGE, NodeExit
from raft_metadata.common.disk import Disk, replace_file
from raft_metadata.common.ids import ClusterId, DirectoryId, NodeId


def make_directory(path: Path) -> None:
    """Create ``path`` with its parents; each new name is durable when this returns."""
    missing = [folder for folder in reversed((path, *path.parents)) if not folder.exists()]
    for folder in missing:
        folder.mkdir(exist_ok=True)
        Disk().sync_directory(str(folder.parent))


META_FILE = "meta.json"
CONFIG_FILE = "config.toml"
PID_FILE = "node.pid"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeMeta:
    """The identity of a folder. A new disk has a new ``directory_id``."""

    cluster_id: ClusterId
    node_id: NodeId
    directory_id: DirectoryId


class FolderLock:
    """An exclusive flock, held while the object lives; the file contains the holder's pid.

    The kernel releases it when the process ends, so a crash never leaves one behind.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    def acquire(self, what: str) -> None:
        """Take the lock, or exit with 75 and the holder's pid."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        try:
            descriptor = os.open(self._path, flags, 0o644)
        except OSError as error:
            msg = f"can't open {self._path}: {error.strerror}"
            raise NodeExit(EXIT_STORAGE, msg) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(descriptor)
            msg = f"{what} is locked by a running process, pid {holder} ({self._path})"
            raise NodeExit(EXIT_LOCKED, msg) from error
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        self._descriptor = descriptor

    def release(self) -> None:
        """Release the lock; the file remains, empty."""
        if self._descriptor is not None:
            os.ftruncate(self._descriptor, 0)
            os.close(self._descriptor)
            self._descriptor = None


def format_folder(folder: Path, meta: NodeMeta, config_text: str) -> None:
    """Create the folder of a node; ``meta.json`` is written last and makes the folder valid."""
    make_directory(folder)
    replace_file(Disk(), str(folder / CONFIG_FILE), [config_text.encode()])
    write_meta(folder, meta)


def write_meta(folder: Path, meta: NodeMeta) -> None:
    """Write the identity of an existing folder."""
    content = {
        "cluster_id": meta.cluster_id,
        "node_id": meta.node_id,
        "directory_id": meta.directory_id,
    }
    text = json.dumps(content, indent=2).encode() + b"\n"
    replace_file(Disk(), str(folder / META_FILE), [text])


def read_meta(folder: Path, cluster_id: ClusterId, node_id: NodeId) -> NodeMeta:
    """Return the folder's identity; exit 74 if missing, damaged or another node's (rule Q4)."""
    path = folder / META_FILE
    try:
        content = json.loads(path.read_bytes())
        meta = NodeMeta(
            cluster_id=ClusterId(str(content["cluster_id"])),
            node_id=NodeId(int(content["node_id"])),
            directory_id=DirectoryId(str(content["directory_id"])),
        )
    except FileNotFoundError:
        msg = f"{path} is missing: this folder was never formatted, or its disk is gone"
        raise NodeExit(EXIT_STORAGE, msg, is_damage=True) from None
    except OSError as error:
        msg = f"can't read {path}: {error.strerror}"
        raise NodeExit(EXIT_STORAGE, msg) from error
    except (ValueError, KeyError, TypeError):
        msg = f"{path} is damaged: expected cluster_id, node_id and directory_id"
        raise NodeExit(EXIT_STORAGE, msg, is_damage=True) from None
    if meta.cluster_id != cluster_id:
        msg = f"{path} belongs to cluster {meta.cluster_id}, the configuration says {cluster_id}"
        raise NodeExit(EXIT_STORAGE, msg)
    if meta.node_id != node_id:
        msg = f"{path} belongs to node {meta.node_id}, the configuration says {node_id}"
        raise NodeExit(EXIT_STORAGE, msg)
    return meta
