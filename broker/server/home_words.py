"""Questions of stages to homes, and their answers: may a staged chunk go (rule S10)?

The leader of a stage asks by `HomeWords.ask`; the home's leader, here or one hop away, answers once
its word is committed in its log. A question may be repeated: the same word comes again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.server.peer_codec import PeerRequestKind, join_body, split_body
from broker.server.transactions import home_partition, home_topic
from broker.transactions.chunk_records import NO_EPOCHS
from broker.transactions.home_decisions import ChunkPlaced
from broker.transactions.home_records import StagedPlace
from broker.transactions.messages import NO_GROUP
from broker.transactions.stage_messages import (
    StatusQuestion,
    Word,
    decode_word,
    encode_status,
)
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import TopicIdPartition

if TYPE_CHECKING:
    from broker.config import BrokerConfig
    from broker.server.metadata_loader import MetadataLoader
    from broker.server.router import LeaderRouter
    from broker.server.transactions import Coordinators
    from raft_metadata.common.clock import Clock
    from raft_metadata.image.metadata_image import PartitionRegistration

WORD_TIMEOUT_MS = 4_000
"""Time for a word; a home that is silent is asked again in the stage's next round."""


class HomeWords:
    """The way from the stages that this broker leads to the homes of their chunks.

    Owned by the `BrokerServer`, on its loop. Stateless.
    """

    def __init__(
        self,
        config: BrokerConfig,
        loader: MetadataLoader,
        router: LeaderRouter,
        coordinators: Coordinators,
        clock: Clock,
    ) -> None:
        self._config = config
        self._loader = loader
        self._router = router
        self._coordinators = coordinators
        self._clock = clock

    async def ask(self, question: StatusQuestion) -> Word:
        """Return the word of the home's leader, wherever it is.

        Raises:
            KafkaError: LEADER_NOT_AVAILABLE, no home answered in time.
        """
        topic = self._loader.image.topic(home_topic(question.id))
        if topic is None:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, "the home is not known here yet")
        place = TopicIdPartition(topic.topic_id, home_partition(question.id, topic))

        async def attempt(registration: PartitionRegistration, timeout_ms: int) -> Word:
            if registration.leader == self._config.broker_id:
                return await self.answer(question)
            body = join_body(*encode_status(question))
            answer = await self._router.forward(
                place, registration, PeerRequestKind.STATUS, body, timeout_ms
            )
            return decode_word(split_body(answer)[0])

        deadline_ms = self._clock.monotonic_ms() + WORD_TIMEOUT_MS
        return await self._router.routed(place, attempt, deadline_ms, repeat_unknown=True)

    async def answer(self, question: StatusQuestion) -> Word:
        """Return the word of a home that this broker leads, once it is committed.

        Raises:
            KafkaError: NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS, or the append failed.
        """
        topic = self._loader.image.topic(home_topic(question.id))
        if topic is None:
            raise KafkaError(ErrorCode.NOT_COORDINATOR)
        partition = home_partition(question.id, topic)
        chunk = chunk_placed(question)
        if question.id.group == NO_GROUP:
            is_free = await self._coordinators.transactions.may_go(partition, chunk)
        else:
            is_free = await self._coordinators.groups.may_go(partition, chunk)
        return Word.GONE if is_free else Word.KEEP


def chunk_placed(question: StatusQuestion) -> ChunkPlaced:
    """Return a stage's question as its home judges it."""
    stage, copy = question.partition, question.copy
    return ChunkPlaced(
        id=question.id,
        is_producer=question.epoch != NO_EPOCHS,
        at=(question.epoch, question.number),
        place=StagedPlace(stage, question.place),
        records=question.records,
        copy=None if copy is None else StagedPlace(stage, copy),
        is_aged=question.is_aged,
        is_passed=question.is_passed,
    )
