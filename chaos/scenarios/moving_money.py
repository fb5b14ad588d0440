"""Scenarios with money: transactions of every kind beside the faults, and the checks of them.

`with_money` lets the clients with money run beside any scenario. Its own scenarios hit what only
transactions have: money kills leaders again and again; money-home-cut separates the broker that
leads a home from all others; money-paused stops such a broker, which leads targets too, and lets
it go on; money-apply-lost loses the answers of the other brokers to it, so that rows are appended
and the home does not hear of it.
"""

from __future__ import annotations

import asyncio
import signal
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

from chaos.broker_files import numbered_batches
from chaos.buyers import (
    CAREFUL_GROUP,
    GROUPS,
    MEMBER_GROUP,
    CarefulBuyers,
    MemberBuyers,
    OrderWriters,
)
from chaos.checkers.money import (
    SETTLED_MS,
    check_as_told,
    check_completed,
    check_enough,
    check_epochs,
    check_late_repeats,
    check_not_early,
    check_not_torn,
    check_numbers,
    check_offsets_move_with_rows,
    check_offsets_stay,
    check_order_of_answers,
    check_orders_once,
    check_shown_once_told,
    check_sum,
)
from chaos.checkers.records import check_offsets, check_seen_stays
from chaos.checkers.verdict import Verdict
from chaos.deadline import TooLateError, wait_until
from chaos.history import History
from chaos.http import CallError
from chaos.ledger import BOOKS, KINDS, ORDERS
from chaos.net.links import Link, Plane, answers_lost
from chaos.scenarios.scenario import (
    FELT_DEADLINE_S,
    BreakNetwork,
    FaultPlan,
    FaultTarget,
    Scenario,
    cut_off,
    leader_epochs,
    named,
    unknown_attempts,
)
from chaos.settlement import Settlement
from chaos.tellers import Tellers
from chaos.transfers import (
    MONEY_PARTITIONS,
    ORDER_PARTITIONS,
    Bank,
    create_money_topics,
)
from chaos.workloads import TailReaders

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from chaos.history import Reading
    from chaos.ledger import Ledger
    from chaos.net.links import Faults
    from chaos.scenarios.scenario import ScenarioContext

TAIL_PAUSE_S = 0.25
FIRST_TRANSFERS_S = 30.0
BACK_TO_NORMAL_S = 30.0
MONEY_FLOOR = 5
"""Fewest complete transfers of a kind, in all and after the faults. There are about 3 a second."""
HOME = "broker that leads the home of teller-0"
LOOK_S = 0.2


@asynccontextmanager
async def _money_moves(context: ScenarioContext) -> AsyncIterator[None]:
    """Let money move beside the faults and after them; then settle the accounts."""
    ledger, brokers = context.ledger, context.now.brokers
    ledger.write = context.history.write
    bank = Bank(
        http=context.http,
        ledger=ledger,
        endpoints=brokers,
        cluster_id=context.now.cluster_id,
        clock=context.clock,
        random=Random(context.random.random()),
    )
    await create_money_topics(context.http, brokers[0].url, bank.v3)
    tellers, tails = Tellers(bank), _tails(context)
    settlement = Settlement(bank, tellers)
    clients = (
        bank,
        tellers,
        OrderWriters(bank),
        CarefulBuyers(bank, CAREFUL_GROUP),
        MemberBuyers(bank, MEMBER_GROUP),
    )
    async with asyncio.TaskGroup() as readers:
        for tail in tails.values():
            readers.create_task(tail.run())
        watching = readers.create_task(_watch_home(context, bank, tellers.names[0]))
        async with asyncio.TaskGroup() as tasks:
            for client in clients:
                tasks.create_task(client.run())
            await wait_until(FIRST_TRANSFERS_S, _each_kind_made(ledger))
            yield
            await wait_until(BACK_TO_NORMAL_S, _each_kind_made(ledger))
            open_at_first = await settlement.committing_now()
            await asyncio.sleep(SETTLED_MS / 1000)
            still_open = open_at_first & await settlement.committing_now()
            bank.stop()
        watching.cancel()
        end = await settlement.settle()
        end.waiting += tuple(still_open)
        context.money_end = end
        for tail in tails.values():
            tail.stop()


def _tails(context: ScenarioContext) -> dict[str, TailReaders]:
    """Return a reader of each topic's tail, with a history of its own that is the ledger's."""
    found = {}
    for topic in (*BOOKS, ORDERS):
        history = History([])
        context.ledger.seen[topic] = history.observations
        partitions = MONEY_PARTITIONS if topic in BOOKS else ORDER_PARTITIONS
        of_topic = (context.http, history, topic, context.now.brokers, context.clock, partitions)
        found[topic] = TailReaders(*of_topic, pause_s=TAIL_PAUSE_S)
    return found


def _each_kind_made(ledger: Ledger) -> Callable[[], bool]:
    """Return a condition: a transfer of each kind was complete after now."""
    since = len(ledger.requests)

    def holds() -> bool:
        made = {
            ledger.transfers[one.transfer].kind
            for one in ledger.requests[since:]
            if one.what == "commit" and one.told == "complete"
        }
        return made == set(KINDS)

    return holds


async def _watch_home(context: ScenarioContext, bank: Bank, teller: str) -> None:
    """Ask the brokers which of them leads the home of a teller, in turn, until cancelled."""
    while True:
        for broker in context.now.brokers:
            with suppress(CallError):
                url = f"{broker.url}{bank.path()}/{teller}"
                home = (await context.http.get_json(url, 2.0))["home"]
                if home["leader_id"] is not None:
                    context.figures[HOME] = home["leader_id"]
        await asyncio.sleep(LOOK_S)


# ---------------------------------------------------------------- checks


def _check_money(context: ScenarioContext, _reading: Reading) -> list[Verdict]:
    ledger, end, faults = context.ledger, context.money_end, context.history.faults
    if end is None:
        return [Verdict("money: the accounts were settled", passed=False, figures="never")]
    healed = max((one.healed_ms or one.at_ms for one in faults), default=0)
    found = [
        check_enough(ledger, MONEY_FLOOR, healed),
        check_not_torn(ledger, end.books),
        check_as_told(ledger, end.books),
        check_not_early(ledger),
        check_epochs(ledger, end.books),
        check_offsets_move_with_rows(ledger, end, GROUPS),
        check_offsets_stay(ledger),
        check_order_of_answers(ledger, end.books),
        check_orders_once(ledger.orders, end.books[ORDERS]),
        check_sum(end.books),
        check_shown_once_told(ledger, end.books, faults),
        check_late_repeats(end),
        check_completed(end, SETTLED_MS),
    ]
    for topic in (*BOOKS, ORDERS):
        history = History([], observations=ledger.seen[topic])
        books = end.books[topic], end.later_books[topic]
        found += [
            replace(one, name=f"money: {topic}: {one.name}")
            for one in (check_seen_stays(history, books[0]), check_offsets(books))
        ]
    return found


async def _check_money_on_disks(context: ScenarioContext) -> list[Verdict]:
    partitions = [f"{topic}-{number}" for topic in BOOKS for number in range(MONEY_PARTITIONS)]
    data_dir = context.cluster.data_dir
    return [
        check_numbers(
            {
                broker: await numbered_batches(data_dir, broker, partitions)
                for broker in context.brokers
            }
        )
    ]


def with_money(scenario: Scenario) -> Scenario:
    """Return the scenario with money that moves beside its own load, and the checks of it."""
    if scenario.disk_checks is _check_money_on_disks:
        return scenario

    @asynccontextmanager
    async def beside(context: ScenarioContext) -> AsyncIterator[None]:
        async with _money_moves(context), scenario.beside(context):
            yield

    def own_checks(context: ScenarioContext, reading: Reading) -> list[Verdict]:
        return [*scenario.own_checks(context, reading), *_check_money(context, reading)]

    return replace(
        scenario, beside=beside, own_checks=own_checks, disk_checks=_check_money_on_disks
    )


# ---------------------------------------------------------------- scenarios of its own

KILL_EVERY_S = 3.0
LONGEST_LOSS_S = 10.0
"""Length for which answers are lost: over the deadline of a request, so that decided transfers are
answered with 202."""


async def _kill_leaders(context: ScenarioContext, _target: FaultTarget) -> None:
    """Kill the broker of a home and others in turn, each once the last is back."""
    ends_ms = context.clock.monotonic_ms() + context.duration_s * 1000
    is_home = True
    while True:
        home = context.figures.get(HOME)
        broker = home if is_home and home else context.random.choice(context.brokers)
        is_home = not is_home
        if context.pid(broker) is not None:
            context.kill(broker)
        await asyncio.sleep(KILL_EVERY_S)
        if context.clock.monotonic_ms() >= ends_ms:
            break
        await wait_until(FELT_DEADLINE_S, context.all_in_sync)
    await wait_until(FELT_DEADLINE_S, context.all_in_sync)


def _home(context: ScenarioContext) -> FaultTarget:
    broker = context.figures.get(HOME)
    if broker is None:
        msg = "no broker named the leader of a home"
        raise TooLateError(msg)
    return FaultTarget(f"broker {broker}, which leads a home and targets", (broker,))


async def _pause_it(context: ScenarioContext, target: FaultTarget) -> None:
    context.signal(signal.SIGSTOP, target.node)
    try:
        await asyncio.sleep(context.duration_s)
    finally:
        context.signal(signal.SIGCONT, target.node)


def _answers_to_home_lost(context: ScenarioContext, target: FaultTarget) -> Faults:
    others = [broker for broker in context.brokers if broker != target.node]
    return answers_lost([Link(target.node, other, Plane.PEER) for other in others])


async def _lose_long(context: ScenarioContext, _target: FaultTarget) -> None:
    await asyncio.sleep(max(LONGEST_LOSS_S, context.duration_s))


MONEY = with_money(
    Scenario(
        name="money",
        summary="transactions of every kind while leaders of homes and targets are killed",
        faults=(
            FaultPlan(
                name="leaders killed",
                target=named("brokers that lead"),
                breaks=None,
                felt_as=(leader_epochs,),
                meanwhile=_kill_leaders,
            ),
        ),
        stops_writes=True,
    )
)
MONEY_HOME_CUT = with_money(
    Scenario(
        name="money-home-cut",
        summary="the broker that decides transactions is cut off from all other nodes",
        faults=(
            FaultPlan(
                name="home cut off",
                target=_home,
                breaks=BreakNetwork(cut_off),
                felt_as=(leader_epochs, unknown_attempts),
            ),
        ),
        stops_writes=True,
    )
)
MONEY_PAUSED = with_money(
    Scenario(
        name="money-paused",
        summary="the broker that decides transactions and leads their targets stands still",
        faults=(
            FaultPlan(
                name="home paused",
                target=_home,
                breaks=None,
                felt_as=(leader_epochs, unknown_attempts),
                meanwhile=_pause_it,
            ),
        ),
        stops_writes=True,
    )
)
MONEY_APPLY_LOST = with_money(
    Scenario(
        name="money-apply-lost",
        summary="decided rows are appended, and their home hears of none for 10 s",
        faults=(
            FaultPlan(
                name="answers to a home lost",
                target=_home,
                breaks=BreakNetwork(_answers_to_home_lost),
                felt_as=(),
                meanwhile=_lose_long,
            ),
        ),
        stops_writes=True,
    )
)
