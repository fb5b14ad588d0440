"""A group's member in trouble: lost memberships, callbacks that fail, silent and broken brokers.

Those about ownership run on a real cluster; those about what a broker does wrong on a raw server
that answers as a coordinator, except for what the test says.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from types import FrameType
from typing import Any

import orjson
import pytest

from http_api.client.client_errors import (
    ClosedError,
    CommitError,
    QuorumlogError,
    WakeupError,
)
from http_api.client.sdk.async_consumer import AsyncConsumer
from http_api.client.sdk.consumer import Consumer
from http_api.client.sdk.record_types import TopicPartition
from tests.support.live_cluster import LiveCluster, running
from tests.support.raw_server import Heard, RawServer, answer_of, raw_server

DONE_S = 30.0
AnyConsumer = Consumer[Any, Any]
ZERO = TopicPartition("t", 0)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    with running(tmp_path_factory.mktemp("cluster")) as started:
        asyncio.run(started.wait_healthy())
        yield started


def create(cluster: LiveCluster, topic: str, partitions: int = 1, each: int = 5) -> None:
    """Create a topic with some records in each partition."""
    asyncio.run(cluster.create_topic(topic, partitions))
    for partition in range(partitions):
        answer = asyncio.run(cluster.produce(1, topic, *range(each), partition=partition))
        assert answer.status == 200, answer


def settings_of(cluster: LiveCluster, group: str, **more: Any) -> dict[str, Any]:
    urls = [broker.url for broker in cluster.brokers]
    given = {"bootstrap_servers": urls, "group_id": group, "auto_offset_reset": "earliest"}
    return given | more


def wait(condition: Callable[[], bool], what: str, deadline_s: float = DONE_S) -> None:
    until_s = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < until_s, what
        time.sleep(0.01)


def committed(consumer: AnyConsumer, topic: str, partition: int = 0) -> int | None:
    return consumer.committed([TopicPartition(topic, partition)])[0].offset


# a coordinator that a test commands

Reply = Callable[[socket.socket, Heard], bytes | None]
"""Returns the answer to a request; None: none is sent and the connection stays open."""


class ScriptedBroker:
    """A broker whose group has one member, which owns t-0; `replies` change single answers."""

    def __init__(self, **replies: Reply) -> None:
        self.replies = replies
        self.ended = threading.Event()
        """Ends all requests that wait."""
        self.times: dict[str, list[float]] = {}
        """Times of the requests of each kind."""

    def behave(self, sock: socket.socket, heard: Heard) -> bool:
        if len(heard.body) < int(heard.headers.get("content-length", 0)):
            return False  # the client has ended the request
        kind = kind_of(heard)
        self.times.setdefault(kind, []).append(time.monotonic())
        reply = self.replies.get(kind)
        answer = getattr(self, kind)(heard) if reply is None else reply(sock, heard)
        if answer is not None:
            sock.sendall(answer)
        return True

    @contextlib.contextmanager
    def serving(self) -> Iterator[RawServer]:
        """Listen; at the end answer all that waits."""
        with raw_server(self.behave) as server:
            try:
                yield server
            finally:
                self.ended.set()

    def count(self, kind: str) -> int:
        return len(self.times.get(kind, []))

    def join(self, heard: Heard) -> bytes:
        return membership(orjson.loads(heard.body)["consumer_id"])

    def heartbeat(self, heard: Heard) -> bytes:
        asked = orjson.loads(heard.body)
        if asked["owned"]:
            self.ended.wait(asked["wait_ms"] / 1_000)
        return membership("m")

    def leave(self, _: Heard) -> bytes:
        return answer_of(b"", "204 No Content")

    def commit(self, _: Heard) -> bytes:
        return answer_of(b"", "204 No Content")

    def poll(self, heard: Heard) -> bytes:
        self.ended.wait(orjson.loads(heard.body)["wait_ms"] / 1_000)
        return answer_of(b"")


def kind_of(heard: Heard) -> str:
    method, path, _ = heard.line.split(" ")
    if path.endswith(":heartbeat"):
        return "heartbeat"
    if path.endswith("records:poll"):
        return "poll"
    return {"GET": "ends", "POST": "join", "DELETE": "leave", "PATCH": "commit"}[method]


def membership(member_id: str, epoch: int = 1) -> bytes:
    row = {"topic_name": "t", "topic_id": "i", "partition_id": 0, "offset": 0}
    body = {
        "consumer_group_id": "g",
        "consumer_id": member_id,
        "instance_id": None,
        "member_epoch": epoch,
        "group_epoch": epoch,
        "assignor": "uniform",
        "heartbeat_interval_ms": 1_000,
        "session_timeout_ms": 3_000,
        "assignment": [row | {"leader_epoch": None, "is_committed": False}],
        "revoked": [],
    }
    return answer_of(orjson.dumps(body))


def silence(_sock: socket.socket, _heard: Heard) -> bytes | None:
    """Send no answer."""
    return None


@contextlib.contextmanager
def member_of(
    broker: ScriptedBroker,
    on_revoke: Callable[..., None] | None = None,
    other: str | None = None,
    **settings: Any,
) -> Iterator[tuple[AnyConsumer, RawServer]]:
    """Return a member of the broker's group that owns its partition."""
    given: dict[str, Any] = {"group_id": "g", "enable_auto_commit": False}
    given["session_timeout_ms"] = 3_000
    with broker.serving() as server:
        urls = [server.url, *([] if other is None else [other])]
        consumer: AnyConsumer = Consumer(urls, **(given | settings))
        try:
            consumer.subscribe(["t"], on_revoke=on_revoke)
            wait(lambda: consumer.poll(0.05) is None and consumer.assignment() == [ZERO], "owned")
            yield consumer, server
        finally:
            broker.ended.set()
            with contextlib.suppress(QuorumlogError):
                consumer.close(1.0)


def in_thread(function: Callable[[], object], deadline_s: float = DONE_S) -> BaseException | None:
    """Run a function that must end in a thread; return what it raises."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            function()
        except BaseException as error:  # noqa: BLE001 returned
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(deadline_s)
    assert not thread.is_alive(), "it ends"
    return errors[0] if errors else None


# ownership


def test_a_commit_after_the_membership_was_lost_is_refused(cluster: LiveCluster) -> None:
    """An empty group takes commits without a member id; a former member must not make one."""
    create(cluster, "lost")
    results: list[QuorumlogError | None] = []
    settings = settings_of(cluster, "lost", max_poll_interval_ms=1_000, enable_auto_commit=False)
    with Consumer(**settings) as consumer:
        consumer.subscribe(["lost"])
        record = consumer.poll(10.0)
        assert record is not None
        wait(lambda: consumer.metrics()["member_epoch"] is None, "it leaves by itself")
        with pytest.raises(CommitError) as caught:
            consumer.commit(record)
        assert caught.value.refused == (TopicPartition("lost", 0),)
        consumer.commit(record, asynchronous=True, callback=lambda error, _: results.append(error))
        wait(lambda: consumer.poll(0.1) is None or bool(results), "the callback runs")
        assert isinstance(results[0], CommitError)
        assert committed(consumer, "lost") is None


@pytest.mark.parametrize("failure", [ZeroDivisionError, KeyboardInterrupt])
def test_close_does_all_its_work_although_on_revoke_raises(
    cluster: LiveCluster, failure: type[BaseException]
) -> None:
    """The member leaves at once, and what waits is called back, before the error is raised."""
    topic = f"raise-{failure.__name__}"
    create(cluster, topic)
    results: list[QuorumlogError | None] = []

    def fail(*_: object) -> None:
        raise failure

    consumer = Consumer(**settings_of(cluster, topic))
    consumer.subscribe([topic], on_revoke=fail)
    record = consumer.poll(10.0)
    assert record is not None
    consumer.commit(record, asynchronous=True, callback=lambda error, _: results.append(error))
    with pytest.raises(failure):
        consumer.close()
    assert results == [None]
    with Consumer(**settings_of(cluster, topic)) as other:
        other.subscribe([topic])
        found = other.poll(10.0)  # far below the session of 45 s
        assert found is not None
        assert found.offset == 1
    with pytest.raises(ClosedError):
        consumer.poll(0.1)


def test_what_on_assign_raises_is_raised_once_and_the_assignment_holds(
    cluster: LiveCluster,
) -> None:
    """Records come from the next poll, and automatic commits go on."""
    create(cluster, "assign")
    calls: list[list[TopicPartition]] = []

    def fail(_: object, partitions: list[TopicPartition]) -> None:
        calls.append(partitions)
        raise ZeroDivisionError

    with Consumer(**settings_of(cluster, "assign", auto_commit_interval_ms=1)) as consumer:
        consumer.subscribe(["assign"], on_assign=fail)
        with pytest.raises(ZeroDivisionError):
            consumer.poll(10.0)
        for offset in range(5):
            record = consumer.poll(10.0)
            assert record is not None
            assert record.offset == offset
        wait(
            lambda: consumer.poll(0.1) is None and committed(consumer, "assign") == 5,
            "it commits by itself",
        )
    assert calls == [[TopicPartition("assign", 0)]]


def test_a_commit_that_waits_too_long_for_an_older_one_is_not_sent() -> None:
    """Beside the older one it could be overtaken by it."""
    broker = ScriptedBroker(commit=silence)
    with member_of(broker) as (consumer, _):
        consumer.commit(offsets=[TopicPartition("t", 0, 1)], asynchronous=True)
        wait(lambda: broker.count("commit") == 1, "it is under way")
        with pytest.raises(QuorumlogError, match="still under way") as caught:
            consumer.commit(offsets=[TopicPartition("t", 0, 2)], timeout=0.5)
        assert not isinstance(caught.value, CommitError)
        assert broker.count("commit") == 1


# callbacks


def test_reading_in_a_callback_is_refused(cluster: LiveCluster) -> None:
    """Neither the call nor its iteration recurses; the error names the reason."""
    create(cluster, "nested")
    errors: list[str] = []

    def assigned(consumer: AnyConsumer, _: object) -> None:
        for call in (
            lambda: consumer.poll(0.1),
            lambda: consumer.consume(1, 0.1),
            lambda: next(consumer),
            consumer.unsubscribe,
            lambda: consumer.subscribe(["nested"]),
        ):
            try:
                call()
            except QuorumlogError as error:
                errors.append(str(error))

    with Consumer(**settings_of(cluster, "nested")) as consumer:
        consumer.subscribe(["nested"], on_assign=assigned)
        record = consumer.poll(10.0)
        assert record is not None
        assert record.offset == 0
    assert len(errors) == 5
    assert all("a callback can't read" in one for one in errors)


@pytest.mark.parametrize("callback", ["on_assign", "on_revoke", "on_commit"])
def test_a_callback_closes_its_own_consumer(cluster: LiveCluster, callback: str) -> None:
    """The call that ran it returns no record, the member has left, and no record is lost."""
    topic = f"close-{callback.replace('_', '-')}"
    create(cluster, topic)
    consumer = Consumer(**settings_of(cluster, topic))

    def close(*_: object) -> None:
        consumer.close()

    def run() -> None:
        given = {callback: close} if callback != "on_commit" else {}
        consumer.subscribe([topic], **given)
        for record in consumer:
            read.append(record.offset)
            if callback == "on_commit":
                consumer.commit(record, asynchronous=True, callback=close)
                time.sleep(0.5)
            if callback == "on_revoke":
                consumer.unsubscribe()
                break

    read: list[int] = []
    assert in_thread(run, 20.0) is None
    with pytest.raises(ClosedError):
        consumer.poll(0.1)
    with Consumer(**settings_of(cluster, topic)) as other:
        other.subscribe([topic])
        while len(read) < 5:
            record = other.poll(10.0)
            assert record is not None
            read.append(record.offset)
    assert read == list(range(5))


@pytest.mark.parametrize("where", ["on_assign", "on_commit", "on_error"])
def test_an_interrupt_in_a_callback_reaches_the_caller(where: str) -> None:
    """Ctrl-C is not an error of the callback, to be logged."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    broker = ScriptedBroker()
    settings: dict[str, Any] = {} if where == "on_assign" else {where: interrupt}
    if where == "on_error":
        broker.replies["poll"] = lambda *_: answer_of(b"{}", "500 Broken")
    given: dict[str, Any] = {"group_id": "g", "enable_auto_commit": False}
    with broker.serving() as server:
        consumer: AnyConsumer = Consumer(server.url, **given, **settings)
        consumer.subscribe(["t"], on_assign=interrupt if where == "on_assign" else None)

        def poll() -> None:
            for _ in range(100):
                consumer.poll(0.1)
                if where == "on_commit" and consumer.assignment():
                    consumer.commit(offsets=[TopicPartition("t", 0, 1)], asynchronous=True)

        with pytest.raises(KeyboardInterrupt):
            poll()
        with contextlib.suppress(KeyboardInterrupt):
            consumer.close(1.0)


# waking


def test_a_signal_that_wakes_during_a_decode_does_not_hang(cluster: LiveCluster) -> None:
    """Its handler runs in the thread that holds the consumer's lock."""
    create(cluster, "signal")

    def decode(value: bytes) -> bytes:
        consumer.wakeup()  # as a handler, which runs between any two steps of this thread
        return value

    settings = settings_of(cluster, "signal", value_deserializer=decode)
    consumer: AnyConsumer = Consumer(**settings)
    consumer.subscribe(["signal"])
    read: list[int] = []

    def poll() -> None:
        while len(read) < 5:
            with contextlib.suppress(WakeupError):
                record = consumer.poll(5.0)
                assert record is not None
                read.append(record.offset)

    assert in_thread(poll, 20.0) is None
    consumer.close()
    assert read == list(range(5))


def test_a_signal_wakes_a_poll_that_waits() -> None:
    """A real signal, which interrupts the wait of the main thread."""
    broker = ScriptedBroker()
    with member_of(broker) as (consumer, _):

        def handle(_number: int, _frame: FrameType | None) -> None:
            consumer.wakeup()

        before = signal.signal(signal.SIGUSR1, handle)
        timer = threading.Timer(0.5, os.kill, [os.getpid(), signal.SIGUSR1])
        timer.start()
        try:
            begun_s = time.monotonic()
            with pytest.raises(WakeupError):
                consumer.poll(10.0)
            assert time.monotonic() - begun_s < 3.0
        finally:
            timer.join()
            signal.signal(signal.SIGUSR1, before)


def test_a_second_close_leaves_after_ctrl_c_in_the_first() -> None:
    """A real signal, while the broker keeps the request to leave; threads have ended already."""
    broker = ScriptedBroker(leave=silence)
    with member_of(broker) as (consumer, _):

        def interrupt() -> None:
            wait(lambda: broker.count("leave") == 1, "it leaves")
            os.kill(os.getpid(), signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            consumer.close()
        thread.join(DONE_S)
        with pytest.raises(ClosedError):
            consumer.poll(0.0)
        beats = broker.count("heartbeat")
        del broker.replies["leave"]
        consumer.close()
        assert broker.count("leave") == 2
        consumer.close()
        assert (broker.count("leave"), broker.count("heartbeat")) == (2, beats)


def test_wakeup_ends_a_commit_that_hangs() -> None:
    """As in Java; whether the commit was made is not known then."""
    broker = ScriptedBroker(commit=silence)
    with member_of(broker) as (consumer, _):

        def wake() -> None:
            wait(lambda: broker.count("commit") == 1, "it is under way")
            consumer.wakeup()

        thread = threading.Thread(target=wake)
        thread.start()
        begun_s = time.monotonic()
        with pytest.raises(WakeupError) as caught:
            consumer.commit(offsets=[TopicPartition("t", 0, 1)])
        assert time.monotonic() - begun_s < 3.0
        assert caught.value.outcome == "unknown"
        thread.join()
        assert consumer.poll(0.1) is None  # it woke one call


# silent and broken brokers


def test_no_broker_in_reach_is_asked_a_few_times_a_second() -> None:
    """Although ``on_error`` runs in between, which wakes what waits."""
    errors: list[Exception] = []
    heard: list[float] = []

    def behave(sock: socket.socket, _: Heard) -> bool:
        heard.append(time.monotonic())
        sock.sendall(answer_of(b"{}"))
        return False

    with raw_server(behave, cluster=b"") as server:
        consumer: AnyConsumer = Consumer(server.url, group_id="g", on_error=errors.append)
        consumer.subscribe(["t"])
        begun_s = time.monotonic()
        while time.monotonic() - begun_s < 2.0:
            assert consumer.poll(0.1) is None
        assert 1 <= len(heard) <= 6
        assert 1 <= len(errors) <= 6
        consumer.close()


def test_an_error_that_ends_background_work_is_raised() -> None:
    """Without it the program would poll for ever and read nothing."""
    broker = ScriptedBroker()
    with member_of(broker) as (consumer, _):
        broker.replies["heartbeat"] = lambda *_: answer_of(b'{"unknown":1}')
        for _ in range(2):
            with pytest.raises(QuorumlogError, match="background work"):
                consumer.poll(10.0)


def test_heartbeats_that_are_answered_at_once_have_a_pause() -> None:
    """A proxy or a broken broker that does not wait gets a few of them a second."""
    broker = ScriptedBroker(heartbeat=lambda *_: membership("m"))
    with member_of(broker) as (consumer, _):
        before = broker.count("heartbeat")
        assert consumer.poll(1.5) is None
        assert 1 <= broker.count("heartbeat") - before <= 8


def test_requests_that_wait_are_not_cut_short() -> None:
    """A quiet member sends what its waits ask for, although attempts are bounded."""
    broker = ScriptedBroker()
    with member_of(broker, session_timeout_ms=9_000) as (consumer, _):
        assert consumer.poll(4.5) is None
        assert broker.count("poll") <= 2  # the first one waits for 1 s only
        assert broker.count("heartbeat") <= 2


def test_pauses_in_a_loop_send_no_requests() -> None:
    """The fetch under way goes on for a partition that is paused for a moment."""
    broker = ScriptedBroker()
    with member_of(broker) as (consumer, _):
        wait(lambda: consumer.poll(0.05) is None and broker.count("poll") > 1, "a long wait")
        before = broker.count("poll")
        until_s = time.monotonic() + 1.5
        while time.monotonic() < until_s:
            consumer.pause([ZERO])
            consumer.resume([ZERO])
            assert consumer.poll(0.0) is None
        assert broker.count("poll") - before <= 2


def test_a_heartbeat_without_an_answer_goes_to_another_broker_within_the_session() -> None:
    """A silent broker costs no membership, while another one serves the group."""
    silent, sound = ScriptedBroker(), ScriptedBroker()
    with (
        sound.serving() as other,
        member_of(silent, other=other.url, session_timeout_ms=3_000) as (consumer, _),
    ):
        silent.replies = dict.fromkeys(("heartbeat", "join", "leave", "commit", "poll"), silence)
        last_s = silent.times["heartbeat"][-1]
        wait(lambda: consumer.poll(0.1) is None and sound.count("heartbeat") > 0, "another", 9.0)
        assert sound.times["heartbeat"][0] - last_s < 3.0
        assert consumer.metrics()["joins"] == 1


def test_commit_and_close_hold_their_time_beside_a_silent_broker() -> None:
    """With an asynchronous commit under way, too, whose callback runs all the same."""
    broker = ScriptedBroker()
    results: list[QuorumlogError | None] = []
    failures: list[QuorumlogError] = []

    def revoked(consumer: AnyConsumer, _: object) -> None:
        try:
            consumer.commit(offsets=[TopicPartition("t", 0, 2)])  # for 60 s
        except QuorumlogError as error:
            failures.append(error)

    with member_of(broker, revoked, enable_auto_commit=True) as (consumer, _):
        broker.replies = dict.fromkeys(("heartbeat", "join", "leave", "commit", "poll"), silence)
        begun_s = time.monotonic()
        with pytest.raises(QuorumlogError):
            consumer.commit(offsets=[TopicPartition("t", 0, 1)], timeout=1.0)
        assert time.monotonic() - begun_s < 2.0
        consumer.commit(
            offsets=[TopicPartition("t", 0, 1)],
            asynchronous=True,
            callback=lambda error, _: results.append(error),
        )
        begun_s = time.monotonic()
        consumer.close(2.0)
        assert time.monotonic() - begun_s < 3.5
        assert len(failures) == len(results) == 1
        assert results[0] is not None
        assert results[0].outcome == "unknown"


def test_a_member_that_is_joining_leaves_when_it_is_closed() -> None:
    """Its join may be carried out although no answer came; others would wait for its session."""
    broker = ScriptedBroker(join=silence)
    with broker.serving() as server:
        consumer: AnyConsumer = Consumer(server.url, group_id="g")
        consumer.subscribe(["t"])
        wait(lambda: broker.count("join") == 1, "it joins")
        consumer.close(2.0)
        assert broker.count("leave") == 1


@pytest.mark.parametrize("is_group", [False, True])
def test_a_stopped_leader_is_left_for_the_next_one_and_nothing_comes_twice(
    cluster: LiveCluster, is_group: bool
) -> None:
    """Its fetch would last for 40 s: the wait, and ten seconds for the answer."""
    topic = f"stopped-{is_group}"
    create(cluster, topic, 3, 5)
    asyncio.run(cluster.wait_healthy(topic, 3))
    stopped = asyncio.run(cluster.leader(topic))
    awake = cluster.others(stopped)[0].id
    settings = settings_of(cluster, topic, session_timeout_ms=10_000)
    found: list[tuple[int, int]] = []

    with Consumer(**settings) as consumer:

        def read(count: int) -> Callable[[], bool]:
            def has_all() -> bool:
                found.extend((one.partition, one.offset) for one in consumer.consume(9, 0.1))
                return len(found) >= count

            return has_all

        async def write(offset: int) -> None:
            for partition in range(3):
                answer = await cluster.produce(awake, topic, "x", partition=partition)
                assert answer.body["offsets"][0]["offset"] == offset, answer

        if is_group:
            consumer.subscribe([topic])
        else:
            consumer.assign([TopicPartition(topic, at, 0) for at in range(3)])
        wait(read(15), "all is read")
        assert consumer.consume(9, 2.0) == []  # long waits have begun
        cluster.pause(f"broker-{stopped}")
        try:
            moved = cluster.until(has_moved(cluster, topic, stopped, awake), "another one leads")
            asyncio.run(moved)
            asyncio.run(write(5))
            wait(read(18), "the next leader is read from", 12.0)
        finally:
            cluster.resume(f"broker-{stopped}")
        asyncio.run(cluster.wait_healthy(topic, 3))
        asyncio.run(write(6))
        wait(read(21), "reading goes on")
        assert consumer.consume(9, 2.0) == []
    for partition in range(3):
        assert [offset for at, offset in found if at == partition] == list(range(7))


def has_moved(
    cluster: LiveCluster, topic: str, old: int, through: int
) -> Callable[[], Awaitable[bool]]:
    async def moved() -> bool:
        return await cluster.leader(topic, through=through) != old

    return moved


def test_a_deleted_topic_is_reported_once_in_a_while(cluster: LiveCluster) -> None:
    """Each partition's refusal is a report, and not one a second."""
    create(cluster, "gone", 2)
    errors: list[Exception] = []
    urls = [broker.url for broker in cluster.brokers]
    with Consumer(urls, on_error=errors.append, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition("gone", 0), TopicPartition("gone", 1)])
        assert len(consumer.consume(1, 10.0)) == 1
        answer = asyncio.run(cluster.ask("DELETE", f"{cluster.topics_url(1)}/gone"))
        assert answer.status == 204, answer
        until_s = time.monotonic() + 3.5
        while time.monotonic() < until_s:
            consumer.consume(100, 0.1)
        assert 1 <= len(errors) <= 4


@pytest.mark.parametrize("count", [10, 3])
def test_leaderless_partitions_hold_up_no_others(count: int) -> None:
    """Their starts can't be looked up, now and later; those of the others are all the same."""

    def ends(_sock: socket.socket, heard: Heard) -> bytes | None:
        if f"/partitions/{count}/" in heard.line:
            return answer_of(b'{"beginning_offset":3,"end_offset":3}')
        if count == 3:  # a leader that does not answer
            return None
        return answer_of(b'{"error_code":50302,"message":"no leader"}', "503 Unavailable")

    broker = ScriptedBroker(ends=ends)
    with broker.serving() as server:
        consumer: AnyConsumer = Consumer(server.url, auto_offset_reset="earliest")
        consumer.assign([TopicPartition("t", number) for number in range(count + 1)])
        begun_s = time.monotonic()
        found = consumer.position([TopicPartition("t", count)], 20.0)
        assert found[0].offset == 3
        assert time.monotonic() - begun_s < 6.0
        wait(lambda: broker.count("ends") > count + 1, "the others are asked for again")
        consumer.close()


# the same with asyncio


async def test_callbacks_of_an_async_consumer_that_fail_or_close(cluster: LiveCluster) -> None:
    """The member leaves all the same, reading is refused, and closing is put off."""
    await cluster.create_topic("async-callbacks", 1)
    assert (await cluster.produce(1, "async-callbacks", *range(3))).status == 200
    settings = settings_of(cluster, "async-callbacks")
    errors: list[str] = []

    async def assigned(consumer: AsyncConsumer[Any, Any], _: object) -> None:
        try:
            await consumer.poll(0.1)
        except QuorumlogError as error:
            errors.append(str(error))

    async def fail(*_: object) -> None:
        raise ZeroDivisionError

    async def close(consumer: AsyncConsumer[Any, Any], _: object) -> None:
        await consumer.close()

    first: AsyncConsumer[Any, Any] = AsyncConsumer(**settings)
    await first.subscribe(["async-callbacks"], on_assign=assigned, on_revoke=fail)
    assert await first.poll(10.0) is not None
    assert len(errors) == 1
    with pytest.raises(ZeroDivisionError):
        await first.close()
    second: AsyncConsumer[Any, Any] = AsyncConsumer(**settings)
    await second.subscribe(["async-callbacks"], on_assign=close)
    async with asyncio.timeout(20.0):
        assert [record async for record in second] == []
    async with AsyncConsumer(**settings) as third:
        await third.subscribe(["async-callbacks"])
        record = await third.poll(10.0)
        assert record is not None
        assert record.offset == 1


async def test_an_async_commit_that_hangs_is_woken_and_close_holds_its_time() -> None:
    """The same core, in tasks."""
    broker = ScriptedBroker()
    with broker.serving() as server:
        consumer: AsyncConsumer[Any, Any] = AsyncConsumer(
            server.url, group_id="g", session_timeout_ms=3_000
        )
        await consumer.subscribe(["t"])
        async with asyncio.timeout(DONE_S):
            while not consumer.assignment():
                await consumer.poll(0.05)
        broker.replies = dict.fromkeys(("heartbeat", "join", "leave", "commit", "poll"), silence)
        one = [TopicPartition("t", 0, 1)]
        asyncio.get_running_loop().call_later(0.5, consumer.wakeup)
        async with asyncio.timeout(3.0):
            with pytest.raises(WakeupError):
                await consumer.commit(offsets=one)
        async with asyncio.timeout(2.0):
            with pytest.raises(QuorumlogError):
                await consumer.commit(offsets=one, timeout=1.0)
        async with asyncio.timeout(3.5):
            await consumer.close(2.0)


async def test_a_second_close_of_an_async_consumer_leaves_after_a_cancelled_one() -> None:
    broker = ScriptedBroker(leave=silence)
    with broker.serving() as server:
        consumer: AsyncConsumer[Any, Any] = AsyncConsumer(server.url, group_id="g")
        await consumer.subscribe(["t"])
        async with asyncio.timeout(DONE_S):
            while not consumer.assignment():
                await consumer.poll(0.05)
        closing = asyncio.create_task(consumer.close())
        await asyncio.to_thread(wait, lambda: broker.count("leave") == 1, "it leaves")
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        del broker.replies["leave"]
        await consumer.close()
        await consumer.close()
        assert broker.count("leave") == 2
