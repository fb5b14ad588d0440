"""Rules S of docs/rules.md, as far as one home's turns keep them; each with its failure's story."""

from __future__ import annotations

import pytest

from broker.record.numbering import ROW_NUMBER_MAX
from broker.server.transaction_apis import TRANSACTION_TIMEOUT_MS_MAX
from broker.transactions import home_decisions
from broker.transactions.home_decisions import ChunkPlaced, Content, Decision, Part
from broker.transactions.home_records import (
    EpochKey,
    EpochValue,
    FloorKey,
    HomeRecord,
    NextKey,
    NextValue,
    NumberValue,
    TransactionKey,
)
from broker.transactions.home_state import HomeLimits
from broker.transactions.messages import NumberedPosition, ProducerPosition
from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome
from raft_metadata.common.ids import PartitionId
from tests.support.home_turns import (
    NOW_MS,
    NUMBERING,
    STAGE,
    HomeTurns,
    check,
    named,
    parts_of,
    staged_at,
    target,
)

SEQUENCES = 1 << 31


def decided(turns: HomeTurns, *rows: str) -> tuple[HomeRecord, ...]:
    """Return the records of one decision with these rows."""
    parts, inline = parts_of(rows)
    decision = Decision(
        content=Content(named("n"), NumberedPosition(4, "r1"), "A"),
        numbering=NUMBERING,
        metadata_offset=0,
        parts=parts,
        inline=inline,
    )
    return home_decisions.decide(turns.home, decision, turns.limits)[1]


# ---------------------------------------------------------------- S1


def test_rule_s1_all_records_of_a_decision_come_out_of_one_turn() -> None:
    """The position, its rows, and the next number of each target: one batch."""
    records = decided(HomeTurns(), "a2", "b1", "a3@9")
    assert [record.key for record in records] == [
        TransactionKey(*named("n")),
        NextKey(NUMBERING, *target("a")),
        NextKey(NUMBERING, *target("b")),
    ]
    assert [each.value for each in records[1:]] == [NextValue(5, 0), NextValue(1, 0)]


def test_rule_s1_a_turn_changes_nothing_by_itself() -> None:
    """Only a fold does; so a batch that could not be appended leaves no trace."""
    turns = HomeTurns()
    decided(turns, "a2")
    home_decisions.init(turns.home, named("p"), NOW_MS, turns.limits)
    assert (turns.home.newest, turns.home.next_rows, turns.home.epochs) == ({}, {}, {})


# ---------------------------------------------------------------- S2


def test_rule_s2_behind_a_decision_only_its_completion() -> None:
    """Init wrote the id's record: the open decision was gone, and half of its rows visible."""
    turns = HomeTurns(limits=HomeLimits(id_expiration_ms=1, key_retention_ms=1))
    check(
        """
        init p               -> epoch 1    | epoch p 1
        commit p 1.0 A a2 b1 -> decided    | txn p 1.0 committing A a:0+2 b:0+1, next a 2, next b 1
        abort p 1.0          -> committing
        init p               -> epoch 2, last 1.0 committing | epoch p 2
        abort p 2.0          -> must wait
        commit p 2.0 B a1    -> must wait
        commit key:k - A a1  -> decided    | txn key:k 0.0 committing A a:2+1, next a 3
        forget key:k         -> CONCURRENT_TRANSACTIONS not_written
        age 1000             -> checked
        load                 -> loaded
        commit p 1.0 A a2 b1 -> again 1.0 committing
        complete p a=0 b=0   -> done       | txn p 1.0 complete A a=0 b=0
        commit p 2.0 B a1    -> decided    | txn p 2.0 committing B a:3+1, next a 4
        """,
        turns,
    )


def test_rule_s2_a_completion_is_of_what_was_decided() -> None:
    """Content, run and others stay, for the repeats that come after it."""
    turns = HomeTurns()
    check(
        """
        commit n #4 A input=i a2       -> decided \
            | txn n 0.4 committing A run=r1 input=i a:0+2, next a 2
        commit n #4 B run=r2 input=i   -> already 0.4 committing \
            | txn n 0.4 committing A run=r1 input=i +r2:B a:0+2
        complete n a=7                 -> done \
            | txn n 0.4 complete A run=r1 input=i +r2:B a=7
        """,
        turns,
    )
    value = turns.home.newest[named("n")]
    assert (value.units, value.inline, value.numbering) == ((), (), NUMBERING)


# ---------------------------------------------------------------- S4


def test_rule_s4_numbers_stay_when_the_decision_is_compacted() -> None:
    """Counters that went with it: a new transaction is answered "already", its rows nowhere."""
    check("""
        commit key:k - A a3  -> decided | txn key:k 0.0 committing A a:0+3, next a 3
        complete key:k a=0   -> done    | txn key:k 0.0 complete A a=0
        forget key:k         -> forgotten | no txn key:k
        load                 -> loaded
        commit key:l - A a1  -> decided | txn key:l 0.0 committing A a:3+1, next a 4
    """)


def test_rule_s4_numbers_jump_where_sequences_wrap() -> None:
    """A unit is never split: one that would cross 2^31 begins there, and names its predecessor."""
    turns = HomeTurns()
    key = NextKey(NUMBERING, *target("a"))
    turns.write((HomeRecord(key, NextValue(SEQUENCES - 3, 0)),))
    for rows, after, number in (
        (2, SEQUENCES - 3, SEQUENCES - 3),
        (2, SEQUENCES - 1, SEQUENCES),
        (1, SEQUENCES + 2, SEQUENCES + 2),
    ):
        records = decided(turns, f"a{rows}")
        turns.write(records)
        (unit,) = turns.home.newest[named("n")].units
        assert (unit.after, unit.number) == (after, number)
        turns.complete(named("n"))
        turns.load()


def test_rule_s4_a_unit_ends_at_the_end_of_a_sequence() -> None:
    turns = HomeTurns()
    key = NextKey(NUMBERING, *target("a"))
    turns.write((HomeRecord(key, NextValue(SEQUENCES - 3, 0)),))
    turns.write(decided(turns, "a3", "a1@7"))
    first, second = turns.home.newest[named("n")].units
    assert (first.number, second.after, second.number) == (SEQUENCES - 3, SEQUENCES, SEQUENCES)


def test_rule_s4_a_home_that_was_cut_uncleanly_numbers_anew() -> None:
    """Under its new unclean epoch; the old numbering stays for what is open."""
    turns = HomeTurns()
    script = "commit {} #0 A a2 -> decided | txn {} 0.0 committing A run=r1 a:{}+2, next a {}"
    check(script.format("n", "n", 0, 2), turns)
    turns.numbering += 5
    check(script.format("m", "m", 0, 2), turns)
    turns.numbering -= 5
    check(script.format("o", "o", 2, 4), turns)


def test_rule_s4_numbers_end_with_an_error() -> None:
    """Numbers are 46 bits wide: behind them nothing is decided, and no number is given again."""
    turns = HomeTurns()
    key = NextKey(NUMBERING, *target("a"))
    turns.write((HomeRecord(key, NextValue(ROW_NUMBER_MAX, 0)),))
    with pytest.raises(KafkaError, match="would pass row") as caught:
        decided(turns, "b1", "a2")
    assert caught.value.code is ErrorCode.POLICY_VIOLATION
    turns.write(decided(turns, "a1"))
    assert turns.home.next_rows[key].number == ROW_NUMBER_MAX + 1


# ---------------------------------------------------------------- S6


def test_rule_s6_a_lower_epoch_decides_nothing() -> None:
    check("""
        init p            -> epoch 1 | epoch p 1
        init p            -> epoch 2 | epoch p 2
        commit p 1.9 A a1 -> PRODUCER_FENCED not_written
        abort p 1.9       -> PRODUCER_FENCED not_written
    """)


def test_rule_s6_a_forgotten_id_begins_behind_the_floor() -> None:
    """The floor comes first: an epoch is never forgotten before another record is above it."""
    turns = HomeTurns(limits=HomeLimits(id_expiration_ms=100))
    check(
        """
        init p            -> epoch 1 | epoch p 1
        init p            -> epoch 2 | epoch p 2
        commit p 2.0 A a1 -> decided | txn p 2.0 committing A a:0+1, next a 1
        complete p a=0    -> done    | txn p 2.0 complete A a=0
        age 101           -> checked | floor 2, no epoch p, no txn p
        load              -> loaded
        init p            -> epoch 3, forgotten to 2 | epoch p 3
        init q            -> epoch 3, forgotten to 2 | epoch q 3
        """,
        turns,
    )


def test_rule_s6_fenced_is_not_unwritten_where_epochs_are_forgotten() -> None:
    """A repeat of a decided commit was told that it is not written."""
    turns = HomeTurns(limits=HomeLimits(id_expiration_ms=100))
    check(
        """
        init p            -> epoch 1 | epoch p 1
        commit p 1.0 A a1 -> decided | txn p 1.0 committing A a:0+1, next a 1
        complete p a=0    -> done    | txn p 1.0 complete A a=0
        age 101           -> checked | floor 1, no epoch p, no txn p
        commit p 1.0 A a1 -> PRODUCER_FENCED unknown
        init p            -> epoch 2, forgotten to 1 | epoch p 2
        commit p 1.0 A a1 -> PRODUCER_FENCED unknown
        commit p 3.0 A a1 -> PRODUCER_FENCED not_written
        init p            -> epoch 3, forgotten to 1 | epoch p 3
        commit p 2.0 A a1 -> PRODUCER_FENCED not_written
        """,
        turns,
    )


@pytest.mark.parametrize(
    ("name", "epoch", "text"),
    [
        ("p", 1, "epoch 1 of p is over; the present one is 2"),
        ("p", 3, "epoch 3 of p was never given; the present one is 2"),
        ("q", 1, "q has no epoch 1: initialise it first"),
    ],
)
def test_rule_s6_a_refusal_names_the_present_epoch(name: str, epoch: int, text: str) -> None:
    turns = HomeTurns()
    check("init p -> epoch 1 | epoch p 1\n init p -> epoch 2 | epoch p 2", turns)
    content = Content(named(name), ProducerPosition(epoch, 0), "A")
    with pytest.raises(KafkaError) as caught:
        home_decisions.judge(turns.home, content)
    assert caught.value.message == text


# ---------------------------------------------------------------- S7


def test_rule_s7_a_repeat_hears_its_fate_before_any_fence() -> None:
    check("""
        init p            -> epoch 1 | epoch p 1
        commit p 1.0 A a1 -> decided | txn p 1.0 committing A a:0+1, next a 1
        init p            -> epoch 2, last 1.0 committing | epoch p 2
        commit p 1.0 A a1 -> again 1.0 committing
        commit p 1.0 B a1 -> TRANSACTION_CONFLICT not_written
        complete p a=0    -> done    | txn p 1.0 complete A a=0
        commit p 1.0 A a1 -> again 1.0 complete
        commit p 1.1 A a1 -> PRODUCER_FENCED not_written
    """)


def test_rule_s7_a_discarded_run_is_remembered_through_a_restart() -> None:
    """Two frames written in one batch under one id were both "already", the second nowhere."""
    check("""
        commit n #4 A run=r1 -> decided | txn n 0.4 complete A run=r1
        commit n #4 B run=r2 -> already 0.4 complete | txn n 0.4 complete A run=r1 +r2:B
        load                 -> loaded
        commit n #4 C run=r2 -> TRANSACTION_CONFLICT not_written
        commit n #4 B run=r2 -> already 0.4 complete
    """)


def test_rule_s7_a_checkpoint_that_was_put_back_is_refused() -> None:
    """A checkpoint that was put back reads another range, which "already" would drop."""
    check("""
        commit n #4 A run=r1 input=0-9  -> decided | txn n 0.4 complete A run=r1 input=0-9
        commit n #4 A run=r2 input=0-7  -> TRANSACTION_CONFLICT not_written
        commit n #4 A run=r2 input=0-9  -> already 0.4 complete \
            | txn n 0.4 complete A run=r1 input=0-9 +r2:A
        commit n #3 A run=r2 input=0-9  -> TRANSACTION_SUPERSEDED unknown
    """)


@pytest.mark.parametrize(
    ("line", "code", "outcome"),
    [
        ("commit p 2.9 A", ErrorCode.PRODUCER_FENCED, Outcome.NOT_WRITTEN),
        ("commit p 1.9 A", ErrorCode.PRODUCER_FENCED, Outcome.UNKNOWN),
        ("commit q 2.0 A", ErrorCode.TRANSACTION_ABORTED, Outcome.NOT_WRITTEN),
        ("commit n #4 B", ErrorCode.TRANSACTION_CONFLICT, Outcome.NOT_WRITTEN),
        ("commit n #3 A", ErrorCode.TRANSACTION_SUPERSEDED, Outcome.UNKNOWN),
        ("commit m #0 A a1", ErrorCode.CONCURRENT_TRANSACTIONS, Outcome.NOT_WRITTEN),
        ("commit key:l - A", ErrorCode.THROTTLING_QUOTA_EXCEEDED, Outcome.NOT_WRITTEN),
        ("commit m #0 A a1 b1 c1", ErrorCode.MESSAGE_TOO_LARGE, Outcome.NOT_WRITTEN),
        ("forget x", ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, Outcome.NOT_WRITTEN),
        ("forget o", ErrorCode.CONCURRENT_TRANSACTIONS, Outcome.NOT_WRITTEN),
    ],
)
def test_rule_s7_refusals_have_the_codes_and_outcomes_of_the_table(
    line: str, code: ErrorCode, outcome: Outcome
) -> None:
    """An outcome is unknown only where an attempt may have decided; limits may be retried."""
    turns = HomeTurns(
        limits=HomeLimits(id_expiration_ms=100, committing_max=1, keys_max=1, partitions_max=2)
    )
    check(
        """
        init x              -> epoch 1 | epoch x 1
        age 101             -> checked | floor 1, no epoch x
        init p              -> epoch 2, forgotten to 1 | epoch p 2
        init p              -> epoch 3, forgotten to 1 | epoch p 3
        init q              -> epoch 2, forgotten to 1 | epoch q 2
        abort q 2.0         -> aborted | txn q 2.0 aborted
        commit n #4 A       -> decided | txn n 0.4 complete A run=r1
        commit o #0 A a1    -> decided | txn o 0.0 committing A run=r1 a:0+1, next a 1
        commit key:k - A    -> decided | txn key:k 0.0 complete A
        """,
        turns,
    )
    check(f"{line} -> {code.name} {outcome}", turns)
    is_limit = code in {ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.THROTTLING_QUOTA_EXCEEDED}
    assert code.retriable == is_limit, "what speaks of its attempt only is retriable"


# ---------------------------------------------------------------- S10


def test_rule_s10_a_decision_names_nothing_below_the_horizon() -> None:
    """The home asks the stage again, which names the chunk's new place, or misses it."""
    check("""
        init p               -> epoch 1 | epoch p 1
        ask p 1.0 @6 aged    -> may go  | horizon 7
        commit p 1.0 A a2@6  -> below the horizon
        commit p 1.0 A a2@7  -> decided | txn p 1.0 committing A a:0+2@7, next a 2
        commit n #0 A a1 b1@5 -> below the horizon
    """)


def test_rule_s10_a_horizon_is_of_one_stage() -> None:
    turns = HomeTurns()
    check("ask n #1 @6 aged -> may go | horizon 7", turns)
    for stage, is_below in ((STAGE, True), (PartitionId(STAGE + 1), False)):
        part = Part(target("a"), 1, staged_at("6")._replace(stage=stage))
        assert home_decisions.is_below_horizon(turns.home, [part]) == is_below


def test_rule_s10_behind_an_unclean_election_chunks_at_old_offsets_are_above_the_horizon() -> None:
    """The stage's log begins anew below the horizon's offset, in a newer leader epoch."""
    check("""
        ask n #1 @50 aged          -> may go | horizon 51
        commit n #1 A a1@20e3      -> decided \
            | txn n 0.1 committing A run=r1 a:0+1@20e3, next a 1
        ask key:k - @30e3          -> stays
        ask key:k - @30e3 aged     -> may go | horizon 31e3
        commit n #2 A a1@60        -> must wait
        complete n a=0             -> done | txn n 0.1 complete A run=r1 a=0
        commit n #2 A a1@60        -> below the horizon
        commit n #2 A a1@30e3      -> below the horizon
        ask n #2 @60               -> may go
        commit n #2 A a1@31e3      -> decided \
            | txn n 0.2 committing A run=r1 a:1+1@31e3, next a 2
    """)


def test_rule_s10_another_chunk_at_the_offset_of_a_decided_one_is_not_the_decided_one() -> None:
    """An unclean election gave the offset to another chunk."""
    check("""
        commit n #1 A a2@6 b1@7 -> decided \
            | txn n 0.1 committing A run=r1 a:0+2@6 b:0+1@7, next a 2, next b 1
        ask n #1 @6e2 records=2 copy=@20e2 -> may go
        ask n #2 @6e2 records=2            -> stays
        ask n #1 @6 records=2              -> stays
        ask n #1 @6 records=2 copy=@9e2    -> may go \
            | txn n 0.1 committing A run=r1 a:0+2@9e2 b:0+1@10e2
    """)


def test_rule_s10_rows_that_are_nowhere_are_recorded_with_their_decision() -> None:
    """Per target, behind a load, too; the rest of the decision is completed."""
    check("""
        commit n #1 A a2@6 b1@7 a3@9 -> decided \
            | txn n 0.1 committing A run=r1 a:0+2@6 b:0+1@7 a:2+3@9, next a 5, next b 1
        lose n @6 @9     -> done | txn n 0.1 committing A run=r1 a:0+2@lost b:0+1@7 a:2+3@lost
        load             -> loaded
        lose n @6        -> done
        ask n #1 @6      -> may go
        ask n #1 @7      -> stays
        ask n #1 @7 copy=@20 -> may go \
            | txn n 0.1 committing A run=r1 a:0+2@lost b:0+1@20 a:2+3@lost
        complete n b=4   -> done | txn n 0.1 complete A run=r1 b=4 lost:a+5
        load             -> loaded
        commit n #1 A a2@6 b1@7 a3@9 -> again 0.1 complete
        lose n @20       -> done
    """)


def test_rule_s3_the_next_life_of_a_producer_hears_of_lost_rows() -> None:
    """It takes a decided position for one that is there, as a whole."""
    check("""
        init p                  -> epoch 1 | epoch p 1
        commit p 1.0 A a2@6 b1@7 -> decided \
            | txn p 1.0 committing A a:0+2@6 b:0+1@7, next a 2, next b 1
        lose p @6               -> done | txn p 1.0 committing A a:0+2@lost b:0+1@7
        init p                  -> epoch 2, last 1.0 committing without 2 rows | epoch p 2
        complete p b=0          -> done | txn p 1.0 complete A b=0 lost:a+2
        init p                  -> epoch 3, last 1.0 complete without 2 rows | epoch p 3
    """)


def test_rule_s3_an_abort_hears_of_lost_rows() -> None:
    """Aborts follow commits of unknown outcome; "complete" alone is taken for a success."""
    check("""
        init p                  -> epoch 1 | epoch p 1
        commit p 1.0 A a2@6 b1@7 -> decided \
            | txn p 1.0 committing A a:0+2@6 b:0+1@7, next a 2, next b 1
        abort p 1.0             -> committing
        lose p @6               -> done | txn p 1.0 committing A a:0+2@lost b:0+1@7
        abort p 1.0             -> committing without 2 of a
        complete p b=0          -> done | txn p 1.0 complete A b=0 lost:a+2
        abort p 1.0             -> complete without 2 of a
        load                    -> loaded
        abort p 1.0             -> complete without 2 of a
    """)


def test_rule_s10_rows_of_a_deleted_topic_are_not_told_as_lost() -> None:
    check("""
        commit n #1 A a2@6 b1@7 -> decided \
            | txn n 0.1 committing A run=r1 a:0+2@6 b:0+1@7, next a 2, next b 1
        lose n @6 @7     -> done | txn n 0.1 committing A run=r1 a:0+2@lost b:0+1@lost
        complete n a     -> done | txn n 0.1 complete A run=r1 dropped:a lost:b+1
    """)


def test_rule_s10_rows_that_were_moved_are_not_lost() -> None:
    """A target was asked with the old place; its answer comes behind the move."""
    turns = HomeTurns()
    check(
        """
        commit n #1 A a2@6   -> decided | txn n 0.1 committing A run=r1 a:0+2@6, next a 2
        """,
        turns,
    )
    asked = turns.home.newest[named("n")].units
    check("ask n #1 @6 copy=@20 -> may go | txn n 0.1 committing A run=r1 a:0+2@20", turns)
    assert home_decisions.lose(turns.home, named("n"), asked) == ()
    check("complete n a=0 -> done | txn n 0.1 complete A run=r1 a=0", turns)
    assert home_decisions.lose(turns.home, named("n"), asked) == ()


def test_rule_s10_a_chunk_of_an_undecided_position_stays_until_it_is_aged() -> None:
    check("""
        init p            -> epoch 1 | epoch p 1
        ask p 1.0 @6      -> stays
        ask n #4 @7       -> stays
        ask key:k - @8    -> stays
        ask p 1.0 @6 aged -> may go | horizon 7
        ask p 1.0 @6      -> may go
        ask p 1.0 @7      -> stays
    """)


def test_rule_s10_a_chunk_that_an_open_decision_names_stays() -> None:
    """Whatever its age: its target has not read it yet."""
    check("""
        init p                  -> epoch 1 | epoch p 1
        commit p 1.0 A a2@6 a1@8 -> decided | txn p 1.0 committing A a:0+2@6 a:2+1@8, next a 3
        ask p 1.0 @6 aged       -> stays
        ask p 1.0 @7            -> may go
        init p                  -> epoch 2, last 1.0 committing | epoch p 2
        ask p 1.0 @8 aged       -> stays
        complete p a=0          -> done    | txn p 1.0 complete A a=0
        ask p 1.0 @6            -> may go
    """)


def test_rule_s10_an_open_decision_takes_the_new_place_of_a_moved_chunk() -> None:
    check("""
        commit n #1 A a2@6 b1@7 -> decided \
            | txn n 0.1 committing A run=r1 a:0+2@6 b:0+1@7, next a 2, next b 1
        ask n #1 @6 copy=@20    -> may go | txn n 0.1 committing A run=r1 a:0+2@20 b:0+1@7
        ask n #1 @6             -> may go
        ask n #1 @20            -> stays
        ask n #1 @20 copy=@31   -> may go | txn n 0.1 committing A run=r1 a:0+2@31 b:0+1@7
        load                    -> loaded
        ask n #1 @31            -> stays
        ask n #1 @7             -> stays
    """)


def test_rule_s10_a_chunk_of_several_targets_is_moved_as_a_whole() -> None:
    """A chunk has a record for each target; the stage names the first."""
    check("""
        commit n #1 A a2@6 b1@7 a1@8 -> decided \
            | txn n 0.1 committing A run=r1 a:0+2@6 b:0+1@7 a:2+1@8, next a 3, next b 1
        ask n #1 @6 records=2        -> stays
        ask n #1 @5 records=2        -> stays
        ask n #1 @4 records=2        -> may go
        ask n #1 @9 records=2        -> may go
        ask n #1 @6 records=2 copy=@20 -> may go \
            | txn n 0.1 committing A run=r1 a:0+2@20 b:0+1@21 a:2+1@8
        ask n #2 @30 records=3 aged  -> may go | horizon 33
    """)


def test_rule_s10_a_moved_chunk_of_an_undecided_position_raises_the_horizon() -> None:
    """A commit that was told the old place is decided by the new one only."""
    check("""
        ask n #1 @6 copy=@20 -> may go  | horizon 7
        commit n #1 A a1@6   -> below the horizon
        commit n #1 A a1@20  -> decided | txn n 0.1 committing A run=r1 a:0+1@20, next a 1
    """)


def test_rule_s10_chunks_of_what_is_over_or_fenced_may_go() -> None:
    check("""
        init p            -> epoch 1 | epoch p 1
        abort p 1.4       -> aborted | txn p 1.4 aborted
        ask p 1.4 @6      -> may go
        ask p 1.0 @7      -> may go
        ask p 1.5 @8      -> stays
        init p            -> epoch 2, last 1.4 aborted | epoch p 2
        ask p 1.5 @8      -> may go
        ask p 2.0 @9      -> stays
        ask p 3.0 @9      -> stays
    """)


def test_rule_s10_what_was_let_go_is_named_again_where_its_position_is_forgotten() -> None:
    """The commit asked its stage before, or a leader that lacks the word: it is not trimmed."""
    check("""
        commit n #5 A a1@6     -> decided | txn n 0.5 committing A run=r1 a:0+1@6, next a 1
        complete n a=0         -> done    | txn n 0.5 complete A run=r1 a=0
        ask n #5 @9 records=2  -> may go
        forget n               -> forgotten | no txn n
        commit n #5 B a1@9 b1@10 -> decided \
            | txn n 0.5 committing B run=r1 a:1+1@9 b:0+1@10, next a 2, next b 1
        ask n #5 @8 passed     -> may go | horizon 9
        ask n #5 @9 records=2 passed -> stays
        complete n a=1 b=0     -> done   | txn n 0.5 complete B run=r1 a=1 b=0
        ask n #5 @9 records=2 passed -> may go | horizon 11
        ask n #5 @6 passed     -> may go
    """)


def test_rule_s10_what_was_trimmed_is_not_named_where_its_position_is_forgotten() -> None:
    check("""
        commit n #5 A a1@6 -> decided   | txn n 0.5 committing A run=r1 a:0+1@6, next a 1
        complete n a=0     -> done      | txn n 0.5 complete A run=r1 a=0
        ask n #5 @9        -> may go
        ask n #5 @9 passed -> may go    | horizon 10
        forget n           -> forgotten | no txn n
        commit n #5 B a1@9 -> below the horizon
    """)


def test_rule_s10_a_numbered_chunk_knows_no_fence() -> None:
    """A producer's epochs say nothing of an id without epochs."""
    turns = HomeTurns()
    floor = (HomeRecord(FloorKey(), NumberValue(9)),)
    turns.write(floor)
    check(
        """
        ask n #4 @6         -> stays
        ask key:k - @6      -> stays
        commit n #4 A a1@6  -> decided | txn n 0.4 committing A run=r1 a:0+1@6, next a 1
        """,
        turns,
    )


def test_rule_s10_chunks_of_a_forgotten_epoch_may_go() -> None:
    """No later epoch of the id is at or below the floor, so nothing decides it any more."""
    turns = HomeTurns(limits=HomeLimits(id_expiration_ms=100))
    check(
        """
        init p        -> epoch 1 | epoch p 1
        ask p 1.0 @6  -> stays
        age 101       -> checked | floor 1, no epoch p
        ask p 1.0 @6  -> may go
        ask p 2.0 @7  -> stays
        init p        -> epoch 2, forgotten to 1 | epoch p 2
        ask p 2.0 @7  -> stays
        """,
        turns,
    )


# ---------------------------------------------------------------- S11


def test_rule_s11_numbers_of_a_deleted_topic_are_forgotten_by_a_new_enough_image() -> None:
    """A home on a lagging broker lacks a new topic: it must not give its numbers again."""
    check("""
        commit n #4 A a2 b1 -> decided \
            | txn n 0.4 committing A run=r1 a:0+2 b:0+1, next a 2, next b 1
        deleted a 9         -> checked
        complete n b=0 a    -> done    | txn n 0.4 complete A run=r1 b=0 dropped:a
        deleted a 6         -> checked
        deleted a 7         -> checked | no next a
        load                -> loaded
        deleted a 9         -> checked
        commit n #5 B b1    -> decided | txn n 0.5 committing B run=r1 b:1+1, next b 2
    """)


# ---------------------------------------------------------------- S12


def test_rule_s12_a_key_is_kept_for_its_retention_after_it_is_complete() -> None:
    """A target may be away for longer: a client that is told "committing" repeats until then."""
    turns = HomeTurns(limits=HomeLimits(key_retention_ms=100))
    check(
        """
        commit key:k - A a1 -> decided | txn key:k 0.0 committing A a:0+1, next a 1
        age 5000            -> checked
        complete key:k a=0  -> done    | txn key:k 0.0 complete A a=0
        age 100             -> checked
        commit key:k - A a1 -> again 0.0 complete
        age 1               -> checked | no txn key:k
        """,
        turns,
    )


def test_rule_s12_an_unknown_time_counts_from_the_load() -> None:
    """Decided while the clock was doubted: kept for the whole time from when it is trusted."""
    turns = HomeTurns(limits=HomeLimits(key_retention_ms=100, id_expiration_ms=100), now_ms=None)
    check(
        """
        commit key:k - A -> decided | txn key:k 0.0 complete A
        init p           -> epoch 1 | epoch p 1
        """,
        turns,
    )
    turns.now_ms = turns.loaded_ms = 5 * NOW_MS
    check(
        """
        age 100          -> checked
        load             -> loaded
        age 1            -> checked | floor 1, no txn key:k, no epoch p
        """,
        turns,
    )


def test_rule_s12_a_time_in_the_future_keeps_only_its_own_key() -> None:
    """A clock that ran ahead for a while kept every key behind it, until keys were refused."""
    turns = HomeTurns(limits=HomeLimits(key_retention_ms=100))
    turns.now_ms = 9 * NOW_MS
    check("commit key:k - A -> decided | txn key:k 0.0 complete A", turns)
    turns.now_ms = NOW_MS
    check(
        """
        commit key:l - A -> decided | txn key:l 0.0 complete A
        age 101          -> checked | no txn key:l
        """,
        turns,
    )


def test_rule_s12_so_many_are_forgotten_in_a_turn_and_open_ones_do_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(home_decisions, "FORGOTTEN_AT_ONCE", 2)
    turns = HomeTurns(limits=HomeLimits(key_retention_ms=100))
    check(
        """
        commit key:a - A a1 -> decided | txn key:a 0.0 committing A a:0+1, next a 1
        commit key:b - A a1 -> decided | txn key:b 0.0 committing A a:1+1, next a 2
        commit key:c - A -> decided | txn key:c 0.0 complete A
        commit key:d - A -> decided | txn key:d 0.0 complete A
        commit key:e - A -> decided | txn key:e 0.0 complete A
        age 101          -> checked | no txn key:c, no txn key:d
        age 0            -> checked | no txn key:e
        """,
        turns,
    )


def test_rule_s12_keys_are_looked_at_in_the_order_of_their_completions() -> None:
    """The check ends at the first one that is young; so does that of a log that was compacted."""
    turns = HomeTurns(limits=HomeLimits(key_retention_ms=100))
    check(
        """
        commit key:k - A a1 -> decided | txn key:k 0.0 committing A a:0+1, next a 1
        commit key:l - A    -> decided | txn key:l 0.0 complete A
        age 60              -> checked
        complete key:k a=0  -> done    | txn key:k 0.0 complete A a=0
        age 41              -> checked | no txn key:l
        age 59              -> checked
        load                -> loaded
        age 1               -> checked | no txn key:k
        """,
        turns,
    )


def test_rule_s12_a_one_shot_without_a_key_is_kept_for_repeats_between_brokers() -> None:
    """No client repeats it. Kept like a key, 84 a second at one home were refused in the end."""
    kept_ms = home_decisions.ONCE_KEPT_MS
    assert kept_ms >= 2 * TRANSACTION_TIMEOUT_MS_MAX
    check(f"""
        commit key:k - A      -> decided | txn key:k 0.0 complete A
        commit key:_1 - A a1  -> decided | txn key:_1 0.0 committing A a:0+1, next a 1
        age {5 * kept_ms - 1} -> checked
        complete key:_1 a=0   -> done    | txn key:_1 0.0 complete A a=0
        age 2                 -> checked | no txn key:k
        age {kept_ms - 2}     -> checked
        commit key:_1 - A a1  -> again 0.0 complete
        load                  -> loaded
        age 1                 -> checked | no txn key:_1
    """)
    turns = HomeTurns(limits=HomeLimits(key_retention_ms=100))
    check("commit key:_1 - A -> decided | txn key:_1 0.0 complete A", turns)
    check("age 101 -> checked | no txn key:_1", turns)


def test_rule_s12_only_the_ids_that_are_named_are_looked_at() -> None:
    turns = HomeTurns(limits=HomeLimits(id_expiration_ms=100))
    check("init p -> epoch 1 | epoch p 1\n init q -> epoch 1 | epoch q 1", turns)
    assert turns.now_ms is not None
    turns.now_ms += 101
    turns.forget_by_age([named("q"), named("unknown")])
    assert list(turns.home.epochs) == [named("p")]
    assert turns.home.floor == 1


def test_rule_s12_an_epoch_that_was_given_in_this_turn_is_above_the_floor() -> None:
    """Floors of ids that are forgotten together: the highest of them counts."""
    turns = HomeTurns(limits=HomeLimits(id_expiration_ms=100))
    turns.write(
        tuple(
            HomeRecord(EpochKey(*named(name)), EpochValue(epoch, NOW_MS))
            for name, epoch in (("p", 5), ("q", 3))
        )
    )
    check("age 101 -> checked | floor 5, no epoch p, no epoch q", turns)


# ---------------------------------------------------------------- a chunk's question


def test_a_question_about_a_chunk_names_its_position_as_its_kind_has_it() -> None:
    """A numbered chunk at the place of a producer's id is over, and decides nothing there."""
    turns = HomeTurns()
    check("init p -> epoch 1 | epoch p 1\n abort p 1.0 -> aborted | txn p 1.0 aborted", turns)
    chunk = ChunkPlaced(id=named("p"), is_producer=False, at=(0, 7), place=staged_at("3"))
    assert turns.may_go(chunk)
