# shellcheck shell=bash
# Sourced by scripts that measure themselves.

# phase NAME COMMAND... runs a command and prints how long it took. Its exit code is the command's.
phase() {
  local name=$1 start=$SECONDS code=0
  shift
  echo "phase: $name" >&2
  "$@" || code=$?
  phase_ended "$name" "$start" "$code"
  return "$code"
}

# phase_ended NAME START CODE prints how long a phase took that began when SECONDS was START, and adds a line "SECONDS<tab>NAME" to the
# file ORRERY_PHASES if that variable is set.
phase_ended() {
  local took=$((SECONDS - $2)) result=""
  [ "$3" -eq 0 ] || result=" and failed (exit code $3)"
  echo "phase: $1 took $took s$result" >&2
  [ -z "${ORRERY_PHASES:-}" ] || printf '%d\t%s%s\n' "$took" "$1" "$result" >>"$ORRERY_PHASES"
}

# The directory of what outlives a checkout: built components, measured times, results of soaks.
orrery_cache() { echo "${ORRERY_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/orrery}"; }
