"""`.ci/preflight.sh` on machines that lack this and that: a PATH of stand-ins takes their place."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / ".ci" / "preflight.sh"
NEEDED = ("dirname", "id", "uname", "df", "awk", "sed", "head")
GOOD = "echo '3.12.4|1|/usr/bin/python3.12|'"
OLD = "echo '3.9.2|0|/usr/bin/python3|'"
NO_VENV = "echo '3.11.2|1|/usr/bin/python3.11|ensurepip'"
SHIM = "echo 'pyenv: version not installed' >&2; exit 127"


@dataclass
class Machine:
    """A PATH with only these commands on it."""

    path: Path
    folders: list[Path] = field(default_factory=list)

    def has(self, name: str, script: str, *, folder: str = "bin") -> None:
        place = self.path / folder
        place.mkdir(exist_ok=True)
        if place not in self.folders:
            self.folders.append(place)
        command = place / name
        command.unlink(missing_ok=True)
        command.write_text(f"#!/bin/sh\n{script}\n")
        command.chmod(0o755)

    def preflight(self, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["/bin/sh", str(SCRIPT), *arguments],
            env={"PATH": os.pathsep.join(map(str, self.folders)), **more},
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
        )


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """Linux x86_64 of Debian's kind with git, make and room, and no Python yet."""
    machine = Machine(tmp_path)
    for name in NEEDED:
        found = shutil.which(name)
        assert found is not None
        machine.has(name, f'exec {found} "$@"')
    machine.has("uname", "[ $1 = -s ] && echo Linux || echo x86_64")
    machine.has("df", "echo header; echo /dev/vda 1 1 9000000 1% /")
    for name in ("git", "make", "apt-get"):
        machine.has(name, "true")
    return machine


def test_this_machine_passes() -> None:
    done = subprocess.run([str(SCRIPT)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("preflight: Python 3.")


def test_a_fit_machine_passes_in_one_line(machine: Machine) -> None:
    machine.has("python3.12", GOOD)
    done = machine.preflight()
    assert done.returncode == 0
    assert done.stdout == (
        "preflight: Python 3.12.4 (/usr/bin/python3.12), Linux x86_64, 8 GB free\n"
    )


def test_all_problems_are_reported_at_once_each_with_its_remedy(machine: Machine) -> None:
    machine.has("python3", OLD)
    (machine.path / "bin" / "git").unlink()
    (machine.path / "bin" / "make").unlink()
    machine.has("df", "echo header; echo /dev/vda 1 1 1024000 1% /")
    machine.has("uname", "[ $1 = -s ] && echo Darwin || echo arm64")
    done = machine.preflight()
    assert (done.returncode, done.stdout) == (2, "")
    lines = done.stderr.splitlines()
    problems = [line for line in lines if line.startswith("  * ")]
    remedies = [line for line in lines if line.startswith("      mend: ")]
    for part in ("no Python 3.11 or newer", "git", "make", "Darwin arm64", "1000 MB free"):
        assert sum(part in line for line in problems) == 1, part
    assert len(problems) == len(remedies) == 5
    assert "/usr/bin/python3 is 3.9.2" in problems[0]
    assert "apt-get install -y python3" in remedies[0]


def test_a_shim_of_a_version_that_is_not_installed_is_passed_over(machine: Machine) -> None:
    machine.has("python3.13", SHIM)
    machine.has("python3.11", SHIM)
    machine.has("python3.11", "echo '3.11.9|1|/opt/python3.11|'", folder="later")
    done = machine.preflight("--python")
    assert (done.returncode, done.stdout) == (0, "/opt/python3.11\n")


def test_the_newest_python_that_can_make_a_venv_is_taken(machine: Machine) -> None:
    machine.has("python3.14", "echo '3.14.0|1|/usr/bin/python3.14|venv ensurepip'")
    machine.has("python3.12", GOOD)
    machine.has("python3", NO_VENV)
    assert machine.preflight("--python").stdout == "/usr/bin/python3.12\n"


def test_a_python_whose_venv_is_split_out_names_the_package(machine: Machine) -> None:
    machine.has("python3", NO_VENV)
    done = machine.preflight()
    assert done.returncode == 2
    assert "Python 3.11.2 (/usr/bin/python3.11) can't make a virtual environment" in done.stderr
    assert "it has no ensurepip" in done.stderr
    assert "apt-get install -y python3.11-venv" in done.stderr


def test_an_old_debian_is_told_of_a_package_that_is_new_enough(machine: Machine) -> None:
    machine.has("apt-cache", "echo 'Version: 3.10.6-1~22.04'")
    assert "python3.11 python3.11-venv" in machine.preflight().stderr


# -- Java, for what runs Spark


def java(version: str) -> str:
    return f"""echo 'openjdk version "{version}" 2025-04-15' >&2"""


@pytest.mark.parametrize("version", ["17.0.15", "21", "25.0.1"])
def test_a_java_that_spark_runs_on_passes(machine: Machine, version: str) -> None:
    machine.has("python3.12", GOOD)
    machine.has("java", java(version))
    done = machine.preflight(NEEDS="java")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"Java {version.split('.', maxsplit=1)[0]}," in done.stdout


def test_without_java_the_apt_line_is_said_and_the_way_around_it(machine: Machine) -> None:
    machine.has("python3.12", GOOD)
    done = machine.preflight(NEEDS="java")
    assert done.returncode == 2
    assert "no Java that runs (java), which Spark needs: 17 or newer" in done.stderr
    assert re.search(r"apt-get install -y (default|openjdk-17)-jre-headless\n", done.stderr)
    assert "make demo SPARK=0" in done.stderr


@pytest.mark.parametrize("version", ["1.8.0_402", "11.0.22"])
def test_a_java_that_is_too_old_is_named(machine: Machine, version: str) -> None:
    machine.has("python3.12", GOOD)
    machine.has("java", java(version))
    done = machine.preflight(NEEDS="java")
    assert done.returncode == 2
    assert re.search(r"Java (8|11) \(java\) is too old for Spark: 17 or newer", done.stderr)


@pytest.mark.parametrize(
    ("system", "package"),
    [
        ('ID=debian\nVERSION_ID="11"', "openjdk-17-jre-headless"),
        ('ID=debian\nVERSION_ID="12"', "default-jre-headless"),
        ('ID=debian\nVERSION_ID="13"', "default-jre-headless"),
        ('ID=ubuntu\nVERSION_ID="22.04"', "openjdk-17-jre-headless"),
        ('ID=ubuntu\nVERSION_ID="24.04"', "default-jre-headless"),
    ],
)
def test_the_java_that_is_recommended_is_new_enough(
    machine: Machine, tmp_path: Path, system: str, package: str
) -> None:
    release = tmp_path / "os-release"
    release.write_text(system)
    done = machine.preflight(NEEDS="java", OS_RELEASE=str(release))
    assert f"apt-get install -y {package}\n" in done.stderr


def test_java_is_looked_for_where_spark_looks(machine: Machine, tmp_path: Path) -> None:
    machine.has("python3.12", GOOD)
    machine.has("java", java("17.0.1"))
    done = machine.preflight(NEEDS="java", JAVA_HOME=str(tmp_path / "jdk"))
    assert done.returncode == 2
    assert str(tmp_path / "jdk" / "bin" / "java") in done.stderr


def test_a_machine_that_does_not_run_spark_needs_no_java(machine: Machine) -> None:
    machine.has("python3.12", GOOD)
    assert machine.preflight().returncode == 0


# -- what `make` asks of it


def recipe(*words: str) -> str:
    """What make would run."""
    environment = {
        key: value for key, value in os.environ.items() if key not in ("CI", "SPARK", "NEEDS")
    }
    done = subprocess.run(
        ["make", "-n", *words],
        cwd=SCRIPT.parents[1],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def needs(tmp_path: Path, *words: str) -> str:
    """NEEDS as the recipes below a target see it: a makefile around ours prints it."""
    around = tmp_path / "around.mk"
    makefile = SCRIPT.parents[1] / "Makefile"
    around.write_text(f"include {makefile}\n.venv toxiproxy:\n\t@echo needs=$$NEEDS\n")
    environment = {
        key: value for key, value in os.environ.items() if key not in ("CI", "SPARK", "NEEDS")
    }
    done = subprocess.run(
        ["make", "-f", str(around), "--ignore-errors", *words, "PYTHON=true"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.splitlines()[0]


def test_demo_and_test_need_java_and_only_the_demo_can_do_without(tmp_path: Path) -> None:
    assert needs(tmp_path, "test") == "needs=java"
    assert needs(tmp_path, "test", "SPARK=0") == "needs=java"
    assert needs(tmp_path, "demo") == "needs=java"
    assert needs(tmp_path, "demo", "SPARK=0") == "needs="
    assert needs(tmp_path, "setup") == "needs="


def test_continuous_integration_skips_nothing(tmp_path: Path) -> None:
    assert needs(tmp_path, "demo", "SPARK=0", "CI=true") == "needs=java"
    assert "--no-spark" in recipe("demo", "SPARK=0")
    assert "--no-spark" not in recipe("demo", "SPARK=0", "CI=true")


def test_no_python_at_all(machine: Machine) -> None:
    done = machine.preflight()
    assert done.returncode == 2
    assert "looked for python3.14 python3.13 python3.12 python3.11 python3 in PATH)" in done.stderr
