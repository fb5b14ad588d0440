"""Answers of homes that need proof that their broker still leads (rule G3)."""

from __future__ import annotations

import asyncio
import dataclasses
from dataclasses import dataclass, field
from typing import Any, cast

from broker.coordinator.home import HomePorts
from broker.coordinator.transaction_coordinator import HomeFactory, TransactionCoordinator
from broker.transactions.home_decisions import ChunkPlaced
from broker.transactions.home_state import HomeLimits
from raft_metadata.common.clock import SystemClock
from raft_metadata.common.errors import KafkaError
from raft_metadata.common.ids import LeaderEpoch, PartitionId
from raft_metadata.common.internal_topics import TRANSACTIONS_TOPIC
from tests.support.group_log import SharedLog
from tests.support.home_turns import staged_at
from tests.support.one_broker import ME, TOPIC, image
from tests.unit.test_home_completion import DEBITS, Image, Stages, Targets, one_shot, rows

HOME = PartitionId(0)


@dataclass
class Heartbeats:
    """Proof by heartbeats that a broker leads; none while they are silent."""

    log: SharedLog = field(default_factory=SharedLog)
    is_silent: bool = False

    def check_proof(self) -> bool:
        return not self.is_silent

    async def prove(self, timeout_ms: int) -> bool:
        return not self.is_silent


async def test_rule_g3_a_chunk_goes_only_by_the_word_of_a_home_that_is_proven_to_lead() -> None:
    """The new home forgot the id by request and decided it anew: the chunk is named again."""
    proof, clock = Heartbeats(), SystemClock()
    ports = HomePorts(
        broker_id=ME, clock=clock, targets=Targets(), stages=Stages(), image=Image(),
        limits=HomeLimits,
    )  # fmt: skip
    factory = HomeFactory(ports)
    memory = proof.log.elect()
    homes = TransactionCoordinator(
        factory, proof, lambda _: LeaderEpoch(1), lambda *_: cast("Any", memory), clock
    )
    plain = image(1, (ME,))
    topic = dataclasses.replace(plain.topics[TOPIC], name=TRANSACTIONS_TOPIC)
    led = dataclasses.replace(plain, topics={TOPIC: topic}, topic_ids={TRANSACTIONS_TOPIC: TOPIC})
    running = [asyncio.create_task(factory.run()), asyncio.create_task(homes.run())]
    await asyncio.sleep(0)
    homes.on_metadata_update(led)
    commit = one_shot("a", rows(DEBITS, 1))
    async with asyncio.timeout(5):
        while True:
            try:
                await homes.answer(HOME, commit)
                break
            except KafkaError:
                await asyncio.sleep(0)
    chunk = ChunkPlaced(id=commit.id, is_producer=False, at=(0, 0), place=staged_at("0"))
    assert await homes.may_go(HOME, chunk)  # the commit is recorded as complete by now
    before = len(proof.log.entries)
    assert await homes.may_go(HOME, chunk)
    assert len(proof.log.entries) == before, "the heartbeat was proof enough"
    proof.is_silent = True
    assert await homes.may_go(HOME, chunk)
    assert len(proof.log.entries) == before + 1, "an append was the proof"
    for task in running:
        task.cancel()
    await asyncio.wait(running)
