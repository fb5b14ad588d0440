"""Programs that use the SDK, as a type checker in strict mode sees them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import quorumlog

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
from collections.abc import Sequence
from typing import Any, assert_type

from quorumlog import (
    Admin, AsyncConsumer, AsyncProducer, Consumer, NewRecord, NewTopic, Producer, QuorumlogError,
    Receipt, Record, TopicPartition,
)
from quorumlog import TopicDescription


def delivered(error: QuorumlogError | None, receipt: Receipt) -> None:
    if error is not None:
        print(error.outcome, error.retriable)


def by_city(record: NewRecord, partitions: Sequence[int]) -> int:
    return partitions[0]


def committed(error: QuorumlogError | None, offsets: list[TopicPartition]) -> None:
    print(error, [one.offset for one in offsets])


with Producer("127.0.0.1:8082", linger_ms=20, partitioner=by_city) as producer:
    producer.produce("t", {"a": 1}, key="k", on_delivery=delivered, headers={"h": b"1"})
    assert_type(producer.send("t", 1), Receipt)
    assert_type(producer.flush(1.5), int)
    producer.produce("t", 1, "k", "0")  # type: ignore[arg-type]
    producer.produce("t", on_delivery=committed)  # type: ignore[arg-type]

with Consumer("127.0.0.1:8082", group_id="g", auto_offset_reset="earliest") as consumer:
    consumer.subscribe(["t"], on_assign=lambda one, places: one.seek(places[0]))
    assert_type(consumer.poll(), Record[Any, Any] | None)
    assert_type(consumer.consume(10), list[Record[Any, Any]])
    consumer.commit(asynchronous=True, callback=committed)
    consumer.subscribe(5)  # type: ignore[arg-type]

typed: Consumer[str, dict[str, int]] = Consumer(group_id="g")
for record in typed:
    assert_type(record.key, str)
    assert_type(record.value, dict[str, int])
    assert_type(record.headers, list[tuple[str, bytes | None]])

Producer(linger=5)  # type: ignore[call-arg]
Consumer(group_id=5)  # type: ignore[arg-type]
Producer({"linger.ms": 5})

with Admin() as admin:
    admin.create_topics([NewTopic("t", num_partitions=3)])
    assert_type(admin.describe_topics(["t"]), dict[str, TopicDescription])


async def main() -> None:
    async with AsyncProducer() as twin, AsyncConsumer(group_id="g") as reader:
        assert_type(await twin.send("t", 1), Receipt)
        await reader.subscribe(["t"])
        async for each in reader:
            assert_type(each, Record[Any, Any])
"""


def test_a_program_is_checked_in_strict_mode(tmp_path: Path) -> None:
    """Right calls have the types that the guide says; an unused ``ignore`` is an error, too."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache")]
    done = subprocess.run(
        [*command, str(program)],
        cwd=tmp_path,
        env=os.environ | {"MYPYPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.stdout.startswith("Success"), done.stdout + done.stderr


def test_each_name_of_the_package_can_be_used() -> None:
    """The classes are imported on first use, by a table of names."""
    for name in quorumlog.__all__:
        assert getattr(quorumlog, name) is not None
    with pytest.raises(AttributeError, match="Produzer"):
        quorumlog.Produzer  # type: ignore[attr-defined]  # noqa: B018 the access is the case
