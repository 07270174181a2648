#!/usr/bin/env bash
# Runs every test. For an ordinary user it leaves out those that need root, and its last line names them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. hack/phase.sh
. hack/go-tests.sh

phase "file times and digests" prepare_go_tests
. hack/digests.sh

code=0
web=
if web/build.sh --node; then
  web=yes
  web/build.sh
  web/build.sh --install # a page that is kept needs no packages, and its tests do
  # The console's page: its pure parts, texts, licences and sizes.
  phase "unit tests of the page" bash -c 'cd web && node_modules/.bin/vitest run --reporter dot' || code=$?
else
  echo "not run, because Node 20.19 or newer is not on PATH: the tests of web and of the console in a browser" >&2
fi

# Hosts of clusters are built while nothing else runs: their members of etcd elect and answer in time only where they get a share of the
# processors, as they would on hosts of their own.
root=
if [ "$(id -u)" -eq 0 ]; then
  root=yes
  phase "clusters on hosts" go_test -timeout 60m -parallel 2 ./test/lab/... || code=$?
fi

# Beside the browser's tests, which leave the processors idle for a quarter of the time, these packages run, two at a time and at a
# lower priority: they wait more than they compute. Beside all of Go's tests pages take longer to answer than the tests of them wait.
waiting=(./internal/lifecycle ./internal/provision ./test/e2e/documents)
beside_browser() (
  renice -n 10 -p "$BASHPID" >/dev/null
  go_test "$@"
)

# As Go does for its tests, this keeps that the browser's tests passed, in a file whose name is a digest of all that they depend on:
# the programs, the page, the sources of the page and of the tests, the simulated clusters, the browser, Node, and the document whose
# example a test runs.
browser_result() {
  local digest
  digest=$({
    echo "$ORRERY_PROGRAMS $ORRERY_PAGE"
    build_ids ./test/bench/simulated
    find web \( -name node_modules -o -name dist -o -name screenshots \) -prune -o -type f -print0 | sort -z | xargs -0 sha256sum
    sha256sum hack/console.sh docs/console.md
    node --version
    "${CHROMIUM:-/usr/bin/chromium}" --version 2>/dev/null || true
  } | digest)
  echo "$(orrery_cache)/browser/$digest"
}
passed=
browser=
stop() {
  if [ -n "$browser" ]; then
    kill "$browser" 2>/dev/null || true
    wait "$browser" || true
  fi
  leave_scratch
}
trap stop EXIT
trap 'exit 130' INT TERM HUP
enter_scratch
if [ -n "$web" ]; then
  passed=$(browser_result)
  # With one of these variables other tests run, or the same on something else.
  if [ -f "$passed" ] && [ -z "${SOAK:-}${CONSOLE_DATA:-}${CONSOLE_CONFIG:-}${SCREENSHOTS:-}${BENCH:-}" ]; then
    echo "the console in a browser: passed with the same programs, page and tests (cached; make console-test runs it)"
  else
    hack/console.sh &
    browser=$!
  fi
fi
phase "Go packages that wait" beside_browser -timeout 60m -p 2 "${waiting[@]}" || code=$?
if [ -n "$browser" ]; then
  result=0
  wait "$browser" || result=$?
  browser=
  if [ "$result" -ne 0 ]; then
    code=$result
  elif [ -z "$(hack/browser-packages.sh --missing)" ]; then # without a browser nothing ran
    mkdir -p "${passed%/*}" && touch "$passed"
    find "${passed%/*}" -type f -mtime +30 -delete
  fi
fi

# What the tests of layers read are answers of `go list`, of which Go's cache knows nothing.
phase "layers" go_test -count 1 ./test/layers || code=$?

# The longest come first, so that none of them is left alone at the end.
first=(./test/spine/... ./internal/tunnel/agent ./internal/apply ./test/e2e ./internal/hub ./internal/mirror ./internal/cli
  ./internal/member ./internal/placement ./internal/store ./internal/search ./internal/server ./internal/status ./internal/tunnel/gateway)
# Their hosts are namespaces of this machine, with networks and users of their own.
rooted=(./test/lab/... ./internal/lab ./internal/lifecycle/host)
# Some tests of these need such namespaces, too, and skip themselves.
partly=(./internal/lifecycle/node ./internal/lifecycle/unit)
left_out=(./test/layers "${waiting[@]}")
if [ -n "$root" ]; then left_out+=(./test/lab/...); else left_out+=("${rooted[@]}"); fi
packages=$(go_packages "${left_out[@]}")
# One package more than processors keeps them busy. With more, on a slow machine, an API server among sixty processes did not answer
# within the minute that its clients wait.
phase "Go packages" go_test -timeout 60m -p "$(($(nproc) + 1))" "${first[@]}" $packages || code=$?

[ -z "$root" ] || exit $code

missing=$(hack/database-packages.sh --missing)
databases=
[ -z "$missing" ] || databases="; not run, because they need packages, the tests of internal/store against PostgreSQL and MariaDB without \
ORRERY_TEST_POSTGRES_DSN and ORRERY_TEST_MYSQL_DSN: install $missing, or run as root: make databases"
echo "not run, because they need root: ${rooted[*]} and some tests of ${partly[*]}; run them as root with: make lab-test$databases"
exit $code
