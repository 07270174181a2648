#!/usr/bin/env bash
# Installs the packages that lab hosts use (internal/lab), as far as they are missing. Without root or apt-get it says
# what to install.
set -euo pipefail

declare -A package=(
  [sshd]=openssh-server [ssh-keygen]=openssh-client [runc]=runc [nft]=nftables [iptables]=iptables
  [systemd-run]=systemd [dbus-daemon]=dbus
  [conntrack]=conntrack [busybox]=busybox-static [ip]=iproute2 [sudo]=sudo [nginx]=nginx-light [nsenter]=util-linux [ps]=procps
)
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin
missing=()
for program in "${!package[@]}"; do
  command -v "$program" >/dev/null || missing+=("${package[$program]}")
done
[ ${#missing[@]} -gt 0 ] || exit 0

exec "$(dirname "${BASH_SOURCE[0]}")/install-packages.sh" lab "${missing[@]}"
