#!/usr/bin/env bash
# Builds the console's page into web/dist and copies it to where the hub embeds it. Without Node it leaves the console out.
# With --node it only says, by its exit code, whether there is Node; with --install it only brings the packages.
#
# Pages and packages are kept in ${ORRERY_CACHE:-${XDG_CACHE_HOME:-~/.cache}/orrery}/web, by the digest of what they are made from.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
embedded=../internal/console/dist

clear_embedded() { mkdir -p "$embedded" && find "$embedded" -mindepth 1 ! -name .gitkeep -delete; }

node_there() {
  command -v npm >/dev/null &&
    node -e 'const [a, b] = process.versions.node.split(".").map(Number); process.exit(a > 20 || (a === 20 && b >= 19) ? 0 : 1)' 2>/dev/null
}

cache=${ORRERY_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/orrery}/web

# The digest of files and directories, by their names and their content, and of the Node and the platform. File times do not matter.
digest() {
  {
    find "$@" -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum
    node -p '[process.version, process.platform, process.arch, process.report.getReport().header.glibcVersionRuntime].join()'
  } | sha256sum | cut -c1-16
}

# Takes the locks of this checkout and of the cache, and removes what a killed run left half done in the cache.
lock() {
  mkdir -p "$cache/packages" "$cache/pages"
  exec 8<. 9>"$cache/lock"
  flock 8
  flock 9
  rm -rf "$cache"/*/tmp.*
}

# keep KIND DIGEST DIRECTORY: moves a complete directory into the cache. Of each kind the five that were used last stay.
keep() {
  chmod 755 "$3"
  mv "$3" "$cache/$1/$2"
  find "$cache/$1" -mindepth 1 -maxdepth 1 -printf '%T@ %p\n' | sort -rn | tail -n +6 | cut -d' ' -f2- | xargs -r -d '\n' rm -rf
}

# Puts the packages of package-lock.json into node_modules: hard links to those in the cache, where npm installs them once.
install() {
  local wanted kept new
  wanted=$(digest package-lock.json)
  kept=$cache/packages/$wanted
  [ "$(cat node_modules/.digest 2>/dev/null)" != "$wanted" ] || return 0
  if [ ! -d "$kept" ]; then
    new=$(mktemp -d "$cache/packages/tmp.XXXXXX")
    cp package.json package-lock.json "$new"
    (cd "$new" && npm ci --no-audit --no-fund --loglevel error) >&2
    echo "$wanted" >"$new/node_modules/.digest"
    keep packages "$wanted" "$new"
  fi
  touch "$kept"
  rm -rf node_modules node_modules.new
  cp -al "$kept/node_modules" node_modules.new 2>/dev/null || { rm -rf node_modules.new && cp -a "$kept/node_modules" node_modules.new; }
  mv node_modules.new node_modules
}

case "${1-}" in
  --node) node_there; exit ;;
  --install) lock && install; exit ;;
esac

if ! node_there; then
  rm -rf dist
  clear_embedded
  echo "console: left out, because Node 20.19 or newer with npm is not on PATH; everything else is built" >&2
  exit 0
fi

lock
page=$(digest src public index.html package.json package-lock.json vite.config.ts tsconfig.json compress.mjs build.sh)
kept=$cache/pages/$page
if [ "$(cat dist/.built 2>/dev/null)" = "$page" ] && [ -f "$embedded/index.html" ]; then
  exit 0
fi

rm -rf dist
if [ ! -d "$kept" ]; then
  install
  node_modules/.bin/vite build --logLevel warn
  node compress.mjs dist
  new=$(mktemp -d "$cache/pages/tmp.XXXXXX")
  cp -r dist/. "$new"
  keep pages "$page" "$new"
  echo "console: built ($(du -sk dist | cut -f1) KiB)" >&2
else
  touch "$kept"
  cp -r "$kept" dist
fi
clear_embedded
cp -r dist/. "$embedded/"
echo "$page" >dist/.built
