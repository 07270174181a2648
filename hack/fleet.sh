#!/usr/bin/env bash
# fleet.sh up: keeps a demo running, against which `make quick` tests. If bin/orrery has changed since, the hub is restarted with it.
# fleet.sh down: stops it and deletes its data. fleet.sh dir: prints its data directory if it runs.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. hack/phase.sh

# It runs copies of the programs, for a build replaces those in bin.
dir=$(orrery_cache)/fleet
data=$dir/data

running() { [ -x "$dir/orrery" ] && "$dir/orrery" demo status --data-dir "$data" >/dev/null 2>&1; }

# copy PROGRAM puts a program of bin in place of the fleet's, which may be running.
copy() { cp "bin/$1" "$dir/$1.new" && mv "$dir/$1.new" "$dir/$1"; }

# restart_hub ends the hub, which the demo starts again, and waits until it is ready.
restart_hub() {
  rm -f "$data/hub.ready"
  kill "$(head -n 1 "$data/processes/hub.pid")"
  for ((i = 0; i < 600; i++)); do
    [ ! -e "$data/hub.ready" ] || return 0
    sleep 0.1
  done
  echo "fleet: the hub is not ready after 60 s; its log is $data/processes/hub.log; start anew with: make fleet-down fleet" >&2
  return 1
}

case "${1:-}" in
  up)
    mkdir -p "$dir"
    . hack/digests.sh
    if running && cmp -s bin/orrery-kube "$dir/orrery-kube"; then
      [ "$(cat "$dir/programs")" != "$ORRERY_PROGRAMS" ] || exit 0
      copy orrery
      restart_hub
    else
      [ ! -x "$dir/orrery" ] || "$dir/orrery" demo down --data-dir "$data" >/dev/null
      for program in bin/orrery bin/orrery-kube bin/orrery-agent-*; do copy "$(basename "$program")"; done
      "$dir/orrery" demo up --detach --data-dir "$data"
    fi
    echo "$ORRERY_PROGRAMS" >"$dir/programs"
    ;;
  down)
    [ ! -x "$dir/orrery" ] || "$dir/orrery" demo down --data-dir "$data" --delete-data
    rm -rf "$dir"
    ;;
  dir)
    ! running || echo "$data"
    ;;
  *)
    echo "usage: hack/fleet.sh up|down|dir" >&2
    exit 2
    ;;
esac
