"""The turns of a home, row by row of the table in broker/transactions/DESIGN.md, as transcripts.

`p` and `q` are ids of producers, `n` is numbered, `key:k` an idempotency key. A line is a command,
its answer and the records of the turn; `tests/support/home_turns.py` reads and shows them.
"""

from __future__ import annotations

import pytest

from broker.transactions import home_decisions
from broker.transactions.home_decisions import Content, Decision
from broker.transactions.home_state import HomeLimits
from broker.transactions.messages import NumberedPosition
from tests.support.home_turns import NOW_MS, HomeTurns, check, named, parts_of, target

# ---------------------------------------------------------------- init


def test_init_of_an_id_without_a_position_gives_the_next_epoch() -> None:
    check("""
        init p -> epoch 1 | epoch p 1
        init p -> epoch 2 | epoch p 2
        init q -> epoch 1 | epoch q 1
    """)


def test_init_leaves_a_decision_that_is_committing() -> None:
    check("""
        init p             -> epoch 1                       | epoch p 1
        commit p 1.0 A a2  -> decided                       | txn p 1.0 committing A a:0+2, next a 2
        init p             -> epoch 2, last 1.0 committing  | epoch p 2
        complete p a=7     -> done                          | txn p 1.0 complete A a=7
    """)


def test_init_tells_of_what_is_complete_or_aborted() -> None:
    check("""
        init p            -> epoch 1                     | epoch p 1
        commit p 1.0 A    -> decided                     | txn p 1.0 complete A
        init p            -> epoch 2, last 1.0 complete  | epoch p 2
        abort p 2.0       -> aborted                     | txn p 2.0 aborted
        init p            -> epoch 3, last 2.0 aborted   | epoch p 3
    """)


def test_init_of_a_numbered_id_is_a_conflict() -> None:
    check("""
        commit n #0 A -> decided | txn n 0.0 complete A run=r1
        init n        -> TRANSACTION_CONFLICT not_written
    """)


def test_init_of_a_key_is_a_conflict() -> None:
    check("init key:k -> TRANSACTION_CONFLICT not_written")


# ---------------------------------------------------------------- commit of a newer position


def test_a_newer_position_of_the_current_epoch_is_decided() -> None:
    check("""
        init p               -> epoch 1 | epoch p 1
        commit p 1.0 A a2 b1 -> decided | txn p 1.0 committing A a:0+2 b:0+1, next a 2, next b 1
        complete p a=5 b=9   -> done    | txn p 1.0 complete A a=5 b=9
        commit p 1.1 B b3    -> decided | txn p 1.1 committing B b:1+3, next b 4
    """)


def test_a_newer_position_is_decided_behind_an_aborted_one() -> None:
    check("""
        init p            -> epoch 1 | epoch p 1
        abort p 1.0       -> aborted | txn p 1.0 aborted
        commit p 1.1 A a1 -> decided | txn p 1.1 committing A a:0+1, next a 1
    """)


def test_positions_may_be_left_out() -> None:
    check("""
        init p            -> epoch 1 | epoch p 1
        commit p 1.7 A a1 -> decided | txn p 1.7 committing A a:0+1, next a 1
        commit n #40 A a1 -> decided | txn n 0.40 committing A run=r1 a:1+1, next a 2
    """)


def test_a_newer_position_waits_for_the_completion_of_the_last() -> None:
    check("""
        init p            -> epoch 1   | epoch p 1
        commit p 1.0 A a2 -> decided   | txn p 1.0 committing A a:0+2, next a 2
        commit p 1.1 B a1 -> must wait
        complete p a=0    -> done      | txn p 1.0 complete A a=0
        commit p 1.1 B a1 -> decided   | txn p 1.1 committing B a:2+1, next a 3
    """)


def test_ids_do_not_wait_for_each_other() -> None:
    check("""
        commit n #1 A a2      -> decided | txn n 0.1 committing A run=r1 a:0+2, next a 2
        commit m #1 A a2      -> decided | txn m 0.1 committing A run=r1 a:2+2, next a 4
        commit key:k - A a1   -> decided | txn key:k 0.0 committing A a:4+1, next a 5
    """)


def test_rows_of_one_target_in_several_pieces_are_numbered_one_after_the_other() -> None:
    check("""
        commit n #1 A a2@7 b1@7 a3@9 -> decided \
            | txn n 0.1 committing A run=r1 a:0+2@7 b:0+1@7 a:2+3@9, next a 5, next b 1
    """)


def test_a_position_without_rows_is_complete_at_once() -> None:
    check("""
        init p         -> epoch 1 | epoch p 1
        commit p 1.0 A -> decided | txn p 1.0 complete A
        commit p 1.0 A -> again 1.0 complete
        commit p 1.1 B -> decided | txn p 1.1 complete B
    """)


def test_a_piece_without_rows_has_no_unit() -> None:
    check("""
        commit n #1 A a0 b1 -> decided | txn n 0.1 committing A run=r1 b:0+1, next b 1
        commit m #1 A a0    -> decided | txn m 0.1 complete A run=r1
    """)


def test_a_newer_position_of_a_lower_epoch_is_fenced_in_every_state() -> None:
    check("""
        init p            -> epoch 1                     | epoch p 1
        init p            -> epoch 2                     | epoch p 2
        commit p 1.0 A a1 -> PRODUCER_FENCED not_written
        commit p 2.0 B a1 -> decided                     | txn p 2.0 committing B a:0+1, next a 1
        init p            -> epoch 3, last 2.0 committing | epoch p 3
        commit p 2.1 C a1 -> PRODUCER_FENCED not_written
        complete p a=0    -> done                        | txn p 2.0 complete B a=0
        commit p 2.1 C a1 -> PRODUCER_FENCED not_written
    """)


def test_an_epoch_that_was_never_given_is_fenced() -> None:
    check("""
        commit p 1.0 A a1 -> PRODUCER_FENCED not_written
        abort p 1.0       -> PRODUCER_FENCED not_written
        init p            -> epoch 1                     | epoch p 1
        commit p 2.0 A a1 -> PRODUCER_FENCED not_written
    """)


def test_a_decision_keeps_all_that_its_completion_and_its_repeats_need() -> None:
    turns = HomeTurns()
    parts, inline = parts_of(["a2", "b1"])
    content = Content(named("n"), NumberedPosition(4, "r1", "i"), "A")
    decision = Decision(
        content=content,
        numbering=turns.numbering,
        metadata_offset=17,
        parts=parts,
        inline=inline,
        layout=5,
        now_ms=NOW_MS,
    )
    value, _ = home_decisions.decide(turns.home, decision, turns.limits)
    assert (value.numbering, value.metadata_offset) == (turns.numbering, 17)
    assert (value.inline, value.layout, value.decided_ms) == (inline, 5, NOW_MS)
    assert [unit.source for unit in value.units] == [0, 1]
    assert (value.digest, value.run_id, value.input) == ("A", "r1", "i")
    assert value.completed_ms is None


# ---------------------------------------------------------------- commit of the same position


def test_a_repeat_waits_for_the_completion_and_hears_the_fate() -> None:
    check("""
        init p            -> epoch 1                | epoch p 1
        commit p 1.0 A a2 -> decided                | txn p 1.0 committing A a:0+2, next a 2
        commit p 1.0 A a2 -> again 1.0 committing
        complete p a=7    -> done                   | txn p 1.0 complete A a=7
        commit p 1.0 A a2 -> again 1.0 complete
    """)


def test_a_repeat_of_an_aborted_position_is_refused_whatever_its_content() -> None:
    check("""
        init p            -> epoch 1 | epoch p 1
        abort p 1.0       -> aborted | txn p 1.0 aborted
        commit p 1.0 A a2 -> TRANSACTION_ABORTED not_written
        commit p 1.0 B    -> TRANSACTION_ABORTED not_written
    """)


def test_another_content_is_a_conflict() -> None:
    check("""
        init p              -> epoch 1 | epoch p 1
        commit p 1.0 A a2   -> decided | txn p 1.0 committing A a:0+2, next a 2
        commit p 1.0 B a2   -> TRANSACTION_CONFLICT not_written
        complete p a=0      -> done    | txn p 1.0 complete A a=0
        commit p 1.0 B a2   -> TRANSACTION_CONFLICT not_written
        commit key:k - A a1 -> decided | txn key:k 0.0 committing A a:2+1, next a 3
        commit key:k - B a1 -> TRANSACTION_CONFLICT not_written
        complete key:k a=2  -> done    | txn key:k 0.0 complete A a=2
        commit key:k - B a1 -> TRANSACTION_CONFLICT not_written
        commit key:k - A a1 -> again 0.0 complete
    """)


def test_a_later_run_is_already_there_and_remembered() -> None:
    check("""
        commit n #5 A run=r1 a2 -> decided | txn n 0.5 committing A run=r1 a:0+2, next a 2
        commit n #5 B run=r2 a9 -> already 0.5 committing \
            | txn n 0.5 committing A run=r1 +r2:B a:0+2
        commit n #5 B run=r2 a9 -> already 0.5 committing
        complete n a=4          -> done    | txn n 0.5 complete A run=r1 +r2:B a=4
        commit n #5 A run=r3 a2 -> already 0.5 complete \
            | txn n 0.5 complete A run=r1 +r2:B +r3:A a=4
        commit n #5 A run=r1 a2 -> again 0.5 complete
    """)


def test_a_later_run_with_another_input_is_a_conflict() -> None:
    check("""
        commit n #5 A run=r1 input=i a2 -> decided \
            | txn n 0.5 committing A run=r1 input=i a:0+2, next a 2
        commit n #5 B run=r2 input=j a2 -> TRANSACTION_CONFLICT not_written
        commit n #5 A run=r1 input=j a2 -> TRANSACTION_CONFLICT not_written
        commit n #5 B run=r2 a2         -> TRANSACTION_CONFLICT not_written
        complete n a=0 -> done | txn n 0.5 complete A run=r1 input=i a=0
        commit n #5 B run=r2 input=j a2 -> TRANSACTION_CONFLICT not_written
        commit n #5 B run=r2 input=i a2 -> already 0.5 complete \
            | txn n 0.5 complete A run=r1 input=i +r2:B a=0
    """)


def test_another_content_of_a_run_is_a_conflict() -> None:
    check("""
        commit n #5 A run=r1 -> decided | txn n 0.5 complete A run=r1
        commit n #5 B run=r1 -> TRANSACTION_CONFLICT not_written
        commit n #5 B run=r2 -> already 0.5 complete | txn n 0.5 complete A run=r1 +r2:B
        commit n #5 C run=r2 -> TRANSACTION_CONFLICT not_written
        commit n #5 A run=r2 -> TRANSACTION_CONFLICT not_written
    """)


def test_the_last_eight_runs_are_remembered() -> None:
    turns = HomeTurns()
    check("commit n #5 A run=r0 -> decided | txn n 0.5 complete A run=r0", turns)
    for number in range(1, 10):
        check_start = f"commit n #5 B run=r{number} -> already 0.5 complete | txn n 0.5 complete A"
        kept = " ".join(f"+r{each}:B" for each in range(max(1, number - 7), number + 1))
        check(f"{check_start} run=r0 {kept}", turns)
    check(
        """
        commit n #5 C run=r2 -> TRANSACTION_CONFLICT not_written
        commit n #5 C run=r0 -> TRANSACTION_CONFLICT not_written
        commit n #5 A run=r0 -> again 0.5 complete
        """,
        turns,
    )


# ---------------------------------------------------------------- commit of an older position


def test_an_older_position_is_superseded_with_an_unknown_outcome() -> None:
    check("""
        init p            -> epoch 1 | epoch p 1
        commit p 1.1 A a1 -> decided | txn p 1.1 committing A a:0+1, next a 1
        commit p 1.0 B a1 -> TRANSACTION_SUPERSEDED unknown
        complete p a=0    -> done    | txn p 1.1 complete A a=0
        commit p 1.0 B a1 -> TRANSACTION_SUPERSEDED unknown
        abort p 1.2       -> aborted | txn p 1.2 aborted
        commit p 1.1 A a1 -> TRANSACTION_SUPERSEDED unknown
        init p            -> epoch 2, last 1.2 aborted | epoch p 2
        commit p 1.0 A a1 -> TRANSACTION_SUPERSEDED unknown
        commit n #5 A     -> decided | txn n 0.5 complete A run=r1
        commit n #4 A     -> TRANSACTION_SUPERSEDED unknown
    """)


# ---------------------------------------------------------------- abort


def test_abort_of_a_newer_position() -> None:
    check("""
        init p            -> epoch 1   | epoch p 1
        abort p 1.0       -> aborted   | txn p 1.0 aborted
        abort p 1.0       -> aborted
        commit p 1.1 A a1 -> decided   | txn p 1.1 committing A a:0+1, next a 1
        abort p 1.2       -> must wait
        complete p a=0    -> done      | txn p 1.1 complete A a=0
        abort p 1.2       -> aborted   | txn p 1.2 aborted
    """)


def test_abort_of_what_is_decided_tells_its_state() -> None:
    check("""
        init p            -> epoch 1    | epoch p 1
        commit p 1.0 A a1 -> decided    | txn p 1.0 committing A a:0+1, next a 1
        abort p 1.0       -> committing
        complete p a=0    -> done       | txn p 1.0 complete A a=0
        abort p 1.0       -> complete
    """)


def test_abort_of_an_older_position_or_a_lower_epoch_is_refused() -> None:
    check("""
        init p            -> epoch 1    | epoch p 1
        commit p 1.3 A a1 -> decided    | txn p 1.3 committing A a:0+1, next a 1
        abort p 1.2       -> TRANSACTION_SUPERSEDED unknown
        complete p a=0    -> done       | txn p 1.3 complete A a=0
        abort p 1.2       -> TRANSACTION_SUPERSEDED unknown
        init p            -> epoch 2, last 1.3 complete | epoch p 2
        abort p 1.4       -> PRODUCER_FENCED not_written
    """)


# ---------------------------------------------------------------- completion, loading


def test_completion_of_what_is_not_open_records_nothing() -> None:
    check("""
        complete p     -> done
        init p         -> epoch 1 | epoch p 1
        abort p 1.0    -> aborted | txn p 1.0 aborted
        complete p     -> done
        commit n #0 A a1 -> decided | txn n 0.0 committing A run=r1 a:0+1, next a 1
        complete n a     -> done    | txn n 0.0 complete A run=r1 dropped:a
        complete n a=3   -> done
    """)


def test_a_new_leader_knows_what_is_open() -> None:
    turns = HomeTurns()
    check(
        """
        init p               -> epoch 1 | epoch p 1
        commit p 1.0 A a2 b1 -> decided | txn p 1.0 committing A a:0+2 b:0+1, next a 2, next b 1
        commit n #3 B a1 -> decided | txn n 0.3 committing B run=r1 a:2+1, next a 3
        load                 -> loaded
        commit p 1.0 A a2 b1 -> again 1.0 committing
        commit p 1.1 A       -> must wait
        """,
        turns,
    )
    assert list(turns.home.open) == [named("p"), named("n")]
    assert turns.home.open_units == {target("a"): 2, target("b"): 1}
    assert turns.home.open_bytes == len("[[null,1],[null,1]][[null,1]][[null,1]]")


# ---------------------------------------------------------------- kinds of ids


def test_an_id_is_of_one_kind() -> None:
    """Numbered or a producer's, for good; the same name without ``key:`` is no key."""
    check("""
        init p               -> epoch 1 | epoch p 1
        commit p #1 A a1     -> TRANSACTION_CONFLICT not_written
        commit n #1 A        -> decided | txn n 0.1 complete A run=r1
        commit n 1.0 A a1    -> TRANSACTION_CONFLICT not_written
        abort n 1.0          -> TRANSACTION_CONFLICT not_written
        commit n - A         -> TRANSACTION_CONFLICT not_written
        commit p - A         -> TRANSACTION_CONFLICT not_written
        commit key:k #1 A    -> TRANSACTION_CONFLICT not_written
        commit key:k 1.0 A   -> TRANSACTION_CONFLICT not_written
        abort key:k 1.0      -> TRANSACTION_CONFLICT not_written
    """)


def test_an_id_of_another_kind_now_may_have_been_decided_as_a_producer() -> None:
    """The epoch may be forgotten: "not written" would be a guess (rule S6)."""
    turns = HomeTurns(limits=HomeLimits(id_expiration_ms=100))
    check(
        """
        init p            -> epoch 1 | epoch p 1
        commit p 1.0 A a1 -> decided | txn p 1.0 committing A a:0+1, next a 1
        complete p a=0    -> done    | txn p 1.0 complete A a=0
        age 101           -> checked | floor 1, no epoch p, no txn p
        commit p #4 B     -> decided | txn p 0.4 complete B run=r1
        commit p 1.0 A a1 -> TRANSACTION_CONFLICT unknown
        abort p 1.0       -> TRANSACTION_CONFLICT unknown
        commit p 2.0 A a1 -> TRANSACTION_CONFLICT not_written
        """,
        turns,
    )


# ---------------------------------------------------------------- what is forgotten


def test_forgetting_by_request() -> None:
    check("""
        forget n            -> TRANSACTIONAL_ID_NOT_FOUND not_written
        commit n #3 A a1    -> decided   | txn n 0.3 committing A run=r1 a:0+1, next a 1
        forget n            -> CONCURRENT_TRANSACTIONS not_written
        complete n a=0      -> done      | txn n 0.3 complete A run=r1 a=0
        forget n            -> forgotten | no txn n
        commit n #0 A a1    -> decided   | txn n 0.0 committing A run=r1 a:1+1, next a 2
        commit key:k - A    -> decided   | txn key:k 0.0 complete A
        forget key:k        -> forgotten | no txn key:k
        init p              -> epoch 1   | epoch p 1
        forget p            -> TRANSACTION_CONFLICT not_written
    """)


def test_keys_are_forgotten_by_age() -> None:
    turns = HomeTurns(limits=HomeLimits(key_retention_ms=100))
    check(
        """
        commit key:k - A    -> decided | txn key:k 0.0 complete A
        age 60              -> checked
        commit key:l - A a1 -> decided | txn key:l 0.0 committing A a:0+1, next a 1
        commit key:m - A    -> decided | txn key:m 0.0 complete A
        age 40              -> checked
        age 1               -> checked | no txn key:k
        commit key:k - B    -> decided | txn key:k 0.0 complete B
        age 99              -> checked | no txn key:m
        complete key:l a=0  -> done    | txn key:l 0.0 complete A a=0
        age 2               -> checked | no txn key:k
        age 98              -> checked
        age 1               -> checked | no txn key:l
        """,
        turns,
    )


def test_producers_are_forgotten_by_age_and_numbered_ids_never() -> None:
    turns = HomeTurns(limits=HomeLimits(id_expiration_ms=100))
    check(
        """
        commit n #3 A     -> decided | txn n 0.3 complete A run=r1
        init p            -> epoch 1 | epoch p 1
        init p            -> epoch 2 | epoch p 2
        init q            -> epoch 1 | epoch q 1
        age 50            -> checked
        commit q 1.0 A a1 -> decided | txn q 1.0 committing A a:0+1, next a 1
        age 51            -> checked | floor 2, no epoch p
        age 200           -> checked
        complete q a=0    -> done    | txn q 1.0 complete A a=0
        age 100           -> checked
        age 1             -> checked | no epoch q, no txn q
        init q            -> epoch 3, forgotten to 2 | epoch q 3
        age 101           -> checked | floor 3, no epoch q
        """,
        turns,
    )


# ---------------------------------------------------------------- limits


def test_so_many_decisions_are_open_at_most() -> None:
    turns = HomeTurns(limits=HomeLimits(committing_max=2))
    check(
        """
        commit m #0 A a1 -> decided | txn m 0.0 committing A run=r1 a:0+1, next a 1
        commit n #0 A a1 -> decided | txn n 0.0 committing A run=r1 a:1+1, next a 2
        commit o #0 A a1 -> CONCURRENT_TRANSACTIONS not_written
        commit o #0 A    -> decided | txn o 0.0 complete A run=r1
        complete m a=0   -> done    | txn m 0.0 complete A run=r1 a=0
        commit o #1 A a1 -> decided | txn o 0.1 committing A run=r1 a:2+1, next a 3
        """,
        turns,
    )


def test_so_many_bytes_are_open_at_most() -> None:
    turns = HomeTurns(limits=HomeLimits(committing_bytes_max=19))
    check(
        """
        commit m #0 A a2    -> decided | txn m 0.0 committing A run=r1 a:0+2, next a 2
        commit n #0 A a2    -> decided | txn n 0.0 committing A run=r1 a:2+2, next a 4
        commit o #0 A a1    -> CONCURRENT_TRANSACTIONS not_written
        complete m a=0      -> done    | txn m 0.0 complete A run=r1 a=0
        commit o #0 A a1    -> decided | txn o 0.0 committing A run=r1 a:4+1, next a 5
        """,
        turns,
    )


def test_so_many_units_of_a_target_are_open_at_most() -> None:
    turns = HomeTurns(limits=HomeLimits(units_max=2))
    check(
        """
        commit m #0 A a1@5 a1@6 -> decided \
            | txn m 0.0 committing A run=r1 a:0+1@5 a:1+1@6, next a 2
        commit n #0 A a1 b1     -> CONCURRENT_TRANSACTIONS not_written
        commit n #0 A b1        -> decided | txn n 0.0 committing A run=r1 b:0+1, next b 1
        complete m a=0          -> done    | txn m 0.0 complete A run=r1 a=0
        commit o #0 A a1        -> decided | txn o 0.0 committing A run=r1 a:2+1, next a 3
        """,
        turns,
    )


def test_so_many_keys_are_known_at_most() -> None:
    """None is forgotten early to make room (rule S12), and repeats are answered."""
    turns = HomeTurns(limits=HomeLimits(keys_max=1))
    check(
        """
        commit key:k - A -> decided | txn key:k 0.0 complete A
        commit key:l - A -> THROTTLING_QUOTA_EXCEEDED not_written
        commit key:_1 - A -> THROTTLING_QUOTA_EXCEEDED not_written
        commit key:k - A -> again 0.0 complete
        commit n #0 A    -> decided | txn n 0.0 complete A run=r1
        forget key:k     -> forgotten | no txn key:k
        commit key:l - A -> decided | txn key:l 0.0 complete A
        """,
        turns,
    )


def test_so_many_ids_are_known_at_most() -> None:
    turns = HomeTurns(limits=HomeLimits(ids_max=2))
    check(
        """
        init p            -> epoch 1 | epoch p 1
        commit n #0 A     -> decided | txn n 0.0 complete A run=r1
        init q            -> THROTTLING_QUOTA_EXCEEDED not_written
        commit m #0 A     -> THROTTLING_QUOTA_EXCEEDED not_written
        init p            -> epoch 2 | epoch p 2
        commit n #1 A     -> decided | txn n 0.1 complete A run=r1
        commit p 2.0 A    -> decided | txn p 2.0 complete A
        commit key:k - A  -> decided | txn key:k 0.0 complete A
        forget n          -> forgotten | no txn n
        init q            -> epoch 1 | epoch q 1
        """,
        turns,
    )


def test_so_many_partitions_are_in_a_transaction_at_most() -> None:
    turns = HomeTurns(limits=HomeLimits(partitions_max=2))
    check(
        """
        commit n #0 A a1 b1 c1 -> MESSAGE_TOO_LARGE not_written
        commit n #0 A a1 b1 a1 -> decided \
            | txn n 0.0 committing A run=r1 a:0+1 b:0+1 a:1+1, next a 2, next b 1
        """,
        turns,
    )


def test_so_many_units_are_in_a_transaction_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its decision is one batch, which has to fit."""
    monkeypatch.setattr(home_decisions, "UNITS_MAX", 2)
    check("""
        commit n #0 A a1@1 a1@2 a1@3 -> MESSAGE_TOO_LARGE not_written
        commit n #0 A a1@1 a1@2 -> decided \
            | txn n 0.0 committing A run=r1 a:0+1@1 a:1+1@2, next a 2
    """)


def test_a_refusal_by_a_limit_is_not_for_good() -> None:
    """An older leader's decision may still come up: a retry is told its fate (rule S7)."""
    turns = HomeTurns(limits=HomeLimits(ids_max=0))
    check("commit n #0 A a1 -> THROTTLING_QUOTA_EXCEEDED not_written", turns)
    turns.limits = HomeLimits()
    check(
        "commit n #0 A a1 -> decided | txn n 0.0 committing A run=r1 a:0+1, next a 1",
        turns,
    )


def test_a_script_that_does_not_hold_fails() -> None:
    """The transcripts prove something: a wrong answer or record is red."""
    for line in ("init p -> epoch 2 | epoch p 1", "init p -> epoch 1 | epoch p 2"):
        with pytest.raises(AssertionError):
            check(line)
