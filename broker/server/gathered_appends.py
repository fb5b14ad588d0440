"""Plain produces of one turn of the loop, written as one: sixty-four clients, a few batches.

Each request is answered with its own offsets, and its records stand one behind the other, as if it
had come alone; but what a write, a push and a look at the high watermark cost is paid once for all
of them. Nobody waits for company: a turn of the loop ends when what has arrived is read. That is
Kafka's linger without the linger, and on the broker, where many small clients meet.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome

if TYPE_CHECKING:
    from broker.record.lines import ProduceRecord
    from broker.server.local_partitions import Alike, LocalPartitions, Waiting
    from raft_metadata.common.ids import PartitionId

_log = logging.getLogger("broker.server")

GATHERED_BYTES_MAX: Final = 64 << 10
"""Of bodies. More is written at once: a batch is read, checked and cleaned as a whole, and larger
ones save nothing."""


class _Gathered:
    """Records in order, and who waits for which of them."""

    __slots__ = ("body_bytes", "records", "waiting")

    def __init__(self) -> None:
        self.records: list[ProduceRecord] = []
        self.waiting: list[Waiting] = []
        self.body_bytes = 0


class GatheredAppends:
    """On the broker's loop. Holds what arrived in this turn, of each client at most a request."""

    def __init__(self, local: LocalPartitions) -> None:
        self._local = local
        self._gathered: dict[Alike, _Gathered] = {}

    def add(
        self,
        alike: Alike,
        records: Sequence[ProduceRecord],
        body_bytes: int,
        answered: Callable[[PartitionId, int, KafkaError | None], None],
    ) -> None:
        """Append these, all bare, in this turn; ``answered(partition, base, error)`` once.

        It must not raise. NOT_WRITTEN: nothing was done with these records, they may come again.
        """
        gathered = self._gathered.get(alike)
        if gathered is None:
            if not self._gathered:
                asyncio.get_running_loop().call_soon(self._write_all)
            gathered = self._gathered[alike] = _Gathered()
        gathered.waiting.append((len(gathered.records), answered))
        gathered.records += records
        gathered.body_bytes += body_bytes
        if gathered.body_bytes >= GATHERED_BYTES_MAX:
            del self._gathered[alike]
            self._write(alike, gathered)

    def _write_all(self) -> None:
        gathered, self._gathered = self._gathered, {}
        for alike, each in gathered.items():
            self._write(alike, each)

    def _write(self, alike: Alike, gathered: _Gathered) -> None:
        try:
            self._local.append_together(alike, gathered.records, gathered.waiting)
        except KafkaError as error:
            self._refuse(alike, gathered, error)
        except Exception as error:  # noqa: BLE001 a bug: nobody may wait for ever
            _log.exception("append failed partition=%s", alike.place)
            text = f"{type(error).__name__}: see the log of the broker"
            unknown = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, text, outcome=Outcome.UNKNOWN)
            self._refuse(alike, gathered, unknown)

    def _refuse(self, alike: Alike, gathered: _Gathered, error: KafkaError) -> None:
        for _, answered in gathered.waiting:
            answered(alike.place.partition, -1, error)
