"""Offsets of a query: their JSON, start and end, limits per micro-batch, tasks. Pure.

The JSON that Spark keeps in its checkpoint is ``{"v":2,"topics":{"orders":{"id":"<topic
id>","p":{"0":[123,4],"1":[0]}}}}``: the next offset and its epoch, the leader epoch of the record
right before it, left out where it is not known. Spark compares offsets by their text, so it is
always built in sorted order. By id and epoch another log is recognised: a topic that
was deleted and created anew, or a log that was cut after an unclean election, has the same name and
other records (Kafka's source cannot detect that).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from spark_source.errors import DataLossError, OptionError, SparkSourceError
from spark_source.options import EARLIEST, LATEST, PartialOffsets, SourceOptions

VERSION = 2
FIRST_VERSION = 1
EPOCHS_MAX = 16
"""Most epochs that a poll names between two offsets (interfaces.md, section 4)."""


class NextOffset(NamedTuple):
    """The next offset to read, and what is known of the record before it."""

    offset: int
    epoch: int | None = None
    """Leader epoch of the record right before the offset; None if it is not known."""


@dataclass(frozen=True, slots=True)
class TopicOffsets:
    """The next offset to read of each partition, of the topic with this id."""

    topic_id: str
    partitions: Mapping[int, NextOffset]


Position = Mapping[str, TopicOffsets]
"""Topic name → the next offsets to read."""
Place = tuple[str, int]
"""(topic, partition)."""
Epochs = Sequence[tuple[int, int]]
"""(epoch, first offset) of consecutive offsets of a partition, in order."""
FIRST = NextOffset(0)
"""Start of a partition that was not read before."""


@dataclass(frozen=True, slots=True)
class TopicEnds:
    """Ends of a topic: partition → (earliest offset, next offset to be written)."""

    topic_id: str
    partitions: Mapping[int, tuple[int, NextOffset]]

    @property
    def latest(self) -> TopicOffsets:
        return TopicOffsets(self.topic_id, {p: end for p, (_, end) in self.partitions.items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Offsets of one partition, from ``start`` to before ``end``."""

    topic: str
    topic_id: str
    partition: int
    start: int
    end: int
    start_epoch: int | None = None
    """Epoch of ``start``; None if it is not known."""
    end_epoch: int | None = None
    from_earliest: bool = False
    """True if the partition was not read before: records deleted by retention are then no loss."""

    @property
    def size(self) -> int:
        return self.end - self.start


def to_json(position: Position) -> dict[str, Any]:
    """Return the form that Spark keeps."""
    return {
        "v": VERSION,
        "topics": {
            topic: {
                "id": offsets.topic_id,
                "p": {str(p): _written(offsets.partitions[p]) for p in sorted(offsets.partitions)},
            }
            for topic, offsets in sorted(position.items())
        },
    }


def _written(at: NextOffset) -> list[int]:
    return [at.offset] if at.epoch is None else [at.offset, at.epoch]


def from_json(found: Mapping[str, Any]) -> Position:
    """Return the position of `to_json`'s form.

    Raises:
        SparkSourceError: another form or another version; one without epochs is refused naming the
            option by which a new query begins there.
    """
    version: object = None
    try:
        version = found["v"]
        if version == VERSION:
            return {
                topic: TopicOffsets(
                    offsets["id"], {int(p): _read(at) for p, at in offsets["p"].items()}
                )
                for topic, offsets in found["topics"].items()
            }
        if version == FIRST_VERSION:
            raise _without_epochs(found)
    except (KeyError, TypeError, ValueError, AttributeError):
        pass
    msg = f"the checkpoint holds offsets of version {version}, expected {VERSION}: {found!r:.200}"
    raise SparkSourceError(msg)


def _read(at: Sequence[int]) -> NextOffset:
    offset, *epoch = at
    if len(epoch) > 1:
        raise ValueError(at)
    return NextOffset(int(offset), *map(int, epoch))


def _without_epochs(found: Mapping[str, Any]) -> SparkSourceError:
    named = {
        topic: {p: int(at) for p, at in offsets["p"].items()}
        for topic, offsets in found["topics"].items()
    }
    return SparkSourceError(
        f"the checkpoint holds offsets of version {FIRST_VERSION}, without epochs, by which a log "
        "that was cut is recognised: begin a new checkpoint with "
        f"startingOffsets={json.dumps(named)}"
    )


def resolve(
    ends: Mapping[str, TopicEnds], named: PartialOffsets, default: int, *, fail_on_data_loss: bool
) -> Position:
    """Return the offsets of an option, with -2 and -1 resolved and ``default`` for the rest.

    Raises:
        OptionError: a partition that does not exist.
        DataLossError: an offset outside the partition's range.
    """
    position = {}
    for topic, held in ends.items():
        asked = named.get(topic, {})
        if missing := sorted(asked.keys() - held.partitions.keys()):
            msg = f"topic {topic} has {len(held.partitions)} partitions, there is no {missing[0]}"
            raise OptionError(msg)
        position[topic] = TopicOffsets(
            held.topic_id,
            {
                partition: _resolve_one(
                    (topic, partition), asked.get(partition, default), low, high, fail_on_data_loss
                )
                for partition, (low, high) in held.partitions.items()
            },
        )
    return position


def _resolve_one(
    place: tuple[str, int],
    asked: int,
    low: int,
    high: NextOffset,
    fail: bool,  # noqa: FBT001 the option failOnDataLoss
) -> NextOffset:
    if asked == EARLIEST:
        return NextOffset(low)
    if asked == LATEST:
        return high
    if low <= asked < high.offset:
        return NextOffset(asked)
    if asked != high.offset and fail:
        msg = (
            f"offset {asked} of partition {place[1]} of topic {place[0]} is not there: it holds "
            f"{low} to {high.offset}; failOnDataLoss=false takes the nearest"
        )
        raise DataLossError(msg)
    return NextOffset(low) if asked < low else high


def advance(start: Position, latest: Position, *, fail_on_data_loss: bool) -> Position:
    """Return the latest offsets, none below ``start``; topics no longer subscribed keep theirs.

    Raises:
        DataLossError: a topic was deleted and created anew since ``start``.
    """
    check_same_topic_ids(start, latest, fail_on_data_loss=fail_on_data_loss)
    advanced = dict(start)
    for topic, new in latest.items():
        old = start.get(topic)
        if old is None or old.topic_id != new.topic_id:
            advanced[topic] = new
            continue
        partitions = {
            partition: at
            for partition, at in new.partitions.items()
            if partition not in old.partitions or at.offset > old.partitions[partition].offset
        }
        advanced[topic] = TopicOffsets(new.topic_id, {**old.partitions, **partitions})
    return advanced


def check_same_topic_ids(start: Position, end: Position, *, fail_on_data_loss: bool) -> None:
    """Check that every topic of both positions has the same id.

    Raises:
        DataLossError: a topic was deleted and created anew.
    """
    if not fail_on_data_loss:
        return
    for topic, new in end.items():
        old = start.get(topic)
        if old is not None and old.topic_id != new.topic_id:
            msg = (
                f"topic {topic} was deleted and created anew: the query read id {old.topic_id}, "
                f"now it is {new.topic_id}. What the old one still held is lost; "
                "failOnDataLoss=false reads the new one from its start"
            )
            raise DataLossError(msg)


def ranges(start: Position, end: Position, *, fail_on_data_loss: bool) -> list[Range]:
    """Return the ranges between two positions, sorted; equal positions give equal ranges.

    A partition that ``start`` does not know is read from its first record.

    Raises:
        DataLossError: a topic was deleted and created anew in between.
    """
    check_same_topic_ids(start, end, fail_on_data_loss=fail_on_data_loss)
    found = []
    for topic, offsets in sorted(end.items()):
        old = start.get(topic)
        known = old.partitions if old is not None and old.topic_id == offsets.topic_id else {}
        for partition, stop in sorted(offsets.partitions.items()):
            begin = known.get(partition, FIRST)
            if stop.offset > begin.offset:  # else a log was cut, and is read on from ``stop``
                found.append(
                    Range(
                        topic=topic,
                        topic_id=offsets.topic_id,
                        partition=partition,
                        start=begin.offset,
                        end=stop.offset,
                        start_epoch=begin.epoch,
                        end_epoch=stop.epoch,
                        from_earliest=partition not in known,
                    )
                )
    return found


def limit(
    start: Position, end: Position, max_rows: int, epochs: Mapping[Place, Epochs]
) -> Position:
    """Return a position at most ``max_rows`` offsets after ``start``, shared out by lag.

    Every partition that lags gets one offset, while there are enough, so long queues do not starve
    a short one. The remainder of rounding goes to the longest. ``epochs``: those between ``start``
    and ``end``, as a poll names them; a partition is not cut where its epoch is not known.
    """
    lagging = ranges(start, end, fail_on_data_loss=False)
    total = sum(one.size for one in lagging)
    if total <= max_rows:
        return end
    by_lag = sorted(lagging, key=lambda one: (-one.size, one.topic, one.partition))
    shares = {id(one): 1 for one in by_lag[:max_rows]}
    left = max_rows - len(shares)
    for one in by_lag[: len(shares)]:
        shares[id(one)] += min(one.size - 1, left * one.size // total)
    left = max_rows - sum(shares.values())
    for one in by_lag[: len(shares)]:
        more = min(left, one.size - shares[id(one)])
        shares[id(one)] += more
        left -= more
    limited = {topic: dict(offsets.partitions) for topic, offsets in end.items()}
    for one in lagging:
        share = shares.get(id(one), 0)
        if share:
            named = epochs.get((one.topic, one.partition), ())
            at = cut(limited[one.topic][one.partition], one.start + share, named)
        elif one.from_earliest:
            del limited[one.topic][one.partition]
            continue
        else:
            at = NextOffset(one.start, one.start_epoch)
        limited[one.topic][one.partition] = at
    return {topic: TopicOffsets(end[topic].topic_id, limited[topic]) for topic in end}


def cut(end: NextOffset, wanted: int, epochs: Epochs) -> NextOffset:
    """Return an offset before ``end`` with its epoch: ``wanted``, or less where that is not known.

    ``epochs``: (epoch, first offset) up to ``end``, the first `EPOCHS_MAX`. Where there may be more
    of them, it is not known where the last one ends.
    """
    if wanted >= end.offset:
        return end
    if len(epochs) == EPOCHS_MAX and epochs[-1][0] != end.epoch:
        wanted = min(wanted, epochs[-1][1])
    before = [epoch for epoch, first in epochs if first < wanted]
    return NextOffset(wanted, before[-1] if before else None)


# ---- tasks


def tasks(found: Sequence[Range], options: SourceOptions) -> list[tuple[Range, ...]]:
    """Return the ranges of each task; every offset is in exactly one of them.

    Each Python task costs tens of milliseconds, so small ranges share one; a long range is divided
    only if an option requests it.
    """
    pieces = list(found)
    if options.max_records_per_partition is not None:
        pieces = _cut(pieces, options.max_records_per_partition)
    total = sum(one.size for one in pieces)
    wanted = -(-total // options.rows_per_task)
    if options.min_partitions is not None and total:
        wanted = max(wanted, options.min_partitions)
        if len(pieces) < options.min_partitions:
            pieces = _cut(pieces, max(1, total // options.min_partitions))
    if options.max_records_per_partition is not None:
        wanted = max(wanted, -(-total // options.max_records_per_partition))
    return _share(pieces, min(len(pieces), max(1, wanted)))


def _cut(pieces: Sequence[Range], size: int) -> list[Range]:
    """Divide the ranges into pieces of at most ``size`` offsets."""
    return [
        replace(
            one,
            start=at,
            end=min(at + size, one.end),
            start_epoch=one.start_epoch if at == one.start else None,
            end_epoch=one.end_epoch if at + size >= one.end else None,
        )
        for one in pieces
        for at in range(one.start, one.end, size)
    ]


def _share(pieces: Sequence[Range], count: int) -> list[tuple[Range, ...]]:
    """Distribute the ranges over ``count`` tasks, largest first, each to the smallest task."""
    if not pieces:
        return []
    loads = [0] * count
    shares: list[list[Range]] = [[] for _ in range(count)]
    for one in sorted(pieces, key=lambda one: (-one.size, one.topic, one.partition, one.start)):
        least = loads.index(min(loads))
        loads[least] += one.size
        shares[least].append(one)
    return [
        tuple(sorted(share, key=lambda one: (one.topic, one.partition, one.start)))
        for share in shares
        if share
    ]
