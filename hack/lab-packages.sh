#!/usr/bin/env bash
# Installs the packages that lab hosts use (internal/lab), as far as they are missing. Without root or apt-get it says
# what to install.
set -euo pipefail

declare -A package=(
  [sshd]=openssh-server [ssh-keygen]=openssh-client [runc]=runc [nft]=nftables [iptables]=iptables
  [systemd-run]=systemd [dbus-daemon]=dbus
  [conntrack]=conntrack [busybox]=busybox-static [ip]=iproute2 [sudo]=sudo [nsenter]=util-linux [ps]=procps
)
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin
missing=()
for program in "${!package[@]}"; do
  command -v "$program" >/dev/null || missing+=("${package[$program]}")
done
[ ${#missing[@]} -gt 0 ] || exit 0

if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
  echo "lab: install these packages (Debian's names), as root: ${missing[*]}" >&2
  exit 1
fi
echo "lab: installing ${missing[*]}" >&2
log=$(mktemp)
trap 'rm -f "$log"' EXIT
# Services that packages bring must not start on the machine: a lab runs its own.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
  printf '#!/bin/sh\nexit 101\n' >"$policy"
  chmod 755 "$policy"
  trap 'rm -f "$log" "$policy"' EXIT
fi
if ! { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${missing[@]}"; } >"$log" 2>&1; then
  tail -n 20 "$log" >&2
  exit 1
fi
