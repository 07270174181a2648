package lab

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// hierarchy is a tree of cgroups that the machine has mounted: one for each controller with cgroup v1, one in all
// with v2.
type hierarchy struct {
	Name    string // below /sys/fs/cgroup
	Options string // of its mount; empty with v2
	Own     string // directory of the group that this process is in. The lab stays below it, within its limits.
}

// joinedHierarchies reads from /proc which hierarchies there are and where this process is in them.
func joinedHierarchies() ([]hierarchy, error) {
	memberships, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	mounts, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer mounts.Close() //nolint:errcheck // only read from
	var v1, v2 []hierarchy
	for lines := bufio.NewScanner(mounts); lines.Scan(); {
		// 36 35 98:0 /root /mount/point options optional… - type source superoptions
		before, after, _ := strings.Cut(lines.Text(), " - ")
		mount, super := strings.Fields(before), strings.Fields(after)
		if len(mount) < 6 || len(super) < 3 || !strings.HasPrefix(mount[4], "/sys/fs/cgroup") {
			continue
		}
		h := hierarchy{Name: filepath.Base(mount[4])}
		switch super[0] {
		case "cgroup":
			for option := range strings.SplitSeq(super[2], ",") {
				if option != "rw" && option != "xattr" && option != "clone_children" {
					h.Options = strings.TrimPrefix(h.Options+","+option, ",")
				}
			}
			v1 = append(v1, h)
		case "cgroup2":
			v2 = append(v2, h)
		default:
			continue
		}
		list := &v1
		if super[0] == "cgroup2" {
			list = &v2
		}
		path, ok := membership(string(memberships), h.Options)
		if !ok {
			return nil, fmt.Errorf("find own cgroup of %s: /proc/self/cgroup does not have it", mount[4])
		}
		inside, err := filepath.Rel(mount[3], path)
		if err != nil {
			return nil, err
		}
		(*list)[len(*list)-1].Own = filepath.Join(mount[4], inside)
	}
	switch {
	case len(v1) > 0: // a v2 tree beside it has no controllers
		return slices.DeleteFunc(v1, func(h hierarchy) bool { return h.Options == "" }), nil
	case len(v2) > 0:
		return v2[:1], nil
	default:
		return nil, errors.New("no cgroups are mounted below /sys/fs/cgroup")
	}
}

// membership finds the path for the controllers of a mount in lines of the form 4:cpu,cpuacct:/path.
func membership(lines, options string) (string, bool) {
	for line := range strings.Lines(lines) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) == 3 && (fields[1] == options || strings.TrimPrefix(options, "none,") == fields[1]) {
			return fields[2], true
		}
	}
	return "", false
}

// makeGroups makes the host's group in each hierarchy, without those that the host had in it before its power was cut.
func (h *Host) makeGroups(ctx context.Context) error {
	for _, g := range h.lab.groups {
		if err := removeGroup(ctx, h.groupDir(g)); err != nil {
			return err
		}
		parent := g.Own
		for _, name := range []string{h.lab.network.bridge, h.Name} {
			dir := filepath.Join(parent, name)
			if err := os.Mkdir(dir, 0o755); err != nil && !exists(err) {
				return err
			}
			// A new cpuset is empty, and then no process can join it.
			for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
				if g.Options != "cpuset" {
					break
				}
				content, err := os.ReadFile(filepath.Join(parent, file))
				if err != nil {
					return err
				}
				if err := os.WriteFile(filepath.Join(dir, file), content, 0o644); err != nil {
					return err
				}
			}
			parent = dir
		}
	}
	return nil
}

func (h *Host) groupDir(g hierarchy) string {
	return filepath.Join(g.Own, h.lab.network.bridge, h.Name)
}

// groupLines is what host.sh reads: directory, name and options of each hierarchy.
func (h *Host) groupLines() string {
	lines := make([]string, 0, len(h.lab.groups))
	for _, g := range h.lab.groups {
		options := g.Options
		if options == "" {
			options = "-"
		}
		lines = append(lines, h.groupDir(g)+" "+g.Name+" "+options)
	}
	return strings.Join(lines, "\n")
}

// processGroups are the groups that the host's processes begin in.
func (h *Host) processGroups() []string {
	dirs := make([]string, 0, len(h.lab.groups))
	for _, g := range h.lab.groups {
		dir := h.groupDir(g)
		if g.Options == "" {
			dir = filepath.Join(dir, "init.scope")
		}
		dirs = append(dirs, dir)
	}
	return dirs
}

// removeGroup removes a group and those below it, once the processes that were in them are gone.
func removeGroup(ctx context.Context, dir string) error {
	return until(ctx, func() error {
		var dirs []string
		err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err == nil && entry.IsDir() {
				dirs = append(dirs, path)
			}
			return err
		})
		if err != nil {
			return err
		}
		for _, path := range slices.Backward(dirs) {
			if err := unix.Rmdir(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("remove cgroup %s: %w", path, err)
			}
		}
		return nil
	})
}
