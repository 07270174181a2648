# shellcheck shell=bash
# Sourced in the project's directory, after a build and after hack/phase.sh. Sets the variables by which Go's cache of test results knows the programs that
# tests start (internal/testenv):
#
#   ORRERY_KUBE      the path of a copy of bin/orrery-kube outside of the project, which has the digest of its content
#   ORRERY_PROGRAMS  bin/orrery without its version, commit and page, the agents, and bin/orrery-kube
#   ORRERY_PAGE      the console's page, which bin/orrery embeds

# build_ids PACKAGE prints the digests of the compiled content of a package and of all that it imports, but for internal/console.
build_ids() {
  go list -deps -export -f '{{if ne .ImportPath "orrery.dev/orrery/internal/console"}}{{.ImportPath}} {{.BuildID}}{{end}}' "$1" |
    sed 's| .*/| |'
}

# orrery_digest prints a digest of what bin/orrery is linked from. The linker stamps the commit into the file, so the digest of
# the file would be another one at each commit. A package's build ID ends with the digest of its compiled content. internal/console
# embeds the page, so its sources stand for it.
orrery_digest() {
  go version
  build_ids ./cmd/orrery
  cat internal/console/*.go
}

digest() { sha256sum | cut -c1-16; }

# kube_copy prints the path of the copy of bin/orrery-kube, and makes the copy: a link where the file system allows it.
kube_copy() {
  local dir file
  dir=$(orrery_cache)/programs
  file=$dir/$(digest <bin/orrery-kube)/orrery-kube
  if [ ! -x "$file" ]; then
    mkdir -p "${file%/*}"
    rm -f "$file.$$"
    ln bin/orrery-kube "$file.$$" 2>/dev/null || cp bin/orrery-kube "$file.$$"
    mv "$file.$$" "$file"
  fi
  touch "${file%/*}"
  find "$dir" -mindepth 1 -maxdepth 1 -mtime +30 -exec rm -rf {} +
  echo "$file"
}

ORRERY_KUBE=$(kube_copy)
ORRERY_PROGRAMS=$({ orrery_digest; cat bin/orrery-agent-*; echo "$ORRERY_KUBE"; } | digest)
ORRERY_PAGE=$(cd internal/console/dist && find . -type f ! -name .gitkeep -print0 | sort -z | xargs -0r sha256sum | digest)
export ORRERY_KUBE ORRERY_PROGRAMS ORRERY_PAGE
