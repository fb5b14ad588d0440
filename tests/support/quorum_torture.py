"""Real voters under unique writes, kills and cut links; afterwards the books are balanced.

Each voter-voter link goes through a `TcpRelay`: it can be cut (reset, and refused again), silent
(connected, and nothing passes), or silent one way.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.quorum_process import format_all, free_addresses
from tests.support.tcp_relay import TcpRelay
from tests.support.torture_voter import PARTITIONS_PER_TOPIC, TortureVoter, VoterOptions

NODES = (101, 102, 103)
LINKS = ((102, 101), (103, 101), (103, 102))
"""(who dials, whom): the voter with the greater id dials the other."""
WRITERS = 8
BEHIND_MAX = 500
"""Entries a follower may be behind its leader and count as one that follows."""
NOBODY = "127.0.0.1:9"
"""Refuses connections: the discard port."""
FAULTS = ("kill one", "kill leader", "kill two", "kill all", "start", "link")
LINK_FAULTS = ("cut", "silent", "deaf", "mute")


@dataclass(frozen=True, slots=True)
class Books:
    """What was written, and what is there."""

    acknowledged: int
    unknown: int
    refused: int
    present: int
    partitions: int
    snapshots: dict[int, int]
    """Raft index of each voter's snapshot at its last start."""


@dataclass(slots=True)
class Ledger:
    """What became of every mark, by its answer."""

    acknowledged: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    """Surely not written, says the answer (rule M3)."""
    unknown: list[str] = field(default_factory=list)
    answers: Counter[str] = field(default_factory=Counter)

    def note(self, mark: str, answer: dict[str, Any]) -> bool:
        """Whether it was acknowledged."""
        if "result" in answer:
            self.acknowledged.append(mark)
            return True
        self.answers[answer["error"]] += 1
        surely = answer.get("outcome") == "not_written" or answer["error"] == "DOWN"
        (self.refused if surely else self.unknown).append(mark)
        return False


class Voters:
    """The processes, their links, and writers that never send a mark twice."""

    def __init__(self, root: Path, relays: dict[tuple[int, int], TcpRelay], entries: int) -> None:
        self.root = root
        self.relays = relays
        self.up: dict[int, TortureVoter] = {}
        self.ledger = Ledger()
        self._entries = entries
        self._numbers = itertools.count()
        self._writing = True
        self._addresses: dict[int, str] = {}

    def know(self, addresses: dict[int, str]) -> None:
        """Where each voter listens."""
        self._addresses = addresses
        for (_, target), relay in self.relays.items():
            relay.target = addresses[target]

    async def start(self, *nodes: int) -> None:
        """All of these at once."""

        async def one(node: int) -> None:
            dial = {
                target: relay.address
                for (source, target), relay in self.relays.items()
                if source == node
            }
            options = VoterOptions(node, str(self.root), self._addresses, dial, self._entries)
            self.up[node] = await TortureVoter.run(options)

        await asyncio.gather(*(one(node) for node in nodes))

    async def kill(self, *nodes: int) -> None:
        """SIGKILL all of these at once."""
        await asyncio.gather(*(self.up.pop(node).kill() for node in nodes if node in self.up))

    async def status(self, node: int) -> dict[str, Any]:
        """Empty while it is down."""
        process = self.up.get(node)
        if process is None:
            return {}
        found: dict[str, Any] = (await process.ask("status")).get("result", {})
        return found

    async def leader(self, seconds: float) -> int:
        async with asyncio.timeout(seconds):
            while True:
                for node in NODES:
                    if (await self.status(node)).get("role") == "leader":
                        return node
                await asyncio.sleep(0.02)

    async def follow_one_leader(self) -> bool:
        """All voters up, in one term, under one leader that holds them all."""
        facts = [await self.status(node) for node in NODES]
        if len({(fact.get("term"), fact.get("leader_id")) for fact in facts}) > 1:
            return False
        leading = [fact for fact in facts if fact.get("role") == "leader"]
        if len(leading) != 1:
            return False
        behind = [
            leading[0]["last_index"] - (voter["match_index"] or 0)
            for voter in leading[0]["voters"].values()
        ]
        return bool(max(behind) <= BEHIND_MAX)

    async def load(self, partitions: int, seconds: float) -> None:
        """Make that many partitions part of the state."""
        topics = partitions // PARTITIONS_PER_TOPIC
        async with asyncio.timeout(seconds):
            made = 0
            while made < topics:
                leader = await self.leader(seconds)
                answer = await self.up[leader].ask("load", topics=topics)
                made = answer.get("result") or 0

    # -- links

    def break_link(self, link: tuple[int, int], fault: str) -> None:
        relay = self.relays[link]
        if fault == "cut":
            relay.target = NOBODY
            relay.cut()
        relay.lose_requests = fault in ("silent", "mute")
        relay.lose_answers = fault in ("silent", "deaf")

    def heal(self) -> None:
        """All links carry again. What a silent one swallowed tore its streams: they are reset."""
        for (_, target), relay in self.relays.items():
            if relay.lose_requests or relay.lose_answers:
                relay.cut()
            relay.lose_requests = relay.lose_answers = False
            relay.target = self._addresses[target]

    # -- writing

    async def write(self) -> None:
        """One writer: the next mark to whom it believes to lead, for ever."""
        believed = NODES[0]
        while self._writing:
            process = self.up.get(believed)
            mark = f"mark-{next(self._numbers)}"
            answer: dict[str, Any] = {"error": "DOWN"}
            if process is not None:
                answer = await process.ask("submit", payload=mark)
            if not self.ledger.note(mark, answer):
                believed = NODES[(NODES.index(believed) + 1) % len(NODES)]
                await asyncio.sleep(0.01)

    def stop_writing(self) -> None:
        self._writing = False

    async def until_acknowledged(self, more: int, seconds: float) -> float:
        """Until so many more marks are acknowledged; the seconds that took."""
        began, wanted = time.monotonic(), len(self.ledger.acknowledged) + more
        async with asyncio.timeout(seconds):
            while len(self.ledger.acknowledged) < wanted:  # noqa: ASYNC110 a deadline is around it
                await asyncio.sleep(0.01)
        return time.monotonic() - began

    # -- the books

    async def balanced(self, seconds: float) -> Books:
        """Compare all voters with each other and with the ledger, once they have settled."""
        await self._settled(seconds)
        found = {node: (await self.up[node].ask("state"))["result"] for node in NODES}
        lists = [found[node].pop("marks") for node in NODES]
        states = [found[node] for node in NODES]
        assert lists[0] == lists[1] == lists[2], "voters differ in their marks"
        assert states[0] == states[1] == states[2], f"voters differ in their state {states}"
        present = set(lists[0])
        assert len(present) == len(lists[0]), "a mark was applied twice"
        ledger = self.ledger
        lost = [mark for mark in ledger.acknowledged if mark not in present]
        assert not lost, f"{len(lost)} of {len(ledger.acknowledged)} acknowledged are gone"
        lies = [mark for mark in ledger.refused if mark in present]
        assert not lies, f"rule M3: {lies[:3]} were said not to be written, and are"
        snapshots = {node: (await self.status(node))["snapshot_index"] for node in NODES}
        return Books(
            acknowledged=len(ledger.acknowledged),
            unknown=len(ledger.unknown),
            refused=len(ledger.refused),
            present=len(present),
            partitions=int(states[0]["partitions"]),
            snapshots=snapshots,
        )

    async def _settled(self, seconds: float) -> None:
        async with asyncio.timeout(seconds):
            while True:
                facts = [await self.status(node) for node in NODES]
                ends = {(f.get("applied_index"), f.get("last_index")) for f in facts}
                if len(ends) == 1 and len(set(*ends)) == 1 and None not in next(iter(ends)):
                    return
                await asyncio.sleep(0.05)


@asynccontextmanager
async def tortured(root: Path, *, snapshot_entries: int) -> AsyncIterator[Voters]:
    """Three voters behind three relays, under writes until the block ends."""
    format_all(root, NODES)
    async with AsyncExitStack() as stack:
        relays = {link: await stack.enter_async_context(TcpRelay(NOBODY)) for link in LINKS}
        voters = Voters(root, relays, snapshot_entries)
        voters.know(free_addresses(NODES))
        try:
            await voters.start(*NODES)
            yield voters
        finally:
            voters.stop_writing()
            await voters.kill(*NODES)


@dataclass(slots=True)
class Nemesis:
    """Kills and cuts at random, and heals again after a while. One seed, one order of faults."""

    voters: Voters
    rng: random.Random
    reconverge_s: float
    done: Counter[str] = field(default_factory=Counter)
    reconverged_s: list[float] = field(default_factory=list)
    """From each healing to the next acknowledged write."""

    async def run(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        await self._fault("kill leader")
        await self.make_whole()
        while time.monotonic() < end:
            for _ in range(self.rng.randint(1, 4)):
                what = self.rng.choice(FAULTS)
                await self._fault(self.rng.choice((what, "link", "heal")))
                await asyncio.sleep(self.rng.uniform(0.1, 2.0))
            await self.make_whole()

    async def _fault(self, what: str) -> None:
        up = sorted(self.voters.up)
        match what:
            case "kill one" if up:
                await self.voters.kill(self.rng.choice(up))
            case "kill leader":
                leading = [n for n in up if (await self.voters.status(n)).get("role") == "leader"]
                await self.voters.kill(*leading)
            case "kill two":
                await self.voters.kill(*self.rng.sample(up, min(2, len(up))))
            case "kill all":
                await self.voters.kill(*up)
            case "start":
                await self.voters.start(*(node for node in NODES if node not in up))
            case "heal":
                self.voters.heal()
            case "link":
                fault = self.rng.choice(LINK_FAULTS)
                self.voters.break_link(self.rng.choice(LINKS), fault)
                what = f"link {fault}"
            case _:
                return  # nobody was left to kill
        self.done[what] += 1

    async def make_whole(self) -> None:
        """Everybody up, every link whole: within the bound all follow one leader, and writes go on.

        A write that was under way may be acknowledged before that, so both are waited for.
        """
        began = time.monotonic()
        self.voters.heal()
        await self.voters.start(*(node for node in NODES if node not in self.voters.up))
        async with asyncio.timeout(self.reconverge_s):
            while not await self.voters.follow_one_leader():  # noqa: ASYNC110 others' state
                await asyncio.sleep(0.02)
        await self.voters.until_acknowledged(1, self.reconverge_s)
        self.reconverged_s.append(time.monotonic() - began)
