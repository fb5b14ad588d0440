"""Not there: the asyncio classes of ``confluent_kafka.aio``; importing this raises ImportError."""

from __future__ import annotations

msg = "confluent_kafka.aio is not supported: use quorumlog.AsyncProducer and AsyncConsumer"
raise ImportError(msg)
