"""What a node says when it can't go on."""

from __future__ import annotations

import logging

import pytest

from http_api.node.exits import EXIT_BROKEN_INVARIANT, EXIT_STORAGE, NodeExit
from http_api.node.node_start import node_exits
from raft_metadata.common.errors import CorruptionError


@pytest.mark.parametrize(
    ("error", "code", "has_trace"),
    [
        (CorruptionError("the file x is damaged"), EXIT_STORAGE, False),
        (ExceptionGroup("", [CorruptionError("the file x is damaged")]), EXIT_STORAGE, False),
        (KeyError("a bug"), EXIT_BROKEN_INVARIANT, True),
    ],
)
def test_a_file_that_is_not_trusted_is_named_without_a_trace_as_it_is_no_bug(
    caplog: pytest.LogCaptureFixture, error: Exception, code: int, has_trace: bool
) -> None:
    with pytest.raises(NodeExit) as ended, node_exits():
        raise error
    assert ended.value.code == code
    (said,) = [one for one in caplog.records if one.levelno == logging.CRITICAL]
    assert bool(said.exc_info) is has_trace
    assert has_trace or "the file x is damaged" in str(ended.value)
