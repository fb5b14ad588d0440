"""State shared by the legs of the demo, and the requests that several of them send."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from chaos.http import CallError
from chaos.load import Endpoint

if TYPE_CHECKING:
    from contextlib import ExitStack
    from pathlib import Path

    from chaos.checkers.verdict import Verdict
    from chaos.cluster import ClusterFile, LocalCluster, Node
    from chaos.history import History, Reading
    from chaos.http import Http
    from chaos.run_directory import Run
    from chaos.screen import Screen
    from raft_metadata.common.clock import Clock

TOPIC = "flights"
PARTITIONS = 6
REPLICATION_FACTOR = 3
FELT_DEADLINE_S = 20.0


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the demo, from the command line."""

    data: Path
    rows: int | None
    load_after_fault_s: float
    spark: bool = True


@dataclass(slots=True, kw_only=True)
class Stage:
    """The demo's shared state. Owned by the story; legs play on it one after the other.

    Attributes:
        held: the topic's content when it was last read back, by partition; legs that read the
            topic in another way compare with it.
    """

    run: Run
    cluster: LocalCluster
    http: Http
    clock: Clock
    options: Options
    clean_up: ExitStack
    """Closed at the end of the run, however it ends, without a loop; for processes that a leg
    starts itself."""
    held: Reading | None = None

    @property
    def history(self) -> History:
        """The history of the run."""
        return self.run.history

    @property
    def screen(self) -> Screen:
        """The output of the run."""
        return self.run.screen

    @property
    def directory(self) -> Path:
        """The run's directory, removed with its content after a success."""
        return self.run.directory

    def judge(self, one: Verdict) -> None:
        """Append a verdict and show it."""
        self.run.judge(one)

    def now(self) -> ClusterFile:
        """Return the present content of cluster.json."""
        return self.cluster.read()


@dataclass(frozen=True, slots=True, kw_only=True)
class Leg:
    """A part of the demo with checks of its own.

    `play` adds verdicts; an exception ends the run.
    """

    name: str
    play: Callable[[Stage], Awaitable[None]]
    needs_spark: bool = False


def endpoints(now: ClusterFile) -> list[Endpoint]:
    """Return the brokers' public addresses."""
    return [Endpoint(node.id, node.url) for node in now.brokers]


async def partition_facts(
    http: Http, now: ClusterFile, through: Node, partition: int
) -> dict[str, Any]:
    """Return a partition as v3 describes it."""
    path = f"/v3/clusters/{now.cluster_id}/topics/{TOPIC}/partitions/{partition}"
    described: dict[str, Any] = await http.get_json(through.url + path, 2.0)
    return described


def leader_of(described: dict[str, Any]) -> int:
    """Return the leader's broker id: `leader.related` ends in ``/replicas/<id>``."""
    return int(str(described["leader"]["related"]).rsplit("/", 1)[1])


async def active_controller(http: Http, now: ClusterFile) -> tuple[Node | None, int]:
    """Return the controller that reports to be active in the highest term, and that term."""
    active: Node | None = None
    highest = -1
    for node in now.controllers:
        with suppress(CallError):
            status = await http.get_json(f"{node.url}/controller/v1/status", 1.0)
            if status["is_active"] and status["term"] > highest:
                active, highest = node, status["term"]
    return active, highest
