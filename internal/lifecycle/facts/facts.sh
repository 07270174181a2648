# Facts of a host, for sh as dash, bash and busybox have it. Before this stand "agent=PATH", "etcd_log=DIRECTORY" and
# "traces=PATTERNS", what is on a host only because of us.
#
# Each line of output is a key, a tab and a value. A tool that is missing costs its fact, never the rest. Nothing is
# changed on the host, but for a file in /var/lib that measures fsync and is removed at once.
export LC_ALL=C
PATH=${PATH:+$PATH:}/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export PATH
tab=$(printf '\t')

fact() { printf '%s\t%s\n' "$1" "$2"; }

# first KEY FILE: the first line of a file.
first() {
  line=
  { IFS= read -r line <"$2"; } 2>/dev/null
  [ -z "$line" ] || fact "$1" "$line"
}

# lines KEY: each line of the input.
lines() { sed "s/^/$1$tab/"; }

# GNU date knows nanoseconds, busybox may not; what reads this knows.
clock() { fact clock "$(date +%s.%N)"; }

system() {
  fact uid "$(id -u)"
  first hostname /proc/sys/kernel/hostname
  first machine-id /etc/machine-id
  first boot-id /proc/sys/kernel/random/boot_id
  for file in /etc/os-release /usr/lib/os-release; do
    [ -r "$file" ] || continue
    sed -n "/^\(ID\|ID_LIKE\|VERSION_ID\)=/s/^/os-release$tab/p" "$file"
    break
  done
  fact arch "$(uname -m)"
  fact kernel "$(uname -r)"
  fact cpus "$(nproc || grep -c ^processor /proc/cpuinfo)"
  first memory /proc/meminfo
  [ ! -d /run/systemd/system ] || fact init systemd
  if [ -f /sys/fs/cgroup/cgroup.controllers ]; then
    fact cgroup 2
    first controllers /sys/fs/cgroup/cgroup.controllers
  else
    fact cgroup 1
    lines cgroups </proc/cgroups
  fi
  lines swap </proc/swaps
  first selinux /sys/fs/selinux/enforce
  [ ! -r /etc/ufw/ufw.conf ] || lines ufw </etc/ufw/ufw.conf
  ! grep -q '^nameserver *\(127\.\|::1\)' /etc/resolv.conf ||
    [ ! -r /run/systemd/resolve/resolv.conf ] || fact resolv-conf /run/systemd/resolve/resolv.conf
  for tool in apt-get dnf yum zypper bash tar mount modprobe nft iptables ip6tables ipset ipvsadm conntrack ip; do
    ! command -v "$tool" >/dev/null || fact tool "$tool"
  done
  # A score of its own that only a process with CAP_SYS_RESOURCE may set; it is the subshell's, and gone with it.
  if (echo -999 >/proc/self/oom_score_adj); then fact oom-score-adj yes; fi
  for file in net/ipv4/ip_forward net/ipv6/conf/all/forwarding net/bridge/bridge-nf-call-iptables \
    net/bridge/bridge-nf-call-ip6tables net/netfilter/nf_conntrack_max \
    net/netfilter/nf_conntrack_tcp_timeout_established net/netfilter/nf_conntrack_tcp_timeout_close_wait \
    vm/overcommit_memory vm/panic_on_oom vm/max_map_count kernel/panic kernel/panic_on_oops kernel/pid_max \
    kernel/keys/root_maxkeys kernel/keys/root_maxbytes fs/file-max fs/nr_open \
    fs/inotify/max_user_instances fs/inotify/max_user_watches fs/inotify/max_queued_events; do
    [ ! -e "/proc/sys/$file" ] || [ -w "/proc/sys/$file" ] || fact read-only "$file"
  done
}

network() {
  for link in /sys/class/net/*/mtu; do
    name=${link#/sys/class/net/}
    first "mtu$tab${name%/mtu}" "$link"
  done
  ip -o addr show | lines address
  # The state of a socket that listens is 0A.
  sed -n "s/^ *[0-9]*: [0-9A-F]*:\([0-9A-F]*\) [0-9A-F:]* 0A .*/listen$tab\1/p" /proc/net/tcp /proc/net/tcp6
  ss -ltnp | sed -n "/users:/s/^/listener$tab/p"
}

# What another cluster or container runtime left. Processes of containers are not the host's, ours are below /opt/orrery.
leftovers() {
  for path in /etc/kubernetes/manifests/* /etc/kubernetes/*.conf /etc/kubernetes/pki /var/lib/etcd/member \
    /var/lib/kubelet/config.yaml /var/lib/kubelet/pki /etc/cni/net.d/*.conf /etc/cni/net.d/*.conflist \
    /etc/containerd/config.toml /run/containerd/containerd.sock /etc/rancher /var/lib/rancher /var/lib/k0s \
    /etc/systemd/system/*.wants/kubelet.service /etc/systemd/system/*.wants/etcd.service \
    /etc/systemd/system/*.wants/containerd.service /etc/systemd/system/*.wants/k3s*.service \
    /etc/systemd/system/*.wants/rke2*.service; do
    [ ! -e "$path" ] && [ ! -L "$path" ] || fact leftover "$path"
  done
  # Ours there is the agent, before anything else is done.
  for path in /opt/orrery/* /opt/orrery/bin/*; do
    case $path in /opt/orrery/bin | /opt/orrery/bin/orrery | /opt/orrery/bin/orrery.incoming) continue ;; esac
    [ ! -e "$path" ] && [ ! -L "$path" ] || fact leftover "$path"
  done
  space=$(readlink /proc/self/ns/pid)
  for process in /proc/[0-9]*; do
    name=
    IFS= read -r name <"$process/comm"
    case $name in
    dockerd | containerd | crio | kubelet | kube-apiserver | kube-controller | kube-scheduler | kube-proxy | etcd | \
      k3s | k3s-* | rke2 | rke2-* | k0s | firewalld) ;;
    *) continue ;;
    esac
    [ "$(readlink "$process/ns/pid")" = "$space" ] || continue
    case $name in
    firewalld) fact firewall firewalld ;;
    *) fact process "${process#/proc/} $name $(readlink "$process/exe")" ;;
    esac
  done
}

disk() {
  df -Pk /var/lib | lines df
  probe=/var/lib/.orrery-fsync.$$
  trap 'rm -f "$probe"' EXIT
  trap 'exit 1' HUP INT TERM
  # dd says how long it took, but busybox's does not everywhere; the kernel's uptime is coarse, and always there.
  first uptime /proc/uptime
  for _ in 1 2 3 4 5; do
    dd if=/dev/zero of="$probe" bs=4096 count=1 conv=fsync,notrunc 2>&1 | lines dd
  done
  first uptime /proc/uptime
  rm -f "$probe"
}

# Whether etcd has a file in its write-ahead log, as etcd itself asks at its start. Where that cannot be seen, nothing is
# said: the directory, or the nearest one above it, cannot be read, or has an entry that cannot be entered.
etcd() {
  [ -n "$etcd_log" ] || return
  dir=$etcd_log
  entry=
  while [ ! -d "$dir" ] && [ "$dir" != / ]; do
    entry=${dir##*/}
    dir=${dir%/*}
    dir=${dir:-/}
  done
  entries=$(ls -A "$dir") || return
  newline='
'
  case $newline$entries$newline in *"$newline$entry$newline"*) [ -z "$entry" ] || return ;; esac
  for file in "$etcd_log"/*.wal; do
    [ ! -e "$file" ] || { fact etcd-log present && return; }
  done
  fact etcd-log absent
}

# What our agent keeps, read without it.
record() {
  for file in /var/lib/orrery/node/state.json /var/lib/orrery/node/state.json.bak; do
    [ ! -f "$file" ] || fact record "$(cat "$file")"
  done
}

agent() {
  for path in $traces; do
    [ ! -e "$path" ] && [ ! -L "$path" ] || fact trace "$path"
  done
  for blob in /var/lib/orrery/node/blobs/sha256/*; do
    [ ! -f "$blob" ] || fact blob "${blob##*/}"
  done
  if [ ! -x "$agent" ]; then
    record
    return
  fi
  if said=$("$agent" node observe); then
    printf '%s\n' "$said" | lines applied
    # It says what it is; one of an earlier version does not.
    case $said in *'"agent":"sha256:'*) return ;; esac
  else
    said=$("$agent" node observe 2>&1 >/dev/null)
    printf '%s\n' "$said" | lines agent-error
    record
  fi
  fact agent "$(sha256sum "$agent")"
}

# As a function: it is read whole before it runs, so that nothing in it can read the script from standard input.
facts() {
  fact orrery-facts begin
  clock
  system
  network
  leftovers
  disk
  etcd
  agent
  clock
  fact orrery-facts end
}
facts </dev/null 2>/dev/null
