#!/usr/bin/env bash
# tree.sh COMMAND...: runs a command in the project's directory. As root, that directory has the same path for all checkouts
# meanwhile, in a mount namespace of the command. Go's cache knows a result of tests by the absolute path of each file that the tests
# opened, and so does the linter's: with one path, a clone finds what was tested and linted in another one.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tree=/tmp/orrery-tree
if [ "$(pwd -P)" = "$tree" ] || [ "$(id -u)" -ne 0 ] || ! unshare --mount true 2>/dev/null; then
  exec "$@"
fi
mkdir -p "$tree"
# The checkout is mounted with what is mounted in it. The mount ends with the last process that the command started.
exec unshare --mount bash -c 'mount --rbind "$1" "$2" && cd "$2" && shift 2 && exec "$@"' bash "$PWD" "$tree" "$@"
