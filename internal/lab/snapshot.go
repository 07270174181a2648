package lab

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// Snapshot is the state of a host that the removal of a cluster must restore: files, mounts, links,
// routes, packet filter rules, processes and cgroups. A key is a kind and a name, such as "file
// /etc/hosts". The value describes the thing, and may be "".
type Snapshot map[string]string

// Diff returns the differences between two snapshots as lines. A line with - is an entry of a that
// b lacks or has with another value. A line with + is an entry of b that a lacks or has with
// another value. The result is "" if a and b are equal.
func Diff(a, b Snapshot) string {
	var out strings.Builder
	names := slices.Concat(slices.Collect(maps.Keys(a)), slices.Collect(maps.Keys(b)))
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		before, was := a[name]
		after, is := b[name]
		if was && is && before == after {
			continue
		}
		if was {
			fmt.Fprintf(&out, "- %s %s\n", name, before)
		}
		if is {
			fmt.Fprintf(&out, "+ %s %s\n", name, after)
		}
	}
	return out.String()
}

// noise matches paths that a snapshot leaves out, because they change without a cluster. These are
// files of sshd, sudo, systemd and logins, and locks that iptables creates and never removes.
var noise = regexp.MustCompile(`^(` +
	`/run/(sshd.*|sudo|utmp|lock|xtables\.lock|lab|systemd|log|dbus)|` +
	`/var/(lib/(sudo|systemd)|log/(lastlog|wtmp|btmp|auth\.log|faillog|journal)))(/|$)`)

// Snapshot reads the state of the host, which must be up.
func (h *Host) Snapshot(ctx context.Context) (Snapshot, error) {
	s := Snapshot{}
	for _, take := range []func(context.Context, Snapshot) error{
		h.files, h.mounts, h.networking, h.processes, h.cgroups,
	} {
		if err := take(ctx, s); err != nil {
			return nil, fmt.Errorf("take snapshot of %s: %w", h.Name, err)
		}
	}
	return s, nil
}

// files adds the files of the host to s. These are those in its overlay that differ from the
// machine's, those in /run, and those in the directories that begin empty. It leaves out files that
// match noise.
func (h *Host) files(_ context.Context, s Snapshot) error {
	trees := map[string]string{
		"/": h.upper(""), "/run": filepath.Join(h.Root(), "run"),
	}
	for _, dir := range []string{"/var", "/root", "/home", "/opt", "/usr/local", "/tmp"} {
		trees[dir] = filepath.Join(h.dir, "private", dir)
	}
	for at, tree := range trees {
		err := filepath.WalkDir(tree, func(path string, entry fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil // it was removed meanwhile
			}
			if err != nil {
				return err
			}
			name := filepath.Join(at, strings.TrimPrefix(path, tree))
			if noise.MatchString(name) {
				if entry.IsDir() {
					return fs.SkipDir
				}
				return nil
			}
			about, err := describe(path)
			if errors.Is(err, fs.ErrNotExist) {
				return nil // it was removed meanwhile
			}
			if err != nil {
				return err
			}
			if at == "/" {
				if below, err := describe(name); err == nil && below == about {
					return nil // equal to the machine's: copied up unchanged, or only a parent
				} else if err != nil && about == whiteout {
					return nil // deletes a file that the machine does not have
				}
			}
			s["file "+name] = about
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// whiteout is the description of a deleted file in an overlay.
const whiteout = "deleted"

// describe returns what a snapshot has about a file: mode, owner, and the digest of the content or
// the target of a link. It does not contain times.
func describe(path string) (string, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return "", err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return "", fmt.Errorf("stat %s: no owner", path)
	}
	about := fmt.Sprintf("%s %d:%d", info.Mode(), stat.Uid, stat.Gid)
	switch {
	case info.Mode()&fs.ModeCharDevice != 0 && stat.Rdev == 0:
		return whiteout, nil
	case info.Mode()&fs.ModeSymlink != 0:
		target, err := os.Readlink(path)
		return about + " " + target, err
	case info.Mode().IsRegular():
		sum, err := knownDigest(path, stat)
		if errors.Is(err, syscall.EINVAL) {
			return about + " namespace", nil // the mount point of a network namespace
		}
		return about + " " + sum, err
	default:
		return about, nil
	}
}

// content identifies a version of a file: every write changes one of the fields.
type content struct {
	device, inode       uint64
	size                int64
	modified, lastWrite syscall.Timespec
}

// knownDigests caches the digests of files by content. Hosts have gigabytes of programs, and a test
// takes two snapshots.
var knownDigests sync.Map

// knownDigest returns the digest of a file, from the cache if the file is the same. stat is the
// metadata of the file.
func knownDigest(path string, stat *syscall.Stat_t) (string, error) {
	key := content{stat.Dev, stat.Ino, stat.Size, stat.Mtim, stat.Ctim}
	if sum, ok := knownDigests.Load(key); ok {
		return sum.(string), nil
	}
	sum, err := fileDigest(path)
	if err == nil {
		knownDigests.Store(key, sum)
	}
	return sum, err
}

// fileDigest returns the SHA-256 of a file's content, in hexadecimal digits.
func fileDigest(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	hash := sha256.New()
	if _, err := io.Copy(hash, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(hash.Sum(nil)), nil
}

// mounts adds the mount points of the host to s, with type and source.
func (h *Host) mounts(_ context.Context, s Snapshot) error {
	f, err := os.Open(fmt.Sprintf("/proc/%d/mountinfo", h.PID()))
	if err != nil {
		return err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		before, after, _ := strings.Cut(lines.Text(), " - ")
		if fields := strings.Fields(before); len(fields) > 4 {
			s["mount "+fields[4]] = strings.Join(strings.Fields(after)[:2], " ")
		}
	}
	return lines.Err()
}

// networking adds the network links, by name, the routes and routing rules, and the nftables rules
// of the host to s. It leaves out IPv6 routes of link-local addresses and multicast, which the
// kernel adds some time after a link is up.
func (h *Host) networking(ctx context.Context, s Snapshot) error {
	for kind, argv := range map[string][]string{
		"link":  {"ip", "-brief", "link"},
		"route": {"ip", "route", "show", "table", "all"},
		"rule":  {"ip", "rule"},
	} {
		out, err := h.Run(ctx, argv...)
		if err != nil {
			return err
		}
		for line := range strings.Lines(out) {
			name := strings.TrimSpace(line)
			if kind == "link" {
				name, _, _ = strings.Cut(strings.Fields(name)[0], "@")
			}
			if strings.Contains(name, "fe80::") || strings.Contains(name, "ff00::") {
				continue
			}
			s[kind+" "+name] = ""
		}
	}
	rules, err := h.Run(ctx, "nft", "--stateless", "list", "ruleset")
	if err != nil {
		return err
	}
	// The key of a rule begins with its table and chain.
	var within []string
	for line := range strings.Lines(rules) {
		line = strings.TrimSpace(line)
		switch {
		case line == "" || strings.HasPrefix(line, "#"):
		case line == "}":
			within = within[:max(0, len(within)-1)]
		default:
			s["rule "+strings.Join(append(slices.Clone(within), line), " ")] = ""
			if before, opens := strings.CutSuffix(line, "{"); opens {
				within = append(within, strings.TrimSpace(before))
			}
		}
	}
	return nil
}

// processes adds the number of processes of the host by command line to s. It leaves out processes
// of SSH sessions, the ps command itself, and the runc with which the container runtime executes a
// kubelet's probe.
func (h *Host) processes(ctx context.Context, s Snapshot) error {
	out, err := h.Run(ctx, "ps", "-e", "-o", "args=")
	if err != nil {
		return err
	}
	counts := map[string]int{}
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		// A process that has ended may still be listed until init reaps it. It loses its command
		// line before it is defunct, and ps then prints its name in brackets. Kernel threads are
		// not in a host's namespace.
		dead := strings.HasPrefix(line, "[")
		probe := strings.Contains(line, "/runc ") && strings.Contains(line, " exec --process ")
		if line != "" && !dead && !probe && line != "ps -e -o args=" && !strings.HasPrefix(line, "sshd: ") {
			counts[line]++
		}
	}
	for line, count := range counts {
		s["process "+line] = strconv.Itoa(count)
	}
	return nil
}

// cgroups adds the cgroups below that of the host to s.
func (h *Host) cgroups(_ context.Context, s Snapshot) error {
	for _, g := range h.lab.groups {
		top := h.groupDir(g)
		err := filepath.WalkDir(top, func(path string, entry fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err == nil && entry.IsDir() && path != top {
				s["cgroup "+filepath.Join("/", g.Name, strings.TrimPrefix(path, top))] = ""
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}
