"""One voter as a real process, driven by JSON lines: `python -m tests.support.quorum_process`.

`run_voter` is the process; `VoterProcess` is how a test holds it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from raft_metadata.common.errors import KafkaError
from raft_metadata.common.faults import ProcessFaultHandler
from raft_metadata.common.ids import ClusterId, DirectoryId, NodeId
from raft_metadata.quorum.config import QuorumConfig
from raft_metadata.quorum.data_dir import Identity, format_raft_dir
from raft_metadata.quorum.metadata_quorum import MetadataQuorum
from raft_metadata.quorum.raft_node import Leadership

CLUSTER = ClusterId("integration")
LINE_BYTES_MAX = 64 * 1024 * 1024


class SilentListener:
    """An owner that does nothing but remember what its voter reported."""

    def __init__(self) -> None:
        self.leaderships: list[Leadership] = []
        self.deactivations = 0

    def on_activated(self, leadership: Leadership) -> None:
        self.leaderships.append(leadership)

    def on_deactivated(self) -> None:
        self.deactivations += 1

    def on_applied(self) -> None:
        pass


class PayloadList:
    """A state machine that is the list of its payloads."""

    def __init__(self) -> None:
        self.payloads: list[str] = []

    def apply(self, index: int, term: int, payload: bytes) -> object:
        self.payloads.append(payload.decode())
        return len(self.payloads)

    def capture(self) -> object:
        return tuple(self.payloads)

    def chunks(self, captured: object) -> Iterator[bytes]:
        assert isinstance(captured, tuple)
        for start in range(0, len(captured), 1000):
            yield json.dumps(captured[start : start + 1000]).encode()

    def restore(self, chunks: Sequence[bytes], index: int, term: int) -> None:
        self.payloads = [payload for chunk in chunks for payload in json.loads(chunk)]


def config(
    node: int, root: Path, addresses: dict[int, str], dial: dict[int, str] | None = None
) -> QuorumConfig:
    """The same for every test: quick elections, small snapshots."""
    return QuorumConfig(
        node_id=NodeId(node),
        cluster_id=CLUSTER,
        directory_id=DirectoryId(f"disk-{node}"),
        raft_dir=root / f"raft-{node}",
        bind=addresses[node],
        voters={NodeId(voter): address for voter, address in addresses.items()},
        dial={NodeId(voter): address for voter, address in (dial or {}).items()},
        snapshot_min_entries=500,
        reserve_bytes=64 * 1024,
    )


def format_all(root: Path, nodes: Sequence[int]) -> None:
    directories = {NodeId(node): DirectoryId(f"disk-{node}") for node in nodes}
    for node, directory in directories.items():
        identity = Identity(cluster_id=CLUSTER, node_id=node, directory_id=directory)
        format_raft_dir(root / f"raft-{node}", identity, directories)


def free_addresses(nodes: Sequence[int]) -> dict[int, str]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in nodes]
    addresses = [f"127.0.0.1:{listener.getsockname()[1]}" for listener in sockets]
    for listener in sockets:
        listener.close()
    return dict(zip(nodes, addresses, strict=True))


async def run_voter(node: int, root: Path, addresses: dict[int, str]) -> None:
    machine = PayloadList()
    quorum = MetadataQuorum(
        config(node, root, addresses),
        machine,
        ProcessFaultHandler(),
    )
    await quorum.start(SilentListener())
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)

    def reply(question: dict[str, Any], **answer: Any) -> None:
        sys.stdout.write(json.dumps({"id": question["id"], **answer}) + "\n")
        sys.stdout.flush()

    def submitted(question: dict[str, Any], future: asyncio.Future[object]) -> None:
        error = future.exception()
        if isinstance(error, KafkaError):
            reply(question, error=error.code.name)
        else:
            reply(question, result=future.result())

    while line := await reader.readline():
        question = json.loads(line)
        if question["do"] == "submit":
            future = quorum.submit(question["payload"].encode(), quorum.term)
            future.add_done_callback(partial(submitted, question))
        elif question["do"] == "status":
            reply(question, result=dict(quorum.status()))
        else:
            reply(question, result=machine.payloads)
    await quorum.stop()


class VoterProcess:
    """One life of one process. What it did not answer before it died was not answered."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._asked: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._number = 0
        self._reading = asyncio.ensure_future(self._read())

    @classmethod
    async def start(cls, node: int, root: Path, addresses: dict[int, str]) -> VoterProcess:
        with (root / f"voter-{node}.log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", "tests.support.quorum_process"),
                json.dumps([node, str(root), addresses]),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                limit=LINE_BYTES_MAX,
            )
        return cls(process)

    async def _read(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            answer = json.loads(line)
            self._asked.pop(answer["id"]).set_result(answer)
        for future in self._asked.values():
            future.set_result({"error": "DIED"})

    async def ask(self, do: str, **question: Any) -> dict[str, Any]:
        """The answer: `result` or `error`."""
        assert self._process.stdin is not None
        if self._reading.done():
            return {"error": "DIED"}
        self._number += 1
        future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._asked[self._number] = future
        line = json.dumps({"id": self._number, "do": do, **question}) + "\n"
        with contextlib.suppress(ConnectionError):
            self._process.stdin.write(line.encode())
        return await future

    async def kill(self) -> None:
        """SIGKILL, and wait for its end."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGKILL)
        await self._process.wait()
        await self._reading

    async def stop(self) -> int:
        """End of input: a clean stop. The exit status."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        status = await self._process.wait()
        await self._reading
        return status


if __name__ == "__main__":
    node_id, folder, known = json.loads(sys.argv[1])
    asyncio.run(run_voter(node_id, Path(folder), {int(k): v for k, v in known.items()}))
