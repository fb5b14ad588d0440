"""Small files that survive a power cut: written beside the old one, synced, renamed, synced."""

from __future__ import annotations

import os
from pathlib import Path


def sync_directory(path: Path) -> None:
    """Make the names inside ``path`` durable (rule Q6)."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_durably(path: Path, content: bytes) -> None:
    """Replace ``path`` as a whole: a reader and a power cut see the old bytes or the new ones."""
    aside = path.with_name(path.name + ".new")
    with aside.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)
    sync_directory(path.parent)


def make_directory(path: Path) -> None:
    """Create ``path`` with its parents; each new name is durable when this returns."""
    missing = [folder for folder in reversed((path, *path.parents)) if not folder.exists()]
    for folder in missing:
        folder.mkdir(exist_ok=True)
        sync_directory(folder.parent)
