"""Records of a stream with a producer's sequence: written once, however the stream is cut."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.log.producer_state import ProducerStates
from broker.server.requests import ACKS_ALL, ProduceRequest, RecordResult
from http_api.server.routes.v3.record_entries import RecordEntry, RefusedEntry, read_entry
from http_api.server.routes.v3.record_writer import EntryWriter, WrittenRecord
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import BATCHES_REMEMBERED, SEQUENCES, Claim, PartitionId, TopicName
from tests.support.fake_broker_apis import FakeBrokerApis

TOPIC = TopicName("flights")


@dataclass
class SequencedApis(FakeBrokerApis):
    """One partition with real `ProducerStates`; every append is a batch."""

    states: ProducerStates = field(default_factory=ProducerStates)
    values: list[bytes] = field(default_factory=list)
    refused: set[bytes] = field(default_factory=set)

    def __post_init__(self) -> None:
        FakeBrokerApis.__init__(self)
        self.add_topic(TOPIC)

    async def produce(self, request: ProduceRequest) -> list[RecordResult]:
        self.requests.append(request)
        claim, values = request.claim, [bytes(record.value) for record in request.records]
        assert claim is not None
        found = self.states.check(claim, len(values), 0)
        if found is None:
            if self.refused & set(values):
                raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE)
            first = len(self.values)
            self.values += values
            self.states.note(claim, first, len(self.values) - 1, 0, 0)
        else:
            first = found.first_offset
        return [RecordResult(PartitionId(0), first + at) for at in range(len(values))]


def entries(numbers: range) -> list[RecordEntry | RefusedEntry]:
    return [read_entry(b'{"value":{"type":"JSON","data":%d}}' % number) for number in numbers]


def writer(apis: FakeBrokerApis, sequence: int, epoch: int = 0) -> EntryWriter:
    return EntryWriter(apis, TOPIC, ACKS_ALL, 1_000, Claim(7, epoch, sequence % SEQUENCES))


CUTS = st.lists(st.integers(1, 12), min_size=1, max_size=12)


@given(first=CUTS, lost=st.integers(0, 60), then=CUTS, start=st.sampled_from([0, SEQUENCES - 20]))
async def test_a_stream_sent_again_in_other_pieces_is_written_once(first, lost, then, start):
    apis = SequencedApis()
    stream, sent = writer(apis, start), 0
    batch_of: list[int] = []
    for number, count in enumerate(first):
        outcomes = await stream.write(entries(range(sent, sent + count)))
        assert [outcome.offset for outcome in outcomes] == list(range(sent, sent + count))
        sent += count
        batch_of += [number] * count

    again = max(0, sent - lost)
    stream = writer(apis, start + again)
    for count in then:
        outcomes = await stream.write(entries(range(again, again + count)))
        assert len(outcomes) == count
        for sequence, outcome in enumerate(outcomes, again):
            if isinstance(outcome, WrittenRecord):
                assert outcome.offset == sequence
            else:
                assert outcome.code is ErrorCode.DUPLICATE_SEQUENCE_NUMBER
                assert batch_of[sequence] < len(first) - BATCHES_REMEMBERED + len(then)
                assert len(first) > BATCHES_REMEMBERED - len(then)
        again += count
    assert apis.values == [b"%d" % number for number in range(max(sent, again))]
    assert not stream.is_over


async def test_a_record_that_is_refused_ends_a_sequence_behind_those_before_it():
    apis = SequencedApis(refused={b"37"})
    stream = writer(apis, 0)
    outcomes = await stream.write(entries(range(100)))
    assert [outcome.offset for outcome in outcomes[:-1]] == list(range(37))
    assert outcomes[-1].code is ErrorCode.MESSAGE_TOO_LARGE
    assert stream.is_over
    assert len(apis.requests) < 16


async def test_a_record_that_can_t_be_read_ends_a_sequence_behind_those_before_it():
    apis = SequencedApis()
    stream = writer(apis, 0)
    some = [*entries(range(3)), read_entry(b'{"x":1}'), *entries(range(3, 5))]
    outcomes = await stream.write(some)
    assert [type(outcome) for outcome in outcomes] == [
        WrittenRecord,
        WrittenRecord,
        WrittenRecord,
        RefusedEntry,
    ]
    assert stream.is_over
    assert len(apis.values) == 3


@pytest.mark.parametrize(
    ("sequence", "epoch", "code"),
    [
        (25, 0, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
        (20, 1, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
    ],
)
async def test_a_gap_ends_the_stream_at_its_first_record(sequence, epoch, code):
    apis = SequencedApis()
    await writer(apis, 0).write(entries(range(20)))
    stream = writer(apis, sequence, epoch)
    outcomes = await stream.write(entries(range(100)))
    assert [outcome.code for outcome in outcomes] == [code]
    assert stream.is_over
    assert len(apis.values) == 20


async def test_a_newer_epoch_ends_the_stream_without_a_second_attempt():
    apis = SequencedApis()
    await writer(apis, 0, epoch=1).write(entries(range(5)))
    stream = writer(apis, 5)
    outcomes = await stream.write(entries(range(10)))
    assert {outcome.code for outcome in outcomes} == {ErrorCode.INVALID_PRODUCER_EPOCH}
    assert stream.is_over
    assert len(apis.requests) == 2


async def test_a_sequence_needs_one_partition():
    apis = FakeBrokerApis()
    apis.add_topic(TOPIC)
    apis.produce_error = KafkaError(
        ErrorCode.INVALID_REQUEST, "a sequence belongs to one partition"
    )
    stream = writer(apis, 0)
    assert len(await stream.write(entries(range(3)))) == 3
    assert stream.is_over
    assert len(apis.requests) == 1


async def test_a_repeat_keeps_the_time_of_its_first_write():
    apis = SequencedApis()
    [outcome] = await writer(apis, 0).write(entries(range(1)))
    assert outcome.timestamp_ms is None
    assert apis.requests[0].records[0].timestamp is None
