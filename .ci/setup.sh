#!/bin/sh
# Makes .venv from requirements.lock. A run that finds it made for this very lock file does nothing;
# one that finds it half made (an interrupted run), stale or broken makes it anew.
set -eu
cd "$(dirname "$0")/.."

python=$(.ci/preflight.sh --python) || exit 2
unset PYTHONHOME PYTHONPATH VIRTUAL_ENV
export PIP_USER=0 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_REQUIRE_VIRTUALENV=0

# Two makes at once (a test run beside a demo) must not build into one folder.
exec 9<.ci/setup.sh
if command -v flock >/dev/null 2>&1; then flock 9; fi

say() { echo "setup: $*"; }
digest() { cat "$@" | cksum; }
started=$(date +%s)
terminal=0
if [ -t 1 ]; then terminal=1; fi

# pip speaks several lines per package: a terminal gets one line that moves, a log file some.
install() { # PIP-ARGUMENTS…
    status=.venv/pip-status
    { .venv/bin/python -m pip install "$@" && echo 0 >$status || echo 1 >$status; } |
        awk -v total="$total" -v terminal="$terminal" '
            function tell(text) {
                if (terminal) printf "\r\033[K%s", text; else print text
                fflush()
            }
            /^Collecting / { if (++n % 10 == 1 || terminal) tell("setup: [" n "/" total "] " $2) }
            /^Installing collected/ { tell("setup: unpacking") }
            END { if (terminal) printf "\r\033[K" }'
    if [ "$(cat $status)" != 0 ]; then
        say "pip failed (see above). Is a PyPI index reachable? Then: make setup" >&2
        exit 1
    fi
}

lock_stamp=.venv/lock.stamp project_stamp=.venv/project.stamp
lock_digest=$(digest requirements.lock .ci/setup.sh)
project_digest="$(digest pyproject.toml) $(pwd)"

made_for() { # STAMP DIGEST
    [ -f "$1" ] && [ "$(cat "$1")" = "$2" ] && .venv/bin/python -c "" 2>/dev/null
}

if ! made_for $lock_stamp "$lock_digest"; then
    total=$(grep '^[a-z].*==' requirements.lock | grep -cv -e win32 -e '^setuptools==')
    say "making .venv with $("$python" --version) and $total packages; about 30 s"
    rm -rf .venv
    "$python" -m venv .venv
    # pysyncobj comes as source only: what builds it goes in first, from the same lock file,
    # because pip's own build environments fetch whatever version is newest, unchecked.
    sed -n '/^setuptools==/,/[^\\]$/p' requirements.lock >.venv/build.lock
    install --quiet --require-hashes --no-deps -r .venv/build.lock
    install --require-hashes --no-deps --no-build-isolation -r requirements.lock
    echo "$lock_digest" >$lock_stamp
    rm -f $project_stamp
    made=yes
fi
if ! made_for $project_stamp "$project_digest"; then
    total=1
    install --quiet --no-deps --no-build-isolation --editable .
    # Spark lists the modules of each folder on the path, which an editable install is not seen by.
    packages=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    echo "$(pwd)/spark_source/auto_registration" >"$packages/pyspark_quorumlog.pth"
    echo "$project_digest" >$project_stamp
    made=yes
fi
[ -z "${made:-}" ] || say "ready after $(($(date +%s) - started)) s; use it with: . .venv/bin/activate"
