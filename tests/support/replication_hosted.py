"""A simulated broker as the product's own services find it: its clock, its one replica."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.support.replication_controller import HERE

if TYPE_CHECKING:
    from broker.replication.partition import Partition
    from raft_metadata.common.ids import BrokerEpoch
    from raft_metadata.image.metadata_image import MetadataImage
    from tests.support.replication_broker import Broker


class Clock:
    """A broker's clocks: the world's time, and the wall clock off by what it was set to."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def monotonic_ms(self) -> int:
        return self._broker.world.now_ms

    def wall_ms(self) -> int:
        return self._broker.world.now_ms + self._broker.skew_ms


class Hosted:
    """A `ReplicaManager` and the one `Replica` that it has, in one."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.events = self

    @property
    def partition(self) -> Partition:
        assert self._broker.partition is not None
        return self._broker.partition

    @property
    def log(self) -> Any:
        return self._broker.store.log

    @property
    def image(self) -> MetadataImage:
        return self._broker.image

    @property
    def broker_epoch(self) -> BrokerEpoch | None:
        return self._broker.broker_epoch

    def replica(self, place: object) -> Hosted | None:
        here = self._broker.partition is not None and self._broker.store.log is not None
        return self if here and place == HERE else None

    def replicas(self) -> list[Hosted]:
        return [self] if self.replica(HERE) else []

    def log_start_moved(self, _place: object) -> None:
        """Followers hear of it with the next push."""

    def note(self, *_args: object, **_facts: object) -> None:
        """Events are judged where they happen."""
