"""Read tokens: a client says which answers it holds, so that a lost answer loses nothing (rule G5).

Every answer to a read of a consumer instance has a token, a number within the life of its session
on this coordinator. A read with ``after=TOKEN`` means "I hold everything up to that answer". From
its first such read on, the instance is a token reader: only what a token acknowledges counts as
received, for automatic commits and for commits without offsets.

`instances` calls `ReadTokens.acknowledge` before a read, a commit or a deletion, and `reader` calls
`ReadTokens.note` when it delivers. All answers that are kept begin at the same positions, those of
the newest acknowledged one, because acknowledging an answer forgets all others. So a repeated read
needs no history: every position goes back to where these answers began.
Pure; owned by the coordinator's loop.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from broker.coordinator.positions import ReadPosition
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import TopicPartition

NOTHING_HELD = "0"
"""The token of a client that holds no answer."""
ANSWERS_KEPT = 4
"""Most answers since the newest acknowledged one that can still be acknowledged. A client has one
read under way, so there is more than one only where answers were lost."""
_TOKEN = re.compile(r"([0-9a-z.]{1,40})-([0-9]{1,15})")


class DeliveredPart(NamedTuple):
    """Records of one partition in an answer: its position moved from ``begin`` to ``next``."""

    partition: TopicPartition
    position: ReadPosition
    begin: int
    next: int


Positions = dict[TopicPartition, ReadPosition]
"""Positions of one session; a seek or a new owner puts another object in a partition's place."""


class Held(Enum):
    """The client's answers as its token describes them."""

    KNOWN = "known"
    """The positions are behind the answer that the token names."""
    NOTHING = "nothing"
    """The client holds nothing, and reads on from the last commit, seek or start."""
    FOREIGN = "foreign"
    """The token is of an earlier coordinator: the same, and the client is informed."""


@dataclass(slots=True)
class ReadTokens:
    """Answers of one session that its client has not acknowledged yet.

    ``life`` names the session: no two sessions have the same, on any coordinator.
    """

    life: str
    newest: int = 0
    """Number of the newest answer; 0: none yet."""
    root: int | None = None
    """Number of the newest acknowledged answer; None: nothing is acknowledged in this life."""
    answers: dict[int, tuple[DeliveredPart, ...]] = field(default_factory=dict)
    """Answers since the root, the newest `ANSWERS_KEPT`, by number; all begin at the root."""

    @property
    def acknowledged(self) -> str:
        """The token of the newest acknowledged answer."""
        return NOTHING_HELD if self.root is None else f"{self.life}-{self.root}"

    def note(self, parts: Iterable[DeliveredPart]) -> str:
        """Keep an answer that is being delivered; return its token."""
        self.newest += 1
        self.answers[self.newest] = tuple(parts)
        if len(self.answers) > ANSWERS_KEPT:
            del self.answers[min(self.answers)]
        return f"{self.life}-{self.newest}"

    def check(self, token: str) -> Held:
        """Return what a token means here, without any change.

        Raises:
            KafkaError: INVALID_REQUEST for a text that is no token; ILLEGAL_STATE for one that was
                overtaken: a newer answer is acknowledged, or too many were sent since.
        """
        if token == NOTHING_HELD:
            return Held.NOTHING
        found = _TOKEN.fullmatch(token)
        if found is None:
            text = f"after={token[:64]!r}: expected 0 or the Quorumlog-Read-Token of an answer"
            raise KafkaError(ErrorCode.INVALID_REQUEST, text)
        if found[1] != self.life:
            return Held.FOREIGN
        number = int(found[2])
        if number == self.root or number in self.answers:
            return Held.KNOWN
        text = (
            f"after={token}: this answer was overtaken, the newest acknowledged one is "
            f"{self.acknowledged}; nothing was moved"
        )
        raise KafkaError(ErrorCode.ILLEGAL_STATE, text)

    def acknowledge(self, positions: Positions, token: str) -> Held:
        """Move positions behind the answer that a token names; return what the token means.

        A position that was sought, or whose partition was given up, since its answer is another
        object by now and stays as it is: a seek behind the token wins.

        Raises:
            KafkaError: as `check`; nothing was moved.
        """
        held = self.check(token)
        if held is not Held.KNOWN:
            positions.clear()
            self.answers.clear()
            self.root = None
            return held
        number = int(token.rpartition("-")[2])
        for parts in self.answers.values():
            for part in parts:
                if positions.get(part.partition) is part.position:
                    part.position.next = part.begin
        for part in self.answers.get(number, ()):
            if positions.get(part.partition) is part.position:
                part.position.next = part.position.confirmed = part.next
        if number != self.root:
            self.root = number
            self.answers.clear()
        return held

    def acknowledge_all(self, positions: Positions) -> None:
        """Acknowledge the newest answer for a client without tokens: it reads on, so it has it."""
        for position in positions.values():
            if position.delivered:
                position.confirmed = position.next
        if self.newest:
            self.root = self.newest
        self.answers.clear()
