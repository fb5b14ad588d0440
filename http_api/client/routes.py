"""Where a call goes, and whether it goes again: decisions only, time comes in as a number.

Any broker serves any call (decision D7), so the first one that answers is kept. An answer names the
leader of its partition (``Quorumlog-Leader-Url``), and the next call for that partition goes there.
A write is sent again only when it surely was not done (rule F1).
"""

from __future__ import annotations

from collections.abc import Iterable

from http_api.client.calls import (
    Answer,
    ClientError,
    OutcomeUnknownError,
    Request,
    UnreachableError,
    error_of,
)
from raft_metadata.common.errors import Outcome

LEADER_URL_HEADER = "quorumlog-leader-url"
SERVED_BY_URL_HEADER = "quorumlog-served-by-url"
"""Of the replica that served a reader who named its rack."""
FIRST_BACKOFF_S = 0.05
LAST_BACKOFF_S = 1.0
MAX_LEADERS_KEPT = 10_000


class Routes:
    """The brokers a client knows. Owned by one client; not thread-safe."""

    def __init__(self, urls: Iterable[str]) -> None:
        self._urls = list(dict.fromkeys(url.strip().rstrip("/") for url in urls if url.strip()))
        if not self._urls:
            msg = "expected the URL of at least one broker"
            raise ValueError(msg)
        self._leaders: dict[tuple[str, int], str] = {}
        self.ever_answered = False

    @property
    def urls(self) -> tuple[str, ...]:
        """Every known broker, the one that answered last first."""
        return tuple(self._urls)

    def add(self, urls: Iterable[str]) -> None:
        """Brokers that were learnt of: tried when those named first don't answer."""
        for url in urls:
            if url not in self._urls:
                self._urls.append(url)

    def learn_leader(self, topic: str, partition: int, url: str) -> None:
        """Who leads a partition, from wherever the caller knows it."""
        if len(self._leaders) >= MAX_LEADERS_KEPT:
            self._leaders.clear()
        self._leaders[topic, partition] = url.rstrip("/")

    def candidates(self, request: Request) -> list[str]:
        """Where to try, in order."""
        leader = None if request.leader_key is None else self._leaders.get(request.leader_key)
        others = [url for url in self._urls if url != leader]
        return others if leader is None else [leader, *others]

    def answered(self, request: Request, url: str, answer: Answer) -> None:
        """Learn from an answer."""
        self.ever_answered = True
        if url in self._urls and self._urls[0] != url and request.leader_key is None:
            self._urls.remove(url)
            self._urls.insert(0, url)
        leader = answer.headers.get(SERVED_BY_URL_HEADER) or answer.headers.get(LEADER_URL_HEADER)
        if leader and request.leader_key is not None:
            self.learn_leader(*request.leader_key, leader)

    def failed(self, request: Request, url: str) -> None:
        """Forget a leader that does not answer; ask such a broker last."""
        if request.leader_key is not None:
            self._leaders.pop(request.leader_key, None)
        if url in self._urls:
            self._urls.remove(url)
            self._urls.append(url)


class Exchange:
    """One call on its way: tells its shell the next URL and whether, and when, to go on.

    The shell sends to `url` and reports exactly one of `answered`, `not_sent`, `lost`. Those return
    the seconds to wait before the next attempt, or None when the answer is final, or raise.
    """

    def __init__(self, routes: Routes, request: Request, now_s: float, retry_s: float) -> None:
        self._routes = routes
        self._request = request
        self._deadline_s = now_s + retry_s
        self._backoff_s = FIRST_BACKOFF_S
        self._left = routes.candidates(request)
        self._refusals: dict[str, str] = {}

    @property
    def url(self) -> str:
        """The broker to try next."""
        return self._left[0]

    def answered(self, answer: Answer, now_s: float) -> float | None:
        """An HTTP answer came."""
        self._routes.answered(self._request, self.url, answer)
        if answer.status < 400 or answer.status in self._request.also_parsed:
            return None
        error = error_of(answer)
        error.path = self._request.path
        surely_not_done = error.outcome is Outcome.NOT_WRITTEN or self._request.may_repeat
        if answer.status < 500 or not error.retriable or not surely_not_done:
            raise error
        self._routes.failed(self._request, self.url)
        return self._next_round(error, now_s)

    def not_sent(self, reason: str, now_s: float) -> float:
        """No connection: the request surely did not arrive."""
        self._refusals[self.url] = reason
        return self._next_broker(self._unreachable(), now_s, allowed=self._routes.ever_answered)

    def lost(self, reason: str, now_s: float) -> float:
        """Sent, and no whole answer: only what may be repeated goes again."""
        msg = f"no answer from {self.url}: {reason}"
        error = OutcomeUnknownError(msg)
        if not self._request.may_repeat:
            self._routes.failed(self._request, self.url)
            raise error
        return self._next_broker(error, now_s, allowed=True)

    def _next_broker(self, error: ClientError, now_s: float, *, allowed: bool) -> float:
        self._routes.failed(self._request, self.url)
        del self._left[0]
        if self._left:
            return 0.0
        if not allowed:
            raise self._unreachable()
        return self._next_round(error, now_s)

    def _next_round(self, error: ClientError, now_s: float) -> float:
        if now_s + self._backoff_s > self._deadline_s:
            raise error
        wait_s = self._backoff_s
        self._backoff_s = min(2 * self._backoff_s, LAST_BACKOFF_S)
        self._left = self._routes.candidates(self._request)
        return wait_s

    def _unreachable(self) -> UnreachableError:
        tried = ", ".join(f"{url} ({reason})" for url, reason in self._refusals.items())
        return UnreachableError(f"no broker answers: {tried}")
