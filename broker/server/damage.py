"""Partitions whose leader serves what is left of a damaged log: who tells it, and who asks.

An image can't say it: such a replica leads, and may be in sync with all others there are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from raft_metadata.common.errors import KafkaError
from raft_metadata.records.records import BrokerState

if TYPE_CHECKING:
    from raft_metadata.common.ids import BrokerId, TopicIdPartition
    from raft_metadata.image.metadata_image import MetadataImage

NAMED_MAX: Final = 100
"""That a broker names to another one; the others are counted."""
REASON_CHARACTERS_MAX: Final = 300
ASK_TIMEOUT_MS: Final = 1_000
"""A broker that is slower has told nothing; a page must not wait for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """Partitions led by a broker over a log that is damaged: how many, and some with the reason."""

    count: int
    partitions: tuple[tuple[TopicIdPartition, str], ...]


AskDamage = Callable[["BrokerId"], Awaitable[Damage | None]]
"""What a broker tells of itself; None: its version does not."""


class DamagedLeader(NamedTuple):
    """A partition that is led so, as its leader tells it."""

    topic: str
    partition: int
    leader: BrokerId
    reason: str


@dataclass(frozen=True, slots=True)
class TotalDamage:
    """What all brokers told; those of older versions tell nothing, and count as well."""

    count: int = 0
    named: tuple[DamagedLeader, ...] = ()


def damage_led_here(
    damaged: Mapping[TopicIdPartition, str], leads: Callable[[TopicIdPartition], bool]
) -> Damage:
    """Of these replicas, which are damaged: those that lead."""
    led = [(where, why[:REASON_CHARACTERS_MAX]) for where, why in damaged.items() if leads(where)]
    return Damage(count=len(led), partitions=tuple(led[:NAMED_MAX]))


async def ask_for_damage(image: MetadataImage, ask: AskDamage) -> TotalDamage:
    """What the live brokers tell of themselves, all asked at once."""
    living = {BrokerState.UNFENCED, BrokerState.CONTROLLED_SHUTDOWN}
    live = [broker.broker_id for broker in image.brokers.values() if broker.state in living]
    answers = await asyncio.gather(*(_ask(broker, ask) for broker in live))
    return _total(image, zip(live, answers, strict=True))


async def _ask(broker: BrokerId, ask: AskDamage) -> Damage | None:
    try:
        async with asyncio.timeout(ASK_TIMEOUT_MS / 1000):
            return await ask(broker)
    except (KafkaError, TimeoutError):
        return None  # the image says of it whatever else is to be said


def _total(image: MetadataImage, answers: Iterable[tuple[BrokerId, Damage | None]]) -> TotalDamage:
    count, named = 0, []
    for broker, told in answers:
        if told is None:
            continue
        count += told.count
        for where, reason in told.partitions:
            topic = image.topics.get(where.topic_id)
            registration = image.partition(*where)
            if topic is None or registration is None or registration.leader != broker:
                count -= 1  # it has been deleted, or another one leads by now
                continue
            named.append(DamagedLeader(topic.name, where.partition, broker, reason))
    return TotalDamage(count, tuple(sorted(named)))
