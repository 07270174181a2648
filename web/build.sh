#!/usr/bin/env bash
# Builds the console's page into web/dist and copies it to where the hub embeds it. Without Node it leaves the console out.
# With --node it only says, by its exit code, whether there is Node; with --install it only brings the packages.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
embedded=../internal/console/dist

clear_embedded() { mkdir -p "$embedded" && find "$embedded" -mindepth 1 ! -name .gitkeep -delete; }

node_there() {
  command -v npm >/dev/null &&
    node -e 'const [a, b] = process.versions.node.split(".").map(Number); process.exit(a > 20 || (a === 20 && b >= 19) ? 0 : 1)' 2>/dev/null
}

install() {
  if [ ! -f node_modules/.lock ] || ! cmp -s package-lock.json node_modules/.lock; then
    npm ci --no-audit --no-fund --loglevel error >&2
    cp package-lock.json node_modules/.lock
  fi
}

case "${1-}" in
  --node) node_there; exit ;;
  --install) install; exit ;;
esac

if ! node_there; then
  rm -rf dist
  clear_embedded
  echo "console: left out, because Node 20.19 or newer with npm is not on PATH; everything else is built" >&2
  exit 0
fi

# Nothing to do if no source is newer than the last build.
sources=(src public index.html package.json package-lock.json vite.config.ts tsconfig.json build.sh)
if [ -f dist/.built ] && [ -f "$embedded/index.html" ] && [ -z "$(find "${sources[@]}" -newer dist/.built -print -quit)" ]; then
  exit 0
fi

install
node_modules/.bin/vite build --logLevel warn
node compress.mjs dist
clear_embedded
cp -r dist/. "$embedded/"
touch dist/.built
echo "console: built ($(du -sk dist | cut -f1) KiB)" >&2
