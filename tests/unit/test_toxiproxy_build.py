"""`.ci/toxiproxy.sh` does nothing where the right server is, and builds it once where it is not."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from chaos.net.toxiproxy import BUILT, VERSION, version_of
from tests.architecture.tree import ROOT

MODULE = "github.com/Shopify/toxiproxy/v2"
NEEDED = (
    *("dirname", "grep", "flock", "date", "mkdir", "mktemp", "mv", "rm", "tail", "cut", "cat"),
    *("chmod", "sh"),
)


def binary(version: str) -> str:
    return f"#!/bin/sh\n# \nmod\t{MODULE}\tv{version}\th1:x=\n"


class Project:
    """A folder with `.ci` in it and a PATH of its own."""

    def __init__(self, root: Path) -> None:
        self.root = root / "project"
        shutil.copytree(ROOT / ".ci", self.root / ".ci")
        self.path = root / "bin"
        self.path.mkdir()
        for name in NEEDED:
            found = shutil.which(name)
            assert found is not None
            (self.path / name).symlink_to(found)

    def has(self, name: str, text: str) -> None:
        (self.path / name).write_text(text)
        (self.path / name).chmod(0o755)

    def built(self, version: str) -> None:
        place = self.root / BUILT
        place.parent.mkdir(parents=True)
        place.write_text(binary(version))
        place.chmod(0o755)

    def run(self) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["/bin/sh", str(self.root / ".ci" / "toxiproxy.sh")],
            env={"PATH": str(self.path)},
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
        )


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


GO = f"""#!/bin/sh
if [ "$1" = version ]; then echo "go version go1.22.1 linux/amd64"; exit; fi
mkdir -p "$GOBIN" && printf '%b' 'x\\nmod\\t{MODULE}\\tv{VERSION}\\th1:x=\\n' >"$GOBIN/server"
chmod +x "$GOBIN/server"
"""


def test_the_script_and_the_driver_mean_the_same_version() -> None:
    assert f"VERSION={VERSION}\n" in (ROOT / ".ci" / "toxiproxy.sh").read_text()


def test_a_server_that_is_there_is_left_alone(project: Project) -> None:
    project.built(VERSION)
    done = project.run()
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_server_in_the_path_is_enough(project: Project) -> None:
    project.has("toxiproxy-server", f"#!/bin/sh\necho 'toxiproxy-server version {VERSION}'\n")
    assert (project.run().returncode, (project.root / ".cache").exists()) == (0, False)


def test_toxiproxy_is_built_once_and_only_the_binary_is_kept(project: Project) -> None:
    project.has("go", GO)
    project.has("toxiproxy-server", "#!/bin/sh\necho 'toxiproxy-server version 2.1.4'\n")
    done = project.run()
    assert done.returncode == 0, done.stderr
    assert "building 2.12.0 with go1.22.1" in done.stdout
    assert version_of(project.root / BUILT) == VERSION
    assert [path.name for path in (project.root / ".cache").iterdir()] == ["toxiproxy"]
    assert project.run().stdout == ""


def test_another_version_is_built_anew(project: Project) -> None:
    project.has("go", GO)
    project.built("2.11.0")
    assert project.run().returncode == 0
    assert version_of(project.root / BUILT) == VERSION


def test_an_old_go_is_not_used_and_what_to_do_is_said(project: Project) -> None:
    project.has("go", GO.replace("go1.22.1", "go1.19.8"))
    done = project.run()
    assert done.returncode == 1
    assert "no Go 1.21 or newer here" in done.stdout
    assert "put toxiproxy-server 2.12.0 into PATH" in done.stderr
    assert not (project.root / BUILT).exists()
