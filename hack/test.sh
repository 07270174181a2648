#!/usr/bin/env bash
# Runs every test. For an ordinary user it leaves out those that need root, and its last line names them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Go takes a result from its cache while the packages that a test imports, and the variables that it reads, are the same. Tests that start
# bin/orrery import little of it: they read this variable (testenv.Programs), so that no result of another binary is taken for theirs.
ORRERY_PROGRAMS=$(sha256sum bin/orrery* | sha256sum)
export ORRERY_PROGRAMS

code=0

# The console's page: its pure parts, texts, licences and sizes; then the page in a browser, against a demo.
if web/build.sh --node; then
  web/build.sh
  (cd web && node_modules/.bin/vitest run --reporter dot)
  hack/console.sh || code=$?
else
  echo "not run, because Node 20.19 or newer is not on PATH: the tests of web and of the console in a browser" >&2
fi

# Clusters of hosts are built before anything else runs: their members of etcd elect and answer in time only where they get a share of
# the processors, as they would on hosts of their own. Then the longest first: most of their time is waiting, which the others fill.
if [ "$(id -u)" -eq 0 ]; then
  go test -timeout 30m -parallel 2 ./test/lab || code=$?
  mapfile -t packages < <(go list ./... | grep -v /test/lab)
  go test -timeout 60m -p 3 ./test/spine ./test/e2e ./internal/lifecycle "${packages[@]}" || code=$?
  exit $code
fi

# Their hosts are namespaces of this machine, with networks and users of their own.
rooted=(./test/lab ./internal/lab ./internal/lifecycle/host)
# Some tests of these need such namespaces, too, and skip themselves.
partly=(./internal/lifecycle/node ./internal/lifecycle/unit)
module=$(go list -m)
mapfile -t packages < <(go list ./... | grep -vxF "$(printf "%s\n" "${rooted[@]/#./$module}")")
code=0
go test -timeout 45m -p 3 ./test/spine ./test/e2e "${packages[@]}" || code=$?
missing=$(hack/database-packages.sh --missing)
databases=
[ -z "$missing" ] || databases="; not run, because they need packages, the tests of internal/store against PostgreSQL and MariaDB without \
ORRERY_TEST_POSTGRES_DSN and ORRERY_TEST_MYSQL_DSN: install $missing, or run as root: make databases"
echo "not run, because they need root: ${rooted[*]} and some tests of ${partly[*]}; run them as root with: make lab-test$databases"
exit $code
