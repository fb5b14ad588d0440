"""Steps of an admin's methods about transactions: what there is, what it waits for, and fencing.

`Admin` and `AsyncAdmin` run them; each function checks its arguments before the first request. An
id names another thing in each group, and without one; so they take the group beside the ids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, TypeVar

from http_api.client import transaction_calls
from http_api.client.calls import Call
from http_api.client.sdk.admin_resources import check_name
from http_api.client.sdk.admin_steps import AdminCall, list_of_names
from http_api.client.sdk.steps import Steps
from http_api.client.transaction_calls import ProducerLife, TransactionInfo

T = TypeVar("T")
TRANSACTION_STATES: Final = ("empty", "staging", "committing", "complete", "aborted")


def list_transactions(
    call: AdminCall, states: Iterable[str] | None, group: str | None
) -> Steps[list[TransactionInfo]]:
    """List the ids of a group, or of all groups and of none: all, or those in one of the states."""
    wanted: list[str | None] = [None]
    if states is not None:
        named = list_of_names("state", states)
        for one in named:
            if one not in TRANSACTION_STATES:
                msg = f"state {one!r}: expected one of {', '.join(TRANSACTION_STATES)}"
                raise ValueError(msg)
        wanted = [*named]
    if group is not None:
        check_name("group", group)
    cluster_id = yield from call.cluster_id()
    found: list[TransactionInfo] = []
    for state in wanted:
        found += yield from call.request(
            transaction_calls.list_transactions(cluster_id, state=state, group_id=group)
        )
    return found


def describe_transactions(
    call: AdminCall, ids: Iterable[str], group: str | None
) -> Steps[dict[str, TransactionInfo]]:
    """Describe each id: its last position, what that waits for, and what is staged."""
    ask = partial(transaction_calls.describe_transaction, group_id=group)
    return (yield from _each_id(call, ids, group, ask))


def fence_producers(
    call: AdminCall, ids: Iterable[str], group: str | None
) -> Steps[dict[str, ProducerLife]]:
    """Give each id its next epoch, so that its present producer decides nothing any more."""
    ask = partial(transaction_calls.init_producer, group_id=group)
    return (yield from _each_id(call, ids, group, ask))


def _each_id(
    call: AdminCall, ids: Iterable[str], group: str | None, ask: Callable[[str, str], Call[T]]
) -> Steps[dict[str, T]]:
    """Make one request for each id; those that fail are named together."""
    wanted = list_of_names("transactional id", ids)
    if group is not None:
        check_name("group", group)
    cluster_id = yield from call.cluster_id()
    return (yield from call.each(wanted, lambda name: call.request(ask(cluster_id, name))))
