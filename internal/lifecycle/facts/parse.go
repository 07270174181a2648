package facts

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"orrery.dev/orrery/internal/lifecycle/plan"
	"orrery.dev/orrery/internal/presence"
)

// longest bounds a value, in bytes, because values appear in messages.
const longest = 1024

// errNotRun means that the output is not the script's, but for instance that of a nologin shell.
var errNotRun = errors.New("the script did not run to its end")

// Parse parses the output of the script. asked and answered are the local times of its start and
// end.
func Parse(output []byte, asked, answered time.Time) (plan.Facts, error) {
	a, err := read(output)
	if err != nil {
		return plan.Facts{}, err
	}
	f := plan.Facts{
		UID:           int(a.number("uid")),
		Hostname:      a.first("hostname"),
		MachineID:     a.first("machine-id"),
		BootID:        a.first("boot-id"),
		Arch:          architecture(a.first("arch")),
		Kernel:        a.first("kernel"),
		CPUs:          int(a.number("cpus")),
		MemoryBytes:   a.memory(),
		Init:          a.first("init"),
		CgroupVersion: int(a.number("cgroup")),
		Controllers:   a.controllers(),
		Swaps:         a.swaps(),
		DiskFreeBytes: a.diskFree(),
		FsyncLatency:  a.fsync(),
		Links:         a.links(),
		Tools:         slices.Sorted(slices.Values(a["tool"])),
		OOMScoreAdj:   a.first("oom-score-adj") == "yes",
		SELinux:       map[string]string{"1": "enforcing", "0": "permissive"}[a.first("selinux")],
		Firewall:      a.firewall(),
		ResolvConf:    a.first("resolv-conf"),
		Agent:         digest(a.first("agent")),
		AgentError:    clean(strings.Join(a["agent-error"], "; ")),
		Traces:        slices.Clone(a["trace"]),
		EtcdLog:       map[string]presence.Presence{"present": presence.Present, "absent": presence.Absent}[a.first("etcd-log")],
	}
	f.OS, f.OSLike, f.OSVersion = a.release()
	f.Listening, f.Listeners = a.listeners()
	f.ClockOffset, f.RoundTrip = a.clock(asked, answered)
	for _, key := range a["read-only"] {
		f.SysctlsReadOnly = append(f.SysctlsReadOnly, strings.ReplaceAll(key, "/", "."))
	}
	for _, blob := range a["blob"] {
		if d := digest(blob); d == "sha256:"+blob { // not one that is arriving
			f.Blobs = append(f.Blobs, d)
		}
	}
	if said := a["applied"]; len(said) > 0 {
		if err := json.Unmarshal([]byte(strings.Join(said, "\n")), &f.Applied); err != nil {
			// From an agent with another protocol only this much is known.
			f.Applied = plan.Applied{Protocol: f.Applied.Protocol, Agent: f.Applied.Agent}
			f.AgentError = fmt.Sprintf("read what the agent says: %v", err)
		}
	}
	if sum, ok := strings.CutPrefix(f.Applied.Agent, "sha256:"); ok {
		f.Agent = digest(sum)
	}
	if f.Applied.ClusterID == "" && len(a["record"]) > 0 {
		f.Recorded = true
		applied, err := recorded(a["record"])
		if f.Applied = applied; err != nil && f.AgentError == "" {
			f.AgentError = err.Error()
		}
	}
	f.Recorded = f.Recorded || f.Applied.ClusterID != ""
	// On a host of a cluster these are files of its components and add-ons.
	if f.Applied.ClusterID == "" {
		f.Leftovers = a.leftovers()
	}
	if f.Arch == "" || f.Kernel == "" {
		return plan.Facts{}, errors.New("the host does not say its architecture and kernel: is there uname in root's PATH?")
	}
	return f, nil
}

// answer has the values of each key, in their order.
type answer map[string][]string

// read parses the lines between the script's first and last. A login shell may print others before.
func read(output []byte) (answer, error) {
	_, body, begun := bytes.Cut(output, []byte("orrery-facts\tbegin\n"))
	body, _, ended := bytes.Cut(body, []byte("orrery-facts\tend\n"))
	if !begun || !ended {
		said := clean(strings.TrimSpace(string(output[max(0, len(output)-200):])))
		if said == "" {
			said = "nothing"
		}
		return nil, fmt.Errorf("%w: the host said %q", errNotRun, said)
	}
	a := answer{}
	for line := range strings.Lines(string(body)) {
		key, value, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		if !ok {
			continue
		}
		if key != "applied" && key != "record" { // JSON, which is not shown
			value = clean(value)
		}
		a[key] = append(a[key], value)
	}
	return a, nil
}

// clean shortens a value and replaces characters that cannot be printed.
func clean(value string) string {
	value = strings.TrimSpace(value[:min(len(value), longest)])
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(value, ""))
}

func (a answer) first(key string) string {
	if len(a[key]) == 0 {
		return ""
	}
	return a[key][0]
}

// number returns a number of the host, or zero if it is missing or invalid.
func (a answer) number(key string) int64 { return number(a.first(key)) }

func number(s string) int64 {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 0 || n > math.MaxInt64>>10 {
		return 0
	}
	return n
}

func architecture(machine string) string {
	switch machine {
	case "x86_64":
		return "amd64"
	case "aarch64":
		return "arm64"
	}
	return machine
}

// memory parses a line such as MemTotal: 24684092 kB, and returns bytes.
func (a answer) memory() int64 {
	fields := strings.Fields(a.first("memory"))
	if len(fields) < 2 {
		return 0
	}
	return number(fields[1]) << 10
}

// release parses os-release, whose values have the quotes of a shell.
func (a answer) release() (id string, like []string, version string) {
	for _, line := range a["os-release"] {
		key, value, _ := strings.Cut(line, "=")
		value = strings.Trim(value, `"'`)
		switch key {
		case "ID":
			id = value
		case "ID_LIKE":
			like = strings.Fields(value)
		case "VERSION_ID":
			version = value
		}
	}
	return id, like, version
}

// controllers returns those in /sys/fs/cgroup/cgroup.controllers, or the enabled ones in
// /proc/cgroups.
func (a answer) controllers() []string {
	names := strings.Fields(a.first("controllers"))
	for _, line := range a["cgroups"] {
		if fields := strings.Fields(line); len(fields) == 4 && fields[3] == "1" {
			names = append(names, fields[0])
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// swaps returns the first column of /proc/swaps, without its heading.
func (a answer) swaps() []string {
	var swaps []string
	for _, line := range a["swap"] {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] != "Filename" {
			swaps = append(swaps, fields[0])
		}
	}
	return swaps
}

// diskFree parses the output of df -Pk, and returns bytes.
func (a answer) diskFree() int64 {
	lines := a["df"]
	if len(lines) == 0 {
		return 0
	}
	if fields := strings.Fields(lines[len(lines)-1]); len(fields) >= 6 {
		return number(fields[3]) << 10
	}
	return 0
}

var copied = regexp.MustCompile(`copied, ([0-9.e+-]+) s`)

// fsync returns the median of dd's times. Without them it returns the mean from the kernel's
// uptime, if that is above its resolution of 10 ms. Else it returns zero.
func (a answer) fsync() time.Duration {
	var took []time.Duration
	for _, line := range a["dd"] {
		if match := copied.FindStringSubmatch(line); match != nil {
			if d, ok := seconds(match[1]); ok {
				took = append(took, d)
			}
		}
	}
	if len(took) > 0 {
		slices.Sort(took)
		return took[len(took)/2]
	}
	if ups := a["uptime"]; len(ups) == 2 {
		before, _, _ := strings.Cut(ups[0], " ")
		after, _, _ := strings.Cut(ups[1], " ")
		b, okB := seconds(before)
		e, okE := seconds(after)
		if mean := (e - b) / 5; okB && okE && mean > 10*time.Millisecond {
			return mean
		}
	}
	return 0
}

// seconds parses a decimal number of seconds.
func seconds(s string) (time.Duration, bool) {
	v, err := strconv.ParseFloat(s, 64)
	if err != nil || !(v >= 0 && v < math.MaxInt64/1e10) {
		return 0, false
	}
	return time.Duration(v * float64(time.Second)), true
}

// clock compares the host's clock at the start and end of the script with the local times. The
// duration of the script is not part of the round trip.
func (a answer) clock(asked, answered time.Time) (offset, roundTrip time.Duration) {
	readings := a["clock"]
	if len(readings) != 2 {
		return 0, answered.Sub(asked)
	}
	begun, coarse, okBegun := reading(readings[0])
	ended, _, okEnded := reading(readings[1])
	if !okBegun || !okEnded {
		return 0, answered.Sub(asked)
	}
	total := answered.Sub(asked)
	roundTrip = total - ended.Sub(begun)
	if roundTrip < 0 || roundTrip > total { // the host's clock was set
		roundTrip = total
	}
	if coarse {
		roundTrip += time.Second
	}
	return (begun.Sub(asked) + ended.Sub(answered)) / 2, roundTrip
}

// reading parses a time as seconds and nanoseconds since 1970. Without nanoseconds it is coarse,
// and the middle of the second is returned.
func reading(s string) (t time.Time, coarse, ok bool) {
	whole, fraction, _ := strings.Cut(s, ".")
	sec, err := strconv.ParseInt(whole, 10, 64)
	if err != nil || sec < 0 || sec > math.MaxInt32*4 {
		return time.Time{}, false, false
	}
	nsec, err := strconv.ParseInt(fraction, 10, 64)
	if err != nil || len(fraction) != 9 || nsec < 0 {
		return time.Unix(sec, int64(time.Second/2)), true, true
	}
	return time.Unix(sec, nsec), false, true
}

// links joins the MTU of each network interface with the output of ip -o addr.
func (a answer) links() []plan.Link {
	links := map[string]plan.Link{}
	for _, value := range a["mtu"] {
		// The tab between them became a blank. Names of interfaces have none.
		name, mtu, _ := strings.Cut(value, " ")
		links[name] = plan.Link{Name: name, MTU: int(number(mtu))}
	}
	for _, value := range a["address"] {
		fields := strings.Fields(value)
		if len(fields) < 4 || fields[2] != "inet" && fields[2] != "inet6" {
			continue
		}
		prefix, err := netip.ParsePrefix(fields[3])
		if err != nil { // a peer of a point-to-point link has no length
			addr, err := netip.ParseAddr(fields[3])
			if err != nil {
				continue
			}
			prefix = netip.PrefixFrom(addr, addr.BitLen())
		}
		name, _, _ := strings.Cut(fields[1], "@")
		link := links[name]
		link.Name = name
		link.Addresses = append(link.Addresses, prefix.String())
		links[name] = link
	}
	names := slices.Sorted(maps.Keys(links))
	list := make([]plan.Link, len(names))
	for i, name := range names {
		list[i] = links[name]
	}
	return list
}

var (
	socket = regexp.MustCompile(`^LISTEN\s+\S+\s+\S+\s+\S*:(\d+)\s`)
	user   = regexp.MustCompile(`users:\(\("([^"]+)",pid=(\d+)`)
)

// listeners returns the ports in /proc/net/tcp, which are hexadecimal, and the processes from ss
// -ltnp.
func (a answer) listeners() ([]int, map[int]string) {
	var ports []int
	for _, value := range a["listen"] {
		if port, err := strconv.ParseUint(value, 16, 16); err == nil {
			ports = append(ports, int(port))
		}
	}
	slices.Sort(ports)
	ports = slices.Compact(ports)
	names := map[int]string{}
	for _, value := range a["listener"] {
		at, who := socket.FindStringSubmatch(value), user.FindStringSubmatch(value)
		if at == nil || who == nil {
			continue
		}
		if port, err := strconv.ParseUint(at[1], 10, 16); err == nil {
			names[int(port)] = who[1] + " (pid " + who[2] + ")"
		}
	}
	if len(names) == 0 {
		names = nil
	}
	return ports, names
}

func (a answer) firewall() string {
	if f := a.first("firewall"); f != "" {
		return f
	}
	if slices.ContainsFunc(a["ufw"], func(line string) bool {
		return strings.EqualFold(strings.ReplaceAll(line, " ", ""), "ENABLED=yes")
	}) {
		return "ufw"
	}
	return ""
}

// leftovers returns paths, and processes such as "process kubelet (pid 812, /usr/bin/kubelet)".
func (a answer) leftovers() []string {
	found := slices.Clone(a["leftover"])
	for _, value := range a["process"] {
		fields := strings.SplitN(value, " ", 3)
		if len(fields) < 2 || len(fields) == 3 && isOurs(fields[2]) {
			continue
		}
		where := "pid " + fields[0]
		if len(fields) == 3 {
			where += ", " + fields[2]
		}
		found = append(found, fmt.Sprintf("process %s (%s)", fields[1], where))
	}
	slices.Sort(found)
	return slices.Compact(found)
}

// isOurs reports whether a program is one of Orrery's whose file still exists. A process without
// its file is a leftover.
func isOurs(program string) bool {
	return strings.HasPrefix(path.Clean(program), "/opt/orrery/") && !strings.HasSuffix(program, " (deleted)")
}

var hexDigest = regexp.MustCompile(`^[0-9a-f]{64}\b`)

// digest returns the digest at the beginning of sha256sum's output or of a name, or an empty
// string.
func digest(s string) string {
	if sum := hexDigest.FindString(s); sum != "" {
		return "sha256:" + sum
	}
	return ""
}
