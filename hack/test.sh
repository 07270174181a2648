#!/usr/bin/env bash
# Runs every test. For an ordinary user it leaves out those that need root, and its last line names them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# The longest first: most of their time is waiting, which the others fill.
if [ "$(id -u)" -eq 0 ]; then
  exec go test -timeout 45m -p 3 ./test/lab ./test/spine ./test/e2e ./...
fi

# Their hosts are namespaces of this machine, with networks and users of their own.
rooted=(./test/lab ./internal/lab ./internal/lifecycle/host)
# Some tests of these need such namespaces, too, and skip themselves.
partly=(./internal/lifecycle/node ./internal/lifecycle/unit)
module=$(go list -m)
mapfile -t packages < <(go list ./... | grep -vxF "$(printf "%s\n" "${rooted[@]/#./$module}")")
code=0
go test -timeout 45m -p 3 ./test/spine ./test/e2e "${packages[@]}" || code=$?
echo "not run, because they need root: ${rooted[*]} and some tests of ${partly[*]}; run them as root with: make lab-test"
exit $code
