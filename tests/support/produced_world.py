"""A producer's core in virtual time, against partitions in memory that lose and refuse requests.

`ProducedWorld` is the shell of a `ProducerCore`: it runs the workers' steps in an order that its
seed decides, answers their requests as a broker with `ProducerStates` does, or loses the request or
the answer, and notes each callback.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import orjson

from broker.log.producer_state import ProducerStates
from http_api.client.calls import Answer, Request
from http_api.client.client_errors import QuorumlogError
from http_api.client.routes import Attempt, LostError, NotSentError
from http_api.client.sdk.client_context import ClientContext
from http_api.client.sdk.producer_core import ProducerCore
from http_api.client.sdk.producer_settings import ProducerConfig
from http_api.client.sdk.record_fields import RecordEncoder
from http_api.client.sdk.record_types import Receipt
from http_api.client.sdk.steps import CallBacks, Pause, Steps
from http_api.contract.errors import REST_STATUS, failure_envelope
from http_api.contract.idempotence import claim_of
from raft_metadata.common.errors import KafkaError

TOPIC = "t"
LATENCY_S = 0.02
LEADERS = 3
"""Partition P is led by the broker ``http://b<P mod LEADERS>:1``."""


@dataclass
class Troubles:
    """Probabilities of what goes wrong with one request."""

    lost_request: float = 0.0
    lost_answer: float = 0.0
    refused: float = 0.0


@dataclass
class Worker:
    """Steps under way: they are sent `value`, or thrown `error`, at a time of the world."""

    steps: Steps[None]
    value: Answer | None = None
    error: Exception | None = None
    group: str = ""
    turn: int = 0
    """Number of its newest event; older ones, such as the end of a pause, mean nothing."""


@dataclass
class Partition:
    """A log of (value, key) and what it knows of its producers."""

    log: list[tuple[Any, Any]] = field(default_factory=list)
    headers: list[list[dict[str, str]]] = field(default_factory=list)
    """Headers of each record of the log."""
    states: ProducerStates = field(default_factory=ProducerStates)


class ProducedWorld:
    """One producer and one topic; owned by a test."""

    def __init__(self, seed: int, troubles: Troubles, partitions: int = 3, **settings: Any) -> None:
        self.random = Random(seed)
        self.troubles = troubles
        self.time_s = 100.0
        self.is_stopping = False
        self.topic_id = "A" * 22
        self.partitions = [Partition() for _ in range(partitions)]
        self.old_partitions: list[Partition] = []
        self.max_message_bytes = 1_000
        self.hanging: set[int] = set()
        """Partitions whose requests are not answered."""
        self.paths: list[str] = []
        """Path of each request that arrived."""
        self.deepest = 0
        self._under_way: dict[int, int] = {}
        self._events: list[tuple[float, int, Worker]] = []
        self._paused: list[Worker] = []
        self._number = 0
        self._ids_given = 0
        config = ProducerConfig(bootstrap_servers=("http://a:1",), **settings)
        self.config = config
        self.encode = RecordEncoder(config).fields
        self.core = ProducerCore(
            config,
            ClientContext("producer", config),
            self.now_s,
            Random(seed),
            is_idempotent=config.acks == "all" and config.enable_idempotence,
        )
        self.outcomes: dict[Any, tuple[QuorumlogError | None, Receipt]] = {}
        self.callbacks: list[tuple[int, Any]] = []
        """Partition and value of each callback, in order."""
        self.start("callbacks", lambda: self.core.callback_steps(self))  # type: ignore[arg-type]

    # the shell

    def now_s(self) -> float:
        return self.time_s

    def start(self, name: str, steps: Callable[[], Steps[None]]) -> None:
        self._schedule(Worker(steps()), 0.0)

    def notify(self) -> None:
        self._wake([each for each in self._paused if not each.group])

    def notify_one(self, group: str) -> None:
        waiting = [each for each in self._paused if each.group == group]
        self._wake(waiting and [self.random.choice(waiting)])

    def _wake(self, workers: list[Worker]) -> None:
        for worker in workers:
            self._paused.remove(worker)
            self._schedule(worker, 0.0)

    def _schedule(self, worker: Worker, seconds: float) -> None:
        self._number += 1
        worker.turn = self._number
        at_s = self.time_s + seconds + self.random.random() * 1e-6
        heapq.heappush(self._events, (at_s, self._number, worker))

    # the program

    def produce(self, value: Any, key: Any = None, partition: int | None = None) -> None:
        """Put a record, whose callback notes the outcome under its value."""

        def on_delivery(error: QuorumlogError | None, receipt: Receipt) -> None:
            assert value not in self.outcomes, f"{value} has two outcomes"
            self.outcomes[value] = (error, receipt)
            self.callbacks.append((receipt.partition, value))

        topic = self.core.topics.by_name.get(TOPIC)
        if topic is None:
            topic = self.run(self.core.topics.learn(TOPIC, 10.0))
        fields = self.encode(value, key, None, None)
        parts = topic.limits and self.core.parts_of(topic.limits, fields, has_headers=False)
        self.core.put(topic, partition, fields, on_delivery, key, value, parts)
        if self.core.has_news:
            self.core.bring_worker(self)  # type: ignore[arg-type]

    def run(self, steps: Steps[Any]) -> Any:
        """Run steps of the program, without faults."""
        try:
            step = next(steps)
            while True:
                assert isinstance(step, Attempt)
                step = steps.send(self._serve(step.request))
        except StopIteration as end:
            return end.value

    def flush(self, most_s: float = 1_000.0) -> bool:
        """Send what is open and run until all has an outcome; False after ``most_s``."""
        batches = self.core.incomplete()
        self.core.seal_all()
        self.core.bring_worker(self)  # type: ignore[arg-type]
        return self.until(lambda: self.core.has_completed(batches), most_s)

    def until(self, is_true: Callable[[], bool], most_s: float) -> bool:
        """Let time pass until a condition holds; False after ``most_s``."""
        until_s = self.time_s + most_s
        while not is_true():
            if not self._events or self._events[0][0] > until_s:
                return False
            at_s, turn, worker = heapq.heappop(self._events)
            if turn != worker.turn:
                continue
            if worker in self._paused:
                self._paused.remove(worker)
            self.time_s = max(self.time_s, at_s)
            self._step(worker)
        return True

    # requests

    def _step(self, worker: Worker) -> None:
        value, error = worker.value, worker.error
        worker.value = worker.error = None
        try:
            step = worker.steps.throw(error) if error else worker.steps.send(value)
        except StopIteration:
            return
        match step:
            case Pause(seconds, group):
                worker.group = group
                self._paused.append(worker)
                if seconds is not None:
                    self._schedule(worker, seconds)
            case CallBacks(calls):
                for function, arguments in calls:
                    function(*arguments)
                self._schedule(worker, 0.0)
            case Attempt():
                self._attempt(worker, step)

    def _attempt(self, worker: Worker, attempt: Attempt) -> None:
        """Have a request arrive, later, and its answer, later still; either may be lost."""
        arrival_s = attempt.wait_s + self.random.random() * LATENCY_S
        if self.random.random() < self.troubles.lost_request:
            worker.error = self.random.choice([LostError("lost"), NotSentError("refused")])
            self._schedule(worker, arrival_s)
            return
        timeout_s = attempt.request.timeout_s
        if attempt.request.leader_key is not None and attempt.request.leader_key[1] in self.hanging:
            worker.error = LostError("timed out")
            self._schedule(worker, timeout_s)
            return

        def arrive() -> Steps[None]:
            answer = self._serve(attempt.request)
            is_lost = self.random.random() < self.troubles.lost_answer
            worker.value = None if is_lost else answer
            worker.error = LostError("lost") if is_lost else None
            answer_s = self.random.random() * LATENCY_S
            self._schedule(worker, min(answer_s, timeout_s))
            yield from ()

        self._schedule(Worker(arrive()), arrival_s)

    def _serve(self, request: Request) -> Answer:
        path = request.path.partition("?")[0]
        self.paths.append(path)
        if path == "/v3/clusters":
            return Answer(status=200, body=b'{"data":[{"cluster_id":"c"}]}')
        if path.endswith("/producer-ids"):
            self._ids_given += 1
            return Answer(status=200, body=b'{"producer_id":%d}' % self._ids_given)
        if path.endswith("/brokers"):
            brokers = [{"broker_id": n, "host": f"b{n}", "port": 1} for n in range(LEADERS)]
            return Answer(status=200, body=orjson.dumps({"data": brokers}))
        rows = [{"partition": n, "leader": n % LEADERS} for n in range(len(self.partitions))]
        if path == f"/topics/{TOPIC}":
            limits = {"max.message.bytes": str(self.max_message_bytes), "cleanup.policy": "delete"}
            return Answer(status=200, body=orjson.dumps({"configs": limits, "partitions": rows}))
        if path == f"/topics/{TOPIC}/partitions":
            return Answer(status=200, body=orjson.dumps(rows))
        number = int(path.rpartition("/")[2])
        if number >= len(self.partitions):
            return self._error(404, 40402, "Partition not found")
        return self.append(request, number)

    def append(self, request: Request, number: int) -> Answer:
        partition = self.partitions[number]
        rows = orjson.loads(request.body or b"")["records"]
        claim = claim_of(request.headers)
        if self.random.random() < self.troubles.refused:
            row = {"partition": None, "offset": None, "error_code": 50003, "error": "FEW: few"}
            row |= {"retriable": True, "outcome": "not_written"}
            return self.answer_of(503, {"offsets": [row] * len(rows)})
        found = None
        if claim is not None:
            try:
                found = partition.states.check(claim, len(rows), 0)
            except KafkaError as error:
                status, code = REST_STATUS[error.code]
                text = failure_envelope(code, error.message, retriable=False, outcome=error.outcome)
                return Answer(status=status, body=text)
        texts = [row["value"] if isinstance(row["value"], str) else "" for row in rows]
        limit = self.max_message_bytes
        for at, (row, text) in enumerate(zip(rows, texts, strict=True)):
            rest = [row.get("key"), row.get("headers", "")]
            if len(orjson.dumps(text)) + sum(len(orjson.dumps(one)) for one in rest) > limit:
                return self._error(413, 413, f"MESSAGE_TOO_LARGE: record {at}: over {limit}")
        bad = [at for at, text in enumerate(texts) if text.startswith("bad")]
        if bad and found is None and claim is not None:
            return self._error(400, 40002, f"INVALID_RECORD: record {bad[0]}: bad")
        base = len(partition.log) if found is None else found.first_offset
        if found is None:
            good = [row for at, row in enumerate(rows) if at not in bad]
            partition.log += [(row["value"], row.get("key")) for row in good]
            partition.headers += [row.get("headers", []) for row in good]
            if claim is not None:
                partition.states.note(claim, base, len(partition.log) - 1, 0, 0)
        if bad:
            return self.answer_of(200, {"offsets": self._rows(number, base, len(rows), bad)})
        ranges = [{"partition": number, "base_offset": base, "count": len(rows)}]
        return self.answer_of(200, {"ranges": ranges})

    def _rows(self, number: int, base: int, count: int, bad: list[int]) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        for at in range(count):
            if at in bad:
                error = {"error_code": 40002, "error": "INVALID_RECORD: bad"}
                rows.append({"partition": None, "offset": None, **error})
            else:
                none = {"error_code": None, "error": None}
                rows.append({"partition": number, "offset": base, **none})
                base += 1
        return rows

    def answer_of(self, status: int, body: object) -> Answer:
        count = str(len(self.partitions))
        headers = {"quorumlog-topic-id": self.topic_id, "quorumlog-partitions": count}
        return Answer(status=status, headers=headers, body=orjson.dumps(body))

    def _error(self, status: int, code: int, message: str) -> Answer:
        body = {"error_code": code, "message": message}
        return Answer(status=status, body=orjson.dumps(body))

    def remake_topic(self, partitions: int) -> None:
        """Delete the topic and create it anew, empty, with another id."""
        self.old_partitions += self.partitions
        self.partitions = [Partition() for _ in range(partitions)]
        self.topic_id = chr(ord(self.topic_id[0]) + 1) * 22
