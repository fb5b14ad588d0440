"""The order of the tests over pytest-xdist's workers, for `--dist loadfile` as in `make test`.

A unit is what one worker runs in one piece: a file, because its tests share fixtures and counts; a
folder that shares a session; in `tests/chaos` a single test, because each starts a cluster of its
own. Tests that compare wall-clock times with narrow limits form the unit `CLOCKED`. It runs first,
and meanwhile the other worker runs only tests that start no cluster: one core is left to each.
Units that take longest follow, so that none is left over at the end; what needs no cluster fills
the rest.
"""

from __future__ import annotations

from pathlib import PurePosixPath

import pytest
from typing_extensions import override
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

CLOCKED = "clocked"
CLOCKED_FILES = {
    "tests/chaos/test_slow_link.py": "the median of requests beside a slow link",
    "tests/integration/test_broker_heartbeats.py": "a heartbeat's answer within half an interval",
    "tests/integration/test_leader_moves.py": "how long a planned move holds up a producer",
    "tests/integration/test_peer_controller_sessions.py": "an answer within 250 ms",
    "tests/integration/test_quorum_loop.py": "how long the loop of a controller stands still",
    "tests/integration/test_quorum_processes.py": "an election within 500 ms",
}
"""Files of the unit `CLOCKED` → the time that they measure."""
LONGEST = (
    "tests/integration/test_chaos_demo.py",
    "tests/integration/test_up_same_directory.py",
    "tests/integration/test_consumer_quickstart.py",
    "tests/integration/test_up_nodes_by_hand.py",
    "tests/spark",
    "tests/integration/test_cluster_disk_faults.py",
    "tests/integration/test_idempotent_kills.py",
    "tests/integration/test_cluster_outages.py",
    "tests/integration/test_cluster_restarts.py",
    "tests/integration/test_up_lifecycle.py",
    "tests/integration/test_bench_run.py",
    "tests/integration/test_group_coordinator_kills.py",
    "tests/integration/test_cluster_kills.py",
    "tests/integration/test_operating_pages.py",
)
"""Units that take 20 s and more, longest first; two that start Spark do not follow at once."""
CLUSTERS = ("tests/chaos", "tests/integration", "tests/spark")
SIMULATIONS = "tests/simulation"
ONE_BY_ONE = "tests/chaos"
IN_ONE_PIECE = "tests/spark"


def unit_of(node_id: str) -> str:
    """Return the name of the unit that a test belongs to."""
    file = node_id.partition("::")[0]
    if file in CLOCKED_FILES:
        return CLOCKED
    folder = str(PurePosixPath(file).parent)
    if folder == ONE_BY_ONE:
        return node_id
    return folder if folder == IN_ONE_PIECE else file


def place_of(unit: str) -> int:
    """Return the sort key of a unit: the smallest one is begun first."""
    if unit == CLOCKED:
        return 0
    if unit in LONGEST:
        return 1 + LONGEST.index(unit)
    groups = (CLUSTERS, SIMULATIONS, "")
    return 1 + len(LONGEST) + next(n for n, names in enumerate(groups) if unit.startswith(names))


def sort_items(items: list[pytest.Item]) -> None:
    """Bring the collected tests into the order in which workers begin them."""
    items.sort(key=lambda item: place_of(unit_of(item.nodeid)))


class UnitScheduling(LoadScopeScheduling):
    """Hands out units in the order of the collection; beside `CLOCKED` none that has a cluster."""

    def __init__(self, config: pytest.Config, log: Producer | None = None) -> None:
        config.option.loadscopereorder = False  # else units go out by their number of tests
        super().__init__(config, log)

    @override
    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)

    def _is_clocked(self) -> bool:
        """Return True while a worker has tests of `CLOCKED` left."""
        return not all(
            all(units.get(CLOCKED, {}).values()) for units in self.assigned_work.values()
        )

    @override
    def _assign_work_unit(self, node: WorkerController) -> None:
        if self._is_clocked():
            without = (unit for unit in self.workqueue if not unit.startswith(CLUSTERS))
            self.workqueue.move_to_end(next(without, next(iter(self.workqueue))), last=False)
        super()._assign_work_unit(node)
