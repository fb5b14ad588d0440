"""The image as a tree: nothing that it holds is left out, but what is secret."""

from __future__ import annotations

from dataclasses import fields, replace
from types import MappingProxyType

import pytest

from raft_metadata.common.ids import BrokerId, PartitionId, TopicId, TopicIdPartition
from raft_metadata.image.image_view import UnknownPathError, image_at
from raft_metadata.image.metadata_image import (
    BrokerRegistration,
    MetadataImage,
    PartitionRegistration,
    TopicImage,
)
from raft_metadata.records.partition_set import PartitionSet
from raft_metadata.records.records import QuotaEntity, QuotaEntityType, ResourceType
from tests.support.fake_broker_apis import FakeBrokerApis


@pytest.fixture
def image() -> MetadataImage:
    apis = FakeBrokerApis()
    apis.add_topic("orders", 3)
    return apis.image


def names(kind: type) -> set[str]:
    return {field.name for field in fields(kind)}


def test_every_field_of_brokers_topics_and_partitions_is_shown(image: MetadataImage) -> None:
    broker, topic = image_at(image, ["brokers", "1"]), image_at(image, ["topics", "orders"])
    partition = image_at(image, ["topics", "orders", "partitions", "0"])
    assert isinstance(broker, dict)
    assert isinstance(topic, dict)
    assert isinstance(partition, dict)
    assert set(broker) == names(BrokerRegistration)
    assert set(topic) == names(TopicImage) | {"configs"}
    assert set(partition) == names(PartitionRegistration)
    where = TopicIdPartition(TopicId("T" * 22), PartitionId(3))
    unclean = replace(image.brokers[BrokerId(1)], unclean_partitions=PartitionSet.of((where,)))
    found = replace(image, brokers=MappingProxyType({BrokerId(1): unclean}))
    assert image_at(found, ["brokers", "1", "unclean_partitions"]) == [
        {"topic_id": "T" * 22, "first": 3, "last": 3}
    ]


def test_every_field_of_the_image_has_its_branch(image: MetadataImage) -> None:
    elsewhere = {
        "feature_level": "features",
        "next_producer_id": "producers",
        "topic_ids": "topics",
    }
    root = image_at(image, [])
    assert isinstance(root, dict)
    assert {elsewhere.get(name, name) for name in names(MetadataImage)} == set(root)


def test_a_topic_is_found_by_name_and_by_id_and_listed_by_name(image: MetadataImage) -> None:
    by_name = image_at(image, ["topics", "orders"])
    assert image_at(image, ["topics", "ordersxxxxxxxxxxxxxxxx"]) == by_name
    assert image_at(image, ["topics"]) == {"orders": by_name}


def test_configs_stand_under_names_and_the_clusters_under_cluster(image: MetadataImage) -> None:
    said = {
        (ResourceType.TOPIC, "ordersxxxxxxxxxxxxxxxx"): {"flush": "os"},
        (ResourceType.BROKER, "2"): {"b": "1"},
        (ResourceType.CLUSTER, ""): {"c": "2"},
    }
    found = replace(image, configs=MappingProxyType(said))
    assert image_at(found, ["configs"]) == {
        "topic": {"orders": {"flush": "os"}},
        "broker": {"2": {"b": "1"}},
        "cluster": {"c": "2"},
    }
    assert image_at(found, ["configs", "cluster", "c"]) == "2"


def test_a_quota_stands_under_whom_it_is_for() -> None:
    entity = (
        QuotaEntity(QuotaEntityType.USER, "alice"),
        QuotaEntity(QuotaEntityType.CLIENT_ID, None),
    )
    found = MetadataImage(quotas=MappingProxyType({entity: {"producer_byte_rate": 1024.0}}))
    assert image_at(found, ["quotas"]) == {
        "user=alice,client-id=<default>": {"producer_byte_rate": 1024.0}
    }


def test_a_path_that_ends_nowhere_says_where_and_what_there_is(image: MetadataImage) -> None:
    many = {BrokerId(n): image.brokers[BrokerId(1)] for n in range(1, 31)}
    found = replace(image, brokers=MappingProxyType(many))
    with pytest.raises(UnknownPathError, match=r"/brokers has no '99'.* 20, … \(30 in all\)"):
        image_at(found, ["brokers", "99", "state"])
    for path in (
        ["brokers", "x"],
        ["brokers", "9" * 5000],
        ["topics", "orders", "partitions", "-1"],
    ):
        with pytest.raises(UnknownPathError):
            image_at(found, path)
