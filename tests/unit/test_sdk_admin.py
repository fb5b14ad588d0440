"""Pure parts of the SDK's admin: arguments, resources, deadlines, and results by name."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Generator
from typing import Any

import pytest

from http_api.client.admin import ElectionInfo
from http_api.client.calls import Answer, Call, Request
from http_api.client.client_errors import (
    AdminError,
    ApiError,
    ClosedError,
    OutcomeUnknownError,
    ProtocolError,
    QuorumlogError,
)
from http_api.client.routes import Attempt, LostError
from http_api.client.sdk.admin_client import Admin
from http_api.client.sdk.admin_cluster_steps import election_results
from http_api.client.sdk.admin_group_steps import remove_members
from http_api.client.sdk.admin_resources import (
    ConfigResource,
    NewTopic,
    group_description,
    health_of,
    quorum_description,
)
from http_api.client.sdk.admin_steps import (
    LEAST_REQUEST_S,
    AdminCall,
    AdminCounts,
    timeout_seconds,
)
from http_api.client.sdk.async_admin_client import AsyncAdmin
from http_api.client.sdk.client_context import ClientContext
from http_api.client.sdk.record_types import TopicPartition
from http_api.client.sdk.settings import CommonConfig
from http_api.client.sdk.steps import Steps
from http_api.contract.group_resources import GroupInfo, GroupLag, GroupMember

OK = Answer(status=200, body=b"{}")
CLUSTER = Answer(status=200, body=b'{"data":[{"cluster_id":"c"}]}')
BUSY = Answer(status=503, body=b'{"error_code":50303,"message":"busy","retriable":true}')


class Script:
    """A broker and a clock of a test: answers each request after some seconds."""

    def __init__(self, *, timeout_s: float, request_timeout_ms: int = 30_000) -> None:
        self.time_s = 100.0
        self.sent: list[Attempt] = []
        self.counts = AdminCounts()
        servers = ("http://a:1",)
        config = CommonConfig(bootstrap_servers=servers, request_timeout_ms=request_timeout_ms)
        context = ClientContext("admin", config)
        context.routes.check("http://a:1", "c")
        context.routes.has_answered = True
        self.call = AdminCall(context, self.counts, lambda: self.time_s, timeout_s)

    def run(self, steps: Steps[Any], *answers: tuple[float, Answer | Exception]) -> Any:
        """Run steps; the last answer is repeated for any further request."""
        left = list(answers)
        value: Answer | None = None
        error: Exception | None = None
        try:
            while True:
                step = steps.throw(error) if error is not None else steps.send(value)
                assert isinstance(step, Attempt)
                if step.request.path == "/v3/clusters":  # again, after a lost answer
                    self.time_s += step.wait_s
                    value, error = CLUSTER, None
                    continue
                self.sent.append(step)
                took_s, found = left.pop(0) if len(left) > 1 else left[0]
                self.time_s += step.wait_s + took_s
                value, error = (None, found) if isinstance(found, Exception) else (found, None)
        except StopIteration as end:
            return end.value


def get(name: str = "x", method: str = "GET") -> Call[str]:
    return Call(Request(method=method, path=f"/{name}"), lambda _: name)


def test_a_request_is_retried_until_the_deadline() -> None:
    script = Script(timeout_s=5)
    assert script.run(script.call.request(get()), (1, BUSY), (1, LostError("cut")), (0, OK)) == "x"
    assert [one.request.timeout_s for one in script.sent][:1] == [5]
    assert script.sent[1].request.timeout_s < 4
    assert script.counts.requests == 4, "and one for the cluster's id"
    assert script.counts.lost_requests == 1
    script = Script(timeout_s=5)
    with pytest.raises(ApiError, match="busy"):
        script.run(script.call.request(get()), (1, BUSY))
    assert script.time_s <= 100 + 5 + 1


def test_one_attempt_has_no_longer_than_the_setting_and_the_request_allow() -> None:
    script = Script(timeout_s=50, request_timeout_ms=2_000)
    script.run(script.call.request(get()), (0, OK))
    assert script.sent[0].request.timeout_s == 2
    script = Script(timeout_s=500, request_timeout_ms=100_000)
    script.run(script.call.request(get()), (0, OK))
    assert script.sent[0].request.timeout_s == get().request.timeout_s
    script = Script(timeout_s=0.01)
    script.run(script.call.request(get()), (0, OK))
    assert script.sent[0].request.timeout_s == LEAST_REQUEST_S


def test_rule_f1_a_write_without_an_answer_is_not_sent_again() -> None:
    script = Script(timeout_s=50)
    with pytest.raises(OutcomeUnknownError):
        script.run(script.call.request(get(method="POST")), (1, LostError("cut")), (0, OK))
    assert len(script.sent) == 1


def test_results_and_errors_by_name() -> None:
    script = Script(timeout_s=50)
    refused = Answer(status=404, body=b'{"error_code":40403,"message":"no topic"}')
    steps = script.call.each(["a", "b", "c"], lambda name: script.call.request(get(name)))
    with pytest.raises(AdminError, match="b: no topic") as caught:
        script.run(steps, (0, OK), (0, refused), (0, OK))
    assert caught.value.done == {"a": "a", "c": "c"}
    assert list(caught.value.failed) == ["b"]


def test_names_after_the_deadline_are_not_requested() -> None:
    script = Script(timeout_s=5)
    steps = script.call.each(["a", "b", "c"], lambda name: script.call.request(get(name)))
    with pytest.raises(AdminError) as caught:
        script.run(steps, (6, OK))
    assert (caught.value.done, list(caught.value.failed)) == ({"a": "a"}, ["b", "c"])
    assert len(script.sent) == 1
    assert caught.value.retriable


def test_removal_of_all_members_passes_over_one_that_left() -> None:
    rows = b'{"data":[{"consumer_id":"m","client_id":"c","member_epoch":1,"instance_id":null}]}'
    members = Answer(status=200, body=rows)
    gone = Answer(status=404, body=b'{"error_code":40403,"message":"no member"}')
    script = Script(timeout_s=50)
    steps = remove_members(script.call, "g", None, None)
    assert script.run(steps, (0, members), (0, gone)) == {"m": None}
    with pytest.raises(AdminError, match="no member"):
        script.run(remove_members(script.call, "g", ["m"], None), (0, gone))


def test_calls_and_failures_are_counted() -> None:
    script = Script(timeout_s=5)

    def fail() -> Generator[Any, Any, None]:
        yield from ()
        raise QuorumlogError

    with pytest.raises(QuorumlogError):
        script.run(script.call.counted(fail()), (0, OK))
    script.run(script.call.counted(script.call.request(get())), (0, OK))
    assert script.counts.snapshot() == {
        "calls": 2,
        "failed_calls": 1,
        "requests": 1,
        "lost_requests": 0,
    }


@pytest.mark.parametrize("wrong", [0, -1, float("nan")])
def test_timeouts_out_of_bounds(wrong: float) -> None:
    with pytest.raises(ValueError, match="more than 0"):
        timeout_seconds(wrong, 60_000)


def test_timeouts() -> None:
    assert timeout_seconds(None, 60_000) == 60
    assert timeout_seconds(0.5, 60_000) == 0.5
    for wrong in ("1", True):
        with pytest.raises(TypeError, match="seconds"):
            timeout_seconds(wrong, 60_000)  # type: ignore[arg-type]  # a wrong kind on purpose


def test_new_topics() -> None:
    new = NewTopic("t", 3, 2, config={"a.b": 1, "c": True, "d": "x", "e": 0.5})
    assert new.config_texts() == {"a.b": "1", "c": "true", "d": "x", "e": "0.5"}
    assert NewTopic("t").config_texts() == {}


@pytest.mark.parametrize(
    ("error", "arguments"),
    [
        (ValueError, {"name": ""}),
        (TypeError, {"name": 1}),
        (ValueError, {"name": "t", "num_partitions": 0}),
        (TypeError, {"name": "t", "num_partitions": True}),
        (TypeError, {"name": "t", "num_partitions": "3"}),
        (ValueError, {"name": "t", "replication_factor": 0}),
        (ValueError, {"name": "t", "num_partitions": 1, "assignments": [[1]]}),
        (ValueError, {"name": "t", "assignments": [[1, 1]]}),
        (ValueError, {"name": "t", "assignments": [[]]}),
        (TypeError, {"name": "t", "assignments": [1]}),
        (TypeError, {"name": "t", "assignments": "12"}),
        (TypeError, {"name": "t", "config": ["a"]}),
        (TypeError, {"name": "t", "config": {"a": None}}),
        (TypeError, {"name": "t", "config": {"": "x"}}),
    ],
)
def test_wrong_topics(error: type[Exception], arguments: dict[str, Any]) -> None:
    with pytest.raises(error):
        NewTopic(**arguments)


def test_config_resources() -> None:
    assert {ConfigResource("topic", "a"), ConfigResource("topic", "a")} == {
        ConfigResource("topic", "a")
    }
    wrong: list[tuple[type[Exception], tuple[Any, ...]]] = [
        (ValueError, ("group", "a")),
        (ValueError, ("topic",)),
        (ValueError, ("broker", "one")),
        (TypeError, ("broker", 1)),
        (ValueError, ("cluster", "a")),
    ]
    for error, arguments in wrong:
        with pytest.raises(error):
            ConfigResource(*arguments)


def test_elections_by_partition() -> None:
    def row(number: int, leader: int | None, code: int | None) -> ElectionInfo:
        error = None if code is None else "no replica"
        return ElectionInfo(
            topic="t", partition=number, leader=leader, error_code=code, error=error
        )

    assert election_results([row(0, 2, None)]) == {TopicPartition("t", 0): 2}
    with pytest.raises(AdminError, match="no replica") as caught:
        election_results([row(0, 2, None), row(1, None, 50302)])
    failed = caught.value.failed[TopicPartition("t", 1)]
    assert isinstance(failed, ApiError)
    assert (failed.status, failed.code, failed.outcome.value) == (503, 50302, "not_written")


def test_members_own_what_the_lags_name() -> None:
    info = GroupInfo(group="g", state="STABLE", assignor="uniform", coordinator=1, is_simple=False)
    members = [GroupMember(member_id=name, client_id="c", member_epoch=1) for name in ("m", "n")]
    lags = [
        GroupLag(
            topic="t",
            partition=number,
            current_offset=0,
            is_committed=True,
            log_end_offset=1,
            lag=1,
            member_id=owner,
            client_id="c",
        )
        for number, owner in ((1, "m"), (0, "m"), (2, ""))
    ]
    found = group_description(info, members, lags)
    assert [one.assignment for one in found.members] == [
        (TopicPartition("t", 0), TopicPartition("t", 1)),
        (),
    ]
    assert len(found.lags) == 3


def test_answers_without_a_field_are_no_resources() -> None:
    with pytest.raises(ProtocolError, match="voters"):
        quorum_description({"cluster_id": "c"})
    with pytest.raises(ProtocolError, match="ClusterHealth without"):
        health_of({"cluster_id": "c", "reasons": []})


def test_a_forked_child_may_not_use_an_admin() -> None:
    admin, other = Admin("127.0.0.1:9"), AsyncAdmin("127.0.0.1:9")
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            with pytest.raises(ClosedError, match="after fork"):
                admin.list_topics()
            with pytest.raises(ClosedError, match="after fork"):
                other.list_topics().send(None)
            admin.close()
            os.write(write_end, b"refused")
        finally:
            os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        assert pipe.read() == b"refused"
    os.waitpid(child, 0)
    admin.close()
    asyncio.run(other.close())
