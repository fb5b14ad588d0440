"""A leader's log that can't be read where a follower stands: it waits, nobody else does.

So it is where the leader's log is damaged and nobody sound could lead (`repairs`): it goes on, and
a follower that needs the damaged batch is filled up to it until an operator lets go of that.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol, TypeVar

from broker.replication.replica import FollowerSession, Replica

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from broker.replication.frames import Key
    from broker.replication.partition_state import FollowerState

LOOK_AGAIN_S = 5.0
"""How often such a session looks whether the log begins behind the damage by now."""


class Resting(FollowerSession, Protocol):
    """A ``leader_stream.PushSession``."""

    replica: Replica

    def state(self) -> FollowerState | None: ...
    def drop_pending(self) -> None: ...


S = TypeVar("S", bound=Resting)


def rest(session: S, present: Mapping[Key, S], mark: Callable[[S], None]) -> None:
    """Offer this session nothing until then; its connection serves the other partitions.

    ``present``: the connection's sessions; ``mark``: has it ship again.
    """
    session.drop_pending()
    session.replica.detach(session)
    loop = asyncio.get_running_loop()
    loop.call_later(LOOK_AGAIN_S, go_on, session, present, mark)


def go_on(session: S, present: Mapping[Key, S], mark: Callable[[S], None]) -> None:
    """Try again, unless another session took its place, or the connection is gone."""
    if present.get(session.replica.key) is not session:
        return
    if session.state() is None:
        session.forget()
    else:
        session.replica.attach(session)
        mark(session)
