"""The journal and the vote of one voter: rules Q1, Q2, Q5, Q6 on a disk that loses its power."""

from __future__ import annotations

import errno
import random
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raft_metadata.common.errors import CorruptionError
from raft_metadata.quorum.journal import DurableJournal, Entry, Vote, encode_record
from tests.support.quorum_sim import indexes
from tests.support.raising_faults import Died, RaisingFaults
from tests.support.simulated_disk import Killed, SimulatedDisk, kill_at

HOME = "/raft"
JOURNAL = f"{HOME}/journal"


def open_journal(disk: SimulatedDisk, seed: int = 1) -> DurableJournal:
    _with_home(disk)
    return DurableJournal(disk, HOME, RaisingFaults(), random_bytes=random.Random(seed).randbytes)


def started(disk: SimulatedDisk, entries: int = 1) -> DurableJournal:
    journal = open_journal(disk)
    journal.set_vote(1, "a")
    journal.add(b"\1", 1, 0)
    for index in range(2, entries + 1):
        journal.add(b"\0x", index, 1)
    journal.sync()
    return journal


def power_off(disk: SimulatedDisk, keep: float = 0.0, seed: int = 1) -> None:
    disk.before = None
    disk.cut_power(random.Random(seed), keep)


# ---------------------------------------------------------------- rule Q1


def test_rule_q1_an_entry_seen_after_a_kill_survives_the_power_cut() -> None:
    disk = SimulatedDisk()
    journal = started(disk)
    journal.add(b"\0X", 2, 1)
    disk.before = kill_at("sync", "/journal")
    with pytest.raises(Killed):
        journal.sync()  # written, not synced
    disk.before = None
    seen = open_journal(disk).entries  # it acknowledges what it shows
    assert indexes(seen) == [1, 2]
    power_off(disk)
    assert open_journal(disk).entries == seen


def test_rule_q1_a_vote_seen_after_a_kill_survives_the_power_cut() -> None:
    disk = SimulatedDisk()
    journal = started(disk)
    synced = 0

    def hook(operation: str, path: str) -> None:
        if operation == "sync_directory" and path == HOME:  # renamed, the name not on disk
            raise Killed

    disk.before = hook
    with pytest.raises(Killed):
        journal.set_vote(7, "b")
    disk.before = None
    seen = open_journal(disk).vote
    assert seen == Vote(7, "b"), synced
    power_off(disk)
    assert open_journal(disk).vote == seen


def test_rule_q6_a_new_journal_has_its_name_on_disk_before_it_counts() -> None:
    disk = SimulatedDisk()
    journal = started(disk, entries=9)
    journal.delete_to(3)
    journal.sync()
    power_off(disk)
    assert indexes(open_journal(disk).entries) == [4, 5, 6, 7, 8, 9]


# ---------------------------------------------------------------- rule Q2


def life(journal: DurableJournal) -> Iterator[None]:
    journal.set_vote(5, "b")
    yield
    journal.add(b"\0" + b"y" * 9000, 3, 5)
    journal.add(b"\0z", 4, 5)
    journal.sync()
    yield
    journal.delete_to(1)
    journal.add(b"\0w", 5, 5)
    journal.sync()
    yield


@pytest.mark.parametrize("nth", range(1, 6))  # vote + directory, append, rewrite + directory
def test_rule_q2_a_failed_sync_ends_the_process_and_is_not_believed_after(nth: int) -> None:
    disk = SimulatedDisk()
    journal = started(disk, entries=2)
    left = nth

    def hook(operation: str, _path: str) -> None:
        nonlocal left
        left -= operation.startswith("sync")
        if left == 0 and operation.startswith("sync"):
            raise OSError(errno.EIO, "EIO")

    disk.before = hook
    with pytest.raises(Died):
        for _ in life(journal):
            pass
    disk.before = None
    again = open_journal(disk)  # acknowledges what it shows
    power_off(disk)
    after = open_journal(disk)
    assert (after.entries, after.vote) == (again.entries, again.vote)


# ---------------------------------------------------------------- rule Q5


def journal_with_groups(disk: SimulatedDisk) -> tuple[DurableJournal, int, int]:
    """(journal, end proven when the last group was written, entries then)"""
    rng = random.Random(6)
    journal, proven, count = started(disk), 0, 0
    for _ in range(6):
        proven, count = journal.size_bytes, len(journal.entries)
        for _ in range(4):
            journal.add(b"\0" + rng.randbytes(3000), journal.last[1] + 1, 1)
        journal.sync()
    return journal, proven, count


def flip(disk: SimulatedDisk, offset: int) -> None:
    disk.file(JOURNAL).cache[offset] ^= 1


def test_rule_q5_a_flipped_byte_below_a_proven_end_is_refused() -> None:
    disk = SimulatedDisk()
    _, proven, _ = journal_with_groups(disk)
    rng = random.Random(5)
    for offset in [rng.randrange(proven) for _ in range(60)]:
        flip(disk, offset)
        with pytest.raises(CorruptionError, match="journal"):
            open_journal(disk)
        flip(disk, offset)


def test_rule_q5_a_flipped_byte_above_every_proven_end_is_cut() -> None:
    disk = SimulatedDisk()
    journal, proven, count = journal_with_groups(disk)
    good, end = bytes(disk.file(JOURNAL).cache), journal.size_bytes
    for offset in range(proven, end, 200):
        flip(disk, offset)
        assert count <= len(open_journal(disk).entries) < count + 4
        disk.file(JOURNAL).cache[:] = good


def test_rule_q5_an_idle_second_proves_the_last_group() -> None:
    disk = SimulatedDisk()
    journal, proven, _ = journal_with_groups(disk)
    journal.prove_tail()  # the first timer still saw an addition
    assert journal.sync_count > 0
    end = journal.size_bytes
    journal.prove_tail()
    journal.prove_tail()
    assert journal.size_bytes > end
    proof_written_once = journal.size_bytes
    journal.prove_tail()
    assert journal.size_bytes == proof_written_once
    flip(disk, proven + 50)
    with pytest.raises(CorruptionError):
        open_journal(disk)
    flip(disk, proven + 50)
    journal.add(b"\0after", journal.last[1] + 1, 1)
    journal.delete_from(len(journal.entries) - 1)
    journal.add(b"\0other", journal.last[1] + 1, 1)
    journal.sync()
    assert open_journal(disk).entries == journal.entries


def test_rule_q5_a_lost_page_with_later_pages_present_is_torn_not_corrupt() -> None:
    disk = SimulatedDisk()
    journal = started(disk)
    for index in range(2, 12):
        journal.add(b"\0" + b"v" * 3000, index, 1)
    disk.before = kill_at("sync", "/journal")
    with pytest.raises(Killed):
        journal.sync()
    disk.before = None
    content = disk.file(JOURNAL)
    first = len(content.durable) // 4096
    lost = bytes(4096)
    content.cache[(first + 3) * 4096 : (first + 4) * 4096] = lost
    assert 1 <= len(open_journal(disk).entries) < 11


def test_rule_q5_a_payload_cannot_imitate_a_record() -> None:
    disk = SimulatedDisk()
    started(disk)
    mark = bytes(disk.file(JOURNAL).cache)[8:16]  # of another voter's file
    forged = encode_record(mark, (b"", 7, 1), 10**9)  # "durable up to here"
    other = SimulatedDisk()
    fresh = DurableJournal(
        _with_home(other), HOME, RaisingFaults(), random_bytes=random.Random(2).randbytes
    )
    fresh.set_vote(1, "a")
    fresh.add(b"\1", 1, 0)
    fresh.sync()
    fresh.add(b"\0" + b"p" * 5000 + forged, 2, 1)
    fresh.add(b"\0" + b"q" * 5000, 3, 1)
    other.before = kill_at("sync", "/journal")
    with pytest.raises(Killed):
        fresh.sync()
    other.before = None
    other.file(JOURNAL).cache[100:300] = bytes(200)
    assert indexes(open_journal(other).entries) == [1]


def _with_home(disk: SimulatedDisk) -> SimulatedDisk:
    if not disk.exists(HOME):
        disk.make_directory(HOME)
        disk.sync_directory("/")
    return disk


def test_a_truncated_tail_never_comes_back() -> None:
    disk = SimulatedDisk()
    journal = started(disk, entries=6)
    journal.delete_from(3)
    journal.add(b"\0other", 4, 2)
    journal.set_vote(2, None)
    journal.sync()
    for seed in range(40):
        copy = open_journal(disk, seed)
        assert [(entry[1], entry[2]) for entry in copy.entries][-1] == (4, 2)
        power_off(disk, keep=0.5, seed=seed)


def test_truncating_a_committed_entry_ends_the_process() -> None:
    journal = started(SimulatedDisk(), entries=5)
    journal.set_commit_index(4)
    journal.delete_from(4)
    with pytest.raises(Died, match="committed entry 4"):
        journal.delete_from(3)


def test_a_journal_without_its_vote_is_refused() -> None:
    disk = SimulatedDisk()
    started(disk)
    disk.unlink(f"{HOME}/vote.json")
    with pytest.raises(CorruptionError, match="vote"):
        open_journal(disk)


def test_a_vote_older_than_the_journal_is_refused() -> None:
    disk = SimulatedDisk()
    journal = started(disk)
    journal.add(b"\0x", 2, 9)  # a term never voted in: somebody restored an old file
    journal.sync()
    with pytest.raises(CorruptionError, match="vote"):
        open_journal(disk)


def test_a_corrupt_vote_is_refused() -> None:
    disk = SimulatedDisk()
    started(disk)
    disk.file(f"{HOME}/vote.json").cache[3] ^= 1
    with pytest.raises(CorruptionError, match=r"vote\.json"):
        open_journal(disk)


def test_a_snapshot_keeps_the_suffix_that_agrees_and_claims_only_itself() -> None:
    journal = started(SimulatedDisk(), entries=8)
    journal.clear()
    journal.add(b"\0x", 4, 1)
    journal.add(b"\0x", 5, 1)
    assert indexes(journal.entries) == [4, 5, 6, 7, 8]
    assert journal.installed_snapshot_index == 5
    journal.clear()
    journal.add(b"\0x", 6, 1)
    journal.add(b"\0other", 7, 2)
    assert indexes(journal.entries) == [6, 7]


def test_align_drops_the_prefix_and_keeps_what_was_acknowledged_after_it() -> None:
    disk = SimulatedDisk()
    journal = started(disk, entries=9)
    journal.align((b"\0x", 4, 1), (b"\0x", 5, 1))
    assert indexes(journal.entries) == [4, 5, 6, 7, 8, 9]
    power_off(disk)
    assert indexes(open_journal(disk).entries) == [4, 5, 6, 7, 8, 9]
    with pytest.raises(CorruptionError, match="after the snapshot"):
        journal.align((b"\0x", 2, 1), (b"\0x", 3, 1))


# ---------------------------------------------------------------- a whole life


class Crasher:
    """Random life of one journal, killed or cut at a random call, always on the same platter."""

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.disk = rng, SimulatedDisk()
        self.journal = started(self.disk)
        self.acknowledged: list[Entry] = list(self.journal.entries)
        self.votes = {self.journal.vote}
        self.torn = 0

    def live(self) -> None:
        rng, journal = self.rng, self.journal
        action = rng.random()
        if action < 0.6:
            for _ in range(rng.randint(1, 12)):
                size = rng.choice((20, 200, 3000, 9000))
                journal.add(b"\0" + rng.randbytes(size), journal.last[1] + 1, journal.vote.term)
        elif action < 0.68:
            unacknowledged = journal.last[1] - self.acknowledged[-1][1]
            if unacknowledged:
                journal.delete_from(len(journal.entries) - rng.randint(1, unacknowledged))
        elif action < 0.73 and len(self.acknowledged) > 5:
            # A new leader's conflict takes what was acknowledged but not committed.
            del self.acknowledged[-rng.randint(1, 3) :]
            journal.delete_from(self.acknowledged[-1][1] + 1 - journal.entries[0][1])
        elif action < 0.78:
            vote = Vote(journal.vote.term + 1, rng.choice("abc"))
            self.votes.add(vote)
            journal.set_vote(vote.term, vote.voted_for)
            self.votes = {vote}
        elif action < 0.82:
            journal.delete_to(max(0, self.acknowledged[-1][1] - journal.entries[0][1] - 5))
            del self.acknowledged[:-6]
        elif action < 0.9:
            journal.prove_tail()
        else:
            journal.sync()
            self.acknowledged = list(journal.entries)

    def live_for_ever(self) -> None:
        while True:
            self.live()

    def crash(self) -> None:
        start, at, seam = len(self.disk.calls), self.rng.randint(1, 60), self.rng.random() < 0.7

        def hook(operation: str, path: str) -> None:
            late = len(self.disk.calls) - start >= at
            if late and (not seam or (operation == "sync_data" and path == JOURNAL)):
                raise Killed

        self.disk.before = hook
        with pytest.raises(Killed):
            self.live_for_ever()

    def reopen(self) -> None:
        while True:
            self.disk.before = None
            if self.rng.random() < 0.8:
                self.disk.cut_power(self.rng, self.rng.choice((0.2, 0.5, 0.8)))
            size = len(self.disk.file(JOURNAL).cache)
            if self.rng.random() < 0.3:
                start, at = len(self.disk.calls), self.rng.randint(1, 8)

                def hook(_operation: str, _path: str, start: int = start, at: int = at) -> None:
                    if len(self.disk.calls) - start >= at:
                        raise Killed

                self.disk.before = hook
            try:
                self.journal = open_journal(self.disk, self.rng.randrange(10**9))
            except Killed:
                continue
            self.disk.before = None
            self.torn += self.journal.size_bytes < size
            return

    def check(self) -> None:
        entries = {entry[1]: entry for entry in self.journal.entries}
        first = self.journal.entries[0][1]
        lost = [e[1] for e in self.acknowledged if e[1] >= first and entries.get(e[1]) != e]
        assert not lost
        assert self.journal.last[1] >= self.acknowledged[-1][1]
        assert first <= self.acknowledged[-1][1]
        assert self.journal.vote in self.votes
        self.acknowledged = list(self.journal.entries)  # it acknowledges what it shows
        self.votes = {self.journal.vote}


def test_rule_q5_hundreds_of_power_cuts_lose_nothing_acknowledged_and_always_start() -> None:
    crasher = Crasher(random.Random(5))
    for _ in range(300):
        crasher.crash()
        crasher.reopen()
        crasher.check()
    assert crasher.torn > 15, "the cuts never tore a group: they proved nothing"


@settings(max_examples=15)
@given(st.integers(min_value=0))
def test_rule_q5_from_any_seed(seed: int) -> None:
    crasher = Crasher(random.Random(seed))
    for _ in range(6):
        crasher.crash()
        crasher.reopen()
        crasher.check()
