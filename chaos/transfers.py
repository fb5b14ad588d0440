"""Clients that move money by transactions over plain HTTP, and write down every answer.

`Bank` sends requests about transfers and runs the clients with one-shot transfers: repeats through
other brokers, rivals with another content under the same key, late repeats of what was decided.
Producers are in `tellers.py`, groups in `buyers.py`; `Settlement` (`settlement.py`) ends a run.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING

from chaos.http import HTTP_FIRST_SERVER_ERROR, HTTP_OK, JSON, HttpReply
from chaos.ledger import (
    ACCOUNTS,
    BOOKS,
    CREDITS,
    DEBITS,
    ORDERS,
    Entry,
    SentText,
    Transfer,
    TransferRequest,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from random import Random

    from chaos.cluster import Node
    from chaos.http import Http
    from chaos.ledger import Kind, Ledger, OrderRange, TellerPosition, Told, What
    from raft_metadata.common.clock import Clock

MONEY_PARTITIONS = 6
ORDER_PARTITIONS = 3
TIMEOUT_MS = 3000
"""The `timeout` of a request, within which a broker answers 202 or 503."""
ASK_DEADLINE_S = 4.5
"""Time after which a client gives a request up; the server's own is over then."""
TRIES = 6
"""Most attempts in a row of a request of unknown outcome; what is unknown then stays so for now."""
TRY_AGAIN_S = 0.2
ONE_SHOT_CLIENTS = 6
ONE_SHOT_PAUSE_S = 0.5
RIVAL_CHANCE = 0.2
DOUBLE_CHANCE = 0.3
GIVE_UP_CHANCE = 0.3
LATE_CHANCE = 0.2
AMOUNTS = (1, 9)
HTTP_ACCEPTED = 202
PASSING = frozenset({0, 42901, 50002, 50003, 50302})
"""Codes of refusals that a repeat may lift: no connection, a limit, no leader for the moment."""


def told_by(reply: HttpReply) -> Told:
    """Return what an answer about a transaction means for it, as documented."""
    if reply.status == HTTP_ACCEPTED:
        return "committing"
    if reply.status == HTTP_OK and "offsets" in reply.body:
        rows = reply.body["offsets"]
        return "complete" if all(row.get("error_code") is None for row in rows) else "refused"
    if reply.status == HTTP_OK:
        state = reply.body.get("state")
        return state if state in {"complete", "committing", "aborted"} else "unknown"
    if not reply.is_sent:
        return "refused"
    is_refusal = 0 < reply.status < HTTP_FIRST_SERVER_ERROR
    outcome = reply.body.get("outcome", "not_written" if is_refusal else "unknown")
    return "refused" if outcome == "not_written" else "unknown"


def topics_text(transfer: Transfer) -> bytes:
    """Return the JSON text of `topics` with all rows of a transfer."""
    topics = []
    for topic in BOOKS:
        rows = [row for row, entry in enumerate(transfer.entries) if entry.topic == topic]
        records = b",".join(record_text(transfer, row) for row in rows)
        topics.append(b'{"topic_name":"%b","records":[%b]}' % (topic.encode(), records))
    return b"[" + b",".join(topics) + b"]"


def record_text(transfer: Transfer, row: int) -> bytes:
    """Return the JSON text of a row; its key is its account."""
    return b'{"key":"account-%d","value":%b}' % (
        transfer.entries[row].account,
        transfer.value(row),
    )


@dataclass(slots=True, kw_only=True)
class Bank:
    """A cluster as clients with money use it. Owned by the run; `run` is a task until `stop`."""

    http: Http
    ledger: Ledger
    endpoints: Sequence[Node]
    cluster_id: str
    clock: Clock
    random: Random
    _stopped: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    def stop(self) -> None:
        """Let every client end after its pending request."""
        self._stopped.set()

    @property
    def is_stopped(self) -> bool:
        """True once `stop` was called."""
        return self._stopped.is_set()

    async def pause(self, seconds: float) -> None:
        """Sleep, or return at once when the bank is stopped."""
        try:
            async with asyncio.timeout(seconds):
                await self._stopped.wait()
        except TimeoutError:
            return

    # -- requests

    @property
    def v3(self) -> str:
        """The path of the cluster in v3."""
        return f"/v3/clusters/{self.cluster_id}"

    def path(self, group: str = "") -> str:
        """Return the path of transactions; of those that commit offsets of a group, if given."""
        return (
            f"{self.v3}/consumer-groups/{group}/transactions"
            if group
            else (f"{self.v3}/transactions")
        )

    def any_broker(self) -> Node:
        """Draw a broker."""
        return self.random.choice(self.endpoints)

    def commit_text(
        self,
        path: str,
        fields: Iterable[tuple[str, bytes]],
        key: str = "",
    ) -> SentText:
        """Return a commit with these fields, their JSON texts as given."""
        body = b",".join(b'"%b":%b' % (name.encode(), text) for name, text in fields)
        headers = (("Content-Type", JSON), *((("Idempotency-Key", key),) if key else ()))
        return SentText(f"{path}?timeout={TIMEOUT_MS}", headers, b"{" + body + b"}")

    async def send(
        self, transfer: Transfer, what: What, sent: SentText, broker: Node | None = None
    ) -> TransferRequest:
        """Send a request about a transfer once and record its answer, or that it was given up."""
        node = broker or self.any_broker()
        sent_ms = self.clock.monotonic_ms()
        reply = HttpReply(0, {}, reason="the client was killed")
        try:
            reply = await self.http.ask(
                "POST", node.url + sent.path, sent.body, dict(sent.headers), ASK_DEADLINE_S
            )
        finally:
            request = TransferRequest(
                transfer=transfer.id,
                what=what,
                broker=node.id,
                sent_ms=sent_ms,
                answered_ms=self.clock.monotonic_ms(),
                told=told_by(reply),
                code=reply.code,
                reason=reply.reason[:200],
                sent=sent,
            )
            self.ledger.add(request)
        return request

    async def send_until_known(
        self, transfer: Transfer, what: What, sent: SentText, tries: int = TRIES
    ) -> TransferRequest:
        """Send a request through one broker after another until its outcome is known.

        A refusal that a repeat may lift (a 5xx, or no connection) is repeated, too.
        """
        for attempt in count(1):
            request = await self.send(transfer, what, sent)
            is_passing = request.told == "refused" and request.code in PASSING
            if attempt == tries or self.is_stopped:
                return request
            if request.told in {"complete", "aborted"} or (
                request.told == "refused" and not is_passing
            ):
                return request
            await self.pause(TRY_AGAIN_S)
        raise AssertionError

    # -- transfers

    def draw_entries(self, credits_max: int = 2) -> tuple[Entry, ...]:
        """Draw an account that pays, and those that get it."""
        payer, *getters = self.random.sample(
            range(ACCOUNTS), 2 + self.random.randrange(credits_max)
        )
        amounts = [self.random.randint(*AMOUNTS) for _ in getters]
        return (
            Entry(DEBITS, payer, -sum(amounts)),
            *(Entry(CREDITS, one, amount) for one, amount in zip(getters, amounts, strict=True)),
        )

    def plan(
        self,
        name: str,
        kind: Kind,
        *,
        transaction: str = "",
        entries: tuple[Entry, ...] = (),
        position: TellerPosition | None = None,
        orders: OrderRange | None = None,
    ) -> Transfer:
        """Return a new transfer, written down; without `entries` they are drawn."""
        transfer = Transfer(
            id=name,
            transaction=transaction or name,
            kind=kind,
            entries=entries or self.draw_entries(),
            position=position,
            orders=orders,
        )
        self.ledger.plan(transfer)
        return transfer

    # -- one shots

    async def run(self) -> None:
        """Make one-shot transfers until `stop`."""
        async with asyncio.TaskGroup() as tasks:
            for client in range(ONE_SHOT_CLIENTS):
                tasks.create_task(self._make_one_shots(client))

    async def _make_one_shots(self, client: int) -> None:
        for number in count():
            if self.is_stopped:
                return
            await self._make_one_shot(f"shot-{client}-{number}")
            if self.random.random() < LATE_CHANCE:
                await self._repeat_an_old_one()
            await self.pause(ONE_SHOT_PAUSE_S * 2 * self.random.random())

    async def _make_one_shot(self, name: str) -> None:
        transfer = self.plan(name, "one shot")
        sent = self._one_shot(transfer, name)
        requests = [self.send(transfer, "commit", sent)]
        if self.random.random() < DOUBLE_CHANCE:
            requests.append(self.send(transfer, "commit", sent))
        if self.random.random() < RIVAL_CHANCE:
            rival = self.plan(f"{name}-rival", "one shot", transaction=name)
            requests.append(self.send(rival, "commit", self._one_shot(rival, name)))
            self.random.shuffle(requests)
        answers = await asyncio.gather(*requests)
        if all(one.told != "complete" for one in answers) and (
            self.random.random() > GIVE_UP_CHANCE
        ):
            await self.send_until_known(transfer, "commit", sent)

    def _one_shot(self, transfer: Transfer, key: str) -> SentText:
        return self.commit_text(self.path(), [("topics", topics_text(transfer))], key)

    async def _repeat_an_old_one(self) -> None:
        """Send a commit again that was told as complete."""
        old = self.random.choice(self.ledger.requests)
        if old.what == "commit" and old.told == "complete" and old.sent is not None:
            await self.send(self.ledger.transfers[old.transfer], "commit", old.sent)


async def create_money_topics(http: Http, now_url: str, v3: str) -> None:
    """Create the topics of money."""
    for topic in (*BOOKS, ORDERS):
        partitions = MONEY_PARTITIONS if topic in BOOKS else ORDER_PARTITIONS
        await http.create_topic(
            f"{now_url}{v3}/topics", topic, partitions=partitions, replication_factor=3
        )
