#!/usr/bin/env bash
# Runs the console's tests in a real browser against a demo of their own: console.sh [VITEST ARGUMENT...]. With SCREENSHOTS=1 it
# writes pictures of every page to web/screenshots instead, and with BENCH=1 it measures. With CONSOLE_DATA it uses the demo that runs in that directory, and
# leaves it running.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

missing=$(hack/browser-packages.sh --missing)
if [ -n "$missing" ]; then
  echo "not run, because they need packages, the tests of the console in a browser: install $missing, or run as root: make browser" >&2
  exit 0
fi
if ! web/build.sh --node || [ ! -f internal/console/dist/index.html ]; then
  echo "not run, because Node 20.19 or newer is not on PATH: the tests of the console in a browser" >&2
  exit 0
fi
web/build.sh --install

export ORRERY=$PWD/bin/orrery
tests=
if [ -z "${CONSOLE_DATA:-}" ]; then
  CONSOLE_DATA=$(mktemp -d)
  stop() {
    trap '' INT TERM HUP
    [ -z "$tests" ] || { kill "$tests" 2>/dev/null && wait "$tests"; } || true
    # What a failed test left stopped is not ended by asking.
    for pid in "$CONSOLE_DATA"/processes/*.pid; do kill -CONT "$(head -n 1 "$pid")" 2>/dev/null || true; done
    "$ORRERY" demo down --data-dir "$CONSOLE_DATA" --delete-data >/dev/null || cat "$CONSOLE_DATA"/*.log >&2
    rm -rf "$CONSOLE_DATA"
  }
  trap stop EXIT
  trap 'exit 130' INT TERM HUP
  "$ORRERY" demo up --detach --clusters 3 --data-dir "$CONSOLE_DATA" >"$CONSOLE_DATA/up.log" 2>&1 || { cat "$CONSOLE_DATA/up.log" >&2; exit 1; }
fi
export CONSOLE_DATA
# What a browser leaves that is killed goes with the demo.
export TMPDIR=$CONSOLE_DATA/tmp
mkdir -p "$TMPDIR"
SIMULATED=$TMPDIR/simulated
go build -o "$SIMULATED" ./test/bench/simulated
export SIMULATED
cd web
# In the background, for a shell that waits for it can be interrupted at once. test/lab has a configuration of its own.
node_modules/.bin/vitest run --config "${CONSOLE_CONFIG:-vitest.browser.config.ts}" "$@" &
tests=$!
wait "$tests" || { code=$?; tests=; exit $code; }
tests=
