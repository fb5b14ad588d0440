"""What enters the log and what is acknowledged over changes of leader: rules M2 and M3, and the
defects of the library that lose acknowledged entries."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from raft_metadata.common.errors import ErrorCode, Outcome
from raft_metadata.common.ids import NodeId
from raft_metadata.quorum.config import MAX_PAYLOAD_BYTES, MAX_QUEUED
from raft_metadata.quorum.snapshots import SnapshotHeader, frame
from tests.support.quorum_sim import CLOCK, CLUSTER, Machine, Sim, Voter, indexes, quorum_world
from tests.support.raising_faults import Died

__all__ = ["quorum_world"]
pytestmark = pytest.mark.usefixtures("quorum_world")


def depose(sim: Sim, voter: Voter) -> None:
    """A vote request of a higher term, from somebody whose log loses."""
    other = next(node for node in sim.ids if node != voter.node_id)
    request = {
        "type": "request_vote",
        "term": voter.term + 1,
        "last_log_index": 0,
        "last_log_term": 0,
        "stamp": sim.stamp(other, voter.node_id),
    }
    voter.hear(other, request)
    assert not voter.leads


# ---------------------------------------------------------------- rule M2


def test_rule_m2_what_was_queued_in_one_reign_never_enters_another() -> None:
    sim = Sim(seed=9)
    a = sim.ids[0]
    sim.start()
    leader = sim.lead(a)
    answers = [leader.submit(b"old%d" % number) for number in range(MAX_QUEUED)]
    depose(sim, leader)
    sim.lead(a)  # elected again before its queue was looked at
    assert sim.commit(a, b"new").acknowledged
    assert {answer.code for answer in answers} == {ErrorCode.NOT_CONTROLLER}
    sim.pass_time(0.3)
    assert [voter.machine.payloads for voter in sim.up.values()] == [[b"new"]] * 3


def test_rule_m2_a_decision_of_another_term_is_refused() -> None:
    sim = Sim(seed=9)
    sim.start()
    leader = sim.lead(sim.ids[0])
    for term in (leader.term - 1, leader.term + 1):
        answer = leader.submit(b"x", term)
        assert answer.code is ErrorCode.NOT_CONTROLLER
        assert answer.error is not None
        assert answer.error.outcome is Outcome.NOT_WRITTEN
    assert sim.commit(sim.ids[0], b"y").acknowledged


def test_rule_m2_64_at_once_in_steady_state_are_all_accepted_in_order() -> None:
    sim = Sim(seed=2)
    sim.start()
    leader = sim.lead(sim.ids[0])
    answers = [leader.submit(b"%d" % number) for number in range(64)]
    sim.until(lambda: all(answer.done() for answer in answers), 1)
    assert [answer.result for answer in answers] == list(range(1, 65))


def test_rule_m2_active_only_after_the_own_terms_first_entry_is_applied() -> None:
    sim = Sim(seed=2)
    a, b, c = sim.ids
    sim.start()
    sim.drop = lambda _s, _t, m: m["type"] == "next_node_idx"  # elected, nothing acknowledged
    assert sim.until(lambda: sim.leaders, 5)
    leader = sim.up[sim.leaders[0]]
    sim.step()
    sim.step()
    assert not leader.activations
    sim.drop = lambda *_: False
    assert sim.until(lambda: any(voter.activations for voter in sim.up.values()), 5)
    active = next(voter for voter in sim.up.values() if voter.activations)
    term, index = active.activations[0]
    assert term == active.term
    assert active.raft.journal.at(index) == (b"\1", index, term)
    assert {a, b, c} == set(sim.up)


def test_rule_m2_the_term_is_checked_again_at_the_append() -> None:
    sim = Sim(seed=2)
    sim.start()
    leader = sim.lead(sim.ids[0])
    answer = leader.submit(b"old")
    leader.raft.adopt_term(leader.term + 1, "somebody")  # between the queue and the append
    leader.raft.append_queued()
    assert answer.code is ErrorCode.NOT_CONTROLLER
    assert leader.raft.journal.last[0] != b"\0old"


def test_rule_m2_an_older_terms_first_entry_activates_nobody() -> None:
    sim = Sim(seed=2)
    sim.start()
    sim.lead(sim.ids[0])
    sim.kill()
    sim.start()
    active = sim.active_leader()
    assert active is not None
    assert active.events == [f"activated {active.term}"]


# ---------------------------------------------------------------- rule M3


def test_rule_m3_appended_then_deposed_is_unknown() -> None:
    sim = Sim(seed=9)
    a, b, c = sim.ids
    sim.start()
    leader = sim.lead(a)
    sim.drop = lambda _s, to, _m: to == a  # it is heard, and hears nothing
    answer = leader.submit(b"X")
    assert sim.until(answer.done, 3)
    assert answer.code is ErrorCode.OUTCOME_UNKNOWN
    assert answer.error is not None
    assert answer.error.outcome is Outcome.UNKNOWN
    sim.drop = lambda *_: False
    assert sim.active_leader() is not None
    assert sim.until(lambda: all(v.machine.payloads == [b"X"] for v in sim.up.values()), 5)
    assert leader.events[:2] == ["activated 1", "deactivated"]
    assert {b, c} < set(sim.up)


def test_rule_m3_a_stopping_leader_answers_everybody() -> None:
    sim = Sim(seed=9)
    sim.start()
    leader = sim.lead(sim.ids[0])
    sim.drop = lambda *_: True
    appended = leader.submit(b"appended")
    sim.step()
    queued = leader.submit(b"queued")
    leader.raft.transport.destroy = lambda: None
    leader.raft.close()
    assert appended.code is ErrorCode.OUTCOME_UNKNOWN
    assert queued.code is ErrorCode.NOT_CONTROLLER


def test_a_full_queue_and_a_large_payload_are_surely_not_appended() -> None:
    sim = Sim(seed=9)
    sim.start()
    leader = sim.lead(sim.ids[0])
    large = leader.submit(b"x" * (MAX_PAYLOAD_BYTES + 1))
    assert large.code is ErrorCode.INVALID_REQUEST
    for _ in range(MAX_QUEUED):
        leader.submit(b"q")
    assert leader.submit(b"one more").code is ErrorCode.QUEUE_FULL
    follower = sim.up[sim.ids[1]]
    assert follower.submit(b"x").code is ErrorCode.NOT_CONTROLLER


def test_defect_13_what_no_majority_has_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raft_metadata.quorum.raft_node.MAX_UNCOMMITTED", 50)
    sim = Sim(seed=9)
    sim.start()
    leader = sim.lead(sim.ids[0])
    sim.drop = lambda _s, _t, m: m["type"] == "next_node_idx"
    answers = []
    for _ in range(80):
        answers.append(leader.submit(b"x"))
        sim.step()
    assert leader.leads
    codes = [answer.code for answer in answers if answer.done()]
    assert set(codes) == {ErrorCode.QUEUE_FULL}
    assert 25 < len(codes) < 35
    sim.drop = lambda *_: False
    assert sim.until(lambda: all(answer.done() for answer in answers), 2), "nobody hangs"
    assert leader.submit(b"y").code is None


def test_defect_14_a_turn_is_one_message_and_its_commit_is_told_at_once() -> None:
    sim = Sim(seed=9)
    a = sim.ids[0]
    sim.start()
    leader = sim.lead(a)
    sim.pass_time(0.3)
    sim.said.clear()
    started = CLOCK.time
    answers = [leader.submit(b"%d" % number) for number in range(100)]
    assert sim.until(lambda: all(answer.done() for answer in answers), 1)
    assert CLOCK.time - started < 0.04, "no waiting for a heartbeat"
    sim.step()
    appends = [m for sender, _, m in sim.said if sender == a and m["type"] == "append_entries"]
    assert sum(bool(m["entries"]) for m in appends) == 2, "one to each follower"
    assert all(
        voter.raft.raftCommitIndex == leader.raft.journal.last[1] for voter in sim.up.values()
    )


@pytest.mark.parametrize(
    "said",
    [
        ["status"],
        ["add", "voter-0000000009:0"],
        ["remove", "voter-0000000003:0"],
        ["set_version", 1],
        ["transfer"],
        {"type": "apply_command", "command": b"\0x"},
    ],
    ids=lambda said: str(said[0] if isinstance(said, list) else said["type"]),
)
def test_defect_17_no_peer_is_an_administrator(said: Any) -> None:
    sim = Sim(seed=9)
    a, b, _ = sim.ids
    sim.start()
    leader = sim.lead(a)
    if isinstance(said, dict):
        said["stamp"] = sim.stamp(b, a)
    sim.said.clear()
    dropped: list[NodeId] = []
    leader.raft.links.drop = dropped.append
    leader.hear(b, said)
    assert dropped == [b]
    assert not sim.said, "answered"
    assert len(leader.raft.otherNodes) == 2
    assert sim.commit(a, b"y").acknowledged
    assert leader.machine.payloads == [b"y"]


def test_the_largest_payload_passes() -> None:
    sim = Sim(seed=9)
    sim.start()
    sim.lead(sim.ids[0])
    payload = b"x" * MAX_PAYLOAD_BYTES
    assert sim.commit(sim.ids[0], payload).acknowledged
    sim.pass_time(0.3)
    assert [voter.machine.payloads for voter in sim.up.values()] == [[payload]] * 3


# ---------------------------------------------------------------- acknowledged means kept


def test_defect_2_nothing_is_acknowledged_before_it_is_on_disk() -> None:
    sim = Sim(seed=5)
    a, *others = sim.ids
    sim.start()
    sim.lead(a)

    def platter(node: NodeId) -> bytes:
        return bytes(sim.disk.synced[f"{sim.directory(node)}/journal"].durable)

    seen = []

    def drop(sender: NodeId, _to: NodeId, message: dict[str, Any]) -> bool:
        if message["type"] == "next_node_idx" and message["success"]:
            held = sim.up[sender].raft.journal.entries[-1][0]
            seen.append(held in platter(sender))
        return False

    sim.drop = drop
    for number in range(20):
        answer = sim.commit(a, b"payload-%d" % number)
        assert answer.acknowledged
        assert b"payload-%d" % number in platter(a)
    assert len(seen) >= 20
    assert all(seen)
    assert others


def test_defect_2_the_leader_counts_its_own_copy_only_once_it_is_on_disk() -> None:
    sim = Sim(seed=5)
    a = sim.ids[0]
    sim.start()
    voter = sim.up[a]
    journal = voter.raft.journal
    sim.kill(sim.ids[2])  # else two other disks are a majority
    voter.flusher.steps = lambda: 7  # the other disk is quicker
    for other in sim.up.values():
        other.raft.election_deadline = CLOCK.time + (0 if other is voter else 2)
    acknowledged_first = 0
    while not voter.activations:
        sim.step()
        assert voter.raft.raftCommitIndex <= max(1, journal.durable_index)
        matched = [voter.raft.match_index(other) for other in voter.raft.otherNodes]
        acknowledged_first += voter.leads and max(matched) > journal.durable_index
    assert acknowledged_first > 0, "the other's answer was there before its own disk's"
    assert sim.commit(a, b"x").acknowledged


def test_defect_4_the_acknowledgement_of_a_snapshot_claims_only_the_snapshot() -> None:
    sim = Sim(seed=5)
    a, b, _ = sim.ids
    sim.write_log(a, 1, [1] * 7)  # up to 8; nobody says that more than 5 is right
    sim.start(a)
    voter = sim.up[a]
    header = SnapshotHeader(CLUSTER, (b"\0x", 4, 1), (b"\0x", 5, 1))
    state = Machine()
    data = b"".join(frame(msgspec.json.encode(header), state.chunks(state.capture())))
    for part in ((data, True, False, 5), (b"", False, True, 5)):
        message = {"type": "append_entries", "term": 1, "commit_index": 9, "serialized": part}
        voter.hear(b, {**message, "stamp": sim.stamp(b, a)})
    assert voter.raft.journal.last[1] == 8, "Raft keeps the suffix that agrees"
    answers = [m for s, _, m in sim.said if s == a and m["type"] == "next_node_idx"]
    assert [(m["success"], m["next_node_idx"]) for m in answers] == [(True, 6)]


def test_defect_a_a_crash_around_a_snapshot_keeps_what_was_acknowledged_after_it() -> None:
    sim = Sim(seed=5)
    a = sim.ids[0]
    sim.start()
    leader = sim.lead(a)
    for number in range(5):
        sim.commit(a, b"%d" % number)
    writes: list[Any] = []
    sim.run_snapshot = writes.append
    leader.raft.forceLogCompaction()
    sim.step()
    for number in range(5, 10):
        sim.commit(a, b"%d" % number)
    writes[0]()  # renamed; killed before the journal is told
    sim.kill(a)
    sim.start(a)
    voter = sim.up[a]
    assert indexes(voter.raft.journal.entries)[-1] == 12
    assert len(voter.raft.journal.entries) == 7, "prefix dropped, suffix kept"
    assert voter.machine.payloads == [b"%d" % number for number in range(5)]
    assert sim.active_leader() is not None
    sim.pass_time(1)
    assert voter.machine.payloads == [b"%d" % number for number in range(10)]


def test_defect_b_a_snapshot_does_not_commit_an_unverified_tail() -> None:
    sim = Sim(seed=11)
    a, b, c = sim.ids
    sim.start()
    old = sim.lead(a)
    for number in range(5):
        sim.commit(a, b"%d" % number)
    sim.cut = {frozenset((a, b)), frozenset((a, c))}
    lost = [old.submit(b"lost-%d" % number) for number in range(50)]
    assert sim.until(lambda: [n for n in sim.leaders if n != a], 5)
    new = sim.up[next(n for n in sim.leaders if n != a)]
    assert sim.until(lambda: new.activations, 3)
    for number in range(100):
        new.submit(b"new-%d" % number)
    sim.pass_time(1.5)
    new.raft.forceLogCompaction()
    sim.pass_time(0.5)
    assert new.raft.journal.entries[0][1] > 60
    sim.cut = set()
    assert sim.until(lambda: old.raft.applied_index == new.raft.applied_index, 10)
    assert old.machine.applied == new.machine.applied
    assert {answer.code for answer in lost} == {ErrorCode.OUTCOME_UNKNOWN}
    assert not [p for p in new.machine.payloads if p.startswith(b"lost")]


def test_defect_6_a_part_of_a_snapshot_commits_nothing() -> None:
    sim = Sim(seed=11)
    a, b, _ = sim.ids
    sim.write_log(a, 1, [1, 1, 1])
    sim.start(a)
    voter = sim.up[a]
    part = {
        "type": "append_entries",
        "term": 2,
        "commit_index": 99,
        "serialized": (b"some of it", True, False, 90),
        "stamp": sim.stamp(b, a),
    }
    voter.hear(b, part)
    sim.step()
    assert voter.raft.raftCommitIndex == 1
    assert voter.machine.applied == []


def test_defect_6_a_snapshot_older_than_the_commit_index_is_refused() -> None:
    sim = Sim(seed=11)
    a, b, _ = sim.ids
    sim.start()
    sim.lead(b)
    for number in range(5):
        sim.commit(b, b"%d" % number)
    sim.pass_time(0.3)
    voter = sim.up[a]
    before, applied = indexes(voter.raft.journal.entries), list(voter.machine.applied)
    sim.said.clear()
    part = {
        "type": "append_entries",
        "term": voter.term,
        "commit_index": 3,
        "serialized": (b"", True, True, 3),
        "stamp": sim.stamp(b, a),
    }
    voter.hear(b, part)
    assert indexes(voter.raft.journal.entries) == before
    assert voter.machine.applied == applied
    answer = next(m for s, _, m in sim.said if s == a)
    assert (answer["reset"], answer["next_node_idx"]) == (True, voter.raft.raftCommitIndex + 1)


def test_defect_7_a_late_append_truncates_nothing() -> None:
    sim = Sim(seed=12)
    a, b, _ = sim.ids
    sim.start()
    sim.lead(b)
    for number in range(5):
        sim.commit(b, b"%d" % number)
    sim.pass_time(0.3)
    voter = sim.up[a]
    before = indexes(voter.raft.journal.entries)
    sim.said.clear()
    late = {
        "type": "append_entries",
        "term": voter.term,
        "commit_index": 3,
        "entries": [list(voter.raft.journal.at(3))],
        "prevLogIdx": 2,
        "prevLogTerm": voter.raft.journal.at(2)[2],
        "stamp": sim.stamp(b, a),
    }
    voter.hear(b, late)
    assert indexes(voter.raft.journal.entries) == before
    answer = next(m for s, _, m in sim.said if s == a)
    assert (answer["success"], answer["next_node_idx"]) == (True, 4), "only what was compared"


def test_defect_8_a_divergent_follower_far_behind_catches_up() -> None:
    sim = Sim(seed=13)
    a, b, c = sim.ids
    sim.start()
    old = sim.lead(a)
    sim.cut = {frozenset((a, b)), frozenset((a, c))}
    for number in range(20):
        old.submit(b"divergent-%d" % number)
    sim.pass_time(1.2)
    leader = sim.up[next(n for n in sim.leaders if n != a)]
    for number in range(4000):
        leader.submit(b"%d" % number + b"." * 2000)
        if number % 500 == 0:
            sim.pass_time(0.05)
    sim.pass_time(0.5)
    sim.cut = set()
    assert sim.until(lambda: old.raft.applied_index == leader.raft.applied_index, 3), "livelock"
    assert old.machine.applied == leader.machine.applied


def test_a_follower_that_is_too_far_behind_gets_the_snapshot() -> None:
    sim = Sim(seed=14, snapshot_min_entries=20)
    a, b, c = sim.ids
    sim.start()
    leader = sim.lead(a)
    sim.kill(c)
    for number in range(200):
        leader.submit(b"%d" % number + b"." * 2000)
        if number % 20 == 0:
            sim.step()
    sim.pass_time(0.5)
    assert leader.raft.journal.entries[0][1] > 100
    sim.start(c)
    behind = sim.up[c]
    assert sim.until(lambda: behind.raft.applied_index == leader.raft.applied_index, 5)
    assert behind.machine.applied == leader.machine.applied
    assert behind.raft.raftCommitIndex == leader.raft.raftCommitIndex
    sim.kill(c)
    sim.start(c)  # what was installed is durable
    assert len(sim.up[c].machine.applied) > 100
    assert b in sim.up


def test_no_spinning_while_a_snapshot_is_written() -> None:
    sim = Sim(seed=3)
    a, _, c = sim.ids
    sim.start()
    leader = sim.lead(a)
    sim.kill(c)
    for number in range(5):
        sim.commit(a, b"%d" % number)
    leader.raft.forceLogCompaction()
    sim.pass_time(0.2)
    # The snapshot is gone (say, being replaced): there is nothing to send.
    sim.disk.unlink(f"{sim.directory(a)}/snapshot")
    sim.said.clear()
    sim.start(c)
    sim.pass_time(1)
    empty = [m for s, to, m in sim.said if (s, to) == (a, c) and m["type"] == "append_entries"]
    assert 5 <= len(empty) < 100, f"{len(empty)} messages in one second"


def test_defect_12_a_raising_state_machine_ends_the_process_and_applies_nothing_twice() -> None:
    sim = Sim(seed=1)
    sim.start()
    leader = sim.lead(sim.ids[0])
    calls: list[int] = []

    def boom(index: int, term: int, payload: bytes) -> object:
        calls.append(index)
        raise ValueError("boom")

    leader.machine.apply = boom  # type: ignore[method-assign]
    leader.submit(b"x")
    with pytest.raises(Died, match="apply failed"):
        sim.pass_time(1)
    assert len(calls) == 1


def test_leader_silence_is_told() -> None:
    sim = Sim(seed=1)
    a, b, c = sim.ids
    sim.start()
    leader = sim.lead(a)
    sim.pass_time(1)
    assert leader.raft.leader_silence_s() < 0.25
    assert sim.up[b].raft.leader_silence_s() < 0.25
    sim.cut = {frozenset((a, b)), frozenset((b, c))}
    start = CLOCK.time
    sim.pass_time(0.8)
    assert sim.up[b].raft.leader_silence_s() >= CLOCK.time - start - 0.01
