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
	killInterval = 20 * time.Millisecond
)

// killContainers kills the processes in the control groups of the sweep, containerd's shims, and
// all descendants. A drain has stopped the pods before, if the user wanted that.
func (l *Linux) killContainers(ctx context.Context, sweep plan.Sweep, keep plan.Traces) error {
	for _, name := range sweep.Cgroups {
		// systemd has its own record of a slice.
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
	for grown := true; grown; { // descendants
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

// processes returns the parent of each running process, and the shims of the containerd with this
// socket.
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
		if err != nil { // it has ended
			continue
		}
		// The name, in parentheses, can contain any character. State and parent follow it.
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

// isShim reports whether a command line belongs to a shim of the containerd with this socket.
func isShim(command []byte, socket string) bool {
	args := strings.Split(string(command), "\x00")
	if socket == "" || !strings.HasPrefix(filepath.Base(args[0]), "containerd-shim") {
		return false
	}
	i := slices.Index(args, "-address")
	return i > 0 && i+1 < len(args) && args[i+1] == socket
}

func readPIDs(path string) []int {
	content, err := os.ReadFile(path)
	if err != nil { // the group is gone, or has only threads
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
