#!/usr/bin/env bash
# Runs the console's tests in a real browser against a demo of their own: console.sh [VITEST ARGUMENT...]. With SCREENSHOTS=1 it
# writes pictures of every page to web/screenshots instead, and with BENCH=1 it measures (test/browser/bench.ts). With CONSOLE_DATA it
# uses the demo that runs in that directory, and leaves it running.
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
# What a browser leaves that is killed goes with all else.
TMPDIR=$(mktemp -d)
export TMPDIR
tests=
own=
stop() {
  trap '' INT TERM HUP
  [ -z "$tests" ] || { kill "$tests" 2>/dev/null && wait "$tests"; } || true
  if [ -n "$own" ]; then
    # What a failed test left stopped is not ended by asking.
    for pid in "$own"/processes/*.pid; do kill -CONT "$(head -n 1 "$pid")" 2>/dev/null || true; done
    "$ORRERY" demo down --data-dir "$own" --delete-data >/dev/null || cat "$own"/*.log >&2
  fi
  rm -rf "$TMPDIR"
}
trap stop EXIT
trap 'exit 130' INT TERM HUP
export CONSOLE_KEPT=${CONSOLE_DATA:+yes}
if [ -z "${CONSOLE_DATA:-}" ]; then
  own=$TMPDIR/demo
  mkdir "$own"
  CONSOLE_DATA=$own
  "$ORRERY" demo up --detach --clusters 3 --data-dir "$CONSOLE_DATA" >"$CONSOLE_DATA/up.log" 2>&1 || { cat "$CONSOLE_DATA/up.log" >&2; exit 1; }
fi
export CONSOLE_DATA
SIMULATED=$TMPDIR/simulated
go build -o "$SIMULATED" ./test/bench/simulated
export SIMULATED
cd web
# In the background, for a shell that waits for it can be interrupted at once. test/lab has a configuration of its own.
node_modules/.bin/vitest run --config "${CONSOLE_CONFIG:-vitest.browser.config.ts}" "$@" &
tests=$!
wait "$tests" || { code=$?; tests=; exit $code; }
tests=
