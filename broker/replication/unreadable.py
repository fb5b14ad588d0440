"""A leader's log that can't be read where a follower stands: it waits, nobody else does.

So it is where the leader's log is damaged and nobody sound could lead (`repairs`): it goes on, and
a follower that needs the damaged batch is filled up to it until an operator lets go of that.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broker.replication.leader_stream import PushSession

LOOK_AGAIN_S = 5.0
"""How often such a session looks whether the log begins behind the damage by now."""


def rest(session: PushSession) -> None:
    """Offer this session nothing until then; its connection serves the other partitions."""
    session.drop_pending()
    session.replica.detach(session)
    asyncio.get_running_loop().call_later(LOOK_AGAIN_S, _go_on, session)


def _go_on(session: PushSession) -> None:
    replica, stream = session.replica, session.stream
    if stream.sessions.get(replica.key) is not session:
        return  # another one took its place, or the connection is gone
    if session.state() is None:
        session.forget()
    else:
        replica.attach(session)
        stream.mark(session)
