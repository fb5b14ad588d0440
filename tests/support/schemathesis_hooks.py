"""Hooks that schemathesis loads beside its configuration (`SCHEMATHESIS_HOOKS`)."""

from __future__ import annotations

from typing import Any

import schemathesis

WAIT_MS_MAX = 20
"""Longest wait that a generated request asks for: a read at the log's end would use all of it."""


@schemathesis.hook
def before_call(context: schemathesis.HookContext, case: Any, kwargs: dict[str, Any]) -> None:
    query = case.query or {}
    if str(query.get("timeout", "")).isdecimal():
        query["timeout"] = min(int(query["timeout"]), WAIT_MS_MAX)
    accept = str((case.headers or {}).get("Accept", ""))
    if str(query.get("follow", "")).lower() == "true" or "event-stream" in accept:
        query["end_timestamp"] = 0  # a tail has no end of its own, and the checker waits for it
