"""Groups that answer orders: each transfer commits the offsets of the orders that it answers.

`OrderWriters` write `orders` by produces under a key, repeated until they are stored. The group of
`CarefulBuyers` has no members: rivals read the committed offset and name it as the expected one.
`MemberBuyers` are members that come, leave and die; they commit under their member epoch.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

import orjson

from chaos.http import HTTP_OK, JSON, JSON_V2, CallError
from chaos.ledger import ACCOUNTS, CREDITS, DEBITS, ORDERS, Entry, OffsetRead, OrderRange
from chaos.transfers import (
    AMOUNTS,
    ASK_DEADLINE_S,
    ORDER_PARTITIONS,
    PASSING,
    TIMEOUT_MS,
    TRY_AGAIN_S,
    told_by,
    topics_text,
)

if TYPE_CHECKING:
    from chaos.history import Line
    from chaos.ledger import Transfer, TransferRequest
    from chaos.transfers import Bank

CAREFUL_GROUP, MEMBER_GROUP = "careful-buyers", "member-buyers"
GROUPS = (CAREFUL_GROUP, MEMBER_GROUP)
ORDER_WRITERS = 2
ORDERS_PAUSE_S = 0.25
ORDERS_MAX = 3
"""Most orders in one produce, and most that one transfer answers."""
BUYERS = 3
BUYER_PAUSE_S = 0.3
BUYER_LIFE_S = (3.0, 8.0)
LEAVE_WELL_CHANCE = 0.6
RIVALS_CHANCE = 0.2
SESSION_MS = 3000
FETCH_BYTES = 2000
CALL_S = 4.0
OFFSET_NONE = -1
HTTP_NOT_FOUND = 404


@dataclass(slots=True)
class OrderWriters:
    """Writers of `orders`. Owned by the run; `run` is a task until the bank stops."""

    bank: Bank

    async def run(self) -> None:
        """Write orders until the bank stops."""
        async with asyncio.TaskGroup() as tasks:
            for writer in range(ORDER_WRITERS):
                tasks.create_task(self._write(writer))

    async def _write(self, writer: int) -> None:
        bank = self.bank
        for number in count():
            if bank.is_stopped:
                return
            values = [
                self._order(f"{writer}-{number}-{row}")
                for row in range(1 + bank.random.randrange(ORDERS_MAX))
            ]
            records = b",".join(b'{"value":%b}' % value for value in values)
            body = b'{"records":[' + records + b"]}"
            if await self._store(f"orders-{writer}-{number}", body):
                bank.ledger.orders.extend(values)
            await bank.pause(ORDERS_PAUSE_S * 2 * bank.random.random())

    def _order(self, name: str) -> bytes:
        payer, getter = self.bank.random.sample(range(ACCOUNTS), 2)
        amount = self.bank.random.randint(*AMOUNTS)
        return orjson.dumps({"order": name, "from": payer, "to": getter, "amount": amount})

    async def _store(self, key: str, body: bytes) -> bool:
        """Send a produce under a key until it is answered as stored, or the bank stops."""
        bank = self.bank
        headers = {"Content-Type": JSON_V2, "Idempotency-Key": key}
        while not bank.is_stopped:
            url = f"{bank.any_broker().url}/topics/{ORDERS}?timeout={TIMEOUT_MS}"
            reply = await bank.http.ask("POST", url, body, headers, ASK_DEADLINE_S)
            if reply.status == HTTP_OK and told_by(reply) == "complete":
                return True
            await bank.pause(TRY_AGAIN_S)
        return False


@dataclass(slots=True)
class Buyers:
    """Base of both groups: fetch orders, and answer them with their offset in one transaction."""

    bank: Bank
    group: str
    _attempts: count[int] = field(default_factory=count, init=False)

    @property
    def path(self) -> str:
        """The path of the group in v3."""
        return f"{self.bank.v3}/consumer-groups/{self.group}"

    async def fetch(self, partition: int, offset: int) -> list[Line]:
        """Return some orders from this offset on; none if there are none yet, or no answer."""
        try:
            lines, _ = await self.bank.http.fetch(
                self.bank.any_broker().url,
                ORDERS,
                partition,
                offset,
                max_bytes=FETCH_BYTES,
                timeout_ms=100,
                deadline_s=CALL_S,
            )
        except CallError:
            return []
        return lines[: 1 + self.bank.random.randrange(ORDERS_MAX)]

    async def answer(
        self, partition: int, lines: list[Line], fields: dict[str, Any], expected: int | None
    ) -> tuple[Transfer, TransferRequest]:
        """Answer these orders in one transaction with their offset, until its outcome is known."""
        first, end = lines[0].offset, lines[-1].offset + 1
        name = f"{self.group}-{partition}-{first}-{next(self._attempts)}"
        transfer = self.bank.plan(
            name,
            "members" if expected is None else "expected",
            entries=_entries(lines),
            orders=OrderRange(self.group, partition, first, end),
        )
        move: dict[str, Any] = {"topic_name": ORDERS, "partition_id": partition, "offset": end}
        if expected is not None:
            move["expected_offset"] = expected
        texts = [(key, orjson.dumps(value)) for key, value in fields.items()]
        content = [("topics", topics_text(transfer)), ("offsets", orjson.dumps([move]))]
        sent = self.bank.commit_text(self.bank.path(self.group), [*content, *texts], name)
        return transfer, await self.bank.send_until_known(transfer, "commit", sent)


def _entries(lines: list[Line]) -> tuple[Entry, ...]:
    entries: list[Entry] = []
    for line in lines:
        order = orjson.loads(line.value)
        entries.append(Entry(DEBITS, order["from"], -order["amount"]))
        entries.append(Entry(CREDITS, order["to"], order["amount"]))
    return tuple(entries)


@dataclass(slots=True)
class CarefulBuyers(Buyers):
    """Buyers without membership, several for each partition of orders."""

    async def run(self) -> None:
        """Answer orders until the bank stops."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(BUYERS):
                tasks.create_task(self._buy())

    async def _buy(self) -> None:
        bank = self.bank
        while not bank.is_stopped:
            partition = bank.random.randrange(ORDER_PARTITIONS)
            start = await self._committed(partition)
            if start is not None:
                lines = await self.fetch(partition, max(0, start))
                if lines:
                    rivals = 2 if bank.random.random() < RIVALS_CHANCE else 1
                    answers = (self.answer(partition, lines, {}, start) for _ in range(rivals))
                    await asyncio.gather(*answers)
            await bank.pause(BUYER_PAUSE_S * 2 * bank.random.random())

    async def _committed(self, partition: int) -> int | None:
        """Return the committed offset, -1 for none yet; None without an answer."""
        bank, broker = self.bank, self.bank.any_broker()
        sent_ms = bank.clock.monotonic_ms()
        try:
            found = await bank.http.committed_offsets(broker.url + self.path, ORDERS)
        except CallError as error:
            if error.status != HTTP_NOT_FOUND:
                return None
            found = {}
        read = OffsetRead(
            group=self.group,
            partition=partition,
            offset=found.get(partition, OFFSET_NONE),
            broker=broker.id,
            sent_ms=sent_ms,
            answered_ms=bank.clock.monotonic_ms(),
        )
        bank.ledger.add(read)
        return read.offset


@dataclass(slots=True)
class BuyerLife:
    """One life of a member: its epoch, and the partitions that it owns with their positions."""

    name: str
    epoch: int = 0
    positions: dict[int, int] = field(default_factory=dict)

    def learn(self, body: dict[str, Any]) -> None:
        """Take an answer's epoch and assignment; a partition that is owned keeps its position."""
        self.epoch = body["member_epoch"]
        self.positions = {
            row["partition_id"]: self.positions.get(row["partition_id"], row["offset"] or 0)
            for row in body["assignment"]
        }

    def heartbeat(self) -> bytes:
        """Return the body of a heartbeat."""
        owned = [{"topic_name": ORDERS, "partitions": sorted(self.positions)}]
        return orjson.dumps({"member_epoch": self.epoch, "owned": owned if self.positions else []})


@dataclass(slots=True)
class MemberBuyers(Buyers):
    """Buyers that are members of their group, for a life of some seconds each."""

    async def run(self) -> None:
        """Answer orders until the bank stops."""
        async with asyncio.TaskGroup() as tasks:
            for buyer in range(BUYERS):
                tasks.create_task(self._live_on(buyer))

    async def _live_on(self, buyer: int) -> None:
        bank = self.bank
        for life in count():
            if bank.is_stopped:
                return
            member = BuyerLife(f"buyer-{buyer}-{life}")
            ends_ms = bank.clock.monotonic_ms() + 1000 * bank.random.uniform(*BUYER_LIFE_S)
            if await self._join(member):
                while not bank.is_stopped and bank.clock.monotonic_ms() < ends_ms:
                    if not await self._buy(member):
                        break
                    await bank.pause(BUYER_PAUSE_S)
                if bank.random.random() < LEAVE_WELL_CHANCE:
                    url = f"{bank.any_broker().url}{self.path}/consumers/{member.name}"
                    with suppress(CallError):
                        await bank.http.call("DELETE", url, timeout_s=CALL_S)
            await bank.pause(TRY_AGAIN_S)

    async def _join(self, member: BuyerLife) -> bool:
        body = {
            "consumer_id": member.name,
            "topics": [ORDERS],
            "auto_offset_reset": "earliest",
            "session_timeout_ms": SESSION_MS,
            "rebalance_timeout_ms": SESSION_MS,
        }
        return await self._ask(member, f"{self.path}/consumers", orjson.dumps(body))

    async def _ask(self, member: BuyerLife, path: str, body: bytes) -> bool:
        url = self.bank.any_broker().url + path
        reply = await self.bank.http.ask("POST", url, body, {"Content-Type": JSON}, CALL_S)
        if reply.status == HTTP_OK:
            member.learn(reply.body)
        return reply.status == HTTP_OK

    async def _buy(self, member: BuyerLife) -> bool:
        """Heartbeat, then answer orders of each partition; return whether the life goes on."""
        path = f"{self.path}/consumers/{member.name}:heartbeat"
        if not await self._ask(member, path, member.heartbeat()):
            return False
        for partition, position in list(member.positions.items()):
            lines = await self.fetch(partition, position)
            if not lines:
                continue
            fields = {"member_id": member.name, "member_epoch": member.epoch}
            transfer, answer = await self.answer(partition, lines, fields, None)
            if answer.told == "complete" and transfer.orders is not None:
                member.positions[partition] = transfer.orders.end
                continue
            # If all attempts were refused for the moment, another transfer answers these orders.
            asked = self.bank.ledger.of(transfer.id)
            if any(one.told != "refused" or one.code not in PASSING for one in asked):
                return False
        return True
