"""The commands against a real HTTP door in front of a fake broker: output and exit codes.

Each command runs as the process a user starts.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from broker.server.requests import FetchRequest, FetchResult
from http_api.client.consumer import DEFAULT_WAIT_MS
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import TopicName
from tests.support.fake_broker_apis import CLUSTER_ID
from tests.support.http_door import V3, Door, open_door
from tests.support.waiting import until

COMMAND_DEADLINE_S = 20.0


@dataclass
class Finished:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


@dataclass
class Shell:
    """Runs ``quorumlog ARGUMENTS`` against one door."""

    door: Door
    environment: dict[str, str] = field(default_factory=dict)

    async def __call__(self, *arguments: str, stdin: bytes | str = b"") -> Finished:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "http_api.cli", *arguments),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "QUORUMLOG_URL": f"http://{self.door.address}", **self.environment},
        )
        data = stdin.encode() if isinstance(stdin, str) else stdin
        async with asyncio.timeout(COMMAND_DEADLINE_S):
            out, err = await process.communicate(data)
        assert process.returncode is not None
        return Finished(process.returncode, out.decode(), err.decode())


@pytest.fixture
async def shell() -> AsyncIterator[Shell]:
    async with open_door() as door:
        yield Shell(door)


async def test_topic_create_list_describe_delete(shell: Shell) -> None:
    made = await shell("topic", "create", "orders", "--partitions", "3", "-r", "2")
    assert (made.code, made.out) == (0, "created orders partitions=3 replication_factor=2\n")

    listed = await shell("topic", "list", "--format", "json")
    assert {row["name"]: row["partitions_count"] for row in listed.json} == {
        "flights": 2,
        "orders": 3,
    }
    text = (await shell("topic", "list")).lines
    assert text[0].split() == ["NAME", "PARTITIONS", "REPLICAS"]
    assert text[2].split() == ["orders", "3", "2"]

    described = await shell("topic", "describe", "orders")
    assert described.lines[1].split() == [
        *("PARTITION", "LEADER", "EPOCH", "REPLICAS", "ISR", "OUT-OF-SYNC"),
        *("FIRST-OFFSET", "END-OFFSET"),
    ]
    row = described.lines[2].split()
    assert (row[0], row[-2:]) == ("orders:0", ["0", "0"])

    assert (await shell("topic", "delete", "orders")).out == "deleted orders\n"
    assert len((await shell("topic", "list", "--format", "json")).json) == 1


async def test_describe_shows_leader_epoch_isr_and_what_is_out_of_sync(shell: Shell) -> None:
    shell.door.apis.without_leader("flights")
    rows = (await shell("topic", "describe", "flights", "--format", "json")).json
    partition = rows[0]["partitions"][0]
    assert partition["leader"] is None
    assert set(partition) >= {"leader_epoch", "replicas", "isr", "elr", "out_of_sync"}
    text = (await shell("topic", "describe", "flights")).out
    assert "none" in text


async def test_a_refusal_is_one_line_and_exit_1(shell: Shell) -> None:
    again = await shell("topic", "create", "flights")
    assert again.code == 1
    assert again.err.count("\n") == 1
    assert "40002" in again.err

    missing = await shell("topic", "describe", "nothing", "--format", "json")
    assert missing.code == 1
    assert json.loads(missing.err)["error_code"] == 40403
    assert json.loads(missing.err)["message"] == "Topic 'nothing' not found"


async def test_wrong_usage_is_exit_2(shell: Shell) -> None:
    for arguments in (
        ("topic", "create"),
        ("topic", "create", "x", "-c", "novalue"),
        ("consume", "flights", "-o", "middle"),
        ("nonsense",),
        ("topic", "list", "--format", "xml"),
    ):
        finished = await shell(*arguments)
        assert (finished.code, finished.out) == (2, ""), arguments
        assert finished.err


async def test_a_cluster_that_does_not_answer_ends_a_command_with_its_address(shell: Shell) -> None:
    shell.environment["QUORUMLOG_URL"] = "http://127.0.0.1:1"
    finished = await shell("cluster", "info")
    assert finished.code == 1
    assert "127.0.0.1:1 (Connection refused)" in finished.err


async def test_the_next_broker_is_asked_when_one_does_not_answer(shell: Shell) -> None:
    shell.environment["QUORUMLOG_URL"] = f"127.0.0.1:1,{shell.door.address}"
    assert (await shell("topic", "list")).code == 0


async def test_cluster_info(shell: Shell) -> None:
    info = (await shell("cluster", "info", "--format", "json")).json
    assert info["cluster_id"] == CLUSTER_ID
    assert (info["topics"], info["partitions"]) == (1, 2)
    assert {row["broker_id"] for row in info["brokers"]} >= {1, 2}
    text = (await shell("cluster", "info")).out
    assert text.startswith(f"cluster {CLUSTER_ID}\n")


async def test_lines_go_in_as_text_and_come_out_as_they_were(shell: Shell) -> None:
    lines = ["plain", "", '{"not": "parsed"}', "tab\tand 'quotes\"", "ünïcode ☃", "42"]
    written = await shell("produce", "flights:1", stdin="\n".join(lines) + "\n")
    assert written.code == 0, written.err
    assert written.lines == [
        "written 6 records to flights",
        "flights:1 offsets 0..5 count=6",
    ]
    read = await shell("consume", "flights:1")
    assert read.out == "\n".join(lines) + "\n"

    rows = [
        json.loads(line) for line in (await shell("consume", "flights", "--format", "json")).lines
    ]
    assert [row["value"] for row in rows] == lines
    assert rows[0] == {
        "topic": "flights",
        "partition": 1,
        "offset": 0,
        "key": None,
        "value": "plain",
        "timestamp": rows[0]["timestamp"],
    }


async def test_a_read_ends_before_a_position(shell: Shell) -> None:
    rows = "".join(f"{number}\n" for number in range(6))
    assert (await shell("produce", "flights:1", stdin=rows)).code == 0
    assert (await shell("consume", "flights:1", "--until", "3")).lines == ["0", "1", "2"]
    assert (await shell("consume", "flights:1", "-o", "2", "--until", "-2")).lines == ["2", "3"]
    assert (await shell("consume", "flights:1", "--until", "99")).lines == rows.split()
    assert (await shell("consume", "flights:1", "--until", "@0")).lines == []
    hour = ("-o", "2023-11-14T22:00:00Z", "--until", "2023-11-14T23:00:00Z")
    assert (await shell("consume", "flights", *hour)).lines == rows.split()
    refused = await shell("consume", "flights", "--until", "3", "-f")
    assert (refused.code, "--until names the end" in refused.err) == (2, True)


async def test_json_values_are_stored_byte_for_byte(shell: Shell) -> None:
    value = '{"b":1,  "a":12345678901234567890, "a":2}'
    written = await shell("produce", "flights", "--json", stdin=value)
    assert written.code == 0, written.err
    assert (await shell("consume", "flights")).out == value + "\n"

    refused = await shell("produce", "flights", "--json", stdin="{oops\n")
    assert "line 1: not JSON" in refused.err
    part = await shell("produce", "flights", "--json", stdin="1\n2\n{oops\n3\n")
    assert (part.code, part.lines[0]) == (1, "written 2 records to flights")
    assert "line 3: not JSON: '{oops'" in part.err
    assert "written are the 2 lines before it" in part.err
    assert refused.code == 1
    assert "not JSON" in refused.err


async def test_keys_are_what_stands_before_the_separator(shell: Shell) -> None:
    stdin = "AA:first\nno key\nUA::second\n:empty key\n"
    written = await shell("produce", "flights", "-k", ":", stdin=stdin)
    assert written.code == 0, written.err
    out = (await shell("consume", "flights", "--format", "json")).lines
    pairs = {(row["key"], row["value"]) for row in map(json.loads, out)}
    assert pairs == {("AA", "first"), (None, "no key"), ("UA", ":second"), ("", "empty key")}

    text = sorted((await shell("consume", "flights", "-k", ":")).lines)
    assert text == sorted(stdin.splitlines())


async def test_empty_values_can_be_tombstones(shell: Shell) -> None:
    await shell("produce", "flights:0", "-k", ":", "-Z", stdin="AA:\n")
    row = json.loads((await shell("consume", "flights", "--format", "json")).out)
    assert (row["key"], row["value"]) == ("AA", None)


@pytest.mark.parametrize(
    ("offset", "count", "expected"),
    [
        ("beginning", None, ["0", "1", "2", "3", "4"]),
        ("end", None, []),
        ("-2", None, ["3", "4"]),
        ("-99", "1", ["0"]),
        ("3", None, ["3", "4"]),
        ("5", None, []),
        ("1", "2", ["1", "2"]),
    ],
)
async def test_consume_starts_and_stops_at_the_positions_given(
    shell: Shell, offset: str, count: str | None, expected: list[str]
) -> None:
    await shell("produce", "flights:0", stdin="0\n1\n2\n3\n4\n")
    limit = [] if count is None else ["-n", count]
    read = await shell("consume", "flights:0", "-o", offset, *limit)
    assert (read.code, read.lines) == (0, expected)


async def test_an_offset_outside_the_log_names_both_ends(shell: Shell) -> None:
    read = await shell("consume", "flights:0", "-o", "7")
    assert read.code == 1
    assert "flights:0 holds offsets 0 to 0" in read.err
    of_all = await shell("consume", "flights", "-o", "7")
    assert of_all.code == 1
    assert "no partition of flights goes beyond offset 0" in of_all.err


async def test_consume_reads_no_other_log_than_the_one_it_began_with(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic made anew, or a log that is cut, between two pages ends it with the reason."""
    long = "x" * 600_000
    await shell("produce", "flights:1", stdin=f"{long}1\n{long}2\n")
    real = shell.door.apis.fetch
    asked: list[FetchRequest] = []

    async def fetch(request: FetchRequest) -> FetchResult:
        asked.append(request)
        if request.offset:
            raise KafkaError(ErrorCode.TOPIC_CHANGED)
        return await real(request)

    monkeypatch.setattr(shell.door.apis, "fetch", fetch)
    read = await shell("consume", "flights:1")
    assert (read.code, read.lines) == (1, [long + "1"])
    assert "40951" in read.err
    assert [each.offset for each in asked] == [0, 1]
    topic_id = shell.door.apis.image.topic_ids[TopicName("flights")]
    assert {each.topic_id for each in asked} == {topic_id}
    assert asked[1].leader_epoch >= 0


@pytest.mark.parametrize("topic", ["flights", "flights:0"])
async def test_follow_goes_on_with_what_comes(shell: Shell, topic: str) -> None:
    await shell("produce", "flights:0", stdin="old\n")
    reading = asyncio.gather(
        shell("consume", topic, "-f", "-n", "3"),
        shell("produce", "flights:0", stdin="new\nnewer\n"),
    )
    read, _ = await reading
    assert read.lines == ["old", "new", "newer"]


@pytest.mark.parametrize(("topic", "first"), [("flights", ["4", "5"]), ("flights:1", ["3", "5"])])
async def test_follow_behind_the_last_records_prints_none_twice(
    shell: Shell, topic: str, first: list[str]
) -> None:
    for number in range(6):
        await send(shell, number % 2, {"value": str(number), "timestamp": 1_000 + number})
    command = ("consume", topic, "--last", "2", "-f")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "http_api.cli", *command),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "QUORUMLOG_URL": f"http://{shell.door.address}"},
    )
    assert process.stdout is not None
    await until_followed(shell)
    await send(shell, 1, {"value": "new"})
    async with asyncio.timeout(COMMAND_DEADLINE_S):
        lines = [(await process.stdout.readline()).decode().strip() for _ in range(3)]
    process.send_signal(signal.SIGINT)
    await process.wait()
    assert lines == [*first, "new"]


async def until_followed(shell: Shell) -> None:
    """Wait until a tail waits at the end of a partition, behind the read of its last records.

    The look-up of the topic's end waits there, too, for a moment before that read.
    """
    requests = shell.door.apis.requests
    requests.clear()

    def is_followed() -> bool:
        waits = [getattr(each, "max_wait_ms", 0) for each in requests]
        return DEFAULT_WAIT_MS in waits and max(waits[waits.index(DEFAULT_WAIT_MS) :]) > 5_000

    await until(is_followed, 10)


async def test_follow_prints_the_named_partitions_with_all_that_is_known(shell: Shell) -> None:
    headers = [{"key": "trace", "value": "YWI="}]
    await send(shell, 1, {"value": 1, "headers": headers, "timestamp": 1_700_000_000_123})
    await send(shell, 0, {"key": "k", "value": {"a": None}})
    read = await shell("consume", "flights:1", "-f", "-n", "1", "--format", "json")
    assert json.loads(read.lines[0]) == {
        "topic": "flights",
        "partition": 1,
        "offset": 0,
        "key": None,
        "value": 1,
        "timestamp": 1_700_000_000_123,
        "headers": headers,
    }
    both = await shell("consume", "flights:0,1", "-f", "-n", "2", "--format", "json")
    assert {json.loads(line)["partition"] for line in both.lines} == {0, 1}
    keyed = await shell("consume", "flights:0", "-f", "-n", "1", "-k", ":")
    assert keyed.lines == ['k:{"a": null}']


async def test_follow_shows_bytes_that_are_no_json_with_binary_only(shell: Shell) -> None:
    body = json.dumps({"value": {"type": "BINARY", "data": "/wA="}, "partition_id": 0})
    path = f"{V3}/topics/flights/records"
    sent = await shell.door.call("POST", path, body, {"Content-Type": "application/json"})
    assert sent.status == 200
    refused = await shell("consume", "flights", "-f", "-n", "1")
    assert refused.code == 1
    assert "the value of flights:0 at offset 0 is not JSON; try --binary" in refused.err
    shown = await shell("consume", "flights", "-f", "-n", "1", "--binary", "--format", "json")
    assert shown.json["value"] == "/wA="


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("flights:0", "-G", "g"), "expected a topic, as in flights"),
        (("flights", "-G", "g", "--last", "3"), "no --until and no --last"),
        (("flights", "-G", "g", "--until", "3"), "no --until and no --last"),
        (("flights", "-G", "g", "-o", "3"), "expected -o earliest or -o latest, or none"),
    ],
)
async def test_a_member_can_t_choose_what_its_group_decides(
    shell: Shell, arguments: tuple[str, ...], says: str
) -> None:
    refused = await shell("consume", *arguments)
    assert refused.code == 2
    assert says in refused.err


async def test_a_reader_that_has_had_enough_is_no_failure(shell: Shell) -> None:
    await shell("produce", "flights:0", stdin=("x" * 1000 + "\n") * 500)
    consume = f"{sys.executable} -m http_api.cli consume flights"
    process = await asyncio.create_subprocess_exec(
        *("bash", "-c", consume + " | head -c 10; exit ${PIPESTATUS[0]}"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "QUORUMLOG_URL": f"http://{shell.door.address}"},
    )
    out, err = await process.communicate()
    assert (process.returncode, out, err) == (0, b"x" * 10, b"")


async def test_input_that_pauses_is_written_at_once(shell: Shell) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "http_api.cli", "produce", "flights:0"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
        env={**os.environ, "QUORUMLOG_URL": f"http://{shell.door.address}"},
    )
    assert process.stdin is not None
    process.stdin.write(b"typed\n")
    await process.stdin.drain()
    read = await shell("consume", "flights:0", "-f", "-n", "1")
    assert read.lines == ["typed"]
    process.stdin.close()
    assert await process.wait() == 0


async def test_a_record_that_is_refused_ends_with_exit_1_and_says_so(shell: Shell) -> None:
    big = json.dumps("x" * 2_000_000)
    written = await shell("produce", "flights:0", "--json", stdin=f"1\n{big}\n")
    assert written.code == 1
    assert "MESSAGE_TOO_LARGE" in written.err
    assert written.lines[0] == "written 1 records to flights"


async def test_lines_without_a_key_go_where_the_partitioner_says(shell: Shell) -> None:
    """Batch by batch by default, one by one with round_robin; never to one without a leader."""
    shell.door.apis.add_topic("wide", 3)
    shell.door.apis.change_partition("wide", 1, leader=-1)
    sticky = await shell("produce", "wide", "--format", "json", stdin="1\n2\n3\n4\n")
    assert {place: row["count"] for place, row in sticky.json["partitions"].items()} == {"0": 4}
    chosen = ("--partitioner", "round_robin", "--format", "json")
    turns = await shell("produce", "wide", *chosen, stdin="1\n2\n3\n4\n")
    assert {place: row["count"] for place, row in turns.json["partitions"].items()} == {
        "0": 2,
        "2": 2,
    }
    wrong = await shell("produce", "wide", "--partitioner", "murmur2", stdin="1\n")
    assert (wrong.code, wrong.out) == (2, "")


async def test_a_line_that_is_too_long_does_not_lose_the_lines_before_it(shell: Shell) -> None:
    """The lines of its batch that were not sent yet had been dropped."""
    data = b"1\n2\n" + b"x" * 16_100_000 + b"\n4\n"
    written = await shell("produce", "flights:0", stdin=data)
    assert written.code == 1
    assert "line 3: longer than 16000000 bytes; written are the 2 lines before it" in written.err
    assert (await shell("consume", "flights:0")).lines == ["1", "2"]


async def send(shell: Shell, partition: int, record: dict[str, Any]) -> None:
    path = f"/topics/flights/partitions/{partition}"
    sent = await shell.door.call(
        "POST",
        path,
        json.dumps({"records": [record]}),
        headers={"Content-Type": "application/json"},
    )
    assert sent.status == 200


async def test_the_last_records_of_all_partitions_are_printed_by_time(shell: Shell) -> None:
    for number in range(6):
        await send(shell, number % 2, {"value": str(number), "timestamp": 1_000 + number})
    assert (await shell("consume", "flights", "--last", "3")).lines == ["3", "4", "5"]
    assert (await shell("consume", "flights:1", "--last", "2")).lines == ["3", "5"]
    assert len((await shell("consume", "flights", "--last", "100")).lines) == 6


async def test_headers_of_records_are_printed_as_json(shell: Shell) -> None:
    """A record with headers could not be decoded."""
    headers = [{"key": "trace", "value": "YWI="}]
    await send(shell, 0, {"value": 1, "headers": headers})
    read = await shell("consume", "flights:0", "--format", "json")
    assert read.json["headers"] == headers


async def test_one_partition_that_is_not_there_is_named_with_the_range(shell: Shell) -> None:
    absent = await shell("consume", "flights:0,7")
    assert absent.code == 1
    assert "Partition 'flights:7' not found: the topic has partitions 0 to 1" in absent.err


@pytest.mark.parametrize(
    "arguments", [("consume", "flights", "-f"), ("cluster", "health", "--watch")]
)
async def test_an_interrupt_ends_a_command_with_130_and_no_trace(
    shell: Shell, arguments: tuple[str, ...]
) -> None:
    await shell("produce", "flights:0", stdin="one\n")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "http_api.cli", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "QUORUMLOG_URL": f"http://{shell.door.address}"},
    )
    assert process.stdout is not None
    await process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, errors = await process.communicate()
    assert (process.returncode, errors.strip()) == (130, b"")  # a line break behind the ^C
