"""Publishers: components that are notified of every change of the image."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from raft_metadata.image.metadata_delta import MetadataDelta
from raft_metadata.image.metadata_image import MetadataImage


class MetadataPublisher(Protocol):
    """A component that reacts to a change of the image, on the thread that changed it."""

    def on_metadata_update(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """React to ``delta``, which leads from ``delta.image`` to ``image``.

        Called in the order of the log, for every change, never skipped: the first delta starts from
        the empty image, each later one where the previous one ended. Must not block. An exception
        ends the node, because a publisher that missed a change can't be trusted any more.
        """
        ...


def publish(
    publishers: Iterable[MetadataPublisher], delta: MetadataDelta, image: MetadataImage
) -> None:
    """Notify every publisher, in order."""
    for publisher in publishers:
        publisher.on_metadata_update(delta, image)
