"""Membership of a consumer in its group: joined, what it owns, what it is to own, and lost. Pure.

A heartbeat's answer names the assignment. What is owned and not in it is *revoked*: it stays owned,
and is named in heartbeats, until ``on_revoke`` has run in a call of the program and `give_up` is
called. What is new is owned once `take` was called, after which ``on_assign`` runs. A member that
the group does not know any more has *lost* everything; it joins again at the program's next poll.

Each taking has a number, so that a commit of one taking never goes out under a later one: another
member may have owned the partition in between. For the same reason a partition that was given up is
assigned again only by an answer to a heartbeat that did not name it any more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Set
from dataclasses import dataclass
from typing import Final, assert_never

from http_api.client.calls import Place
from http_api.client.client_errors import ApiError, FencedError, QuorumlogError
from http_api.client.groups import MemberSettings
from http_api.client.sdk.commits import MEMBER_FENCED
from http_api.client.sdk.consumer_settings import ConsumerConfig
from http_api.contract.group_resources import AssignedPartition, GroupMembership

FENCED_INSTANCE: Final = 40_952
MEMBER_GONE: Final = 40_403
WAITS_PER_SESSION: Final = 3
"""A waiting heartbeat takes at most this part of the session time-out."""
HEARTBEAT_LEAST_S: Final = 0.5
"""Least time between two heartbeats that report the same."""
MS: Final = 1_000


@dataclass(frozen=True, slots=True)
class Subscription:
    """Topics by name, or by a pattern; exactly one of the two is set."""

    topics: tuple[str, ...] | None
    pattern: str | None


@dataclass(frozen=True, slots=True)
class IdleDuty:
    """Nothing is to be sent until something changes."""


@dataclass(frozen=True, slots=True)
class JoinDuty:
    """The group is to be joined under this member id."""

    member_id: str


@dataclass(frozen=True, slots=True)
class HeartbeatDuty:
    """A heartbeat is due; the coordinator answers after ``wait_ms`` where nothing changes."""

    member_id: str
    epoch: int
    owned: tuple[Place, ...]
    wait_ms: int


@dataclass(frozen=True, slots=True)
class LaterDuty:
    """The next heartbeat is due after some seconds, or when the program gives up what it should."""

    seconds: float


@dataclass(frozen=True, slots=True)
class LeaveDuty:
    """The time between two polls is over: the member leaves until the next one."""

    member_id: str


Duty = IdleDuty | JoinDuty | HeartbeatDuty | LaterDuty | LeaveDuty


class ConsumerMembership:
    """Place of one consumer in its group, as far as it knows. The owner holds the shell's lock."""

    def __init__(self, config: ConsumerConfig, member_id: str) -> None:
        self._config = config
        self.member_id = member_id
        self.subscription: Subscription | None = None
        self.epoch: int | None = None
        """Epoch of the member; None: it is not in the group."""
        self._takings: dict[Place, int] = {}
        """Number of the taking of each owned partition."""
        self._takes = 0
        """Number of takings so far."""
        self.assignment: dict[Place, AssignedPartition] = {}
        """Partitions that the last answer of the coordinator assigns."""
        self.error: FencedError | None = None
        """Another process has this one's static id; nothing is sent any more."""
        self.is_lost = False
        """True until ``on_lost`` has run, after the group removed this member."""
        self.joins = 0
        """Number of joins; a join after a loss has another member id."""
        self.answers = 0
        """Number of answers to joins and heartbeats."""
        self._may_join = False
        self._needs_new_id = False
        """True behind an end: the former id's late requests must not meet the new membership."""
        self._heartbeat_s = 1.0
        self._sent_s = 0.0
        """Time at which the last heartbeat was sent that got an answer."""
        self._beat_s = 0.0
        """Time of the last heartbeat's answer."""
        self._sent_owned: frozenset[Place] | None = None

    # the program's side

    @property
    def owned(self) -> Set[Place]:
        """Partitions that the program reads, and heartbeats name."""
        return self._takings.keys()

    def holds(self, places: Iterable[Place]) -> dict[Place, int]:
        """Return those that may be committed now, each with the number of its taking.

        Without a subscription all may be, with the number 0; outside of the group none.
        """
        if self.subscription is None:
            return dict.fromkeys(places, 0)
        if self.epoch is None:
            return {}
        return {one: self._takings[one] for one in places if one in self._takings}

    def subscribe(self, subscription: Subscription | None) -> None:
        """Begin with another subscription, of a member that is not in the group."""
        self.subscription = subscription
        self._may_join = False

    def poll(self) -> None:
        """Allow a join: the program is reading."""
        self._may_join = True

    def revoked(self) -> list[Place]:
        """Return what is owned and assigned no longer."""
        return sorted(self.owned - self.assignment.keys())

    def added(self) -> list[AssignedPartition]:
        """Return what is assigned and not owned yet."""
        if self.epoch is None:
            return []
        return [self.assignment[one] for one in sorted(self.assignment.keys() - self.owned)]

    @property
    def has_change(self) -> bool:
        """True if a call of the program has something to run: a callback, or an error."""
        if self.is_lost or self.error is not None:
            return True
        return self.epoch is not None and self.owned != self.assignment.keys()

    def give_up(self, places: Iterable[Place]) -> None:
        """Own these no longer; the next heartbeat reports it.

        One that is assigned again meanwhile would begin at its commit of before: a later answer
        assigns it.
        """
        for place in places:
            self._takings.pop(place, None)
            self.assignment.pop(place, None)

    def take(self, places: Iterable[Place]) -> None:
        """Own these from now on."""
        self._takes += 1
        self._takings.update(dict.fromkeys(places, self._takes))

    def take_back(self, places: Iterable[Place]) -> None:
        """Own these not yet: they are added again."""
        for place in places:
            self._takings.pop(place, None)

    def take_loss(self) -> list[Place]:
        """Return what was owned when the member was removed, and own nothing."""
        lost = sorted(self.owned)
        self._takings.clear()
        self.is_lost = False
        return lost

    # the background's side

    def duty(self, now_s: float, polled_s: float, new_member_id: str) -> Duty:
        """Return what is to be sent now; ``polled_s`` is the time of the program's last poll."""
        if self.subscription is None or self.error is not None or self.is_lost:
            return IdleDuty()
        if self.epoch is None:
            if not self._may_join:
                return IdleDuty()
            if self._needs_new_id:
                self.member_id, self._needs_new_id = new_member_id, False
            return JoinDuty(self.member_id)
        left_s = polled_s + self._config.max_poll_interval_ms / MS - now_s
        if left_s <= 0:
            return LeaveDuty(self.member_id)
        owned = frozenset(self.owned)
        if owned == self._sent_owned:
            due_s = self._sent_s + HEARTBEAT_LEAST_S  # a broken broker's answer does not wait
            if self.owned != self.assignment.keys():
                due_s = self._beat_s + self._heartbeat_s  # it would come at once, and be the same
            if due_s > now_s:
                return LaterDuty(min(due_s - now_s, left_s))
        wait_ms = min(self._config.session_timeout_ms // WAITS_PER_SESSION, int(left_s * MS))
        return HeartbeatDuty(self.member_id, self.epoch, tuple(sorted(owned)), wait_ms)

    def receive(
        self, found: GroupMembership, sent_owned: Collection[Place], sent_s: float, now_s: float
    ) -> None:
        """Take the answer to a join, or to a heartbeat that was sent at ``sent_s``."""
        if self.epoch is None:
            self.joins += 1
        self.epoch = found.member_epoch
        given_up = set(sent_owned) - self.owned  # while the request was under way
        assigned = {(one.topic, one.partition): one for one in found.assignment}
        self.assignment = {place: one for place, one in assigned.items() if place not in given_up}
        self._heartbeat_s = max(found.heartbeat_interval_ms / MS, HEARTBEAT_LEAST_S)
        self._sent_s, self._beat_s = sent_s, now_s
        self._sent_owned = frozenset(sent_owned)
        self.answers += 1

    def receive_error(self, error: QuorumlogError) -> bool:
        """Take the refusal of a request; return True if it ends the membership."""
        if not isinstance(error, ApiError):
            return False
        if error.code == FENCED_INSTANCE:
            self.error = FencedError(str(error))
            self.error.code = error.code
            self.lose(may_join=False)
            return True
        if error.code in {MEMBER_FENCED, MEMBER_GONE} and self.epoch is not None:
            self.lose(may_join=True)
            return True
        return False

    def lose(self, *, may_join: bool) -> None:
        """Be no member any more: everything owned is lost; join again at a poll, or now."""
        self.epoch = None
        self.assignment = {}
        self.is_lost = bool(self.owned)
        self._may_join = may_join
        self._needs_new_id = True
        self._sent_owned = None

    def leave(self) -> None:
        """Be no member any more, by the program's own wish: nothing is lost."""
        self.epoch = None
        self.assignment = {}
        self._takings.clear()
        self.is_lost = False
        self._may_join = False
        self._needs_new_id = True
        self._sent_owned = None

    def member(self) -> tuple[str, int] | None:
        """Return member id and epoch for a commit; None outside of the group."""
        return None if self.epoch is None else (self.member_id, self.epoch)


def member_settings(config: ConsumerConfig, subscription: Subscription) -> MemberSettings:
    """Return the settings of a join."""
    return MemberSettings(
        topics=subscription.topics,
        topic_pattern=subscription.pattern,
        instance_id=config.group_instance_id,
        client_id=config.client_id,
        rack=config.rack,
        assignor=config.assignor,
        auto_offset_reset=config.auto_offset_reset,
        session_timeout_ms=config.session_timeout_ms,
        rebalance_timeout_ms=max(config.max_poll_interval_ms, MS),
    )


def needs_request(duty: Duty) -> bool:
    """Return True if the duty is a request to send."""
    match duty:
        case IdleDuty() | LaterDuty():
            return False
        case JoinDuty() | HeartbeatDuty() | LeaveDuty():
            return True
        case _:
            assert_never(duty)
