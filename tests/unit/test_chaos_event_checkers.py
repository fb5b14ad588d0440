"""The checkers of event journals: each meets an innocent story and a guilty one per finding."""

from __future__ import annotations

from typing import Any

import pytest

from chaos.checkers.events import (
    Chain,
    JournalEvent,
    Journals,
    check_chains,
    check_disks_sound,
    check_high_watermarks,
    check_journals_whole,
    check_leaders_hold_committed,
    check_one_isr_an_epoch,
    check_one_leader_an_epoch,
    check_truncations,
    event_of,
)
from chaos.checkers.verdict import Verdict

TOPIC_ID = "T" * 22
ALL_OF_EVENTS = (
    check_one_leader_an_epoch,
    check_high_watermarks,
    check_truncations,
    check_leaders_hold_committed,
    check_one_isr_an_epoch,
)


class Story:
    """Tells journals: every call is the next event of a broker."""

    def __init__(self) -> None:
        self.journals: Journals = {}
        self._lives: dict[int, int] = {}

    def _tell(self, broker: int, kind: str, epoch: int, **facts: Any) -> Story:
        events = self.journals.setdefault(broker, [])
        partition = -1 if kind == "started" else 0
        life = f"{broker}-{self._lives.get(broker, 1)}"
        number = len(events) + 1
        events.append(
            JournalEvent(broker, number, life, kind, "orders", TOPIC_ID, partition, epoch, facts)
        )
        return self

    def starts(self, broker: int) -> Story:
        self._lives[broker] = self._lives.get(broker, 0) + 1
        return self._tell(broker, "started", -1)

    def leads(self, broker: int, epoch: int, end: int, mark: int, **more: Any) -> Story:
        said = {"isr": [1, 2, 3], "partition_epoch": epoch * 10} | more
        return self._tell(
            broker, "role_changed", epoch, role="leader", log_start=0, log_end=end,
            high_watermark=mark, epoch_start=end, **said,
        )  # fmt: skip

    def follows(self, broker: int, epoch: int, end: int, mark: int) -> Story:
        return self._tell(
            broker, "role_changed", epoch,
            role="follower", log_start=0, log_end=end, high_watermark=mark,
        )  # fmt: skip

    def marks(self, broker: int, epoch: int, mark: int, end: int) -> Story:
        return self._tell(broker, "high_watermark", epoch, high_watermark=mark, log_end=end)

    def cuts(self, broker: int, epoch: int, before: int, to: int, mark: int) -> Story:
        return self._tell(
            broker, "truncated", epoch,
            **{"from": before}, to=to, high_watermark=mark, unclean=to < mark,
        )  # fmt: skip

    def isr(self, broker: int, epoch: int, partition_epoch: int, *new: int) -> Story:
        facts = {"old": [1, 2, 3], "new": list(new), "high_watermark": 95}
        return self._tell(broker, "isr_changed", epoch, partition_epoch=partition_epoch, **facts)


def an_innocent_story() -> Story:
    """1 leads and dies; 2 leads on, cuts nothing; 1 comes back and cuts its unacknowledged tail."""
    story = Story()
    for broker in (1, 2, 3):
        story.starts(broker)
    story.leads(1, 1, 0, 0).follows(2, 1, 0, 0).follows(3, 1, 0, 0)
    story.marks(1, 1, 100, 130).marks(2, 1, 90, 120).marks(3, 1, 100, 110)
    story.leads(2, 2, 120, 95).follows(3, 2, 110, 100)
    story.isr(2, 2, 21, 2, 3).marks(2, 2, 150, 160).marks(3, 2, 150, 160)
    story.starts(1).follows(1, 2, 130, 0).cuts(1, 2, 130, 120, 0).marks(1, 2, 150, 160)
    return story


def text_of(verdict: Verdict) -> str:
    return " ".join(verdict.examples)


@pytest.mark.parametrize("check", ALL_OF_EVENTS)
def test_an_innocent_story_passes_and_says_how_much_was_looked_at(check: Any) -> None:
    verdict = check(an_innocent_story().journals)
    assert verdict.passed, verdict
    assert any(figure.isdigit() and int(figure) for figure in verdict.figures.split()), verdict


@pytest.mark.parametrize("check", ALL_OF_EVENTS)
def test_an_empty_story_proves_nothing_and_is_red(check: Any) -> None:
    assert not check({}).passed
    assert not check({1: Story().starts(1).journals[1]}).passed


def test_two_leaders_of_an_epoch_are_found_also_two_lives_of_one_broker() -> None:
    two = an_innocent_story().leads(3, 2, 160, 150)
    said = f"partition 0 of {TOPIC_ID} epoch 2 was led by [(2, '2-1'), (3, '3-1')]"
    assert check_one_leader_an_epoch(two.journals).examples == (said,)
    again = an_innocent_story().starts(2).leads(2, 2, 160, 150)
    assert not check_one_leader_an_epoch(again.journals).passed, "rule R3"


def test_a_high_watermark_that_goes_back_is_found() -> None:
    back = an_innocent_story().marks(3, 2, 149, 160)
    assert "from 150 back to 149" in text_of(check_high_watermarks(back.journals))
    new_role = an_innocent_story().follows(3, 3, 160, 100)
    assert not check_high_watermarks(new_role.journals).passed
    new_life = an_innocent_story().starts(3).follows(3, 3, 160, 100)
    assert check_high_watermarks(new_life.journals).passed, "the checkpoint of a new life is older"
    anew = an_innocent_story().follows(3, 3, 0, 0).marks(3, 3, 10, 10)
    assert check_high_watermarks(anew.journals).passed, "a replica that was given away and back"
    past = an_innocent_story().marks(3, 2, 170, 160)
    assert "past the log end" in text_of(check_high_watermarks(past.journals))


def test_truncations_below_the_high_watermark_are_found() -> None:
    below = an_innocent_story().cuts(3, 3, 160, 149, 150)
    assert "below its high watermark" in text_of(check_truncations(below.journals))
    assert check_truncations(below.journals, unclean_allowed=True).passed
    clean = an_innocent_story().cuts(3, 3, 160, 150, 150).marks(3, 3, 150, 150)
    assert check_truncations(clean.journals).passed


def test_a_leader_that_cuts_and_a_log_that_shrinks_silently_are_found() -> None:
    leader = an_innocent_story().cuts(2, 2, 160, 155, 150)
    assert "a leader cut its log" in text_of(check_truncations(leader.journals))
    silent = an_innocent_story().marks(3, 2, 150, 155)
    assert "back without a word" in text_of(check_truncations(silent.journals))
    lost = an_innocent_story()
    events = lost.marks(3, 2, 150, 158).marks(3, 2, 150, 155).journals[3]
    del events[-2]
    assert check_truncations(lost.journals).passed, "the missing event may have been a truncation"


def test_a_leader_without_what_was_committed_is_found() -> None:
    short = an_innocent_story().leads(3, 3, 149, 149)
    assert "begins without what was committed" in text_of(
        check_leaders_hold_committed(short.journals)
    )
    enough = an_innocent_story().leads(3, 3, 150, 150)
    assert check_leaders_hold_committed(enough.journals).passed


def test_a_late_commit_of_a_deposed_leader_counts_for_its_own_epoch() -> None:
    zombie = an_innocent_story()
    first_life = zombie.journals[1][:3]
    zombie.journals[1] = [
        *first_life,
        first_life[-1]._replace(sequence=4, facts={"high_watermark": 125, "log_end": 130}),
    ]
    assert not check_leaders_hold_committed(zombie.journals).passed


def test_facts_known_when_a_role_was_taken_count_for_that_epoch() -> None:
    story = Story().starts(1).starts(2).leads(1, 1, 0, 0).follows(2, 1, 0, 0)
    story.follows(2, 2, 50, 40).leads(1, 2, 30, 0)
    assert not check_leaders_hold_committed(story.journals).passed


def test_a_broker_that_starts_again_may_have_learned_it_in_this_very_epoch() -> None:
    story = Story().starts(1).starts(2).leads(1, 2, 0, 0).starts(2).follows(2, 2, 50, 40)
    story.leads(1, 3, 50, 40)
    assert check_leaders_hold_committed(story.journals).passed


def test_two_isrs_of_a_partition_epoch_are_found() -> None:
    story = an_innocent_story()
    two = story.isr(2, 2, 21, 2)
    told = text_of(check_one_isr_an_epoch(two.journals))
    assert told == f"partition 0 of {TOPIC_ID} partition epoch 21: ISRs [(2,), (2, 3)]"


def test_an_isr_that_a_new_leader_begins_with_counts_for_its_partition_epoch() -> None:
    story = an_innocent_story().leads(3, 2, 160, 150, partition_epoch=21, isr=[3])
    assert "ISRs [(2, 3), (3,)]" in text_of(check_one_isr_an_epoch(story.journals))


def test_a_journal_with_a_gap_or_without_its_beginning_is_not_whole() -> None:
    story = an_innocent_story()
    assert check_journals_whole(story.journals, [1, 2, 3]).passed
    assert "4 has no journal" in text_of(check_journals_whole(story.journals, [1, 2, 3, 4]))
    del story.journals[2][2]
    gap = check_journals_whole(story.journals, [1, 2, 3])
    assert "event 4 follows 2" in text_of(gap)
    assert check_journals_whole(story.journals, [1, 2, 3], may_lose=True).passed
    del story.journals[2][0]
    assert "event 2 follows 0" in text_of(check_journals_whole(story.journals, [1, 2, 3]))


def test_chains_that_differ_or_don_t_compare_are_found() -> None:
    good = {0: {broker: Chain(0, 0, 100, "aa") for broker in (1, 2, 3)}}
    assert check_chains(good, {0: 3}).passed
    assert "2 chains, not 3" in text_of(check_chains({0: dict(list(good[0].items())[:2])}, {0: 3}))
    other = {0: good[0] | {3: Chain(0, 0, 100, "bb")}}
    assert "replicas differ" in text_of(check_chains(other, {0: 3}))
    late = {0: good[0] | {3: Chain(5, 5, 100, "cc")}}
    assert "don't compare" in text_of(check_chains(late, {0: 3}))
    empty = {0: {broker: Chain(0, 0, 0, "00") for broker in (1, 2, 3)}}
    assert not check_chains(empty, {0: 3}).passed


def test_damaged_disks_and_disks_nobody_looked_at_are_found() -> None:
    row = {"folder": "orders-0", "is_damaged": False, "batches": 4, "findings": []}
    assert check_disks_sound({1: [row], 2: [row]}).passed
    assert not check_disks_sound({1: [row], 2: []}).passed
    assert not check_disks_sound({1: [row | {"batches": 0}]}).passed
    bad = row | {"is_damaged": True, "findings": ["crc"]}
    assert "broker 2: orders-0: ['crc']" in text_of(check_disks_sound({1: [row], 2: [bad]}))


def test_an_event_is_read_as_it_is_documented() -> None:
    said = {
        "sequence": 7, "incarnation_id": "life", "monotonic_ms": 1, "wall_ms": 2,
        "kind": "truncated", "topic": "orders", "topic_id": TOPIC_ID, "partition": 3,
        "leader_epoch": 4, "facts": {"to": 5},
    }  # fmt: skip
    assert event_of(2, said) == JournalEvent(
        2, 7, "life", "truncated", "orders", TOPIC_ID, 3, 4, {"to": 5}
    )
    own = said | {"topic": None, "topic_id": None, "partition": None, "kind": "started"}
    assert event_of(2, own).partition == -1
