"""What operators change through /v3/clusters/C: golden bodies, and what reaches the broker."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson
import pytest

from broker.server.requests import PartitionProgress
from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome
from raft_metadata.common.ids import (
    BrokerId,
    MetadataOffset,
    PartitionId,
    TopicId,
    TopicIdPartition,
    TopicName,
)
from raft_metadata.records.commands import (
    AddPartitions,
    AlterAnswer,
    AlterReassignments,
    DrainBroker,
    ElectionResult,
    ElectLeaders,
    LeadersElected,
    MetadataUpgraded,
    PartitionPlace,
    PartitionsAdded,
    Reassignment,
    UnregisterBroker,
    UpgradeMetadata,
)
from raft_metadata.records.commands import Election as Wanted
from raft_metadata.records.records import BrokerState, DrainScope
from tests.contract.test_v3 import CRN, broker, collection, partition, topic
from tests.support.fake_broker_apis import CLUSTER_ID, FakeBrokerApis
from tests.support.http_door import V3, V3_URL, Answer, Door
from tests.support.next_level import NEXT_LEVEL, support_next_level

JSON = "application/json"
FLIGHTS = TopicName("flights")
MOVE = f"{V3}/topics/flights/partitions/0/reassignment"
MOVES = f"{V3}/topics/-/partitions/-/reassignment"
OFFSET = MetadataOffset(12)


def brokers(*numbers: int) -> tuple[BrokerId, ...]:
    return tuple(map(BrokerId, numbers))


async def send(door: Door, method: str, path: str, body: Any = None) -> Answer:
    if body is None:
        return await door.call(method, path)
    headers = {"Content-Type": JSON}
    return await door.call(method, path, orjson.dumps(body), headers)


def refused(code: int, message: str) -> dict[str, Any]:
    return {"error_code": code, "message": message}


# ---------------------------------------------------------------- more partitions


def grow(apis: FakeBrokerApis, command: AddPartitions) -> PartitionsAdded:
    found = apis.image.topic(command.topic)
    assert found is not None
    if not command.validate_only:
        apis.add_topic(command.topic, command.partitions_count)
    return PartitionsAdded(
        topic_id=found.topic_id, partitions_count=command.partitions_count, next_offset=OFFSET
    )


async def test_more_partitions(door: Door) -> None:
    door.apis.admin_answers[AddPartitions] = lambda command: grow(door.apis, command)
    answer = await send(door, "PATCH", f"{V3}/topics/flights", {"partitions_count": 5})
    assert answer.golden == (200, JSON, topic("flights", 5, 2))
    assert door.apis.requests == [AddPartitions(topic=FLIGHTS, partitions_count=5)]
    assert len((await door.get(f"{V3}/topics/flights/partitions")).json["data"]) == 5


async def test_more_partitions_where_they_are_wanted_or_only_asked(door: Door) -> None:
    door.apis.admin_answers[AddPartitions] = lambda command: grow(door.apis, command)
    body = {
        "partitions_count": 3,
        "replicas_assignments": {"2": [2, 1]},
        "validate_only": True,
    }
    answer = await send(door, "PATCH", f"{V3}/topics/flights", body)
    assert answer.golden == (200, JSON, topic("flights", 3, 2))
    assert door.apis.requests == [
        AddPartitions(
            topic=FLIGHTS,
            partitions_count=3,
            replicas_assignments={2: brokers(2, 1)},
            validate_only=True,
        )
    ]


async def test_as_many_partitions_or_fewer_are_40002(door: Door) -> None:
    text = "topic flights has 2 partitions"
    door.apis.admin_answers[AddPartitions] = KafkaError(ErrorCode.INVALID_PARTITIONS, text)
    answer = await send(door, "PATCH", f"{V3}/topics/flights", {"partitions_count": 2})
    assert answer.golden == (400, JSON, refused(40002, text))


async def test_more_partitions_of_an_unknown_topic_are_40403(door: Door) -> None:
    unknown = KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    door.apis.admin_answers[AddPartitions] = unknown
    answer = await send(door, "PATCH", f"{V3}/topics/nope", {"partitions_count": 2})
    text = "This server does not host this topic-partition."
    assert answer.golden == (404, JSON, refused(40403, text))


# ---------------------------------------------------------------- brokers


def drained(apis: FakeBrokerApis, command: DrainBroker) -> AlterAnswer:
    apis.change_broker(command.broker_id, drain=command.scope)
    return AlterAnswer(next_offset=OFFSET)


async def test_drain_the_leaders_of_a_broker(door: Door) -> None:
    door.apis.admin_answers[DrainBroker] = lambda command: drained(door.apis, command)
    door.apis.change_partition("flights", 1, leader=BrokerId(2), isr=brokers(1, 2), elr=())
    answer = await send(door, "POST", f"{V3}/brokers/1:drain", {"scope": "leaders"})
    expected = broker(1, leads=1, holds=2) | {
        "drain": "leaders",
        "drain_progress": {
            "is_done": False,
            "leaders_left": 1,
            "replicas_left": 2,
            "stuck": [
                {
                    "topic_name": "flights",
                    "partition_id": 0,
                    "reason": "no other replica is alive and in sync",
                }
            ],
        },
    }
    assert answer.golden == (200, JSON, expected)
    assert (await door.get(f"{V3}/brokers/1")).json == expected
    door.apis.change_partition("flights", 0, leader=BrokerId(2))
    progress = (await door.get(f"{V3}/brokers/1")).json["drain_progress"]
    assert progress == {"is_done": True, "leaders_left": 0, "replicas_left": 2, "stuck": []}


async def test_drain_the_replicas_of_a_broker_and_end_that(door: Door) -> None:
    door.apis.admin_answers[DrainBroker] = lambda command: drained(door.apis, command)
    door.apis.change_partition(
        "flights", 0, replicas=brokers(1, 2, 3), adding=brokers(3), removing=brokers(2)
    )
    answer = await send(door, "POST", f"{V3}/brokers/2:drain", {"scope": "replicas"})
    progress = answer.json["drain_progress"]
    assert (progress["is_done"], progress["replicas_left"]) == (False, 2)
    assert [row["reason"] for row in progress["stuck"]] == [
        "waits until brokers [3] are in sync",
        "no other live broker is free to hold it",
    ]
    answer = await send(door, "POST", f"{V3}/brokers/2:drain", {"scope": "none"})
    assert answer.golden == (200, JSON, broker(2, holds=2))
    scopes = [one.scope for one in door.apis.requests if isinstance(one, DrainBroker)]
    assert scopes == [DrainScope.REPLICAS, DrainScope.NONE]


async def test_a_broker_that_is_leaving_tells_what_it_waits_for(door: Door) -> None:
    door.apis.change_broker(2, state=BrokerState.CONTROLLED_SHUTDOWN)
    door.apis.shutdown_blocked_by[2] = "leads 1 partitions"
    shown = broker(2, "controlled_shutdown", holds=2)
    expected = shown | {"shutdown_blocked_by": "leads 1 partitions"}
    assert (await door.get(f"{V3}/brokers/2")).golden == (200, JSON, expected)
    del door.apis.static[2]
    assert (await door.get(f"{V3}/brokers/2")).json["shutdown_blocked_by"] is None


async def test_unregister_a_broker(door: Door) -> None:
    answer = await send(door, "DELETE", f"{V3}/brokers/3")
    assert answer.golden == (204, JSON, None)
    assert door.apis.requests == [UnregisterBroker(broker_id=BrokerId(3))]


async def test_a_broker_that_holds_replicas_stays_and_says_how_many(door: Door) -> None:
    text = "broker 2 holds 2 replicas"
    door.apis.admin_answers[UnregisterBroker] = KafkaError(ErrorCode.POLICY_VIOLATION, text)
    answer = await send(door, "DELETE", f"{V3}/brokers/2")
    assert answer.golden == (400, JSON, refused(40002, text))


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [("DELETE", "/brokers/9", None), ("POST", "/brokers/9:drain", {"scope": "none"})],
)
async def test_a_broker_that_never_was(door: Door, method: str, path: str, body: Any) -> None:
    for command in (DrainBroker, UnregisterBroker):
        door.apis.admin_answers[command] = KafkaError(ErrorCode.BROKER_ID_NOT_REGISTERED)
    answer = await send(door, method, V3 + path, body)
    assert answer.golden == (404, JSON, refused(404, "Broker 9 cannot be found."))


# ---------------------------------------------------------------- reassignment


def moving(door: Door) -> dict[str, Any]:
    """Partition 0 of flights moves from brokers 1, 2 to 1, 3; what is read of it."""
    door.apis.change_partition(
        "flights", 0, replicas=brokers(1, 3, 2), adding=brokers(3), removing=brokers(2)
    )
    place = TopicIdPartition(TopicId(f"{'flights':x<22}"), PartitionId(0))
    door.apis.progress[place] = PartitionProgress(
        log_end_offset=120, high_watermark=118, follower_ends={BrokerId(2): 120, BrokerId(3): 20}
    )
    url = f"{V3_URL}/topics/flights/partitions/0"
    return {
        "kind": "KafkaReassignment",
        "metadata": {
            "self": f"{url}/reassignment",
            "resource_name": f"{CRN}/topic=flights/partition=0/reassignment",
        },
        "cluster_id": CLUSTER_ID,
        "topic_name": "flights",
        "partition_id": 0,
        "adding_replicas": [3],
        "removing_replicas": [2],
        "replicas": {"related": f"{url}/replicas"},
        "replica_ids": [1, 3, 2],
        "leader_end_offset": 120,
        "progress": [{"broker_id": 3, "log_end_offset": 20, "lag": 100, "is_in_sync": False}],
    }


@pytest.mark.parametrize("path", ["/topics/-/partitions/-", "/topics/flights/partitions/-"])
async def test_reassignments_under_way(door: Door, path: str) -> None:
    path += "/reassignment"
    empty = collection("KafkaReassignment", path)
    assert (await door.get(V3 + path)).golden == (200, JSON, empty)
    listed = collection("KafkaReassignment", path, moving(door))
    assert (await door.get(V3 + path)).golden == (200, JSON, listed)


async def test_one_reassignment(door: Door) -> None:
    text = "No reassignment of partition 0 of topic flights is under way."
    assert (await door.get(MOVE)).golden == (404, JSON, refused(404, text))
    assert (await door.get(MOVE)).status == 404
    assert (await send(door, "DELETE", MOVE)).golden == (404, JSON, refused(404, text))
    expected = moving(door)
    assert (await door.get(MOVE)).golden == (200, JSON, expected)
    partition = (await door.get(f"{V3}/topics/flights/partitions/0")).json
    assert (partition["adding_replicas"], partition["removing_replicas"]) == ([3], [2])


async def test_progress_that_is_not_known_is_null(door: Door) -> None:
    expected = moving(door)
    door.apis.progress.clear()
    answer = await door.get(MOVE)
    assert answer.json["leader_end_offset"] is None
    unknown = {"broker_id": 3, "log_end_offset": None, "lag": None, "is_in_sync": False}
    assert answer.json["progress"] == [unknown]
    assert answer.json.keys() == expected.keys()


async def test_start_a_reassignment(door: Door) -> None:
    expected: dict[str, Any] = {}

    def start(_: AlterReassignments) -> AlterAnswer:
        expected.update(moving(door))
        return AlterAnswer(next_offset=OFFSET)

    door.apis.admin_answers[AlterReassignments] = start
    answer = await send(door, "POST", MOVE, {"replicas": [1, 3]})
    assert answer.golden == (202, JSON, expected)
    change = Reassignment(topic=FLIGHTS, partition=PartitionId(0), replicas=brokers(1, 3))
    assert door.apis.requests == [AlterReassignments(changes=(change,))]


async def test_start_many_reassignments(door: Door) -> None:
    body = {
        "data": [
            {"topic_name": "flights", "partition_id": 0, "replicas": [1, 3]},
            {"topic_name": "flights", "partition_id": 1, "replicas": None},
        ]
    }
    answer = await send(door, "POST", MOVES, body)
    assert (answer.status, answer.json["kind"]) == (202, "KafkaReassignmentList")
    assert [row["partition_id"] for row in answer.json["data"]] == [0, 1]
    changes = (
        Reassignment(topic=FLIGHTS, partition=PartitionId(0), replicas=brokers(1, 3)),
        Reassignment(topic=FLIGHTS, partition=PartitionId(1), replicas=None),
    )
    validated = await send(door, "POST", MOVES, body | {"validate_only": True})
    assert validated.golden == (204, JSON, None)
    assert door.apis.requests == [
        AlterReassignments(changes=changes),
        AlterReassignments(changes=changes, validate_only=True),
    ]


@pytest.mark.parametrize("path", [MOVE, MOVES, f"{V3}/topics/flights/partitions/-/reassignment"])
async def test_cancel_reassignments(door: Door, path: str) -> None:
    moving(door)
    assert (await send(door, "DELETE", path)).golden == (204, JSON, None)
    change = Reassignment(topic=FLIGHTS, partition=PartitionId(0), replicas=None)
    assert door.apis.requests == [AlterReassignments(changes=(change,))]


async def test_a_move_that_ends_meanwhile_holds_up_no_other_cancellation(door: Door) -> None:
    moving(door)
    door.apis.change_partition("flights", 1, adding=brokers(3))

    def cancel(command: AlterReassignments) -> AlterAnswer | KafkaError:
        if any(change.partition == 0 for change in command.changes):
            return KafkaError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
        return AlterAnswer(next_offset=OFFSET)

    door.apis.admin_answers[AlterReassignments] = cancel
    assert (await send(door, "DELETE", MOVES)).golden == (204, JSON, None)
    asked = [one for one in door.apis.requests if isinstance(one, AlterReassignments)]
    named = [[change.partition for change in one.changes] for one in asked]
    assert named == [[0, 1], [0], [1]]
    text = "No reassignment of partition 0 of topic flights is under way."
    assert (await send(door, "DELETE", MOVE)).golden == (404, JSON, refused(404, text))


async def test_a_refused_reassignment_says_why(door: Door) -> None:
    error = KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "broker 9 is not registered")
    door.apis.admin_answers[AlterReassignments] = error
    answer = await send(door, "POST", MOVE, {"replicas": [9]})
    assert answer.golden == (400, JSON, refused(40002, "broker 9 is not registered"))


# ---------------------------------------------------------------- elections


def elected(*results: ElectionResult) -> LeadersElected:
    return LeadersElected(results=results, next_offset=OFFSET)


def result(number: int, **fields: Any) -> ElectionResult:
    return ElectionResult(topic=FLIGHTS, partition=PartitionId(number), **fields)


async def test_elect_the_preferred_leader(door: Door) -> None:
    door.apis.admin_answers[ElectLeaders] = elected(result(0, leader=BrokerId(1)))
    path = f"{V3}/topics/flights/partitions/0/leader:elect"
    assert (await door.call("POST", path)).golden == (200, JSON, partition(0))
    assert (await send(door, "POST", path, {"election": "unclean"})).status == 200
    place = (PartitionPlace(topic=FLIGHTS, partition=PartitionId(0)),)
    assert door.apis.requests == [
        ElectLeaders(election=Wanted.PREFERRED, partitions=place),
        ElectLeaders(election=Wanted.UNCLEAN, partitions=place),
    ]


async def test_an_election_that_nobody_can_win_is_503_and_says_why(door: Door) -> None:
    error = ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    failed = result(0, error=error.number, message="broker 1 is not in sync")
    door.apis.admin_answers[ElectLeaders] = elected(failed)
    answer = await door.call("POST", f"{V3}/topics/flights/partitions/0/leader:elect")
    said = refused(50302, "broker 1 is not in sync")
    expected = said | {"retriable": True, "outcome": "not_written"}
    assert answer.golden == (503, JSON, expected)


async def test_elect_everywhere(door: Door) -> None:
    error = ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
    door.apis.admin_answers[ElectLeaders] = elected(
        result(0, leader=BrokerId(2)), result(1, error=error.number)
    )
    path = "/topics/-/partitions/-/leader:elect"
    answer = await send(door, "POST", V3 + path, {"election": "preferred"})
    rows = []
    for number, leader in ((0, 2), (1, None)):
        url = f"{V3_URL}/topics/flights/partitions/{number}"
        crn = f"{CRN}/topic=flights/partition={number}"
        rows.append(
            {
                "kind": "KafkaLeaderElection",
                "metadata": {"self": url, "resource_name": crn},
                "cluster_id": CLUSTER_ID,
                "topic_name": "flights",
                "partition_id": number,
                "leader": leader and {"related": f"{url}/replicas/{leader}"},
                "leader_id": leader,
                "error_code": None if leader else 50302,
                "error": None if leader else error.message,
            }
        )
    listed = collection("KafkaLeaderElection", path, *rows)
    assert answer.golden == (200, JSON, listed)
    assert door.apis.requests == [ElectLeaders(election=Wanted.PREFERRED)]


async def test_elect_in_one_topic(door: Door) -> None:
    door.apis.admin_answers[ElectLeaders] = elected()
    path = f"{V3}/topics/flights/partitions/-/leader:elect"
    assert (await door.call("POST", path)).json["data"] == []
    places = tuple(PartitionPlace(topic=FLIGHTS, partition=PartitionId(n)) for n in (0, 1))
    assert door.apis.requests == [ElectLeaders(election=Wanted.PREFERRED, partitions=places)]


# ---------------------------------------------------------------- features, access rules

FEATURES = {
    "kind": "KafkaFeatures",
    "metadata": {
        "self": f"{V3_URL}/features",
        "resource_name": f"{CRN}/feature=metadata.version",
    },
    "cluster_id": CLUSTER_ID,
    "metadata_version": 1,
    "supported_min": 1,
    "supported_max": 1,
    "brokers": [
        {"broker_id": number, "supported_min": 1, "supported_max": 1} for number in (1, 2, 3)
    ],
}


async def test_features(door: Door) -> None:
    door.apis.image = replace(door.apis.image, feature_level=1)
    assert (await door.get(f"{V3}/features")).golden == (200, JSON, FEATURES)


@pytest.mark.parametrize("level", [NEXT_LEVEL, None])
async def test_raise_the_metadata_version(
    door: Door, level: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    support_next_level(monkeypatch)
    door.apis.image = replace(door.apis.image, feature_level=1)
    upgraded = MetadataUpgraded(level_before=1, level=NEXT_LEVEL, next_offset=OFFSET)
    door.apis.admin_answers[UpgradeMetadata] = upgraded
    body = {"metadata_version": level, "validate_only": level is None}
    answer = await send(door, "PATCH", f"{V3}/features", body)
    after = FEATURES | {
        "metadata_version": 2,
        "metadata_version_before": 1,
        "supported_max": NEXT_LEVEL,
    }
    assert answer.golden == (200, JSON, after)
    assert door.apis.requests == [UpgradeMetadata(level=level, validate_only=level is None)]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/acls"),
        ("POST", "/acls"),
        ("DELETE", "/acls?resource_type=TOPIC"),
        ("POST", "/acls:batch"),
    ],
)
async def test_access_rules_are_off_in_kafkas_words(door: Door, method: str, path: str) -> None:
    expected = refused(40002, "No Authorizer is configured.")
    assert (await send(door, method, V3 + path, None)).golden == (400, JSON, expected)


# ---------------------------------------------------------------- what all writes share

WRITES: list[tuple[str, str, Any]] = [
    ("PATCH", "/topics/flights", {"partitions_count": 5}),
    ("POST", "/brokers/1:drain", {"scope": "leaders"}),
    ("DELETE", "/brokers/1", None),
    ("POST", "/topics/flights/partitions/0/reassignment", {"replicas": [1]}),
    ("POST", "/topics/flights/partitions/0/leader:elect", None),
    ("POST", "/topics/-/partitions/-/leader:elect", None),
    ("PATCH", "/features", {"metadata_version": None}),
]


@pytest.mark.parametrize(("method", "path", "body"), WRITES)
@pytest.mark.parametrize("outcome", list(Outcome))
async def test_without_a_controller_a_write_is_503_and_says_its_outcome(
    door: Door, method: str, path: str, body: Any, outcome: Outcome
) -> None:
    error = KafkaError(ErrorCode.REQUEST_TIMED_OUT, "no controller", outcome=outcome)
    for command in (
        *(AddPartitions, AlterReassignments, DrainBroker, ElectLeaders),
        *(UnregisterBroker, UpgradeMetadata),
    ):
        door.apis.admin_answers[command] = error
    answer = await send(door, method, V3 + path, body)
    said = refused(50302, "no controller") | {"retriable": True, "outcome": outcome.value}
    assert answer.golden == (503, JSON, said)
    assert answer.headers["retry-after"] == "1"
    assert len(door.apis.requests) == 1, "rule F2: sent once"


@pytest.mark.parametrize(
    ("method", "path", "body", "code", "named"),
    [
        ("PATCH", "/topics/flights", {}, 400, "partitions_count"),
        ("PATCH", "/topics/flights", {"partitions_count": "3"}, 400, "partitions_count"),
        ("PATCH", "/topics/flights", {"partition_count": 3}, 400, "partition_count"),
        ("PATCH", "/topics/a%20b", {"partitions_count": 3}, 40002, "a b"),
        ("POST", "/brokers/1:drain", {}, 400, '"none" or "leaders" or "replicas"'),
        ("POST", "/brokers/1:drain", {"scope": "all"}, 400, "'all'"),
        ("POST", "/brokers/x:drain", {"scope": "none"}, 404, "'x' is not a number"),
        ("POST", "/topics/flights/partitions/0/reassignment", {}, 400, "replicas"),
        ("POST", "/topics/flights/partitions/0/reassignment", {"replicas": 1}, 400, "replicas"),
        ("POST", "/topics/flights/partitions/7/reassignment", {"replicas": [1]}, 40402, "7"),
        ("POST", "/topics/nope/partitions/0/reassignment", {"replicas": [1]}, 40401, "nope"),
        ("POST", "/topics/-/partitions/0/reassignment", {"replicas": [1]}, 40002, "topic"),
        ("POST", "/topics/-/partitions/-/reassignment", {"data": []}, 400, "data"),
        ("POST", "/topics/-/partitions/-/reassignment", {"data": [1]}, 400, "data"),
        (
            *("POST", "/topics/-/partitions/-/reassignment"),
            {"data": [{"topic_name": "flights", "partition_id": 0}]},
            *(400, "data.replicas"),
        ),
        (
            *("POST", "/topics/other/partitions/-/reassignment"),
            {"data": [{"topic_name": "flights", "partition_id": 0, "replicas": [1]}]},
            *(400, "data.topic_name"),
        ),
        (
            *("POST", "/topics/-/partitions/-/reassignment"),
            {"data": [{"topic_name": "a", "partition_id": 0, "replicas": [1]}] * 1001},
            *(413, "1001"),
        ),
        ("POST", "/topics/-/partitions/0/leader:elect", None, 40002, "topic"),
        ("POST", "/topics/flights/partitions/0/leader:elect", {"election": 1}, 400, "election"),
        ("POST", "/topics/flights/partitions/9/leader:elect", None, 40402, "9"),
        ("PATCH", "/features", {}, 400, "metadata_version"),
        ("PATCH", "/features", {"metadata_version": "2"}, 400, "metadata_version"),
    ],
)
async def test_a_wrong_request_names_what_was_expected(
    door: Door, method: str, path: str, body: Any, code: int, named: str
) -> None:
    answer = await send(door, method, V3 + path, body)
    assert answer.json.keys() == {"error_code", "message"}
    assert answer.json["error_code"] == code, answer.json
    assert named in answer.json["message"]
    assert door.apis.requests == []


@pytest.mark.parametrize(("method", "path", "body"), [one for one in WRITES if one[2]])
async def test_a_body_over_the_limit_is_refused_before_it_is_read(
    door: Door, method: str, path: str, body: Any
) -> None:
    headers = {"Content-Type": JSON, "Content-Length": str(2 << 20)}
    answer = await door.call(method, V3 + path, b"", headers)
    assert (answer.status, answer.json["error_code"]) == (413, 413)
    assert door.apis.requests == []
