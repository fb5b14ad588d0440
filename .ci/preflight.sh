#!/bin/sh
# Looks at this machine before anything is installed, and reports *all* problems at once, each with
# the command that mends it. Exit 0: fine. Exit 2: not.
#
#   .ci/preflight.sh            prints one line when all is well
#   .ci/preflight.sh --python   prints only the Python to use
#
# With NEEDS=java in the environment (`make demo`, `make test`) Spark must be able to run, too.
set -u
cd "$(dirname "$0")/.." || exit 2

# .venv 0.9 GB, building Toxiproxy 0.6 GB (thrown away), the demo's and the tests' clusters and
# Spark's temporary files up to 1.5 GB; the rest is room.
FREE_DISK_MB_MIN=4096
JAVA_MIN=17 # Spark 4
PYTHONS="python3.14 python3.13 python3.12 python3.11 python3"

problems=""
problem() { # WHAT MEND
    problems="$problems
  * $1
      mend: $2"
}

sudo=""
[ "$(id -u)" = 0 ] || sudo="sudo "

# The command that installs, by the package manager that is here.
install() { # DEBIAN-PACKAGES FEDORA-PACKAGES ARCH-PACKAGES
    if command -v apt-get >/dev/null 2>&1; then
        echo "${sudo}apt-get update && ${sudo}apt-get install -y $1"
    elif command -v dnf >/dev/null 2>&1; then
        echo "${sudo}dnf install -y $2"
    elif command -v pacman >/dev/null 2>&1; then
        echo "${sudo}pacman -S --needed $3"
    else
        echo "install $1 with this system's package manager"
    fi
}

# Debian's and Ubuntu's python3 where it is new enough, else their python3.11.
debian_python() {
    version=$(apt-cache show python3 2>/dev/null | sed -n 's/^Version: 3\.\([0-9]*\).*/\1/p' | head -n 1)
    if [ "${version:-11}" -ge 11 ]; then
        echo "python3 python3-venv"
    else
        echo "python3.11 python3.11-venv"
    fi
}

# ---------------------------------------------------------------- Python with a usable venv

# A name in PATH proves nothing (pyenv puts one there for each version it could install), so each is
# run. From inside a virtual environment the Python it was made from is taken: .venv may be made anew.
PROBE='
import importlib, sys
missing = []
for name in ("venv", "ensurepip", "ssl", "zlib", "ctypes"):
    try:
        importlib.import_module(name)
    except ImportError:
        missing.append(name)
executable = getattr(sys, "_base_executable", None) or sys.executable
print("%d.%d.%d|%d|%s|%s" % (sys.version_info[:3] + (sys.version_info >= (3, 11), executable, " ".join(missing))))
'

python="" python_version=""  # the first that will do
incomplete="" older=""       # what was found instead

look_at() { # FILE
    answer=$("$1" -I -c "$PROBE" 2>/dev/null) || return 0
    old_ifs=$IFS
    IFS='|'
    # shellcheck disable=SC2086 # split at the bars
    set -- $answer
    IFS=$old_ifs
    [ $# -ge 3 ] || return 0
    if [ "$2" != 1 ]; then
        older="${older:-$3 is $1}"
    elif [ -n "${4:-}" ]; then
        incomplete="${incomplete:-$1|$3|$4}"
    else
        python_version=$1 python=$3
    fi
}

for name in $PYTHONS; do
    rest=$PATH:
    while [ -n "$rest" ] && [ -z "$python" ]; do
        folder=${rest%%:*}
        rest=${rest#*:}
        [ -x "$folder/$name" ] && [ ! -d "$folder/$name" ] && look_at "$folder/$name"
    done
done

if [ -z "$python" ] && [ -n "$incomplete" ]; then
    version=${incomplete%%|*} rest=${incomplete#*|}
    short=${version%.*}
    problem "Python $version (${rest%%|*}) can't make a virtual environment: it has no ${rest#*|}" \
        "$(install "python$short-venv" "python$short" "python")"
elif [ -z "$python" ]; then
    problem "no Python 3.11 or newer that runs (looked for $PYTHONS in PATH${older:+; $older})" \
        "$(install "$(debian_python)" "python3.11" "python")"
fi

# ---------------------------------------------------------------- the rest of the machine

for tool in git make; do
    command -v "$tool" >/dev/null 2>&1 || problem "$tool is not installed" "$(install $tool $tool $tool)"
done

system="$(uname -s) $(uname -m)"
case $system in
"Linux x86_64" | "Linux aarch64") ;;
*) problem "$system is not supported; Linux x86_64 and Linux aarch64 are" \
    "docker run --rm -it -v \"\$PWD\":/quorumlog -w /quorumlog python:3.13 make test" ;;
esac

# Debian's and Ubuntu's default Java where it is new enough (Debian 12, Ubuntu 24.04), else their
# Java 17. Not asked of apt-cache: that takes most of a second.
debian_java() {
    # shellcheck disable=SC1090 # two variables of the system's own
    release=$(. "${OS_RELEASE:-/etc/os-release}" 2>/dev/null && echo "${ID:-} ${VERSION_ID:-}")
    case $release in
    "debian 9"* | "debian 10"* | "debian 11"* | "ubuntu 1"* | "ubuntu 20"* | "ubuntu 22"* | " ")
        echo "openjdk-$JAVA_MIN-jre-headless" ;;
    *) echo "default-jre-headless" ;;
    esac
}

java_version=""
if [ "${NEEDS:-}" = java ]; then
    # as Spark looks for it
    java=${JAVA_HOME:+$JAVA_HOME/bin/}java
    java_version=$("$java" -version 2>&1 | sed -n 's/.* version "\(1\.\)\{0,1\}\([0-9]*\).*/\2/p' | head -n 1)
    found="Java $java_version ($java) is too old for Spark"
    [ -n "$java_version" ] || found="no Java that runs ($java), which Spark needs"
    if [ "${java_version:-0}" -lt $JAVA_MIN ]; then
        problem "$found: $JAVA_MIN or newer" \
            "$(install "$(debian_java)" "java-21-openjdk-headless" "jre-openjdk-headless")
            (\`make demo SPARK=0\` does without Spark)"
    fi
fi

free_mb=$(df -Pk . 2>/dev/null | awk 'NR == 2 { print int($4 / 1024) }')
if [ "${free_mb:-0}" -lt $FREE_DISK_MB_MIN ]; then
    problem "${free_mb:-0} MB free on the disk of $(pwd); $FREE_DISK_MB_MIN MB are needed" \
        "free space there (make clean; du -xh . | sort -h | tail), or clone to a larger disk"
fi

# ----------------------------------------------------------------

if [ -n "$problems" ]; then
    echo "preflight: this machine can't run quorumlog yet:$problems" >&2
    exit 2
fi
if [ "${1:-}" = --python ]; then
    echo "$python"
else
    java_found=${java_version:+Java $java_version, }
    echo "preflight: Python $python_version ($python), $java_found$system, $((free_mb / 1024)) GB free"
fi
