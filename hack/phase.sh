# shellcheck shell=bash
# Sourced by scripts that measure themselves.

# phase NAME COMMAND... runs a command and prints how long it took. It adds a line "SECONDS<tab>NAME" to the file ORRERY_PHASES
# if that variable is set. Its exit code is the command's.
phase() {
  local name=$1 start=$SECONDS code=0
  shift
  echo "phase: $name" >&2
  "$@" || code=$?
  local took=$((SECONDS - start)) result=""
  [ "$code" -eq 0 ] || result=" and failed (exit code $code)"
  echo "phase: $name took $took s$result" >&2
  [ -z "${ORRERY_PHASES:-}" ] || printf '%d\t%s%s\n' "$took" "$name" "$result" >>"$ORRERY_PHASES"
  return "$code"
}

# The directory of what outlives a checkout: built components, measured times, results of soaks.
orrery_cache() { echo "${ORRERY_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/orrery}"; }
