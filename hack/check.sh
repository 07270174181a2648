#!/usr/bin/env bash
# The checks that need no running server: each one says how to mend what it found. With --generated it runs only those that write
# into the tree, which a build must not read meanwhile, and with --rest the others.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. hack/phase.sh
export CGO_ENABLED=0 GOFLAGS="${GOFLAGS:+$GOFLAGS }-trimpath -buildvcs=false" # as the Makefile has them, so that what is compiled is shared
tool() { go tool -modfile=go.tools.mod "$@"; }

tidy() {
  go mod tidy -diff || { echo "run: go mod tidy" >&2; return 1; }
  (cd kube && go mod tidy -diff) || { echo "run: cd kube && go mod tidy" >&2; return 1; }
}

generated() {
  local before dir code=0
  before=$(mktemp -d)
  cp -r --parents api config docs/reference "$before" && make --no-print-directory generate >/dev/null || code=1
  for dir in api config docs/reference; do
    diff -r "$before/$dir" "$dir" || { echo "generated files were out of date; they are now regenerated: commit them" >&2; code=1; break; }
  done
  rm -rf "$before"
  return "$code"
}

# With the flag of kube/build.sh, or all of Kubernetes would be compiled twice.
vet_kube() { (cd kube && go vet -trimpath .); }

lint() { tool golangci-lint run ./...; }

page() {
  if web/build.sh --node; then
    web/build.sh --install
    (cd web && node_modules/.bin/tsc --noEmit && node_modules/.bin/biome check .) || { echo "formatting and imports are mended by: cd web && npm run format" >&2; return 1; }
  else
    echo "check: left out: Node is missing or too old" >&2
  fi
}

if [ "${1:-}" != --rest ]; then
  phase "generated files are up to date" generated
fi
[ "${1:-}" != --generated ] || exit 0
phase "modules are tidy" tidy
phase "words and widths" go run ./test/style
phase "vet of the Kubernetes components" vet_kube
phase "format, lint and vet" lint
phase "types and lint of the console's page" page
