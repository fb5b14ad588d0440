"""The pictures are what their scripts draw: the diagram, and the recording of a real run."""

from __future__ import annotations

import json
import runpy
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from tests.architecture.tree import ROOT

PICTURES = ROOT / "docs" / "pictures"


def script(name: str) -> dict[str, Any]:
    return runpy.run_path(str(PICTURES / name))


def facts() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((PICTURES / "kill-nine.json").read_text())
    return found


def test_the_diagram_is_what_its_script_draws() -> None:
    assert (PICTURES / "cluster.svg").read_text() == script("diagram.py")["picture"]()


def test_the_recording_is_drawn_from_the_facts_of_its_run() -> None:
    drawn = script("recording.py")["picture"](facts())
    assert (PICTURES / "kill-nine.svg").read_text() == drawn


def test_a_loss_would_be_drawn_as_a_loss() -> None:
    drawn = script("recording.py")["picture"]({**facts(), "read_back": facts()["read_back"] - 7})
    assert "lost 7" in drawn
    assert 'class="killed title"' in drawn


@pytest.mark.parametrize("name", ["cluster.svg", "kill-nine.svg"])
def test_a_picture_is_well_formed_and_says_what_it_shows(name: str) -> None:
    root = ET.fromstring((PICTURES / name).read_text())
    assert len(root.attrib["aria-label"]) > 50
    assert "prefers-color-scheme: dark" in (PICTURES / name).read_text()
