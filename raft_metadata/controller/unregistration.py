"""Removal of a broker from the cluster, which only an operator requests. Pure decider."""

from __future__ import annotations

from itertools import islice

from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import BrokerId, MetadataOffset
from raft_metadata.image.metadata_image import MetadataImage
from raft_metadata.records.admin import Altered, UnregisterBroker
from raft_metadata.records.records import BrokerState, UnregisterBrokerRecord

_NAMED_MAX = 5
"""Partitions that an error names at most, of all that it counts."""


def decide_unregister_broker(
    image: MetadataImage, command: UnregisterBroker
) -> tuple[tuple[UnregisterBrokerRecord, ...], Altered]:
    """Remove a broker's registration and configs; its id may register anew, as a new broker.

    Unlike Kafka's, this refuses a broker that is not fenced: a live process would only register
    again. Raises BROKER_ID_NOT_REGISTERED; POLICY_VIOLATION while it lives or holds a replica.
    """
    broker = image.brokers.get(command.broker_id)
    if broker is None:
        message = f"broker {command.broker_id} is not registered"
        raise KafkaError(ErrorCode.BROKER_ID_NOT_REGISTERED, message)
    held = _held_by(image, command.broker_id)
    if held:
        named = ", ".join(islice(held, _NAMED_MAX))
        more = ", …" if len(held) > _NAMED_MAX else ""
        message = (
            f"broker {command.broker_id} holds {len(held)} replicas ({named}{more}): "
            "drain it of its replicas first"
        )
        raise KafkaError(ErrorCode.POLICY_VIOLATION, message)
    if broker.state is not BrokerState.FENCED:
        message = (
            f"broker {command.broker_id} is {broker.state.value}, not fenced: stop it first, "
            "or it would register again"
        )
        raise KafkaError(ErrorCode.POLICY_VIOLATION, message)
    record = UnregisterBrokerRecord(broker_id=broker.broker_id, broker_epoch=broker.broker_epoch)
    return (record,), Altered(next_offset=MetadataOffset(image.next_offset + 1))


def _held_by(image: MetadataImage, broker_id: BrokerId) -> list[str]:
    """Return the partitions with a replica on the broker, those being added or removed included."""
    return [
        f"{topic.name}-{index}"
        for topic in image.topics.values()
        for index, partition in enumerate(topic.partitions)
        if broker_id in partition.replicas
    ]
