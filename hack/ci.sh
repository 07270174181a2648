#!/usr/bin/env bash
# The checks, then every test: what .ci/run runs. The lines "phase: …" say how long each part took.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. hack/phase.sh

phase "generated files" hack/check.sh --generated

# The linter and the compiler share the two cores, and what they compile.
checks() {
  local log build code=0
  log=$(mktemp)
  make build >"$log" 2>&1 &
  build=$!
  hack/check.sh --rest || code=$?
  wait "$build" || code=$?
  cat "$log" >&2
  rm -f "$log"
  return "$code"
}
phase "checks and build" checks
phase "tests" make test
