"""Documents that can't drift: titles, links, decisions, rules and claims are checked."""

from __future__ import annotations

import ast
import os
import re
from collections import Counter
from pathlib import Path
from typing import NamedTuple

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
CODE_SPAN = re.compile(r"`[^`\n]+`")
LINK = re.compile(r"\]\(([^)\s]+)")
REFERENCE = re.compile(r"(?m)^\[[^\]]+\]: (\S+)")
HTML_LINK = re.compile(r'<[a-z][^>]*\s(?:src|srcset|href)="([^"\s]+)')
ELSEWHERE = re.compile(r"[a-z]+:")
LINK_AROUND = re.compile(r"\[([^\]]*)\]\([^)]*\)")
ANCHOR = re.compile(r'\sid="([^"]+)"')
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


class Link(NamedTuple):
    """A link of a document to a place in the tree."""

    target: str
    """Relative to the document; empty: the document itself."""
    heading: str


def links(path: Path) -> list[Link]:
    """All links of a document that don't leave the tree, pictures and HTML included."""
    words = CODE_SPAN.sub("", prose(path))
    targets = [*LINK.findall(words), *REFERENCE.findall(words), *HTML_LINK.findall(words)]
    inside = [target for target in targets if not ELSEWHERE.match(target)]
    return [Link(target, heading) for target, _, heading in (one.partition("#") for one in inside)]


def place(path: Path, link: Link) -> Path:
    """Where a link of this document leads, relative to the root; a folder means its README."""
    if not link.target:
        return path
    found = Path(os.path.normpath(path.parent / link.target))
    return found / "README.md" if found / "README.md" in project_files() else found


def test_every_link_to_a_file_leads_somewhere() -> None:
    """Only to files of the project: one that git ignores is missing in a clone."""
    there = {each for path in project_files() for each in (path, *path.parents)}
    found = [
        f"{path} → {link.target}"
        for path in markdown_files()
        for link in links(path)
        if place(path, link) not in there
    ]
    assert found == []


def test_every_page_is_reached_from_the_readme_or_the_map() -> None:
    """README.md and docs/README.md, and from there by links from page to page."""
    pages = set(markdown_files())
    reached: set[Path] = set()
    waiting = [Path("README.md"), Path("docs/README.md")]
    while waiting:
        page = waiting.pop()
        if page in pages and page not in reached:
            reached.add(page)
            waiting += [place(page, link) for link in links(page)]
    assert sorted(map(str, pages - reached)) == []


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
    """What links call the headings of a document: lower case, hyphens, no punctuation.

    A heading that comes again gets -1, -2 and so on.
    """
    titles = re.findall(r"(?m)^#+ (.*)$", LINK_AROUND.sub(r"\1", prose(path)))
    names = [re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles]
    earlier: Counter[str] = Counter()
    found = set(ANCHOR.findall(prose(path)))
    for name in names:
        found.add(f"{name}-{earlier[name]}" if earlier[name] else name)
        earlier[name] += 1
    return found


def test_every_link_to_a_heading_leads_somewhere() -> None:
    pages = set(markdown_files())
    found = [
        f"{path} → {link.target}#{link.heading}"
        for path in markdown_files()
        for link in links(path)
        if link.heading
        and place(path, link) in pages
        and link.heading not in headings(place(path, link))
    ]
    assert found == []


def test_links_are_found_in_all_their_spellings(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        '# A `b`, c\n\n## [D](d.md)\n\n## D\n\n<a id="e"></a> [1](a.md#b) [`2`](b.md) '
        "![3](c.svg)\n[4](#d-1) [5](https://example.org) `[6](x.md)`\n\n"
        '<img alt="7" src="e.svg"><source srcset="f.svg"><a href="g.md">8</a>\n\n'
        "[9]: h.md\n\n```text\n[10](y.md)\n```\n"
    )
    targets = ["d.md", "a.md#b", "b.md", "c.svg", "#d-1", "h.md", "e.svg", "f.svg", "g.md"]
    assert links(page) == [Link(*each.partition("#")[::2]) for each in targets]
    assert headings(page) == {"a-b-c", "d", "d-1", "e"}


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
