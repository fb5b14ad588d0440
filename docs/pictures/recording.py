"""Record `kill -9` of a leader under load, and draw it: docs/pictures/kill-nine.svg.

`make pictures` runs it. It starts a cluster of its own on free ports, writes with acks=all from
several threads, kills the broker that leads with SIGKILL, writes on, reads everything back from
another broker and compares. What happened is kept in kill-nine.json; `picture` draws it, a pure
function of that file. Without ``--record`` only the drawing is made again.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
FACTS, PICTURE = HERE / "kill-nine.json", HERE / "kill-nine.svg"

TOPIC = "orders"
WRITERS = 4
BATCH_RECORDS = 10
BUCKET_MS = 100
KILL_AFTER_MS = 3_000
RUN_MS = 8_000


# the run


def record() -> dict[str, Any]:
    """Return what a run showed: acknowledged records per bucket, the pause, and the check."""
    with tempfile.TemporaryDirectory() as directory:
        up = subprocess.Popen(
            [sys.executable, "-m", "http_api.cli", "up", "--port", "0", "--no-restart"],
            cwd=directory,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        try:
            assert up.stdout is not None
            urls = up.stdout.readline().split()[2:]
            nodes = json.loads((Path(directory) / "quorumlog-data/cluster.json").read_text())
            return _run(urls, {one["id"]: one["pid"] for one in nodes["brokers"]})
        finally:
            up.send_signal(signal.SIGINT)
            up.wait()


def _run(urls: list[str], pids: dict[int, int]) -> dict[str, Any]:
    from http_api.client import admin
    from http_api.client.transport import Client

    with Client(urls) as client:
        cluster_id = client.run(admin.cluster()).cluster_id
        client.run(admin.create_topic(cluster_id, TOPIC, partitions=1))
        leader = client.run(admin.partition(cluster_id, TOPIC, 0)).leader
    assert leader is not None
    writers = [_Writer(urls, number) for number in range(WRITERS)]
    began_s = time.monotonic()
    for writer in writers:
        writer.start(began_s)
    time.sleep(KILL_AFTER_MS / 1000)
    os.kill(pids[leader], signal.SIGKILL)
    killed_ms = round((time.monotonic() - began_s) * 1000)
    time.sleep((RUN_MS - KILL_AFTER_MS) / 1000)
    for writer in writers:
        writer.stop()
    acknowledged = {offset: value for one in writers for offset, value in one.acknowledged.items()}
    times_ms = sorted(ms for one in writers for ms in one.times_ms)
    buckets = [0] * (RUN_MS // BUCKET_MS)
    for ms in times_ms:
        if ms < RUN_MS:
            buckets[ms // BUCKET_MS] += BATCH_RECORDS
    pause_ms = max(later - sooner for sooner, later in pairwise(times_ms))
    found = _read_back(urls)
    return {
        "brokers": len(pids),
        "writers": WRITERS,
        "killed_broker": leader,
        "killed_ms": killed_ms,
        "bucket_ms": BUCKET_MS,
        "acknowledged_per_bucket": buckets,
        "longest_pause_ms": pause_ms,
        "acknowledged": len(acknowledged),
        "read_back": sum(found.get(offset) == value for offset, value in acknowledged.items()),
    }


class _Writer:
    """A thread that writes batches one after the other, each acknowledged by all replicas."""

    def __init__(self, urls: list[str], number: int) -> None:
        self._urls, self._number = urls, number
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._write)
        self._began_s = 0.0
        self.acknowledged: dict[int, str] = {}
        """Offset → value of each acknowledged record."""
        self.times_ms: list[int] = []
        """When each batch was acknowledged, since the start."""

    def start(self, began_s: float) -> None:
        self._began_s = began_s
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def _write(self) -> None:
        from http_api.client.produce_calls import JsonRecord, send
        from http_api.client.transport import Client

        made = 0
        with Client(self._urls[self._number % len(self._urls) :] + self._urls) as client:
            while not self._stopping.is_set():
                values = [f"{self._number}-{made + place}" for place in range(BATCH_RECORDS)]
                made += BATCH_RECORDS
                records = [JsonRecord(json.dumps(value).encode(), None) for value in values]
                done = send(client, TOPIC, records)
                for outcome, value in zip(done, values, strict=True):
                    if outcome.is_written and outcome.offset is not None:
                        self.acknowledged[outcome.offset] = value
                if all(outcome.is_written for outcome in done):
                    self.times_ms.append(round((time.monotonic() - self._began_s) * 1000))


def _read_back(urls: list[str]) -> dict[int, str]:
    from http_api.client.consumer import ends, fetch
    from http_api.client.transport import Client

    found: dict[int, str] = {}
    with Client(urls) as client:
        end, offset = client.run(ends(TOPIC, 0)).end, 0
        while offset < end:
            page = client.run(fetch(TOPIC, 0, offset))
            found.update((one.offset, json.loads(bytes(one.value))) for one in page.records)
            offset = page.next_offset
    return found


# the picture

WIDTH, HEIGHT = 880, 300
LEFT, RIGHT, FLOOR, TOP = 56, 856, 232, 84
SECONDS_PLAYED = 8.0
STYLE = """\
  <style>
    .paper { fill: #ffffff } .ink { fill: #1f2328 } .soft { fill: #59636e }
    .bar { fill: #1a7f37 } .axis { stroke: #8c959f } .kill { stroke: #cf222e }
    .killed { fill: #cf222e } .well { fill: #1a7f37 }
    @media (prefers-color-scheme: dark) {
      .paper { fill: #0d1117 } .ink { fill: #f0f6fc } .soft { fill: #9198a1 }
      .bar { fill: #3fb950 } .axis { stroke: #656c76 } .kill { stroke: #f85149 }
      .killed { fill: #f85149 } .well { fill: #3fb950 }
    }
    text { font: 13px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace }
    .title { font-size: 15px; font-weight: 600 }
    .late { animation: show 0.01s linear backwards }
    .bar { animation: grow 0.2s ease-out backwards; transform-box: fill-box;
      transform-origin: bottom }
    @keyframes show { from { opacity: 0 } to { opacity: 1 } }
    @keyframes grow { from { transform: scaleY(0) } to { transform: scaleY(1) } }
    @media (prefers-reduced-motion: reduce) {
      .late, .bar { animation: none }
    }
  </style>
"""


def _late(seconds: float) -> str:
    return f'style="animation-delay:{seconds:.2f}s"'


def picture(facts: dict[str, Any]) -> str:
    """Return the SVG of a run: bars that grow as the records were acknowledged."""
    buckets: list[int] = facts["acknowledged_per_bucket"]
    duration_ms = len(buckets) * facts["bucket_ms"]
    step, highest = (RIGHT - LEFT) / len(buckets), max(buckets)
    per_s = 1000 / facts["bucket_ms"]

    def at(ms: float) -> float:
        return LEFT + (RIGHT - LEFT) * ms / duration_ms

    bars = "".join(
        f'  <rect x="{LEFT + place * step + 0.8:.1f}" y="{FLOOR - height:.1f}" '
        f'width="{step - 1.6:.1f}" height="{height:.1f}" class="bar" '
        f"{_late(place * facts['bucket_ms'] / 1000)}/>\n"
        for place, count in enumerate(buckets)
        if (height := (FLOOR - TOP) * count / highest) > 0
    )
    seconds = "".join(
        f'  <text x="{at(second * 1000):.1f}" y="{FLOOR + 18}" class="soft" '
        f'text-anchor="middle">{second} s</text>\n'
        for second in range(duration_ms // 1000 + 1)
    )
    killed, lost = at(facts["killed_ms"]), facts["acknowledged"] - facts["read_back"]
    kill_s = facts["killed_ms"] / 1000
    verdict = (
        f"acknowledged {facts['acknowledged']:,} · read back {facts['read_back']:,} · lost {lost:,}"
    )
    title = (
        f"Records acknowledged per second while the leader is killed with kill -9: a pause of "
        f"{facts['longest_pause_ms']} ms; {verdict}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'width="{WIDTH}" height="{HEIGHT}" role="img" aria-label="{title}">\n'
        f"{STYLE}"
        f'  <rect width="{WIDTH}" height="{HEIGHT}" rx="10" class="paper"/>\n'
        f'  <text x="{LEFT}" y="28" class="ink title">acks=all, {facts["writers"]} writers, '
        f"{facts['brokers']} brokers: records acknowledged each {facts['bucket_ms']} ms</text>\n"
        f'  <text x="{LEFT - 8}" y="{TOP + 4}" class="soft" text-anchor="end">'
        f"{highest * per_s / 1000:.0f}k/s</text>\n"
        f'  <text x="{LEFT - 8}" y="{FLOOR}" class="soft" text-anchor="end">0</text>\n'
        f'  <path d="M{LEFT} {FLOOR} H{RIGHT}" class="axis" stroke-width="1"/>\n'
        f"{bars}{seconds}"
        f'  <g class="late" {_late(kill_s)}>\n'
        f'    <path d="M{killed:.1f} {TOP - 40} V{FLOOR}" class="kill" stroke-width="2" '
        'stroke-dasharray="5 4"/>\n'
        f'    <text x="{killed + 8:.1f}" y="{TOP - 28}" class="killed">kill -9 broker-'
        f"{facts['killed_broker']}, the leader</text>\n"
        "  </g>\n"
        f'  <g class="late" {_late(kill_s + facts["longest_pause_ms"] / 1000)}>\n'
        f'    <text x="{killed + 8:.1f}" y="{TOP - 10}" class="ink">writes go on after '
        f"{facts['longest_pause_ms']} ms</text>\n"
        "  </g>\n"
        f'  <g class="late" {_late(SECONDS_PLAYED)}>\n'
        f'    <text x="{LEFT}" y="{HEIGHT - 18}" class="{"well" if not lost else "killed"} title">'
        f"{verdict}</text>\n"
        "  </g>\n"
        "</svg>\n"
    )


def main() -> None:
    """Record a run if asked to, and draw the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", action="store_true", help="play a new run first: 15 s")
    if parser.parse_args().record:
        lines = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in record().items()]
        FACTS.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    PICTURE.write_text(picture(json.loads(FACTS.read_text())), encoding="utf-8")
    print(f"drawn {PICTURE.name}")


if __name__ == "__main__":
    main()
