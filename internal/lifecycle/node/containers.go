package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"orrery.dev/orrery/internal/lifecycle/plan"
)

const (
	// killPatience is how long killed processes may take to end. A process that waits for a disk does
	// not end.
	killPatience = 10 * time.Second
	// killInterval is the interval between two attempts to kill processes or to remove traces.
	killInterval = 20 * time.Millisecond
)

// killContainers kills the processes of containers, for the removal of a cluster. These are the
// processes in the control groups of the sweep, containerd's shims, and all descendants of both. It
// spares the control groups in keep, which existed before Orrery, and this process and its
// ancestors.
//
// It first stops systemd slices among the control groups through systemd. It returns an error if
// processes still run after killPatience. Pods get no time to end: a drain has stopped them before,
// if the user wanted that.
func (l *Linux) killContainers(ctx context.Context, sweep plan.Sweep, keep plan.Traces) error {
	for _, name := range sweep.Cgroups {
		// Without a stop, systemd would still count the slice as active.
		if strings.HasSuffix(name, ".slice") && !slices.Contains(keep.Cgroups, name) && has("systemctl") {
			if _, err := l.Run(ctx, []string{"systemctl", "stop", name}, ""); ctx.Err() != nil {
				return err
			}
		}
	}
	deadline := time.Now().Add(killPatience)
	tick := time.NewTicker(killInterval)
	defer tick.Stop()
	for {
		pids, err := l.containerProcesses(sweep, keep)
		if err != nil || len(pids) == 0 {
			return err
		}
		for _, pid := range pids {
			if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("kill process %d: %w", pid, err)
			}
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("processes %v of containers still run %s after SIGKILL; they may wait for a disk or a mount that does not answer",
				pids, killPatience)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}

// containerProcesses returns the PIDs of the processes that killContainers must kill, sorted. These
// are the processes in the control groups of the sweep but not in keep, shims, and their
// descendants. This process and its ancestors are left out.
func (l *Linux) containerProcesses(sweep plan.Sweep, keep plan.Traces) ([]int, error) {
	parents, shims, err := l.processes(sweep.Containers)
	if err != nil {
		return nil, err
	}
	members := make(map[int]bool)
	for _, pid := range shims {
		members[pid] = true
	}
	groups, err := l.cgroups(sweep.Cgroups)
	if err != nil {
		return nil, err
	}
	for _, group := range without(groups, keep.Cgroups) {
		for _, pid := range readPIDs(filepath.Join("/", l.Root, cgroupRoot, group, "cgroup.procs")) {
			members[pid] = true
		}
	}
	for grown := true; grown; { // add the descendants of the members
		grown = false
		for pid, parent := range parents {
			if members[parent] && !members[pid] {
				members[pid], grown = true, true
			}
		}
	}
	for pid := os.Getpid(); pid > 0; pid = parents[pid] {
		delete(members, pid)
	}
	pids := make([]int, 0, len(members))
	for pid := range members {
		if _, alive := parents[pid]; alive {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	return pids, nil
}

// processes returns the PID of the parent of each running process, by PID. shims are the PIDs of
// the containerd-shim processes of the containerd with this socket. An empty socket matches no
// shim. Zombies are left out.
func (l *Linux) processes(socket string) (parents map[int]int, shims []int, err error) {
	proc := filepath.Join("/", l.Root, "/proc")
	entries, err := os.ReadDir(proc)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, err
	}
	parents = make(map[int]int)
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		stat, err := os.ReadFile(filepath.Join(proc, e.Name(), "stat"))
		if err != nil { // the process has ended
			continue
		}
		// The line is "PID (NAME) STATE PARENT …". NAME can contain any character, also parentheses.
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		const wanted = 2
		if len(fields) < wanted || fields[0] == "Z" || fields[0] == "X" {
			continue
		}
		if parents[pid], err = strconv.Atoi(fields[1]); err != nil {
			return nil, nil, fmt.Errorf("read process %d: %w", pid, err)
		}
		if command, err := os.ReadFile(filepath.Join(proc, e.Name(), "cmdline")); err == nil && isShim(command, socket) {
			shims = append(shims, pid)
		}
	}
	return parents, shims, nil
}

// isShim reports whether a command line belongs to a containerd-shim process of the containerd with
// this socket. command has a NUL between the arguments, as in /proc. The result is false for an
// empty socket.
func isShim(command []byte, socket string) bool {
	args := strings.Split(string(command), "\x00")
	if socket == "" || !strings.HasPrefix(filepath.Base(args[0]), "containerd-shim") {
		return false
	}
	i := slices.Index(args, "-address")
	return i > 0 && i+1 < len(args) && args[i+1] == socket
}

// readPIDs returns the PIDs in a cgroup.procs file of a control group. It returns nil if the file
// cannot be read. Lines that are not positive numbers are left out.
func readPIDs(path string) []int {
	content, err := os.ReadFile(path)
	if err != nil { // the control group is gone, or has only threads
		return nil
	}
	var pids []int
	for field := range strings.FieldsSeq(string(content)) {
		if pid, err := strconv.Atoi(field); err == nil && pid > 0 {
			pids = append(pids, pid)
		}
	}
	return pids
}
