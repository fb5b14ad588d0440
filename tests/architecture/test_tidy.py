"""What a reader may rely on everywhere in the tree, in the spirit of TigerBeetle's tidy.zig.

Each test lists all offenders at once, as `file:line what`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.architecture.tree import (
    PACKAGES,
    has_code,
    project_files,
    python_files,
    syntax,
    text,
)

MODULE_LINES_MAX = 1000  # as a rule 150 to 800: a module is one idea, and not split to pass a limit
MODULE_LINES_MIN = 80
FUNCTION_LINES_MAX = 60  # one screen; the docstring is not counted

# Exceptions with their reasons. An entry that is not needed any more fails too.
LONGER_FUNCTIONS: dict[str, str] = {  # "file::function" → why
    "broker/server/broker_server.py::BrokerServer.__init__": "wires a broker, in one order",
    "http_api/client/compat/aiokafka_consumer.py::AIOKafkaConsumer.__init__": (
        "has the library's settings, one a line"
    ),
}
SMALL_MODULES: dict[str, str] = {  # file → why it stands alone below MODULE_LINES_MIN lines
    "broker/coordinator/transaction_offsets.py": (
        "the groups' side of a home: homes know no groups, and the coordinator's module is full"
    ),
    "broker/coordinator/transaction_shard.py": (
        "the state of homes without groups, as shard.py is that of groups"
    ),
    "broker/log/checkpoints.py": "the format of the small files that eight other modules write",
    "raft_metadata/common/clock.py": (
        "the only module that reads the machine's clock; an import contract names it"
    ),
    "raft_metadata/common/faults.py": (
        "ends the process, so the pure modules that import errors.py can't hold it"
    ),
    "raft_metadata/common/internal_topics.py": (
        "names and configs of internal topics; needs ids and the table of configs"
    ),
    "raft_metadata/common/local_ports.py": (
        "`quorumlog up` and the chaos driver choose ports by it, which may not import each other"
    ),
    "raft_metadata/common/stoppable_waits.py": (
        "servers on both sides use it, which may not import each other"
    ),
    "raft_metadata/common/tls.py": "mutual TLS reads files: impure, and one idea",
    "raft_metadata/records/feature_levels.py": (
        "the level that this version supports, in one place for records, controller and nodes"
    ),
    "raft_metadata/quorum/voter_node.py": (
        "the voter type that the library core, its adapters and the filter share"
    ),
    "http_api/client/sdk/admin_transaction_steps.py": (
        "an admin's calls about one kind of resource, as its siblings"
    ),
    "http_api/contract/event_stream.py": (
        "the text of Server-Sent Events: media types and declarations name it, tails write it"
    ),
    "http_api/contract/idempotence.py": "headers on which client and server agree, below v2 and v3",
    "http_api/node/exits.py": "every command imports it at start, so it imports nothing",
    "http_api/server/answer_coding.py": "gzip of the routes' answers: one idea, in one place",
    "http_api/server/live_settings.py": (
        "configs that operators change live; the routes and the fast lane both read them"
    ),
    "http_api/peer/controller_paths.py": (
        "paths and limits that both ends of the controllers' HTTP plane share"
    ),
    "spark_source/auto_registration/pyspark_quorumlog.py": (
        "Spark finds data sources by the names of top-level modules"
    ),
    "spark_source/data_source.py": "the class that Spark loads, and nothing that it need not",
    "spark_source/errors.py": "every module of the source raises these",
    "spark_source/schema.py": "pure: columns and their types",
    "chaos/checkers/verdict.py": "the result type that every checker returns",
    "chaos/deadline.py": (
        "used by the cluster, the HTTP client and every run, which share nothing else"
    ),
}
SHARED_CLASS_NAMES: dict[str, str] = {  # class → why two modules may define it
    "Answer": "a reply: of the HTTP API in the client, of a broker in the peer frames",
    "BrokerMetadata": "a broker as programs for aiokafka and for confluent-kafka know it",
    "ClusterDescription": "the file that `quorumlog up` writes, and the SDK's answer of a cluster",
    "ClusterHealth": "the verdict that a broker judges, and the SDK's reading of the answer",
    "ClusterMetadata": "the cluster as programs for aiokafka and for confluent-kafka know it",
    "Controller": "the deciding core, and the port by which its HTTP listener sees it",
    "KafkaError": "an error with one of Kafka's numbers, and other clients' name of theirs",
    "Links": "hypermedia links of v3, and the port to the voters' connections",
    "OffsetOutOfRangeError": "the SDK's, and aiokafka's, which programs for it import",
    "Part": "of a group's answers, sent one after the other, and of a transaction's rows",
    "PartitionMetadata": "a partition as programs for aiokafka and for confluent-kafka know it",
    "PartitionRange": "partitions of a topic in a record, and a range that the CLI reads",
    "Plane": (
        "a kind of connection: by its hello in the peer frames, by its port in the chaos network"
    ),
    "Record": "a record that a consumer reads, and one that a run sends",
    "Target": "a partition that gets a transaction's rows, and the resource of a configs route",
    "TopicPartition": (
        "a partition by names in requests, the SDK's with an offset and an error, and those of "
        "other clients' interfaces"
    ),
    "Request": "a request of the HTTP client, and one between brokers",
}
_CONFLUENT = "confluent-kafka's name, which programs for it import"
SHARED_CLASS_NAMES |= {
    "ConfigResource": _CONFLUENT,
    "ConfigSource": _CONFLUENT,
    "Consumer": _CONFLUENT,
    "ConsumerGroupMetadata": _CONFLUENT,
    "ConsumerGroupDescription": _CONFLUENT,
    "GroupMember": _CONFLUENT,
    "KafkaError": _CONFLUENT,
    "MemberDescription": _CONFLUENT,
    "NewTopic": _CONFLUENT,
    "Node": _CONFLUENT,
    "Producer": _CONFLUENT,
    "ResourceType": _CONFLUENT,
    "TopicDescription": _CONFLUENT,
}
SHARED_FILE_NAMES: dict[str, str] = {  # "package/…/name.py" of a package → why two folders have it
    "http_api/…/consumer.py": "calls that read by offset, and the consumer of the SDK",
}

TOP_FOLDERS = {*PACKAGES, "tests", "docs", "benchmarks", "deploy", ".ci"}
ROOT_FILES = {
    ".gitignore",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "LICENSE",
    "Makefile",
    "README.md",
    "demo-data.lock",
    "pyproject.toml",
    "requirements.lock",
}

CODE = (*PACKAGES, "benchmarks", "tests")


# ---------------------------------------------------------------- size


def functions(path: Path) -> Iterator[tuple[str, int, int]]:
    """(qualified name, line, lines without the docstring) of each function of a module."""

    def walk(node: ast.AST, prefix: str) -> Iterator[tuple[str, int, int]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (child.end_lineno or child.lineno) - child.lineno + 1
                if ast.get_docstring(child, clean=False) is not None:
                    docstring = child.body[0]
                    lines -= (docstring.end_lineno or docstring.lineno) - docstring.lineno + 1
                yield prefix + child.name, child.lineno, lines
                yield from walk(child, f"{prefix}{child.name}.")
            elif isinstance(child, ast.ClassDef):
                yield from walk(child, f"{prefix}{child.name}.")
            else:
                yield from walk(child, prefix)

    return walk(syntax(path), "")


def test_modules_are_short() -> None:
    lines = {str(path): text(path).count("\n") for path in python_files(*CODE)}
    assert [f"{p}: {n} lines" for p, n in lines.items() if n > MODULE_LINES_MAX] == []


def test_small_modules_have_a_reason() -> None:
    small = {
        str(path): text(path).count("\n")
        for path in python_files(*PACKAGES)
        if path.name not in {"__init__.py", "__main__.py"}
        if text(path).count("\n") < MODULE_LINES_MIN
    }
    assert [f"{p}: {n} lines" for p, n in small.items() if p not in SMALL_MODULES] == []
    assert set(SMALL_MODULES) - set(small) == set(), "reasons that are not needed"


def test_functions_fit_on_a_screen() -> None:
    longer = {
        f"{path}::{name}": f"{path}:{line} {name} has {lines} lines"
        for path in python_files(*PACKAGES, "benchmarks")
        for name, line, lines in functions(path)
        if lines > FUNCTION_LINES_MAX
    }
    assert [said for key, said in longer.items() if key not in LONGER_FUNCTIONS] == []
    assert set(LONGER_FUNCTIONS) - set(longer) == set(), "allowances that are not needed"


# ---------------------------------------------------------------- names and first words


def test_a_class_name_stands_for_one_thing() -> None:
    homes: dict[str, set[str]] = {}
    for path in python_files(*PACKAGES):
        for node in ast.walk(syntax(path)):
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, set()).add(str(path))
    shared = {name: sorted(paths) for name, paths in homes.items() if len(paths) > 1}
    assert {n: paths for n, paths in shared.items() if n not in SHARED_CLASS_NAMES} == {}
    assert set(SHARED_CLASS_NAMES) - set(shared) == set(), "reasons that are not needed"


def test_a_file_name_stands_once_in_its_package() -> None:
    homes: dict[str, list[str]] = {}
    for path in python_files(*PACKAGES):
        if path.name not in {"__init__.py", "__main__.py"}:
            homes.setdefault(f"{path.parts[0]}/…/{path.name}", []).append(str(path))
    shared = {name: paths for name, paths in homes.items() if len(paths) > 1}
    assert {n: paths for n, paths in shared.items() if n not in SHARED_FILE_NAMES} == {}
    assert set(SHARED_FILE_NAMES) - set(shared) == set(), "reasons that are not needed"


RIDDLE = re.compile(
    r"(?:What|Whether|Who|Whose|Where|How|Why|Which|When|It|They|He|This(?! \w+'s)|That|These|"
    r"Those|As|Somebody|Nobody)\b"
)
PERSON = re.compile(r"\b(?:somebody|nobody|whoever|anybody|someone|everybody)\b", re.IGNORECASE)


def is_command(node: ast.AST) -> bool:
    """A command of the CLI: its docstring is a help text."""
    decorators = getattr(node, "decorator_list", [])
    return any(re.search(r"\.(?:command|group)\b", ast.unparse(each)) for each in decorators)


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """(line, text) of each docstring of a module, and of each string below an attribute."""
    nodes = [*ast.walk(syntax(path))]
    help_texts = {id(node.body[0]) for node in nodes if is_command(node)}
    for node in ast.walk(syntax(path)):
        match node:
            case ast.Expr(value=ast.Constant(value=str() as said)) if id(node) not in help_texts:
                yield node.lineno, said.strip()


def test_docstrings_begin_with_a_verb_or_a_noun() -> None:
    """A stranger reads one docstring alone: it says what the thing is or does."""
    found = [
        f"{path}:{line} {said.splitlines()[0]}"
        for path in python_files(*PACKAGES, "benchmarks")
        for line, said in docstrings(path)
        if RIDDLE.match(said) or PERSON.search(said)
    ]
    assert found == []


# ---------------------------------------------------------------- banned words

# Ruff bans these too (pyproject.toml); here no `noqa` helps, only a place in this table.
BANNED_CALLS = {
    "time.time": "take a Clock",
    "asyncio.ensure_future": "use the TaskGroup you own",
    "asyncio.get_event_loop": "use asyncio.get_running_loop()",
    "os._exit": "report to the FaultHandler",
    "eval": "never",
    "exec": "never",
}
ALLOWED_CALLS = {
    ("raft_metadata/common/faults.py", "os._exit"),  # the FaultHandler itself
    ("http_api/node/local_cluster.py", "os._exit"),  # a second signal kills at once
    ("http_api/node/node_start.py", "os._exit"),  # the same
}
# PySyncObj pickles its messages; one module may face that (ADR 0001).
ALLOWED_PICKLE_FOLDER = "raft_metadata/quorum/"
BANNED_MODULES = {"pickle", "marshal", "shelve", "dill", "cloudpickle"}


def dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def test_no_banned_call() -> None:
    found = [
        f"{path}:{node.lineno} {name}: {BANNED_CALLS[name]}"
        for path in python_files(*PACKAGES)
        for node in ast.walk(syntax(path))
        if isinstance(node, ast.Call) and (name := dotted(node.func)) in BANNED_CALLS
        if (str(path), name) not in ALLOWED_CALLS
    ]
    assert found == []


def imported(node: ast.Import | ast.ImportFrom) -> list[str]:
    if isinstance(node, ast.ImportFrom):
        return [node.module or ""]
    return [alias.name for alias in node.names]


def test_nothing_unpickles_outside_the_quorum() -> None:
    found = [
        f"{path}:{node.lineno} imports {name}"
        for path in python_files(*PACKAGES, "benchmarks")
        for node in ast.walk(syntax(path))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in imported(node)
        if name.split(".")[0] in BANNED_MODULES and not str(path).startswith(ALLOWED_PICKLE_FOLDER)
    ]
    assert found == []


SUPPRESSION = re.compile(
    r"#\s*(?:noqa:|type:\s*ignore)(?P<codes>[\s,A-Z0-9]*|\[[^]]*\])(?P<reason>.*)"
)
REASON = re.compile(r"[a-z]{2,}.*[a-z]{2,}")


def test_every_suppression_gives_its_reason() -> None:
    """`# noqa: FBT001 an enum row`; once for each code in a file is enough."""
    found = []
    for path in python_files(*PACKAGES, "benchmarks"):
        unexplained: dict[str, int] = {}
        explained = set()
        for number, line in enumerate(text(path).splitlines(), 1):
            if match := SUPPRESSION.search(line):
                codes = re.findall(r"[\w-]+", match["codes"]) or ["all"]
                if REASON.search(match["reason"]):
                    explained.update(codes)
                else:
                    unexplained |= {code: number for code in codes if code not in unexplained}
        found += [
            f"{path}:{number} {code}"
            for code, number in unexplained.items()
            if code not in explained
        ]
    assert found == []


# ---------------------------------------------------------------- text

# In pieces, so that this file passes its own test.
MACHINE = re.compile(
    "|".join(
        [
            r"(?<![\w.])/(?:home|root|Users|work|opt/wheels)/" + r"\w",
            "/tmp/" + "ql",
            "pypi" + r"\.org",
            "python" + "hosted",
            "--index-" + "url",
            "--find-" + "links",
            r"\.\./" + "shared",
        ]
    )
)


def text_files() -> list[Path]:
    return [path for path in project_files() if path.suffix not in {".png", ".ico", ".gz", ".zip"}]


def test_no_file_names_a_machine_or_a_registry() -> None:
    found = [
        f"{path}:{number} {match[0]}"
        for path in text_files()
        if path.suffix != ".lock" or "://" in text(path)
        for number, line in enumerate(text(path).splitlines(), 1)
        if (match := MACHINE.search(line))
    ]
    assert found == []


def test_lock_files_hold_hashes_and_no_address() -> None:
    for path in project_files():
        if path.suffix == ".lock":
            requirements = re.split(r"\n(?=\S)", re.sub(r"(?m)^#.*\n", "", text(path)).strip())
            assert [r for r in requirements if "==" not in r or "--hash=sha256:" not in r] == []
            assert "://" not in text(path)


def test_text_is_clean() -> None:
    found = []
    for path in text_files():
        content = text(path)
        if content and not content.endswith("\n"):
            found.append(f"{path} does not end with a line break")
        for number, line in enumerate(content.split("\n"), 1):
            if line != line.rstrip():
                found.append(f"{path}:{number} ends with blanks")
            if "\t" in line and path.name != "Makefile":
                found.append(f"{path}:{number} holds a tab")
    assert found == []


# ---------------------------------------------------------------- the tree


def test_the_root_holds_only_what_the_map_names() -> None:
    folders = {path.parts[0] for path in project_files() if len(path.parts) > 1}
    files = {path.name for path in project_files() if len(path.parts) == 1}
    assert folders - TOP_FOLDERS == set()
    assert files - ROOT_FILES == set()


def test_every_package_with_code_has_its_design() -> None:
    with_code = {path.parts[0] for path in python_files(*PACKAGES) if has_code(path)}
    present = {path.parts[0] for path in project_files() if path.name == "DESIGN.md"}
    assert with_code - present == set()


def test_every_module_says_what_it_is() -> None:
    paths = python_files(*PACKAGES, "benchmarks")
    assert [str(path) for path in paths if not ast.get_docstring(syntax(path))] == []
