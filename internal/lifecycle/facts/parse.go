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

// longest is the maximum length, in bytes, of a value that the script prints, because values appear
// in messages.
const longest = 1024

// errNotRun means that a host printed something else than the output of the facts script, for
// instance that of a nologin shell.
var errNotRun = errors.New("the script did not run to its end")

// Parse parses the output of the facts script of a host. asked and answered are the local times of
// its start and end, from which ClockOffset is computed. Parse returns an error if the script did
// not run to its end, or if the architecture or kernel is missing. Other missing facts have their
// zero value. If the agent cannot report what was applied to the host, that is no error, and
// AgentError says why.
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
		if d := digest(blob); d == "sha256:"+blob { // any other name is that of an unfinished upload
			f.Blobs = append(f.Blobs, d)
		}
	}
	if said := a["applied"]; len(said) > 0 {
		if err := json.Unmarshal([]byte(strings.Join(said, "\n")), &f.Applied); err != nil {
			// An agent with another protocol answers in another form. Only its protocol and digest are used.
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
	// On a host of a cluster, such files belong to its components and add-ons.
	if f.Applied.ClusterID == "" {
		f.Leftovers = a.leftovers()
	}
	if f.Arch == "" || f.Kernel == "" {
		return plan.Facts{}, errors.New("the host does not say its architecture and kernel: is there uname in root's PATH?")
	}
	return f, nil
}

// answer has the output of the facts script: the values that were printed for each key, in their
// order.
type answer map[string][]string

// read parses the output of the facts script, which has a first and a last line of its own. A login
// shell may print lines before them. Values that may be shown to the user are cleaned. If the first
// or last line is missing, read returns errNotRun with the end of the output.
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
		if key != "applied" && key != "record" { // the values of these keys are JSON, which is not shown
			value = clean(value)
		}
		a[key] = append(a[key], value)
	}
	return a, nil
}

// clean makes a value safe to show: it cuts the value to longest bytes, trims spaces, replaces each
// character that cannot be printed by a space, and removes invalid UTF-8.
func clean(value string) string {
	value = strings.TrimSpace(value[:min(len(value), longest)])
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(value, ""))
}

// first returns the first value that the script printed for a key, or "" if there is none.
func (a answer) first(key string) string {
	if len(a[key]) == 0 {
		return ""
	}
	return a[key][0]
}

// number returns the first value of a key as a number. It returns zero if the value is missing,
// negative or invalid.
func (a answer) number(key string) int64 { return number(a.first(key)) }

// number parses a decimal number. It returns zero if s is negative or invalid, or so large that
// 1024 times the number would not fit into an int64.
func number(s string) int64 {
	n, _ := decimal(s)
	return n
}

// decimal parses a decimal number. ok is false, and n is zero, if s is negative or invalid, or so
// large that 1024 times the number would not fit into an int64.
func decimal(s string) (n int64, ok bool) {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 0 || n > math.MaxInt64>>10 {
		return 0, false
	}
	return n, true
}

// architecture returns the architecture for a name that uname -m prints: amd64 or arm64. It returns
// any other name unchanged.
func architecture(machine string) string {
	switch machine {
	case "x86_64":
		return "amd64"
	case "aarch64":
		return "arm64"
	}
	return machine
}

// memory returns the total memory of the host in bytes, from a line such as "MemTotal: 24684092
// kB". It returns zero if there is no such line.
func (a answer) memory() int64 {
	fields := strings.Fields(a.first("memory"))
	if len(fields) < 2 {
		return 0
	}
	return number(fields[1]) << 10
}

// release returns ID, ID_LIKE and VERSION_ID from the host's /etc/os-release, without the quotes of
// a shell. Missing values are empty.
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

// controllers returns the enabled cgroup controllers of the host, sorted: those in
// /sys/fs/cgroup/cgroup.controllers and the enabled ones in /proc/cgroups.
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

// swaps returns the devices and files to which the host swaps: the first column of /proc/swaps.
func (a answer) swaps() []string {
	var swaps []string
	for _, line := range a["swap"] {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] != "Filename" {
			swaps = append(swaps, fields[0])
		}
	}
	return swaps
}

// diskFree returns the free bytes of /var/lib on the host, from the output of df -Pk. It returns
// nil if they are unknown.
func (a answer) diskFree() *int64 {
	lines := a["df"]
	if len(lines) == 0 {
		return nil
	}
	if fields := strings.Fields(lines[len(lines)-1]); len(fields) >= 6 {
		if kib, ok := decimal(fields[3]); ok {
			return new(kib << 10)
		}
	}
	return nil
}

// copied matches the line in which dd prints how long a write took. Its group is the number of
// seconds.
var copied = regexp.MustCompile(`copied, ([0-9.e+-]+) s`)

// fsync returns how long one write with fsync takes on the host: the median of the times that dd
// printed for five writes. Some versions of dd print no times. fsync then uses the kernel's uptime
// before and after the writes, divided by five. That uptime has a resolution of 10 ms, so a result
// of 10 ms or less counts as unknown. fsync returns zero for an unknown duration.
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

// seconds parses a decimal number of seconds. ok is false if the number is negative, too large or
// invalid.
func seconds(s string) (time.Duration, bool) {
	v, err := strconv.ParseFloat(s, 64)
	if err != nil || !(v >= 0 && v < math.MaxInt64/1e10) {
		return 0, false
	}
	return time.Duration(v * float64(time.Second)), true
}

// clock returns how far the host's clock is ahead of the local clock, and the round trip without
// the duration of the script. asked and answered are the local times before and after the script.
// clock compares them with the host's clock at the start and the end of the script. Without two
// valid readings the offset is zero, and the round trip includes the script. If the host's clock
// shows no nanoseconds, the round trip has one more second, because the offset is less exact.
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
	if roundTrip < 0 || roundTrip > total { // the host's clock was changed meanwhile
		roundTrip = total
	}
	if coarse {
		roundTrip += time.Second
	}
	return (begun.Sub(asked) + ended.Sub(answered)) / 2, roundTrip
}

// reading parses one reading of the host's clock, as SECONDS.NANOSECONDS since 1970. If there are
// not nine digits of nanoseconds, coarse is true and t is the middle of the second. ok is false if
// the number of seconds is invalid.
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

// links returns the network interfaces of the host, sorted by name, with their MTU and addresses.
// The addresses are CIDRs from the output of ip -o addr. Lines that cannot be parsed are left out.
func (a answer) links() []plan.Link {
	links := map[string]plan.Link{}
	for _, value := range a["mtu"] {
		// The tab between name and MTU became a blank. Names of interfaces have none.
		name, mtu, _ := strings.Cut(value, " ")
		links[name] = plan.Link{Name: name, MTU: int(number(mtu))}
	}
	for _, value := range a["address"] {
		fields := strings.Fields(value)
		if len(fields) < 4 || fields[2] != "inet" && fields[2] != "inet6" {
			continue
		}
		prefix, err := netip.ParsePrefix(fields[3])
		if err != nil { // the address of a point-to-point peer has no prefix length
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

// listeners returns the TCP ports on which processes of the host listen, sorted, from
// /proc/net/tcp. The map has the process of each port, such as "sshd (pid 812)", from ss -ltnp. It
// is nil if no process is known.
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

// firewall returns the firewall that is active on the host, such as firewalld or ufw. It is "" if
// none is known.
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

// leftovers returns what an earlier cluster left on the host, sorted: paths, and processes such as
// "process kubelet (pid 812, /usr/bin/kubelet)". Processes of Orrery's own programs are left out.
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

// isOurs reports whether the path of a running program is that of a program of Orrery. A program
// whose file was deleted does not count.
func isOurs(program string) bool {
	return strings.HasPrefix(path.Clean(program), "/opt/orrery/") && !strings.HasSuffix(program, " (deleted)")
}

// hexDigest matches a SHA-256 digest in hex at the beginning of a text.
var hexDigest = regexp.MustCompile(`^[0-9a-f]{64}\b`)

// digest returns the SHA-256 digest at the beginning of s, as sha256:HEX. s is a line of sha256sum
// or the name of a file. It returns "" if s does not begin with a digest.
func digest(s string) string {
	if sum := hexDigest.FindString(s); sum != "" {
		return "sha256:" + sum
	}
	return ""
}
