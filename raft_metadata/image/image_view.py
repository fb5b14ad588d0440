"""An image as a tree of plain values, addressed by path: ``topics/orders/partitions/0/isr``.

Operators browse it through the HTTP API and the command line. Of users only names, mechanisms and
iterations are shown: the stored keys are secrets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from enum import Enum
from typing import Any

from raft_metadata.common.ids import BrokerId, TopicId, TopicIdPartition, TopicName
from raft_metadata.image.metadata_image import (
    BrokerRegistration,
    MetadataImage,
    PartitionRegistration,
    TopicImage,
)
from raft_metadata.records.partition_set import PartitionSet
from raft_metadata.records.records import QuotaEntity, ResourceType

CHILDREN_SHOWN_MAX = 20
"""Names that an error lists at most; a cluster may have thousands."""
NAME_SHOWN_MAX = 100
NUMBER_DIGITS_MAX = 9
DEFAULT_ENTITY = "<default>"
"""Kafka's name for the quota of all entities without a quota of their own."""

_BROKER_FIELDS = tuple(field.name for field in fields(BrokerRegistration))
_TOPIC_FIELDS = tuple(field.name for field in fields(TopicImage) if field.name != "partitions")
_PARTITION_FIELDS = tuple(field.name for field in fields(PartitionRegistration))

Plain = dict[str, Any] | list[Any] | str | int | float | bool | None


class UnknownPathError(LookupError):
    """A path that is not in the image; names its last existing node and that node's children."""

    def __init__(self, path: Sequence[str], found: int, children: Iterable[str]) -> None:
        names = list(children)
        shown = ", ".join(names[:CHILDREN_SHOWN_MAX])
        if len(names) > CHILDREN_SHOWN_MAX:
            shown += f", … ({len(names)} in all)"
        where = "/" + "/".join(path[:found])
        self.children = names
        asked = path[found][:NAME_SHOWN_MAX]
        super().__init__(f"{where} has no {asked!r}, it has: {shown or 'nothing below it'}")


@dataclass(frozen=True, slots=True)
class _Table:
    """A node whose children are computed on access: a topic may have 10,000 partitions."""

    names: Callable[[], Iterable[str]]
    get: Callable[[str], _Node | None]


_Node = _Table | Plain


def image_at(image: MetadataImage, path: Sequence[str]) -> Plain:
    """Return the value at ``path`` with everything below it, or raise UnknownPathError."""
    node: _Node = _root(image)
    for depth, name in enumerate(path):
        below = _child(node, name)
        if below is _NOTHING:
            raise UnknownPathError(path, depth, _names(node))
        node = below
    return _plain(node)


class _Nothing:
    """The marker type for a missing child; None would be ambiguous, as a value may be null."""


_NOTHING: Any = _Nothing()


def _child(node: _Node, name: str) -> Any:
    match node:
        case _Table():
            found = node.get(name)
            return _NOTHING if found is None else found
        case dict():
            return node.get(name, _NOTHING)
        case list():
            return node[_number(name)] if 0 <= _number(name) < len(node) else _NOTHING
        case _:
            return _NOTHING


def _number(name: str) -> int:
    """Return the index that ``name`` spells; -1 if it is no decimal number of at most 9 digits."""
    return int(name) if name.isdecimal() and len(name) <= NUMBER_DIGITS_MAX else -1


def _names(node: _Node) -> Iterable[str]:
    match node:
        case _Table():
            return node.names()
        case dict():
            return node
        case list():
            return map(str, range(len(node)))
        case _:
            return ()


def _plain(node: _Node) -> Plain:
    if isinstance(node, _Table):
        return {name: _plain(node.get(name)) for name in node.names()}
    if isinstance(node, dict):
        return {name: _plain(below) for name, below in node.items()}
    return node


def _root(image: MetadataImage) -> dict[str, Any]:
    return {
        "next_offset": image.next_offset,
        "epoch": image.epoch,
        "features": {"metadata.version": image.feature_level},
        "brokers": _brokers(image),
        "topics": _topics(image),
        "configs": _configs(image),
        "producers": {"next_producer_id": image.next_producer_id},
        "quotas": _quotas(image),
        "acls": {acl_id: asdict(rule) for acl_id, rule in sorted(image.acls.items())},
        "users": _users(image),
    }


def _brokers(image: MetadataImage) -> _Table:
    def get(name: str) -> _Node | None:
        broker = image.brokers.get(BrokerId(_number(name)))
        return None if broker is None else _broker(broker)

    return _Table(lambda: map(str, sorted(image.brokers)), get)


def _broker(broker: BrokerRegistration) -> dict[str, Any]:
    return {name: _shown(getattr(broker, name)) for name in _BROKER_FIELDS}


def _shown(value: object) -> Any:
    """Return a field of the image as plain JSON; most are numbers and lists of them."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, PartitionSet):
        return [each._asdict() for each in value.ranges]
    if isinstance(value, tuple):
        return [each._asdict() if isinstance(each, TopicIdPartition) else each for each in value]
    return value


def _topics(image: MetadataImage) -> _Table:
    """Return the topics by name, and also by id: a record may refer to a topic by its id only."""

    def get(name: str) -> _Node | None:
        topic = image.topic(TopicName(name)) or image.topics.get(TopicId(name))
        return None if topic is None else _topic(image, topic)

    return _Table(lambda: sorted(image.topic_ids), get)


def _topic(image: MetadataImage, topic: TopicImage) -> dict[str, Any]:
    shown = {name: _shown(getattr(topic, name)) for name in _TOPIC_FIELDS}
    configs = dict(sorted(image.topic_configs(topic.topic_id).items()))
    return {**shown, "configs": configs, "partitions": _partitions(topic)}


def _partitions(topic: TopicImage) -> _Table:
    def get(name: str) -> _Node | None:
        number = _number(name)
        inside = 0 <= number < len(topic.partitions)
        return _partition(topic.partitions[number]) if inside else None

    return _Table(lambda: map(str, range(len(topic.partitions))), get)


def _partition(partition: PartitionRegistration) -> dict[str, Any]:
    return {name: _shown(getattr(partition, name)) for name in _PARTITION_FIELDS}


def _configs(image: MetadataImage) -> dict[str, Any]:
    """Return the configs that are set, topics' under their names; defaults are not metadata."""
    found: dict[str, dict[str, dict[str, str]]] = {"topic": {}, "broker": {}}
    for (resource, name), configs in sorted(
        image.configs.items(), key=lambda row: (row[0][0].value, row[0][1])
    ):
        if resource is ResourceType.CLUSTER:
            continue
        topic = image.topics.get(TopicId(name)) if resource is ResourceType.TOPIC else None
        found[resource.value][name if topic is None else topic.name] = dict(sorted(configs.items()))
    return {**found, "cluster": dict(sorted(image.cluster_configs().items()))}


def entity_name(entity: Sequence[QuotaEntity]) -> str:
    """Return the entity of a quota as ``user=alice,client-id=app``."""
    return ",".join(
        f"{part.type.value}={DEFAULT_ENTITY if part.name is None else part.name}" for part in entity
    )


def _quotas(image: MetadataImage) -> dict[str, Any]:
    named = ((entity_name(entity), quotas) for entity, quotas in image.quotas.items())
    return {name: dict(sorted(quotas.items())) for name, quotas in sorted(named, key=_first)}


def _first(row: tuple[str, Mapping[str, float]]) -> str:
    return row[0]


def _users(image: MetadataImage) -> dict[str, Any]:
    users: dict[str, Any] = {}
    for (name, mechanism), credential in sorted(image.users.items()):
        users.setdefault(name, {})[mechanism] = {"iterations": credential.iterations}
    return users
