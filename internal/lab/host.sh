#!/bin/sh
# PID 1 of a lab host, until it becomes an init system. It starts in new mount, PID, UTS, IPC and network namespaces.
#
#   LAB_DIR      what the host keeps (see host.go)
#   LAB_NAME     its name
#   LAB_ADDRESS  its address with prefix length, LAB_GATEWAY the machine's
#   LAB_INIT     what to become in the end
#   LAB_GROUPS   lines of: directory of the cgroup, name below /sys/fs/cgroup ("-" if it is all there is), mount
#                options ("-" for cgroup v2)
set -eu

if [ "${1-}" != inside ]; then
  # The cgroup namespace takes the groups that its first process is in as its roots, so join them before making it.
  while read -r dir _ _; do echo 0 >"$dir/cgroup.procs"; done <<END
$LAB_GROUPS
END
  read -r _ # the machine has moved the network link in
  exec unshare --cgroup /bin/sh "$0" inside
fi

hostname "$LAB_NAME"
root=$LAB_DIR/root
mount --make-rprivate /
mount -t overlay -o "lowerdir=/,upperdir=$LAB_DIR/upper,workdir=$LAB_DIR/work" "$LAB_NAME" "$root"
for dir in var root home opt usr/local tmp; do mount --bind "$LAB_DIR/private/$dir" "$root/$dir"; done
mount -t tmpfs -o mode=755 tmpfs "$root/run"
mount -t proc proc "$root/proc"
mount -t sysfs sysfs "$root/sys"

mount -t tmpfs -o mode=755 tmpfs "$root/dev"
mkdir "$root/dev/pts" "$root/dev/shm" "$root/dev/mqueue" "$root/dev/net"
mount -t devpts -o newinstance,ptmxmode=666,mode=620,gid=5 devpts "$root/dev/pts"
mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
mount -t mqueue mqueue "$root/dev/mqueue"
while read -r name mode major minor; do
  mknod -m "$mode" "$root/dev/$name" c "$major" "$minor"
done <<END
null 666 1 3
zero 666 1 5
full 666 1 7
random 666 1 8
urandom 666 1 9
kmsg 600 1 11
tty 666 5 0
fuse 666 10 229
net/tun 666 10 200
END
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"
for n in 0:stdin 1:stdout 2:stderr; do ln -s "/proc/self/fd/${n%:*}" "$root/dev/${n#*:}"; done

groups=$root/sys/fs/cgroup
if [ "${LAB_GROUPS#* }" = "- -" ]; then
  mount -t cgroup2 cgroup2 "$groups"
  # Controllers can be given to children of a group only while no process is in the group itself.
  mkdir "$groups/init.scope"
  echo 0 >"$groups/init.scope/cgroup.procs"
  for c in $(cat "$groups/cgroup.controllers"); do echo "+$c" >"$groups/cgroup.subtree_control"; done
else
  mount -t tmpfs -o mode=755 tmpfs "$groups"
  while read -r _ name options; do
    mkdir "$groups/$name"
    case $options in
      -) mount -t cgroup2 cgroup2 "$groups/$name" ;;
      name=*) mount -t cgroup -o "none,$options" cgroup "$groups/$name" ;;
      *) mount -t cgroup -o "$options" cgroup "$groups/$name" ;;
    esac
    case $name in *,*) for one in $(echo "$name" | tr , ' '); do ln -s "$name" "$groups/$one"; done ;; esac
  done <<END
$LAB_GROUPS
END
fi

# Settings of the whole kernel, which a kubelet and kube-proxy set: each host has files of its own in their place, or
# hosts would change the machine and each other. Most of those of the network are the host's own already.
mkdir -m 755 "$root/run/lab"
cd "$root"
for file in vm/overcommit_memory vm/panic_on_oom vm/max_map_count vm/swappiness kernel/panic kernel/panic_on_oops kernel/core_pattern kernel/printk \
  kernel/pid_max kernel/keys/root_maxkeys kernel/keys/root_maxbytes fs/file-max fs/nr_open \
  fs/inotify/max_user_instances fs/inotify/max_user_watches fs/inotify/max_queued_events \
  net/netfilter/nf_conntrack_max /sys/module/nf_conntrack/parameters/hashsize kernel/random/boot_id; do
  case $file in /*) file=${file#/} ;; *) file=proc/sys/$file ;; esac
  [ -e "$file" ] || continue
  own=run/lab/$(echo "$file" | tr / .)
  cat "$file" >"$own"
  mount --bind "$own" "$file"
done
cat proc/sys/kernel/random/uuid >run/lab/proc.sys.kernel.random.boot_id

cd "$root"
pivot_root . mnt
cd /
umount -l /mnt
mount --make-rshared /

ip link set lo up
ip address add "$LAB_ADDRESS" dev eth0
ip link set eth0 up
ip route add default via "$LAB_GATEWAY"

mkdir -p /run/sshd /run/lock
exec env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin $LAB_INIT </dev/null
