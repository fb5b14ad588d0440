"""Log lines for changes of broker state that the active controller has decided.

`active_controller.py` calls `tell_states` after each append of its own decisions.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from raft_metadata.image.metadata_image import MetadataImage
from raft_metadata.records.records import (
    BrokerRegistrationChangeRecord,
    BrokerState,
    MetadataRecord,
)

_log = logging.getLogger("raft_metadata.controller")


def tell_states(image: MetadataImage, records: Sequence[MetadataRecord]) -> None:
    """Log each fencing or unfencing in `records`; `image` is the one that they change."""
    for record in records:
        if not isinstance(record, BrokerRegistrationChangeRecord):
            continue
        known = image.brokers.get(record.broker_id)
        if known is None or known.state is record.state:
            continue
        lost = record.state is BrokerState.FENCED and known.state is BrokerState.UNFENCED
        _log.log(
            logging.WARNING if lost else logging.INFO,
            "broker state broker=%d broker_epoch=%d from=%s to=%s",
            record.broker_id, record.broker_epoch, known.state.value, record.state.value,
        )  # fmt: skip
