"""A `Consumer` that gets its pages, commits and assignments by hand, and interrupts at each line.

No thread runs and no broker is asked: a test says which pages have come, and sees what is fetched
next, what is returned, and what would be committed.
"""

from __future__ import annotations

import linecache
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import orjson
import pytest

from http_api.client.polling import PolledPage, PollRefusal
from http_api.client.sdk.commits import Offsets
from http_api.client.sdk.consumer import Consumer
from http_api.client.sdk.consumer_work import ConsumerWork
from http_api.client.sdk.membership import Subscription
from http_api.client.sdk.positions import ANY_BROKER, FetchPlan, LogPosition, PartitionState
from http_api.client.sdk.record_types import TopicPartition
from http_api.client.sdk.steps import BlockingShell, Steps
from http_api.contract.group_resources import AssignedPartition, GroupMembership

AT = TopicPartition("t", 0)
TRACED = {"consumer.py", "consumer_base.py", "positions.py", "page_decoding.py", "membership.py"}
"""Modules whose lines are interrupted."""


class FedConsumer(Consumer[Any, Any]):
    """A consumer of partitions 0 and 1 of a topic; `log` is what their logs hold."""

    def __init__(self, **settings: Any) -> None:
        super().__init__("127.0.0.1:1", **({"auto_offset_reset": "earliest"} | settings))
        self.log: dict[int, list[dict[str, Any]]] = {0: [], 1: []}

    def begin(self) -> None:
        """Assign both partitions at offset 0."""
        self.assign([TopicPartition("t", at, 0) for at in (0, 1)])

    def join(self, *partitions: int, **callbacks: Any) -> None:
        """Be a member of the group to which these partitions are assigned."""
        self._callbacks = callbacks
        self._work.membership.subscribe(Subscription(("t",), None))
        self.be_assigned(*partitions)

    def be_assigned(self, *partitions: int) -> None:
        """Get the answer to a heartbeat; the program learns of it in its next call."""
        rows = tuple(
            AssignedPartition(
                topic="t", topic_id="id", partition=at, offset=0, leader_epoch=None,
                is_committed=False,
            )
            for at in partitions
        )  # fmt: skip
        member = self._work.membership
        found = GroupMembership(
            group="g", member_id=member.member_id, static_id=None, member_epoch=1, group_epoch=1,
            assignor="uniform", heartbeat_interval_ms=1_000, session_timeout_ms=3_000,
            assignment=rows, revoked=(),
        )  # fmt: skip
        with self._shell.lock:
            member.receive(found, member.owned, self._now_s(), self._now_s())
            self._attend()

    @property
    def member_id(self) -> str:
        return self._work.membership.member_id

    @property
    def knows_failure(self) -> bool:
        """True once the end of its block has said that the program failed."""
        return self._has_failed

    @property
    def paused(self) -> list[int]:
        """Partitions that are held back."""
        return [one.partition for one in self._work.positions.states.values() if one.is_paused]

    def write(self, *values: Any, partition: int = 0, **more: Any) -> None:
        """Append records with these values, as JSON unless they are bytes of JSON."""
        for value in values:
            text = orjson.Fragment(value) if isinstance(value, bytes) else value
            offset = len(self.log[partition])
            self.log[partition].append({"offset": offset, "key": None, "value": text} | more)

    def state(self, partition: int = 0) -> PartitionState:
        return self._work.positions.states["t", partition]

    def plan(self) -> FetchPlan:
        found = self._work.positions.plan(ANY_BROKER, self._now_s() + 100.0)
        assert isinstance(found, FetchPlan)
        return found

    def fetch(self, most: int = 100, partition: int = 0, *, is_garbled: bool = False) -> None:
        """Bring the next page of a partition, with at most so many records."""
        fetched = self.state(partition).fetched
        assert fetched is not None
        rows = self.log[partition][fetched.offset : fetched.offset + most]
        batch = {"count": len(rows), "timestamp": 0, "key_format": "json", "value_format": "json"}
        lines = [{"batch": batch | {"leader_epoch": 1}}, *rows] if rows else []
        page = PolledPage(
            topic="t",
            topic_id="id",
            partition=partition,
            offset=fetched.offset,
            next_offset=fetched.offset + len(rows),
            next_leader_epoch=1,
            leader_epoch=1,
            leader_url=None,
            high_watermark=len(self.log[partition]),
            log_start_offset=0,
            records=len(rows),
            body=b"".join(orjson.dumps(one) + b"\n" for one in lines[is_garbled:]),
        )
        with self._shell.lock:
            self._work.positions.receive_page(self.plan(), page)

    def refuse(self, plan: FetchPlan, code: int, offset: int, text: str = "", **more: Any) -> None:
        refusal = PollRefusal(topic="t", partition=0, offset=offset, error_code=code,
            message=text, retriable=False, **more)  # fmt: skip
        with self._shell.lock:
            self._work.positions.receive_refusal(plan, refusal, self._now_s())

    def values(self) -> list[Any]:
        """Return the values that come until nothing does, fetching as the positions say."""
        found: list[Any] = []
        while True:
            for partition in (0, 1):
                state = self._work.positions.states.get(("t", partition))
                fetched = state and state.fetched
                if fetched is not None and fetched.offset < len(self.log[partition]):
                    self.fetch(partition=partition)
            record = self.poll(0.0)
            if record is None:
                return found
            found.append(record.value)

    def has_more(self) -> bool:
        """Return True if there is something to fetch of partition 0."""
        fetched = self.state().fetched
        return fetched is not None and fetched.offset < len(self.log[0])

    def make_room(self) -> None:
        """Do what a worker does before it chooses what to fetch."""
        with self._shell.lock:
            self._work.positions.make_room()

    def hold(self) -> None:
        """Pause partition 0 and resume it."""
        self.pause([AT])
        self.resume([AT])

    def read_again(self) -> None:
        """Have partition 0 fetched again from its position, as after an interrupt."""
        with self._shell.lock:
            self._drop_page([("t", 0)])
            self.state().rewind()

    def offset(self) -> int | None:
        """Return the position in partition 0."""
        return self.position([AT])[0].offset


class Commits(list[int | None]):
    """Offsets that were committed of partition 0, in order."""

    def make(self, work: ConsumerWork, offsets: Offsets) -> list[TopicPartition]:
        self += [one.offset for (_, partition), one in offsets.items() if partition == 0]
        positions = {
            at: LogPosition(one.offset or 0, one.leader_epoch) for at, one in offsets.items()
        }
        work.positions.receive_commit(positions)
        return list(offsets.values())


def record_commits(monkeypatch: pytest.MonkeyPatch) -> Commits:
    """Record commits in place of sending them, and start no threads."""
    found = Commits()

    def make(work: ConsumerWork, offsets: Offsets, *_: Any) -> Steps[list[TopicPartition]]:
        yield from ()
        return found.make(work, offsets)

    monkeypatch.setattr(ConsumerWork, "commit_until_known", make)
    monkeypatch.setattr(BlockingShell, "start", lambda *_: None)
    return found


class Tracer:
    """Interrupts at a line, counted from 0, that runs in the SDK's modules of reading."""

    def __init__(self, line: int, cleaning: set[str] | None = None) -> None:
        """``cleaning``: functions that are not interrupted."""
        self._left = line
        self._cleaning = {"_undo_call", "_settle"} if cleaning is None else cleaning
        self.has_raised = False

    def __enter__(self) -> Tracer:
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, _: object) -> Any:
        code = frame.f_code
        is_cleaning = code.co_name in self._cleaning
        if self.has_raised or Path(code.co_filename).name not in TRACED or is_cleaning:
            return None
        text = linecache.getline(code.co_filename, frame.f_lineno).lstrip()
        if event == "line" and not text.startswith("with "):  # its end runs unguarded if traced
            self._left -= 1
            if self._left < 0:
                self.has_raised = True
                raise KeyboardInterrupt
        return self._trace
