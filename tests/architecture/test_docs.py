"""Documents that can't drift: titles, links, decisions, rules and claims are checked."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

from tests.architecture.tree import (
    PACKAGES,
    ROOT,
    markdown_files,
    names_of_tests,
    project_files,
    python_files,
    syntax,
    text,
)

FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)#\s]+)")
HEADING_LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)#([^)\s]+)\)")
DECISIONS = Path("docs/decisions")
DECISION_NAME = re.compile(r"(\d{4})-[a-z0-9-]+\.md")


def prose(path: Path) -> str:
    """A document without its code."""
    return FENCE.sub("", text(path))


def test_every_document_has_one_title_and_it_comes_first() -> None:
    found = [
        str(path)
        for path in markdown_files()
        if not prose(path).startswith("# ") or len(re.findall(r"(?m)^# ", prose(path))) != 1
    ]
    assert found == []


def test_every_link_to_a_file_leads_somewhere() -> None:
    found = [
        f"{path} → {target}"
        for path in markdown_files()
        for target in LINK.findall(prose(path))
        if not (ROOT / path.parent / target).exists()
    ]
    assert found == []


MODULE = re.compile(r"`([a-z_/]+\.py)`")


def test_every_module_that_a_document_names_is_there() -> None:
    """`segments.py` means one beside the document, or the end of a path in the tree."""
    there = [f"/{path}" for path in python_files(*PACKAGES, "benchmarks", "tests", "docs")]
    found = [
        f"{path} names {name}"
        for path in markdown_files()
        if path.name != "CHANGELOG.md"
        for name in MODULE.findall(text(path))
        if not any(each.endswith(f"/{name}") for each in there)
    ]
    assert found == []


HOP = re.compile(r"`([a-z0-9_/]+\.py):([A-Za-z_.]+)`")


def defined(path: Path) -> set[str]:
    """Names of functions and classes of a module, methods as `Class.method`."""
    names = set()
    for node in syntax(path).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {
                f"{node.name}.{each.name}"
                for each in node.body
                if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
            }
    return names


def test_every_hop_of_the_walks_names_a_function_that_exists() -> None:
    hops = HOP.findall(text(Path("docs/architecture.md")))
    assert len(hops) > 50
    missing = [
        f"{path}:{name}"
        for path, name in hops
        if not (ROOT / path).exists() or name not in defined(Path(path))
    ]
    assert missing == []


def headings(path: Path) -> set[str]:
    """What links call the headings of a document: lower case, hyphens, no punctuation."""
    titles = re.findall(r"(?m)^#+ (.*)$", prose(path))
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_every_link_to_a_heading_leads_somewhere() -> None:
    found = [
        f"{path} → {target}#{heading}"
        for path in markdown_files()
        for target, heading in HEADING_LINK.findall(prose(path))
        if heading not in headings(path.parent / target if target else path)
    ]
    assert found == []


def decisions() -> list[Path]:
    return [p for p in project_files() if p.parent == DECISIONS and p.name != "README.md"]


def test_decisions_are_numbered_once_and_listed() -> None:
    names = [path.name for path in decisions()]
    assert [name for name in names if not DECISION_NAME.fullmatch(name)] == []
    numbers = Counter(name[:4] for name in names)
    assert [number for number, count in numbers.items() if count > 1] == []
    listed = set(re.findall(r"\]\((\d{4}-[^)]+)\)", text(DECISIONS / "README.md")))
    assert listed == set(names)


def test_a_decision_says_when_why_what_and_what_follows() -> None:
    parts = ("^- Date: ", "^- Status: ", "^## Context", "^## Decision", "^## Consequences")
    found = [
        f"{path} lacks {part}"
        for path in decisions()
        for part in parts
        if not re.search(part, text(path), re.MULTILINE)
    ]
    assert found == []


NAMED = re.compile(r"(?<![\w/.-])([a-z][\w/-]*\.md)\b")


def test_every_document_that_code_names_is_here() -> None:
    """`interfaces.md §2` in a docstring means docs/interfaces.md."""
    found = [
        f"{path} names {name}"
        for path in python_files(*PACKAGES, "benchmarks")
        for name in NAMED.findall(text(path))
        if not (ROOT / "docs" / name).exists() and not (ROOT / name).exists()
    ]
    assert found == []


def test_every_decision_that_code_names_is_in_the_architecture() -> None:
    told = set(re.findall(r"(?m)^- \*\*(D\d+)\. ", text(Path("docs/architecture.md"))))
    named = {
        decision: path
        for path in python_files(*PACKAGES, "benchmarks")
        for decision in re.findall(r"\b[Dd]ecision (D\d+)", text(path))
    }
    assert [
        f"{decision} ({path})" for decision, path in named.items() if decision not in told
    ] == []


# ---------------------------------------------------------------- rules and claims

RULE = re.compile(r"\brules? ((?:[QMRFGS]\d+)(?:(?:, | and )[QMRFGS]\d+)*)", re.IGNORECASE)


def rules_kept_in_code() -> dict[str, str]:
    """Rule id → the first module that says it keeps it."""
    kept: dict[str, str] = {}
    for path in python_files(*PACKAGES):
        for said in RULE.findall(text(path)):
            for rule in re.findall(r"[QMRFGS]\d+", said.upper()):
                kept.setdefault(rule, str(path))
    return kept


def test_every_rule_named_in_code_is_told_in_the_rules() -> None:
    told = set(re.findall(r"(?m)^- \*\*([A-Z]\d+) ", text(Path("docs/rules.md"))))
    found = [f"{rule} ({path})" for rule, path in rules_kept_in_code().items() if rule not in told]
    assert sorted(found) == []


def test_every_rule_named_in_code_has_a_test_that_bears_its_name() -> None:
    bearing = (re.match(r"test_rule_([a-z]\d+)_", name) for name in names_of_tests())
    tested = {match[1].upper() for match in bearing if match}
    kept = rules_kept_in_code().items()
    assert sorted(f"{rule} ({path})" for rule, path in kept if rule not in tested) == []


def test_every_claim_names_a_test_or_benchmark_that_exists() -> None:
    """`tests/x/test_y.py::test_z` or `benchmarks/x.py` in each row of docs/claims.md."""
    names = names_of_tests()
    found = []
    for row in re.findall(r"(?m)^\|(?! ?(?:Promise|-)).*\|$", text(Path("docs/claims.md"))):
        proofs = re.findall(r"`((?:tests|benchmarks|chaos)/[^`]+)`", row)
        if not proofs:
            found.append(f"no proof: {row}")
        for proof in proofs:
            path, _, test = proof.partition("::")
            if not (ROOT / path).exists() or (test and test.split("[")[0] not in names):
                found.append(f"not there: {proof}")
    assert found == []
