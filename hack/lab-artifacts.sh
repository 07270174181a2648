#!/usr/bin/env bash
# Builds what lab hosts (internal/lab) download: release files under the paths of their upstream URLs, and images.
#
#   hack/lab-artifacts.sh OUTDIR
#
#   OUTDIR/mirror/HOST/PATH                      what https://HOST/PATH is upstream
#   OUTDIR/registry/NAME/manifests/TAG           image manifests
#   OUTDIR/registry/blobs/sha256:HEX             their configs and layers
#
# OUTDIR becomes a link to ${ORRERY_CACHE:-${XDG_CACHE_HOME:-~/.cache}/orrery}/lab/HASH, where HASH covers this script,
# the images' sources, the Kubernetes components, the programs taken from this machine, the Go version and the platform.
set -euo pipefail
out=$(realpath -ms "${1:?usage: hack/lab-artifacts.sh OUTDIR}")
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD
PATH=$PATH:/usr/sbin:/sbin

containerd=v2.4.2
cni=v1.9.1
flannel=v0.28.4
flannel_cni=v1.9.1-flannel1
coredns=v1.14.7
pause=(3.10.1 3.10.2)
for program in runc nft iptables-nft busybox; do
  command -v "$program" >/dev/null || { echo "lab: $program is missing: run hack/lab-packages.sh" >&2; exit 1; }
done
kubernetes=$(awk '$1 == "k8s.io/kubernetes" { print $2; exit }' kube/go.mod)
etcd=$(awk '$1 == "go.etcd.io/etcd/server/v3" { print $2; exit }' kube/go.mod)
runc=v$(runc --version | sed -n 's/^runc version \([0-9.]*\).*/\1/p')
taken=("$(command -v runc)" "$(command -v nft)" "$(readlink -f "$(command -v iptables-nft)")" "$(command -v busybox)")

export CGO_ENABLED=0 GOFLAGS=-buildvcs=false
arch=$(go env GOARCH)
cache=${ORRERY_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/orrery}
hash=$({
  cat hack/lab-artifacts.sh
  cat kube/build.sh kube/go.mod kube/go.sum kube/*.go internal/lab/{pause,web}/*.go "${taken[@]}"
  go version
  echo "$arch"
} | sha256sum | cut -c1-16)
dir=$cache/lab/$hash
done=$dir/artifacts

if [ ! -d "$done" ]; then
  mkdir -p "$dir"
  # One builder at a time: a second caller waits here and then finds the result.
  exec 9>"$dir/lock"
  flock 9
fi

# compile DESCRIPTION DIRECTORY -o OUTPUT FLAGS PACKAGES..., says how far it is.
compile() {
  local what=$1 module=$2
  shift 2
  local total
  total=$(cd "$module" && go list -deps -f '{{if .Stale}}{{.ImportPath}}{{end}}' -trimpath "${@:3}" | wc -l)
  if ! (cd "$module" && go build -v -trimpath "$@" 2>&1) | tee "$dir/build.log" |
    awk -v what="$what" -v total="$total" -v tty="$([ -t 2 ] && echo 1 || echo 0)" '
      BEGIN { start = systime() }
      {
        n++; now = systime(); took = now - start
        if (took < 1 || (tty && now == last) || (!tty && now - last < 30)) next
        last = now; left = total > n ? (total - n) * took / n : 0
        line = sprintf("lab: %s: %d of %d packages, about %dm%02ds left", what, n, total, left / 60, left % 60)
        if (tty) printf "\r%s\033[K", line > "/dev/stderr"; else print line > "/dev/stderr"
      }
      END { if (tty && last) printf "\n" > "/dev/stderr" }'; then
    echo "lab: $what did not build; the end of $dir/build.log is:" >&2
    tail -n 20 "$dir/build.log" >&2
    exit 1
  fi
}

# fetch VERSION PACKAGES... makes a module that requires nothing but the packages' module, so that they are built as
# go install PACKAGE@VERSION builds them. It leaves the path in $module.
fetch() {
  module=$(mktemp -d "$work/module.XXXXXX")
  local version=$1
  shift
  (cd "$module" && go mod init fetch && go get "${@/%/@$version}") >"$dir/build.log" 2>&1 || { tail "$dir/build.log" >&2; exit 1; }
}

# archive FILE DIRECTORY MEMBER packs a member of the directory, the same bytes each time.
archive() {
  mkdir -p "$(dirname "$1")"
  tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -C "$2" -cf - "$3" | gzip -1n >"$1"
}

# sums FILE prints what upstream's checksum files have.
sums() { (cd "$(dirname "$1")" && sha256sum "$(basename "$1")"); }

# image NAME:TAG ROOT ENTRYPOINT makes an image of one layer.
image() {
  local name=${1%:*} tag=${1##*:} blobs=$work/out/registry/blobs layer config
  mkdir -p "$blobs" "$work/out/registry/$name/manifests"
  tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -C "$2" -cf "$work/layer" .
  layer=sha256:$(sha256sum "$work/layer" | cut -d' ' -f1)
  printf '{"architecture":"%s","os":"linux","config":{"Entrypoint":["%s"],"Env":["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]},"rootfs":{"type":"layers","diff_ids":["%s"]}}' \
    "$arch" "$3" "$layer" >"$work/config"
  config=sha256:$(sha256sum "$work/config" | cut -d' ' -f1)
  printf '{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":{"mediaType":"application/vnd.oci.image.config.v1+json","size":%d,"digest":"%s"},"layers":[{"mediaType":"application/vnd.oci.image.layer.v1.tar","size":%d,"digest":"%s"}]}' \
    "$(stat -c %s "$work/config")" "$config" "$(stat -c %s "$work/layer")" "$layer" >"$work/out/registry/$name/manifests/$tag"
  mv "$work/layer" "$blobs/$layer"
  mv "$work/config" "$blobs/$config"
}

# libraries ROOT PROGRAM... copies programs with the shared libraries that they need to their places below ROOT.
libraries() {
  local to=$1 file
  shift
  for file in "$@" $(ldd "$@" | grep -o '/[^ :]*\.so[^ :]*' | sort -u); do
    mkdir -p "$to/$(dirname "$file")"
    cp -L "$file" "$to/$file"
  done
}

build() {
  echo "lab: building containerd, CNI plugins, flannel and CoreDNS from source (once; about 7 minutes on 2 cores, cached after)" >&2
  local bin=$work/bin start=$SECONDS
  mkdir -p "$bin/cni" "$bin/containerd" "$work/out/mirror"
  local small='-s -w'
  "$root/kube/build.sh" "$bin/orrery-kube"

  local packages=(github.com/containerd/containerd/v2/cmd/{containerd,containerd-shim-runc-v2,ctr})
  fetch "$containerd" "${packages[@]}"
  compile "1 of 5, containerd" "$module" -o "$bin/containerd/" \
    -ldflags="$small -X github.com/containerd/containerd/v2/version.Version=$containerd" "${packages[@]}"

  local plugins=github.com/containernetworking/plugins
  packages=($plugins/plugins/{main/bridge,main/loopback,ipam/host-local,meta/portmap,meta/bandwidth,meta/firewall,meta/tuning})
  fetch "$cni" "${packages[@]}"
  compile "2 of 5, CNI plugins" "$module" -o "$bin/cni/" \
    -ldflags="$small -X $plugins/pkg/utils/buildversion.BuildVersion=$cni" "${packages[@]}"

  # The plugins' last release that had flannel's.
  fetch v0.9.1 $plugins/plugins/meta/flannel
  compile "3 of 5, flannel's CNI plugin" "$module" -o "$bin/flannel" -ldflags="$small" $plugins/plugins/meta/flannel

  # flannel without two backends: udp's amd64 part needs cgo, and tencentvpc needs a module that is withdrawn.
  cp -r "$(cd "$module" && go mod download -json "github.com/flannel-io/flannel@$flannel" | sed -n 's/^.*"Dir": "\(.*\)",$/\1/p')" "$work/flannel"
  chmod -R u+w "$work/flannel"
  for backend in udp tencentvpc; do
    rm "$work/flannel/pkg/backend/$backend"/*
    echo "package $backend" >"$work/flannel/pkg/backend/$backend/none.go"
  done
  compile "4 of 5, flannel" "$work/flannel" -o "$bin/flanneld" \
    -ldflags="$small -X github.com/flannel-io/flannel/pkg/version.Version=$flannel" .

  fetch "$coredns" github.com/coredns/coredns
  compile "5 of 5, CoreDNS" "$module" -o "$bin/coredns" -ldflags="$small" github.com/coredns/coredns

  compile "pause" "$root" -o "$bin/pause" -ldflags="$small" ./internal/lab/pause
  compile "web" "$root" -o "$bin/web" -ldflags="$small" ./internal/lab/web

  echo "lab: packing" >&2
  local mirror=$work/out/mirror to name
  to=$mirror/dl.k8s.io/$kubernetes/bin/linux/$arch
  mkdir -p "$to"
  for name in kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy kubectl; do
    ln "$bin/orrery-kube" "$to/$name" 2>/dev/null || cp "$bin/orrery-kube" "$to/$name"
    sums "$bin/orrery-kube" | cut -d' ' -f1 | tr -d '\n' >"$to/$name.sha256"
  done

  to=$mirror/github.com/etcd-io/etcd/releases/download/$etcd
  name=etcd-$etcd-linux-$arch
  mkdir -p "$work/etcd/$name"
  ln "$bin/orrery-kube" "$work/etcd/$name/etcd" 2>/dev/null || cp "$bin/orrery-kube" "$work/etcd/$name/etcd"
  archive "$to/$name.tar.gz" "$work/etcd" "$name"
  sums "$to/$name.tar.gz" >"$to/SHA256SUMS"

  to=$mirror/github.com/containerd/containerd/releases/download/$containerd
  name=containerd-${containerd#v}-linux-$arch.tar.gz
  mkdir -p "$work/containerd"
  mv "$bin/containerd" "$work/containerd/bin"
  archive "$to/$name" "$work/containerd" bin
  sums "$to/$name" >"$to/$name.sha256sum"

  to=$mirror/github.com/containernetworking/plugins/releases/download/$cni
  name=cni-plugins-linux-$arch-$cni.tgz
  archive "$to/$name" "$bin/cni" .
  sums "$to/$name" >"$to/$name.sha256"

  # Debian's runc needs Debian's libseccomp, which lab hosts share with the machine.
  to=$mirror/github.com/opencontainers/runc/releases/download/$runc
  mkdir -p "$to"
  cp -L "${taken[0]}" "$to/runc.$arch"
  sums "$to/runc.$arch" >"$to/runc.sha256sum"

  for name in coredns pause web; do
    mkdir -p "$work/image/$name"
    mv "$bin/$name" "$work/image/$name/"
  done
  image "coredns/coredns:$coredns" "$work/image/coredns" /coredns
  image web:1 "$work/image/web" /web
  for name in "${pause[@]}"; do image "pause:$name" "$work/image/pause" /pause; done

  to=$work/image/flannel-cni-plugin
  mkdir -p "$to/bin"
  cp "${taken[3]}" "$to/bin/busybox"
  for name in sh cp; do ln -s busybox "$to/bin/$name"; done
  mv "$bin/flannel" "$to/flannel"
  image "flannel-io/flannel-cni-plugin:$flannel_cni" "$to" /flannel

  to=$work/image/flannel
  mkdir -p "$to/bin" "$to/opt/bin" "$to/usr/sbin" "$to/run" "$to/tmp"
  cp "${taken[3]}" "$to/bin/busybox"
  for name in sh cp ls cat ip; do ln -s busybox "$to/bin/$name"; done
  mv "$bin/flanneld" "$to/opt/bin/"
  libraries "$to" "${taken[1]}" "${taken[2]}"
  extensions=$(find /usr/lib* -maxdepth 2 -type d -name xtables -print -quit)
  mkdir -p "$to/$(dirname "$extensions")"
  cp -r "$extensions" "$to/$extensions"
  for name in iptables iptables-save iptables-restore ip6tables ip6tables-save ip6tables-restore; do
    ln -s "$(basename "${taken[2]}")" "$to/usr/sbin/$name"
  done
  image "flannel-io/flannel:$flannel" "$to" /opt/bin/flanneld

  mv "$work/out" "$done"
  echo "lab: built in $((SECONDS - start))s" >&2
}

if [ ! -d "$done" ]; then
  work=$dir/work
  rm -rf "$work"
  mkdir -p "$work"
  trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT
  build
fi

mkdir -p "$(dirname "$out")"
ln -sfn "$done" "$out"
