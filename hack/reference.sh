#!/usr/bin/env bash
# Generates docs/reference/: a page for each API group from the types' comments.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
mkdir -p docs/reference
for dir in api/*/v1*; do
  group=$(basename "$(dirname "$dir")")
  [ "$group" = fleet ] && continue # virtual: it has no kinds
  go tool -modfile=go.tools.mod crd-ref-docs --source-path="./$dir" --config=hack/reference.yaml \
    --renderer=markdown --output-path="docs/reference/$group.md" --log-level=ERROR
done
