#!/usr/bin/env bash
# Runs the console's tests in a real browser against a demo of their own: console.sh [VITEST ARGUMENT...]. With SCREENSHOTS=1 it
# writes pictures of every page to web/screenshots instead, and with BENCH=1 it measures (test/browser/bench.ts). With CONSOLE_DATA it
# uses the demo that runs in that directory, and leaves it running. Its exit code is that of the tests.
#
# It may run beside other tests, and twice at once: its files are in a directory of their own, and as root so is its network. Chromium
# breaks off what it loads when a link of its network comes or goes, as those of hosts in tests do.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. hack/phase.sh

if [ -z "${CONSOLE_PREPARED:-}" ]; then
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
  # Files of a browser that was killed go with this directory.
  TMPDIR=$(mktemp -d)
  trap 'rm -rf "$TMPDIR"' EXIT
  trap 'exit 130' INT TERM HUP
  export TMPDIR SIMULATED=$TMPDIR/simulated CONSOLE_PREPARED=yes
  go build -o "$SIMULATED" ./test/bench/simulated
  if [ -z "${CONSOLE_DATA:-}" ] && [ "$(id -u)" -eq 0 ] && unshare --net ip link set lo up 2>/dev/null; then
    exec unshare --net bash -c 'ip link set lo up && exec "$@"' bash "$PWD/hack/console.sh" "$@"
  fi
fi

export ORRERY=$PWD/bin/orrery
phases=$TMPDIR/phases
tests=
own=
stop() {
  local code=$?
  trap '' INT TERM HUP
  # Their group has the programs that they started, too.
  [ -z "$tests" ] || { kill -- "-$tests" 2>/dev/null && wait "$tests"; } || true
  if [ -n "$own" ]; then
    # A failed test may have left a process stopped: it does not end when it is asked to.
    for pid in "$own"/processes/*.pid; do kill -CONT "$(head -n 1 "$pid")" 2>/dev/null || true; done
    "$ORRERY" demo down --data-dir "$own" --delete-data >/dev/null || cat "$own"/*.log >&2
  fi
  [ ! -f "$phases" ] || echo "browser: $(paste -sd, "$phases" | sed 's/,/, /g')" >&2
  rm -rf "$TMPDIR"
  phase_ended "the console in a browser" 0 "$code"
}
trap stop EXIT
trap 'exit 130' INT TERM HUP
export CONSOLE_KEPT=${CONSOLE_DATA:+yes}
if [ -z "${CONSOLE_DATA:-}" ]; then
  own=$TMPDIR/demo
  mkdir "$own"
  CONSOLE_DATA=$own
  begun=$SECONDS
  # In the background, as below, so that a signal ends it at once.
  "$ORRERY" demo up --detach --clusters 3 --data-dir "$CONSOLE_DATA" >"$CONSOLE_DATA/up.log" 2>&1 &
  wait $! || { cat "$CONSOLE_DATA/up.log" >&2; exit 1; }
  echo "demo $((SECONDS - begun)) s" >"$phases"
fi
export CONSOLE_DATA CONSOLE_PHASES=$phases
cd web
# In the background, for a shell that waits for it can be interrupted at once. test/lab has a configuration of its own.
set -m
node_modules/.bin/vitest run --config "${CONSOLE_CONFIG:-vitest.browser.config.ts}" "$@" </dev/null &
tests=$!
set +m
wait "$tests" || { code=$?; tests=; exit $code; }
tests=
