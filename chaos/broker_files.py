"""Readers of the brokers' files and hash chains, by documented means only.

The runner passes event journals, hash chains and disk verification to the checks in
`checkers/events.py`, and compares the records on disks with those that brokers serve. For records
only two facts are used: the place of segments (interfaces §2), and that each record is one line
``{"offset":N,…,"value":V}`` (§3). The binary headers between the lines are skipped unread, so no
mistake is shared with the code that wrote them.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec
import orjson

from chaos.checkers.events import Chain, JournalEvent, Journals, event_of
from chaos.cluster import quorumlog_command
from chaos.http import CallError, StoredLine
from chaos.ledger import NumberedBatch

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from chaos.cluster import Node
    from chaos.history import Line
    from chaos.http import Http


_STORED_LINE = re.compile(rb'\{"offset":\d+,[^\n]*\}\n')
_decode = msgspec.json.Decoder(StoredLine).decode


def lines_on_disk(data_dir: Path, broker: int, topic: str, partition: int) -> list[Line] | None:
    """Return all records of a replica in the order of its files; None if the broker has no replica.

    A line that is still being written is incomplete and left out; a later call returns it.
    """
    folder = data_dir / f"broker-{broker}" / "log" / f"{topic}-{partition}"
    if not folder.is_dir():
        return None
    return [
        _decode(found[0]).line()
        for segment in sorted(folder.glob("*.log"))
        for found in _STORED_LINE.finditer(segment.read_bytes())
    ]


EVENT_FILES = ("events.1.ndjson", "events.ndjson")
"""Names of the journal files in a broker's folder, oldest first."""
VERIFY_DEADLINE_S = 60.0


def read_journals(data_dir: Path, brokers: Sequence[int]) -> Journals:
    """Return all events of these brokers from their journal files.

    A line that a kill has torn is left out; the check of sequence numbers then reports the gap.
    """
    return {broker: _events(data_dir / f"broker-{broker}", broker) for broker in brokers}


def _events(folder: Path, broker: int) -> list[JournalEvent]:
    found = []
    for name in EVENT_FILES:
        path = folder / name
        for line in path.read_bytes().splitlines() if path.exists() else ():
            with suppress(orjson.JSONDecodeError):
                found.append(event_of(broker, orjson.loads(line)))
    return found


async def read_chains(
    http: Http, brokers: Sequence[Node], topic: str, partitions: int
) -> dict[int, dict[int, Chain]]:
    """Return partition → broker → hash chain, over the offsets that all replicas cover.

    Sends two requests to each broker: one for the first offset that its chain can begin at, one for
    the chain between offsets that all have. A broker without a replica of the partition, or without
    an answer, is left out; the check then reports too few chains.
    """
    found: dict[int, dict[int, Chain]] = {}
    for partition in range(partitions):
        path = f"/broker/v1/state?topic={topic}&partition={partition}&chain=true"
        rows = {}
        for node in brokers:
            with suppress(CallError):
                rows[node] = (await http.get_json(node.url + path))["partitions"][0]
        start = max((row["chain"]["first"] for row in rows.values()), default=0)
        end = min((row["high_watermark"] for row in rows.values()), default=0)
        found[partition] = {}
        for node in rows:
            with suppress(CallError):
                state = await http.get_json(f"{node.url}{path}&from={start}&to={end}")
                found[partition][node.id] = _chain(state)
    return found


def _chain(state: dict[str, Any]) -> Chain:
    chain = state["partitions"][0]["chain"]
    return Chain(chain["first"], chain["from"], chain["to"], chain["value"])


async def verify_disks(data_dir: Path, brokers: Sequence[int]) -> dict[int, list[dict[str, Any]]]:
    """Return broker → the reports of `quorumlog log dump --verify` on each of its partitions."""
    reports = await asyncio.gather(*(_verify(data_dir / f"broker-{one}") for one in brokers))
    return dict(zip(brokers, reports, strict=True))


async def _verify(folder: Path) -> list[dict[str, Any]]:
    command = [*quorumlog_command(), "log", "dump", str(folder), "--verify", "--format", "json"]
    child = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    async with asyncio.timeout(VERIFY_DEADLINE_S):
        output, _ = await child.communicate()
    return [orjson.loads(line) for line in output.splitlines()]


FIRST_NUMBERING = 1 << 62
"""Smallest producer id that no client may bring: the numberings of homes."""
EPOCH_BITS = 31


async def numbered_batches(
    data_dir: Path, broker: int, partitions: Sequence[str]
) -> dict[str, list[NumberedBatch]]:
    """Return partition folder → batches that transactions completed, from `quorumlog log dump`.

    The number of a batch's first row is its producer epoch · 2^31 + its base sequence.
    """
    found: dict[str, list[NumberedBatch]] = {}
    for partition in partitions:
        folder = data_dir / f"broker-{broker}" / "log" / partition
        if folder.is_dir():
            batches = [orjson.loads(line) for line in await _dump(folder)]
            found[partition] = [
                NumberedBatch(
                    batch["producer_id"],
                    (batch["producer_epoch"] << EPOCH_BITS) + batch["base_sequence"],
                    batch["count"],
                )
                for batch in batches
                if batch["producer_id"] >= FIRST_NUMBERING
            ]
    return found


async def _dump(folder: Path) -> list[bytes]:
    command = [*quorumlog_command(), "log", "dump", str(folder), "--format", "json"]
    child = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    async with asyncio.timeout(VERIFY_DEADLINE_S):
        output, _ = await child.communicate()
    return output.splitlines()
