"""Observer of the cluster's own reports during a run: leaders, epochs, ISRs, terms.

Sends HTTP requests to every node in turn, directly as an operator would, never through the proxies.
The highest epoch or term reported by any node is taken as current.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from chaos.deadline import within
from chaos.history import ControllerTerm, PartitionLeadership
from chaos.http import CallError, id_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from chaos.cluster import ClusterFile, Node
    from chaos.history import History
    from chaos.http import Http
    from raft_metadata.common.clock import Clock

LOOK_EVERY_S = 0.1
ANSWER_DEADLINE_S = 1.0
LOOK_AGAIN_S = 0.03


class Watch:
    """The observed state of a cluster.

    Owned by the run, runs as its task until `stop`; others read it.
    """

    def __init__(
        self,
        http: Http,
        history: History,
        now: ClusterFile,
        clock: Clock,
        *,
        topic: str,
        partitions: int,
    ) -> None:
        self._http = http
        self._history = history
        self._now = now
        self._clock = clock
        self._topic = topic
        self._partitions = partitions
        self._stopped = asyncio.Event()
        self._leaderships: dict[int, PartitionLeadership] = {}
        self._partition_epochs: dict[int, int] = {}
        self._recorded_reports: set[PartitionLeadership] = set()
        self._recorded_terms: set[tuple[int, int]] = set()
        self.active: int | None = None
        """The controller that last reported to be active in the highest term; None if none."""
        self.term = -1
        self.active_claims: dict[int, int] = {}
        """Controllers whose last report was that they are active → their term."""

    def stop(self) -> None:
        """Let `run` end."""
        self._stopped.set()

    def of(self, partition: int) -> PartitionLeadership:
        """Return the known leadership of a partition."""
        return self._leaderships[partition]

    def leader_of(self, partition: int) -> int | None:
        """Return the leader of a partition; None if it has none or nothing is known."""
        known = self._leaderships.get(partition)
        return None if known is None else known.leader

    async def run(self) -> None:
        """Poll every node in its own task, so that a hanging node does not delay the others."""
        async with asyncio.TaskGroup() as tasks:
            for broker in self._now.brokers:
                tasks.create_task(self._ask_often(lambda b=broker: self.look_at_partitions(b)))  # type: ignore[misc] # a default binds the loop's variable
            for controller in self._now.controllers:
                tasks.create_task(self._ask_often(lambda c=controller: self._look_at(c)))  # type: ignore[misc]

    async def _ask_often(self, look: Callable[[], Any]) -> None:
        while not self._stopped.is_set():
            await look()
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_EVERY_S):
                    await self._stopped.wait()

    async def look_at_partitions(self, broker: Node) -> None:
        """Request the state of every partition from one broker."""
        path = f"/v3/clusters/{self._now.cluster_id}/topics/{self._topic}/partitions"
        try:
            listed = await self._http.get_json(broker.url + path, ANSWER_DEADLINE_S)
        except CallError:
            return
        for row in listed["data"]:
            self._learn(row, broker.id)

    def _learn(self, row: dict[str, Any], told_by: int) -> None:
        leader = row["leader"]
        learned = PartitionLeadership(
            partition=row["partition_id"],
            leader=None if leader is None else id_of(leader),
            epoch=row["leader_epoch"],
            isr=tuple(sorted(row["isr"])),
            told_by=told_by,
            seen_ms=0,
        )
        if (
            learned not in self._recorded_reports
        ):  # record each report once; two brokers may disagree
            self._recorded_reports.add(learned)
            self._history.add(replace(learned, seen_ms=self._clock.monotonic_ms()))
        known = self._leaderships.get(learned.partition)
        if known is None or (learned.epoch, row["partition_epoch"]) >= (
            known.epoch,
            self._partition_epochs.get(learned.partition, -1),
        ):
            self._leaderships[learned.partition] = learned
            self._partition_epochs[learned.partition] = row["partition_epoch"]

    async def _look_at(self, controller: Node) -> None:
        try:
            status = await self._http.get_json(
                f"{controller.url}/controller/v1/status", ANSWER_DEADLINE_S
            )
        except CallError:
            self.active_claims.pop(controller.id, None)
            return
        if not status["is_active"]:
            self.active_claims.pop(controller.id, None)
            if self.active == controller.id:
                self.active = None
            return
        term: int = status["term"]
        self.active_claims[controller.id] = term
        if (controller.id, term) not in self._recorded_terms:
            self._recorded_terms.add((controller.id, term))
            self._history.add(
                ControllerTerm(
                    controller=controller.id, term=term, seen_ms=self._clock.monotonic_ms()
                )
            )
        if term >= self.term:
            self.active, self.term = controller.id, term

    async def until(self, holds: Callable[[], bool], what: str, deadline_s: float) -> int:
        """Wait until `holds` returns True; return the milliseconds that took.

        Raises:
            TooLateError: naming `what`.
        """
        began = self._clock.monotonic_ms()
        async with within(deadline_s, what):
            while not holds():  # noqa: ASYNC110 the state is polled over HTTP
                await asyncio.sleep(LOOK_AGAIN_S)
        return self._clock.monotonic_ms() - began

    def all_in_sync(self, replicas: int) -> bool:
        """Return whether every partition has a leader and `replicas` in-sync replicas."""
        known = [self._leaderships.get(partition) for partition in range(self._partitions)]
        return all(
            one is not None and one.leader is not None and len(one.isr) == replicas for one in known
        )
