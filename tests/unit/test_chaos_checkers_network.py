"""The checkers of broken networks: each meets an innocent history and a guilty one per finding."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.checkers.faults import (
    check_alive,
    check_back_to_normal,
    check_bypass,
    check_felt,
    check_floor,
    check_logs,
)
from chaos.checkers.groups import check_commits_stay, check_nothing_skipped, check_read_on
from chaos.checkers.metadata import (
    check_churn,
    check_controllers_agree,
    check_one_leader_and_controller,
    check_stepped_down,
    check_topics,
)
from chaos.checkers.records import (
    check_repeats,
    check_replicas,
    check_seen_stays,
    check_unknown_ran,
)
from chaos.history import (
    LINE_KEYS,
    Acknowledgement,
    ControllerTerm,
    Effect,
    Fault,
    GroupCommit,
    GroupRead,
    History,
    Line,
    MetadataWrite,
    Note,
    Observation,
    PartitionLeadership,
    Position,
    Reading,
    Record,
    Unacknowledged,
    to_line,
)
from tests.support.same_history import check_same_history, common_index

RECORDS = [Record(b'"k"', b'{"n":%d}' % n) for n in range(6)]
LINES = [Line(offset, *record) for offset, record in enumerate(RECORDS)]
FELT = Effect("term", 1, 2)


def fault(
    *effects: Effect, at: int = 100, healed: int | None = 200, name: str = "cut off"
) -> Fault:
    return Fault(name=name, target="broker 1", at_ms=at, healed_ms=healed, effects=effects)


def history(*events: object) -> History:
    made = History(list(RECORDS))
    for event in events:
        made.add(event)  # type: ignore[arg-type]
    return made


def ack(row: int, at: int, partition: int = 0) -> Acknowledgement:
    place = (Position(row, partition, row),)
    return Acknowledgement(broker=1, due_ms=at, sent_ms=at, answered_ms=at, positions=place)


def lost(row: int, *, unknown: bool) -> Unacknowledged:
    return Unacknowledged(
        broker=1, sent_ms=0, answered_ms=1, rows=(row,), unknown=unknown, reason="503"
    )


def served(lines: list[Line], broker: int = 2) -> Reading:
    return Reading(broker, {0: lines})


# -- felt


def test_felt_innocent() -> None:
    assert check_felt(history(fault(FELT, Effect("bytes swallowed", 0, 17)))).passed


def test_felt_guilty_of_a_fault_without_evidence() -> None:
    found = check_felt(history(fault(FELT), fault(name="shrugged off")))
    assert not found.passed
    assert "shrugged off: no evidence" in found.examples[0]


def test_felt_guilty_when_one_effect_of_two_did_not_grow() -> None:
    found = check_felt(history(fault(FELT, Effect("bytes swallowed", 0, 0))))
    assert not found.passed
    assert "bytes swallowed stayed at 0" in found.examples[0]


def test_felt_guilty_of_breaking_nothing() -> None:
    assert not check_felt(history()).passed


# -- floor

ENOUGH = [ack(row, at) for row, at in enumerate((10, 20, 120, 130, 210, 220))]


def test_floor_innocent() -> None:
    assert check_floor(history(*ENOUGH, fault(FELT)), 1, 2).passed


@pytest.mark.parametrize(
    ("rows", "window"), [((0, 1), "before"), ((2, 3), "during"), ((4, 5), "after")]
)
def test_floor_guilty_of_an_empty_window(rows: tuple[int, ...], window: str) -> None:
    rest = [event for row, event in enumerate(ENOUGH) if row not in rows]
    found = check_floor(history(*rest, fault(FELT)), 1, 2)
    assert not found.passed
    assert f"0 acknowledged {window} cut off" in found.examples[0]


def test_floor_guilty_when_everything_is_unknown_or_refused() -> None:
    everything = [lost(row, unknown=row % 2 == 0) for row in range(6)]
    assert not check_floor(history(*everything, fault(FELT)), 1, 1).passed


def test_floor_guilty_of_one_idle_partition_of_two() -> None:
    found = check_floor(history(*ENOUGH, fault(FELT)), 2, 1)
    assert not found.passed
    assert all(example.startswith("partition 1") for example in found.examples)


def test_floor_spares_a_partition_that_the_fault_stops_but_not_after_it() -> None:
    stopped = [event for row, event in enumerate(ENOUGH) if row not in (2, 3)]
    assert check_floor(history(*stopped, fault(FELT)), 1, 2, sheltered=[0]).passed
    dead = ENOUGH[:2]
    assert not check_floor(history(*dead, fault(FELT)), 1, 2, sheltered=[0]).passed


def test_floor_looks_between_two_faults() -> None:
    two = (fault(FELT), fault(FELT, at=205, healed=215, name="again"))
    found = check_floor(history(*ENOUGH, *two), 1, 1)
    assert not found.passed
    assert "before again" in found.examples[0]


# -- bypass, back to normal, stepped down


def test_bypass_innocent_and_guilty() -> None:
    used = {"http": 1000, "raft": 1}
    assert check_bypass(0, used).passed
    assert not check_bypass(1, used).passed
    found = check_bypass(0, used | {"raft": 0})
    assert not found.passed, "nobody used the proxies of that plane"
    assert "raft" in found.examples[0]
    assert not check_bypass(0, {}).passed


def test_alive_innocent_though_a_killed_one_came_back() -> None:
    assert check_alive(
        {"broker-1": 7, "broker-2": 8}, {"broker-1": 9, "broker-2": 8}, {"broker-1"}
    ).passed


@pytest.mark.parametrize("after", [{"broker-1": 9}, {"broker-1": None}, {}])
def test_alive_guilty_of_ending_by_itself(after: dict[str, int | None]) -> None:
    found = check_alive({"broker-1": 7}, after, {"controller-101"})
    assert not found.passed
    assert "broker-1 ended by itself" in found.examples[0]
    assert not check_alive({}, {}, set()).passed, "nobody looked"


def test_logs_innocent_and_guilty_of_a_stack() -> None:
    line = "2026-11-22T01:00:00.000Z critical broker-1 faults fatal: the disk failed\n"
    assert check_logs({"broker-1": line, "broker-2": ""}).passed
    stack = line + "Traceback (most recent call last):\n  File ...\nValueError: 7\n"
    found = check_logs({"broker-1": line, "broker-2": stack})
    assert not found.passed
    assert "broker-2 wrote 1 stacks" in found.examples[0]
    assert not check_logs({}).passed, "nobody looked"


def test_back_to_normal_innocent_and_guilty() -> None:
    innocent = check_back_to_normal("cut", 900, 1000, "whole")
    assert (innocent.passed, innocent.figures) == (True, "whole after 0.9 s, limit 1 s")
    assert not check_back_to_normal("cut", 1100, 1000, "whole").passed
    assert check_back_to_normal("cut", 50_000, 1000, "whole").examples == ("whole after 50.0 s",)
    assert not check_back_to_normal("cut", None, 1000, "whole").passed


def test_stepped_down_innocent_and_guilty() -> None:
    assert check_stepped_down(900, 1000).passed
    assert check_stepped_down(90_000, 90_000).figures == "after 90.00 s, limit 90 s"
    assert not check_stepped_down(1100, 1000).passed
    assert not check_stepped_down(None, 1000).passed


# -- rule


def leads(leader: int | None, epoch: int, by: int = 1) -> PartitionLeadership:
    return PartitionLeadership(
        partition=0, leader=leader, epoch=epoch, isr=(1, 2), told_by=by, seen_ms=0
    )


def reign(controller: int, term: int, at: int = 0) -> ControllerTerm:
    return ControllerTerm(controller=controller, term=term, seen_ms=at)


def test_one_ruler_innocent_though_two_brokers_tell_of_different_epochs() -> None:
    told = (leads(1, 0), leads(2, 1, by=2), leads(None, 1), reign(101, 1), reign(102, 2))
    assert check_one_leader_and_controller(history(*told)).passed


def test_one_ruler_guilty_of_two_leaders_in_an_epoch() -> None:
    found = check_one_leader_and_controller(history(leads(1, 1), leads(2, 1, by=2), reign(101, 1)))
    assert found.examples == ("partition 0 epoch 1: leaders [1, 2]",)


def test_one_ruler_guilty_of_two_controllers_in_a_term() -> None:
    found = check_one_leader_and_controller(history(leads(1, 1), reign(101, 1), reign(102, 1)))
    assert found.examples == ("term 1: controllers [101, 102] say they are active",)


def test_one_ruler_guilty_of_having_seen_nothing() -> None:
    assert not check_one_leader_and_controller(history(leads(1, 1))).passed
    assert not check_one_leader_and_controller(history(reign(101, 1))).passed
    assert not check_one_leader_and_controller(history(leads(None, 1), reign(101, 1))).passed


def test_churn_innocent_and_guilty() -> None:
    calm = history(reign(101, 1, at=50), reign(102, 2, at=150), reign(101, 3, at=250))
    assert check_churn(calm, fault(FELT), 1).passed
    storm = history(*(reign(101 + n % 2, n, at=150 + n) for n in range(5)))
    assert not check_churn(storm, fault(FELT), 3).passed
    long = check_churn(storm, fault(FELT, healed=100_100), 5)
    assert (long.passed, long.figures) == (True, "5 new terms in 100.0 s, at most 5")
    assert not check_churn(history(), fault(FELT), 3).passed, "nothing was seen"


def wrote(what: str, *, ok: bool = True) -> MetadataWrite:
    return MetadataWrite(due_ms=0, answered_ms=1, ok=ok, what=what)


WRITES = (wrote("create a"), wrote("create b"), wrote("delete b"))


def test_topics_innocent() -> None:
    unknown = wrote("create c: POST http://x: TimeoutError", ok=False)
    assert check_topics(history(*WRITES, unknown), frozenset({"a", "c"})).passed


def test_topics_guilty_of_losing_a_creation() -> None:
    assert "a was created and is gone" in check_topics(history(*WRITES), frozenset()).examples[0]


def test_topics_guilty_of_a_deletion_undone() -> None:
    found = check_topics(history(*WRITES), frozenset({"a", "b"}))
    assert "b was deleted and is back" in found.examples[0]


def test_topics_guilty_of_having_nothing_to_judge() -> None:
    assert not check_topics(history(wrote("create a")), frozenset({"a"})).passed


def test_controllers_agree_innocent() -> None:
    same = {"next_offset": 7, "topics": 2}
    assert check_controllers_agree({101: same, 102: dict(same)}).passed


def test_controllers_agree_guilty_of_one_that_applied_something_else() -> None:
    found = check_controllers_agree({101: {"next_offset": 7}, 102: {"next_offset": 8}})
    assert not found.passed
    assert "controller 102" in found.examples[0]


def test_controllers_agree_guilty_when_nobody_can_be_compared() -> None:
    assert not check_controllers_agree({101: {"next_offset": 7}}).passed
    assert not check_controllers_agree({}).passed


def state(value: str | None, index: int = 9, offset: int = 4) -> dict[str, object]:
    said = {"index": index, "next_offset": offset, "value": value}
    return {"applied_index": index, "state_hash": said}


def test_same_history_innocent() -> None:
    states = {101: state("a"), 102: state("a"), 103: state("a")}
    assert check_same_history(states, 3).passed


def test_invariant_r12_guilty_of_one_different_batch() -> None:
    found = check_same_history({101: state("a"), 102: state("b"), 103: state("a")}, 3)
    assert not found.passed
    assert "[102]" in " ".join(found.examples)
    assert not check_same_history({101: state("a"), 102: state("a", offset=5)}, 2).passed


def test_same_history_guilty_of_proving_nothing() -> None:
    assert not check_same_history({}, 3).passed
    assert not check_same_history({101: state("a"), 102: state("a")}, 3).passed
    assert not check_same_history({101: state(None), 102: state(None)}, 2).passed
    assert not check_same_history({101: {"state_hash": None}, 102: state("a")}, 2).passed


def test_the_common_index_is_what_everybody_has_applied() -> None:
    assert common_index({101: state("a", 9), 102: state("a", 7)}) == 7
    assert common_index({101: state("a", 9), 102: {}}) is None
    assert common_index({}) is None


# -- what readers saw


def saw(offset: int, *lines: Line, refusal: str = "") -> Observation:
    return Observation(
        broker=1,
        partition=0,
        offset=offset,
        sent_ms=0,
        answered_ms=1,
        lines=lines,
        refusal=refusal,
    )


def test_seen_stays_innocent() -> None:
    assert check_seen_stays(history(saw(0, *LINES[:2]), saw(2, LINES[2])), served(LINES)).passed


def test_seen_stays_guilty_of_taking_a_record_back() -> None:
    found = check_seen_stays(history(saw(0, *LINES[:3])), served(LINES[:2]))
    assert not found.passed
    assert "offset 2 was seen and is gone" in found.examples[0]


def test_seen_stays_guilty_of_changing_a_record() -> None:
    other = [LINES[0], Line(1, *RECORDS[5])]
    assert not check_seen_stays(history(saw(0, *LINES[:2])), served(other)).passed


def test_seen_stays_guilty_of_skipping_one() -> None:
    found = check_seen_stays(history(saw(0, LINES[0], LINES[2])), served(LINES))
    assert "offset 2 where 1 was due" in found.examples[0]


def test_seen_stays_guilty_of_refusing_an_offset_of_the_tail() -> None:
    found = check_seen_stays(history(saw(0, LINES[0]), saw(1, refusal="400")), served(LINES))
    assert not found.passed


def test_seen_stays_guilty_of_reading_nothing() -> None:
    assert not check_seen_stays(history(), served(LINES)).passed


# -- unknown outcomes


def test_unknown_ran_innocent() -> None:
    assert check_unknown_ran(history(lost(3, unknown=True)), served(LINES)).passed


def test_unknown_ran_guilty_when_none_had_been_written() -> None:
    assert not check_unknown_ran(history(lost(3, unknown=True)), served(LINES[:3])).passed
    assert not check_unknown_ran(history(lost(3, unknown=False)), served(LINES)).passed


def test_a_value_sent_once_and_refused_must_not_be_in_the_log() -> None:
    found = check_repeats(history(lost(3, unknown=False)), served([LINES[3]]))
    assert not found.passed
    assert "1 by the system" in found.figures


def test_a_value_sent_once_of_unknown_outcome_must_not_be_there_twice() -> None:
    once = history(lost(3, unknown=True))
    assert check_repeats(once, served([LINES[3]])).passed
    assert not check_repeats(once, served([LINES[3], LINES[3]])).passed


# -- replicas


def test_replicas_innocent() -> None:
    assert check_replicas(served(LINES), [served(LINES, 1), served(LINES, 3)], {0: 2}).passed


def test_replicas_guilty_of_one_that_is_behind() -> None:
    found = check_replicas(served(LINES), [served(LINES, 1), served(LINES[:4], 3)], {0: 2})
    assert "broker 3: 4 lines on disk, 6 served, the first difference at 4" in found.examples[0]


def test_replicas_guilty_of_one_that_holds_something_else() -> None:
    other = [*LINES[:3], Line(3, *RECORDS[5]), *LINES[4:]]
    found = check_replicas(served(LINES), [served(LINES, 1), served(other, 3)], {0: 2})
    assert "the first difference at 3" in found.examples[0]


def test_replicas_guilty_of_a_missing_one() -> None:
    found = check_replicas(served(LINES), [served(LINES, 1), Reading(3, {})], {0: 2})
    assert "partition 0 has 1 replicas, not 2" in found.examples[0]


def test_replicas_guilty_of_holding_nothing() -> None:
    assert not check_replicas(served([]), [served([], 1)], {0: 1}).passed


# -- groups


def given(*offsets: int, partition: int = 0, at: int = 1) -> GroupRead:
    return GroupRead(
        member="m", partition=partition, offsets=offsets, sent_ms=at, answered_ms=at + 1
    )


def committed(next_offset: int, at: int = 1) -> GroupCommit:
    return GroupCommit(member="m", partition=0, next_offset=next_offset, answered_ms=at)


def test_nothing_skipped_innocent_though_a_doubtful_member_was_given_some_again() -> None:
    found = check_nothing_skipped(history(given(0, 1), given(1, 2), given(3, 4)), {0: 4})
    assert found.passed
    assert "1 given again" in found.figures


def test_nothing_skipped_guilty_of_a_hole_below_the_commit() -> None:
    found = check_nothing_skipped(history(given(0, 1), given(3)), {0: 4})
    assert not found.passed
    assert "1 records up to 4 were given to nobody, the first at 2" in found.examples[0]


def test_nothing_skipped_guilty_of_another_partitions_records() -> None:
    assert not check_nothing_skipped(history(given(0, 1, partition=1)), {0: 2}).passed


def test_nothing_skipped_guilty_of_committing_nothing() -> None:
    assert not check_nothing_skipped(history(given(0)), {0: 0}).passed
    assert not check_nothing_skipped(history(given(0)), {}).passed


def test_commits_stay_innocent_and_guilty() -> None:
    commits = (committed(2), committed(4))
    assert check_commits_stay(history(*commits), {0: 4}).passed
    assert check_commits_stay(history(*commits), {0: 5}).passed, "one of unknown outcome"
    found = check_commits_stay(history(*commits), {0: 2})
    assert not found.passed
    assert "4 was acknowledged, 2 is committed" in found.examples[0]
    assert not check_commits_stay(history(*commits), {}).passed
    assert not check_commits_stay(history(), {0: 4}).passed


def test_commits_stay_guilty_of_giving_a_committed_record_again() -> None:
    before = (given(0, 1, at=1), committed(2, at=5))
    assert check_commits_stay(history(*before, given(2, at=6)), {0: 3}).passed
    assert check_commits_stay(history(*before, given(1, at=5)), {0: 3}).passed, "sent before"
    found = check_commits_stay(history(*before, given(1, 2, at=6)), {0: 3})
    assert not found.passed
    assert "was given 1 after 2 had been committed" in found.examples[0]


def test_read_on_innocent_and_guilty() -> None:
    both = (given(0, 1, at=50), committed(2, at=50))
    assert check_read_on(40, history(*both), 2).passed
    assert not check_read_on(60, history(*both), 1).passed
    assert not check_read_on(40, history(both[0]), 1).passed, "read, and never committed"


# -- the file


def test_every_event_has_a_line_in_the_history_file() -> None:
    events = [fault(FELT), leads(1, 0), reign(101, 1), Note(at_ms=1, text="x"), saw(0, LINES[0])]
    lines = [to_line(event, RECORDS) for event in events]  # type: ignore[arg-type]
    assert all(line.endswith(b"}\n") and line.count(b"\n") == 1 for line in lines)
    assert b'"effects":[{"what":"term","before":1,"after":2}]' in lines[0]
    assert b'"lines":[[0,"\\"k\\"","{\\"n\\":0}"]]' in lines[-1]


def test_the_guide_names_the_keys_of_the_history_file() -> None:
    """Users read the file by these keys, whatever the classes are called."""
    lines = [to_line(event, RECORDS) for event in (leads(1, 0), reign(101, 1), saw(0, LINES[0]))]
    keys = [line.split(b'"')[1].decode() for line in lines]
    assert keys == ["leadership", "reign", "observation"]
    guide = Path("docs/guides/chaos.md").read_text(encoding="utf-8")
    named = ("unacknowledged", "fault", "metadatawrite", "leadership", "reign", "observation")
    assert set(named) <= set(LINE_KEYS.values())
    assert [key for key in named if f"`{key}`" not in guide] == []
