#!/usr/bin/env bash
# install-packages.sh WHO PACKAGE...: installs packages of Debian's for WHO. Without root or apt-get it says what to install.
set -euo pipefail

who=$1
shift
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
  echo "$who: install these packages (Debian's names), as root: $*" >&2
  exit 1
fi
echo "$who: installing $*" >&2
log=$(mktemp)
trap 'rm -f "$log"' EXIT
# Services that packages bring must not start on the machine: labs and tests run their own.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
  printf '#!/bin/sh\nexit 101\n' >"$policy"
  chmod 755 "$policy"
  trap 'rm -f "$log" "$policy"' EXIT
fi
if ! { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@"; } >"$log" 2>&1; then
  tail -n 20 "$log" >&2
  exit 1
fi
