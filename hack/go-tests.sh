# shellcheck shell=bash
# Sourced by the scripts that run Go tests, in the project's directory, after hack/phase.sh.

# Without paths of this machine in what is compiled, a checkout in another directory finds compiled packages and results of tests in
# Go's cache.
export CGO_ENABLED=0 GOFLAGS="${GOFLAGS:+$GOFLAGS }-trimpath -buildvcs=false"

# prepare_go_tests makes what tests read the same in each checkout of a commit.
prepare_go_tests() { hack/times.sh; }

# go_test runs go test and keeps the seconds of each package that ran, for `make quick`. golangci-lint has run vet.
# Without debugging symbols a package is linked in half the time; traces of panics need none.
go_test() {
  local out code=0
  out=$(mktemp)
  # A process that a test leaves behind does not keep the locks of enter_scratch. Scripts that tests run are no phases of this run.
  ORRERY_PHASES='' go test -vet=off -ldflags=-w "$@" 6>&- 7>&- | tee "$out" || code=$?
  keep_seconds "$out"
  [ "$code" -eq 0 ] || [ "$(wc -l <"$out")" -lt 100 ] || failures "$out"
  rm -f "$out"
  return "$code"
}

# failures FILE prints what go test said of each failed test once more, shortened: in a long output that is what is looked for, and
# the last lines are what is kept of one.
failures() {
  echo "what failed, shortened:"
  awk '
    / *--- FAIL:/ || /^panic:/ || /^FAIL\t/ { left = 8 }
    /^(ok|\?) / { left = 0 }
    left > 0 && printed < 120 { print substr($0, 1, 240); left--; printed++ }
  ' "$1"
}

# seconds_file has a line "PACKAGE<tab>SECONDS" for each package, as it took when it was last run and passed.
seconds_file() { echo "$(orrery_cache)/test-seconds.tsv"; }

# keep_seconds FILE reads what go test printed. Results from the cache have no time.
keep_seconds() {
  local file new
  file=$(seconds_file)
  mkdir -p "$(dirname "$file")" || return 0
  new=$(mktemp "$file.XXXXXX")
  {
    [ ! -f "$file" ] || cat "$file"
    awk '$1 == "ok" && $3 ~ /^[0-9.]+s$/ { sub("s$", "", $3); print $2 "\t" $3 }' "$1"
  } | awk -F'\t' '{ seconds[$1] = $2 } END { for (p in seconds) print p "\t" seconds[p] }' | sort >"$new"
  mv "$new" "$file"
}

# go_packages PATTERN... prints the packages of the project without those of the patterns.
go_packages() {
  local module pattern
  local -a out=()
  module=$(go list -m)
  for pattern in "$@"; do
    pattern=${pattern/#./$module}
    case "$pattern" in
      */...) out+=(-e "^${pattern%/...}(/|$)") ;;
      *) out+=(-e "^$pattern$") ;;
    esac
  done
  go list ./... | grep -Ev "${out[@]}"
}

# Tests keep their data in memory where they can, so that none of them waits for a disk that others use. The directory is the same
# for all checkouts, or results would depend on its name. Without root the tests use TMPDIR as it is.
scratch=/tmp/orrery-test
scratch_size=8g
entered=

# Runs that use the directory share the lock users. Who can have that lock alone may clear what a killed run has left. A run holds
# the lock setup while it looks.
enter_scratch() {
  if [ "$(id -u)" -ne 0 ]; then
    echo "tests: their data is kept in ${TMPDIR:-/tmp}; as root it would be in memory" >&2
    return
  fi
  exec 6>"$scratch.setup" 7>"$scratch.users"
  flock 6
  if flock -n -x 7; then clear_scratch; fi
  # Another run may have its own mount, in a mount namespace that this one does not see.
  if ! mountpoint -q "$scratch"; then
    mkdir -p "$scratch"
    mount -t tmpfs -o "size=$scratch_size,mode=1777" orrery-test "$scratch" ||
      echo "tests: cannot mount a file system of memory at $scratch; their data is kept on the disk there" >&2
    chmod 1777 "$scratch"
  fi
  flock -s 7
  exec 6>&-
  entered=yes
  export TMPDIR=$scratch
}

leave_scratch() {
  [ -n "$entered" ] || return 0
  entered=
  unset TMPDIR
  exec 6>"$scratch.setup"
  flock 6
  if flock -n -x 7; then clear_scratch; fi
  exec 6>&- 7>&-
}

clear_scratch() {
  while umount -l "$scratch" 2>/dev/null; do :; done
  rm -rf --one-file-system "$scratch"
}
