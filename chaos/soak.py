"""``make soak``: an hour of transactions under load, one of them open all the time.

Writers stage, commit and repeat through all brokers; a broker is killed now and then. What an open
transaction must not do is looked at meanwhile: hold up a reader, a produce, or a disk. At the end
it is committed whole, another one is given up for its age, and nothing is left staged.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from random import Random

import click
import orjson
from typing_extensions import override

from chaos.checkers.verdict import Verdict
from chaos.cluster import LocalCluster, Node
from chaos.deadline import TooLateError, read_until, within
from chaos.http import HTTP_FIRST_ERROR, HTTP_OK, JSON, JSON_V2, CallError, Http, HttpReply
from chaos.run import Run, Screen, catch_signals, make_directory, play_in_directory, remove
from http_api.cli.options import DURATION_MS

HOME = Path(".chaos-data")
LOAD, SLOW, AGED = "soak-load", "soak-slow", "soak-aged"
PARTITIONS = 6
STAGED = "__staged"
TOPIC_CONFIGS = {"retention.bytes": 128 << 20, "segment.bytes": 32 << 20}
"""A partition's share of the disk: the load of an hour is not kept."""
CHUNK_ROWS, VALUE_BYTES = 1_000, 100
CHUNKS = 20
"""Chunks of a transaction of the load."""
WRITERS = 4
TIMEOUT_MS, CALL_S = 10_000, 15.0
TRY_AGAIN_S = 0.2
DONE_DEADLINE_S = 120.0
LOOK_S = 5.0
PULSE_S = 0.5
AGE_MAX_MS = 60_000
"""The smallest `transaction.max.age.ms` that a cluster takes."""
AGED_DEADLINE_S = 180.0
STALL_MAX_S = 15.0
"""Longest wait of a reader or a produce: an election, and the client's own next try."""
STAGED_END_BYTES = 300 << 20
NO_CHUNK = 40909
HTTP_TOO_MANY = 429


@dataclass(frozen=True, slots=True, kw_only=True)
class SoakOptions:
    """Length and strength of a soak."""

    duration_s: float
    kill_every_s: float
    rows_per_s: int
    move_bytes: int
    """`transaction.staged.move.bytes` of the cluster."""
    seed: int


@dataclass(slots=True)
class Seen:
    """Figures that were gathered while the load ran."""

    committed: int = 0
    """Transactions of the load that are complete."""
    repeats: int = 0
    kills: int = 0
    pulses: int = 0
    stall_s: float = 0.0
    """Longest time from the begin of a produce until its record was read."""
    staged_max_bytes: int = 0
    """Largest partition of `__staged` on any disk."""
    early: int = 0
    """Rows of the open transaction that were read before its commit."""
    memory_bytes: list[int] = field(default_factory=list)
    """Resident memory of all brokers, at each look."""

    @override
    def __str__(self) -> str:
        return (
            f"{self.committed:,} transactions, {self.kills} kills, staged at most "
            f"{self.staged_max_bytes >> 20} MiB a partition, slowest record {self.stall_s:.1f} s, "
            f"brokers {self.memory_bytes[-1] >> 20} MiB"
        )


@dataclass(frozen=True, slots=True)
class StagedPosition:
    """A transaction of the soak: its id with epoch and number."""

    name: str
    epoch: int
    number: int = 0


class Soak:
    """One soak on one cluster. Owned by its run."""

    def __init__(self, cluster: LocalCluster, http: Http, options: SoakOptions) -> None:
        self._cluster = cluster
        self._http = http
        self._options = options
        self._random = Random(options.seed)
        self._brokers = cluster.read().brokers
        self._v3 = f"/v3/clusters/{cluster.read().cluster_id}"
        self._turn = count()
        self._stop = asyncio.Event()
        self.seen = Seen()

    async def play(self, run: Run) -> None:
        """Run the load for its time, end it, and judge."""
        await self._prepare()
        slow = await self._begin(SLOW)
        await self._stage(slow, SLOW, 0)
        began = time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            for writer in range(WRITERS):
                tasks.create_task(self._write(writer))
            tasks.create_task(self._pulse())
            tasks.create_task(self._look(run.screen))
            tasks.create_task(self._kill())
            await asyncio.sleep(self._options.duration_s)
            self._stop.set()
        open_s = time.monotonic() - began
        await self._settled()
        await self._judge_load(run)
        await self._judge_slow(run, slow, open_s)
        await self._judge_aged(run)
        await self._judge_disks(run)

    async def _prepare(self) -> None:
        await self._set_config("transaction.staged.move.bytes", self._options.move_bytes)
        longer_ms = max(AGE_MAX_MS, int(2_000 * self._options.duration_s))
        await self._set_config("transaction.max.age.ms", longer_ms)
        for topic in (LOAD, SLOW, AGED):
            body = {
                "topic_name": topic,
                "partitions_count": PARTITIONS,
                "replication_factor": len(self._brokers),
                "configs": [{"name": k, "value": str(v)} for k, v in TOPIC_CONFIGS.items()],
            }
            await self._http.post_json(f"{self._url()}{self._v3}/topics", body)

    def _url(self) -> str:
        """Return the address of the next broker."""
        return self._brokers[next(self._turn) % len(self._brokers)].url

    async def _set_config(self, name: str, value: int) -> None:
        url = f"{self._url()}{self._v3}/broker-configs/{name}"
        await self._http.call("PUT", url, {"value": str(value)}, timeout_s=CALL_S)

    # ---- requests, each repeated until its answer is final

    async def _send(self, path: str, body: bytes, headers: dict[str, str]) -> HttpReply:
        """Send a request, through another broker each time, until an answer is final."""
        async with within(DONE_DEADLINE_S, f"{path} is answered"):
            while True:
                answer = await self._http.ask("POST", self._url() + path, body, headers, CALL_S)
                if answer.status == HTTP_OK or HTTP_FIRST_ERROR <= answer.status < HTTP_TOO_MANY:
                    return answer
                self.seen.repeats += 1
                await asyncio.sleep(TRY_AGAIN_S)

    async def _done(self, path: str, body: bytes, headers: dict[str, str]) -> HttpReply:
        answer = await self._send(path, body, headers)
        if answer.status != HTTP_OK:
            msg = f"{path}: {answer.status} {answer.reason}"
            raise CallError(msg, answer.status)
        return answer

    async def _begin(self, name: str) -> StagedPosition:
        path = f"{self._v3}/transactions/{name}:init"
        answer = await self._done(path, b"{}", {"Content-Type": JSON})
        return StagedPosition(name, answer.body["epoch"])

    async def _stage(self, at: StagedPosition, topic: str, chunk: int) -> None:
        partition = chunk % PARTITIONS
        headers = {
            "Content-Type": JSON_V2,
            "Quorumlog-Transaction": at.name,
            "Quorumlog-Transaction-Epoch": str(at.epoch),
            "Quorumlog-Transaction-Number": str(at.number),
            "Quorumlog-Chunk": str(chunk),
        }
        path = f"/topics/{topic}/partitions/{partition}?timeout={TIMEOUT_MS}"
        await self._done(path, CHUNK_BODY, headers)

    async def _commit(self, at: StagedPosition, chunks: int) -> HttpReply:
        attempt = {
            "attempt_id": f"{at.epoch}.{at.number}",
            "chunks": chunks,
            "rows": chunks * CHUNK_ROWS,
        }
        body = orjson.dumps({"epoch": at.epoch, "number": at.number, "attempts": [attempt]})
        path = f"{self._v3}/transactions/{at.name}:commit?timeout={TIMEOUT_MS}"
        return await self._send(path, body, {"Content-Type": JSON})

    # ---- while it lasts

    async def _rest(self, seconds: float) -> None:
        """Wait for a while, or until the load is to end."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stop.wait()

    async def _write(self, writer: int) -> None:
        """Commit one transaction after the other, at this writer's share of the rate."""
        at = await self._begin(f"writer-{writer}")
        every_s = CHUNKS * CHUNK_ROWS * WRITERS / self._options.rows_per_s
        due = time.monotonic()
        while not self._stop.is_set():
            async with asyncio.TaskGroup() as tasks:
                for chunk in range(CHUNKS):
                    tasks.create_task(self._stage(at, LOAD, chunk))
            answer = await self._commit(at, CHUNKS)
            if answer.status != HTTP_OK:
                msg = f"{at}: {answer.status} {answer.reason}"
                raise CallError(msg, answer.status)
            self.seen.committed += 1
            at = StagedPosition(at.name, at.epoch, at.number + 1)
            due += every_s
            await self._rest(max(0.0, due - time.monotonic()))

    async def _pulse(self) -> None:
        """Produce a record to the open transaction's topic, once, and read it; twice a second."""
        offset = 0
        while not self._stop.is_set():
            began = time.monotonic()
            path = f"/topics/{SLOW}/partitions/0?timeout={TIMEOUT_MS}"
            key = f"pulse-{self.seen.pulses}"
            await self._done(path, PULSE_BODY, {"Content-Type": JSON_V2, "Idempotency-Key": key})
            offset = await self._read_pulse(offset)
            self.seen.pulses += 1
            self.seen.stall_s = max(self.seen.stall_s, time.monotonic() - began)
            await self._rest(PULSE_S)

    async def _read_pulse(self, offset: int) -> int:
        """Read on until there is a record; return the offset behind it."""
        async with within(DONE_DEADLINE_S, f"a record of {SLOW} at offset {offset}"):
            while True:
                try:
                    lines, _ = await self._http.fetch(self._url(), SLOW, 0, offset)
                except CallError:
                    await asyncio.sleep(TRY_AGAIN_S)
                    continue
                if lines:
                    self.seen.early += sum(line.value != PULSE for line in lines)
                    return lines[-1].offset + 1

    async def _look(self, screen: Screen) -> None:
        """Look at disks and memory, and say now and then how far it is."""
        began = said = time.monotonic()
        while not self._stop.is_set():
            seen = self.seen
            seen.staged_max_bytes = max(seen.staged_max_bytes, self._staged_bytes())
            seen.memory_bytes.append(sum(map(_resident_bytes, self._cluster.read().brokers)))
            if time.monotonic() - said >= self._options.duration_s / 20:
                said = time.monotonic()
                screen.say(f"  {said - began:,.0f} s: {seen}")
            await self._rest(LOOK_S)

    def _staged_bytes(self) -> int:
        """Return the size of the largest partition of `__staged` on any broker's disk."""
        return max(
            (_folder_bytes(one) for one in self._cluster.data_dir.glob(f"broker-*/log/{STAGED}-*")),
            default=0,
        )

    async def _kill(self) -> None:
        """Kill a broker now and then; the supervisor starts it again."""
        while True:
            await self._rest(self._options.kill_every_s)
            if self._stop.is_set():
                return
            victim = self._random.choice(self._cluster.read().brokers)
            self._cluster.signal_node(victim, signal.SIGKILL)
            self.seen.kills += 1
            await self._cluster.wait_restarted(victim, DONE_DEADLINE_S)

    # ---- the end

    async def _ids(self, state: str) -> list[str]:
        path = f"{self._v3}/transactions?state={state}"
        try:
            found = await self._http.get_json(self._url() + path)
        except CallError:
            return ["?"]
        return [str(one["transaction_id"]) for one in found["data"]]

    async def _settled(self) -> None:
        for broker in self._brokers:
            await self._http.wait_ready(broker.url, DONE_DEADLINE_S)
        left = await read_until(DONE_DEADLINE_S, _is_empty, lambda: self._ids("committing"))
        if left:
            msg = f"still committing: {left}"
            raise TooLateError(msg)

    async def _end_offsets(self, topic: str) -> int:
        """Return the number of rows that a topic ever got."""
        total = 0
        for partition in range(PARTITIONS):
            path = f"/topics/{topic}/partitions/{partition}/offsets"
            total += (await self._http.get_json(self._url() + path))["end_offset"]
        return total

    async def _judge_load(self, run: Run) -> None:
        seen = self.seen
        wanted = seen.committed * CHUNKS * CHUNK_ROWS
        found = await self._end_offsets(LOAD)
        text = (
            f"{seen.committed:,} transactions, {found:,} rows, expected {wanted:,}; "
            f"{seen.repeats:,} requests repeated, {seen.kills} brokers killed"
        )
        is_right = found == wanted > 0
        run.judge(Verdict("every row of the load once", passed=is_right, figures=text))
        is_quick = seen.pulses > 0 and seen.stall_s <= STALL_MAX_S
        text = f"{seen.pulses:,} records, slowest {seen.stall_s:.2f} s, at most {STALL_MAX_S:g}"
        run.judge(Verdict("produced and read meanwhile", passed=is_quick, figures=text))
        memory = [size >> 20 for size in seen.memory_bytes]
        first, last = max(memory[: len(memory) // 4 + 1]), max(memory[-len(memory) // 4 :])
        text = f"all brokers {first} MiB in the first quarter, {last} MiB in the last"
        run.judge(Verdict("memory does not grow", passed=last <= 2 * first, figures=text))

    async def _judge_slow(self, run: Run, slow: StagedPosition, open_s: float) -> None:
        answer = await self._commit(slow, 1)
        rows = await self._end_offsets(SLOW) - self.seen.pulses
        text = (
            f"open for {open_s:,.0f} s, {self.seen.early} rows read before its commit, "
            f"{answer.status}, {rows} rows, expected {CHUNK_ROWS}"
        )
        is_right = answer.status == HTTP_OK and rows == CHUNK_ROWS and not self.seen.early
        run.judge(Verdict("the open transaction, committed", passed=is_right, figures=text))

    async def _judge_aged(self, run: Run) -> None:
        """Leave a transaction open for longer than it may be, and see that it is given up."""
        aged = await self._begin(AGED)
        await self._stage(aged, AGED, 0)
        await self._set_config("transaction.max.age.ms", AGE_MAX_MS)
        began = time.monotonic()
        left = await read_until(AGED_DEADLINE_S, _is_empty, lambda: self._ids("staging"))
        took_s = time.monotonic() - began
        answer = await self._commit(aged, 1)
        rows = await self._end_offsets(AGED)
        text = f"left {left} after {took_s:.0f} s; its commit {answer.code}; {rows} rows"
        is_right = not left and answer.code == NO_CHUNK and rows == 0
        run.judge(Verdict("a transaction is given up for its age", passed=is_right, figures=text))

    async def _judge_disks(self, run: Run) -> None:
        at_end = self._staged_bytes()
        text = (
            f"largest partition of {STAGED}: {self.seen.staged_max_bytes >> 20} MiB, "
            f"at the end {at_end >> 20}"
        )
        run.judge(Verdict("staged rows go", passed=at_end <= STAGED_END_BYTES, figures=text))


PULSE = b'"pulse"'
PULSE_BODY = b'{"records":[{"value":%b}]}' % PULSE
CHUNK_BODY = b'{"records":[%b]}' % b",".join(
    [b'{"value":"%b"}' % (b"v" * VALUE_BYTES)] * CHUNK_ROWS
)


def _is_empty(found: list[str]) -> bool:
    return not found


def _folder_bytes(folder: Path) -> int:
    total = 0
    for file in folder.iterdir():
        with suppress(FileNotFoundError):  # a segment that goes in this moment
            total += file.stat().st_blocks * 512
    return total


def _resident_bytes(node: Node) -> int:
    try:
        status = Path(f"/proc/{node.pid}/status").read_text()
    except OSError:
        return 0
    found = status.partition("VmRSS:")[2].split()  # none of a process that was just killed
    return int(found[0]) << 10 if found else 0


@click.command()
@click.option("--duration", type=DURATION_MS, default=3_600_000, help="Default: 1h.")
@click.option("--kill-every", type=DURATION_MS, default=300_000, help="Default: 5m.")
@click.option("--rows", type=click.IntRange(min=1_000), default=20_000, help="Rows a second.")
@click.option(
    "--move-bytes", type=click.IntRange(min=1 << 20), default=256 << 20,
    help="transaction.staged.move.bytes of the cluster.",
)  # fmt: skip
@click.option("--seed", type=int, default=1)
def main(duration: int, kill_every: int, rows: int, move_bytes: int, seed: int) -> None:
    """Run transactions for an hour, one of them open all the time; then check every promise."""
    catch_signals()
    screen, directory = Screen(), make_directory(HOME)
    cluster = LocalCluster(directory)
    options = SoakOptions(
        duration_s=duration / 1000,
        kill_every_s=kill_every / 1000,
        rows_per_s=rows,
        move_bytes=move_bytes,
        seed=seed,
    )

    async def story(run: Run) -> None:
        await cluster.start()
        async with Http() as http:
            await Soak(cluster, http, options).play(run)

    code, _ = play_in_directory(directory, [], screen, story, cluster.kill_everything)
    if code == 0:
        remove(directory)
    else:
        screen.say(f"kept: {directory}")
    sys.exit(code)


if __name__ == "__main__":
    main()
