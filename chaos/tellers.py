"""Producers that stage transfers, and are killed, doubled and fenced.

Each teller is one transactional id. A life begins with an `init`; it stages the rows of a transfer
chunk by chunk, and commits it, aborts it, does both at once, or leaves it. A life is killed amid a
request, or lives on as a zombie beside the next one, until it is told that it is fenced.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING

import orjson

from chaos.http import HTTP_OK, JSON, JSON_V2
from chaos.ledger import BOOKS, SentText, TellerLife, TellerPosition
from chaos.transfers import (
    ASK_DEADLINE_S,
    TIMEOUT_MS,
    TRY_AGAIN_S,
    record_text,
    topics_text,
)

if TYPE_CHECKING:
    from chaos.cluster import Node
    from chaos.ledger import Transfer
    from chaos.transfers import Bank

TELLERS = 5
LIFE_S = (1.0, 4.0)
ZOMBIE_CHANCE = 0.5
LEAVE_CHANCE = 0.1
ABORT_CHANCE = 0.15
BOTH_CHANCE = 0.1
INLINE_CHANCE = 0.2
CHUNK_TWICE_CHANCE = 0.2
STAGE_TRIES = 3
STAGED_CREDITS_MAX = 8
CHUNK_ROWS = 3
TELLER_PAUSE_S = 0.5
FENCED_CODE = 40907
ZOMBIE_NUMBER = 1_000_000
"""Position behind every other of its epoch."""


def chunks_of(transfer: Transfer) -> list[tuple[str, list[int]]]:
    """Return the chunks of a transfer: topic and rows of each."""
    found = []
    for topic in BOOKS:
        rows = [row for row, entry in enumerate(transfer.entries) if entry.topic == topic]
        found += [(topic, rows[at : at + CHUNK_ROWS]) for at in range(0, len(rows), CHUNK_ROWS)]
    return found


@dataclass(slots=True)
class Tellers:
    """Producers of one bank. Owned by the run; `run` is a task until the bank stops."""

    bank: Bank
    names: tuple[str, ...] = field(
        default_factory=lambda: tuple(f"teller-{number}" for number in range(TELLERS))
    )

    async def run(self) -> None:
        """Let every teller live one life after another until the bank stops."""
        async with asyncio.TaskGroup() as tasks:
            for name in self.names:
                tasks.create_task(self._live_on(name, tasks))

    async def _live_on(self, name: str, tasks: asyncio.TaskGroup) -> None:
        bank = self.bank
        while not bank.is_stopped:
            life = await self.begin(name, bank.any_broker())
            if life is None:
                await bank.pause(TRY_AGAIN_S)
                continue
            task = tasks.create_task(self._live(life))
            await bank.pause(bank.random.uniform(*LIFE_S))
            if bank.random.random() > ZOMBIE_CHANCE:
                task.cancel()

    async def begin(self, name: str, broker: Node) -> TellerLife | None:
        """Send an `init` once; return the life that it began, None without a good answer."""
        bank = self.bank
        sent_ms = bank.clock.monotonic_ms()
        url = f"{broker.url}{bank.path()}/{name}:init?timeout={TIMEOUT_MS}"
        reply = await bank.http.ask("POST", url, b"{}", {"Content-Type": JSON}, ASK_DEADLINE_S)
        if reply.status != HTTP_OK:
            return None
        last = reply.body["last"]
        life = TellerLife(
            teller=name,
            epoch=reply.body["epoch"],
            last=(last["epoch"], last["number"], last["state"]) if last else None,
            forgotten_to_epoch=reply.body["forgotten_to_epoch"],
            sent_ms=sent_ms,
            answered_ms=bank.clock.monotonic_ms(),
        )
        bank.ledger.add(life)
        return life

    async def move_as_zombie(self, life: TellerLife) -> None:
        """Ask for a transfer in the epoch before this life, which fences it."""
        position = TellerPosition(life.teller, life.epoch - 1, ZOMBIE_NUMBER)
        name = f"{life.teller}-{position.epoch}-{ZOMBIE_NUMBER}"
        transfer = self.bank.plan(name, "staged", position=position)
        await self.bank.send(transfer, "commit", self._commit(transfer, position, is_staged=False))

    async def _live(self, life: TellerLife) -> None:
        bank = self.bank
        for number in count():
            if bank.is_stopped:
                return
            position = TellerPosition(life.teller, life.epoch, number)
            name = f"{life.teller}-{life.epoch}-{number}"
            entries = bank.draw_entries(STAGED_CREDITS_MAX)
            transfer = bank.plan(name, "staged", entries=entries, position=position)
            is_over = await self._move(transfer, position)
            if is_over:
                return
            await bank.pause(TELLER_PAUSE_S * 2 * bank.random.random())

    async def _move(self, transfer: Transfer, position: TellerPosition) -> bool:
        """Make one transfer; return whether the life is over: fenced, or in doubt."""
        bank, random = self.bank, self.bank.random
        if random.random() < INLINE_CHANCE:
            answer = await bank.send_until_known(
                transfer, "commit", self._commit(transfer, position, is_staged=False)
            )
            return answer.told in {"refused", "unknown"}
        chunks = self._chunks(transfer, position)
        staged = await asyncio.gather(*(self._stage(transfer, one) for one in chunks))
        commit = self._commit(transfer, position, is_staged=True)
        drawn = random.random()
        if not all(staged) or drawn < ABORT_CHANCE:
            answer = await bank.send_until_known(transfer, "abort", self._abort(position))
            return answer.told in {"refused", "unknown"}
        if drawn < ABORT_CHANCE + LEAVE_CHANCE:
            return False
        if drawn < ABORT_CHANCE + LEAVE_CHANCE + BOTH_CHANCE:
            abort = self._abort(position)
            await asyncio.gather(
                bank.send(transfer, "commit", commit), bank.send(transfer, "abort", abort)
            )
        answer = await bank.send_until_known(transfer, "commit", commit)
        return answer.code == FENCED_CODE or answer.told == "unknown"

    async def _stage(self, transfer: Transfer, chunk: SentText) -> bool:
        bank = self.bank
        for _ in range(STAGE_TRIES):
            answer = await bank.send(transfer, "stage", chunk)
            if answer.told == "complete":
                if bank.random.random() < CHUNK_TWICE_CHANCE:
                    await bank.send(transfer, "stage", chunk)
                return True
            if answer.code == FENCED_CODE or bank.is_stopped:
                return False
            await bank.pause(TRY_AGAIN_S)
        return False

    def _chunks(self, transfer: Transfer, position: TellerPosition) -> list[SentText]:
        """Return staged produces of a few rows each, to one book each."""
        chunks = []
        for number, (topic, rows) in enumerate(chunks_of(transfer)):
            records = b",".join(record_text(transfer, row) for row in rows)
            headers = (
                ("Content-Type", JSON_V2),
                ("Quorumlog-Transaction", position.teller),
                ("Quorumlog-Transaction-Epoch", str(position.epoch)),
                ("Quorumlog-Transaction-Number", str(position.number)),
                ("Quorumlog-Chunk", str(number)),
            )
            path = f"/topics/{topic}?timeout={TIMEOUT_MS}"
            chunks.append(SentText(path, headers, b'{"records":[' + records + b"]}"))
        return chunks

    def _commit(self, transfer: Transfer, position: TellerPosition, *, is_staged: bool) -> SentText:
        attempt = {
            "attempt_id": f"{position.epoch}.{position.number}",
            "chunks": len(chunks_of(transfer)),
            "rows": len(transfer.entries),
        }
        content = (
            ("attempts", orjson.dumps([attempt]))
            if is_staged
            else ("topics", topics_text(transfer))
        )
        place = [("epoch", b"%d" % position.epoch), ("number", b"%d" % position.number)]
        path = f"{self.bank.path()}/{position.teller}:commit"
        return self.bank.commit_text(path, [*place, content])

    def _abort(self, position: TellerPosition) -> SentText:
        place = [("epoch", b"%d" % position.epoch), ("number", b"%d" % position.number)]
        return self.bank.commit_text(f"{self.bank.path()}/{position.teller}:abort", place)
