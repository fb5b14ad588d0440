"""Writer of docs/reference/configs.md from the one table of configs: `make reference`.

A test compares the committed page with `page`, so that it is never out of date.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from raft_metadata.common.configs.rows import ConfigRow, NumberConfig, Scope, Section, text_of
from raft_metadata.common.configs.table import CONFIGS

REFERENCE = Path("docs/reference/configs.md")

_HEAD = """\
# Configs of topics, brokers and the cluster

Written by `make reference` from `raft_metadata/common/configs/table.py`: don't edit.

## Which value is in force

The first source in this table that sets a config. `quorumlog config describe`, and a config over
REST, name the source in force (`source`) and all others (`synonyms`).

| source | set by | affects |
| --- | --- | --- |
| `DYNAMIC_TOPIC_CONFIG` | an operator, on the topic | that topic |
| `DYNAMIC_BROKER_CONFIG` | an operator, on one broker | that broker |
| `DYNAMIC_DEFAULT_BROKER_CONFIG` | an operator, on the cluster | everything |
| `STATIC_BROKER_CONFIG` | `config.toml`, `QUORUMLOG_SECTION__KEY`, `--set key=value` | that node |
| `DEFAULT_CONFIG` | not set | everything |

**live**: in force on every node as soon as it has read the change in the metadata log, without a
restart. **restart**: read once at start from the node's `config.toml`, read-only over REST.

Three rules hold for `min.insync.replicas`:

- A default is capped by a topic's replication factor. A value that is set on a topic is not capped:
  it is refused above the replication factor.
- A cluster default above `default.replication.factor` is refused.
- When a lower value takes effect, partitions that now have enough in-sync replicas forget their
  eligible leader replicas (ELR) in the same decision: from then on leaders acknowledge without
  them.

Give the files of all nodes the same values. Brokers acknowledge by their own file. Controllers
count a replica as eligible only by the lowest `min_insync_replicas` in the files of all registered
brokers. To change such a default, set it live for the cluster: it then holds on all nodes at once.

On the command line a value in milliseconds or bytes takes a unit:
`quorumlog config set topic orders retention.ms=1h segment.bytes=64MiB`. Over HTTP and in files it
is a plain number.
"""

_PARTS = (
    (
        "Topics",
        """\
Set on one topic, or on the cluster as the default of all topics. For the cluster's own topics
(`__consumer_offsets`) only `min.insync.replicas`, `segment.bytes` and `segment.ms` can be set. Only
configs that affect a broker's own disk can be set on that broker.""",
    ),
    ("The cluster", "For all brokers and controllers together."),
    ("Limits", "Section `[limits]`: every queue, body and wait has a bound."),
    ("Time-outs", "Section `[timeouts]`."),
)


def _part_of(row: ConfigRow) -> str:
    if Scope.TOPIC in row.scopes:
        return "Topics"
    if row.scopes:
        return "The cluster"
    return "Limits" if row.section is Section.LIMITS else "Time-outs"


def page() -> str:
    """Return the whole page."""
    parts = [_HEAD]
    for title, text in _PARTS:
        rows = [row for row in CONFIGS.values() if _part_of(row) == title]
        parts.append(f"\n## {title}\n\n{text}\n\n{_table(rows)}")
    return "".join(parts)


def _table(rows: Iterable[ConfigRow]) -> str:
    lines = [
        "| name | meaning | default | range | set on | `config.toml` | in force |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        places = ", ".join(scope.value for scope in Scope if scope in row.scopes) or "–"
        file = "–" if row.section is None else f"`[{row.section.value}] {row.key}`"
        cells = (
            f"`{row.name}`",
            row.meaning,
            f"`{text_of(row.default)}`",
            row.bounds if isinstance(row, NumberConfig) else row.expected,
            places,
            file,
            row.update.value,
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else REFERENCE
    target.write_text(page(), encoding="utf-8")
