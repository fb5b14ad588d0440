"""A producer's transactions in virtual time, against a home in memory that loses what it is told.

`HomeStandIn` is the shell of a `TransactionCore`, its brokers, and the home that decides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import orjson
import pytest

from http_api.client.calls import Answer, Request
from http_api.client.client_errors import (
    ApiError,
    CommittingError,
    ConfigError,
    FencedError,
    OutcomeUnknownError,
    QuorumlogError,
    TransactionAbortedError,
    TransactionStateError,
)
from http_api.client.routes import Attempt, LostError
from http_api.client.sdk.client_context import ClientContext
from http_api.client.sdk.producer_settings import ProducerConfig
from http_api.client.sdk.producer_topics import TopicState
from http_api.client.sdk.record_fields import RecordEncoder
from http_api.client.sdk.record_types import ConsumerGroupMetadata, Receipt, TopicPartition
from http_api.client.sdk.steps import CallBacks, Pause, Steps
from http_api.client.sdk.transaction_core import TransactionCore
from http_api.contract.transaction_headers import staging_of
from raft_metadata.common.errors import Outcome

T = TypeVar("T")
TOPIC_ID = "A" * 22
Position = tuple[str | None, int, int]


@dataclass
class HomeStandIn:
    """One home for each group, and one without; each request may be lost before or behind it."""

    settings: dict[str, Any] = field(default_factory=dict)
    time_s: float = 100.0
    is_stopping: bool = False

    def __post_init__(self) -> None:
        self.epochs: dict[str | None, int] = {}
        self.decided: dict[Position, bytes] = {}
        self.aborted: set[Position] = set()
        self.last: dict[str | None, tuple[int, int, str]] = {}
        self.chunks: dict[tuple[str, int], bytes] = {}
        self.asked: list[str] = []
        """Last part of the path of each request."""
        self.commits: list[bytes] = []
        self.refusals: list[tuple[int, int]] = []
        """(status, code) of the next commits, and aborts of what is decided."""
        self.states: list[str] = []
        """States that the next commits are answered, in place of complete."""
        self.chunk_max_bytes = 1_048_576
        self.lost: list[dict[str, Any]] = []
        """Lost rows of what was decided, as aborts are answered."""
        self.lost_requests = 0
        self.lost_answers = 0
        self.most_under_way = 0
        self.outcomes: list[tuple[QuorumlogError | None, Receipt]] = []
        self._workers: list[Any] = []
        given = {"transactional_id": "t"} | self.settings
        config = ProducerConfig(bootstrap_servers=("http://a:1",), **given)
        context = ClientContext("producer", config)
        context.routes.check("http://a:1", "C")
        self.core = TransactionCore(config, context, self.now_s)
        self.encode = RecordEncoder(config).fields
        self.topics = {name: TopicState(name, [True] * 3, 0, 0) for name in ("a", "b")}

    # the shell

    def now_s(self) -> float:
        return self.time_s

    def start(self, name: str, steps: Callable[[], Steps[None]]) -> None:
        self._workers.append([steps(), None, name])

    def notify(self) -> None:
        pass

    def notify_one(self, group: str) -> None:
        pass

    def run(self, steps: Steps[T]) -> T:
        """Run steps, and all workers while they pause."""
        value: Any = None
        error: Exception | None = None
        for _ in range(10_000):
            try:
                step = steps.throw(error) if error is not None else steps.send(value)
            except StopIteration as end:
                found: T = end.value
                return found
            value, error = None, None
            match step:
                case Attempt():
                    try:
                        value = self.answer(step.request)
                    except LostError as lost:
                        error = lost
                case Pause():
                    self.turn()
                case CallBacks():
                    for function, arguments in step.calls:
                        function(*arguments)
        msg = "the steps have no end"
        raise AssertionError(msg)

    def turn(self) -> None:
        """Let time pass: each worker ends its step, all of them then begin the next."""
        self.time_s += 0.1
        begun = [(worker, worker[1]) for worker in self._workers if worker[1] is not None]
        self.most_under_way = max(self.most_under_way, len(begun))
        for worker, request in reversed(begun):  # answers come in another order than requests
            try:
                worker[1] = self._next(worker, self.answer(request))
            except LostError as lost:
                worker[1] = self._next(worker, None, lost)
        for worker in self._workers:
            if worker[1] is None:
                worker[1] = self._next(worker, None)

    def _next(self, worker: Any, value: Any, error: Exception | None = None) -> Request | None:
        step = worker[0].throw(error) if error is not None else worker[0].send(value)
        return step.request if isinstance(step, Attempt) else None

    # the brokers

    def answer(self, request: Request) -> Answer:
        path = request.path.partition("?")[0]
        if path == "/v3/clusters":
            return Answer(status=200, body=b'{"data":[{"cluster_id":"C"}]}')
        self.asked.append(path.rpartition("/")[2])
        if self.lost_requests:
            self.lost_requests -= 1
            raise LostError("lost")
        status, body = self._answer(path, request)
        if self.lost_answers:
            self.lost_answers -= 1
            raise LostError("lost")
        return Answer(status=status, body=orjson.dumps(body))

    def _answer(self, path: str, request: Request) -> tuple[int, Any]:
        if path.startswith("/topics/"):
            return self._stage(request)
        parts = path.split("/")
        group = parts[5] if "consumer-groups" in parts else None
        body = orjson.loads(request.body or b"{}")
        if path.endswith(":init"):
            epoch = self.epochs[group] = self.epochs.get(group, 0) + 1
            names = ("epoch", "number", "state")
            last = self.last.get(group)
            known = None if last is None else dict(zip(names, last, strict=True), lost_rows=0)
            row = {"transaction_id": "t", "group_id": group, "epoch": epoch, "last": known}
            return 200, row | {"forgotten_to_epoch": 0, "chunk_max_bytes": self.chunk_max_bytes}
        at = (group, body["epoch"], body["number"])
        if at in self.decided and path.endswith(":abort"):
            return 200, {"state": "complete", "lost": self.lost}
        if at not in self.decided and body["epoch"] < self.epochs[group]:
            return refusal(409, 40907)
        if path.endswith(":abort"):
            self.aborted.add(at)
            return 200, {"state": "aborted", "lost": []}
        return self._commit(at, request.body or b"", body)

    def _stage(self, request: Request) -> tuple[int, Any]:
        staging = staging_of(request.headers)
        assert staging is not None
        if len(request.body or b"") > self.chunk_max_bytes:
            return refusal(413, 413)
        known = self.chunks.setdefault((staging.attempt_id, staging.chunk), request.body or b"")
        assert known == request.body, "a repeat says the same"
        rows = orjson.loads(request.body or b"")["records"]
        row = {"partition": 0, "offset": None, "error_code": None, "error": None}
        return 200, {"offsets": [row] * len(rows)}

    def _commit(self, at: Position, text: bytes, body: dict[str, Any]) -> tuple[int, Any]:
        self.commits.append(text)
        if self.refusals:
            return refusal(*self.refusals.pop(0))
        assert self.decided.setdefault(at, text) == text, "a repeat says the same"
        self.last[at[0]] = (at[1], at[2], "complete")
        for attempt in body.get("attempts", ()):
            held = [one for one in self.chunks if one[0] == attempt["attempt_id"]]
            assert len(held) == attempt["chunks"]
        state = self.states.pop(0) if self.states else "complete"
        counts: dict[tuple[str, int], int] = {}
        for topic in body.get("topics", ()):
            for record in topic["records"]:
                place = (topic["topic_name"], record["partition"])
                counts[place] = counts.get(place, 0) + 1
        rows = [
            {"topic_name": name, "topic_id": TOPIC_ID, "partition_id": number}
            | {"base_offset": 50, "rows": count}
            for (name, number), count in counts.items()
        ]
        found = {"transaction_id": "t", "group_id": at[0], "epoch": at[1], "number": at[2]}
        found |= {"state": state, "already": False, "rows": 0, "partitions": rows}
        return 200 if state == "complete" else 202, found | {
            "pending": [],
            "dropped": [],
            "lost": [],
        }

    # the program

    def begin(self) -> None:
        self.run(self.core.begin_steps(None))

    def produce(
        self,
        value: Any,
        topic: str = "a",
        key: Any = None,
        partition: int = 0,
        *,
        is_awaited: bool = True,
    ) -> None:
        self.core.check_open()
        self.core.check_room()
        fields = self.encode(value, key, None, None)
        awaiting = self._deliver if is_awaited else None
        self.core.put(self.topics[topic], partition, fields, awaiting, key, value, None)
        self.core.bring_stagers(self)  # type: ignore[arg-type]

    def _deliver(self, error: QuorumlogError | None, receipt: Receipt) -> None:
        self.outcomes.append((error, receipt))

    def commit(self, timeout_s: float | None = None) -> Any:
        return self.run(self.core.commit_steps(self, timeout_s))  # type: ignore[arg-type]

    def abort(self) -> None:
        self.run(self.core.abort_steps(None))

    def send_offsets(self, group: ConsumerGroupMetadata, offset: int = 7) -> None:
        self.run(self.core.offsets_steps([TopicPartition("in", 0, offset)], group, None))


def refusal(status: int, code: int, outcome: str = "not_written") -> tuple[int, Any]:
    text = {"error_code": code, "message": "refused", "retriable": status == 503}
    return status, text | {"outcome": outcome}


def test_a_small_transaction_travels_with_its_commit_and_its_records_have_offsets() -> None:
    home = HomeStandIn()
    home.begin()
    for number in range(3):
        home.produce({"n": number})
    home.produce(b"\x00", topic="b", key="k")
    assert home.outcomes == []
    home.commit()
    assert home.asked == ["t:init", "t:commit"]
    body = orjson.loads(home.commits[0])
    assert [one["format"] for one in body["topics"]] == ["json", "binary"]
    assert [one["value"] for one in body["topics"][0]["records"]] == [{"n": n} for n in range(3)]
    assert body["topics"][1]["records"] == [{"value": "AA==", "key": "Imsi", "partition": 0}]
    assert [(one.topic, one.offset) for _, one in home.outcomes] == [
        *(("a", 50 + number) for number in range(3)),
        ("b", 50),
    ]


def test_a_large_one_is_staged_in_the_order_of_its_records_by_several_requests() -> None:
    home = HomeStandIn({"batch_size": 1_000, "transactional_group": ""})
    home.begin()
    for number in range(2_000):
        home.produce([number, "x" * 90])
        if number % 20 == 0:
            home.turn()
    home.commit()
    chunks = [home.chunks[one] for one in sorted(home.chunks)]
    sent = [row["value"][0] for chunk in chunks for row in orjson.loads(chunk)["records"]]
    assert sent == list(range(2_000))
    assert {attempt for attempt, _ in home.chunks} == {"1.0"}
    assert home.most_under_way > 1
    body = orjson.loads(home.commits[0])
    assert body["attempts"] == [{"attempt_id": "1.0", "chunks": len(chunks), "rows": 2_000}]
    assert "topics" not in body
    assert len(home.outcomes) == 2_000
    assert {one.offset for _, one in home.outcomes} == {None}


@pytest.mark.parametrize(
    ("chunk_max_bytes", "value_bytes"),
    [(1_048_576, 600_000), (4_000, 1_000), (4_000, 3_900), (4_000, 1)],
)
def test_chunks_stay_below_the_limit_of_the_brokers(chunk_max_bytes: int, value_bytes: int) -> None:
    """The init tells it; no record goes into a chunk that it would make too large."""
    home = HomeStandIn({"batch_size": 1_000_000, "transactional_group": ""})
    home.chunk_max_bytes = chunk_max_bytes
    home.begin()
    for number in range(3_000 if value_bytes == 1 else 200_000 // value_bytes + 20):
        home.produce([number, "x" * value_bytes])
    home.commit()
    sizes = [len(one) for one in home.chunks.values()]
    assert max(sizes) <= chunk_max_bytes
    assert min(sizes[:-1]) > chunk_max_bytes // 2 or value_bytes * 2 > chunk_max_bytes


@pytest.mark.parametrize(("requests", "answers"), [(0, 1), (2, 0), (1, 3), (0, 4)])
def test_a_lost_commit_is_repeated_as_it_was(requests: int, answers: int) -> None:
    home = HomeStandIn()
    home.begin()
    home.produce(1)
    home.lost_requests, home.lost_answers = requests, answers
    home.commit()
    assert set(home.decided) == {(None, 1, 0)}
    assert len(set(home.commits)) == 1
    home.begin()
    home.produce(2)
    home.commit()
    assert set(home.decided) == {(None, 1, 0), (None, 1, 1)}
    assert [error for error, _ in home.outcomes] == [None, None]


def test_lost_chunks_are_repeated_as_they_were() -> None:
    home = HomeStandIn({"batch_size": 1_000, "transactional_group": ""})
    home.begin()
    for number in range(1_000):
        home.produce([number, "x" * 90])
    home.lost_requests, home.lost_answers = 2, 5
    home.commit()
    assert home.asked.count("a") == len(home.chunks) + 7


def test_a_commit_without_an_answer_is_unknown_and_may_be_repeated() -> None:
    home = HomeStandIn()
    home.begin()
    home.produce(1)
    home.lost_answers = 1_000
    with pytest.raises(OutcomeUnknownError):
        home.commit(0.0)
    assert home.outcomes == []
    with pytest.raises(TransactionStateError):
        home.begin()
    home.lost_answers = 0
    assert home.commit().state == "complete"
    assert len(set(home.commits)) == 1
    assert [error for error, _ in home.outcomes] == [None]


def test_an_abort_behind_a_commit_of_unknown_outcome_tells_what_was_decided() -> None:
    home = HomeStandIn()
    home.begin()
    home.produce(1)
    home.lost_answers = 1
    with pytest.raises(OutcomeUnknownError):
        home.commit(0.0)
    with pytest.raises(CommittingError, match="committed before") as late:
        home.abort()
    assert not late.value.retriable, "the next abort would say that it is aborted"
    assert [error for error, _ in home.outcomes] == [None]
    home.begin()
    home.produce(2)
    home.lost_requests = 1
    with pytest.raises(OutcomeUnknownError):
        home.commit(0.0)
    home.abort()
    assert home.aborted == {(None, 1, 1)}
    assert isinstance(home.outcomes[1][0], TransactionAbortedError)


def test_a_decided_one_that_is_not_complete_in_time_says_so() -> None:
    home = HomeStandIn()
    home.begin()
    home.produce(1)
    home.states = ["committing"] * 3
    assert home.commit(5.0).state == "complete"
    home.begin()
    home.produce(2)
    home.states = ["committing"] * 3
    with pytest.raises(CommittingError) as waiting:
        home.commit(0.0)
    assert waiting.value.retriable
    assert [error for error, _ in home.outcomes] == [None, None]
    with pytest.raises(CommittingError) as late:
        home.abort()
    assert not late.value.retriable
    home.begin()
    home.produce(3)
    home.commit()
    assert [at[2] for at in home.decided] == [0, 1, 2]


def test_a_decided_one_that_can_not_be_asked_about_has_outcomes() -> None:
    home = HomeStandIn()
    home.begin()
    home.produce(1)
    home.states = ["committing"]
    home.turn = lambda: home.refusals.append((404, 40403))  # type: ignore[method-assign]
    with pytest.raises(CommittingError, match="not known"):
        home.commit(5.0)
    assert [(error, receipt.offset) for error, receipt in home.outcomes] == [(None, None)]


def test_what_comes_while_a_commit_waits_for_chunks_is_refused() -> None:
    home = HomeStandIn({"transactional_group": "", "batch_size": 1_000})
    home.begin()
    for number in range(1_000):
        home.produce([number, "x" * 90])
    refused = []

    def turn() -> None:
        if not refused:
            with pytest.raises(TransactionStateError, match="being committed"):
                home.produce("late")
            refused.append(True)
        HomeStandIn.turn(home)

    home.turn = turn  # type: ignore[method-assign]
    home.commit()
    assert refused
    assert len(home.outcomes) == 1_000
    assert home.commits


def test_rule_s3_a_commit_whose_rows_are_lost_is_an_error_and_over() -> None:
    """It is decided: its offsets moved, and the next transaction has the next number."""
    home = HomeStandIn({"transactional_group": "g"})
    group = ConsumerGroupMetadata("g", expected={("in", 0): -1})
    for states in ([], ["committing"]):
        home.begin()
        home.send_offsets(group, 7)
        home.produce(1)
        home.states = states
        if states:
            with pytest.raises(CommittingError):
                home.commit(0.0)
        home.refusals = [(500, 50004, "unknown")]
        with pytest.raises(ApiError) as caught:
            home.commit()
        assert (caught.value.code, caught.value.retriable) == (50004, False)
        assert group.expected == {("in", 0): 7}
    assert [getattr(error, "code", None) for error, _ in home.outcomes] == [50004, None]
    home.begin()
    home.produce(3)
    home.commit()
    assert max(home.decided) == ("g", 1, 2)


def test_rule_s3_an_abort_of_a_commit_whose_rows_are_lost_is_the_error_of_its_repeat() -> None:
    home = HomeStandIn({"transactional_group": "g"})
    group = ConsumerGroupMetadata("g", expected={("in", 0): -1})
    home.begin()
    home.send_offsets(group, 7)
    home.produce(1)
    home.lost_answers = 1
    with pytest.raises(OutcomeUnknownError):
        home.commit(0.0)
    place = {"topic_id": TOPIC_ID, "partition_id": 3}
    home.lost = [
        place | {"topic_name": "a", "rows": 2},
        place | {"topic_name": None, "topic_id": "gone", "rows": 1},
    ]
    rows = "lost 2 rows for partition 3 of a, 1 rows for partition 3 of gone"
    with pytest.raises(ApiError, match=f"committed before, and .* {rows}") as caught:
        home.abort()
    assert (caught.value.code, caught.value.retriable) == (50004, False)
    assert caught.value.outcome is Outcome.UNKNOWN
    assert group.expected == {("in", 0): 7}, "its offsets moved"
    assert [getattr(error, "code", None) for error, _ in home.outcomes] == [50004]
    home.begin()
    home.produce(2)
    home.commit()
    assert max(home.decided) == ("g", 1, 1)


def test_what_was_not_sent_is_aborted_without_a_request() -> None:
    home = HomeStandIn()
    home.begin()
    home.produce(1)
    home.abort()
    home.begin()
    home.commit()
    assert home.asked == ["t:init"]
    assert isinstance(home.outcomes[0][0], TransactionAbortedError)


def test_a_fenced_producer_is_over() -> None:
    home = HomeStandIn()
    home.begin()
    home.produce(1)
    home.epochs[None] = 2
    with pytest.raises(FencedError) as caught:
        home.commit()
    assert caught.value.code == 40907
    assert [type(error) for error, _ in home.outcomes] == [FencedError]
    for call in (home.begin, home.commit, lambda: home.produce(2)):
        with pytest.raises(FencedError):
            call()


def test_a_refused_commit_can_only_be_aborted() -> None:
    home = HomeStandIn()
    home.begin()
    home.send_offsets(ConsumerGroupMetadata("g", "m", 4))
    home.produce(1)
    home.refusals = [(409, 40903)]
    with pytest.raises(ApiError):
        home.commit()
    for call in (home.commit, lambda: home.produce(2)):
        with pytest.raises(ApiError):
            call()
    home.abort()
    assert [getattr(error, "code", None) for error, _ in home.outcomes] == [40903]
    home.begin()
    home.produce(3)
    home.send_offsets(ConsumerGroupMetadata("g", "m", 4))
    home.commit()
    assert set(home.decided) == {("g", 1, 1)}


@pytest.mark.parametrize(("status", "code"), [(404, 40403), (409, 40903), (409, 40912)])
def test_rule_s7_a_refusal_behind_a_lost_answer_leaves_the_outcome_unknown(
    status: int, code: int
) -> None:
    """Rule S7: the lost attempt may be decided later, when offsets or members have changed."""
    home = HomeStandIn()
    home.begin()
    home.produce(1)
    home.lost_requests = 1
    home.refusals = [(status, code)]
    with pytest.raises(OutcomeUnknownError):
        home.commit()
    home.commit()
    assert set(home.decided) == {(None, 1, 0)}


@pytest.mark.parametrize("cancelled", [True, False])
def test_rule_s7_a_refusal_behind_an_attempt_that_may_have_written_is_unknown(
    cancelled: bool,
) -> None:
    """The attempt was cancelled, or a broker answered that its outcome is not known."""
    home = HomeStandIn()
    home.begin()
    home.produce(1)
    if cancelled:
        steps = home.core.commit_steps(home, None)  # type: ignore[arg-type]
        step = next(steps)
        while not (isinstance(step, Attempt) and ":commit" in step.request.path):
            assert isinstance(step, Attempt)
            step = steps.send(home.answer(step.request))
        steps.close()
    else:
        home.refusals = [(503, 50308, "unknown")]
    home.refusals.append((409, 40903))
    with pytest.raises(OutcomeUnknownError):
        home.commit()
    home.commit()
    assert set(home.decided) == {(None, 1, 0)}


def test_rule_s3_a_decided_one_that_is_superseded_is_told_as_committed() -> None:
    """Another producer went on behind it before this one could ask if all can be read."""
    home = HomeStandIn()
    home.begin()
    home.produce(1)
    home.states = ["committing"]
    home.turn = lambda: home.refusals.append((409, 40911, "unknown"))  # type: ignore[method-assign, func-returns-value]
    with pytest.raises(CommittingError) as decided:
        home.commit(5.0)
    assert not decided.value.retriable
    assert [error for error, _ in home.outcomes] == [None]
    with pytest.raises(FencedError):
        home.begin()


@pytest.mark.parametrize("end", ["begin", "close"])
def test_records_of_a_decided_one_have_outcomes_where_its_commit_was_cancelled(end: str) -> None:
    home = HomeStandIn({"transactional_group": "g"})
    group = ConsumerGroupMetadata("g", expected={("in", 0): -1})
    home.begin()
    home.send_offsets(group, 7)
    home.produce(1)
    home.states = ["committing"]
    steps = home.core.commit_steps(home, None)  # type: ignore[arg-type]
    step = next(steps)
    while isinstance(step, Attempt):
        step = steps.send(home.answer(step.request))
    steps.close()
    assert home.outcomes == []
    if end == "begin":
        home.begin()
    else:
        home.run(home.core.close_steps(None))
    assert [error for error, _ in home.outcomes] == [None]
    assert group.expected == {("in", 0): 7}


def test_an_abort_without_an_answer_leaves_the_outcome_of_its_commit_unknown() -> None:
    home = HomeStandIn()
    for is_sent in (True, False):
        home.begin()
        home.produce(1)
        home.lost_answers = 1
        if is_sent:
            with pytest.raises(OutcomeUnknownError):
                home.commit(0.0)
            home.lost_answers = 1
            with pytest.raises(QuorumlogError):
                home.run(home.core.abort_steps(0.0))
        home.run(home.core.close_steps(None))
    kinds = [type(error) for error, _ in home.outcomes]
    assert kinds == [OutcomeUnknownError, TransactionAbortedError]


def test_the_group_is_learnt_from_the_first_offsets() -> None:
    home = HomeStandIn({"buffer_memory": 1 << 20, "batch_size": 1_000})
    home.begin()
    for number in range(1_000):
        home.produce([number, "x" * 90])
    home.turn()
    assert not home.chunks
    assert home.epochs == {None: 1}
    home.send_offsets(ConsumerGroupMetadata("g", "m", 4))
    home.commit()
    assert home.epochs == {None: 1, "g": 1}
    assert home.chunks
    body = orjson.loads(home.commits[0])
    assert (body["member_id"], body["member_epoch"]) == ("m", 4)
    assert body["offsets"] == [{"topic_name": "in", "partition_id": 0, "offset": 7}]
    home.begin()
    with pytest.raises(ConfigError, match="transactional_group"):
        home.send_offsets(ConsumerGroupMetadata("other", "m", 4))


def test_without_offsets_a_learnt_group_decides_nothing() -> None:
    """Rule S6: the next life fences the id's own home before it has learnt a group."""
    home = HomeStandIn({"batch_size": 1_000})
    home.begin()
    home.produce(1)
    home.send_offsets(ConsumerGroupMetadata("g", "m", 4))
    home.commit()
    for rows in (1, 1_000):
        home.begin()
        for number in range(rows):
            home.produce([number, "x" * 90])
        home.turn()
        assert not home.chunks, "offsets may still come"
        home.commit()
    assert set(home.decided) == {("g", 1, 0), (None, 1, 0), (None, 1, 1)}
    home.begin()
    home.produce(1)
    home.epochs[None] += 1  # a new life began
    with pytest.raises(FencedError):
        home.commit()


def test_a_transaction_that_fills_the_buffer_is_staged_without_a_group() -> None:
    home = HomeStandIn({"buffer_memory": 1 << 17, "batch_size": 10_000})
    home.begin()
    for number in range(3_000):
        home.produce([number, "x" * 90], is_awaited=False)
        home.turn()
    assert home.chunks
    with pytest.raises(ConfigError, match="send the offsets first, or name the group"):
        home.send_offsets(ConsumerGroupMetadata("g", "m", 4))
    home.commit()
    assert set(home.decided) == {(None, 1, 0)}
    assert sum(len(orjson.loads(one)["records"]) for one in home.chunks.values()) == 3_000
    home.begin()
    home.send_offsets(ConsumerGroupMetadata("g", "m", 4))
    home.commit()
    assert set(home.decided) == {(None, 1, 0), ("g", 1, 0)}


def test_offsets_of_partitions_assigned_by_hand_are_compared() -> None:
    home = HomeStandIn({"transactional_group": "g"})
    group = ConsumerGroupMetadata("g", expected={("in", 0): -1})
    for offset in (7, 9):
        home.begin()
        home.send_offsets(group, offset)
        home.commit()
    moves = [orjson.loads(one)["offsets"][0] for one in home.commits]
    assert [one["expected_offset"] for one in moves] == [-1, 7]
    assert group.expected == {("in", 0): 9}


def test_the_fate_of_the_old_life_is_told() -> None:
    home = HomeStandIn()
    home.last[None] = (3, 8, "complete")
    home.begin()
    assert home.core.last is not None
    assert (home.core.last.epoch, home.core.last.number) == (3, 8)
