#!/usr/bin/env bash
# Builds the multicall binary of upstream Kubernetes components, once for each
# content of this folder, and puts it at the path given.
#
#   kube/build.sh OUTPUT
#
# The result is kept in ${ORRERY_CACHE:-${XDG_CACHE_HOME:-~/.cache}/orrery}/kube/HASH,
# where HASH covers every file in this folder, the Go version and the platform,
# so it is rebuilt only when one of these changes.
set -euo pipefail
out=$(realpath -m "${1:?usage: kube/build.sh OUTPUT}")
cd "$(dirname "${BASH_SOURCE[0]}")"

version=$(awk '$1 == "k8s.io/kubernetes" { print $2; exit }' go.mod)
export CGO_ENABLED=0
hash=$({ cat build.sh go.mod go.sum ./*.go; go version; go env GOOS GOARCH; } | sha256sum | cut -c1-16)
dir=${ORRERY_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/orrery}/kube/$hash
cached=$dir/orrery-kube

if [ ! -x "$cached" ]; then
  mkdir -p "$dir"
  # One builder at a time: a second caller waits here and then finds the result.
  exec 9>"$dir/lock"
  flock 9
fi
if [ ! -x "$cached" ]; then
  echo "kube: building Kubernetes $version components from source (once; about 10 minutes on 2 cores, cached after)" >&2
  rest=${version#v1.}
  stamp="-X k8s.io/component-base/version.gitVersion=$version"
  stamp="$stamp -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=${rest%%.*}"
  stamp="$stamp -X k8s.io/component-base/version.gitTreeState=clean"
  flags=(-trimpath -ldflags="-s -w $stamp")
  # go build -v names each package as it is compiled, so those that are not in Go's cache
  # yet make up the whole.
  total=$(go list -deps -f '{{if .Stale}}{{.ImportPath}}{{end}}' "${flags[@]}" . | wc -l)
  start=$SECONDS
  log=$dir/build.log
  if ! go build -v "${flags[@]}" -o "$cached.tmp" . 2>&1 | tee "$log" |
    awk -v total="$total" -v tty="$([ -t 2 ] && echo 1 || echo 0)" '
      BEGIN { start = systime() }
      {
        n++; now = systime(); took = now - start
        if (took < 1 || (tty && now == last) || (!tty && now - last < 30)) next
        last = now; left = total > n ? (total - n) * took / n : 0
        line = sprintf("kube: %d of %d packages, %ds, about %dm%02ds left", n, total, took, left / 60, left % 60)
        if (tty) printf "\r%s\033[K", line > "/dev/stderr"; else print line > "/dev/stderr"
      }
      END { if (tty && n) printf "\n" > "/dev/stderr" }'; then
    echo "kube: the build failed; the whole output is in $log, its end is:" >&2
    tail -n 20 "$log" >&2
    exit 1
  fi
  mv "$cached.tmp" "$cached"
  echo "kube: built in $((SECONDS - start))s" >&2
fi

mkdir -p "$(dirname "$out")"
if ! cmp -s "$cached" "$out"; then
  # A hard link where the file system allows it: the binary is 160 MB.
  ln -f "$cached" "$out" 2>/dev/null || { cp "$cached" "$out.tmp" && mv "$out.tmp" "$out"; }
fi
