package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"orrery.dev/orrery/internal/disk"
	"orrery.dev/orrery/internal/lifecycle/plan"
)

// Traces implements System.
func (l *Linux) Traces(ctx context.Context, sweep plan.Sweep) (plan.Traces, error) {
	var found plan.Traces
	var err error
	if found.Mounts, err = l.mountsBelow(sweep.MountsUnder); err != nil {
		return found, err
	}
	if found.Links, err = linksLike(sweep.Links); err != nil {
		return found, err
	}
	if found.Namespaces, err = l.namespaces(sweep.NetworkNamespaces); err != nil {
		return found, err
	}
	if found.Cgroups, err = l.cgroups(sweep.Cgroups); err != nil {
		return found, err
	}
	found.Chains = l.chains(ctx, sweep.IPTablesPrefixes)
	found.Tables, err = l.tables(ctx, sweep)
	return found, err
}

// Clear implements System. It removes processes first, since they hold the rest, and control groups
// last. A removed trace can leave another one. Clear repeats until nothing is left, for at most
// killPatience.
func (l *Linux) Clear(ctx context.Context, sweep plan.Sweep, keep plan.Traces) error {
	deadline := time.Now().Add(killPatience)
	tick := time.NewTicker(killInterval)
	defer tick.Stop()
	for {
		if err := l.killContainers(ctx, sweep, keep); err != nil {
			return err
		}
		now, err := l.Traces(ctx, sweep)
		if err != nil {
			return err
		}
		left := subtract(now, keep)
		left.Tables = slices.DeleteFunc(left.Tables, func(t string) bool { return implied(sweep, t) && !l.tableIsEmpty(ctx, t) })
		switch {
		case len(allOf(left)) == 0:
			return nil
		case time.Now().After(deadline):
			return fmt.Errorf("left behind, or comes back: %s; stop what uses or makes it and run this again", strings.Join(allOf(left), ", "))
		}
		if err := l.clear(ctx, left); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}

func (l *Linux) clear(ctx context.Context, left plan.Traces) error {
	for _, mount := range slices.Backward(left.Mounts) {
		if err := unmount(mount); err != nil {
			return err
		}
	}
	for _, namespace := range left.Namespaces {
		if err := errors.Join(unmount(namespace), disk.Remove(namespace)); err != nil {
			return err
		}
	}
	for _, link := range left.Links {
		if err := l.deleteLink(ctx, link); err != nil {
			return err
		}
	}
	if err := l.deleteChains(ctx, left.Chains); err != nil {
		return err
	}
	for _, table := range left.Tables {
		if err := l.deleteTable(ctx, table); err != nil {
			return err
		}
	}
	for _, group := range slices.Backward(left.Cgroups) {
		// A busy group, whose last process is still ending, is removed in the next pass.
		if _, err := removeEmpty(filepath.Join(l.Root, cgroupRoot, group)); err != nil {
			return err
		}
	}
	return nil
}

// allOf returns all traces in one list.
func allOf(t plan.Traces) []string {
	var all []string
	for _, list := range listsOf(&t) {
		all = append(all, *list...)
	}
	return all
}

// mountsBelow lists the mount points below directories, in the order in which they were mounted.
func (l *Linux) mountsBelow(dirs []string) ([]string, error) {
	if len(dirs) == 0 {
		return nil, nil
	}
	info, err := os.ReadFile(filepath.Join("/", l.Root, "/proc/self/mountinfo"))
	if err != nil {
		return nil, err
	}
	var found []string
	for line := range strings.Lines(string(info)) {
		fields := strings.Fields(line)
		const pointField = 4
		if len(fields) <= pointField {
			continue
		}
		point := unescapeMount(fields[pointField])
		if slices.ContainsFunc(dirs, func(dir string) bool { return strings.HasPrefix(point, path.Clean(dir)+"/") }) {
			found = append(found, point)
		}
	}
	return found, nil
}

// unescapeMount decodes the kernel's escapes of blanks, tabs, line breaks and backslashes.
func unescapeMount(point string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(point)
}

// UnmountBelow implements System.
func (l *Linux) UnmountBelow(dir string) error {
	mounts, err := l.mountsBelow([]string{dir})
	if err != nil {
		return err
	}
	for _, mount := range slices.Backward(mounts) {
		if err := unmount(mount); err != nil {
			return err
		}
	}
	if mounts, err = l.mountsBelow([]string{dir}); err == nil && len(mounts) > 0 {
		err = fmt.Errorf("still mounted below %s: %s", dir, strings.Join(mounts, ", "))
	}
	return err
}

// unmount unmounts a file system. One that is busy or remote is detached from the tree.
func unmount(point string) error {
	var stat unix.Statfs_t
	flags := unix.UMOUNT_NOFOLLOW
	if err := unix.Statfs(point, &stat); err == nil && slices.Contains(remoteFilesystems, stat.Type) {
		flags |= unix.MNT_DETACH
	}
	err := unix.Unmount(point, flags)
	if errors.Is(err, unix.EBUSY) {
		err = unix.Unmount(point, flags|unix.MNT_DETACH)
	}
	if err == nil || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL) { // gone already
		return nil
	}
	return &fs.PathError{Op: "unmount", Path: point, Err: err}
}

// remoteFilesystems can block forever if a server does not answer.
var remoteFilesystems = []int64{unix.NFS_SUPER_MAGIC, unix.CIFS_SUPER_MAGIC, unix.SMB2_SUPER_MAGIC, unix.CEPH_SUPER_MAGIC}

// linksLike lists network interfaces by name. A trailing * matches a prefix.
func linksLike(patterns []string) ([]string, error) {
	if len(patterns) == 0 {
		return nil, nil
	}
	links, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	var found []string
	for _, link := range links {
		if slices.ContainsFunc(patterns, func(pattern string) bool {
			prefix, ok := strings.CutSuffix(pattern, "*")
			return link.Name == pattern || ok && strings.HasPrefix(link.Name, prefix)
		}) {
			found = append(found, link.Name)
		}
	}
	return found, nil
}

// deleteLink deletes a network interface. It ignores one that is gone, for instance with its peer.
func (l *Linux) deleteLink(ctx context.Context, name string) error {
	_, err := l.Run(ctx, []string{"ip", "link", "delete", name}, "")
	if _, lookup := net.InterfaceByName(name); lookup != nil {
		return nil //nolint:nilerr // that it is not there is what we want
	}
	return err
}

// namespaces lists the network namespaces whose names have the prefix. It is empty for an empty
// prefix.
func (l *Linux) namespaces(prefix string) ([]string, error) {
	if prefix == "" {
		return nil, nil
	}
	return filepath.Glob(filepath.Join("/", l.Root, "/run/netns", prefix+"*"))
}

// cgroupRoot is the mount point of the control groups.
const cgroupRoot = "/sys/fs/cgroup"

// cgroups lists the named groups and all groups below them, outermost first, relative to
// cgroupRoot. In version 1 each hierarchy has its own groups.
func (l *Linux) cgroups(names []string) ([]string, error) {
	if len(names) == 0 {
		return nil, nil
	}
	root := filepath.Join("/", l.Root, cgroupRoot)
	tops := []string{""}
	if _, err := os.Stat(filepath.Join(root, "cgroup.controllers")); err != nil {
		entries, err := os.ReadDir(root)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		tops = nil
		for _, e := range entries {
			if e.IsDir() { // the others are links
				tops = append(tops, e.Name())
			}
		}
	}
	var found []string
	for _, top := range tops {
		for _, name := range names {
			err := filepath.WalkDir(filepath.Join(root, top, name), func(path string, d fs.DirEntry, err error) error {
				if errors.Is(err, fs.ErrNotExist) {
					return nil
				}
				if err == nil && d.IsDir() {
					found = append(found, strings.TrimPrefix(path, root+"/"))
				}
				return err
			})
			if err != nil {
				return nil, err
			}
		}
	}
	return found, nil
}
