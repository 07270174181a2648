#!/usr/bin/env bash
# Says whether HEAD passes .ci/run in a clean checkout, as continuous integration runs it, and notes the commit in the file "verified"
# of the git directory if it does.
#
# The checkout has one path, so that Go's cache serves one run what another has built. The environment is empty but for the
# variables below: what only works with another variable of the caller fails here, and not later.
#
#   set here       CI=true, LANG=C.UTF-8, TZ=UTC
#   the caller's   PATH, HOME, and, as far as they are set: XDG_CACHE_HOME, ORRERY_CACHE, GOPATH, GOCACHE, GOMODCACHE, GOPROXY,
#                  GONOSUMDB, GOSUMDB, GOTOOLCHAIN, npm_config_registry, npm_config_cache, HTTP_PROXY, HTTPS_PROXY, NO_PROXY and
#                  their small forms, SSL_CERT_FILE, SSL_CERT_DIR, NODE_EXTRA_CA_CERTS
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. hack/phase.sh

kept=(PATH HOME XDG_CACHE_HOME ORRERY_CACHE GOPATH GOCACHE GOMODCACHE GOPROXY GONOSUMDB GOSUMDB GOTOOLCHAIN npm_config_registry
  npm_config_cache HTTP_PROXY HTTPS_PROXY NO_PROXY http_proxy https_proxy no_proxy SSL_CERT_FILE SSL_CERT_DIR NODE_EXTRA_CA_CERTS)

commit=$(git rev-parse HEAD)
noted=$(git rev-parse --absolute-git-dir)/verified
dir=$(orrery_cache)/verify
mkdir -p "$dir"
exec 9>"$dir/lock"
if ! flock -n 9; then
  echo "verify: another run uses $dir; this one waits for it" >&2
  flock 9
fi
if [ -n "$(git status --porcelain)" ]; then
  echo "verify: the working tree has changes that HEAD does not have; they are not verified:" >&2
  git status --short >&2
fi

echo "verify: $(git log -1 --format='%h %s')" >&2
rm -rf "$dir/clone"
git clone --quiet --no-checkout . "$dir/clone"
git -C "$dir/clone" checkout --quiet --detach "$commit"

environment=(CI=true LANG=C.UTF-8 TZ=UTC "ORRERY_PHASES=$dir/phases")
for name in "${kept[@]}"; do
  [ -z "${!name+set}" ] || environment+=("$name=${!name}")
done
: >"$dir/phases"
start=$SECONDS
code=0
# The lock is not passed on: a process that a failed run leaves behind does not keep it.
env -i "${environment[@]}" bash "$dir/clone/.ci/run" </dev/null 9>&- 2>&1 | tee "$dir/log" 9>&- || code=$?
took=$((SECONDS - start))

echo
awk -F'\t' '{ printf "%6d s  %s\n", $1, $2 }' "$dir/phases"
# Go's cache keeps results: none of them counts as run.
printf '%6d packages ran, %d came from the cache; the ten slowest:\n' "$(grep -cE '^(ok|FAIL)\s.*[0-9]s$' "$dir/log" || true)" "$(grep -cE '^ok\s.*\(cached\)' "$dir/log" || true)"
awk '$1 == "ok" && $3 ~ /^[0-9.]+s$/ { sub("s$", "", $3); printf "%8.1f s  %s\n", $3, $2 }' "$dir/log" | sort -rn | head -n 10
if [ "$code" -ne 0 ]; then
  echo "verify: $commit FAILS .ci/run after $((took / 60)) min $((took % 60)) s; the whole output is in $dir/log"
  exit "$code"
fi
echo "$commit $(date -u +%Y-%m-%dT%H:%M:%SZ) $took s" >>"$noted"
echo "verify: $commit passes .ci/run in $((took / 60)) min $((took % 60)) s"
