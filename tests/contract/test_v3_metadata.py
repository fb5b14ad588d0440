"""The quorum, the metadata log, the image and the cluster's health, byte for byte."""

from __future__ import annotations

import json
from dataclasses import replace
from types import MappingProxyType

from broker.server.metadata_requests import MetadataLogPage
from http_api.contract.media_types import JSON, NDJSON
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import (
    BrokerId,
    ControllerEpoch,
    DirectoryId,
    LeaderEpoch,
    MetadataOffset,
    PartitionEpoch,
    PartitionId,
    TopicId,
    TopicName,
)
from raft_metadata.image.metadata_image import MetadataImage
from raft_metadata.records.commands import MetadataBatch
from raft_metadata.records.records import (
    MetadataRecord,
    PartitionChangeRecord,
    TopicRecord,
    UserScramRecord,
)
from tests.support.fake_broker_apis import CLUSTER_ID, NOW_MS
from tests.support.http_door import V3, V3_URL, Door
from tests.support.quorum_views import quorum_view

LOG = f"{V3}/metadata/log"
IMAGE = f"{V3}/metadata/image"


def page(*records: MetadataRecord, base: int = 4, end: int = 9) -> MetadataLogPage:
    batch = MetadataBatch(
        base_offset=MetadataOffset(base),
        epoch=ControllerEpoch(3),
        records=records,
        time_ms=NOW_MS + 7,
    )
    return MetadataLogPage(batches=(batch,) if records else (), end_offset=MetadataOffset(end))


def moved(leader: int, epoch: int, *isr: int) -> PartitionChangeRecord:
    return PartitionChangeRecord(
        topic_id=TopicId(f"{'orders':x<22}"),
        partition=PartitionId(0),
        directories=(DirectoryId("d" * 22), DirectoryId("d" * 22)),
        isr=tuple(map(BrokerId, isr)),
        elr=(),
        leader=BrokerId(leader),
        leader_epoch=LeaderEpoch(epoch),
        partition_epoch=PartitionEpoch(epoch + 3),
    )


# ---------------------------------------------------------------- quorum


async def test_the_quorum_as_its_leader_says(door: Door) -> None:
    door.apis.metadata.view = quorum_view()
    assert (await door.get(f"{V3}/quorum")).golden == (
        200,
        JSON,
        {
            "kind": "KafkaQuorum",
            "metadata": {
                "self": f"{V3_URL}/quorum",
                "resource_name": f"crn:///kafka={CLUSTER_ID}/quorum",
            },
            "cluster_id": CLUSTER_ID,
            "leader_id": 102,
            "leader_epoch": 3,
            "high_watermark": 42,
            "commit_index": 69,
            "log_end_index": 70,
            "feature_level": 2,
            "told_by": 102,
            "is_from_leader": True,
            "voters": [
                {
                    "voter_id": 101,
                    "directory_id": f"{101:d>22}",
                    "url": "http://127.0.0.1:10082",
                    "is_leader": False,
                    "is_reachable": False,
                    "fence": None,
                    "is_connected": True,
                    "log_end_index": 65,
                    "lag": 5,
                    "feature_level_max": 2,
                    "last_fetch_timestamp": NOW_MS - 40,
                    "last_caught_up_timestamp": NOW_MS - 100,
                    "contact_age_ms": 40,
                    "caught_up_age_ms": 100,
                },
                {
                    "voter_id": 102,
                    "directory_id": f"{102:d>22}",
                    "url": "http://127.0.0.1:10083",
                    "is_leader": True,
                    "is_reachable": True,
                    "fence": "none",
                    "is_connected": True,
                    "log_end_index": 70,
                    "lag": 0,
                    "feature_level_max": 2,
                    "last_fetch_timestamp": NOW_MS,
                    "last_caught_up_timestamp": NOW_MS - 100,
                    "contact_age_ms": 0,
                    "caught_up_age_ms": 100,
                },
            ],
            "observers": [
                {
                    "broker_id": 1,
                    "broker_epoch": 9,
                    "state": "unfenced",
                    "log_end_offset": 40,
                    "lag": 2,
                    "last_fetch_timestamp": NOW_MS - 120,
                    "last_caught_up_timestamp": None,
                    "contact_age_ms": 120,
                    "caught_up_age_ms": None,
                }
            ],
        },
    )


async def test_the_quorum_as_a_follower_tells_it_says_so(door: Door) -> None:
    door.apis.metadata.view = quorum_view(is_active=False, is_leader=False, leader_id=None)
    said = (await door.get(f"{V3}/quorum")).json
    assert (said["told_by"], said["is_from_leader"], said["leader_id"]) == (102, False, None)
    assert [voter["is_leader"] for voter in said["voters"]] == [False, False]


async def test_without_any_controller_the_quorum_is_a_503(door: Door) -> None:
    answer = await door.get(f"{V3}/quorum")
    assert answer.status == 503
    assert answer.headers["retry-after"] == "1"
    assert (answer.json["error_code"], answer.json["retriable"]) == (50302, True)


# ---------------------------------------------------------------- health


async def test_a_degraded_cluster_says_why_with_a_200(door: Door) -> None:
    door.apis.add_topic("orders", 5)
    door.apis.metadata.view = quorum_view()
    status, kind, said = (await door.get(f"{V3}:health")).golden
    assert (status, kind) == (200, JSON)
    assert said["kind"] == "KafkaClusterHealth"
    assert said["metadata"] == {
        "self": f"{V3_URL}:health",
        "resource_name": f"crn:///kafka={CLUSTER_ID}/health",
    }
    assert said["status"] == "unhealthy"  # one in sync of two, min.insync.replicas is two
    assert [reason["code"] for reason in said["reasons"]] == [
        "UNDER_MIN_ISR_PARTITIONS",
        "CONTROLLER_DOWN",
        "BROKER_FENCED",
        "UNDER_REPLICATED_PARTITIONS",
    ]
    assert said["reasons"][3] == {
        "code": "UNDER_REPLICATED_PARTITIONS",
        "status": "degraded",
        "message": "7 partitions have replicas that are not in sync: flights:0, flights:1, "
        "orders:0, orders:1, orders:2, …",
        "count": 7,
        "examples": ["flights:0", "flights:1", "orders:0", "orders:1", "orders:2"],
    }
    assert said["controller_id"] == 102
    assert said["counts"] == {
        "controllers": 2,
        "controllers_unreachable": 1,
        "brokers": 3,
        "draining_brokers": 0,
        "fenced_brokers": 1,
        "topics": 2,
        "partitions": 7,
        "offline_partitions": 0,
        "under_replicated_partitions": 7,
        "under_min_isr_partitions": 7,
        "at_min_isr_partitions": 0,
        "reassigning_partitions": 0,
        "preferred_leader_imbalance": 0,
        "damaged_partitions": 0,
        "blocked_groups": 0,
        "held_groups": 0,
        "waiting_transactions": 0,
    }


async def test_a_controller_that_may_not_vote_yet_is_no_whole_one(door: Door) -> None:
    door.apis.metadata.view = quorum_view(fence="adopted")
    said = (await door.get(f"{V3}:health")).json
    reasons = {reason["code"]: reason["message"] for reason in said["reasons"]}
    assert reasons["VOTER_REJOINING"] == (
        "1 controllers that lost their disk may not vote yet: 102"
    )
    voters = (await door.get(f"{V3}/quorum")).json["voters"]
    assert [voter["fence"] for voter in voters] == [None, "adopted"]


async def test_health_of_another_cluster_is_a_404(door: Door) -> None:
    other = "/v3/clusters/AnotherClusterAltogeth:health"
    assert (await door.get(other)).status == 404


# ---------------------------------------------------------------- the log


async def test_the_log_tells_facts_with_place_time_names_and_what_was_before(door: Door) -> None:
    door.apis.add_topic("orders")
    door.apis.image = replace(door.apis.image, next_offset=MetadataOffset(4))
    door.apis.metadata.page = page(moved(2, 5, 2), moved(1, 6, 2, 1), end=6)
    answer = await door.get(f"{LOG}?offset=4&timeout=250", NDJSON)
    assert (answer.status, answer.type) == (200, NDJSON)
    assert answer.headers["quorumlog-next-offset"] == "6"
    assert answer.headers["quorumlog-end-offset"] == "6"
    assert door.apis.metadata.asked == [(4, 250)]
    now = {
        "leader": 2,
        "leader_epoch": 5,
        "isr": [2],
        "elr": [],
        "replicas": [1, 2],
        "adding": [],
        "removing": [],
    }
    assert [json.loads(line) for line in answer.body.splitlines()] == [
        {
            "offset": 4,
            "epoch": 3,
            "time": "2023-11-14T22:13:20.007Z",
            "type": "partition_change",
            "topic_id": f"{'orders':x<22}",
            "topic": "orders",
            "partition": 0,
            "directories": ["d" * 22, "d" * 22],
            "partition_epoch": 8,
            **now,
            "before": {**now, "leader": 1, "leader_epoch": 4, "isr": [1], "elr": [2]},
        },
        {
            "offset": 5,
            "epoch": 3,
            "time": "2023-11-14T22:13:20.007Z",
            "type": "partition_change",
            "topic_id": f"{'orders':x<22}",
            "topic": "orders",
            "partition": 0,
            "directories": ["d" * 22, "d" * 22],
            "partition_epoch": 9,
            **now,
            "leader": 1,
            "leader_epoch": 6,
            "isr": [2, 1],
            "before": now,
        },
    ]


async def test_the_value_before_is_left_out_where_it_is_unknown(door: Door) -> None:
    door.apis.add_topic("orders")
    door.apis.metadata.page = page(moved(2, 5, 2))
    answer = await door.get(f"{LOG}?offset=4")
    assert "before" not in json.loads(answer.body)


async def test_the_log_is_cut_where_asked_also_within_a_batch(door: Door) -> None:
    topics = [
        TopicRecord(name=TopicName(f"t{i}"), topic_id=TopicId(f"{i:t>22}"), partitions_count=1)
        for i in range(5)
    ]
    door.apis.metadata.page = page(*topics, base=4, end=9)
    answer = await door.get(f"{LOG}?offset=5&max=2")
    assert [json.loads(line)["name"] for line in answer.body.splitlines()] == ["t1", "t2"]
    assert answer.headers["quorumlog-next-offset"] == "7"


async def test_a_snapshot_comes_first_and_says_that_it_is_one(door: Door) -> None:
    door.apis.add_topic("orders")
    image = replace(door.apis.image, next_offset=MetadataOffset(9), brokers=MappingProxyType({}))
    door.apis.metadata.page = replace(page(), instead=image)
    answer = await door.get(LOG)
    assert answer.headers["quorumlog-next-offset"] == "9"
    facts = [json.loads(line) for line in answer.body.splitlines()]
    assert facts[0] == {
        "offset": None,
        "epoch": None,
        "time": None,
        "snapshot": True,
        "type": "snapshot",
        "next_offset": 9,
        "controller_epoch": 0,
    }
    assert all(fact["snapshot"] for fact in facts)
    assert [fact["type"] for fact in facts[1:]] == [
        *("topic", "partition", "partition"),
        *("topic", "partition"),
    ]


async def test_salts_and_keys_of_users_never_leave(door: Door) -> None:
    secret = "c2VjcmV0"
    user = UserScramRecord(
        name="alice",
        mechanism="SCRAM-SHA-256",
        salt=secret,
        stored_key=secret,
        server_key=secret,
        iterations=4096,
    )
    door.apis.metadata.page = page(user)
    answer = await door.get(f"{LOG}?offset=4")
    assert secret.encode() not in answer.body
    assert json.loads(answer.body)["iterations"] == 4096
    users = MappingProxyType({("alice", "SCRAM-SHA-256"): user})
    door.apis.image = replace(door.apis.image, users=users)
    whole = await door.get(IMAGE)
    assert secret.encode() not in whole.body
    assert (await door.get(f"{IMAGE}/users")).json == {
        "alice": {"SCRAM-SHA-256": {"iterations": 4096}}
    }


async def test_an_empty_page_is_an_empty_body(door: Door) -> None:
    door.apis.metadata.page = page(end=4)
    answer = await door.get(f"{LOG}?offset=4")
    assert (answer.status, answer.body) == (200, b"")
    assert answer.headers["quorumlog-next-offset"] == "4"


async def test_a_head_of_the_log_has_no_body(door: Door) -> None:
    door.apis.metadata.page = page(moved(2, 5, 2))
    answer = await door.call("HEAD", f"{LOG}?offset=4")
    assert (answer.status, answer.headers["quorumlog-next-offset"]) == (200, "5")


async def test_refusals_of_the_log(door: Door) -> None:
    assert (await door.get(f"{LOG}?offset=x")).golden == (
        400,
        JSON,
        {
            "error_code": 40002,
            "message": "Parameter 'offset' is 'x': expected an integer from 0 to "
            "999999999999999999",
        },
    )
    assert (await door.get(LOG, JSON)).status == 406
    door.apis.metadata.page = KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, "offset 9 is beyond 4")
    answer = await door.get(f"{LOG}?offset=9")
    assert (answer.status, answer.json["error_code"]) == (400, 40002)
    door.apis.metadata.page = KafkaError(ErrorCode.NOT_CONTROLLER, "no controller answers")
    answer = await door.get(LOG)
    assert (answer.status, answer.headers["retry-after"]) == (503, "1")


# ---------------------------------------------------------------- the image


async def test_any_path_of_the_image(door: Door) -> None:
    door.apis.add_topic("orders", 2)
    door.apis.set_config("orders", "retention.ms", "1000")
    door.apis.image = replace(door.apis.image, next_offset=MetadataOffset(17), feature_level=2)
    answer = await door.get(f"{IMAGE}/topics/orders/partitions/1/isr")
    assert answer.golden == (200, JSON, [1])
    assert answer.headers["quorumlog-next-offset"] == "17"
    for path, value in {
        "features": {"metadata.version": 2},
        "topics/orders/partitions/0/leader": 1,
        "configs/topic/orders": {"retention.ms": "1000"},
        "configs/cluster": {},
        "brokers/3/state": "fenced",
        "quotas": {},
        "acls": {},
        "next_offset": 17,
    }.items():
        assert (await door.get(f"{IMAGE}/{path}")).json == value, path


async def test_an_unknown_path_names_what_there_is(door: Door) -> None:
    door.apis.add_topic("orders", 2)
    assert (await door.get(f"{IMAGE}/topics/orders/partitions/7")).golden == (
        404,
        JSON,
        {"error_code": 404, "message": "/topics/orders/partitions has no '7', it has: 0, 1"},
    )
    answer = await door.get(f"{IMAGE}/topic")
    assert answer.json["message"] == (
        "/ has no 'topic', it has: next_offset, epoch, features, brokers, topics, configs, "
        "producers, quotas, acls, users"
    )
    answer = await door.get(f"{IMAGE}/topics/orders/name/x")
    assert answer.json["message"] == "/topics/orders/name has no 'x', it has: nothing below it"


async def test_an_empty_image_has_every_branch(door: Door) -> None:
    door.apis.image = MetadataImage()
    branches = "next_offset epoch features brokers topics configs producers quotas acls users"
    assert list((await door.get(IMAGE)).json) == branches.split()
