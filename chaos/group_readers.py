"""A consumer group over plain v2 HTTP that commits each batch it received.

A read whose answer is lost has nevertheless moved its instance's position (plain v2 is at most once
for a lost reply, G5). After any failure a member therefore deletes its instance and begins anew at
the last commit. Records that it reads twice that way are its own doing; records that no member
receives are lost by the system. The coordinator scenario runs the members; reads and commits go
into the history.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Any

import orjson

from chaos.history import GroupCommit, GroupRead
from chaos.http import JSON_V2, CallError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chaos.cluster import ClusterFile
    from chaos.history import History
    from chaos.http import Http
    from chaos.load import Endpoint
    from raft_metadata.common.clock import Clock

SESSION_TIMEOUT_MS = 3000
READ_TIMEOUT_MS = 300
CALL_DEADLINE_S = 4.0
GIVE_UP_DEADLINE_S = 1.0
PAUSE_AFTER_FAILURE_S = 0.1


class GroupReaders:
    """Members of one group, each through every broker in turn. Owned by a scenario."""

    def __init__(
        self,
        http: Http,
        history: History,
        topic: str,
        endpoints: Sequence[Endpoint],
        clock: Clock,
        *,
        group: str,
        members: int,
    ) -> None:
        self._http = http
        self._history = history
        self._topic = topic
        self._endpoints = endpoints
        self._clock = clock
        self.group = group
        self._members = members
        self._stopped = asyncio.Event()
        self.committed: dict[int, int] = {}
        """Partition → the highest acknowledged commit, which is the next offset to read."""
        self.instances = 0
        """Number of instances created; exceeds the number of members if one was replaced."""

    def stop(self) -> None:
        """Let every member leave."""
        self._stopped.set()

    async def run(self) -> None:
        """Read and commit until `stop`."""
        async with asyncio.TaskGroup() as tasks:
            for member in range(self._members):
                tasks.create_task(self._read_on(member))

    async def _read_on(self, member: int) -> None:
        for life in count():
            if self._stopped.is_set():
                return
            url = self._endpoints[(member + life) % len(self._endpoints)].url
            name = f"member-{member}-{life}"
            instance = f"{url}/consumers/{self.group}/instances/{name}"
            try:
                await self._join(url, name)
                while not self._stopped.is_set():
                    await self._read_and_commit(instance, name)
            except CallError:
                await asyncio.sleep(PAUSE_AFTER_FAILURE_S)
            finally:
                with suppress(CallError):
                    await self._http.delete(instance, GIVE_UP_DEADLINE_S)

    async def _join(self, url: str, name: str) -> None:
        body = {
            "name": name,
            "format": "json",
            "auto.offset.reset": "earliest",
            "auto.commit.enable": "false",
            "session.timeout.ms": str(SESSION_TIMEOUT_MS),
        }
        group = f"{url}/consumers/{self.group}"
        await self._http.post_v2(group, body, CALL_DEADLINE_S)
        self.instances += 1
        topics = {"topics": [self._topic]}
        path = f"{group}/instances/{name}/subscription"
        await self._http.post_v2(path, topics, CALL_DEADLINE_S)

    async def _read_and_commit(self, instance: str, name: str) -> None:
        url = f"{instance}/records?timeout={READ_TIMEOUT_MS}&max_bytes=65536"
        sent_ms = self._clock.monotonic_ms()
        records = orjson.loads(await self._http.get_accepting(url, JSON_V2, CALL_DEADLINE_S))
        per_partition: dict[int, list[int]] = {}
        for record in records:
            per_partition.setdefault(record["partition"], []).append(record["offset"])
        if not per_partition:
            return
        now = self._clock.monotonic_ms()
        for partition, offsets in per_partition.items():
            self._history.add(
                GroupRead(
                    member=name,
                    partition=partition,
                    offsets=tuple(offsets),
                    sent_ms=sent_ms,
                    answered_ms=now,
                )
            )
        last = {partition: offsets[-1] for partition, offsets in per_partition.items()}
        await self._commit(instance, name, last)

    async def _commit(self, instance: str, name: str, last: dict[int, int]) -> None:
        rows: list[dict[str, Any]] = [
            {"topic": self._topic, "partition": partition, "offset": offset}
            for partition, offset in last.items()
        ]
        await self._http.post_v2(f"{instance}/offsets", {"offsets": rows}, CALL_DEADLINE_S)
        for partition, offset in last.items():
            self._history.add(
                GroupCommit(
                    member=name,
                    partition=partition,
                    next_offset=offset + 1,
                    answered_ms=self._clock.monotonic_ms(),
                )
            )
            self.committed[partition] = max(self.committed.get(partition, 0), offset + 1)


async def committed_offsets(
    http: Http, now: ClusterFile, url: str, group: str, topic: str
) -> dict[int, int]:
    """Return the group's committed offsets by partition, as v3 reports them."""
    path = f"/v3/clusters/{now.cluster_id}/consumer-groups/{group}/offsets"
    listed = await http.get_json(url + path, 3.0)
    return {
        row["partition_id"]: row["offset"] for row in listed["data"] if row["topic_name"] == topic
    }


async def coordinator_of(http: Http, now: ClusterFile, url: str, group: str) -> int:
    """Return the broker that coordinates the group, as v3 reports it."""
    path = f"/v3/clusters/{now.cluster_id}/consumer-groups/{group}"
    described = await http.get_json(url + path, 2.0)
    return int(str(described["coordinator"]["related"]).rsplit("/", 1)[1])
