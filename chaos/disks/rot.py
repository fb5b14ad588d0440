"""Damage to a replica's file under a running broker: one flipped bit."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def flip_a_bit(data_dir: Path, broker: int, topic: str, partition: int, part: float) -> str:
    """Flip a bit in the broker's first segment, at `part` of its length; return a description.

    The page cache holds the change at once, so the next read of that place returns it.
    """
    folder = data_dir / f"broker-{broker}" / "log" / f"{topic}-{partition}"
    segment = min(folder.glob("*.log"))
    at = int(segment.stat().st_size * part)
    with segment.open("r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 1]))
    return f"{segment.name} of {folder.name} on broker {broker}, byte {at}: {byte} is {byte ^ 1}"
