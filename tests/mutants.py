"""`make mutants`: change one place of a pure core, and see that a test notices (mutation testing).

The cores are the modules that the import contract ``pure-core`` keeps pure, and `MORE_CORES`, which
decide as purely. Mutants are drawn at random (``--sample N --seed S``) from all that cosmic-ray's
operators can do to the lines that a test without a cluster runs: a comparison turned, a sign, a
number, ``and`` for ``or``, a ``not``, a loop without a turn, a call left out. Each is planted in a
copy of the packages, and only the tests that run its line are run, those that run least first.
Coverage is taken once for a state of the tree. A survivor is a missing test, or it differs in no
effect: then it stands in ``tests/mutants_accepted.txt`` with the reason.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import hashlib
import os
import random
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import parso
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.operator import Operator
from cosmic_ray.plugins import get_operator
from coverage import Coverage, CoverageData
from typing_extensions import override

ROOT = Path(__file__).resolve().parents[1]
CACHE = ROOT / ".cache/mutants"
ACCEPTED = ROOT / "tests/mutants_accepted.txt"
COPIED = (
    "raft_metadata",
    "broker",
    "http_api",
    "spark_source",
    "chaos",
    "quorumlog",
    "tests",
    "benchmarks",
)
MORE_CORES = (
    "broker/coordinator/commits.py",
    "broker/coordinator/group_state.py",
    "broker/coordinator/instances.py",
    "broker/coordinator/rebalance.py",
    "broker/replication/partition.py",
    "broker/transactions/home_decisions.py",
    "broker/transactions/home_state.py",
    "raft_metadata/common/sequenced_sender.py",
    "raft_metadata/quorum/elections.py",
    "raft_metadata/quorum/speculation.py",
)
"""Cores that take time and chance as arguments, in folders whose other modules do not."""
TESTS = ("tests/unit", "tests/property", "tests/contract", "tests/simulation")
TESTS_PER_TRY = 60
"""Test functions that are run first; only a mutant that survives them meets the rest."""
FIRST_TIMEOUT_S, TIMEOUT_S = 60, 900
"""Seconds after which the first tests, or all others, count as stuck, which a test notices too."""
WORKERS = 2
"""Mutants tried at once, each in a copy of its own."""
_TURNED = ("Eq_NotEq", "NotEq_Eq", "Lt_LtE", "LtE_Lt", "Gt_GtE", "GtE_Gt", "Is_IsNot", "IsNot_Is")
OPERATORS = (
    *(f"core/ReplaceComparisonOperator_{turn}" for turn in _TURNED),
    "core/ReplaceBinaryOperator_Add_Sub",
    "core/ReplaceBinaryOperator_Sub_Add",
    "core/ReplaceUnaryOperator_Delete_Not",
    "core/ReplaceTrueWithFalse",
    "core/ReplaceFalseWithTrue",
    "core/ReplaceAndWithOr",
    "core/ReplaceOrWithAnd",
    "core/ReplaceContinueWithBreak",
    "core/ReplaceBreakWithContinue",
    "core/AddNot",
    "core/NumberReplacer",
    "core/ZeroIterationForLoop",
)


class CallLeftOut(Operator):  # type: ignore[misc]  # untyped library
    """A statement that only calls something becomes ``pass``."""

    @override
    def mutation_positions(self, node: Any) -> Iterator[Any]:
        if node.type in {"atom_expr", "power"} and node.parent.type == "simple_stmt":
            last = node.children[-1]
            if last.type == "trailer" and last.children[0].value == "(":
                yield node.start_pos, node.end_pos

    @override
    def mutate(self, node: Any, index: int) -> Any:
        prefix = node.get_first_leaf().prefix
        return parso.python.tree.Keyword("pass", node.start_pos, prefix)

    @classmethod
    @override
    def examples(cls) -> tuple[()]:
        return ()


@dataclass(frozen=True, slots=True, order=True)
class Mutant:
    """One change: the occurrence of an operator in a file, which begins in a line."""

    file: str
    line: int
    operator: str
    occurrence: int

    def planted(self) -> str:
        """Return the text of the file with the change."""
        made = CallLeftOut() if self.operator == CallLeftOut.__name__ else _made(self.operator)
        changed = mutate_code((ROOT / self.file).read_text(), made, self.occurrence)
        assert changed is not None, self
        return str(changed)

    def diff(self) -> list[str]:
        """Return the changed lines, each with its sign."""
        before, after = (ROOT / self.file).read_text().splitlines(), self.planted().splitlines()
        found = difflib.unified_diff(before, after, lineterm="", n=0)
        return [line for line in found if not line.startswith(("---", "+++", "@@"))]

    def entry(self) -> str:
        """Return the mutant as a line of the accepted ones: where, and what becomes what."""
        changed = " ".join(" ".join(line.split()) for line in self.diff())
        return f"{self.file} {changed}"


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _made(name: str) -> Operator:
    return get_operator(name)()


def core_files() -> list[str]:
    """Return the files of the cores, from the root on."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    (contract,) = (each for each in settings["contracts"] if each["id"] == "pure-core")
    found = [ROOT / name for name in MORE_CORES]
    for module in contract["source_modules"]:
        path = ROOT / module.replace(".", "/")
        found += sorted(path.rglob("*.py")) if path.is_dir() else [path.with_suffix(".py")]
    return [str(path.relative_to(ROOT)) for path in found if path.name != "__init__.py"]


def tree_state() -> str:
    """Return a digest of all that the coverage depends on."""
    digest = hashlib.sha256()
    for folder in COPIED:
        for path in sorted((ROOT / folder).rglob("*.py")):
            digest.update(str(path).encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def coverage_data() -> CoverageData:
    """Return which test runs which line, taken anew when anything has changed."""
    path = CACHE / f"coverage-{tree_state()}"
    if not path.exists():
        _say("mutants: which test runs which line? (some minutes, once for a state of the tree)")
        for old in CACHE.glob("coverage-*"):
            old.unlink(missing_ok=True)
        settings = CACHE / "coverage.ini"
        settings.write_text(
            f"[run]\ndynamic_context = test_function\ndata_file = {path}.part\n"
            f"include = {','.join(str(ROOT / file) for file in core_files())}\n"
        )
        command = [sys.executable, "-m", "coverage", "run", f"--rcfile={settings}", "-m", "pytest"]
        options = ["-q", "--tb=no", "-rfE", "-p", "no:cacheprovider"]
        done = subprocess.run(
            [*command, *options, *TESTS], cwd=ROOT, check=False, stdout=subprocess.PIPE, text=True
        )
        words = [line.split() for line in done.stdout.splitlines()]
        failed = [line[1] for line in words if line[:1] in (["FAILED"], ["ERROR"])]
        # A test that fails while its lines are counted would notice every mutant.
        Path(f"{path}.failed").write_text("\n".join(failed))
        _say(f"mutants: {len(failed)} tests fail while their lines are counted and are left out")
        Path(f"{path}.part").rename(path)
    coverage = Coverage(data_file=path)
    coverage.load()
    return coverage.get_data()


def node_of(context: str) -> str | None:
    """Return the test that a coverage context names, as pytest does; None for a helper."""
    module, _, name = context.rpartition(".")
    return f"{module.replace('.', '/')}.py::{name}" if name.startswith("test_") else None


class Coverers:
    """The tests that run a line, those that run the fewest lines of the cores first."""

    def __init__(self, data: CoverageData, left_out: Set[str] = frozenset()) -> None:
        self._by_line: dict[tuple[str, int], set[str]] = defaultdict(set)
        lines: dict[str, int] = defaultdict(int)
        for file in core_files():
            contexts = data.contexts_by_lineno(str(ROOT / file))
            for line, names in contexts.items():
                for test in set(filter(None, map(node_of, names))) - left_out:
                    self._by_line[file, line].add(test)
                    lines[test] += 1
        self._lines = lines

    def of(self, file: str, line: int) -> list[str]:
        """Return the tests that run a line of a file."""
        return sorted(self._by_line[file, line], key=lambda test: (self._lines[test], test))


def mutants_of(file: str, coverers: Coverers) -> Iterator[Mutant]:
    """Yield every change to a line that some test runs; none to an annotation or an assertion."""
    source = (ROOT / file).read_text()
    skipped = set(_skipped_lines(ast.parse(source)))
    nodes = list(ast_nodes(get_ast(source)))
    for name in (*OPERATORS, CallLeftOut.__name__):
        operator = CallLeftOut() if name == CallLeftOut.__name__ else _made(name)
        occurrence = 0
        for node in nodes:
            for start, _ in operator.mutation_positions(node):
                if start[0] not in skipped and coverers.of(file, start[0]):
                    yield Mutant(file, start[0], name, occurrence)
                occurrence += 1


def _skipped_lines(tree: ast.Module) -> Iterator[int]:
    """Yield the lines of assertions and of calls that only log: no test may depend on them."""
    for node in ast.walk(tree):
        logs = isinstance(node, ast.Expr) and ast.unparse(node).startswith("_log.")
        if logs or isinstance(node, ast.Assert):
            yield from range(node.lineno, (node.end_lineno or node.lineno) + 1)


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy of the tree in which one mutant at a time is planted."""

    folder: Path

    @classmethod
    def made(cls, folder: Path) -> Copy:
        """Copy what the tests import and read."""
        for name in COPIED:
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, folder / name, ignore=ignored)
        for name in ("pyproject.toml", "requirements.lock", "README.md", "docs", ".ci", "Makefile"):
            (folder / name).symlink_to(ROOT / name)
        return cls(folder)

    def is_noticed(self, mutant: Mutant, tests: list[str]) -> bool:
        """Plant a mutant, run the tests, and return True if one of them fails or gets stuck."""
        target = self.folder / mutant.file
        target.write_text(mutant.planted())
        try:
            first, others = tests[:TESTS_PER_TRY], tests[TESTS_PER_TRY:]
            if not self._pass(first, FIRST_TIMEOUT_S):
                return True
            return bool(others) and not self._pass(others, TIMEOUT_S)
        finally:
            target.write_text((ROOT / mutant.file).read_text())

    def _pass(self, tests: list[str], timeout_s: int) -> bool:
        path = os.pathsep.join([str(self.folder), os.environ.get("PYTHONPATH", "")])
        environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": path}
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
        try:
            done = subprocess.run(
                command,
                cwd=self.folder,
                env=environment,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return False
        return done.returncode == 0


def accepted() -> dict[str, str]:
    """Return the mutants that differ in no effect, with the reason."""
    lines = ACCEPTED.read_text().splitlines() if ACCEPTED.exists() else []
    rows = [line for line in lines if line and not line.startswith("#")]
    return dict(row.split("  # ", 1) for row in rows)


def run(sample: int, seed: int, only: str) -> int:
    """Draw mutants and try each; return the number of survivors that are not accepted."""
    data = coverage_data()
    failed = Path(f"{data.data_filename()}.failed").read_text().splitlines()
    coverers = Coverers(data, {test.partition("[")[0] for test in failed})
    files = [file for file in core_files() if only in file]
    every = sorted(mutant for file in files for mutant in mutants_of(file, coverers))
    drawn = random.Random(seed).sample(every, min(sample, len(every)))
    _say(f"mutants: {len(every)} in {len(files)} files, {len(drawn)} drawn with --seed {seed}")
    known, survivors, equal = accepted(), list[Mutant](), 0
    with ExitStack() as stack, ThreadPoolExecutor(WORKERS) as pool:
        folders = [Path(stack.enter_context(tempfile.TemporaryDirectory())) for _ in range(WORKERS)]
        idle: SimpleQueue[Copy] = SimpleQueue()
        for folder in folders:
            idle.put(Copy.made(folder))

        def is_noticed(mutant: Mutant) -> bool:
            copy = idle.get()
            try:
                return copy.is_noticed(mutant, coverers.of(mutant.file, mutant.line))
            finally:
                idle.put(copy)

        for number, (mutant, noticed) in enumerate(
            zip(drawn, pool.map(is_noticed, drawn), strict=True), 1
        ):
            if noticed:
                continue
            if mutant.entry() in known:
                equal += 1
                continue
            survivors.append(mutant)
            _say(f"{number}/{len(drawn)} survived: {mutant.file}:{mutant.line} {mutant.operator}")
            _say("\n".join(f"    {line}" for line in mutant.diff()))
    caught = len(drawn) - len(survivors) - equal
    _say(f"mutants: {caught} noticed, {len(survivors)} survived, {equal} accepted as equal")
    return len(survivors)


def main(arguments: Iterable[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sample", type=int, default=30, help="how many are drawn")
    parser.add_argument("--seed", type=int, default=1, help="which ones")
    parser.add_argument("--only", default="", help="part of a file's path")
    given = parser.parse_args(None if arguments is None else list(arguments))
    CACHE.mkdir(parents=True, exist_ok=True)
    return 1 if run(given.sample, given.seed, given.only) else 0


if __name__ == "__main__":
    sys.exit(main())
