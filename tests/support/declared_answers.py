"""Every answer of an app, compared with the declaration of the operation that gave it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

from aiohttp import web

from http_api.contract.operations.declaration import Operation
from http_api.server.access_log import OPERATION

ALL_ANSWERS = frozenset({"X-Request-Id", "Quorumlog-Ignored-Parameters", "Retry-After"})
"""Headers that any answer may have; the document says so in front."""


def watch_answers(app: web.Application) -> Callable[[], None]:
    """Compare the app's answers from now on; the check fails for what is not declared."""
    undeclared: set[str] = set()

    async def compare(request: web.Request, response: web.StreamResponse) -> None:
        operation = request.get(OPERATION)
        if operation is not None:
            undeclared.update(undeclared_in(operation, response))

    def check() -> None:
        assert not undeclared, f"answers that their operations do not declare: {undeclared}"

    app.on_response_prepare.append(compare)
    return check


def undeclared_in(operation: Operation, response: web.StreamResponse) -> Iterator[str]:
    """Say what an answer has that its operation does not declare."""
    where = f"{operation.method} {operation.path}: {response.status}"
    replies = [one for one in operation.replies if one.status == response.status]
    code = error_code_of(response)
    if code is not None:
        if code not in operation.codes:
            yield f"{where} with error_code {code}"
    elif not replies:
        yield f"{where} without an error_code"
    elif response.content_type not in {
        name.partition(";")[0] for one in replies for name in one.content
    }:
        yield f"{where} as {response.content_type}"
    known = {header.name for one in replies for header in one.headers} | ALL_ANSWERS
    if code is not None:
        known |= {header.name for header in operation.error_headers}
    for name in response.headers:
        if name.startswith("Quorumlog-") and name not in known:
            yield f"{where} with header {name}"
    if code is None and replies:
        for header in (header for one in replies for header in one.headers):
            if header.is_constant and header.name not in response.headers:
                yield f"{where} without header {header.name}"


def error_code_of(response: web.StreamResponse) -> int | None:
    """The code in the body of an error; None of an answer that is none."""
    body = response.body if isinstance(response, web.Response) else None
    if response.status < 400 or not isinstance(body, bytes):
        return None
    try:
        fields = json.loads(body)
    except ValueError:
        return None
    code = fields.get("error_code") if isinstance(fields, dict) else None
    return code if isinstance(code, int) else None
