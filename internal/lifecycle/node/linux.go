package node

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Linux is the System of the host that this process runs on.
type Linux struct {
	// Root is put before the paths of /proc, /sys and /run.
	Root string
	// Patience is how long a program may run for which nobody has set another time. The default is 15 minutes: a package
	// manager may have much to download.
	Patience time.Duration
}

const (
	// outputTail is how much of what a program printed is in an error.
	outputTail = 2048
	// killWait is how long the pipes of a killed program are read.
	killWait = 2 * time.Second
	// defaultPatience is that of a Linux which sets none.
	defaultPatience = 15 * time.Minute
)

// Run implements System. The program is killed, with all that it started, when ctx ends. A program that hangs is no reason for
// a run to hang, so that without a deadline of ctx's it has one of its own.
func (l *Linux) Run(ctx context.Context, argv []string, stdin string) (string, error) {
	if _, ok := ctx.Deadline(); !ok {
		patience := cmp.Or(l.Patience, defaultPatience)
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, patience, fmt.Errorf("it did not end within %s", patience))
		defer cancel()
	}
	cmd := exec.CommandContext(ctx, program(argv[0]), argv[1:]...)
	var stdout, both bytes.Buffer
	cmd.Stdin = strings.NewReader(stdin)
	cmd.Stdout, cmd.Stderr = &stdout, &both
	cmd.Env = append(os.Environ(), "LC_ALL=C", "DEBIAN_FRONTEND=noninteractive", "PATH="+strings.Join(programDirs, ":"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = killWait
	err := cmd.Run()
	if err == nil {
		return stdout.String(), nil
	}
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	said := strings.TrimSpace(stdout.String() + "\n" + both.String())
	if len(said) > outputTail {
		said = "…" + strings.ToValidUTF8(said[len(said)-outputTail:], "")
	}
	return stdout.String(), &programError{program: argv[0], err: err, said: said}
}

// programError is a program that failed.
type programError struct {
	program string
	err     error
	said    string
}

func (e *programError) Error() string { return fmt.Sprintf("%s: %v: %s", e.program, e.err, e.said) }
func (e *programError) Unwrap() error { return e.err }

// programDirs are where programs are found: sessions of users other than root often lack half of them.
var programDirs = []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"}

// program is the path of a program, or its name where it is not found.
func program(name string) string {
	for _, dir := range programDirs {
		if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil && !strings.Contains(name, "/") {
			return path
		}
	}
	return name
}

// has says whether the host has a program.
func has(name string) bool { return program(name) != name }

// sysctlPath turns dots into slashes; a key whose first separator is a slash is a path already.
func (l *Linux) sysctlPath(key string) string {
	if i := strings.IndexAny(key, "./"); i >= 0 && key[i] == '.' {
		key = strings.NewReplacer(".", "/", "/", ".").Replace(key)
	}
	return filepath.Join(l.Root, "/proc/sys", filepath.Clean("/"+key))
}

// Sysctl implements System.
func (l *Linux) Sysctl(key string) (string, error) {
	value, err := os.ReadFile(l.sysctlPath(key))
	if err != nil {
		return "", fmt.Errorf("read sysctl %s: %w", key, err)
	}
	return strings.TrimSpace(string(value)), nil
}

// SetSysctl implements System.
func (l *Linux) SetSysctl(key, value string) error {
	f, err := os.OpenFile(l.sysctlPath(key), os.O_WRONLY|os.O_TRUNC, 0)
	if err == nil {
		_, err = f.WriteString(value + "\n")
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		return fmt.Errorf("set sysctl %s to %s: %w", key, value, err)
	}
	return nil
}

// moduleTraces are files that exist when what a module does is there, for modules that show nothing else when they are
// built in.
var moduleTraces = map[string]string{
	"br_netfilter": "/proc/sys/net/bridge",
	"nf_conntrack": "/proc/sys/net/netfilter",
	"ip_vs":        "/proc/net/ip_vs",
}

// HasModule implements System. A kernel that cannot load modules has what it has.
func (l *Linux) HasModule(name string) bool {
	name = strings.ReplaceAll(name, "-", "_")
	for _, trace := range []string{"/sys/module/" + name, moduleTraces[name]} {
		if _, err := os.Stat(filepath.Join(l.Root, trace)); trace != "" && err == nil {
			return true
		}
	}
	loaded, err := os.ReadFile(filepath.Join(l.Root, "/proc/modules"))
	if errors.Is(err, fs.ErrNotExist) {
		return true
	}
	return err == nil && slices.ContainsFunc(strings.Split(string(loaded), "\n"), func(line string) bool {
		return strings.HasPrefix(line, name+" ")
	})
}

// LoadModule implements System. modprobe knows which modules are built in, and succeeds for those.
func (l *Linux) LoadModule(ctx context.Context, name string) error {
	if _, err := l.Run(ctx, []string{"modprobe", name}, ""); err != nil {
		return fmt.Errorf("load module %s: %w; install the package with this kernel's modules, or restart into the kernel that is installed", name, err)
	}
	return nil
}

// Label implements System, for SELinux.
func (l *Linux) Label(ctx context.Context, paths ...string) error {
	if _, err := os.Stat(filepath.Join(l.Root, "/sys/fs/selinux/enforce")); err != nil || len(paths) == 0 {
		return nil //nolint:nilerr // there is no SELinux
	}
	_, err := l.Run(ctx, append([]string{"restorecon"}, paths...), "")
	return err
}
