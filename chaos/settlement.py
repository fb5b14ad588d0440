"""The end of a run with money: outcomes made known, books read, recorded requests sent again.

`Settlement.settle` is called once the clients have stopped. What is still unknown then is asked
again until it is known, as any client may; afterwards every late repeat must change nothing.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from chaos.buyers import GROUPS
from chaos.checkers.money import fates
from chaos.deadline import read_until
from chaos.history import Reading
from chaos.http import CallError
from chaos.ledger import BOOKS, ORDERS, MoneyEnd, Repeat
from chaos.transfers import MONEY_PARTITIONS, ORDER_PARTITIONS, TRY_AGAIN_S

if TYPE_CHECKING:
    from chaos.cluster import Node
    from chaos.ledger import Transfer, TransferRequest
    from chaos.tellers import Tellers
    from chaos.transfers import Bank

AT_ONCE = 8
"""Requests under way at a time."""
KNOWN_TRIES = 20
REPEATS_MAX = 150
READ_DEADLINE_S = 20.0
COMPLETE_DEADLINE_S = 15.0
CALL_S = 5.0


@dataclass(slots=True)
class Settlement:
    """Ends the accounts of one bank. Used once."""

    bank: Bank
    tellers: Tellers

    async def settle(self) -> MoneyEnd:
        """Wait for decisions, make every outcome known, read, repeat, read again."""
        end = MoneyEnd()
        await self._wait_complete(end)
        await self._begin_last_lives()
        await self._make_known()
        brokers = self.bank.endpoints
        end.books = await self._read(brokers[0])
        await self._repeat_recorded(end)
        end.later_books = await self._read(brokers[-1])
        for group in GROUPS:
            end.committed[group] = await self._committed(group)
        return end

    async def _wait_complete(self, end: MoneyEnd) -> None:
        began = self.bank.clock.monotonic_ms()
        waiting = await read_until(COMPLETE_DEADLINE_S, lambda found: found == (), self.committing)
        if waiting == ():
            end.completed_ms = self.bank.clock.monotonic_ms() - began
        else:
            end.waiting = waiting or ("no broker answered",)

    async def committing_now(self) -> frozenset[str]:
        """Return the positions that are not complete, from the first broker that answers."""
        found = await read_until(CALL_S, lambda found: found is not None, self.committing)
        return frozenset(("no broker answered",) if found is None else found)

    async def committing(self) -> tuple[str, ...] | None:
        """Return the positions that are not complete, as texts; None without an answer."""
        url = f"{self.bank.any_broker().url}{self.bank.path()}?state=committing"
        try:
            listed = await self.bank.http.get_json(url, CALL_S)
        except CallError:
            return None
        return tuple(f"{row['transaction_id']} {row['last']}" for row in listed["data"])

    async def _begin_last_lives(self) -> None:
        """Let each teller begin a life, which tells of the last position, and its zombie move."""
        for name in self.tellers.names:
            for attempt in range(KNOWN_TRIES):
                broker = self.bank.endpoints[attempt % len(self.bank.endpoints)]
                life = await self.tellers.begin(name, broker)
                if life is not None:
                    await self.tellers.move_as_zombie(life)
                    break
                await asyncio.sleep(TRY_AGAIN_S)

    async def _make_known(self) -> None:
        """Repeat each commit of unknown outcome until it is known."""
        ledger = self.bank.ledger
        wanted, _ = fates(ledger)
        asked: dict[str, TransferRequest] = {}
        for one in ledger.requests:
            if one.what == "commit":
                asked[one.transfer] = one
        unclear = [
            (ledger.transfers[name], asked[name])
            for name, fate in wanted.items()
            if name in asked and (fate == "open" or asked[name].told == "committing")
        ]
        gate = asyncio.Semaphore(AT_ONCE)

        async def make_known(transfer: Transfer, request: TransferRequest) -> None:
            assert request.sent is not None
            async with gate:
                for attempt in range(KNOWN_TRIES):
                    broker = self.bank.endpoints[attempt % len(self.bank.endpoints)]
                    again = await self.bank.send(transfer, "commit", request.sent, broker)
                    if again.told == "complete" or again.code in FINAL:
                        return
                    await asyncio.sleep(TRY_AGAIN_S)

        await asyncio.gather(*(make_known(*each) for each in unclear))

    async def _read(self, broker: Node) -> dict[str, Reading]:
        await self.bank.http.wait_ready(broker.url, READ_DEADLINE_S)
        found: dict[str, Reading] = {}
        for topic in (*BOOKS, ORDERS):
            partitions = MONEY_PARTITIONS if topic in BOOKS else ORDER_PARTITIONS
            lines = await self.bank.http.read_topic(broker.url, topic, partitions)
            found[topic] = Reading(broker.id, lines)
        return found

    async def _repeat_recorded(self, end: MoneyEnd) -> None:
        """Send recorded requests again, of transfers whose fate is known for good."""
        ledger = self.bank.ledger
        wanted, _ = fates(ledger)
        final = {one.transfer for one in ledger.requests if one.code in FINAL}
        lasting = [
            one
            for one in ledger.requests
            if one.sent is not None
            and (
                wanted[one.transfer] == "there"
                or one.transfer in final
                or ledger.transfers[one.transfer].position is not None
            )
        ]
        chosen = self.bank.random.sample(lasting, min(REPEATS_MAX, len(lasting)))
        gate = asyncio.Semaphore(AT_ONCE)

        async def repeat(one: TransferRequest) -> None:
            assert one.sent is not None
            async with gate:
                again = await self.bank.send(ledger.transfers[one.transfer], one.what, one.sent)
            is_there = one.what == "commit" and wanted[one.transfer] == "there"
            first = "complete" if is_there else one.told
            if one.what == "commit":
                end.repeats.append(Repeat(one.transfer, one.what, first, again.told, again.reason))

        await asyncio.gather(*(repeat(one) for one in chosen))

    async def _committed(self, group: str) -> dict[int, int]:
        async def read() -> dict[int, int]:
            try:
                url = f"{self.bank.any_broker().url}{self.bank.v3}/consumer-groups/{group}"
                return await self.bank.http.committed_offsets(url, ORDERS)
            except CallError:
                return {}

        return await read_until(READ_DEADLINE_S, bool, read)


FINAL = frozenset({40903, 40907, 40908, 40910, 40911, 40912})
"""Codes behind which no repeat of a commit can decide anything."""
