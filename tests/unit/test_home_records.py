"""Records of a home: their round trip, with the client's text byte for byte (rule R12)."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from broker.coordinator.records import (
    ShardRecord,
    UndecodableRecord,
    UnknownKey,
    decode_record,
    encode_key,
    encode_value,
)
from broker.record.batch import RecordFormat
from broker.transactions.home_records import (
    HOME_KINDS,
    EpochKey,
    EpochValue,
    FloorKey,
    HomeKey,
    HomeValue,
    HorizonKey,
    NextKey,
    NextValue,
    NumberValue,
    OtherRun,
    StagedPlace,
    Target,
    TransactionKey,
    TransactionValue,
    Unit,
    decode_target_rows,
    encode_target_rows,
)
from broker.transactions.home_state import HomeState, slim
from broker.transactions.messages import (
    LogPlace,
    LostRows,
    PlacedRows,
    TargetRows,
    TransactionState,
)
from raft_metadata.common.ids import GroupId, LeaderEpoch, PartitionId, TopicId
from tests.support.home_turns import HomeTurns, as_of_home, check, folded, named
from tests.support.home_world import compacted, facts

G = GroupId("billing")
T = TopicId("AAAAAAAAAAAAAAAAAAAAAQ")
BIG = (1 << 62) + (1 << 56) + 7
CLIENT_TEXT = (
    rb'[[null,{"a":1,"a":2,"a":1}]',
    rb'[ null , 12345678901234567890 , [ ["h" , "x"] ] ]',
    rb"[[null,-0.0,1e400,1.10000000000000000000001]]",
    rb'["\u00e9\ud83d\ude00\/",{"inline":[],"records":[[1]]}]',
    b'["\xc3\xa9 \\"inline\\":[]",  null]',
)


def rows_with(text: bytes, partition: int = 3) -> TargetRows:
    return TargetRows(
        topic_id=T,
        partition=PartitionId(partition),
        key_format=RecordFormat.STRING,
        value_format=RecordFormat.BINARY,
        rows=1,
        records=text,
    )


PLACE = LogPlace(LeaderEpoch(5), 1 << 40)
FULL = TransactionValue(
    epoch=3,
    number=(1 << 53) + 1,
    state=TransactionState.COMMITTING,
    digest="d" * 64,
    run_id='run "inline":[]',
    input="i",
    others=(OtherRun("r2", "e"), OtherRun("r3", "f")),
    numbering=BIG,
    metadata_offset=77,
    units=(
        Unit(T, PartitionId(3), 1 << 31, 2, (1 << 31) - 1, 0),
        Unit(T, PartitionId(4), 0, 1, 0, StagedPlace(PartitionId(7), PLACE)),
        Unit(T, PartitionId(4), 1, 1, 1, None),
    ),
    inline=tuple(map(rows_with, (b"[" + b",".join(CLIENT_TEXT[1:]) + b"]", *CLIENT_TEXT[1:]))),
    placed=(PlacedRows(T, PartitionId(3), 2, None), PlacedRows(T, PartitionId(4), 1, 0)),
    dropped=(Target(T, PartitionId(5)),),
    lost=(LostRows(T, PartitionId(4), 9),),
    decided_ms=1_700_000_000_000,
    completed_ms=None,
    layout=9,
)
RECORDS: list[tuple[HomeKey, HomeValue | None]] = [
    (TransactionKey(GroupId(""), "p"), FULL),
    (TransactionKey(G, "p"), FULL),
    (TransactionKey(G, 'key:"inline":[]'), slim(FULL)),
    (TransactionKey(GroupId(""), "p"), None),
    (EpochKey(GroupId(""), "p"), EpochValue(4, None)),
    (EpochKey(G, "p"), EpochValue((1 << 53) + 1, 5)),
    (EpochKey(G, "p"), None),
    (NextKey(BIG, T, PartitionId(0)), NextValue((1 << 46) - 1, 7)),
    (HorizonKey(PartitionId(11)), PLACE),
    (FloorKey(), NumberValue(12)),
]


def decoded(key: HomeKey, value: HomeValue | None) -> object:
    return decode_record(encode_key(key), encode_value(value), 0)


@pytest.mark.parametrize(("key", "value"), RECORDS)
def test_a_record_is_read_as_it_was_written(key: HomeKey, value: HomeValue | None) -> None:
    found = decoded(key, value)
    assert found == ShardRecord(key, value)
    assert isinstance(found, ShardRecord)
    assert type(found.key) is type(key)


def test_every_kind_has_a_round_trip() -> None:
    assert {type(key) for key, _ in RECORDS} == {key for key, _ in HOME_KINDS.values()}


def test_keys_are_those_of_the_design() -> None:
    """In the offsets topic the group stands in front of the id; elsewhere there is none."""
    assert [encode_key(key).decode() for key, _ in RECORDS[:5]] == [
        '["txn","p"]',
        '["txn","billing","p"]',
        '["txn","billing","key:\\"inline\\":[]"]',
        '["txn","p"]',
        '["epoch","p"]',
    ]
    assert [encode_key(key).decode() for key, _ in RECORDS[7:]] == [
        f'["next",{BIG},"{T}",0]',
        '["horizon",11]',
        '["floor",""]',
    ]


@pytest.mark.parametrize("text", CLIENT_TEXT[1:])
def test_rule_r12_the_clients_text_is_kept_byte_for_byte(text: bytes) -> None:
    """Keys that stand twice, long numbers, blanks and escapes are what the client sent."""
    value = TransactionValue(
        epoch=1, number=0, state=TransactionState.COMMITTING, inline=(rows_with(text),)
    )
    assert text in encode_value(value)
    found = decoded(TransactionKey(G, "p"), value)
    assert isinstance(found, ShardRecord)
    assert isinstance(found.value, TransactionValue)
    assert [each.records for each in found.value.inline] == [text]
    assert decode_target_rows(encode_target_rows(rows_with(text))) == rows_with(text)


json_text = st.recursive(
    st.sampled_from([b"null", b"12345678901234567890", b"-0.0", b'"\\u0041"', b'"[]"', b"1E+2"]),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda each: b"[" + b" , ".join(each) + b"]"),
        st.lists(inner, max_size=3).map(
            lambda each: b"{" + b",".join(b'"inline": ' + one for one in each) + b"}"
        ),
    ),
    max_leaves=8,
)


@given(texts=st.lists(json_text.map(lambda each: b"[" + each + b"]"), max_size=3))
def test_any_text_of_rows_is_kept(texts: list[bytes]) -> None:
    value = TransactionValue(
        epoch=1, number=0, state=TransactionState.COMMITTING, inline=tuple(map(rows_with, texts))
    )
    key = TransactionKey(GroupId(""), "p")
    assert decoded(key, value) == ShardRecord(key, value)


TXN, MINIMAL = b'["txn","p"]', b'{"epoch":0,"number":1,"state":"complete"'


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b'["txn"]', MINIMAL + b"}"),
        (b'["txn",1]', MINIMAL + b"}"),
        (b'["txn","g","p","x"]', MINIMAL + b"}"),
        (b'["next",1,"t"]', b'{"number":1}'),
        (b'["next",1,"t",0]', b'{"number":1.5}'),
        (b'["next",1,"t",0]', b"{}"),
        (b'["epoch","p"]', b'{"epoch":"1"}'),
        (b'["horizon","3"]', b'{"number":1}'),
        (b'["later","p"]', b"{}"),
        (b'[["txn"],"p"]', b"{}"),
        (b'[{},"p"]', b"{}"),
        (b"[]", b"{}"),
        (TXN, b"{}"),
        (TXN, b"[]"),
        (TXN, b"7"),
        (TXN, b'{"epoch":0,"number":1,"state":"prepared"}'),
        (TXN, MINIMAL + b',"units":[["t",0,0,1,0,"inline"]]}'),
        (TXN, MINIMAL + b',"inline":{}}'),
        (TXN, MINIMAL + b',"inline":[{"topic_id":"t","partition":0,"records":[]}]}'),
        (
            TXN,
            MINIMAL + b',"inline":[{"topic_id":"t","partition":0,"key_format":9,'
            b'"value_format":0,"rows":1,"records":[1]}]}',
        ),
    ],
)
def test_an_unknown_shape_is_held_and_no_fact(key: bytes, value: bytes) -> None:
    found = decode_record(key, value, 17)
    assert isinstance(found, UndecodableRecord)
    assert found.offset == 17
    assert found.reason


@pytest.mark.parametrize(
    ("key", "group"),
    [(b'["txn","g","p","x"]', "g"), (b'["later","g"]', "g"), (b'["next",1,"t"]', "")],
)
def test_a_null_value_is_no_fact_under_any_key(key: bytes, group: str) -> None:
    assert decode_record(key, b"null", 0) == ShardRecord(UnknownKey(GroupId(group), key), None)


def test_fields_of_a_later_version_are_passed_over() -> None:
    found = decode_record(TXN, MINIMAL + b',"units":[],"later":[{"a":1}]}', 0)
    assert found == ShardRecord(
        TransactionKey(GroupId(""), "p"),
        TransactionValue(epoch=0, number=1, state=TransactionState.COMPLETE),
    )


# ---------------------------------------------------------------- the fold


def test_the_fold_forgets_what_is_null() -> None:
    home = HomeState()
    for key, value in RECORDS:
        found = decoded(key, value)
        assert isinstance(found, ShardRecord)
        home.fold(as_of_home(found))
    for key, _ in RECORDS:
        found = decoded(key, None)
        assert isinstance(found, ShardRecord)
        home.fold(as_of_home(found))
    kept = {"horizons": {PartitionId(11): PLACE}, "floor": 12}
    empty = facts(HomeState())
    assert facts(home) == empty | kept, "horizon and floor never go back"


def test_a_decision_keeps_its_place_when_its_record_is_written_again() -> None:
    """A moved chunk, or a run that came later, made a decision the last that was sent."""
    turns = HomeTurns()
    check(
        """
        commit n #1 A a1@3 -> decided | txn n 0.1 committing A run=r1 a:0+1@3, next a 1
        commit m #1 A a1   -> decided | txn m 0.1 committing A run=r1 a:1+1, next a 2
        ask n #1 @3 copy=@9 -> may go | txn n 0.1 committing A run=r1 a:0+1@9
        commit n #1 B run=r2 -> already 0.1 committing \
            | txn n 0.1 committing A run=r1 +r2:B a:0+1@9
        """,
        turns,
    )
    assert list(turns.home.open) == [named("n"), named("m")]
    log = [record for batch in turns.log for record in batch]
    assert list(folded(log).open) == [named("n"), named("m")]
    assert facts(folded(compacted(log))) == facts(turns.home)
