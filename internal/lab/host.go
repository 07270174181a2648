package lab

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// bootTime is how long a host may take until it answers SSH. It also limits other waits of the lab.
const bootTime = 3 * time.Minute

// hostScript is the shell script with which a host boots: it is PID 1, sets up the file system and
// network, and then becomes systemd.
//
//go:embed host.sh
var hostScript string

// Host is a Linux host of a lab, made of namespaces of this machine. Its file system is that of the
// machine with an overlay of its own. /var, /root, /home, /tmp, /opt and /usr/local begin empty.
//
// PID 1 of the host is systemd, with sshd, the journal and D-Bus as its only units.
type Host struct {
	Name    string
	Address string

	lab     *Lab
	dir     string
	address netip.Addr

	mu   sync.Mutex
	init *exec.Cmd // PID 1 of the host; nil while the host is off
}

// newHost returns the host with this number, from 1. It creates nothing on the machine.
func newHost(l *Lab, number int) *Host {
	name, address := "host-"+strconv.Itoa(number), l.network.address(number)
	return &Host{Name: name, Address: address.String(), lab: l, dir: filepath.Join(l.dir, name), address: address}
}

// SSH describes how to log in to a host: as root with the key, or as the user Operator with the key
// or the password. The operator may run everything by sudo, which asks for the password.
type SSH struct {
	Address  string
	Port     int
	KeyFile  string
	Operator string
	Password string
}

// SSH returns how to log in to the host.
func (h *Host) SSH() SSH {
	return SSH{Address: h.Address, Port: 22, KeyFile: h.lab.key, Operator: operator, Password: operatorPassword}
}

// HostKey returns the public SSH key of the host, as type and key. A line of known_hosts has the
// name of the host before that.
func (h *Host) HostKey() (string, error) {
	content, err := os.ReadFile(h.upper("etc/ssh/ssh_host_ed25519_key.pub"))
	if err != nil {
		return "", fmt.Errorf("read host key of %s: %w", h.Name, err)
	}
	fields := strings.Fields(string(content))
	return strings.Join(fields[:min(2, len(fields))], " "), nil
}

// RotateHostKey replaces the SSH key of the host, as if the host were installed again. The host may
// be up or down.
func (h *Host) RotateHostKey(ctx context.Context) error {
	path := h.upper("etc/ssh/ssh_host_ed25519_key")
	fresh := filepath.Join(h.dir, "host_key")
	if err := run(ctx, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", h.Name, "-f", fresh); err != nil {
		return err
	}
	if !h.up() {
		return errors.Join(os.Rename(fresh, path), os.Rename(fresh+".pub", path+".pub"))
	}
	// Files of a mounted overlay must be changed through the mount.
	root := h.Root()
	for _, suffix := range []string{"", ".pub"} {
		content, err := os.ReadFile(fresh + suffix)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(root, "etc/ssh/ssh_host_ed25519_key"+suffix), content, 0o600); err != nil {
			return err
		}
		if err := os.Remove(fresh + suffix); err != nil {
			return err
		}
	}
	_, err := h.Run(ctx, "pkill", "-HUP", "-o", "-x", "sshd")
	return err
}

// Root returns the path on this machine that leads to the root directory of the host. It is valid
// while the host is up.
func (h *Host) Root() string {
	return fmt.Sprintf("/proc/%d/root", h.PID())
}

// PID returns the process ID, on this machine, of the host's PID 1. It is 0 while the host is down.
func (h *Host) PID() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.init == nil {
		return 0
	}
	return h.init.Process.Pid
}

// up reports whether the host was started and not killed.
func (h *Host) up() bool { return h.PID() != 0 }

// Run runs a program in the host as root, without SSH, and returns its standard output, also with
// an error. Processes that the program leaves behind stay in the host. It returns an error if the
// host is down.
func (h *Host) Run(ctx context.Context, argv ...string) (string, error) {
	pid := h.PID()
	if pid == 0 {
		return "", fmt.Errorf("run %s: %s is down", argv[0], h.Name)
	}
	// The shell joins the host's cgroups first, so that all processes of the program belong to the
	// host.
	script := `for group in $LAB_GROUPS; do echo 0 >"$group/cgroup.procs" || exit; done
exec nsenter --target "$LAB_PID" --mount --uts --ipc --net --pid --cgroup --root --wd \
  env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root "$@"`
	cmd := exec.CommandContext(ctx, "/bin/sh", append([]string{"-c", script, "sh"}, argv...)...)
	cmd.Env = append(os.Environ(), "LAB_PID="+strconv.Itoa(pid), "LAB_GROUPS="+strings.Join(h.processGroups(), "\n"))
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	// nsenter has a child in the host, which must end with it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second // a daemon that the program started may hold the output open
	if err := cmd.Run(); err != nil && !errors.Is(err, exec.ErrWaitDelay) {
		return stdout.String(), fmt.Errorf("%s: %s: %w: %s", h.Name, strings.Join(argv, " "), err, strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), nil
}

// Start boots the host, also after Kill, and waits until it answers SSH. After an error the host is
// down.
func (h *Host) Start(ctx context.Context) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("start %s: %w; its console says: %s", h.Name, err, h.console())
			h.Kill()
		}
	}()
	if err := h.boot(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, bootTime)
	defer cancel()
	return until(ctx, func() error {
		if !h.up() {
			return errors.New("init has ended")
		}
		return h.answers(ctx)
	})
}

// boot starts PID 1 of the host and connects the host to the network. It returns an error if the
// host is up.
func (h *Host) boot(ctx context.Context) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.init != nil {
		return errors.New("it is up")
	}
	// On a real host systemd-tmpfiles makes /tmp empty at boot.
	if err := emptyDir(filepath.Join(h.dir, "private/tmp")); err != nil {
		return err
	}
	if err := h.makeGroups(ctx); err != nil {
		return err
	}
	console, err := os.OpenFile(filepath.Join(h.dir, "console"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer console.Close()
	wait, goOn, err := os.Pipe()
	if err != nil {
		return err
	}
	defer wait.Close()
	defer goOn.Close()

	cmd := exec.Command("/bin/sh", h.lab.script())
	cmd.Dir = "/"
	cmd.Env = append(os.Environ(), "LAB_DIR="+h.dir, "LAB_NAME="+h.Name, "LAB_GATEWAY="+h.lab.network.gateway.String(),
		"LAB_ADDRESS="+netip.PrefixFrom(h.address, h.lab.network.subnet.Bits()).String(),
		"LAB_GROUPS="+h.groupLines(), "LAB_INIT="+initCommand)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = wait, console, console
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setsid: true,
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC |
			unix.CLONE_NEWNET,
		Pdeathsig: syscall.SIGKILL,
	}
	if err := h.lab.spawner.start(cmd); err != nil {
		return err
	}
	h.init = cmd
	if err := h.lab.network.connect(ctx, h.link(), cmd.Process.Pid, h.address); err != nil {
		return err
	}
	_, err = goOn.WriteString("\n")
	return err
}

// answers returns nil if sshd of the host accepts a connection and sends its greeting.
func (h *Host) answers(ctx context.Context) error {
	dialer := net.Dialer{Timeout: time.Second}
	conn, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort(h.Address, "22"))
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return err
	}
	_, err = conn.Read(make([]byte, 1))
	return err
}

// Kill kills all processes of the host, as a loss of power would. This frees its mounts, network
// and cgroups. Files stay as they are. It does nothing if the host is down.
func (h *Host) Kill() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.init == nil {
		return
	}
	// The kernel kills all processes of a PID namespace when the first one dies, before Wait
	// returns.
	_ = h.init.Process.Kill() // no error: the process exists until Wait
	_ = h.init.Wait()         // the error says that the process was killed
	h.init = nil
	// The kernel removes the link with the network namespace, but some time later.
	h.lab.network.disconnect(h.link())
}

// Cut disconnects the host from the network, in both directions.
func (h *Host) Cut(ctx context.Context) error {
	return run(ctx, "ip", "link", "set", h.link(), "down")
}

// Reconnect connects the host to the network again.
func (h *Host) Reconnect(ctx context.Context) error {
	return run(ctx, "ip", "link", "set", h.link(), "up")
}

// link returns the name of the network link that leads from the bridge of the lab to the host.
// Names of links have at most 15 bytes.
func (h *Host) link() string {
	return h.lab.network.bridge + "h" + strings.TrimPrefix(h.Name, "host-")
}

// upper returns the path, on this machine, of a file in the upper layer of the host's overlay.
func (h *Host) upper(path string) string { return filepath.Join(h.dir, "upper", path) }

// console returns the last 1000 bytes that PID 1 of the host and its services have printed, for
// errors. If they cannot be read, it returns the text of that error.
func (h *Host) console() string {
	content, err := os.ReadFile(filepath.Join(h.dir, "console"))
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(content[max(0, len(content)-1000):]))
}

// until calls f until it succeeds. If ctx ends or bootTime has passed, it returns the last error of
// f.
func until(ctx context.Context, f func() error) error {
	ctx, cancel := context.WithTimeout(ctx, bootTime)
	defer cancel()
	for {
		err := f()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(20 * time.Millisecond):
		}
	}
}
