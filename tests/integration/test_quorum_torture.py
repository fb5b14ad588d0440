"""Real voters killed, cut off and robbed of their power: nothing acknowledged is lost or doubled.

The short forms run every time; the long ones, the bars, with `make test-slow`. Environment, for the
long ones: QUORUM_TORTURE_KILLS, _PARTITIONS, _MINUTES, _CUTS, _SEED.
"""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import os
import random
import sys
from pathlib import Path

import pytest

from tests.support.quorum_rack import Rack
from tests.support.quorum_sim import quorum_world
from tests.support.quorum_torture import NODES, WRITERS, Books, Nemesis, tortured

__all__ = ["quorum_world"]

LOAD_S_MAX = 120.0
BACK_S_MAX = 60.0
"""From the SIGKILL of everybody to the next acknowledged write: 100,000 partitions are read from a
snapshot by three processes on two cores."""
RECONVERGE_S_MAX = 20.0
SETTLE_S_MAX = 60.0
POWER_CUT_DISKS = 4
"""A snapshot holds all that was ever written: beyond fifty cuts a disk has mostly that to do."""

_log = logging.getLogger("torture")


def patience(seconds: float) -> None:
    """The time after which a test counts as hanging is meant for everyday tests: set it anew."""
    assert sys.__stderr__ is not None
    faulthandler.dump_traceback_later(seconds, exit=True, file=sys.__stderr__)


def said(name: str, default: float) -> float:
    """A number from the environment."""
    return float(os.environ.get(f"QUORUM_TORTURE_{name}", default))


async def kill_everybody(
    root: Path, *, kills: int, partitions: int, snapshot_entries: int, marks: int
) -> Books:
    """kill -9 of all voters, again and again, each time after so many more marks."""
    rng = random.Random(said("SEED", 1))
    async with tortured(root, snapshot_entries=snapshot_entries) as voters:
        await voters.load(partitions, LOAD_S_MAX)
        slowest_s = 0.0
        async with asyncio.TaskGroup() as group:
            for _ in range(WRITERS):
                group.create_task(voters.write())
            for _ in range(kills):
                # A part of the entries between two snapshots, so that kills hit their writing.
                await voters.until_acknowledged(rng.randint(marks // 2, marks), BACK_S_MAX)
                await voters.kill(*NODES)
                await voters.start(*NODES)
                back_s = await voters.until_acknowledged(1, BACK_S_MAX)
                slowest_s = max(slowest_s, back_s)
            voters.stop_writing()
        books = await voters.balanced(SETTLE_S_MAX)
    _log.warning("kills=%d slowest_return_s=%.2f %s", kills, slowest_s, books)
    assert books.partitions == partitions
    assert all(index > 0 for index in books.snapshots.values()), "no start was from a snapshot"
    assert books.acknowledged >= kills * marks // 2
    return books


async def test_rule_q1_kill_9_of_all_voters_amid_compaction_loses_nothing(tmp_path: Path) -> None:
    await kill_everybody(tmp_path, kills=2, partitions=2_000, snapshot_entries=200, marks=500)


@pytest.mark.slow
async def test_rule_q1_kill_9_of_all_voters_20_times_with_100000_partitions(tmp_path: Path) -> None:
    kills = int(said("KILLS", 20))
    patience(LOAD_S_MAX + kills * BACK_S_MAX)
    await kill_everybody(
        tmp_path,
        kills=kills,
        partitions=int(said("PARTITIONS", 100_000)),
        snapshot_entries=2_000,
        marks=4_000,
    )


async def kills_and_cut_links(root: Path, *, seconds: float, partitions: int) -> None:
    """Random kills and link faults; whole again every few seconds, and then it must converge."""
    seed = int(said("SEED", 1))
    async with tortured(root, snapshot_entries=500) as voters:
        await voters.load(partitions, LOAD_S_MAX)
        nemesis = Nemesis(voters, random.Random(seed), RECONVERGE_S_MAX)
        async with asyncio.TaskGroup() as group:
            for _ in range(WRITERS):
                group.create_task(voters.write())
            await voters.until_acknowledged(100, BACK_S_MAX)
            await nemesis.run(seconds)
            voters.stop_writing()
        books = await voters.balanced(SETTLE_S_MAX)
    _log.warning(
        "seed=%d seconds=%d healed=%d slowest_return_s=%.2f faults=%s answers=%s %s",
        *(seed, seconds, len(nemesis.reconverged_s), max(nemesis.reconverged_s)),
        *(dict(nemesis.done), dict(voters.ledger.answers), books),
    )
    kills = sum(count for what, count in nemesis.done.items() if what.startswith("kill"))
    cuts = sum(count for what, count in nemesis.done.items() if what.startswith("link"))
    assert kills + cuts > seconds / 8
    assert books.acknowledged > 10 * seconds
    assert books.unknown > 0, "nothing was ever in doubt: that was no torture"


async def test_random_kills_and_cut_links_lose_nothing_and_converge(tmp_path: Path) -> None:
    await kills_and_cut_links(tmp_path, seconds=6, partitions=1_000)


@pytest.mark.slow
async def test_ten_minutes_of_kills_and_cut_links_lose_nothing_and_converge(
    tmp_path: Path,
) -> None:
    seconds = 60 * said("MINUTES", 10)
    patience(2 * seconds + LOAD_S_MAX)
    await kills_and_cut_links(tmp_path, seconds=seconds, partitions=1_000)


@pytest.mark.slow
@pytest.mark.usefixtures("quorum_world")
@pytest.mark.parametrize("part", range(POWER_CUT_DISKS))
def test_rules_q1_q5_q6_200_power_cuts_over_restarts_lose_nothing(part: int) -> None:
    """Fifty on each of four disk stand-ins: what one cut left is what the next one finds."""
    seed, cuts = int(said("SEED", 1)) + part, int(said("CUTS", 200)) // POWER_CUT_DISKS
    rack = Rack(seed)
    rack.sim.start()
    rounds = 0
    while rack.cuts < cuts:
        rack.one_round()
        rounds += 1
    payloads = rack.settled()
    acknowledged = len(rack.acknowledged())
    _log.warning(
        "seed=%d cuts=%d rounds=%d acknowledged=%d present=%d sent=%d",
        *(seed, rack.cuts, rounds, acknowledged, len(payloads), len(rack.sent)),
    )
    assert acknowledged > 3 * rounds
