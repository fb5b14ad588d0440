"""Sends chunks of records until each one is acknowledged: at least once.

One request is in flight at a time, so records keep their order within a partition. Records that
certainly were not written are sent again; so are records that may have been written, and this can
duplicate a record. Rule F1 forbids that unless it is requested: this sink's documented guarantee,
at-least-once, requests it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from http_api.client.calls import Answer, Call, Request, path_of
from http_api.client.client_errors import ApiError, QuorumlogError
from http_api.client.produce_calls import RecordOutcome, parse_outcomes
from http_api.client.routes import Backoff
from http_api.contract.media_types import V2, V2_BINARY, V2_JSON
from spark_source.encoding import Chunk, body_of
from spark_source.errors import NotServedError, RejectedError
from spark_source.options import TextFormat

if TYPE_CHECKING:
    from collections.abc import Callable

    from http_api.client.transport import Client
    from spark_source.options import SinkOptions

REQUEST_TIMEOUT_S = 15.0
"""Time-out of a request; a broker answers after its own produce time-out (10 s) at the latest."""
RETRIABLE_STATUS_MIN = 500
_WRITTEN = b'"error_code":null'


class Sender:
    """Sender of a task's records. Owned by one task."""

    def __init__(
        self,
        client: Client,
        options: SinkOptions,
        now_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._client = client
        self._retry_s = options.connection.retry_s
        binary = options.value_format is TextFormat.BINARY
        self._content_type = V2_BINARY if binary else V2_JSON
        self._now_s = now_s
        self._sleep = sleep

    def send(self, chunk: Chunk) -> None:
        """Send a chunk; return once all in-sync replicas have acknowledged every record of it.

        Raises:
            RejectedError: the cluster will never accept one of the records.
            NotServedError: not all were acknowledged within the time for retries.
        """
        pending = chunk.records
        backoff = Backoff(self._now_s() + self._retry_s)
        while True:
            request = self._request(chunk, pending)
            asked = self._client.routes.candidates(request, self._now_s())[0]
            try:
                failed = self._client.run(Call(request, _failures), retry_s=0.0)
                why = "" if not failed else str(next(iter(failed.values())).error)
                pending = [pending[index] for index in failed]
            except ApiError as error:
                if error.status < RETRIABLE_STATUS_MIN:
                    raise RejectedError(f"topic {chunk.topic}: {error}") from error
                why = str(error)
            except QuorumlogError as error:
                why = str(error)
            if not pending:
                return
            wait_s = backoff.next_s(self._now_s())
            if wait_s is None:
                msg = (
                    f"{len(pending)} of {len(chunk.records)} records for topic {chunk.topic} were "
                    f"not acknowledged within {self._retry_s:g} s (retryTimeoutMs): {why}"
                )
                raise NotServedError(msg)
            self._client.routes.report_failure(request, asked)
            self._sleep(wait_s)

    def _request(self, chunk: Chunk, records: list[bytes]) -> Request:
        place: tuple[object, ...] = ("topics", chunk.topic)
        if chunk.partition is not None:
            place = (*place, "partitions", chunk.partition)
        return Request(
            method="POST",
            path=path_of(*place, query={"acks": "all"}),
            body=body_of(records),
            content_type=self._content_type,
            accept=V2,
            timeout_s=REQUEST_TIMEOUT_S,
            leader_key=None if chunk.partition is None else (chunk.topic, chunk.partition),
            parsed_error_statuses=(503,),
        )


def _failures(answer: Answer) -> dict[int, RecordOutcome]:
    """Return the records to send again, by index, with their outcomes; nearly always empty.

    Raises:
        RejectedError: a record that will never be accepted.
    """
    if b'"error_code":' not in answer.body.replace(_WRITTEN, b""):
        return {} if _WRITTEN in answer.body else dict(enumerate(parse_outcomes(answer)))
    failed = {}
    for index, outcome in enumerate(parse_outcomes(answer)):
        if outcome.is_written:
            continue
        if not outcome.retriable:
            msg = f"record {index} of a request was refused: {outcome.error}"
            raise RejectedError(msg)
        failed[index] = outcome
    return failed
