"""The SDK's producer against a log in memory whose answers are lost: each value there once."""

from __future__ import annotations

import asyncio
import time
from random import Random
from typing import Any, TypeVar, cast

import orjson
import pytest
from typing_extensions import override

from broker.log.producer_state import ProducerStates
from http_api.client.async_client import AsyncClient
from http_api.client.calls import Answer, Call, error_of
from http_api.client.client_errors import ApiError, OutcomeUnknownError, UnreachableError
from http_api.client.idempotent import AsyncProducer, Producer
from http_api.client.producer import JsonRecord, json_text
from http_api.client.transport import Client
from http_api.contract.errors import REST_STATUS, failure_envelope
from http_api.contract.idempotence import claim_of
from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome
from raft_metadata.common.ids import EPOCH_MAX, Claim
from raft_metadata.common.sequenced_sender import PendingProduce, SequencedSender
from tests.support.doors.http import sender_of, set_producer_epoch
from tests.support.waiting import until

T = TypeVar("T")


class Broker:
    """Three partitions; loses requests, answers, and refuses, as it is told."""

    def __init__(self, seed: int, trouble: float) -> None:
        self.random = Random(seed)
        self.trouble = trouble
        self.logs: list[list[object]] = [[], [], []]
        self.states = [ProducerStates() for _ in self.logs]
        self.leaders = [1, 1, 1]
        self.lookups = 0
        self.requests = self.under_way = self.most_under_way = 0

    def answer(self, method: str, path: str, headers: dict[str, str], body: bytes | None) -> Answer:
        if path == "/v3/clusters":
            return Answer(status=200, body=b'{"data":[{"cluster_id":"c"}]}')
        if path == "/v3/clusters/c/producer-ids":
            return Answer(status=200, body=b'{"producer_id":7}')
        if path == "/topics/t/partitions":
            self.lookups += 1
            rows = [{"partition": n, "leader": leader} for n, leader in enumerate(self.leaders)]
            return Answer(status=200, body=orjson.dumps(rows))
        assert method == "POST"
        number = int(path.partition("?")[0].rpartition("/")[2])
        self.requests += 1
        if self.random.random() < self.trouble:
            raise OutcomeUnknownError  # never came
        claim = claim_of(headers)
        assert claim is not None
        values = [row["value"] for row in orjson.loads(body or b"")["records"]]
        log = self.logs[number]
        if self.random.random() < self.trouble:
            row = {"partition": None, "offset": None, "error_code": 50003, "error": "few"}
            row |= {"retriable": True, "outcome": "not_written"}
            return Answer(status=503, body=orjson.dumps({"offsets": [row] * len(values)}))
        try:
            found = self.states[number].check(claim, len(values), 0)
        except KafkaError as error:
            status, code = REST_STATUS[error.code]
            text = failure_envelope(code, error.message, retriable=False, outcome=error.outcome)
            return Answer(status=status, body=text)
        base = len(log) if found is None else found.first_offset
        if found is None:
            log += values
            self.states[number].note(claim, base, len(log) - 1, 0, 0)
        if self.random.random() < self.trouble:
            raise OutcomeUnknownError  # done, and nobody hears of it
        rows = [
            {"partition": number, "offset": base + at, "error_code": None, "error": None}
            for at in range(len(values))
        ]
        return Answer(status=200, body=orjson.dumps({"offsets": rows}))

    def settle(self, call: Call[T]) -> T:
        request = call.request
        answer = self.answer(request.method, request.path, request.headers, request.body)
        if answer.status >= 400 and answer.status not in request.parsed_error_statuses:
            raise error_of(answer)
        return call.parse(answer)

    def run(self, call: Call[T], **_: Any) -> T:
        return self.settle(call)


class AsyncBroker(Broker):
    @override
    async def run(self, call: Call[T], **_: Any) -> T:  # type: ignore[override]
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            await asyncio.sleep(self.random.choice([0, 0.001, 0.004]))  # another connection each
            return self.settle(call)
        finally:
            self.under_way -= 1


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("http_api.client.idempotent.PAUSE_S", 0.0)


def values(log: list[object], key: int) -> list[object]:
    return [value for value in log if isinstance(value, list) and value[0] == key]


@pytest.mark.parametrize("seed", range(8))
async def test_invariant_t1_many_sends_at_once_are_there_once_and_in_order(seed: int) -> None:
    broker = AsyncBroker(seed, 0.15 if seed else 0.0)
    async with AsyncProducer(cast("AsyncClient", broker), "t") as producer:
        sends = [
            producer.send([JsonRecord(json_text([key, number]), json_text(f"key-{key}"))])
            for number in range(30)
            for key in range(4)
        ]
        told = [outcome for [outcome] in await asyncio.gather(*sends)]
    assert all(outcome.is_written for outcome in told)
    for key in range(4):
        [log] = [log for log in broker.logs if values(log, key)]
        assert values(log, key) == [[key, number] for number in range(30)]
    for number, outcome in enumerate(told):
        assert outcome.partition is not None
        assert outcome.offset is not None
        assert broker.logs[outcome.partition][outcome.offset] == [number % 4, number // 4]
    if not seed:
        assert broker.most_under_way > 3, "several are under way"
        epochs = {known.epoch for states in broker.states for _, known in states.items()}
        assert epochs == {0}, "one that overtakes another has its turn, nothing is given up"


@pytest.mark.parametrize("seed", range(4))
def test_invariant_t1_the_blocking_producer_repeats_until_it_is_known(seed: int) -> None:
    broker = Broker(seed, 0.3)
    producer = Producer(cast("Client", broker), "t")
    for number in range(40):
        outcomes = producer.send([JsonRecord(json_text([0, number]), partition=1)] * 2)
        assert [outcome.offset for outcome in outcomes] == [2 * number, 2 * number + 1]
    assert broker.logs[1] == [[0, number // 2] for number in range(80)]
    assert broker.requests > 40


def test_keyless_batches_pass_a_partition_without_a_leader() -> None:
    broker = Broker(1, 0.0)
    broker.leaders = [1, -1, 2]
    producer = Producer(cast("Client", broker), "t")
    for number in range(6):
        outcomes = producer.send([JsonRecord(b"%d" % number)] * 2)
        assert all(outcome.is_written for outcome in outcomes)
    assert [len(log) for log in broker.logs] == [6, 0, 6]


def test_a_producer_learns_again_which_partitions_have_leaders(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker = Broker(1, 0.0)
    producer = Producer(cast("Client", broker), "t")
    producer.send([JsonRecord(b"0")])
    broker.leaders = [-1, 1, -1]
    monkeypatch.setattr("http_api.client.idempotent.LEADERS_AGE_S", 60.0)
    at_s = time.monotonic()
    monkeypatch.setattr("http_api.client.idempotent.time.monotonic", lambda: at_s + 6)
    before = [len(log) for log in broker.logs]
    for number in range(4):
        producer.send([JsonRecord(b"%d" % number)])
    after = [len(log) for log in broker.logs]
    assert [end - start for start, end in zip(before, after, strict=True)] == [0, 4, 0]


async def test_an_async_producer_learns_it_beside_its_sends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("http_api.client.idempotent.LEADERS_AGE_S", 0.0)
    broker = AsyncBroker(1, 0.0)
    async with AsyncProducer(cast("AsyncClient", broker), "t") as producer:
        broker.leaders = [1, 1, -1]
        await producer.send([JsonRecord(b"0", partition=2)])  # places nothing, asks nothing
        assert broker.lookups == 1
        await producer.send([JsonRecord(b"1", partition=0), JsonRecord(b"1")])
        await until(lambda: broker.lookups >= 2)
        before = len(broker.logs[2])
        for number in range(6):
            await producer.send([JsonRecord(b"%d" % number)])
    assert len(broker.logs[2]) == before


def test_an_unknown_outcome_does_not_stop_later_batches() -> None:
    broker = Broker(1, 1.0)
    producer = Producer(cast("Client", broker), "t")
    [unknown] = producer.send([JsonRecord(b"1", partition=0)], retry_s=0.05)
    assert (unknown.is_written, unknown.outcome) == (False, Outcome.UNKNOWN)
    broker.trouble = 0.0
    [after] = producer.send([JsonRecord(b"2", partition=0)], retry_s=0.5)
    assert after.is_written
    assert broker.logs[0] == [2], "the next epoch begins with 0, the old sequence is given up"


def test_a_batch_refused_for_good_is_not_sent_again() -> None:
    broker = Broker(1, 0.0)

    def refuse(*_: object) -> Answer:
        broker.requests += 1
        raise ApiError(413, 413, "a record is larger than 5 bytes", {})

    producer = Producer(cast("Client", broker), "t")
    producer.send([JsonRecord(b"1", partition=0)])
    broker.answer, usual = refuse, broker.answer  # type: ignore[assignment, method-assign]
    before = broker.requests
    [refused] = producer.send([JsonRecord(b"2", partition=0)])
    assert (refused.is_written, refused.outcome) == (False, Outcome.NOT_WRITTEN)
    assert broker.requests == before + 1
    broker.answer = usual  # type: ignore[method-assign]
    assert producer.send([JsonRecord(b"3", partition=0)])[0].offset == 1


def test_a_send_is_answered_though_no_controller_gives_another_id() -> None:
    """Its records stayed queued instead, and were written with the next send."""
    broker = Broker(1, 0.0)
    producer = Producer(cast("Client", broker), "t")
    producer.send([JsonRecord(b"1", partition=0)])
    set_producer_epoch(sender_of(producer, 0), EPOCH_MAX - 5, sequence=0)
    usual = broker.answer

    def no_ids(method: str, path: str, headers: dict[str, str], body: bytes | None) -> Answer:
        if path.endswith("/producer-ids"):
            raise UnreachableError("no controller")
        return usual(method, path, headers, body)

    broker.answer = no_ids  # type: ignore[method-assign]
    [second] = producer.send([JsonRecord(b"2", partition=0)])
    assert second.is_written
    assert broker.logs[0] == [1, 2]


async def test_a_send_that_waits_for_another_producer_id_is_written_once_there_is_one() -> None:
    broker = AsyncBroker(1, 0.0)
    usual = broker.answer
    ids_are_out = refuses = True

    def answer(method: str, path: str, headers: dict[str, str], body: bytes | None) -> Answer:
        if path.endswith("/producer-ids"):
            if ids_are_out:
                raise UnreachableError("no controller")
            return Answer(status=200, body=b'{"producer_id":8}')
        if method == "POST" and path.startswith("/topics") and refuses:
            raise ApiError(413, 413, "a record is larger than 5 bytes", {})
        return usual(method, path, headers, body)

    async with AsyncProducer(cast("AsyncClient", broker), "t") as producer:
        await producer.send([JsonRecord(b"1", partition=0)])
        set_producer_epoch(sender_of(producer, 0), EPOCH_MAX, sequence=0)
        broker.answer = answer  # type: ignore[method-assign]
        [refused] = await producer.send([JsonRecord(b"2", partition=0)])
        assert refused.outcome is Outcome.NOT_WRITTEN
        waiting = asyncio.ensure_future(producer.send([JsonRecord(b"3", partition=0)], retry_s=5.0))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not waiting.done(), "the last epoch of this id is used up"
        ids_are_out = refuses = False
        [written] = await waiting
    assert written.is_written
    assert broker.logs[0] == [1, 3]


def test_a_channel_whose_epochs_are_used_up_goes_on_under_another_id() -> None:
    channel = SequencedSender(7)
    set_producer_epoch(channel, EPOCH_MAX - 1)
    told: list[int] = []
    refused = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)
    claims = []
    for number in range(4):
        channel.add(PendingProduce(b"1", 1, (), 1_000, lambda base, _: told.append(base)))
        crossing = channel.due()
        if crossing is None:
            assert channel.needs_producer_id
            channel.spare_producer_id = 8
            channel.expire(0)
            crossing = channel.due()
        assert crossing is not None
        claims.append(crossing.claim)
        if number < 3:
            channel.failed(crossing, refused)
        else:
            channel.succeeded(crossing, 5)
    assert claims == [
        Claim(7, EPOCH_MAX - 1, 0), Claim(7, EPOCH_MAX, 0), Claim(8, 0, 0), Claim(8, 1, 0),
    ]  # fmt: skip
    assert told == [-1, -1, -1, 5]
