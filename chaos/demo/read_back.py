"""Read the topic through brokers that it was not written through, and check the records."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from chaos.checkers.records import (
    check_offsets,
    check_order,
    check_partitioner,
    check_present,
    readers_for,
)
from chaos.checkers.repeats import check_repeats
from chaos.demo.stage import FELT_DEADLINE_S, PARTITIONS, TOPIC
from chaos.history import Reading

if TYPE_CHECKING:
    from chaos.cluster import Node
    from chaos.demo.stage import Stage

READ_MAX_BYTES = 4 << 20


async def read_and_judge(stage: Stage, accept: str, prefix: str) -> None:
    """Read the topic, set `stage.held` to the result, and check it."""
    now, history = stage.now(), stage.history
    brokers = [node.id for node in now.brokers]
    readings = [
        await _read(stage, now.node(broker), accept) for broker in readers_for(history, brokers)
    ]
    stage.held = readings[0]
    for one in (
        check_present(history, readings),
        check_offsets(readings),
        check_order(history),
        check_partitioner(history, PARTITIONS),
        check_repeats(history, readings[0]),
    ):
        stage.judge(replace(one, name=prefix + one.name))


async def _read(stage: Stage, broker: Node, accept: str) -> Reading:
    await stage.http.wait_ready(broker.url, FELT_DEADLINE_S)
    began = time.monotonic()
    partitions = {
        partition: await stage.http.read_partition(
            broker.url, TOPIC, partition, accept=accept, max_bytes=READ_MAX_BYTES
        )
        for partition in range(PARTITIONS)
    }
    count = sum(len(lines) for lines in partitions.values())
    stage.screen.say(
        f"read {count:,} records through broker {broker.id} in "
        f"{time.monotonic() - began:.1f} s ({accept})"
    )
    return Reading(broker.id, partitions)
