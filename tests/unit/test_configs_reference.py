"""The page of all configs is written from the table, and is the committed one."""

from __future__ import annotations

from http_api.node.config_reference import REFERENCE, page
from raft_metadata.common.configs.table import CONFIGS


def test_the_committed_page_of_configs_is_current() -> None:
    assert REFERENCE.read_text(encoding="utf-8") == page(), "run `make reference`"


def test_every_config_has_a_row_in_the_page() -> None:
    rows = [line for line in page().splitlines() if line.startswith("| `")]
    for name in CONFIGS:
        assert sum(line.startswith(f"| `{name}` |") for line in rows) == 1
