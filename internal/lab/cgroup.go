package lab

import (
	"bufio"
	"cmp"
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

// groupMount is the directory below which cgroups are mounted.
const groupMount = "/sys/fs/cgroup"

// hierarchy is a mounted cgroup tree. With cgroup v1 there is one tree for each controller, and
// often a v2 tree without controllers. With v2 there is one tree.
type hierarchy struct {
	Name    string // below /sys/fs/cgroup; "" if it is the only one
	Options string // the mount options that name its controllers; "" with v2
	// Own is the directory of the group of this process. The groups of the lab are below it, within
	// its limits. With v2 alone, Own is the nearest parent of that group that can give controllers to
	// its children.
	Own string
}

// joinedHierarchies returns the mounted cgroup trees, with the group of this process in each of
// them. It reads /proc.
func joinedHierarchies() ([]hierarchy, error) {
	memberships, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	mounts, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer mounts.Close()
	var all []hierarchy
	for lines := bufio.NewScanner(mounts); lines.Scan(); {
		// A line: 36 35 98:0 /root /mount/point options optional… - type source superoptions
		before, after, _ := strings.Cut(lines.Text(), " - ")
		mount, super := strings.Fields(before), strings.Fields(after)
		if len(mount) < 6 || len(super) < 3 || !strings.HasPrefix(mount[4], groupMount) {
			continue
		}
		h := hierarchy{Name: strings.TrimPrefix(strings.TrimPrefix(mount[4], groupMount), "/")}
		switch super[0] {
		case "cgroup":
			h.Options = controllers(super[2])
		case "cgroup2":
		default:
			continue
		}
		path, ok := membership(string(memberships), h.Options)
		if !ok {
			return nil, fmt.Errorf("find own cgroup of %s: /proc/self/cgroup does not have it", mount[4])
		}
		inside, err := filepath.Rel(mount[3], path)
		if err != nil {
			return nil, err
		}
		h.Own = filepath.Join(mount[4], inside)
		if h.Name == "" && h.Options == "" {
			if h.Own, err = delegating(h.Own); err != nil {
				return nil, err
			}
		}
		all = append(all, h)
	}
	if len(all) == 0 {
		return nil, errors.New("no cgroups are mounted below " + groupMount)
	}
	return all, nil
}

// controllers returns those of the mount options of a cgroup tree that name its controllers.
func controllers(options string) string {
	return strings.Join(slices.DeleteFunc(strings.Split(options, ","), func(option string) bool {
		return slices.Contains([]string{"rw", "ro", "none", "xattr", "clone_children", "noprefix"}, option)
	}), ",")
}

// delegating returns dir, or its nearest parent that gives its children the controllers that a
// kubelet needs: cpu, memory and pids. With v2 such a group can have no processes of its own,
// unless it is the root. If there is none, it returns an error.
func delegating(dir string) (string, error) {
	for ; strings.HasPrefix(dir, groupMount); dir = filepath.Dir(dir) {
		content, err := os.ReadFile(filepath.Join(dir, "cgroup.subtree_control"))
		if err != nil {
			return "", err
		}
		given := strings.Fields(string(content))
		if slices.Contains(given, "cpu") && slices.Contains(given, "memory") && slices.Contains(given, "pids") {
			return dir, nil
		}
	}
	return "", fmt.Errorf("find a cgroup for the hosts: none gives its children cpu, memory and pids: "+
		"write +cpu +memory +pids to %s/cgroup.subtree_control", groupMount)
}

// membership returns the path of this process's group in the tree whose controllers are options.
// lines are those of /proc/self/cgroup, such as 4:cpu,cpuacct:/path. The result is false if no line
// has these controllers.
func membership(lines, options string) (string, bool) {
	for line := range strings.Lines(lines) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) == 3 && fields[1] == options {
			return fields[2], true
		}
	}
	return "", false
}

// makeGroups creates the cgroup of the host in each tree. Before, it removes the groups that the
// host had before it was killed.
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
			// In a new cpuset no process can run until it has CPUs and memory nodes: copy those of its
			// parent.
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
		if g.Name == "" {
			if err := delegate(filepath.Dir(parent)); err != nil {
				return err
			}
		}
	}
	return nil
}

// delegate gives all controllers of the v2 group in dir to its children.
func delegate(dir string) error {
	content, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return err
	}
	for controller := range strings.FieldsSeq(string(content)) {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+controller), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// groupDir returns the directory of the host's cgroup in a tree.
func (h *Host) groupDir(g hierarchy) string {
	return filepath.Join(g.Own, h.lab.network.bridge, h.Name)
}

// groupLines returns the cgroups of the host for the script host.sh. Each line has the directory of
// the group, and the name and options of its tree; "-" stands for "".
func (h *Host) groupLines() string {
	lines := make([]string, 0, len(h.lab.groups))
	for _, g := range h.lab.groups {
		lines = append(lines, h.groupDir(g)+" "+cmp.Or(g.Name, "-")+" "+cmp.Or(g.Options, "-"))
	}
	return strings.Join(lines, "\n")
}

// processGroups returns the directories of the cgroups that processes of the host join at their
// start.
func (h *Host) processGroups() []string {
	dirs := make([]string, 0, len(h.lab.groups))
	for _, g := range h.lab.groups {
		dir := h.groupDir(g)
		if g.Name == "" {
			dir = filepath.Join(dir, "init.scope")
		}
		dirs = append(dirs, dir)
	}
	return dirs
}

// removeGroup removes the cgroup in dir with all groups below it. It waits until their processes
// are gone, for at most bootTime. A missing group is no error.
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
