"""The two kinds of work of a load run: write batches, or read a partition from its start."""

from __future__ import annotations

import random
import string
from dataclasses import dataclass

from http_api.client.calls import path_of
from http_api.client.load_run import Done, HttpAnswer

RENDERED = 16
"""Number of different requests sent in turn, so that no cache can answer them."""
_KEYS = 10_000
_ALPHABET = string.ascii_letters + string.digits
_MARK = b'"error_code":'
_GOOD = b'"error_code":null'


@dataclass(slots=True)
class Budget:
    """Records still to be requested, over all connections; None sets no limit."""

    left: int | None

    def take(self, most: int) -> int:
        """Take up to ``most`` records for the next request and return how many it gets."""
        if self.left is None:
            return most
        taken = min(most, self.left)
        self.left -= taken
        return taken


class WriteBatches:
    """Work that writes batches of records with random text values to one partition."""

    def __init__(
        self,
        topic: str,
        partition: int,
        batch: int,
        size: int,
        acks: str,
        budget: Budget,
        chance: random.Random,
    ) -> None:
        """Render requests of ``batch`` values of ``size`` bytes each, quotes included."""
        self._partition = partition
        self._batch = batch
        self._size = size
        self._budget = budget
        self._chance = chance
        query = None if acks == "all" else {"acks": acks}
        self._path = path_of("topics", topic, "partitions", partition, query=query)
        self._requests = [self._render(batch) for _ in range(RENDERED)]
        self._sent = 0
        self._asked = batch

    @property
    def partition(self) -> int:
        return self._partition

    def records_in_request(self) -> int:
        """Return the size of a full batch."""
        return self._batch

    def request(self) -> bytes | None:
        """Return the next batch as a request, or None once the budget is used up."""
        self._asked = self._budget.take(self._batch)
        if not self._asked:
            return None
        if self._asked < self._batch:
            return self._render(self._asked)
        self._sent += 1
        return self._requests[self._sent % RENDERED]

    def answered(self, answer: HttpAnswer) -> Done:
        """Count the records that the answer confirms and those that it refuses."""
        good = answer.body.count(_GOOD)
        bad = answer.body.count(_MARK) - good
        reason = ""
        if bad:
            at = answer.body.find(b'"error":"')
            reason = answer.body[at + 9 : at + 200].partition(b'"')[0].decode()
        return Done(good, good * self._size, bad, reason)

    def _render(self, records: int) -> bytes:
        chance, rows = self._chance, []
        for _ in range(records):
            text = "".join(chance.choices(_ALPHABET, k=max(0, self._size - 2)))
            rows.append(f'{{"key":"{chance.randrange(_KEYS)}","value":"{text}"}}')
        body = f'{{"records":[{",".join(rows)}]}}'
        return (
            f"POST {self._path} HTTP/1.1\r\nHost: quorumlog\r\n"
            "Content-Type: application/vnd.kafka.json.v2+json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n{body}"
        ).encode()


class ReadOn:
    """Work that reads a partition from start to end; with ``again``, over and over."""

    def __init__(self, topic: str, partition: int, max_bytes: int, *, again: bool) -> None:
        self._topic = topic
        self._partition = partition
        self._max_bytes = max_bytes
        self._again = again
        self._next: int | None = None
        """Offset of the next fetch; None starts at the first record."""
        self._at_end = False

    @property
    def partition(self) -> int:
        return self._partition

    def records_in_request(self) -> int:
        """Return 0: the requests write nothing."""
        return 0

    def request(self) -> bytes | None:
        """Return the fetch at the present position, or None at the end."""
        if self._at_end:
            if not self._again:
                return None
            self._next, self._at_end = None, False
        start = {"timestamp": 0} if self._next is None else {"offset": self._next}
        query = {**start, "max_bytes": self._max_bytes, "timeout": 0}
        path = path_of("topics", self._topic, "partitions", self._partition, "records", query=query)
        accept = "Accept: application/x-ndjson"
        return f"GET {path} HTTP/1.1\r\nHost: quorumlog\r\n{accept}\r\n\r\n".encode()

    def answered(self, answer: HttpAnswer) -> Done:
        """Move the position behind the records of the answer and count them."""
        self._next = int(answer.headers[b"quorumlog-next-offset"])
        self._at_end = self._next >= int(answer.headers[b"quorumlog-high-watermark"])
        return Done(answer.body.count(b"\n"), len(answer.body))
