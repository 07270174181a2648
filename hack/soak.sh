#!/usr/bin/env bash
# soak.sh all: runs all cases of the tests of which .ci/run does a part (SOAK=1, see internal/testenv/seed.go).
# soak.sh tests: runs every test of Go and of the browser ROUNDS times (5) in random order, beside three processes that use all the
# processor time that they get; test/lab once, alone.
#
# Either writes a line for each package and round to a file, "RESULT ROUND PACKAGE SECONDS COMMIT TIME", and goes on from there when it
# is started again: what has passed is not run again, what failed is. Of "all" the file is the commit's. Of "tests" it is one file
# for all commits, so that only the package that was mended runs again; remove it to begin anew. What a failed test printed is
# beside the file.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. hack/phase.sh
. hack/go-tests.sh

mode=${1:?usage: hack/soak.sh all|tests}
commit=$(git rev-parse HEAD)
dir=$(orrery_cache)/soak
mkdir -p "$dir"
case "$mode" in
  all) results=$dir/$commit.tsv rounds=1 ;;
  tests) results=$dir/tests.tsv rounds=${ROUNDS:-5} ;;
  *) echo "usage: hack/soak.sh all|tests" >&2; exit 2 ;;
esac
[ -z "$(git status --porcelain)" ] || echo "soak: the working tree has changes that commit $commit does not have; the results are noted as that commit's" >&2
exec 9>"$dir/lock"
flock -n 9 || { echo "soak: another run writes to $dir" >&2; exit 1; }
touch "$results"
echo "soak: results are in $results" >&2

prepare_go_tests
. hack/digests.sh

busy=()
stop() {
  for pid in "${busy[@]}"; do kill "$pid" 2>/dev/null || true; done
  leave_scratch
}
trap stop EXIT
trap 'exit 130' INT TERM HUP

passed() { awk -F'\t' -v round="$1" -v package="$2" '$1 == "ok" && $2 == round && $3 == package { found = 1 } END { exit !found }' "$results"; }

failed=0
# one ROUND PACKAGE COMMAND... runs a command unless the file says that it has passed.
one() {
  local round=$1 package=$2 log start=$SECONDS result=ok
  shift 2
  ! passed "$round" "$package" || return 0
  log=$dir/$mode-$(tr '/' '-' <<<"${package#./}")-$round.log
  echo "soak: round $round of $rounds: $package" >&2
  "$@" >"$log" 2>&1 9>&- || result=FAIL
  printf '%s\t%d\t%s\t%d\t%s\t%s\n' "$result" "$round" "$package" $((SECONDS - start)) "$commit" "$(date -u +%Y-%m-%dT%H:%M:%SZ)" >>"$results"
  if [ "$result" = ok ]; then
    rm -f "$log"
  else
    failed=$((failed + 1))
    echo "soak: FAIL: $package in round $round; what it printed is in $log" >&2
  fi
}

if [ "$mode" = all ]; then
  export SOAK=1
  # The packages whose tests have more cases than .ci/run does: they ask internal/testenv.
  mapfile -t packages < <(grep -rlE 'testenv\.(Soak|Sample|Count|Seed|Rand|Rotate)\(' --include="*_test.go" internal test cmd | xargs -n 1 dirname | sort -u)
  [ "$(id -u)" -eq 0 ] || mapfile -t packages < <(printf '%s\n' "${packages[@]}" | grep -v '^test/lab')
  for package in "${packages[@]}"; do
    one 1 "./$package" go test -vet=off -count 1 -timeout 0 "./$package"
  done
  ! web/build.sh --node || one 1 web hack/console.sh
else
  mapfile -t packages < <(go_packages ./test/lab/... | sed "s|^$(go list -m)|.|")
  if [ "$(id -u)" -eq 0 ]; then
    one 1 ./test/lab/... go test -vet=off -count 1 -timeout 60m -parallel 2 ./test/lab/...
  fi
  enter_scratch
  for _ in 1 2 3; do
    # Ends with this process, however that ends.
    (trap - EXIT; while kill -0 $$ 2>/dev/null; do for ((i = 0; i < 1000000; i++)); do :; done; done) 6>&- 7>&- 9>&- &
    busy+=($!)
  done
  for ((round = 1; round <= rounds; round++)); do
    for package in "${packages[@]}"; do
      one "$round" "$package" go test -vet=off -count 1 -timeout 60m -shuffle=on "$package"
    done
    ! web/build.sh --node || one "$round" web hack/console.sh
  done
fi

awk -F'\t' '{ n[$1]++ } END { printf "soak: %d passed, %d failed on the way\n", n["ok"], n["FAIL"] }' "$results"
[ "$failed" -eq 0 ] || { echo "soak: $failed failed in this run; run it again to repeat only these" >&2; exit 1; }
