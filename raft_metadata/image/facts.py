"""The metadata log as readable facts: each record with its place, topic names and previous values.

A fact is a plain object: ``{"offset", "epoch", "time", "type", …the record's fields}``. Facts of a
snapshot have null as offset, epoch and time, and also ``"snapshot": true``. Salts and keys of users
are secrets and are left out. The HTTP API and the command line show facts to operators.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import orjson

from raft_metadata.common.ids import BrokerId, PartitionId, TopicId
from raft_metadata.image.metadata_image import MetadataImage
from raft_metadata.image.snapshot import image_records
from raft_metadata.records.commands import MetadataBatch
from raft_metadata.records.records import (
    BrokerRegistrationChangeRecord,
    BrokerState,
    ConfigRecord,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    ResourceType,
    TopicRecord,
)
from raft_metadata.records.serde import encode_record

Fact = dict[str, Any]

SECRETS = frozenset({"salt", "stored_key", "server_key"})
_REMEMBERED = ("leader", "leader_epoch", "isr", "elr", "replicas", "adding", "removing")


def iso_time(time_ms: int) -> str:
    """Return ``2026-11-21T12:01:07.123Z`` for milliseconds since 1970."""
    moment = datetime.fromtimestamp(time_ms / 1000, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{time_ms % 1000:03d}Z"


class FactConverter:
    """A converter of batches to facts, in the order of the log. Owned by one reader.

    ``names`` is any later image; it gives the names of topics whose creation is not among the
    batches. ``before`` is the image that the first batch changes, if it is known; without it,
    previous values are known only from batches that were converted already.
    """

    def __init__(self, names: MetadataImage, before: MetadataImage | None = None) -> None:
        self._names = names
        self._image = before
        self._topics: dict[str, str] = {}
        self._partitions: dict[tuple[str, int], Fact] = {}
        self._brokers: dict[int, str] = {}
        self._configs: dict[tuple[str, str, str], str | None] = {}

    def batch_facts(self, batch: MetadataBatch) -> Iterator[Fact]:
        """Yield the facts of a batch."""
        time = iso_time(batch.time_ms)
        for at, record in enumerate(batch.records):
            head = {"offset": batch.base_offset + at, "epoch": batch.epoch, "time": time}
            yield head | self._fields(record)

    def snapshot_facts(self, image: MetadataImage) -> Iterator[Fact]:
        """Yield the facts of an image, which replace the log below its offset; first the head."""
        head: Fact = {"offset": None, "epoch": None, "time": None, "snapshot": True}
        yield head | {
            "type": "snapshot",
            "next_offset": image.next_offset,
            "controller_epoch": image.epoch,
        }
        for record in image_records(image):
            yield head | self._fields(record)

    def _fields(self, record: MetadataRecord) -> Fact:
        source: Fact = orjson.loads(encode_record(record))
        del source["v"]
        fields = {name: value for name, value in source.items() if name not in SECRETS}
        topic_id = fields.get("topic_id")
        if isinstance(record, TopicRecord):
            self._topics[record.topic_id] = record.name
        elif topic_id is not None:
            fields["topic"] = self._topic_name(topic_id)
        self._add_previous_values(record, fields)
        return fields

    def _add_previous_values(self, record: MetadataRecord, fields: Fact) -> None:
        """Add the known previous values to ``fields`` and remember the present ones."""
        match record:
            case PartitionChangeRecord():
                before = self._partition(record.topic_id, record.partition)
                now = _partition_fact(record)
                if not record.replicas:
                    now["replicas"] = None if before is None else before["replicas"]
                fields.update(now)
                if before is not None:
                    fields["before"] = before
                self._partitions[record.topic_id, record.partition] = now
            case PartitionRecord():
                now = _partition_fact(record)
                fields.update(now)
                self._partitions[record.topic_id, record.partition] = now
            case BrokerRegistrationChangeRecord():
                state = self._broker_state(record.broker_id)
                if state is not None:
                    fields["before"] = {"state": state}
                self._brokers[record.broker_id] = record.state.value
            case RegisterBrokerRecord():
                self._brokers[record.broker_id] = BrokerState.STARTING.value
            case ConfigRecord():
                self._config(record, fields)
            case _:
                pass

    def _config(self, record: ConfigRecord, fields: Fact) -> None:
        if record.resource_type is ResourceType.TOPIC:
            fields["topic"] = self._topic_name(record.resource_name)
        key = (record.resource_type.value, record.resource_name, record.name)
        if key in self._configs:
            fields["before"] = {"value": self._configs[key]}
        elif self._image is not None:
            configs = self._image.configs.get((record.resource_type, record.resource_name), {})
            fields["before"] = {"value": configs.get(record.name)}
        self._configs[key] = record.value

    def _topic_name(self, topic_id: str) -> str | None:
        """Return the topic's name, or None.

        None if it was deleted since and its creation was not converted here.
        """
        known = self._topics.get(topic_id)
        if known is not None:
            return known
        for image in (self._names, self._image):
            topic = None if image is None else image.topics.get(TopicId(topic_id))
            if topic is not None:
                return topic.name
        return None

    def _partition(self, topic_id: TopicId, partition: PartitionId) -> Fact | None:
        known = self._partitions.get((topic_id, partition))
        if known is not None or self._image is None:
            return known
        found = self._image.partition(topic_id, partition)
        return None if found is None else _partition_fact(found)

    def _broker_state(self, broker_id: BrokerId) -> str | None:
        known = self._brokers.get(broker_id)
        if known is not None or self._image is None:
            return known
        found = self._image.brokers.get(broker_id)
        return None if found is None else found.state.value


def _partition_fact(source: object) -> Fact:
    values = ((name, getattr(source, name)) for name in _REMEMBERED)
    return {name: list(v) if isinstance(v, tuple) else v for name, v in values}
