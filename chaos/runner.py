"""The run of one scenario, from an empty directory to its verdicts.

`cli.py` calls `ScenarioRun.play`. In order: start a cluster behind proxies; start writers that
never send a value twice and readers of the tail; run a steady load, the scenario's faults, and the
load until everything is healthy again; then read everything back through every broker and from
every disk, and check it.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from chaos.broker_files import lines_on_disk, read_chains, read_journals, verify_disks
from chaos.checkers.events import (
    check_chains,
    check_disks_sound,
    check_high_watermarks,
    check_journals_whole,
    check_leaders_hold_committed,
    check_one_isr_an_epoch,
    check_one_leader_an_epoch,
    check_truncations,
)
from chaos.checkers.faults import (
    check_alive,
    check_back_to_normal,
    check_bypass,
    check_felt,
    check_floor,
    check_logs,
    check_produce_gap,
    windows,
)
from chaos.checkers.metadata import (
    check_controllers_agree,
    check_one_leader_and_controller,
    check_topics,
)
from chaos.checkers.records import (
    check_offsets,
    check_order,
    check_partitioner,
    check_present,
    check_repeats,
    check_replicas,
    check_seen_stays,
)
from chaos.checkers.verdict import Verdict, verdict
from chaos.deadline import TooLateError, read_until, within
from chaos.disks.power import Power
from chaos.history import Reading
from chaos.http import CallError, Http, id_of
from chaos.net.links import Plane, node_name
from chaos.scenarios.scenario import COUNTED_DEADLINE_S, TOPIC, ScenarioContext, make_faults
from chaos.watch import Watch
from chaos.workloads import GroupReaders, MetadataProbe, TailReaders, UniqueWriters
from raft_metadata.common.clock import SystemClock

if TYPE_CHECKING:
    from chaos.cluster import ClusterFile, Node
    from chaos.proxied_cluster import ProxiedCluster
    from chaos.run import Run
    from chaos.scenarios.scenario import Scenario

PARTITIONS = 3
WRITERS_PER_PARTITION = 4
GROUP = "readers"
GROUP_MEMBERS = 2
STEADY_S = 2.0
AFTER_S = 2.0
GAP_LIMIT_MS = 5000
"""Longest allowed gap in acknowledged writes. For a silent broker the worst of 30 is promised
within 3 s (docs/claims.md); added to it are a writer's own timeout of 1 s and the load of a machine
that also runs six nodes, a proxy and the clients."""
WHOLE_LIMIT_MS = 20_000
READY_DEADLINE_S = 20.0
SAME_DEADLINE_S = 10.0
FLOOR = 5
"""Fewest acknowledged writes per partition and window. The writers make about 60 a second; behind a
broker that is cut off each request takes its whole timeout."""
PROBE_KEEPS_EVERY = 3
APPLIED = ("applied_index", "next_offset", "topics", "partitions")
"""Fields of a controller's status that equal logs make equal."""
RUN_MARGIN_S = 150.0
_LOOK_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Options of a run, from the command line."""

    seed: int
    duration_s: float


class ScenarioRun:
    """The run of one scenario on one cluster. Used once."""

    def __init__(
        self, scenario: Scenario, cluster: ProxiedCluster, run: Run, options: RunOptions
    ) -> None:
        self._scenario = scenario
        self._cluster = cluster
        self._run = run
        self._history = run.history
        self._options = options
        self._whole_ms: int | None = None

    async def play(self) -> None:
        """Play the scenario; the verdicts are added to the run."""
        deadline_s = RUN_MARGIN_S + 4 * self._options.duration_s
        async with within(deadline_s, "the scenario ends"), self._cluster, Http() as http:
            ready_s = await self._cluster.local.start()
            now = self._cluster.local.read()
            self._run.screen.say(
                f"{self._scenario.name} seed {self._options.seed}: {len(now.controllers)} "
                f"controllers, {len(now.brokers)} brokers, {len(self._cluster.network.links)} "
                f"proxied links, ready in {ready_s:.1f} s"
            )
            await self._create_topic(http, now)
            context = await self._load_and_break(http, now)
            self._judge_faults(context)
            await self._read_and_judge(http, context)
            if self._scenario.replication_factor > 1:
                await self._move_leaders(http, context)
            alive = self._cluster.local.read()
            code = await self._cluster.local.stop()
            await self._judge_files(context)
            self._run.judge(check_alive(_pids(now), _pids(alive), context.killed))
            logs = (self._cluster.local.data_dir / "logs").glob("*.log")
            self._run.judge(
                check_logs({log.stem: log.read_text("utf-8", "replace") for log in logs})
            )
            proxied = await self._proxied_bytes()
            self._run.judge(check_bypass(self._cluster.tripwire.connections, proxied))
            self._run.judge(
                verdict("clean stop", f"exit {code}, no process left", [str(code)] if code else [])
            )

    async def _proxied_bytes(self) -> dict[str, int]:
        """Return proxied bytes per plane. Toxiproxy counts a connection only once it has ended."""

        async def count() -> dict[str, int]:
            found = {plane.value: 0 for plane in Plane}
            for link, traffic in (await self._cluster.network.traffic()).items():
                found[link.plane.value] += traffic.requests_passed + traffic.answers_passed
            return found

        return await read_until(COUNTED_DEADLINE_S, lambda found: all(found.values()), count)

    async def _create_topic(self, http: Http, now: ClusterFile) -> None:
        await http.create_topic(
            f"{now.brokers[0].url}/v3/clusters/{now.cluster_id}/topics",
            TOPIC,
            partitions=PARTITIONS,
            replication_factor=self._scenario.replication_factor,
        )

    # -- load and faults

    async def _load_and_break(self, http: Http, now: ClusterFile) -> ScenarioContext:
        history, clock = self._history, SystemClock()
        watch = Watch(http, history, now, clock, topic=TOPIC, partitions=PARTITIONS)
        topic = (http, history, TOPIC, now.brokers, clock, PARTITIONS)
        writers = UniqueWriters(*topic, watch, WRITERS_PER_PARTITION)
        readers = TailReaders(*topic)
        probe = MetadataProbe(
            http, history, now.cluster_id, now.brokers, clock, keeps_every=PROBE_KEEPS_EVERY
        )
        local, shim, random = self._cluster.local, self._cluster.disks, Random(self._options.seed)
        context = ScenarioContext(
            cluster=local,
            now=now,
            network=self._cluster.network,
            shim=shim,
            power_supply=None if shim is None else Power(local, shim, random),
            http=http,
            history=history,
            watch=watch,
            writers=writers,
            group=GroupReaders(*topic, now.cluster_id, GROUP, GROUP_MEMBERS),
            clock=clock,
            random=random,
            partitions=PARTITIONS,
            duration_s=self._options.duration_s,
            say=self._run.screen.say,
        )
        replicas = self._scenario.replication_factor
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(watch.run())
            await watch.until(
                lambda: watch.all_in_sync(replicas) and watch.active is not None,
                "every partition has its replicas in sync",
                READY_DEADLINE_S,
            )
            loads = [
                tasks.create_task(each) for each in (writers.run(), readers.run(), probe.run())
            ]
            await asyncio.sleep(STEADY_S)
            await make_faults(self._scenario, context)
            await self._wait_until_healthy(context)
            await asyncio.sleep(AFTER_S)
            for each in (writers, readers, probe):
                each.stop()
            await asyncio.gather(*loads)
            watch.stop()
        return context

    async def _wait_until_healthy(self, context: ScenarioContext) -> None:
        """Wait until every replica is in sync and every partition has acknowledged a new write."""
        has_new_writes = context.new_writes()

        def whole() -> bool:
            replicas = self._scenario.replication_factor
            return context.watch.all_in_sync(replicas) and has_new_writes()

        with suppress(TooLateError):
            took = await context.watch.until(whole, "everything is whole", WHOLE_LIMIT_MS / 1000)
            self._whole_ms = took

    # -- verdicts

    def _judge_faults(self, context: ScenarioContext) -> None:
        history, judge = self._history, self._run.judge
        judge(check_felt(history))
        stops = self._scenario.stops_writes
        sheltered = range(PARTITIONS if stops else 0)
        judge(check_floor(history, PARTITIONS, FLOOR, sheltered=sheltered))
        for fault, until_ms in windows(history) if not stops else ():
            judge(check_produce_gap(history, fault, until_ms, GAP_LIMIT_MS))
        judge(
            check_back_to_normal(
                self._scenario.name,
                self._whole_ms,
                WHOLE_LIMIT_MS,
                "every replica in sync and every partition written",
            )
        )
        judge(check_one_leader_and_controller(history))

    async def _read_and_judge(self, http: Http, context: ScenarioContext) -> None:
        history, judge = self._history, self._run.judge
        readings = []
        for broker in context.now.brokers:
            try:
                readings.append(await self._read(http, broker))
            except (CallError, TooLateError) as error:
                judge(Verdict(f"read through broker {broker.id}", passed=False, figures=str(error)))
        if not readings:
            return
        judge(check_present(history, readings))
        judge(check_offsets(readings))
        judge(check_order(history))
        judge(check_partitioner(history, PARTITIONS))
        judge(check_repeats(history, readings[0]))
        judge(check_seen_stays(history, readings[0]))
        disks = await self._disks_once_equal(readings[0], context)
        replicas = dict.fromkeys(range(PARTITIONS), self._scenario.replication_factor)
        judge(check_replicas(readings[0], disks, replicas))
        chains = await read_chains(http, context.now.brokers, TOPIC, PARTITIONS)
        judge(check_chains(chains, replicas))
        names = await self._topic_names(http, context)
        judge(check_topics(history, names))
        judge(check_controllers_agree(await self._applied_once_equal(http, context)))
        for one in self._scenario.own_checks(context, readings[0]):
            judge(one)

    async def _move_leaders(self, http: Http, context: ScenarioContext) -> None:
        """Drain a leader, so that another broker begins to lead records of the whole run."""
        base = f"{context.now.brokers[0].url}/v3/clusters/{context.now.cluster_id}"
        path = f"{base}/topics/{TOPIC}/partitions/0"
        before = await http.get_json(path)
        if before["leader"] is None:
            return  # already reported by the failed read
        leader = id_of(before["leader"])
        await http.post_json(f"{base}/brokers/{leader}:drain", {"scope": "leaders"})
        async with within(READY_DEADLINE_S, "a drained broker leads nothing"):
            while True:
                now = await http.get_json(path)
                if now["leader_epoch"] > before["leader_epoch"]:
                    return
                await asyncio.sleep(_LOOK_S)

    async def _judge_files(self, context: ScenarioContext) -> None:
        """Check the files of the stopped brokers: their journals, read together, and their logs."""
        data_dir, judge = self._cluster.local.data_dir, self._run.judge
        journals = read_journals(data_dir, context.brokers)
        may_lose = self._scenario.disks != "sound"
        judge(check_journals_whole(journals, context.brokers, may_lose=may_lose))
        judge(check_one_leader_an_epoch(journals))
        judge(check_one_isr_an_epoch(journals))
        judge(check_high_watermarks(journals))
        judge(check_truncations(journals))
        if self._scenario.replication_factor > 1:
            judge(check_leaders_hold_committed(journals))
        judge(check_disks_sound(await verify_disks(data_dir, context.brokers)))
        for one in await self._scenario.disk_checks(context):
            judge(one)

    async def _read(self, http: Http, broker: Node) -> Reading:
        await http.wait_ready(broker.url, READY_DEADLINE_S)
        return Reading(broker.id, await http.read_topic(broker.url, TOPIC, PARTITIONS))

    async def _disks_once_equal(self, served: Reading, context: ScenarioContext) -> list[Reading]:
        """Return the content of the replicas' disks, once all are equal or the deadline passed."""

        async def read() -> list[Reading]:
            return [await asyncio.to_thread(self._disk, broker) for broker in context.brokers]

        def equal(disks: list[Reading]) -> bool:
            return all(
                disk.partitions[partition] == served.partitions[partition]
                for disk in disks
                for partition in disk.partitions
            )

        return await read_until(SAME_DEADLINE_S, equal, read)

    def _disk(self, broker: int) -> Reading:
        data_dir = self._cluster.local.data_dir
        found = {
            partition: lines
            for partition in range(PARTITIONS)
            if (lines := lines_on_disk(data_dir, broker, TOPIC, partition)) is not None
        }
        return Reading(broker, found)

    async def _applied_once_equal(
        self, http: Http, context: ScenarioContext
    ) -> dict[int, dict[str, object]]:
        """Return each controller's applied state, once all are equal or the deadline has passed."""

        async def read() -> dict[int, dict[str, object]]:
            facts: dict[int, dict[str, object]] = {}
            for controller in context.now.controllers:
                with suppress(CallError):
                    status = await http.get_json(f"{controller.url}/controller/v1/status", 2.0)
                    hashes = await self._hashes(http, controller)
                    facts[controller.id] = {name: status[name] for name in APPLIED} | hashes
            return facts

        def equal(facts: dict[int, dict[str, object]]) -> bool:
            first = facts.get(context.controllers[0])
            return len(facts) == len(context.controllers) and all(
                fact == first for fact in facts.values()
            )

        return await read_until(SAME_DEADLINE_S, equal, read)

    async def _hashes(self, http: Http, controller: Node) -> dict[str, object]:
        """Return hashes of a controller's whole history and of its image (invariant R12)."""
        state = await http.get_json(f"{controller.url}/controller/v1/state?image_hash=true", 5.0)
        return {
            "state hash": (state["state_hash"] or {}).get("value"),
            "image hash": state["image_hash"]["value"],
        }

    async def _topic_names(self, http: Http, context: ScenarioContext) -> frozenset[str]:
        url = f"{context.now.brokers[-1].url}/v3/clusters/{context.now.cluster_id}/topics"
        listed = await http.get_json(url)
        return frozenset(str(row["topic_name"]) for row in listed["data"])


def _pids(now: ClusterFile) -> dict[str, int | None]:
    return {node_name(node.id): node.pid for node in (*now.controllers, *now.brokers)}
