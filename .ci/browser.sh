#!/bin/sh
# Sees to it that continuous integration has a browser for the tests that open pages: Debian's
# package `chromium`, where none is installed. Elsewhere those tests are skipped, and say so.
set -eu

for name in chromium chromium-browser google-chrome; do
    if command -v "$name" >/dev/null 2>&1; then exit 0; fi
done

say() { echo "browser: $*"; }
if ! command -v apt-get >/dev/null 2>&1 || [ "$(id -u)" != 0 ]; then
    say "no Chromium here, and only root can install it, with apt-get" >&2
    say "mend: sudo apt-get update && sudo apt-get install -y chromium" >&2
    exit 2
fi

started=$(date +%s)
log=$(mktemp)
trap 'rm -f "$log"' EXIT
export DEBIAN_FRONTEND=noninteractive
if ! { apt-get update -q && apt-get install -y -q --no-install-recommends chromium; } \
    >"$log" 2>&1 </dev/null; then
    tail -n 20 "$log" >&2
    say "apt-get failed (see above). Is Debian's mirror reachable? Then: .ci/browser.sh" >&2
    exit 1
fi
say "ready after $(($(date +%s) - started)) s: $(command -v chromium)"
