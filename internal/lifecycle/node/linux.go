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

// Linux is the System of the host on which this process runs. It may be used from several
// goroutines.
type Linux struct {
	// Root is put before the paths of files, such as those in /proc, /sys and /run. Programs and
	// network interfaces are those of the real host.
	Root string
	// Patience bounds programs whose caller sets no deadline. The default is 15 minutes, because a
	// package manager may download much.
	Patience time.Duration
}

const (
	// outputTail is the maximum length of a program's output in an error, in bytes. The error has the
	// end of a longer output.
	outputTail = 2048
	// killWait is how long Run still reads the output after it has killed a program. A descendant may
	// hold the output open.
	killWait = 2 * time.Second
	// defaultPatience is the default of Linux.Patience.
	defaultPatience = 15 * time.Minute
)

// Run implements System. It runs a program in a process group of its own, with messages in English,
// and returns its standard output. When ctx ends, it kills the process group. If ctx has no
// deadline, Run sets one of l.Patience.
//
// If the program cannot be started, fails or is killed, the error is a *programError. It wraps the
// cause if ctx has ended. The standard output is returned also with an error.
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

// programError means that a program could not be started, failed or was killed. said is the end of
// its standard output and standard error, of at most about outputTail bytes.
type programError struct {
	program string
	err     error
	said    string
}

func (e *programError) Error() string { return fmt.Sprintf("%s: %v: %s", e.program, e.err, e.said) }
func (e *programError) Unwrap() error { return e.err }

// programDirs are the directories in which Run finds programs. The PATH of a session often lacks
// some of them if the user is not root.
var programDirs = []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"}

// program returns the path of a program in programDirs. It returns the name itself if programDirs
// do not have it, or if the name has a slash.
func program(name string) string {
	for _, dir := range programDirs {
		if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil && !strings.Contains(name, "/") {
			return path
		}
	}
	return name
}

// has reports whether programDirs contain a program with the name.
func has(name string) bool { return program(name) != name }

// sysctlPath returns the path of a kernel parameter in /proc/sys. It turns dots into slashes. A
// key whose first separator is a slash is a path already.
func (l *Linux) sysctlPath(key string) string {
	if i := strings.IndexAny(key, "./"); i >= 0 && key[i] == '.' {
		key = strings.NewReplacer(".", "/", "/", ".").Replace(key)
	}
	return filepath.Join(l.Root, "/proc/sys", filepath.Clean("/"+key))
}

// Sysctl implements System. It reads the present value of a kernel parameter from /proc/sys,
// without surrounding spaces. A missing key is an error that wraps fs.ErrNotExist.
func (l *Linux) Sysctl(key string) (string, error) {
	value, err := os.ReadFile(l.sysctlPath(key))
	if err != nil {
		return "", fmt.Errorf("read sysctl %s: %w", key, err)
	}
	return strings.TrimSpace(string(value)), nil
}

// SetSysctl implements System. It writes the value of a kernel parameter to /proc/sys, where it
// lasts until the next boot.
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

// moduleTraces has, by module, a path that exists if the feature of the module is available. It is
// for modules that have no other sign when they are built into the kernel.
var moduleTraces = map[string]string{
	"br_netfilter": "/proc/sys/net/bridge",
	"nf_conntrack": "/proc/sys/net/netfilter",
	"ip_vs":        "/proc/net/ip_vs",
}

// HasModule implements System. It reports whether a module is loaded or built in. It is true if the
// kernel cannot load modules, because all modules are built in then.
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

// LoadModule implements System. It runs modprobe, which also succeeds for a module that is built
// in.
func (l *Linux) LoadModule(ctx context.Context, name string) error {
	if _, err := l.Run(ctx, []string{"modprobe", name}, ""); err != nil {
		return fmt.Errorf("load module %s: %w; install the package with this kernel's modules, or restart into the kernel that is installed", name, err)
	}
	return nil
}

// Label implements System. It sets the SELinux labels of the paths, which include Root, with
// restorecon. It does nothing if the host has no SELinux or there are no paths.
func (l *Linux) Label(ctx context.Context, paths ...string) error {
	if _, err := os.Stat(filepath.Join(l.Root, "/sys/fs/selinux/enforce")); err != nil || len(paths) == 0 {
		return nil //nolint:nilerr // there is no SELinux
	}
	_, err := l.Run(ctx, append([]string{"restorecon"}, paths...), "")
	return err
}
