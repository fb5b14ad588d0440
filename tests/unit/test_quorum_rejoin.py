"""Rule Q4: one process, one directory, one identity; and a voter that lost its disk."""

from __future__ import annotations

import errno
import random
from pathlib import Path
from typing import Any

import pytest

from raft_metadata.common.disk import Disk
from raft_metadata.common.errors import CorruptionError, StorageError
from raft_metadata.common.ids import DirectoryId, NodeId
from raft_metadata.quorum.data_dir import (
    DataDir,
    Identity,
    format_raft_dir,
    format_rejoining_raft_dir,
    read_raft_meta,
)
from raft_metadata.quorum.peer_links import PeerAuthenticator, RefusedPeerError
from raft_metadata.quorum.wire import hello
from tests.support.quorum_sim import CLUSTER, Sim, quorum_world
from tests.support.raising_faults import Died, RaisingFaults
from tests.support.simulated_disk import SimulatedDisk

__all__ = ["quorum_world"]
pytestmark = pytest.mark.usefixtures("quorum_world")


# ---------------------------------------------------------------- one process, one directory


def test_rule_q4_a_second_process_on_the_same_directory_is_refused() -> None:
    sim = Sim()
    a = sim.ids[0]
    sim.start(a)
    with pytest.raises(StorageError, match="in use by another process"):
        sim.start(a)
    sim.kill(a)
    sim.start(a)  # the lock goes with the process


def test_rule_q4_the_lock_is_the_kernels(tmp_path: Path) -> None:
    identity = Identity(cluster_id=CLUSTER, node_id=NodeId(1), directory_id=DirectoryId("d"))
    format_raft_dir(tmp_path / "raft", identity, {NodeId(1): DirectoryId("d")})
    first = DataDir(Disk(), tmp_path / "raft", identity, RaisingFaults())
    with pytest.raises(StorageError, match="in use by another process"):
        DataDir(Disk(), tmp_path / "raft", identity, RaisingFaults())
    first.close()
    DataDir(Disk(), tmp_path / "raft", identity, RaisingFaults()).close()


@pytest.mark.parametrize("operation", ["write", "sync", "rename"])
def test_rule_q4_an_identity_that_cannot_be_written_ends_the_process(operation: str) -> None:
    """Others rely on each change from then on: a voter without it would vote again."""
    disk = SimulatedDisk()
    raft_dir = Path("/node/raft")
    disk.make_directory(str(raft_dir.parent))
    identity = Identity(cluster_id=CLUSTER, node_id=NodeId(1), directory_id=DirectoryId("new"))
    others = {NodeId(2): DirectoryId("b"), NodeId(3): DirectoryId("c")}
    format_rejoining_raft_dir(raft_dir, identity, others, disk=disk)
    faults = RaisingFaults()
    directory = DataDir(disk, raft_dir, identity, faults)
    before = directory.meta

    def broken(step: str, path: str) -> None:
        if step.startswith(operation):
            raise OSError(errno.EIO, "input/output error", str(path))

    disk.before = broken
    with pytest.raises(Died, match="meta"):
        directory.lift_fence()
    assert len(faults.seen) == 1
    assert directory.meta == before
    assert directory.fenced


def test_rule_q4_unformatted_foreign_and_emptied_directories_are_refused() -> None:
    sim = Sim()
    a, b, c = sim.ids
    sim.start(a)
    sim.kill(a)
    sim.disk.unlink(f"{sim.directory(a)}/journal")
    with pytest.raises(StorageError, match="journal is gone"):
        sim.start(a)
    sim.disk.wipe(str(sim.directory(b)))
    with pytest.raises(StorageError, match="not formatted"):
        sim.start(b)
    sim.disk.make_directory(str(sim.directory(b)))
    with pytest.raises(StorageError, match="not formatted"):
        sim.start(b)
    sim.directory_ids[c] = DirectoryId("another")
    with pytest.raises(StorageError, match="belongs to"):
        sim.start(c)


def test_rule_q4_a_directory_is_formatted_once() -> None:
    sim = Sim()
    with pytest.raises(StorageError, match="not empty"):
        sim.format(sim.ids[0])


def test_a_changed_meta_file_is_refused() -> None:
    sim = Sim()
    a = sim.ids[0]
    sim.disk.file(f"{sim.directory(a)}/meta.json").cache[5] ^= 1
    with pytest.raises(CorruptionError, match=r"meta\.json"):
        sim.start(a)


def test_another_set_of_voters_is_refused() -> None:
    sim = Sim()
    sim.ids.append(NodeId(4))
    with pytest.raises(StorageError, match="configured for"):
        sim.start(sim.ids[0])


def test_a_journal_whose_snapshot_is_gone_is_refused() -> None:
    sim = Sim()
    a = sim.ids[0]
    sim.start()
    leader = sim.lead(a)
    for number in range(5):
        sim.commit(a, b"%d" % number)
    leader.raft.forceLogCompaction()
    sim.pass_time(0.2)
    sim.kill(a)
    sim.disk.unlink(f"{sim.directory(a)}/snapshot")
    with pytest.raises(StorageError, match="snapshot is gone"):
        sim.start(a)


def test_a_corrupt_snapshot_is_never_an_empty_start() -> None:
    sim = Sim()
    a = sim.ids[0]
    sim.start()
    leader = sim.lead(a)
    for number in range(5):
        sim.commit(a, b"%d" % number)
    leader.raft.forceLogCompaction()
    sim.pass_time(0.2)
    sim.kill(a)
    content = sim.disk.file(f"{sim.directory(a)}/snapshot").cache
    for offset in range(0, len(content), 7):
        content[offset] ^= 1
        with pytest.raises(CorruptionError, match="snapshot"):
            sim.start(a)
        content[offset] ^= 1
    sim.start(a)


def test_a_full_disk_is_opened_with_the_reserve() -> None:
    sim = Sim(reserve_bytes=8192)
    a = sim.ids[0]
    sim.start(a)
    reserve = f"{sim.directory(a)}/reserve"
    sim.kill(a)
    sim.disk.cut_power(random.Random(1), 0)
    assert len(sim.disk.file(reserve).cache) == 8192

    def full(operation: str, path: str) -> None:
        if operation == "write" and (sim.disk.exists(reserve) or path.endswith("/reserve.tmp")):
            raise OSError(errno.ENOSPC, "no space")

    sim.disk.before = full
    sim.start(a)
    assert sim.disk.names(str(sim.directory(a))) == ["journal", "meta.json", "vote.json"]
    sim.kill(a)
    sim.disk.before = None
    sim.start(a)
    assert sim.disk.exists(reserve), "made again once there is room"
    sim.kill(a)
    sim.disk.unlink(reserve)
    sim.disk.before = lambda operation, path: full("write", "/reserve.tmp")
    with pytest.raises(StorageError, match="no space"):
        sim.start(a)


@pytest.mark.parametrize(
    ("said", "taken"),
    [
        (hello(3, CLUSTER, "disk-3"), True),
        (hello(3, CLUSTER, "disk-9"), False),
        (hello(3, "another cluster", "disk-3"), False),
        (hello(1, CLUSTER, "disk-1"), False),  # 2 dials 1
        (hello(2, CLUSTER, "disk-2"), False),
        (hello(7, CLUSTER, "disk-7"), False),
        ({**hello(3, CLUSTER, "disk-3"), "protocol": 1}, False),
        ({**hello(3, CLUSTER, "disk-3"), "node_id": "3"}, False),
        ("readonly", False),
        (["status"], False),
        ({}, False),
    ],
)
def test_rule_q4_a_foreign_hello_takes_nobodys_place(said: Any, taken: bool) -> None:
    sim = Sim()
    b = sim.ids[1]
    sim.start(b)
    introductions = PeerAuthenticator(sim.up[b].disk.home)
    if taken:
        assert introductions.accept(said, dialled=None, names=None) == 3
    else:
        with pytest.raises(RefusedPeerError):
            introductions.accept(said, dialled=None, names=None)


def test_rule_q4_only_the_voter_that_was_dialled_may_answer() -> None:
    sim = Sim()
    b = sim.ids[1]
    sim.start(b)
    introductions = PeerAuthenticator(sim.up[b].disk.home)
    said = hello(1, CLUSTER, "disk-1")
    assert introductions.accept(said, dialled=NodeId(1), names=None) == 1
    with pytest.raises(RefusedPeerError, match="dialled voter 3, voter 1 answers"):
        introductions.accept(said, dialled=NodeId(3), names=None)


@pytest.mark.parametrize("dialled", [None, NodeId(3)])
def test_rule_q4_a_certificate_of_another_node_takes_nobodys_place(dialled: NodeId | None) -> None:
    sim = Sim()
    b = sim.ids[1]
    sim.start(b)
    introductions = PeerAuthenticator(sim.up[b].disk.home)
    said = hello(3, CLUSTER, "disk-3")
    right = frozenset({"controller-3", "somewhere.example"})
    assert introductions.accept(said, dialled=dialled, names=right) == 3
    for wrong in (frozenset[str](), frozenset({"controller-1"}), frozenset({"controller-33"})):
        with pytest.raises(RefusedPeerError, match="its certificate is for"):
            introductions.accept(said, dialled=dialled, names=wrong)


def test_rule_q4_a_message_for_or_from_another_disk_is_dropped() -> None:
    sim = Sim()
    a, b, _ = sim.ids
    sim.start(a)
    voter = sim.up[a]
    request = {"type": "request_vote", "term": 9, "last_log_index": 9, "last_log_term": 9}
    for wrong in (
        [CLUSTER, "disk-9", "disk-1"],
        [CLUSTER, "disk-2", "disk-9"],
        ["another", "disk-2", "disk-1"],
    ):
        voter.hear(b, {**request, "stamp": wrong})
        assert voter.term == 0
    voter.hear(b, {**request, "stamp": sim.stamp(b, a)})
    assert voter.term == 9


# ---------------------------------------------------------------- a lost disk


def test_rule_q4_two_voters_without_the_acknowledged_entry_elect_nobody() -> None:
    """X is acknowledged by a and c while b is cut off; c loses its disk, a stops."""
    sim = Sim()
    a, b, c = sim.ids
    sim.start()
    sim.lead(a)
    sim.cut = {frozenset((a, b)), frozenset((b, c))}
    assert sim.commit(a, b"X").acknowledged
    sim.kill(a, c)
    sim.cut = set()

    # An operator's mistake: formatted as for a new cluster, with a directory id nobody was told.
    sim.disk.wipe(str(sim.directory(c)))
    sim.directory_ids[c] = DirectoryId("disk-3x")
    sim.format(c)
    sim.start(c)
    assert sim.active_leader(6) is None

    sim.lose_disk(c, "disk-3b")
    sim.start(c)
    assert sim.active_leader(6) is None, "b was not told, and took part"
    sim.accept(c, b)
    assert sim.active_leader(10) is None, "leader without the acknowledged X"
    assert sim.up[c].raft.home.meta.fence == "ask"  # a has not answered

    sim.start(a)
    sim.active_leader(5)
    assert sim.up[c].raft.home.meta.fence == "ask", "a was not told, and c took part"
    sim.accept(c, a)
    sim.cut = {frozenset((a, c)), frozenset((b, c))}
    sim.kill(c)
    sim.start(c)
    assert sim.up[c].raft.home.meta.fence == "ask", "the fence did not survive a restart"
    sim.cut = set()
    assert sim.until(lambda: not sim.up[c].raft.home.fenced, 10)
    sim.kill(a)
    leader = sim.active_leader(10)
    assert leader is not None
    assert b"X" in leader.machine.payloads


def test_rule_q4_a_fenced_voter_asks_first_and_gives_no_second_vote() -> None:
    sim = Sim()
    a, b, c = sim.ids
    sim.start()
    sim.lead(a)
    sim.kill()
    sim.lose_disk(c, "disk-3b")
    sim.start(b, c)
    sim.accept(c, b)
    voter = sim.up[c]
    sim.said.clear()
    sim.pass_time(1)
    append = {
        "type": "append_entries",
        "term": 0,
        "commit_index": 1,
        "entries": [],
        "prevLogIdx": 1,
        "prevLogTerm": 0,
        "stamp": sim.stamp(b, c),
    }
    voter.hear(b, append)
    assert {m["type"] for s, _, m in sim.said if s == c} <= {"term_query", "ping"}
    sim.start(a)
    sim.accept(c, a)
    assert sim.until(lambda: voter.raft.home.meta.fence == "adopted", 5)
    term = voter.term
    assert term == max(other.term for other in sim.up.values())
    sim.said.clear()
    for asked in (term, term + 1):
        question = {"term": asked, "last_log_index": 99, "last_log_term": 99}
        for kind in ("request_vote", "pre_vote"):
            voter.hear(b, {"type": kind, **question, "stamp": sim.stamp(b, c)})
    answers = [m for s, _, m in sim.said if s == c]
    assert "response_vote" not in {m["type"] for m in answers}
    assert not any(m.get("granted") for m in answers)
    assert voter.term == term + 1


def five(seed: int) -> Sim:
    sim = Sim(voters=5, seed=seed)
    sim.start()
    sim.lead(sim.ids[0])
    assert sim.commit(sim.ids[0], b"W").acknowledged
    sim.pass_time(0.5)
    return sim


def without(payload: bytes, blocked: set[NodeId]) -> Any:
    """A `drop` that cuts appends to the blocked before the first entry with this payload."""

    def drop(_sender: NodeId, to: NodeId, message: dict[str, Any]) -> bool:
        if to in blocked and message.get("entries"):
            kept = [i for i, entry in enumerate(message["entries"]) if payload in entry[0]]
            message["entries"] = message["entries"][: kept[0] if kept else None]
        return False

    return drop


def test_rule_q4_the_fence_waits_for_a_commit_in_the_leaders_own_term() -> None:
    """X: committed by a, b, e. e loses its disk; the new leader b can't commit yet, so its commit
    index is still below X: e must not vote."""
    sim = five(3)
    a, b, c, d, e = sim.ids
    old = sim.up[b].raft.raftCommitIndex
    keep = without(b"X", {c, d})
    # Nobody hears that X is committed.
    sim.drop = lambda s, t, m: (
        keep(s, t, m) or (s == a and m["type"] == "append_entries" and m["commit_index"] > old)
    )
    answer = sim.up[a].submit(b"X")
    assert sim.until(answer.done, 1)
    assert answer.acknowledged
    sim.cut = {frozenset((a, other)) for other in (b, c, d)}
    for node in (c, d, e):
        sim.up[node].raft.election_deadline += 9
    keep = without(b"X", {c, d, e})
    sim.drop = lambda s, t, m: (
        keep(s, t, m) or (s == b and t in (c, d) and m["type"] == "append_entries")
    )

    def others() -> list[NodeId]:
        return [node for node in sim.leaders if node != a]

    assert sim.until(lambda: others() == [b], 10)
    sim.lose_disk(e, "disk-new")
    sim.start(e)
    sim.accept(e)
    voter = sim.up[e]
    sim.until(
        lambda: voter.raft.home.meta.fence != "ask" and voter.raft.journal.last[1] >= old, 0.8
    )
    assert b"X" not in b"".join(entry[0] for entry in voter.raft.journal.entries), "set-up"
    sim.kill(b)
    sim.drop = lambda *_: False
    assert not sim.until(others, 6), "e voted: a leader without the acknowledged X"
    sim.start(b)
    assert sim.active_leader(10) is not None
    assert sim.until(lambda: not voter.raft.home.fenced and b"X" in voter.machine.payloads, 10)


def test_rule_q4_acknowledgements_of_the_lost_disk_do_not_count() -> None:
    """a leads throughout; e acknowledged X and lost its disk. Once b has X too, that is two."""
    sim = five(4)
    a, b, c, d, e = sim.ids
    sim.drop = without(b"X", {b, c, d})
    answer = sim.up[a].submit(b"X")
    sim.pass_time(0.5)
    assert not answer.done()
    assert sim.up[e].raft.journal.last[0] == b"\0X"
    sim.drop = without(b"X", {b, c, d, e})
    sim.lose_disk(e, "disk-new")
    sim.start(e)
    sim.accept(e)
    voter = sim.up[e]
    assert sim.until(lambda: not voter.raft.home.fenced, 5)
    assert voter.raft.journal.last[0] != b"\0X"
    sim.drop = without(b"X", {c, d, e})
    sim.pass_time(2)
    assert not answer.done(), "acknowledged with two copies of five"
    sim.drop = lambda *_: False
    assert sim.until(lambda: answer.acknowledged, 5)
    # Full voter again, but not in the term it adopted.
    term = voter.term
    for asked, votes in ((term, 0), (term + 1, 1)):
        sim.said.clear()
        request = {"term": asked, "last_log_index": 99, "last_log_term": 99, "takes_over": True}
        voter.hear(b, {"type": "request_vote", **request, "stamp": sim.stamp(b, e)})
        given = [m for s, _, m in sim.said if s == e and m["type"] == "response_vote"]
        assert len(given) == votes


def test_rejoin_needs_a_new_directory_id_and_somebody_else() -> None:
    disk = SimulatedDisk()
    identity = Identity(cluster_id=CLUSTER, node_id=NodeId(1), directory_id=DirectoryId("old"))
    others = {NodeId(1): DirectoryId("old"), NodeId(2): DirectoryId("two")}
    with pytest.raises(StorageError, match="used before"):
        format_rejoining_raft_dir(Path("/r"), identity, others, disk=disk)
    alone = {NodeId(1): DirectoryId("gone")}
    with pytest.raises(StorageError, match="only voter"):
        format_rejoining_raft_dir(Path("/r"), identity, alone, disk=disk)
    assert read_raft_meta(Path("/r"), disk=disk) is None
