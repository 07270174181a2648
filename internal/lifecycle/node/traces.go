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

// Traces implements System. It lists the mounts, interfaces, network namespaces, control groups,
// chains and tables on the host that the sweep covers. Chains of iptables commands that fail are
// left out. With an error, the result is incomplete.
func (l *Linux) Traces(ctx context.Context, sweep plan.Sweep) (plan.Traces, error) {
	var found plan.Traces
	mounts, err := l.mountsBelow(sweep.MountsUnder)
	if err != nil {
		return found, err
	}
	found.Mounts = pointsOf(mounts)
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

// Clear implements System. It removes what Traces lists for the sweep, except for what is in keep.
// It kills processes first, since they use the rest, and removes control groups last.
//
// A removal can leave a new trace. Clear therefore repeats until nothing is left. After about
// killPatience it returns an error that lists what is left. Tables that iptables creates, and that
// the sweep does not name, stay unless they are empty.
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

// clear makes one attempt to remove the traces in left. Control groups with a process that is still
// ending stay, without an error.
func (l *Linux) clear(ctx context.Context, left plan.Traces) error {
	if len(left.Mounts) > 0 {
		mounts, err := l.mounts()
		if err != nil {
			return err
		}
		mounts = slices.DeleteFunc(mounts, func(m mount) bool { return !slices.Contains(left.Mounts, m.point) })
		if err := unmountAll(mounts); err != nil {
			return err
		}
	}
	for _, namespace := range left.Namespaces {
		if err := errors.Join(mount{point: namespace}.unmount(), disk.Remove(namespace)); err != nil {
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
		// A group whose last process is still ending is busy. The next call of clear removes it.
		if _, err := removeEmpty(filepath.Join(l.Root, cgroupRoot, group)); err != nil {
			return err
		}
	}
	return nil
}

// allOf returns the entries of all lists of t in one list, for messages.
func allOf(t plan.Traces) []string {
	var all []string
	for _, list := range listsOf(&t) {
		all = append(all, *list...)
	}
	return all
}

// mount is a mounted file system: its mount point, and its type such as nfs4.
type mount struct{ point, kind string }

// mounts lists what is mounted in the mount namespace of this process, in the order in which it was
// mounted. It asks no file system, so one whose server does not answer does not block it.
func (l *Linux) mounts() ([]mount, error) {
	info, err := os.ReadFile(filepath.Join("/", l.Root, "/proc/self/mountinfo"))
	if err != nil {
		return nil, err
	}
	var found []mount
	for line := range strings.Lines(string(info)) {
		// A number of optional fields ends with a hyphen, and then comes the type.
		before, after, _ := strings.Cut(line, " - ")
		fields, kind := strings.Fields(before), strings.Fields(after)
		const pointField = 4
		if len(fields) <= pointField || len(kind) == 0 {
			continue
		}
		found = append(found, mount{point: unescapeMount(fields[pointField]), kind: kind[0]})
	}
	return found, nil
}

// mountsBelow lists the mounts below directories, in the order in which they were mounted. It
// leaves out those on the directories themselves. It reads the mount namespace of this process.
func (l *Linux) mountsBelow(dirs []string) ([]mount, error) {
	if len(dirs) == 0 {
		return nil, nil
	}
	all, err := l.mounts()
	return slices.DeleteFunc(all, func(m mount) bool {
		return !slices.ContainsFunc(dirs, func(dir string) bool { return strings.HasPrefix(m.point, path.Clean(dir)+"/") })
	}), err
}

// pointsOf returns the mount points of mounts, in the same order.
func pointsOf(mounts []mount) []string {
	var points []string
	for _, m := range mounts {
		points = append(points, m.point)
	}
	return points
}

// unescapeMount decodes the kernel's escapes of blanks, tabs, line breaks and backslashes.
func unescapeMount(point string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(point)
}

// UnmountBelow implements System. It unmounts everything below dir, the latest mount first. It
// returns an error if something is still mounted afterwards.
func (l *Linux) UnmountBelow(dir string) error {
	mounts, err := l.mountsBelow([]string{dir})
	if err != nil {
		return err
	}
	if err := unmountAll(mounts); err != nil {
		return err
	}
	if mounts, err = l.mountsBelow([]string{dir}); err == nil && len(mounts) > 0 {
		err = fmt.Errorf("still mounted below %s: %s", dir, strings.Join(pointsOf(mounts), ", "))
	}
	return err
}

// unmountAll unmounts file systems, the last one in the list first. It ends at the first error.
func unmountAll(mounts []mount) error {
	for _, m := range slices.Backward(mounts) {
		if err := m.unmount(); err != nil {
			return err
		}
	}
	return nil
}

// unmount unmounts the file system at a mount point. A busy or remote file system is detached from
// the tree of files instead, which does not wait. A path that is no mount point, or does not exist,
// is no error.
func (m mount) unmount() error {
	flags := unix.UMOUNT_NOFOLLOW
	if slices.Contains(remoteFilesystems, m.kind) {
		flags |= unix.MNT_DETACH
	}
	err := unix.Unmount(m.point, flags)
	if errors.Is(err, unix.EBUSY) {
		err = unix.Unmount(m.point, flags|unix.MNT_DETACH)
	}
	if err == nil || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL) { // not mounted
		return nil
	}
	return &fs.PathError{Op: "unmount", Path: m.point, Err: err}
}

// remoteFilesystems are the types of file systems that may block forever if their server does not
// answer, as in mountinfo.
var remoteFilesystems = []string{"nfs", "nfs4", "cifs", "smb3", "ceph"}

// linksLike lists the names of network interfaces that match one of the patterns. A pattern is a
// name, or a prefix followed by *.
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

// deleteLink deletes a network interface. It returns no error if the interface does not exist
// afterwards. One end of a veth pair goes with the other, for instance.
func (l *Linux) deleteLink(ctx context.Context, name string) error {
	_, err := l.Run(ctx, []string{"ip", "link", "delete", name}, "")
	if _, lookup := net.InterfaceByName(name); lookup != nil {
		return nil //nolint:nilerr // that it is not there is what we want
	}
	return err
}

// namespaces lists the paths in /run/netns of the network namespaces whose names have the prefix.
// It returns nil for an empty prefix.
func (l *Linux) namespaces(prefix string) ([]string, error) {
	if prefix == "" {
		return nil, nil
	}
	return filepath.Glob(filepath.Join("/", l.Root, "/run/netns", prefix+"*"))
}

// cgroupRoot is the mount point of the control groups.
const cgroupRoot = "/sys/fs/cgroup"

// cgroups lists those of the named control groups that exist, and all groups below them, outermost
// first. The paths are relative to cgroupRoot. With cgroup v1 each hierarchy has its own groups,
// and the paths begin with the name of the hierarchy.
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
			if e.IsDir() { // other entries are links to these directories
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
