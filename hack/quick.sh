#!/usr/bin/env bash
# What to run before each commit: at most two minutes on a warm machine. Its last line names what it left out.
#
#   words and widths, see docs/style.md;
#   types and lint of what changed since main (on main, since the last commit);
#   tests that start no server;
#   tests of the packages that changed, as many of them as took at most 60 s together when they were last run;
#   one workload placed, changed, moved and deleted in the fleet that `make fleet` keeps.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. hack/phase.sh
. hack/go-tests.sh
tool() { go tool -modfile=go.tools.mod "$@"; }

budget=60 # seconds of tests of changed packages

base=$(git merge-base HEAD main 2>/dev/null || git rev-parse HEAD)
mapfile -t changed < <({ git diff --name-only --diff-filter=d "$base"; git ls-files --others --exclude-standard; } | sort -u)
module=$(go list -m)

any() { printf '%s\n' "${changed[@]}" | grep -qE "$1"; }

# Directories of changed packages that exist and have Go files.
mapfile -t directories < <(printf '%s\n' "${changed[@]}" | grep -E '\.go$' | grep -v '^kube/' | xargs -r -n 1 dirname | sort -u | while read -r d; do
  ! compgen -G "$d/*.go" >/dev/null || echo "./$d"
done)

phase "types" go build ./...
phase "words and widths" go run ./test/style
if [ ${#directories[@]} -gt 0 ]; then
  phase "lint" tool golangci-lint run --new-from-rev="$base" "${directories[@]}"
fi
if any '^web/' && web/build.sh --node; then
  web/build.sh --install
  phase "the page" bash -c 'cd web && node_modules/.bin/tsc --noEmit && node_modules/.bin/biome check . && node_modules/.bin/vitest run --reporter dot'
fi

prepare_go_tests
. hack/digests.sh

# Packages whose tests start no server, host or database: none of what their tests import is internal/testenv, internal/lab or
# internal/hosttest.
mapfile -t quiet < <(go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}:{{join .TestImports ","}},{{join .XTestImports ","}}{{end}}' ./... |
  grep -vE "[:,]$module/internal/(testenv|lab|hosttest)(,|$)" | cut -d: -f1 | grep -vE "^$module/(test|internal/(hosttest|lab))(/|$)")

# Seconds of a package, as last measured; what was never measured counts as too long.
seconds() { awk -F'\t' -v p="$1" '$1 == p { s = $2 } END { print s == "" ? 1000 : s }' "$(seconds_file)" 2>/dev/null || echo 1000; }

chosen=() left=() total=0
while IFS=$'\t' read -r took package; do
  [ -n "$package" ] || continue
  if awk -v a="$total" -v b="$took" -v most="$budget" 'BEGIN { exit !(a + b <= most) }'; then
    chosen+=("$package")
    total=$(awk -v a="$total" -v b="$took" 'BEGIN { print a + b }')
  else
    left+=("$package")
  fi
done < <(for d in "${directories[@]}"; do
  package=$module/${d#./}
  printf '%s\n' "${quiet[@]}" | grep -qxF "$package" || [ -z "$(go list -f '{{.TestGoFiles}}{{.XTestGoFiles}}' "$d" | tr -d '[]')" ] ||
    printf '%s\t%s\n' "$(seconds "$package")" "$package"
done | sort -n)

code=0
phase "tests without servers" go_test "${quiet[@]}" || code=$?
if [ ${#chosen[@]} -gt 0 ]; then
  phase "tests of changed packages" go_test "${chosen[@]}" || code=$?
fi

data=$(hack/fleet.sh dir)
smoke=
if [ -n "$data" ]; then
  hack/fleet.sh up
  ORRERY_FLEET=$data phase "a workload in the standing fleet" go test -vet=off -count 1 -tags smoke ./test/smoke || code=$?
else
  smoke="; the smoke test, for no fleet runs: make fleet"
fi

[ "$code" -eq 0 ] || echo "quick: something failed, see above" >&2
if [ ${#left[@]} -gt 0 ]; then
  echo "left out: every test of packages that did not change and start servers: make test; changed, but too long: go test ${left[*]/#$module/.}$smoke"
else
  echo "left out: every test of packages that did not change and start servers: make test$smoke"
fi
exit "$code"
