"""Headers that name a producer, its id, and how refusals look."""

from __future__ import annotations

import pytest

from broker.server.requests import ProduceRequest
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import Claim
from tests.support.fake_broker_apis import CLUSTER_ID
from tests.support.http_door import V3, V3_URL, Answer, Door

JSON_V2 = "application/vnd.kafka.json.v2+json"
NAMES = ("Quorumlog-Producer-Id", "Quorumlog-Producer-Epoch", "Quorumlog-Sequence")
BODY = '{"records":[{"value":1}]}'


async def post(door: Door, path: str, *claim: object) -> Answer:
    return await door.call("POST", path, BODY, headers(*claim))


def headers(*values: object) -> dict[str, str]:
    named = dict(zip(NAMES, map(str, values), strict=False))
    return {"Content-Type": JSON_V2} | {n: v for n, v in named.items() if v != "None"}


async def test_a_claim_reaches_the_broker_whole(door: Door) -> None:
    door.apis.add_topic("t")
    answer = await post(door, "/topics/t/partitions/0", 7, 2, 41)
    assert answer.status == 200
    (request,) = (each for each in door.apis.requests if isinstance(each, ProduceRequest))
    assert request.claim == Claim(7, 2, 41)


@pytest.mark.parametrize(
    ("values", "named", "expected"),
    [
        ((7, 0, None), "Quorumlog-Sequence", "all three or none"),
        ((None, None, 3), "Quorumlog-Producer-Id", "all three or none"),
        (("x", 0, 0), "Quorumlog-Producer-Id", "an integer from 0 to 4611686018427387903"),
        ((1 << 62, 0, 0), "Quorumlog-Producer-Id", "an integer from 0 to 4611686018427387903"),
        ((7, 32768, 0), "Quorumlog-Producer-Epoch", "an integer from 0 to 32767"),
        ((7, 0, -1), "Quorumlog-Sequence", "an integer from 0 to 2147483647"),
        ((7, 0, 2**31), "Quorumlog-Sequence", "an integer from 0 to 2147483647"),
        ((7, 0, "1.0"), "Quorumlog-Sequence", "an integer from 0 to 2147483647"),
    ],
)
async def test_bad_headers_are_refused_by_name(
    door: Door, values: tuple[object, ...], named: str, expected: str
) -> None:
    door.apis.add_topic("t")
    answer = await post(door, "/topics/t", *values)
    assert (answer.status, answer.json["error_code"]) == (400, 40002)
    assert named in answer.json["message"]
    assert expected in answer.json["message"]
    assert door.apis.requests == []


@pytest.mark.parametrize(
    ("code", "rest_code", "outcome"),
    [
        (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, 40904, "not_written"),
        (ErrorCode.INVALID_PRODUCER_EPOCH, 40905, "not_written"),
        (ErrorCode.DUPLICATE_SEQUENCE_NUMBER, 40906, "unknown"),
    ],
)
async def test_a_refused_claim_is_a_conflict_that_says_what_it_left(
    door: Door, code: ErrorCode, rest_code: int, outcome: str
) -> None:
    door.apis.add_topic("t")
    door.apis.produce_error = KafkaError(code, "expected 4")
    answer = await post(door, "/topics/t", 7, 0, 9)
    assert answer.status == 409
    assert answer.json == {
        "error_code": rest_code,
        "message": f"{code.name}: expected 4",
        "retriable": False,
        "outcome": outcome,
    }


async def test_each_producer_id_is_a_new_one(door: Door) -> None:
    answers = [
        await door.call("POST", f"{V3}/producer-ids"),
        await door.call("POST", f"{V3}/producer-ids", "{}", {"Content-Type": "application/json"}),
    ]
    assert [(answer.status, answer.type) for answer in answers] == [(200, "application/json")] * 2
    first, second = (answer.json for answer in answers)
    number = first["producer_id"]
    assert number != second["producer_id"]
    assert first == {
        "kind": "KafkaProducerId",
        "metadata": {
            "self": f"{V3_URL}/producer-ids/{number}",
            "resource_name": f"crn:///kafka={CLUSTER_ID}/producer-id={number}",
        },
        "cluster_id": CLUSTER_ID,
        "producer_id": number,
        "producer_epoch": 0,
    }
    other = await door.call("POST", "/v3/clusters/nobody/producer-ids")
    assert other.status == 404
    unknown = await door.call(
        "POST", f"{V3}/producer-ids", '{"count":2}', {"Content-Type": "application/json"}
    )
    assert unknown.status == 400
