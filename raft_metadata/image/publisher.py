"""Who is told when the image changes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from raft_metadata.image.metadata_delta import MetadataDelta
from raft_metadata.image.metadata_image import MetadataImage


class MetadataPublisher(Protocol):
    """Reacts to a change of the image, on the thread that changed it."""

    def on_metadata_update(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """``delta`` led from ``delta.image`` to ``image``.

        Called in the order of the log, for every change, never skipped: the first delta starts at
        the empty image, each later one where the last one ended. Must not block; what it raises
        ends the node, because a publisher that missed a change can't be trusted any more.
        """
        ...


def publish(
    publishers: Iterable[MetadataPublisher], delta: MetadataDelta, image: MetadataImage
) -> None:
    """Tell every publisher, in order."""
    for publisher in publishers:
        publisher.on_metadata_update(delta, image)
