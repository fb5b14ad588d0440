"""Rule Q7 (pre-vote), terms and votes, on real nodes under a virtual clock."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from raft_metadata.common.disk import read_checked
from raft_metadata.common.ids import NodeId
from raft_metadata.quorum.elections import DiskWatch
from raft_metadata.quorum.journal import DurableJournal, Vote
from tests.support.doors.quorum import pre_vote_of
from tests.support.quorum_sim import CLOCK, Sim, quorum_world
from tests.support.raising_faults import RaisingFaults
from tests.support.simulated_disk import SimulatedDisk

__all__ = ["quorum_world"]
pytestmark = pytest.mark.usefixtures("quorum_world")


def test_three_voters_elect_and_commit() -> None:
    sim = Sim()
    sim.start()
    leader = sim.active_leader()
    assert leader is not None
    assert sim.commit(leader.node_id, b"x").result == 1
    sim.pass_time(0.3)
    assert [voter.machine.payloads for voter in sim.up.values()] == [[b"x"]] * 3


def test_one_voter_alone_leads_at_once() -> None:
    sim = Sim(voters=1)
    sim.start()
    assert sim.active_leader(0.1) is not None
    assert sim.commit(sim.ids[0], b"x", 0.1).acknowledged


def test_rule_q7_longer_log_in_a_lower_term_is_elected() -> None:
    sim = Sim(seed=7)
    a, b, _ = sim.ids
    sim.write_log(a, 5, [1, 2, 5, 5])
    sim.write_log(b, 6, [1, 2])
    sim.start(a, b)
    leader = sim.active_leader(20)
    assert leader is not None
    assert leader.node_id == a


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(min_value=0, max_value=10**6))
def test_rule_q7_any_connected_majority_elects(seed: int) -> None:
    rng = random.Random(seed)
    sim = Sim(voters=rng.choice((3, 5)), seed=seed)
    for node in sim.ids:
        terms = sorted(rng.randint(1, 6) for _ in range(rng.randint(0, 6)))
        sim.write_log(node, max(terms, default=0) + rng.randint(0, 4), terms)
    sim.start(*rng.sample(sim.ids, len(sim.ids) // 2 + 1))
    assert sim.active_leader(20) is not None


def test_rule_q7_a_higher_term_is_durable_and_no_leader_contact() -> None:
    sim = Sim(seed=8)
    a, b, c = sim.ids
    sim.start()
    term = sim.lead(a).term
    sim.cut = {frozenset((a, b)), frozenset((a, c))}
    sim.pass_time(0.2)
    voter = sim.up[b].raft
    before = (voter.contact.when, voter.election_deadline)
    voter.transport.adopt(voter.transport.voter(c), term + 3)
    assert (voter.contact.when, voter.election_deadline) == before
    assert voter.raftCurrentTerm == term + 3
    body = read_checked(sim.disk, f"{sim.directory(b)}/vote.json")
    assert msgspec.json.decode(body or b"", type=Vote) == Vote(term + 3, None)


def test_rule_q7_questions_alone_depose_nobody() -> None:
    sim = Sim(seed=8)
    a, _, c = sim.ids
    sim.start()
    leader = sim.lead(a)
    sim.pass_time(1)
    term = leader.term
    sim.cut = {frozenset((a, c))}  # c hears no leader, and asks b again and again
    sim.pass_time(8)
    assert sim.leaders == [a]
    assert leader.term == term
    sim.cut = set()
    sim.pass_time(2)
    assert sim.leaders == [a]
    assert leader.term == term


def test_rule_q7_consent_ends_with_the_next_word_of_a_leader() -> None:
    """c hears nobody, asks, and b consents; the answer comes after the leader was heard again."""
    sim = Sim(seed=8)
    a, b, c = sim.ids
    sim.start()
    leader = sim.lead(a)
    sim.pass_time(1)
    term, asker = leader.term, sim.up[c]
    for early in (False, True):
        pre_vote_of(asker.raft).request(term, asker.raft.journal.last)
        answer = {"type": "pre_vote_answer", "term": term, "granted": True}
        if early:
            asker.hear(b, {**answer, "stamp": sim.stamp(b, c)})
        sim.cut = {frozenset((b, c))}
        asker.raft.election_deadline = CLOCK.time + 1
        sim.pass_time(0.3)  # two of a's heartbeats
        if not early:
            asker.hear(b, {**answer, "stamp": sim.stamp(b, c)})
        sim.pass_time(0.3)
        assert pre_vote_of(asker.raft).granted_term == 0
        assert (sim.leaders, leader.term) == ([a], term)


def test_rule_g3_an_answer_that_was_long_under_way_is_no_fresh_majority() -> None:
    """As after a pause of the whole process, with the answers of before in its sockets."""
    sim = Sim(seed=8)
    a, *others = sim.ids
    sim.start()
    leader = sim.lead(a)
    sim.pass_time(1)
    assert leader.raft.leader_silence_s() < 0.2
    late: list[tuple[NodeId, dict[str, Any]]] = []

    def delay(sender: NodeId, to: NodeId, message: dict[str, Any]) -> bool:
        if to == a:
            late.append((sender, dict(message)))
        return to == a

    sim.drop = delay
    start = CLOCK.time
    sim.pass_time(0.8)
    assert {sender for sender, _ in late} == set(others)
    for sender, message in late:
        if message["type"] == "next_node_idx" and message["sent_at"] < start + 0.2:
            leader.hear(sender, message)
    assert leader.leads
    assert leader.raft.leader_silence_s() > 0.5


@pytest.mark.parametrize("takes_over", [False, True])
def test_rule_g3_a_voter_that_hears_its_leader_votes_for_nobody_else(takes_over: bool) -> None:
    """b consented while it heard nobody; c's request comes after a was heard again."""
    sim = Sim(seed=8)
    a, b, c = sim.ids
    sim.start()
    term = sim.lead(a).term
    sim.pass_time(1)
    voter = sim.up[b]
    index, entry_term = voter.raft.journal.last[1:]
    log = {"last_log_index": index, "last_log_term": entry_term}
    request = {"type": "request_vote", "term": term + 1, "takes_over": takes_over, **log}
    sim.said.clear()
    voter.hear(c, {**request, "stamp": sim.stamp(c, b)})
    votes = [to for sender, to, m in sim.said if sender == b and m["type"] == "response_vote"]
    assert votes == ([c] if takes_over else [])
    assert voter.term == term + 1, "rule Q7"


def test_a_leader_that_goes_names_its_successor_who_need_not_wait() -> None:
    sim = Sim(voters=5, seed=8)
    a, b, *_ = sim.ids
    sim.start()
    leader = sim.lead(a)
    sim.pass_time(1)
    leader.raft.transferLeadership(leader.raft.transport.voter(b))
    assert sim.until(lambda: sim.leaders == [b], 0.2)


def test_the_level_of_a_voter_is_forgotten_with_its_process() -> None:
    """Otherwise the level is raised beyond what the returning older version can follow."""
    sim = Sim(seed=8, feature_level_max=2)
    a, b, c = sim.ids
    sim.start()
    leader = sim.lead(a)
    sim.pass_time(1)
    assert leader.raft.feature_levels == {b: 2, c: 2}
    sim.kill(c)
    assert leader.raft.feature_levels == {b: 2}
    sim.settings["feature_level_max"] = 1
    sim.start(c)
    sim.pass_time(0.05)
    assert leader.raft.feature_levels == {b: 2, c: 1}, "told with the connection"


def test_a_cut_off_leader_steps_down_within_a_second() -> None:
    sim = Sim(seed=3)
    a, b, c = sim.ids
    sim.start()
    leader = sim.lead(a)
    sim.pass_time(1)
    sim.cut = {frozenset((a, b)), frozenset((a, c))}
    start = CLOCK.time
    assert sim.until(lambda: not leader.leads, 1.0), "still believes after one second"
    assert leader.events[-1] == "deactivated"
    assert sim.until(lambda: [n for n in sim.leaders if n != a], 2.0)
    assert CLOCK.time - start < 2.0


def test_defect_2_a_leader_whose_disk_hangs_commits_by_the_others_and_gives_way() -> None:
    sim = Sim(seed=5)
    a, b, c = sim.ids
    sim.start()
    leader = sim.lead(a)
    durable = leader.raft.journal.durable_index
    leader.flusher.steps = lambda: 10**9
    assert sim.commit(a, b"x", 1).acknowledged, "the two others have it"
    sim.kill(c)
    answer = sim.commit(a, b"y", 7)
    assert leader.leads, "without its disk there is no majority under anybody"
    assert not answer.done()
    sim.start(c)
    sim.cut = {frozenset((b, c))}  # they hear of each other's votes through nobody
    assert sim.until(answer.done, 3)
    sim.cut = set()
    assert sim.until(lambda: not leader.leads, 10)
    for node, wait_s in ((a, 0), (b, 4), (c, 4)):
        sim.up[node].raft.election_deadline = CLOCK.time + wait_s
    sim.pass_time(3)
    assert not sim.leaders
    assert leader.term == sim.up[b].term, "it does not stand while its disk hangs"
    assert sim.until(lambda: sim.leaders, 5)
    assert leader.raft.journal.durable_index == durable
    leader.flusher.steps = lambda: 0
    for job in leader.flusher.jobs:
        job[:2] = [0, 0]
    sim.commit(sim.leaders[0], b"z")
    assert sim.until(lambda: leader.machine.payloads == [b"x", b"y", b"z"], 5)
    assert leader.raft.journal.is_durable


def test_rule_m7_a_stall_of_our_own_is_no_disk_that_hangs() -> None:
    disk = opened(SimulatedDisk())
    disk.add(b"\1", 1, 0)  # and nobody flushes it
    watch, now = DiskWatch(), 1000.0
    assert not watch.check_for_hang(disk, now)
    now += 30  # stopped, and continued
    for _ in range(40):
        assert not watch.check_for_hang(disk, now)
        now += 0.1
    for _ in range(20):
        now += 0.1
        hangs = watch.check_for_hang(disk, now)
    assert hangs


def opened(disk: SimulatedDisk) -> DurableJournal:
    disk.make_directory("/raft")
    return DurableJournal(disk, "/raft", RaisingFaults())


def test_defect_10_a_vote_sent_twice_counts_once() -> None:
    sim = Sim(voters=5, seed=4)
    a, b, c, *_ = sim.ids
    sim.start(a)
    voter = sim.up[a]
    voter.raft.transport.on_connected(b)
    pre_vote_of(voter.raft).granted_term = voter.term + 1
    voter.raft.election_deadline = 0
    sim.step()
    assert voter.raft.role == "candidate"
    vote = {"type": "response_vote", "term": voter.term, "stamp": sim.stamp(b, a)}
    late = {"type": "response_vote", "term": voter.term - 1, "stamp": sim.stamp(c, a)}
    for _ in range(4):
        voter.hear(b, vote)
        voter.hear(c, late)
    assert voter.raft.role == "candidate"


def test_defect_9_an_answer_of_an_earlier_reign_does_not_count() -> None:
    sim = Sim(seed=5)
    a, b, c = sim.ids
    sim.start()
    leader = sim.lead(a)
    sim.cut = {frozenset((a, b)), frozenset((a, c))}
    answer = leader.submit(b"x")
    sim.step()
    old = {
        "type": "next_node_idx",
        "term": leader.term - 1,
        "next_node_idx": leader.raft.journal.last[1] + 1,
        "reset": False,
        "success": True,
        "stamp": sim.stamp(b, a),
    }
    leader.hear(b, old)
    sim.step()
    assert not answer.done()
    leader.hear(b, {**old, "term": leader.term})
    sim.step()
    assert answer.acknowledged  # the same answer, of this reign


def test_defect_9_a_higher_term_in_an_answer_deposes() -> None:
    sim = Sim(seed=6)
    a, b, _ = sim.ids
    sim.start()
    leader = sim.lead(a)
    message = {
        "type": "next_node_idx",
        "term": leader.term + 4,
        "next_node_idx": 1,
        "reset": False,
        "success": False,
        "stamp": sim.stamp(b, a),
    }
    term = leader.term
    leader.hear(b, message)
    assert not leader.leads
    assert leader.term == term + 4


def test_defect_9_an_old_leader_is_told() -> None:
    sim = Sim(seed=6)
    a, b, c = sim.ids
    sim.start()
    sim.lead(a)
    sim.cut = {frozenset((a, b)), frozenset((a, c))}
    assert sim.until(lambda: [n for n in sim.leaders if n != a], 5)
    follower = sim.up[c if b in sim.leaders else b]
    sim.said.clear()
    message = {
        "type": "append_entries",
        "term": 1,
        "commit_index": 1,
        "entries": [],
        "prevLogIdx": 1,
        "prevLogTerm": 0,
        "stamp": sim.stamp(a, follower.node_id),
    }
    follower.hear(a, message)
    answers = [m for s, to, m in sim.said if (s, to) == (follower.node_id, a)]
    assert [(m["type"], m["term"], m["success"]) for m in answers] == [
        ("next_node_idx", follower.term, False)
    ]
