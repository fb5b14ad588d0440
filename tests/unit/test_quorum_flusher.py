"""The disk beside the loop: what waits for it, what must not, and what it proves (rules M7, Q2,
Q3); on disks of which every sync takes its time."""

from __future__ import annotations

import errno
import random
import threading
from collections.abc import Callable
from typing import Any

import pytest

from raft_metadata.common.ids import NodeId
from raft_metadata.quorum.journal import DurableJournal, ThreadFlusher
from tests.support.doors.quorum import join_thread, pre_vote_of
from tests.support.quorum_sim import CLOCK, STEP_S, Sim, indexes, quorum_world
from tests.support.raising_faults import Died, RaisingFaults
from tests.support.simulated_disk import SimulatedDisk

__all__ = ["quorum_world"]

SLOW_STEPS = int(0.4 / STEP_S)
"""A sync that takes 400 ms."""
world = pytest.mark.usefixtures("quorum_world")


# ---------------------------------------------------------------- rule M7: the loop goes on


@world
@pytest.mark.parametrize("slow", [[1], [2, 3], [1, 2, 3]], ids=["leader", "followers", "all"])
def test_rule_m7_a_slow_disk_delays_commits_and_stalls_no_heartbeat(slow: list[int]) -> None:
    sim = Sim(seed=4)
    a = sim.ids[0]
    sim.start()
    leader = sim.lead(a)
    for node in slow:
        sim.up[NodeId(node)].flusher.steps = lambda: SLOW_STEPS
    term, answers = leader.term, []
    on_the_loop: list[str] = []
    sim.disk.before = lambda _, path: (
        None if path.endswith("/journal") else on_the_loop.append(path)
    )
    end = CLOCK.time + 10
    while CLOCK.time < end:
        answers.append((CLOCK.time, leader.submit(b"%d" % len(answers))))
        sim.step()
        for voter in sim.up.values():
            assert voter.raft.leader_silence_s() < 0.3, "a heartbeat was late"
    sim.pass_time(2)
    assert not on_the_loop, "votes and identity, which the loop writes, are not touched in a reign"
    assert leader.events == [f"activated {term}"], "deposed, or elected again"
    assert {voter.term for voter in sim.up.values()} == {term}
    assert all(answer.acknowledged for _, answer in answers)
    assert sim.up[NodeId(slow[0])].raft.journal.sync_count < 60, "syncs are grouped"


@world
def test_rule_m7_answers_that_wait_for_the_disk_keep_the_leader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sim = Sim(seed=4)
    a, b, c = sim.ids
    sim.start()
    leader = sim.lead(a)
    for node in (b, c):
        sim.up[node].flusher.steps = lambda: 300  # longer than the leader would wait
    answer = leader.submit(b"x")
    sim.pass_time(2.5)
    assert leader.leads
    assert not answer.done()
    assert sim.until(answer.done, 5)
    assert answer.acknowledged


# ---------------------------------------------------------------- what waits


@world
def test_defect_2_an_answer_leaves_after_the_sync_that_covers_it() -> None:
    sim = Sim(seed=5)
    a, b, _ = sim.ids
    sim.start()
    sim.lead(a)
    follower = sim.up[b]
    follower.flusher.steps = lambda: 5
    said: list[int] = []

    def drop(sender: NodeId, _to: NodeId, message: dict[str, Any]) -> bool:
        if sender == b and message["type"] == "next_node_idx" and message["success"]:
            said.append(message["next_node_idx"] - 1)
            assert said[-1] <= follower.raft.journal.durable_index
            content = sim.disk.synced[f"{sim.directory(b)}/journal"]
            assert b"payload-%d." % (said[-1] - 3) in content.durable or said[-1] < 4
        return False

    sim.drop = drop
    for number in range(30):
        sim.up[a].submit(b"payload-%d." % number)
        sim.step()
    sim.pass_time(0.5)
    assert said[-1] == sim.up[a].raft.journal.last[1]
    assert len(set(said)) > 4


@world
def test_defect_2_a_single_voter_acknowledges_what_is_on_its_disk() -> None:
    sim = Sim(voters=1)
    (a,) = sim.ids
    sim.start()
    leader = sim.lead(a)
    leader.flusher.steps = lambda: 5
    answer = leader.submit(b"x")
    for _ in range(3):
        sim.step()
        assert not answer.done()
    assert sim.until(answer.done, 1)
    assert leader.raft.journal.durable_index == leader.raft.journal.last[1]


@world
def test_defect_2_an_earlier_terms_entry_is_not_committed_by_being_on_disks() -> None:
    """Raft's figure 8: a's entry 3 is on two disks, and c, whose last term is higher, wins next.

    What commits it is a's own first entry on a majority of disks, and a's disk has not got it.
    """
    sim = Sim(seed=5)
    a, b, c = sim.ids
    for node, terms in ((a, [1, 3]), (b, [1]), (c, [1, 4])):
        sim.write_log(node, 4, terms)
    sim.start(a, b)
    leader = sim.up[a]
    leader.flusher.steps = lambda: 30
    for node, wait_s in ((a, 0), (b, 5)):
        sim.up[node].raft.election_deadline = CLOCK.time + wait_s
    assert sim.until(lambda: sim.up[b].raft.journal.durable_index == 4, 2)
    sim.pass_time(3 * STEP_S)
    assert leader.raft.match_index(sim.up[a].raft.transport.voter(b)) == 4
    assert leader.raft.journal.durable_index == 3
    assert leader.raft.raftCommitIndex == 1
    assert not leader.machine.applied
    sim.kill(a)  # with entry 4 in flight
    sim.cut = {frozenset((a, b)), frozenset((b, c))}
    sim.start(a, c)
    assert sim.active_leader(20) is sim.up[c]
    sim.cut = set()
    assert sim.until(lambda: len({len(v.machine.applied) for v in sim.up.values()}) == 1, 10)
    assert all((3, 4, b"x") in voter.machine.applied for voter in sim.up.values())


@world
@pytest.mark.parametrize("kind", ["request_vote", "response_vote"])
def test_defect_2_a_vote_leaves_after_the_entries_it_speaks_of(kind: str) -> None:
    sim = Sim(seed=5)
    a, b, c = sim.ids
    sim.start()
    sim.lead(a)
    sim.commit(a, b"x")
    voter = sim.up[b]
    voter.flusher.steps = lambda: 60
    sim.up[a].submit(b"y")
    sim.step()
    sim.step()
    journal = voter.raft.journal
    assert journal.last[1] > journal.durable_index
    sim.said.clear()
    if kind == "request_vote":
        sim.kill(a)
        pre_vote_of(voter.raft).granted_term = voter.term + 1
        voter.raft.election_deadline = 0
    else:
        last = journal.last
        request = {"type": "request_vote", "term": voter.term + 1, "last_log_index": last[1] + 9}
        request = {**request, "last_log_term": last[2], "takes_over": True}
        voter.hear(c, {**request, "stamp": sim.stamp(c, b)})

    def said() -> list[dict[str, Any]]:
        return [m for sender, _, m in sim.said if sender == b and m["type"] == kind]

    sim.until(said, 0.4)
    assert not said(), "not on disk yet"
    assert sim.until(said, 1)
    assert journal.durable_index >= said()[0].get("last_log_index", last_of(sim, b))


def last_of(sim: Sim, node: NodeId) -> int:
    return int(sim.up[node].raft.journal.last[1])


@world
def test_rule_q4_a_fence_is_lifted_by_what_is_on_disk() -> None:
    sim = Sim(seed=5)
    a, b, c = sim.ids
    sim.start()
    sim.lead(a)
    sim.commit(a, b"x")
    sim.lose_disk(c, "disk-3b")
    sim.flush_steps = lambda: 20
    sim.start(c)
    sim.accept(c)
    back = sim.up[c]
    lift, on_disk = back.disk.home.lift_fence, []

    def lifted() -> None:
        on_disk.append((back.raft.journal.durable_index, back.raft.contact.commit_index))
        lift()

    back.disk.home.lift_fence = lifted  # type: ignore[method-assign]
    assert sim.until(lambda: not back.raft.home.fenced, 10)
    ((durable, committed),) = on_disk
    assert durable >= committed >= 3
    assert {a, b} < set(sim.up)


# ---------------------------------------------------------------- rule Q3


@world
def test_rule_q3_an_answer_for_replaced_entries_never_leaves() -> None:
    """b takes an entry from a; before its disk has it, c leads and replaces it."""
    sim = Sim(seed=5)
    a, b, c = sim.ids
    sim.start()
    sim.lead(a)
    sim.commit(a, b"before")
    sim.pass_time(0.3)
    sim.cut = {frozenset((a, c)), frozenset((b, c))}
    follower = sim.up[b]
    follower.flusher.steps = lambda: 12
    old_term = sim.up[a].term
    sim.up[a].submit(b"replaced")
    sim.step()
    sim.step()
    at = follower.raft.journal.last[1]
    assert follower.raft.journal.last[0] == b"\0replaced"
    generation = follower.raft.journal.generation
    append = {
        "type": "append_entries",
        "term": old_term + 1,
        "commit_index": at - 1,
        "prevLogIdx": at - 1,
        "prevLogTerm": old_term,
        "entries": [[b"\0Y", at, old_term + 1]],
        "stamp": sim.stamp(c, b),
    }
    sim.said.clear()
    follower.hear(c, append)
    assert follower.raft.journal.generation == generation + 1
    sim.cut = {frozenset((a, b)), frozenset((a, c))}

    def claims() -> list[tuple[int, int, bytes]]:
        return [
            (int(to), m["term"], bytes(sim.disk.synced[f"{sim.directory(b)}/journal"].durable))
            for sender, to, m in sim.said
            if sender == b and m["type"] == "next_node_idx" and m["success"]
            if m["next_node_idx"] - 1 >= at
        ]

    assert sim.until(claims, 5)
    to, term, platter = claims()[0]
    assert (to, term) == (c, old_term + 1), "the old leader was told"
    assert b"\0Y" in platter
    assert b"\0replaced" not in platter


class HeldFlusher:
    """Work and news when the test says so."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Callable[[], None], Callable[[], None]]] = []

    def start(self, work: Callable[[], None], done: Callable[[], None]) -> None:
        self.jobs.append((work, done))

    def wait(self) -> None:
        for work, _ in self.jobs:
            work()

    def close(self) -> None:
        self.wait()

    def run(self) -> None:
        work, done = self.jobs.pop(0)
        work()
        done()


def opened(disk: SimulatedDisk, flusher: Any = None) -> DurableJournal:
    if not disk.exists("/raft"):
        disk.make_directory("/raft")
        disk.sync_directory("/")
    randoms = random.Random(1).randbytes
    return DurableJournal(disk, "/raft", RaisingFaults(), flusher=flusher, random_bytes=randoms)


def with_three(disk: SimulatedDisk, flusher: HeldFlusher) -> DurableJournal:
    journal = opened(disk, flusher)
    journal.set_vote(1, "a")
    journal.add(b"\1", 1, 0)
    for index in (2, 3):
        journal.add(b"\0old", index, 1)
    journal.flush()
    return journal


@pytest.mark.parametrize("worked_before", [True, False])
def test_rule_q3_a_flush_in_flight_proves_nothing_after_a_truncation(worked_before: bool) -> None:
    disk, flusher = SimulatedDisk(), HeldFlusher()
    journal = with_three(disk, flusher)
    work, done = flusher.jobs.pop()
    if worked_before:
        work()
    journal.delete_from(2)
    journal.add(b"\0new", 3, 2)
    journal.set_vote(2, None)
    if not worked_before:
        work()
    done()
    assert journal.durable_index == 0, "nobody has synced the new entry 3"
    while flusher.jobs:
        flusher.run()
    assert journal.durable_index == 3
    disk.cut_power(random.Random(1), 0)
    assert [entry[0] for entry in opened(disk).entries] == [b"\1", b"\0old", b"\0new"]


def test_rule_q3_a_truncation_of_what_nobody_wrote_lowers_the_durable_end_too() -> None:
    disk, flusher = SimulatedDisk(), HeldFlusher()
    journal = with_three(disk, flusher)
    flusher.run()
    assert journal.durable_index == 3
    journal.add(b"\0old", 4, 1)
    journal.delete_from(2)
    assert journal.durable_index == 2
    journal.add(b"\0new", 3, 1)
    journal.flush()
    flusher.run()
    assert journal.durable_index == 3
    assert [entry[0] for entry in opened(disk).entries[1:]] == [b"\0old", b"\0new"]


def test_entries_added_during_a_flush_wait_for_the_next() -> None:
    disk, flusher = SimulatedDisk(), HeldFlusher()
    journal = with_three(disk, flusher)
    told: list[int] = []
    journal.on_durable = lambda: told.append(journal.durable_index)
    for index in range(4, 10):
        journal.add(b"\0x", index, 1)
        journal.flush()
    assert len(flusher.jobs) == 1
    flusher.run()
    assert len(flusher.jobs) == 1, "the next begins by itself"
    flusher.run()
    assert flusher.jobs == []
    assert told == [3, 9]


def test_a_compaction_while_a_flush_is_in_flight_keeps_everything() -> None:
    disk, flusher = SimulatedDisk(), HeldFlusher()
    journal = with_three(disk, flusher)
    journal.delete_to(1)
    journal.add(b"\0x", 4, 1)
    flusher.run()
    assert journal.durable_index == 3
    assert len(flusher.jobs) == 1, "a new file"
    journal.add(b"\0y", 5, 1)
    flusher.run()
    flusher.run()
    assert journal.durable_index == 5
    disk.cut_power(random.Random(1), 0)
    assert indexes(opened(disk).entries) == [2, 3, 4, 5]


def test_rule_q2_a_failed_sync_beside_the_loop_ends_the_process_and_proves_nothing() -> None:
    disk, flusher = SimulatedDisk(), HeldFlusher()
    journal = with_three(disk, flusher)

    def broken(operation: str, _path: str) -> None:
        if operation.startswith("sync"):
            raise OSError(errno.EIO, "EIO")

    disk.before = broken
    with pytest.raises(Died, match="journal write failed"):
        flusher.run()
    assert journal.durable_index == 0
    assert flusher.jobs == [], "not tried again"


def test_rule_q6_a_flusher_that_dies_of_anything_ends_the_process() -> None:
    disk, flusher = SimulatedDisk(), HeldFlusher()
    with_three(disk, flusher)
    _, done = flusher.jobs.pop()
    with pytest.raises(Died):
        done()  # and nothing was written


def test_a_sync_that_blocks_waits_for_the_one_in_flight() -> None:
    disk, flusher = SimulatedDisk(), HeldFlusher()
    journal = with_three(disk, flusher)
    journal.add(b"\0x", 4, 1)
    journal.sync()
    assert journal.durable_index == 4
    for _, done in flusher.jobs:
        done()  # its news come late
    assert journal.durable_index == 4
    disk.cut_power(random.Random(1), 0)
    assert indexes(opened(disk).entries) == [1, 2, 3, 4]


def test_rule_q3_seeded_lives_of_one_journal() -> None:
    """Adds, truncations, compactions and clears around flushes in flight; then the power goes."""
    evaluated = 0
    for seed in range(150):
        rng = random.Random(seed)
        disk, flusher = SimulatedDisk(), HeldFlusher()
        journal = with_three(disk, flusher)
        term, pending = 1, False
        for _ in range(rng.randint(5, 40)):
            match rng.choice(("add", "add", "add", "truncate", "compact", "work", "done", "done")):
                case "add":
                    journal.add(
                        b"\0" + rng.randbytes(rng.choice((3, 5000))), next_of(journal), term
                    )
                case "truncate" if len(journal.entries) > 2:
                    term += 1
                    journal.set_vote(term, None)
                    journal.delete_from(rng.randint(2, len(journal.entries) - 1))
                case "compact" if len(journal.entries) > 4:
                    journal.delete_to(rng.randint(1, 2))
                case "work" if flusher.jobs and not pending:
                    flusher.jobs[0][0]()
                    pending = True
                case "done" if flusher.jobs:
                    work, done = flusher.jobs.pop(0)
                    if not pending:
                        work()
                    done()
                    pending = False
                case _:
                    journal.flush()
        durable = [entry for entry in journal.entries if entry[1] <= journal.durable_index]
        evaluated += len(durable)
        disk.cut_power(rng, rng.choice((0, 0.5)))
        found = {entry[1]: entry for entry in opened(disk).entries}
        assert all(found.get(entry[1]) == entry for entry in durable), f"seed {seed}"
    assert evaluated > 300


def next_of(journal: DurableJournal) -> int:
    return journal.last[1] + 1


# ---------------------------------------------------------------- the thread


def test_the_thread_works_in_order_and_tells_the_loop() -> None:
    told: list[Callable[[], None]] = []
    flusher, done = ThreadFlusher(told.append), []
    for number in range(20):
        flusher.start(
            lambda number=number: done.append((number, threading.current_thread().name)),  # type: ignore[misc]
            lambda: None,
        )
    flusher.wait()
    assert done == [(number, "raft-flusher") for number in range(20)]
    flusher.close()
    assert len(told) == 21  # one for the wait
    assert not [thread for thread in threading.enumerate() if thread.name == "raft-flusher"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_rule_q6_even_the_end_of_the_thread_is_told() -> None:
    told: list[Callable[[], None]] = []
    flusher = ThreadFlusher(told.append)

    def end() -> None:
        raise SystemExit

    flusher.start(end, lambda: None)
    join_thread(flusher, 5)
    assert len(told) == 1
