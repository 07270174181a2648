#!/usr/bin/env bash
# The checks that need no running server: each one says how to mend what it found.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
tool() { go tool -modfile=go.tools.mod "$@"; }

step() { echo "check: $1" >&2; }

step "modules are tidy"
go mod tidy -diff || { echo "run: go mod tidy" >&2; exit 1; }
(cd kube && go mod tidy -diff) || { echo "run: cd kube && go mod tidy" >&2; exit 1; }

step "generated files are up to date"
before=$(mktemp -d)
trap 'rm -rf "$before"' EXIT
cp -r --parents api config docs/reference "$before"
make --no-print-directory generate >/dev/null
for dir in api config docs/reference; do
  diff -r "$before/$dir" "$dir" || { echo "generated files were out of date; they are now regenerated: commit them" >&2; exit 1; }
done

step "vet of the Kubernetes components"
# With the flag of kube/build.sh, or all of Kubernetes would be compiled twice.
(cd kube && go vet -trimpath .)

step "format, lint and vet"
tool golangci-lint run ./...

step "types and lint of the console's page"
if web/build.sh --node; then
  web/build.sh --install
  (cd web && node_modules/.bin/tsc --noEmit && node_modules/.bin/biome check .) || { echo "formatting and imports are mended by: cd web && npm run format" >&2; exit 1; }
else
  echo "check: left out: Node is missing or too old" >&2
fi
