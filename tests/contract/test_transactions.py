"""Transactions of v3 at the door: what a request says, what is answered, what is refused."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote

import orjson
import pytest

from broker.record.batch import RecordFormat
from broker.server.transaction_apis import CommitRequest, Committed, TransactionLimits
from broker.transactions.messages import (
    NO_GROUP,
    AttemptNamed,
    KeyPosition,
    LastPosition,
    LostRows,
    NumberedPosition,
    OffsetMove,
    PendingTarget,
    PlacedRows,
    PositionFate,
    ProducerInitialized,
    ProducerPosition,
    StagedAttempt,
    TransactionalId,
    TransactionDescription,
    TransactionOutcome,
    TransactionState,
)
from http_api.contract.transaction_headers import CHUNK_MAX
from raft_metadata.common.configs.rows import NumberConfig
from raft_metadata.common.configs.table import TRANSACTION_MAX_CHUNKS, row_of
from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome
from raft_metadata.common.ids import BrokerId, GroupId, InstanceId, PartitionId, TopicId, TopicName
from tests.support.fake_broker_apis import CLUSTER_ID
from tests.support.http_door import V3, V3_URL, Answer, Door

JSON = "application/json"
TX = V3 + "/transactions"
OF_GROUP = V3 + "/consumer-groups/pilots/transactions"
PILOTS = GroupId("pilots")
FLIGHTS = TopicName("flights")
FLIGHTS_ID = TopicId("flightsxxxxxxxxxxxxxxx")
ROWS = {"topic_name": "flights", "records": [{"key": "a", "value": {"n": 1}}]}
ONE = {"topics": [ROWS]}
OFFSET = {"topic_name": "flights", "partition_id": 0, "offset": 120}
ATTEMPT = {"attempt_id": "3.7", "chunks": 5, "rows": 5_000}


async def post(door: Door, path: str, body: Any, **headers: str) -> Answer:
    """POST JSON; underscores in the names of headers stand for dashes."""
    data = body if isinstance(body, bytes | str) else orjson.dumps(body)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return await door.call("POST", path, data, {"Content-Type": JSON} | named)


def committed(door: Door) -> CommitRequest:
    (request,) = (one for one in door.apis.requests if isinstance(one, CommitRequest))
    return request


def outcome(**fields: Any) -> Committed:
    state = fields.pop("state", TransactionState.COMPLETE)
    told = TransactionOutcome(epoch=0, number=0, state=state, **fields)
    return Committed(outcome=told, home_leader=BrokerId(2))


# one shot


async def test_one_shot_is_committed_under_its_key(door: Door) -> None:
    answer = await post(door, TX, ONE, Idempotency_Key="transfer-17")
    assert answer.status == 200
    assert answer.type == JSON
    assert answer.headers["quorumlog-leader"] == "2"
    assert answer.headers["quorumlog-leader-url"].startswith("http://")
    partition = answer.json["partitions"][0]["partition_id"]
    assert answer.json == {
        "kind": "KafkaTransaction",
        "metadata": {
            "self": f"{V3_URL}/transactions/key:transfer-17",
            "resource_name": f"crn:///kafka={CLUSTER_ID}/transaction=key:transfer-17",
        },
        "cluster_id": CLUSTER_ID,
        "transaction_id": "key:transfer-17",
        "group_id": None,
        "epoch": 0,
        "number": 0,
        "state": "complete",
        "already": False,
        "rows": 1,
        "partitions": [
            {
                "topic_name": "flights",
                "topic_id": FLIGHTS_ID,
                "partition_id": partition,
                "base_offset": 0,
                "rows": 1,
            }
        ],
        "pending": [],
        "dropped": [],
        "lost": [],
    }
    asked = committed(door)
    assert asked.id == TransactionalId(NO_GROUP, "key:transfer-17")
    assert asked.position == KeyPosition()
    assert asked.timeout_ms == 10_000
    assert [rows.topic for rows in asked.topics] == [FLIGHTS]


async def test_records_keep_the_clients_text(door: Door) -> None:
    body = (
        '{"topics":[{"topic_name":"flights","records":[{"key":{"a" : 1.50},'
        '"value":\n{"id":12345678901234567890123,"id":2}\n,"partition":1,"timestamp":5,'
        '"headers":[{"key":"h","value":"YQ=="}]}]},'
        '{"topic_name":"flights","format":"binary","records":[{"key":"YQ==","value":null}]}]}'
    )
    assert (await post(door, TX, body)).status == 200
    json_rows, binary_rows = committed(door).topics
    (record,) = json_rows.records
    assert bytes(record.key) == b'{"a" : 1.50}'
    assert bytes(record.value) == b'{"id":12345678901234567890123,"id":2}'
    assert (record.partition, record.timestamp) == (1, 5)
    assert (json_rows.key_format, json_rows.value_format) == (RecordFormat.JSON, RecordFormat.JSON)
    assert binary_rows.key_format is RecordFormat.BINARY
    assert bytes(binary_rows.records[0].key) == b'"YQ=="'


async def test_without_a_key_the_name_is_fresh_and_no_client_may_take_it(door: Door) -> None:
    names = [(await post(door, TX, ONE)).json["transaction_id"] for _ in range(2)]
    assert len(set(names)) == 2
    assert all(re.fullmatch(r"key: [0-9a-f]{32}", name) for name in names)
    taken = await post(door, TX, ONE, Idempotency_Key=names[0].removeprefix("key:"))
    assert taken.status == 200
    assert taken.json["transaction_id"] != names[0], "a header's value is stripped of blanks"
    path = f"{TX}/{quote(names[0])}"
    assert (await post(door, f"{path}:commit", ONE)).json["error_code"] == 40002
    staged = await door.call(
        "POST",
        "/topics/flights",
        orjson.dumps({"records": [{"value": 1}]}),
        {
            "Content-Type": JSON,
            "Quorumlog-Transaction": names[0],
            "Quorumlog-Attempt": "a",
            "Quorumlog-Chunk": "0",
        },
    )
    assert staged.json["error_code"] == 40002
    assert (await door.get(path)).json["error_code"] == 40406, "it may be looked up"


async def test_without_a_key_the_home_is_on_this_broker_if_one_is(door: Door) -> None:
    asked: list[TransactionalId] = []

    def leader_of(id_: TransactionalId) -> BrokerId:
        asked.append(id_)
        return door.apis.broker_id if len(asked) == 3 else BrokerId(2)

    door.apis.transactions.answers["home_leader"] = leader_of
    assert (await post(door, TX, ONE)).status == 200
    assert committed(door).id == asked[2]


async def test_a_repeat_is_recognised_by_the_text_of_its_content(door: Door) -> None:
    first = await post(door, OF_GROUP, ONE | {"offsets": [OFFSET]}, Idempotency_Key="k")
    moved = ONE | {"offsets": [OFFSET], "member_id": "m", "member_epoch": 9}
    again = await post(door, f"{OF_GROUP}?timeout=77", moved, Idempotency_Key="k")
    assert first.json == again.json
    for other in (
        ONE,
        ONE | {"offsets": [OFFSET | {"offset": 121}]},
        {"topics": [ROWS, ROWS], "offsets": [OFFSET]},
    ):
        answer = await post(door, OF_GROUP, other, Idempotency_Key="k")
        assert (answer.status, answer.json["error_code"]) == (409, 40908)
        assert answer.json["retriable"] is False
        assert answer.json["outcome"] == "not_written"
    elsewhere = await post(door, TX, ONE, Idempotency_Key="k")
    assert elsewhere.status == 200, "under no group the key is another one"


async def test_what_is_not_complete_yet_is_202(door: Door) -> None:
    pending = PendingTarget(FLIGHTS_ID, PartitionId(1), "fewer replicas")
    door.apis.transactions.answers["commit"] = outcome(
        state=TransactionState.COMMITTING,
        placed=(PlacedRows(FLIGHTS_ID, PartitionId(1), 2, None),),
        pending=(pending,),
        dropped=((TopicId("gone"), PartitionId(3)),),
        lost=(
            LostRows(FLIGHTS_ID, PartitionId(2), 7),
            LostRows(TopicId("gone"), PartitionId(0), 1),
        ),
    )
    answer = await post(door, TX, ONE, Idempotency_Key="k")
    assert answer.status == 202
    assert answer.headers["retry-after"] == "1"
    assert answer.json["state"] == "committing"
    assert answer.json["rows"] == 2
    assert answer.json["partitions"][0]["base_offset"] is None
    assert answer.json["pending"] == [
        {"topic_name": "flights", "partition_id": 1, "reason": "fewer replicas"}
    ]
    assert answer.json["dropped"] == [{"topic_id": "gone", "partition_id": 3}]
    assert answer.json["lost"] == [
        {"topic_name": "flights", "topic_id": FLIGHTS_ID, "partition_id": 2, "rows": 7},
        {"topic_name": None, "topic_id": "gone", "partition_id": 0, "rows": 1},
    ]


async def test_offsets_are_committed_for_the_group_of_the_path(door: Door) -> None:
    rows = [
        OFFSET | {"expected_offset": 100, "metadata": "note", "leader_epoch": 4},
        {"topic_name": "flights", "partition_id": 1, "offset": 3, "expected_offset": -1},
        {"topic_name": "cargo", "partition_id": 0, "offset": 0},
    ]
    body = {"offsets": rows, "member_id": "m1", "member_epoch": 4}
    answer = await post(door, f"{OF_GROUP}?timeout=60000", body)
    assert answer.status == 200
    assert answer.json["group_id"] == "pilots"
    assert answer.json["metadata"]["self"].startswith(f"{V3_URL}/consumer-groups/pilots/")
    asked = committed(door)
    assert asked.id.group == PILOTS
    assert asked.timeout_ms == 60_000
    assert (asked.member_id, asked.member_epoch) == (InstanceId("m1"), 4)
    assert asked.offsets == (
        OffsetMove(FLIGHTS, PartitionId(0), 120, 100, "note", 4),
        OffsetMove(FLIGHTS, PartitionId(1), 3, -1),
        OffsetMove(TopicName("cargo"), PartitionId(0), 0),
    )


# producers, numbered ids, keys


@pytest.mark.parametrize(
    ("path", "fields", "position"),
    [
        ("billing-1", {"epoch": 3, "number": 7}, ProducerPosition(3, 7)),
        ("job:1", {"number": 7, "run_id": "r"}, NumberedPosition(7, "r")),
        ("job:1", {"number": 7, "run_id": "r", "input": "i"}, NumberedPosition(7, "r", "i")),
        ("key:k", {}, KeyPosition()),
        ("key:k", {"number": 0}, KeyPosition()),
        ("key:a%2Fb:init", {}, KeyPosition()),
    ],
)
async def test_a_commit_names_its_position(
    door: Door, path: str, fields: dict[str, Any], position: object
) -> None:
    answer = await post(door, f"{TX}/{path}:commit", fields | {"attempts": [ATTEMPT]})
    assert answer.status == 200
    asked = committed(door)
    assert asked.position == position
    assert asked.attempts == (AttemptNamed("3.7", 5, 5_000),)
    assert asked.id.name == path.replace("%2F", "/")


async def test_an_init_tells_the_fate_of_the_last_life(door: Door) -> None:
    last = LastPosition(3, 6, TransactionState.COMMITTING, 4)
    door.apis.transactions.answers["init"] = ProducerInitialized(
        epoch=4, last=last, forgotten_to_epoch=1
    )
    answer = await post(door, f"{OF_GROUP}/billing-1:init", "{}")
    assert answer.headers["quorumlog-leader"] == "2"
    assert answer.golden == (
        200,
        JSON,
        {
            "kind": "KafkaTransactionalId",
            "metadata": {
                "self": f"{V3_URL}/consumer-groups/pilots/transactions/billing-1",
                "resource_name": f"crn:///kafka={CLUSTER_ID}/consumer-group=pilots/"
                "transaction=billing-1",
            },
            "cluster_id": CLUSTER_ID,
            "transaction_id": "billing-1",
            "group_id": "pilots",
            "epoch": 4,
            "last": {"epoch": 3, "number": 6, "state": "committing", "lost_rows": 4},
            "forgotten_to_epoch": 1,
            "chunk_max_bytes": 1_048_576,
        },
    )
    del door.apis.transactions.answers["init"]
    door.apis.transactions.answers["home_leader"] = None
    bare = await door.call("POST", f"{TX}/billing-1:init?timeout=5")
    assert bare.status == 200
    assert bare.json["last"] is None
    assert "quorumlog-leader" not in bare.headers
    assert door.apis.requests[-1] == (TransactionalId(NO_GROUP, "billing-1"), 5)


@pytest.mark.parametrize("state", [TransactionState.ABORTED, TransactionState.COMPLETE])
async def test_an_abort_answers_the_state(door: Door, state: TransactionState) -> None:
    door.apis.transactions.answers["abort"] = PositionFate(state)
    answer = await post(door, f"{TX}/billing-1:abort", {"epoch": 3, "number": 7})
    assert answer.golden == (200, JSON, {"state": state.value, "lost": []})
    id_ = TransactionalId(NO_GROUP, "billing-1")
    assert door.apis.requests == [(id_, ProducerPosition(3, 7), 10_000)]


async def test_rule_s3_an_abort_of_what_is_not_all_there_says_so(door: Door) -> None:
    lost = (LostRows(FLIGHTS_ID, PartitionId(2), 7), LostRows(TopicId("gone"), PartitionId(0), 1))
    door.apis.transactions.answers["abort"] = PositionFate(TransactionState.COMPLETE, lost)
    answer = await post(door, f"{TX}/billing-1:abort", {"epoch": 3, "number": 7})
    assert answer.status == 200
    assert answer.json["state"] == "complete"
    assert answer.json["lost"] == [
        {"topic_name": "flights", "topic_id": FLIGHTS_ID, "partition_id": 2, "rows": 7},
        {"topic_name": None, "topic_id": "gone", "partition_id": 0, "rows": 1},
    ]


# reads


def described(name: str, group: str = "", **fields: Any) -> TransactionDescription:
    told: dict[str, Any] = {
        "epoch": -1,
        "last": None,
        "state": TransactionState.STAGING,
        "home_leader": BrokerId(2),
        "home_partition": PartitionId(4),
    }
    return TransactionDescription(id=TransactionalId(GroupId(group), name), **(told | fields))


async def test_an_id_is_described(door: Door) -> None:
    door.apis.transactions.found = [
        described(
            "billing-1",
            "pilots",
            epoch=3,
            last=LastPosition(3, 6, TransactionState.COMPLETE),
            decided_ms=1_700_000_000_000,
            placed=(PlacedRows(FLIGHTS_ID, PartitionId(1), 2, 812),),
            attempts=(
                StagedAttempt(
                    attempt_id="3.7", chunks=5, rows=50, bytes=640, age_ms=1_200, number=7, epoch=3
                ),
            ),
            member_id=InstanceId("m1"),
        ),
        described("key:a/b:init"),
    ]
    answer = await door.get(f"{OF_GROUP}/billing-1")
    assert answer.status == 200
    assert answer.headers["quorumlog-leader"] == "2"
    found = answer.json
    assert (found["transaction_id"], found["group_id"]) == ("billing-1", "pilots")
    assert (found["epoch"], found["state"], found["member_id"]) == (3, "staging", "m1")
    assert found["last"] == {"epoch": 3, "number": 6, "state": "complete", "lost_rows": 0}
    assert found["attempts"] == [
        {
            "attempt_id": "3.7",
            "epoch": 3,
            "number": 7,
            "chunks": 5,
            "rows": 50,
            "bytes": 640,
            "age_ms": 1_200,
        }
    ]
    home = {"topic_name": "__consumer_offsets", "partition_id": 4, "leader_id": 2}
    assert found["home"] == home
    other = await door.get(f"{TX}/{quote('key:a/b:init', safe='')}")
    assert other.status == 200, "a value that ends like an action"
    assert other.json["epoch"] is None
    assert other.json["metadata"]["self"] == f"{V3_URL}/transactions/key:a%2Fb:init"
    assert other.json["home"]["topic_name"] == "__transaction_state"
    missing = await door.get(f"{TX}/nobody")
    assert (missing.status, missing.json["error_code"]) == (404, 40406)


async def test_lists_have_pages_and_a_filter(door: Door) -> None:
    door.apis.transactions.found = [
        described("a"),
        described("b", state=TransactionState.COMMITTING),
        described("a", "pilots"),
    ]

    async def names(path: str) -> list[tuple[str | None, str]]:
        answer = await door.get(path)
        assert answer.status == 200
        assert answer.json["kind"] == "KafkaTransactionList"
        return [(row["group_id"], row["transaction_id"]) for row in answer.json["data"]]

    assert await names(TX) == [(None, "a"), (None, "b"), ("pilots", "a")]
    assert await names(OF_GROUP) == [("pilots", "a")]
    assert await names(f"{TX}?state=committing") == [(None, "b")]
    first = await door.get(f"{TX}?page_size=2&state=staging")
    assert len(first.json["data"]) == 2
    assert first.json["metadata"]["next"] is None
    first = await door.get(f"{TX}?page_size=2")
    following = first.json["metadata"]["next"].partition("//")[2].partition("/")[2]
    assert await names(f"/{following}") == [("pilots", "a")]
    wrong = await door.get(f"{TX}?state=open")
    assert (wrong.status, wrong.json["error_code"]) == (400, 40002)


async def test_forgetting_waits_for_completion(door: Door) -> None:
    assert (await door.call("DELETE", f"{OF_GROUP}/job:1")).golden == (204, JSON, None)
    assert door.apis.transactions.forgotten == [TransactionalId(PILOTS, "job:1")]
    door.apis.transactions.answers["forget"] = KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
    answer = await door.call("DELETE", f"{TX}/key:k:commit")
    assert (answer.status, answer.json["error_code"]) == (409, 40903)
    assert answer.json["outcome"] == "not_written"


# what the broker refuses


@pytest.mark.parametrize(
    ("error", "status", "code", "told"),
    [
        (KafkaError(ErrorCode.PRODUCER_FENCED), 409, 40907, "not_written"),
        (KafkaError(ErrorCode.PRODUCER_FENCED, outcome=Outcome.UNKNOWN), 409, 40907, "unknown"),
        (KafkaError(ErrorCode.TRANSACTION_CONFLICT), 409, 40908, "not_written"),
        (KafkaError(ErrorCode.STAGE_INCOMPLETE), 409, 40909, "not_written"),
        (KafkaError(ErrorCode.TRANSACTION_ABORTED), 409, 40910, "not_written"),
        (
            KafkaError(ErrorCode.TRANSACTION_SUPERSEDED, outcome=Outcome.UNKNOWN),
            409,
            40911,
            "unknown",
        ),
        (KafkaError(ErrorCode.OFFSET_NOT_EXPECTED), 409, 40912, "not_written"),
        (KafkaError(ErrorCode.FENCED_MEMBER_EPOCH), 409, 40903, "not_written"),
        (KafkaError(ErrorCode.THROTTLING_QUOTA_EXCEEDED), 429, 42901, "not_written"),
        (KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS), 503, 50003, "not_written"),
        (KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE), 503, 50003, "not_written"),
        (KafkaError(ErrorCode.LEADER_NOT_AVAILABLE), 503, 50003, "not_written"),
        (KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS), 503, 50003, "not_written"),
        (KafkaError(ErrorCode.REQUEST_TIMED_OUT), 503, 50003, "unknown"),
        (KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR), 500, 50002, "unknown"),
        (KafkaError(ErrorCode.DECIDED_ROWS_LOST), 500, 50004, "unknown"),
        (KafkaError(ErrorCode.MESSAGE_TOO_LARGE), 413, 413, None),
        (KafkaError(ErrorCode.INVALID_REQUEST), 400, 40002, None),
        (KafkaError(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND), 404, 40406, None),
    ],
)
async def test_a_refusal_says_its_outcome(
    door: Door, error: KafkaError, status: int, code: int, told: str | None
) -> None:
    if error.code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
        door.apis.transactions.answers["forget"] = error
        answer = await door.call("DELETE", f"{TX}/nobody")
    else:
        door.apis.transactions.answers["commit"] = error
        answer = await post(door, TX, ONE, Idempotency_Key="k")
    assert (answer.status, answer.json["error_code"]) == (status, code)
    assert answer.json.get("outcome") == told
    assert ("retriable" in answer.json) == (told is not None)
    assert ("retry-after" in answer.headers) == (status in {429, 503})
    assert answer.json["message"] == error.message


async def test_a_topic_that_is_not_there_is_told_from_a_partition(door: Door) -> None:
    other = {"topics": [ROWS | {"topic_name": "nowhere"}]}
    answer = await post(door, TX, other)
    assert (answer.status, answer.json["error_code"]) == (404, 40401)
    rows = {"topic_name": "flights", "records": [{"value": 1, "partition": 9}]}
    answer = await post(door, TX, {"topics": [rows]})
    assert (answer.status, answer.json["error_code"]) == (404, 40402)


# bad input

BAD: list[tuple[str, Any, int, int, str]] = [
    # one shot: (path, body, status, code, a part of the message)
    (TX, {}, 400, 40002, "empty"),
    (TX, {"topics": []}, 400, 40002, "'topics' is empty"),
    (TX, {"topics": None}, 400, 40002, "empty"),
    (TX, ONE | {"attempts": [ATTEMPT]}, 400, 40002, "both given"),
    (TX, {"attempts": [ATTEMPT]}, 400, 40002, "Idempotency-Key"),
    (TX, ONE | {"offsets": [OFFSET]}, 400, 40002, "consumer-groups"),
    (TX, ONE | {"member_id": "m", "member_epoch": 1}, 400, 40002, "consumer-groups"),
    (TX, ONE | {"epoch": 3}, 400, 400, "epoch"),
    (TX, {"topics": [ROWS | {"format": "avro"}]}, 400, 40002, "json or binary"),
    (TX, {"topics": [ROWS | {"topic_name": "a/b"}]}, 400, 40002, "topics[0].topic_name"),
    (TX, {"topics": [ROWS | {"topic_name": "a\x07"}]}, 400, 400, "topics[0].topic_name"),
    (TX, {"topics": [ROWS | {"typo": 1}]}, 400, 400, "topics"),
    (TX, {"topics": [{"topic_name": "t"}]}, 400, 400, "records"),
    (TX, {"topics": {}}, 400, 400, "topics"),
    (TX, {"topics": [{"topic_name": "t", "records": []}]}, 422, 422, "topics[0]"),
    (
        TX,
        {"topics": [{"topic_name": "t", "records": [{"v": 1}]}]},
        422,
        422,
        "topics[0].records[0]",
    ),
    (TX, {"topics": [{"topic_name": "t", "records": [{"offset": 1}]}]}, 422, 422, "offset"),
    (
        TX,
        {"topics": [{"topic_name": "t", "format": "binary", "records": [{"value": "?"}]}]},
        400,
        400,
        "base64",
    ),
    (TX, {"topics": [ROWS] * 1_001}, 400, 40002, "transaction.max.partitions"),
    (f"{TX}?timeout=60001", ONE, 400, 40002, "60000"),
    (f"{TX}?timeout=0", ONE, 400, 40002, "timeout"),
    (f"{TX}?timeout=x", ONE, 400, 40002, "timeout"),
    (f"{TX}?acks=1", ONE, 400, 40002, "acks"),
    (TX, b"", 400, 400, "empty"),
    (TX, b"{", 400, 400, "JSON"),
    (TX, b"[]", 400, 400, "object"),
    (TX, b'{"topics":[\xff]}', 400, 400, "UTF-8"),
    (TX, b'{"topics":' + b"[" * 5_000 + b"]" * 5_000 + b"}", 400, 400, "Bad Request"),
    # offsets
    (OF_GROUP, {"offsets": [OFFSET | {"expected_offset": -2}]}, 400, 40002, "expected_offset"),
    (OF_GROUP, {"offsets": [OFFSET | {"offset": -1}]}, 400, 40002, "offsets[0].offset"),
    (OF_GROUP, {"offsets": [OFFSET | {"offset": 1.5}]}, 400, 400, "offsets"),
    (OF_GROUP, {"offsets": [OFFSET | {"partition_id": -1}]}, 400, 40002, "partition_id"),
    (OF_GROUP, {"offsets": [OFFSET, OFFSET | {"offset": 1}]}, 400, 40002, "twice"),
    (OF_GROUP, {"offsets": [OFFSET | {"topic_name": ".."}]}, 400, 40002, "offsets[0].topic_name"),
    (OF_GROUP, {"offsets": [OFFSET] * 10_001}, 413, 413, "10000"),
    (OF_GROUP, {"offsets": [OFFSET], "member_id": "m"}, 400, 40002, "both or none"),
    (OF_GROUP, {"offsets": [OFFSET], "member_epoch": 1}, 400, 40002, "both or none"),
    (
        OF_GROUP,
        {"offsets": [OFFSET], "member_id": "m", "member_epoch": -1},
        400,
        40002,
        "member_epoch",
    ),
    (OF_GROUP.replace("pilots", "a%07"), ONE, 400, 400, "group_name"),
    # commits of an id
    (f"{TX}/p:commit", ONE, 400, 40002, "'number' is missing"),
    (f"{TX}/p:commit", ONE | {"number": 1}, 400, 40002, "run_id"),
    (f"{TX}/p:commit", ONE | {"epoch": 1}, 400, 40002, "'number' is missing"),
    (f"{TX}/p:commit", ONE | {"epoch": -1, "number": 1}, 400, 40002, "epoch"),
    (f"{TX}/p:commit", ONE | {"epoch": 1, "number": -1}, 400, 40002, "number"),
    (f"{TX}/p:commit", ONE | {"epoch": 1, "number": 1, "run_id": "r"}, 400, 40002, "run_id"),
    (f"{TX}/p:commit", ONE | {"epoch": 1, "number": 1, "input": "i"}, 400, 40002, "input"),
    (f"{TX}/p:commit", ONE | {"number": 1, "run_id": ""}, 400, 40002, "run_id"),
    (f"{TX}/p:commit", ONE | {"number": 1, "run_id": "r" * 65}, 400, 40002, "run_id"),
    (
        f"{TX}/p:commit",
        ONE | {"number": 1, "run_id": "r", "input": "i" * 65},
        400,
        40002,
        "input",
    ),
    (f"{TX}/key:k:commit", ONE | {"epoch": 1}, 400, 40002, "contradicts"),
    (f"{TX}/key:k:commit", ONE | {"number": 1}, 400, 40002, "contradicts"),
    (f"{TX}/key:k:commit", ONE | {"run_id": "r"}, 400, 40002, "contradicts"),
    (f"{TX}/key:{'k' * 129}:commit", ONE, 400, 40002, "transactional_id"),
    (f"{TX}/{'p' * 321}:init", "{}", 400, 40002, "320"),
    (f"{TX}/a%07b:init", "{}", 400, 400, "\u2407"),
    (f"{TX}/a%2Fb:init", "{}", 400, 40002, "transactional_id"),
    (f"{TX}/key:k:init", "{}", 400, 40002, "is a key"),
    (f"{TX}/p:init", '{"epoch":1}', 400, 400, "unknown field"),
    (f"{TX}/key:k:abort", {"epoch": 1, "number": 1}, 400, 40002, "is a key"),
    (f"{TX}/p:abort", {"epoch": 1}, 400, 40002, "'number' is missing"),
    (f"{TX}/p:abort", {"epoch": True, "number": 1}, 400, 40002, "epoch"),
    (f"{TX}/p:abort", {"epoch": 1, "number": 1, "run_id": "r"}, 400, 400, "unknown field"),
]
ATTEMPTS: list[tuple[list[dict[str, Any]], int, str]] = [
    ([], 40002, "empty"),
    ([ATTEMPT, ATTEMPT], 40002, "once more"),
    ([ATTEMPT | {"rows": 0}], 40002, "rows"),
    ([ATTEMPT | {"chunks": 0}], 40002, "chunks"),
    ([ATTEMPT | {"rows": 4}], 40002, "at least one"),
    ([ATTEMPT | {"chunks": 10_001, "rows": 20_000}], 40002, "transaction.max.chunks"),
    (
        [
            {"attempt_id": name, "chunks": 6_000, "rows": 6_000}
            for name in ("a", "b")
        ],
        40002,
        "transaction.max.chunks",
    ),
    ([ATTEMPT | {"attempt_id": "a" * 65}], 40002, "attempt_id"),
    ([ATTEMPT | {"attempt_id": "a b"}], 40002, "attempt_id"),
    ([ATTEMPT | {"rows": "many"}], 400, "attempts"),
    ([{"attempt_id": "a", "chunks": 1}], 400, "rows"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "body", "status", "code", "says"), BAD)
async def test_bad_input_is_refused_with_its_reason(
    door: Door, path: str, body: Any, status: int, code: int, says: str
) -> None:
    answer = await post(door, path, body)
    assert (answer.status, answer.json["error_code"]) == (status, code), answer.json
    assert says in answer.json["message"]
    assert door.apis.requests == []


@pytest.mark.parametrize(("attempts", "code", "says"), ATTEMPTS)
async def test_bad_attempts_are_refused_by_name(
    door: Door, attempts: list[dict[str, Any]], code: int, says: str
) -> None:
    answer = await post(door, f"{TX}/p:commit", {"epoch": 1, "number": 1, "attempts": attempts})
    assert (answer.status, answer.json["error_code"]) == (400, code)
    assert says in answer.json["message"]
    assert door.apis.requests == []


@pytest.mark.parametrize(
    ("key", "code"), [("k" * 129, 40002), ("a b", 40002), ("\xe9", 40002), ("a\tb", 400)]
)
async def test_a_bad_key_is_refused(door: Door, key: str, code: int) -> None:
    answer = await post(door, TX, ONE, Idempotency_Key=key)
    assert (answer.status, answer.json["error_code"]) == (400, code)
    assert "Idempotency-Key" in answer.json["message"]
    assert door.apis.requests == []
    longest = "k" * 128
    assert (await post(door, TX, ONE, Idempotency_Key=longest)).status == 200


@pytest.mark.parametrize(
    ("path", "header"),
    [
        (TX, "Quorumlog-Producer-Id"),
        (TX, "Quorumlog-Transaction"),
        (TX, "Quorumlog-Chunk"),
        (f"{TX}/p:commit", "Idempotency-Key"),
        (f"{TX}/p:init", "Idempotency-Key"),
        (f"{TX}/p:abort", "Quorumlog-Attempt"),
    ],
)
async def test_headers_of_another_request_are_refused(door: Door, path: str, header: str) -> None:
    answer = await door.call("POST", path, "{}", {"Content-Type": JSON, header: "1"})
    assert (answer.status, answer.json["error_code"]) == (400, 40002)
    assert header in answer.json["message"]
    assert door.apis.requests == []


async def test_more_than_one_request_may_commit_is_to_be_staged(door: Door) -> None:
    def body(size: int) -> dict[str, Any]:
        return {"topics": [{"topic_name": "flights", "records": [{"value": "v" * size}]}]}

    for size in (1_048_576, 6_000_000):
        for path in (TX, f"{TX}/p:commit"):
            answer = await post(door, path, body(size) | ({} if path == TX else {"number": 1}))
            assert (answer.status, answer.json["error_code"]) == (413, 413)
            assert "transaction.inline.max.bytes=1048576" in answer.json["message"]
            assert "Quorumlog-Transaction" in answer.json["message"]
    assert door.apis.requests == []
    assert (await post(door, TX, body(1_048_000))).status == 200


async def test_only_json_and_this_cluster_are_served(door: Door) -> None:
    answer = await door.call("POST", TX, "{}", {"Content-Type": "text/plain"})
    assert answer.status == 415
    assert (await door.call("POST", TX, "{}")).status == 415
    assert (await post(door, TX, ONE, Accept="text/html")).status == 406
    assert (await post(door, TX.replace(CLUSTER_ID, "other"), ONE)).status == 404
    refused = await door.call("PUT", f"{TX}/p:init")
    assert refused.status == 405
    assert refused.headers["allow"] == "POST"


async def test_limits_are_those_in_force(door: Door) -> None:
    door.apis.transactions.limits = TransactionLimits(inline_bytes=20, chunks=4, partitions=1)
    rows = [{"topic_name": "flights", "records": [{"value": "v" * 20}]}]
    answer = await post(door, TX, {"topics": rows})
    assert answer.status == 413
    assert "transaction.inline.max.bytes=20 " in answer.json["message"]
    few = [{"topic_name": "flights", "records": [{"value": 1}]}]
    assert (await post(door, TX, {"topics": few})).status == 200
    answer = await post(door, TX, {"topics": few * 2})
    assert "at most 1 partitions (transaction.max.partitions)" in answer.json["message"]
    attempts = {"epoch": 1, "number": 1, "attempts": [ATTEMPT]}
    answer = await post(door, f"{TX}/p:commit", attempts)
    assert "5 chunks: expected at most 4 (transaction.max.chunks)" in answer.json["message"]


def test_the_largest_chunk_is_that_of_the_config() -> None:
    assert row_of(TRANSACTION_MAX_CHUNKS, NumberConfig).maximum == CHUNK_MAX + 1
