# shellcheck shell=bash
# Sourced in the project's directory, after a build. Sets the variables by which Go's cache of test results knows the programs that
# tests start (internal/testenv):
#
#   ORRERY_KUBE_DIGEST  bin/orrery-kube
#   ORRERY_PROGRAMS     bin/orrery without its version, commit and page, the agents, and bin/orrery-kube
#   ORRERY_PAGE         the console's page, which bin/orrery embeds

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

ORRERY_KUBE_DIGEST=$(digest <bin/orrery-kube)
ORRERY_PROGRAMS=$({ orrery_digest; cat bin/orrery-agent-*; echo "$ORRERY_KUBE_DIGEST"; } | digest)
ORRERY_PAGE=$(cd internal/console/dist && find . -type f ! -name .gitkeep -print0 | sort -z | xargs -0r sha256sum | digest)
export ORRERY_KUBE_DIGEST ORRERY_PROGRAMS ORRERY_PAGE
