// Package lab gives tests and benchmarks Linux hosts on which to build clusters. The hosts are
// namespaces of this machine. Each host has its own sshd, file system, network address and cgroups.
// A mirror of the release downloads and an image registry serve them. What runs in a host is real:
// containerd, runc, kubelet, kube-proxy with nftables, a CNI.
//
// A lab needs root, a few Debian packages, which hack/lab-packages.sh installs, and the binaries
// that hack/lab-artifacts.sh builds. A closed lab leaves nothing on the machine except a higher
// limit of inotify instances. The next Start removes what a killed test left behind.
package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sync/errgroup"
)

// Options for Start.
type Options struct {
	// Hosts is the number of hosts that Start starts, named host-1 to host-n.
	Hosts int
	// Dir holds all files of the lab. The lab creates it and Close removes it. The default is a new
	// directory in /var/tmp. containerd in the hosts needs a real file system there, not an
	// overlay.
	Dir string
	// Artifacts is the directory that hack/lab-artifacts.sh filled, for the mirror and the
	// registry. The default is bin/lab in the root of this module.
	Artifacts string
}

// Lab is a set of hosts with their own network, mirror and image registry on this machine.
type Lab struct {
	dir     string
	record  *os.File // what the lab has on the machine, see remains; locked while the lab is alive
	network *network
	groups  []hierarchy // the cgroup trees in which the hosts are
	spawner *spawner
	key     string  // file with the private key for every host
	served  *served // the mirror and the registry

	mu      sync.Mutex
	hosts   []*Host
	clients []*exec.Cmd // hold the namespaces of ClientNetwork
}

// Start removes what labs of killed processes left behind, and starts a lab with o.Hosts hosts.
// When the error is nil, all hosts answer SSH. After an error the lab is closed, and Start returns
// no Lab.
func Start(ctx context.Context, o Options) (_ *Lab, err error) {
	if err := checkMachine(); err != nil {
		return nil, err
	}
	if err := raiseWatchers(); err != nil {
		return nil, err
	}
	if o.Artifacts == "" {
		if o.Artifacts, err = defaultArtifacts(); err != nil {
			return nil, err
		}
	}
	l := &Lab{spawner: newSpawner()}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.Close())
		}
	}()
	if l.network, l.record, err = claimNetwork(ctx); err != nil {
		return nil, err
	}
	if l.dir, err = makeDir(o.Dir); err != nil {
		return nil, err
	}
	if l.groups, err = joinedHierarchies(); err != nil {
		return nil, err
	}
	if err := json.NewEncoder(l.record).Encode(l.remains()); err != nil {
		return nil, err
	}
	if err := os.WriteFile(l.script(), []byte(hostScript), 0o755); err != nil {
		return nil, err
	}
	l.key = filepath.Join(l.dir, "key")
	if err := run(ctx, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "lab", "-f", l.key); err != nil {
		return nil, err
	}
	if l.served, err = serve(l.network.gateway, o.Artifacts); err != nil {
		return nil, err
	}
	var group errgroup.Group
	for range o.Hosts {
		group.Go(func() error { _, err := l.AddHost(ctx); return err })
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	return l, nil
}

// Close stops every host, and removes every process, mount, namespace, network link, cgroup and
// file of the lab. It must be called once.
func (l *Lab) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var errs []error
	for _, h := range l.hosts {
		h.Kill()
	}
	for _, c := range l.clients {
		_ = c.Process.Kill()
		_ = c.Wait() // the error says that the process was killed
	}
	if l.served != nil {
		errs = append(errs, l.served.close())
	}
	if l.record != nil {
		errs = append(errs, l.remains().remove(context.Background()), l.record.Close())
	}
	l.spawner.close()
	return errors.Join(errs...)
}

// Host returns the host with the name, such as host-1; nil if there is none.
func (l *Lab) Host(name string) *Host {
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := slices.IndexFunc(l.hosts, func(h *Host) bool { return h.Name == name }); i >= 0 {
		return l.hosts[i]
	}
	return nil
}

// Hosts returns all hosts in the order of their addresses.
func (l *Lab) Hosts() []*Host {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.hosts)
}

// AddHost starts another host, with the next number in its name, and waits until it answers SSH. A
// host that does not start stays in the lab, and is down.
func (l *Lab) AddHost(ctx context.Context) (*Host, error) {
	h, err := l.newHost()
	if err != nil {
		return nil, err
	}
	if err := h.prepare(ctx); err != nil {
		return nil, fmt.Errorf("make %s: %w", h.Name, err)
	}
	return h, h.Start(ctx)
}

// newHost adds a host with the next number to the lab, and starts nothing. It returns an error if
// the lab has maxHosts hosts.
func (l *Lab) newHost() (*Host, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	number := len(l.hosts) + 1
	if number > maxHosts {
		return nil, fmt.Errorf("make host %d: a lab has at most %d hosts", number, maxHosts)
	}
	h := newHost(l, number)
	l.hosts = append(l.hosts, h)
	return h, nil
}

// ClientNetwork creates a network namespace with an address of the lab, for a program that is a
// client of the hosts. It returns the path of the namespace for nsenter --net. A program in it does
// not see changes of the machine's own network links. Close removes the namespace.
func (l *Lab) ClientNetwork(ctx context.Context) (string, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	number := len(l.clients) + 1
	if number > maxClients {
		return "", fmt.Errorf("make the network of a client: a lab has at most %d", maxClients)
	}
	// The namespace lives as long as its process, which dies with the lab's process.
	holder := exec.Command("sleep", "infinity")
	holder.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	if err := l.spawner.start(holder); err != nil {
		return "", err
	}
	l.clients = append(l.clients, holder)
	path, address := fmt.Sprintf("/proc/%d/ns/net", holder.Process.Pid), l.network.client(number)
	if err := l.network.connect(ctx, fmt.Sprintf("%sc%d", l.network.bridge, number), holder.Process.Pid, address); err != nil {
		return "", err
	}
	for _, argv := range [][]string{
		{"link", "set", "lo", "up"},
		{"address", "add", netip.PrefixFrom(address, l.network.subnet.Bits()).String(), "dev", "eth0"},
		{"link", "set", "eth0", "up"},
	} {
		if err := run(ctx, append([]string{"nsenter", "--net=" + path, "ip"}, argv...)...); err != nil {
			return "", err
		}
	}
	return path, nil
}

// Subnet returns the network of the hosts. The machine has the first address in it.
func (l *Lab) Subnet() netip.Prefix { return l.network.subnet }

// Mirror returns the base URL of the release mirror: https://dl.k8s.io/x is at
// Mirror()+"/dl.k8s.io/x".
func (l *Lab) Mirror() string { return "http://" + l.served.mirrorAddress }

// Registry returns host:port of the image registry, which uses plain HTTP. An image has its
// upstream name without the registry's host, for example pause:3.10.
func (l *Lab) Registry() string { return l.served.registryAddress }

// script returns the path of the script host.sh, with which a host boots.
func (l *Lab) script() string { return filepath.Join(l.dir, "host.sh") }

// remains returns what the lab has on the machine, for its record and for Close.
func (l *Lab) remains() remains {
	r := remains{Record: l.record.Name(), Bridge: l.network.bridge, Dir: l.dir}
	for _, g := range l.groups {
		r.Groups = append(r.Groups, filepath.Join(g.Own, l.network.bridge))
	}
	return r
}

// makeDir creates the directory of a lab, which must not exist yet. For "" it creates a new
// directory in /var/tmp, since the file system must be able to hold the upper layer of an overlay.
func makeDir(dir string) (string, error) {
	if dir == "" {
		return os.MkdirTemp("/var/tmp", "orrery-lab-")
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return "", err
	}
	// Close removes the directory, so it must be new.
	if err := os.Mkdir(dir, 0o700); err != nil {
		return "", fmt.Errorf("make directory of the lab (it must not exist yet): %w", err)
	}
	return dir, nil
}

// run runs a program of the machine. The error contains the program's output.
func run(ctx context.Context, argv ...string) error {
	_, err := output(ctx, argv...)
	return err
}

// output runs a program of the machine, and returns its standard output and standard error.
func output(ctx context.Context, argv ...string) (string, error) {
	out, err := exec.CommandContext(ctx, argv[0], argv[1:]...).CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, strings.TrimSpace(string(out)))
	}
	return string(out), nil
}

// packages maps the programs that a lab uses to the Debian packages that contain them.
var packages = map[string]string{
	"sshd": "openssh-server", "ssh-keygen": "openssh-client", "runc": "runc", "nft": "nftables", "iptables": "iptables",
	"conntrack": "conntrack", "busybox": "busybox-static", "ip": "iproute2", "sudo": "sudo", "nsenter": "util-linux",
	"chpasswd": "passwd", "ps": "procps", systemd: "systemd", "dbus-daemon": "dbus",
}

// checkMachine returns an error if this process is not root, or if Debian packages are missing that
// a lab needs. The error says what to do.
func checkMachine() error {
	if os.Geteuid() != 0 {
		return errors.New("start lab: namespaces with their own networks need root: run the tests as root")
	}
	var missing []string
	for program, name := range packages {
		if _, err := exec.LookPath(program); errors.Is(err, exec.ErrNotFound) && !slices.Contains(missing, name) {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		slices.Sort(missing)
		return fmt.Errorf("start lab: packages are missing: %s: run hack/lab-packages.sh", strings.Join(missing, " "))
	}
	return nil
}

// raiseWatchers raises the kernel's limit of inotify instances for root, which the hosts of all
// labs share. A cluster of five hosts takes about a hundred, and the default is 128. The limit
// stays raised, since other labs may need it.
func raiseWatchers() error {
	const file, enough = "/proc/sys/fs/inotify/max_user_instances", 8192
	content, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("start lab: %w", err)
	}
	if now, err := strconv.Atoi(strings.TrimSpace(string(content))); err == nil && now >= enough {
		return nil
	}
	if err := os.WriteFile(file, []byte(strconv.Itoa(enough)), 0o600); err != nil {
		return fmt.Errorf("start lab: let hosts watch more files: %w", err)
	}
	return nil
}

// removeAll removes a directory with its content. It retries while processes that were just killed
// still have mounts in it.
func removeAll(ctx context.Context, dir string) error {
	return until(ctx, func() error {
		if err := os.RemoveAll(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	})
}

// exists reports whether err means that a file exists already.
func exists(err error) bool { return errors.Is(err, fs.ErrExist) || errors.Is(err, syscall.EEXIST) }
