"""A voter process for torture: the real metadata state, and marks that writers leave behind it.

`python -m tests.support.torture_voter` is the process, driven by JSON lines as `quorum_process`;
`TortureVoter` is how a test holds it.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from typing_extensions import override

from http_api.node.node_start import run_loop
from raft_metadata.common.errors import KafkaError
from raft_metadata.common.faults import ProcessFaultHandler
from raft_metadata.common.ids import (
    BrokerId,
    DirectoryId,
    LeaderEpoch,
    PartitionEpoch,
    PartitionId,
    TopicId,
    TopicName,
)
from raft_metadata.image.metadata_state_machine import CapturedState, MetadataStateMachine
from raft_metadata.image.snapshot import image_records
from raft_metadata.quorum.metadata_quorum import MetadataQuorum
from raft_metadata.records.records import MetadataRecord, PartitionRecord, TopicRecord
from raft_metadata.records.serde import encode_batch, encode_record
from tests.support.quorum_process import LINE_BYTES_MAX, SilentListener, VoterProcess, config

PARTITIONS_PER_TOPIC = 1_000
MARKS_PER_CHUNK = 5_000
_MARK = b"\0"
"""Begins the payload of a mark: a batch of records begins with a brace."""
_BROKERS = tuple(BrokerId(number) for number in range(1, 7))


@dataclass(frozen=True, slots=True)
class CapturedWithMarks:
    """A state to write a snapshot of."""

    state: CapturedState
    marks: list[str]
    count: int
    """Marks behind the first ``count`` came later."""


class MarkedStateMachine(MetadataStateMachine):
    """The metadata, and a list of marks: in a snapshot the marks come first."""

    def __init__(self) -> None:
        super().__init__()
        self.marks: list[str] = []

    @override
    def apply(self, index: int, term: int, payload: bytes) -> Any:
        if not payload.startswith(_MARK):
            return super().apply(index, term, payload)
        self.index, self.term = index, term
        self.marks.append(payload[1:].decode())
        return len(self.marks)

    @override
    def capture(self) -> Any:
        # The list only grows, so that its beginning is as good as a copy.
        return CapturedWithMarks(super().capture(), self.marks, len(self.marks))

    @override
    def chunks(self, captured: object) -> Iterator[bytes]:
        assert isinstance(captured, CapturedWithMarks)
        marks = islice(captured.marks, captured.count)
        pieces = range(0, captured.count, MARKS_PER_CHUNK)
        yield json.dumps(len(pieces)).encode()
        for _ in pieces:
            yield json.dumps(list(islice(marks, MARKS_PER_CHUNK))).encode()
        yield from super().chunks(captured.state)

    @override
    def restore(self, chunks: Sequence[bytes], index: int, term: int) -> None:
        pieces = json.loads(chunks[0])
        self.marks = [mark for chunk in chunks[1 : pieces + 1] for mark in json.loads(chunk)]
        super().restore(chunks[pieces + 1 :], index, term)

    def digest(self) -> dict[str, object]:
        """What two voters with the same state say alike."""
        digest = hashlib.sha256()
        for record in image_records(self.image):
            digest.update(encode_record(record))
        return {
            "state": digest.hexdigest(),
            "next_offset": self.image.next_offset,
            "partitions": sum(len(topic.partitions) for topic in self.image.topics.values()),
        }


def _topic_records(number: int) -> list[MetadataRecord]:
    topic_id = TopicId(str(number).rjust(22, "t"))
    records: list[MetadataRecord] = [
        TopicRecord(
            name=TopicName(f"t{number}"), topic_id=topic_id, partitions_count=PARTITIONS_PER_TOPIC
        )
    ]
    for index in range(PARTITIONS_PER_TOPIC):
        replicas = tuple(_BROKERS[(index + step) % len(_BROKERS)] for step in range(3))
        records.append(
            PartitionRecord(
                topic_id=topic_id,
                partition=PartitionId(index),
                replicas=replicas,
                directories=tuple(DirectoryId(str(r).rjust(22, "d")) for r in replicas),
                isr=replicas,
                elr=(),
                leader=replicas[0],
                leader_epoch=LeaderEpoch(0),
                partition_epoch=PartitionEpoch(0),
            )
        )
    return records


async def _load(quorum: MetadataQuorum, machine: MarkedStateMachine, topics: int) -> int:
    """Make topics until there are so many: one batch each, as a large creation goes."""
    for number in range(len(machine.image.topics), topics):
        batch = encode_batch(machine.image.next_offset, quorum.term, _topic_records(number))
        await quorum.submit(batch, quorum.term)
    return len(machine.image.topics)


@dataclass(frozen=True, slots=True)
class VoterOptions:
    """What one process is told."""

    node: int
    root: str
    addresses: dict[int, str]
    dial: dict[int, str]
    snapshot_entries: int


async def run_voter(options: VoterOptions) -> None:
    machine = MarkedStateMachine()
    root = Path(options.root)
    quorum = MetadataQuorum(
        replace(
            config(options.node, root, options.addresses, options.dial),
            snapshot_min_entries=options.snapshot_entries,
            snapshot_max_journal_bytes=1 << 30,  # by entries only
        ),
        machine,
        ProcessFaultHandler(),
    )
    await quorum.start(SilentListener())
    reader = asyncio.StreamReader(limit=LINE_BYTES_MAX)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)

    def reply(question: dict[str, Any], **answer: Any) -> None:
        sys.stdout.write(json.dumps({"id": question["id"], **answer}) + "\n")
        sys.stdout.flush()

    def submitted(question: dict[str, Any], future: asyncio.Future[object]) -> None:
        error = future.exception()
        if isinstance(error, KafkaError):
            reply(question, error=error.code.name, outcome=error.outcome.value)
        else:
            reply(question, result=future.result())

    while line := await reader.readline():
        question = json.loads(line)
        match question["do"]:
            case "submit":
                payload = _MARK + question["payload"].encode()
                future = quorum.submit(payload, quorum.term)
                future.add_done_callback(partial(submitted, question))
            case "load":
                reply(question, result=await _load(quorum, machine, question["topics"]))
            case "status":
                state = quorum.raft_state()
                facts = {
                    **quorum.status(),
                    "snapshot_index": 0 if state is None else state.snapshot_index,
                }
                reply(question, result=facts)
            case _:
                reply(question, result={"marks": machine.marks, **machine.digest()})
    await quorum.stop()


class TortureVoter(VoterProcess):
    """One life of one process."""

    @classmethod
    async def run(cls, options: VoterOptions) -> TortureVoter:
        """Start it; its log is appended to the last life's."""
        said = json.dumps([options.node, options.root, options.addresses, options.dial])
        with (Path(options.root) / f"voter-{options.node}.log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", "tests.support.torture_voter", said, str(options.snapshot_entries)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                limit=LINE_BYTES_MAX,
            )
        return cls(process)


def _options(said: str, snapshot_entries: str) -> VoterOptions:
    node, root, addresses, dial = json.loads(said)
    by_node = [{int(key): value for key, value in each.items()} for each in (addresses, dial)]
    return VoterOptions(node, root, by_node[0], by_node[1], int(snapshot_entries))


if __name__ == "__main__":
    run_loop(run_voter(_options(sys.argv[1], sys.argv[2])))
