"""Headers of an idempotent produce, which name its producer, and the JSON shape of a producer id.

``Quorumlog-Producer-Id`` comes from ``POST /v3/clusters/C/producer-ids``. ``Quorumlog-Sequence`` is
the sequence of the first record; the next request's is this one plus its number of records (after
2^31 - 1 follows 0). A request has all three headers or none; with them all its records belong to
one partition.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from http_api.contract.errors import RestCode, RestError, excerpt
from raft_metadata.common.ids import (
    EPOCH_MAX,
    FIRST_RESERVED_PRODUCER_ID,
    SEQUENCES,
    Claim,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from http_api.contract.v3 import JsonObject, Links

PRODUCER_ID = "Quorumlog-Producer-Id"
PRODUCER_EPOCH = "Quorumlog-Producer-Epoch"
SEQUENCE = "Quorumlog-Sequence"
HEADER_LIMITS = {
    PRODUCER_ID: FIRST_RESERVED_PRODUCER_ID - 1,
    PRODUCER_EPOCH: EPOCH_MAX,
    SEQUENCE: SEQUENCES - 1,
}
"""Largest value of each header, in the order of the fields of `Claim`."""
_INTEGER = re.compile(r"\d{1,19}")


def claim_headers(claim: Claim) -> dict[str, str]:
    """Return the headers with which a client sends a claim."""
    return dict(zip(HEADER_LIMITS, map(str, claim), strict=True))


def claim_of(headers: Mapping[str, str]) -> Claim | None:
    """Return the producer that a request names, or None if it has none of the three headers.

    Raises:
        RestError: 400/40002, naming the header and the expected value.
    """
    given = {name: headers.get(name) for name in HEADER_LIMITS}
    if all(value is None for value in given.values()):
        return None
    numbers = []
    for name, value in given.items():
        if value is None:
            others = ", ".join(other for other in HEADER_LIMITS if given[other] is not None)
            raise _bad_header(
                f"Header '{name}' is missing beside {others}: expected all three or none"
            )
        if not _INTEGER.fullmatch(value) or int(value) > HEADER_LIMITS[name]:
            expected = f"an integer from 0 to {HEADER_LIMITS[name]}"
            if name == PRODUCER_ID:
                expected += " (higher producer ids are the cluster's own)"
            raise _bad_header(f"Header '{name}' is '{excerpt(value)}': expected {expected}")
        numbers.append(int(value))
    return Claim(*numbers)


def producer_id(links: Links, number: int) -> JsonObject:
    """Return the resource of a newly allocated producer id; its first epoch is 0."""
    return links.resource("KafkaProducerId", f"producer-id={number}", "producer-ids", number) | {
        "producer_id": number,
        "producer_epoch": 0,
    }


def _bad_header(text: str) -> RestError:
    return RestError(400, RestCode.KAFKA_BAD_REQUEST, text)
