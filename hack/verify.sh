#!/usr/bin/env bash
# Says whether HEAD passes .ci/run in a clean checkout, as continuous integration runs it, and notes the commit in the file "verified"
# of the git directory if it does.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. hack/phase.sh

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

: >"$dir/phases"
start=$SECONDS
code=0
# The lock is not passed on: a process that a failed run leaves behind does not keep it.
CI=true ORRERY_PHASES="$dir/phases" bash "$dir/clone/.ci/run" </dev/null 9>&- 2>&1 | tee "$dir/log" 9>&- || code=$?
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
