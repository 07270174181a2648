package facts_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"orrery.dev/orrery/internal/lifecycle/facts"
	"orrery.dev/orrery/internal/lifecycle/plan"
)

var noon = time.Unix(1_800_000_000, 0)

// said returns an output of the script with architecture, kernel, and lines.
func said(lines ...string) string {
	lines = append([]string{"orrery-facts\tbegin", "arch\tx86_64", "kernel\t6.1.0"}, lines...)
	return strings.Join(append(lines, "orrery-facts\tend"), "\n") + "\n"
}

func TestParse(t *testing.T) {
	second := func(n float64) time.Time { return noon.Add(time.Duration(n * float64(time.Second))) }
	cases := map[string]struct {
		output          string
		asked, answered time.Time
		want            plan.Facts
	}{
		"LoginNoiseBefore": {output: "Welcome!\narch\tvax\n" + said(), want: plan.Facts{}},
		"ClockAhead": {
			// Half a second in each direction, one second of work, and a clock five seconds ahead.
			output: said("clock\t1800000005.500000000", "clock\t1800000006.500000000"),
			asked:  noon, answered: second(2),
			want: plan.Facts{ClockOffset: 5 * time.Second, RoundTrip: time.Second},
		},
		"ClockInWholeSeconds": {
			output: said("clock\t1800000000.%N", "clock\t1800000001.%N"),
			asked:  second(0.4), answered: second(1.6),
			want: plan.Facts{ClockOffset: 0, RoundTrip: 1200 * time.Millisecond},
		},
		"ClockSetMeanwhile": {
			output: said("clock\t1800000000.000000000", "clock\t1800000100.000000000"),
			asked:  noon, answered: second(2),
			want: plan.Facts{ClockOffset: 49 * time.Second, RoundTrip: 2 * time.Second},
		},
		"NoClock": {output: said(), asked: noon, answered: second(2), want: plan.Facts{RoundTrip: 2 * time.Second}},
		"FsyncMedian": {
			output: said("dd\t4096 bytes copied, 0.9 s, 1 kB/s", "dd\t1+0 records in", "dd\t4096 bytes (4.1 kB, 4.0 KiB) copied, 0.004 s, 1 MB/s", "dd\t4096 bytes copied, 3e-3 s"),
			want:   plan.Facts{FsyncLatency: 4 * time.Millisecond},
		},
		"FsyncByUptime":       {output: said("uptime\t100.00 90.00", "dd\t1+0 records out", "uptime\t100.50 90.00"), want: plan.Facts{FsyncLatency: 100 * time.Millisecond}},
		"FsyncBelowUptime":    {output: said("uptime\t100.00 90.00", "uptime\t100.02 90.00"), want: plan.Facts{}},
		"Arm":                 {output: said("arch\tignored, for it is the second"), want: plan.Facts{}},
		"ListenersOnBoth":     {output: said("listen\t1F90", "listen\t0016", "listen\t1F90", "listen\tZZ", `listener	LISTEN 0 128 [::]:8080 [::]:* users:(("nginx",pid=7,fd=3),("nginx",pid=8,fd=3))`), want: plan.Facts{Listening: []int{22, 8080}, Listeners: map[int]string{8080: "nginx (pid 7)"}}},
		"Links":               {output: said("mtu\teth0\t1400", "address\t2: eth0    inet 10.0.0.4/24 brd 10.0.0.255 scope global eth0\\ valid_lft forever", "address\t3: tun0@if2    inet 10.1.0.1 peer 10.1.0.2/32 scope global tun0", "address\tgarbage"), want: plan.Facts{Links: []plan.Link{{Name: "eth0", MTU: 1400, Addresses: []string{"10.0.0.4/24"}}, {Name: "tun0", Addresses: []string{"10.1.0.1/32"}}}}},
		"CarriageReturns":     {output: said("hostname\tnode1\r", "memory\tMemTotal: 4 kB\r"), want: plan.Facts{Hostname: "node1", MemoryBytes: 4096}},
		"UnifiedCgroups":      {output: said("cgroup\t2", "controllers\tcpu memory pids"), want: plan.Facts{CgroupVersion: 2, Controllers: []string{"cpu", "memory", "pids"}}},
		"DisabledController":  {output: said("cgroup\t1", "cgroups\tmemory\t4\t66\t0", "cgroups\tcpu\t1\t2\t1"), want: plan.Facts{CgroupVersion: 1, Controllers: []string{"cpu"}}},
		"NumbersOutOfRange":   {output: said("cpus\t-3", "memory\tMemTotal: 99999999999999999999 kB", "df\ta b c d e f"), want: plan.Facts{}},
		"FullDisk":            {output: said("df\t/dev/vda1 104857600 104857600 0 100% /"), want: plan.Facts{DiskFreeBytes: new(int64(0))}},
		"UnknownFreeSpace":    {output: said("df\toverlay - - - - /"), want: plan.Facts{}},
		"ReadOnly":            {output: said("read-only\tnet/netfilter/nf_conntrack_max"), want: plan.Facts{SysctlsReadOnly: []string{"net.netfilter.nf_conntrack_max"}}},
		"OurProcesses":        {output: said("process\t7 kubelet /opt/orrery/bin/kubelet", "process\t8 etcd /opt/orrery/../../usr/bin/etcd", "process\t9 k3s-server "), want: plan.Facts{Leftovers: []string{"process etcd (pid 8, /opt/orrery/../../usr/bin/etcd)", "process k3s-server (pid 9)"}}},
		"SELinuxAndFirewalld": {output: said("selinux\t1", "firewall\tfirewalld"), want: plan.Facts{SELinux: "enforcing", Firewall: "firewalld"}},
		"LongValues":          {output: said("hostname\t" + strings.Repeat("x", 1<<20)), want: plan.Facts{Hostname: strings.Repeat("x", 1024)}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := facts.Parse([]byte(tc.output), tc.asked, tc.answered)
			if err != nil {
				t.Fatal(err)
			}
			tc.want.Arch, tc.want.Kernel = "amd64", "6.1.0"
			if diff := cmp.Diff(tc.want, got, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestParseOfOtherAnswers(t *testing.T) {
	cases := map[string]struct{ output, want string }{
		"Nothing":     {"", `the script did not run to its end: the host said "nothing"`},
		"OtherShell":  {"This account is \x1b[1mnot available.\n", `the script did not run to its end: the host said "This account is  [1mnot available."`},
		"EndedEarly":  {"orrery-facts\tbegin\nuid\t0\n", `the script did not run to its end: the host said "orrery-facts begin uid 0"`},
		"WithoutArch": {"orrery-facts\tbegin\nuid\t0\norrery-facts\tend\n", "the host does not say its architecture and kernel: is there uname in root's PATH?"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			_, err := facts.Parse([]byte(tc.output), noon, noon)
			if err == nil || err.Error() != tc.want {
				t.Errorf("got %v, want %s", err, tc.want)
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(said("clock\t1800000005.500000000", "clock\t1800000006.500000000", "df\t/dev/vda 1 2 3 4% /", "dd\tcopied, 1e300 s")))
	f.Add([]byte(said("applied\t{\"steps\": [{}]}", "address\t2: eth0 inet 10.0.0.4/24", "listener\tLISTEN 0 1 *:1 users:((\"x\",pid=1")))
	f.Add([]byte(said("process\t", "mtu\t", "uptime\t-1e308 0", "uptime\tNaN", "memory\tMemTotal:", "swap\t ", "os-release\t=\"")))
	f.Fuzz(func(t *testing.T, output []byte) {
		got, err := facts.Parse(output, noon, noon.Add(time.Second))
		if err == nil && (got.RoundTrip < 0 || got.MemoryBytes < 0 || got.DiskFreeBytes != nil && *got.DiskFreeBytes < 0 || got.FsyncLatency < 0 || got.Arch == "") {
			t.Errorf("got %+v", got)
		}
	})
}
