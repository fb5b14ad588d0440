"""Check of the demo's Spark query: its result against one computed here from the same flights."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import msgspec

from chaos.checkers.verdict import Verdict, verdict

if TYPE_CHECKING:
    from collections.abc import Iterable

    from chaos.history import Line

Row = tuple[str, int, int, int, float]
"""(carrier, month, flights, flights that departed, sum of their delays in minutes)."""


class _Flight(msgspec.Struct, gc=False):
    carrier: str | None = None
    month: int | None = None
    dep_delay: float | None = None


_decode_flight = msgspec.json.Decoder(_Flight).decode
_decode_row = msgspec.json.Decoder(dict[str, Any]).decode


def delays_per_carrier_and_month(flights: Iterable[Line]) -> set[Row]:
    """Return flights and delays per carrier and month; a record that is no flight is left out."""
    counts: dict[tuple[str, int], tuple[int, int, float]] = defaultdict(lambda: (0, 0, 0.0))
    for line in flights:
        flight = _decode_flight(line.value)
        if flight.carrier is None or flight.month is None:
            continue
        all_of, departed, delay = counts[flight.carrier, flight.month]
        late = flight.dep_delay
        counts[flight.carrier, flight.month] = (
            all_of + 1,
            departed + (late is not None),
            delay + (late or 0.0),
        )
    return {(carrier, month, *figures) for (carrier, month), figures in counts.items()}


def answered(results: Iterable[Line]) -> set[Row]:
    """Return the rows in the topic of results; a key's last record is valid."""
    last = {line.key: _decode_row(line.value) for line in results}
    return {
        (row["carrier"], row["month"], row["flights"], row["departed"], float(row["delay"]))
        for row in last.values()
    }


def check_delays(flights: Iterable[Line], results: Iterable[Line]) -> Verdict:
    """Check that the table equals the computed one: no flight missing, none counted twice."""
    expected, found = delays_per_carrier_and_month(flights), answered(results)
    faults = [f"expected {row}" for row in sorted(expected - found)]
    faults += [f"found {row}" for row in sorted(found - expected)]
    if not expected:
        faults.append("there were no flights: nothing was shown")
    counted = sum(row[2] for row in found)
    return verdict(
        "delays per carrier and month are exact",
        f"{len(found)} rows over {counted:,} flights, {len(expected ^ found)} differ",
        faults,
    )
