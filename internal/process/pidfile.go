package process

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"orrery.dev/orrery/internal/disk"
)

// identity returns a text that identifies a running process: its start time and the boot ID. A PID
// alone may belong to another process later. The error is os.ErrProcessDone if the process has
// ended and is a zombie. It wraps os.ErrNotExist if there is no process with the PID.
func identity(pid int) (string, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", err
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", err
	}
	// PID (COMMAND) STATE PPID …: the command may contain spaces and parentheses. The start time is
	// field 22.
	const state, threads, startTime = 0, 17, 19
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) <= startTime {
		return "", fmt.Errorf("parse /proc/%d/stat: %d fields", pid, len(fields))
	}
	if fields[state] == "X" || (fields[state] == "Z" && fields[threads] <= "1") {
		return "", os.ErrProcessDone
	}
	return fields[startTime] + " " + strings.TrimSpace(string(boot)), nil
}

// writePidfile replaces the file at path by the PID, the identity and the kill mode of a process,
// each in a line. If the process has ended already, it writes nothing and returns nil. A later
// supervisor reads the file to kill the process (killLeftovers).
func writePidfile(path string, pid int, mode KillMode) error {
	id, err := identity(pid)
	switch {
	case errors.Is(err, os.ErrProcessDone), errors.Is(err, os.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("identify PID %d: %w", pid, err)
	}
	return writeFile(path, 0o600, fmt.Sprintf("%d\n%s\n%s\n", pid, id, mode))
}

// Clean removes dir, the directory of a supervisor, with its logs. Before that it kills the
// processes that a killed supervisor left behind there, and waits for their end. It is an error if
// a supervisor runs in dir. If dir does not exist, Clean does nothing.
func Clean(dir string) error {
	if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	unlock, err := lockDir(dir)
	if err != nil {
		return err
	}
	defer unlock()
	if err := killLeftovers(dir, func(string, int) {}); err != nil {
		return err
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("remove directory of the supervisor: %w", err)
	}
	return nil
}

// killLeftovers kills the processes that an earlier supervisor of dir left behind, waits for their
// end, and removes all pidfiles. It calls killed for each process that it has killed. It ends at
// the first error. The caller holds the lock of dir (lockDir).
func killLeftovers(dir string, killed func(name string, pid int)) error {
	pidfiles, err := filepath.Glob(filepath.Join(dir, "*.pid"))
	if err != nil {
		return err
	}
	for _, path := range pidfiles {
		content, err := os.ReadFile(path)
		if err != nil {
			return fmt.Errorf("read pidfile: %w", err)
		}
		first, rest, _ := strings.Cut(string(content), "\n")
		id, mode, _ := strings.Cut(rest, "\n")
		// A file without a PID and an identity was not written completely, and is ignored.
		if pid, err := strconv.Atoi(first); err == nil && pid > 1 {
			ours, err := killLeftover(pid, id, KillMode(strings.TrimSpace(mode)))
			if err != nil {
				return fmt.Errorf("kill leftover of %s: %w", path, err)
			}
			if ours {
				killed(strings.TrimSuffix(filepath.Base(path), ".pid"), pid)
			}
		}
		if err := os.Remove(path); err != nil {
			return fmt.Errorf("remove pidfile: %w", err)
		}
	}
	return nil
}

// killLeftover sends SIGKILL to the process with this PID, or to its group, as mode says, and waits
// for its end. id is the identity in its pidfile. It returns false and does nothing if the PID now
// belongs to another process or to none. It is an error if the process still runs after killGrace.
func killLeftover(pid int, id string, mode KillMode) (bool, error) {
	runs := func() bool {
		now, err := identity(pid)
		return err == nil && now == id
	}
	if !runs() {
		return false, nil
	}
	if err := syscall.Kill(mode.target(pid), syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		return false, err
	}
	for deadline := time.Now().Add(killGrace); runs(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			return false, fmt.Errorf("PID %d still runs after SIGKILL", pid)
		}
	}
	return true, nil
}

// writeFile writes a file completely or not at all, and creates missing directories for it. The
// file need not survive a loss of power, which ends the processes, too.
func writeFile(path string, mode os.FileMode, content string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return disk.Writer{NoSync: true}.WriteFile(path, mode, []byte(content))
}
