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

// Linux is the System of the host on which this process runs.
type Linux struct {
	// Root is put before the paths of /proc, /sys and /run.
	Root string
	// Patience bounds programs whose caller sets no deadline. The default is 15 minutes, because a
	// package manager may download much.
	Patience time.Duration
}

const (
	// outputTail is how much of a program's output an error contains, in bytes.
	outputTail = 2048
	// killWait is how long the pipes of a killed program are read.
	killWait = 2 * time.Second
	// defaultPatience is the default of Linux.Patience.
	defaultPatience = 15 * time.Minute
)

// Run implements System. When ctx ends, it kills the program and its process group. If ctx has no
// deadline, Run sets one, so that a program that hangs does not block the run.
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

// programError means that a program failed. said is the end of its output.
type programError struct {
	program string
	err     error
	said    string
}

func (e *programError) Error() string { return fmt.Sprintf("%s: %v: %s", e.program, e.err, e.said) }
func (e *programError) Unwrap() error { return e.err }

// programDirs are the directories of programs. Sessions of users other than root often lack some of
// them.
var programDirs = []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"}

// program returns the path of a program, or its name if it is not found.
func program(name string) string {
	for _, dir := range programDirs {
		if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil && !strings.Contains(name, "/") {
			return path
		}
	}
	return name
}

// has reports whether the host has a program.
func has(name string) bool { return program(name) != name }

// sysctlPath turns dots into slashes. A key whose first separator is a slash is a path already.
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

// moduleTraces are files that exist if the feature of a module is available. They are for modules
// that have no other sign when they are built in.
var moduleTraces = map[string]string{
	"br_netfilter": "/proc/sys/net/bridge",
	"nf_conntrack": "/proc/sys/net/netfilter",
	"ip_vs":        "/proc/net/ip_vs",
}

// HasModule implements System. It returns true if the kernel cannot load modules.
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

// LoadModule implements System. modprobe succeeds for modules that are built in.
func (l *Linux) LoadModule(ctx context.Context, name string) error {
	if _, err := l.Run(ctx, []string{"modprobe", name}, ""); err != nil {
		return fmt.Errorf("load module %s: %w; install the package with this kernel's modules, or restart into the kernel that is installed", name, err)
	}
	return nil
}

// Label implements System. It sets the labels of SELinux, if the host has SELinux.
func (l *Linux) Label(ctx context.Context, paths ...string) error {
	if _, err := os.Stat(filepath.Join(l.Root, "/sys/fs/selinux/enforce")); err != nil || len(paths) == 0 {
		return nil //nolint:nilerr // there is no SELinux
	}
	_, err := l.Run(ctx, append([]string{"restorecon"}, paths...), "")
	return err
}
