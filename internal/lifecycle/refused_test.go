package lifecycle_test

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle"
	"orrery.dev/orrery/internal/lifecycle/host"
)

// wantRefused checks that a run failed with an error that contains all these texts, and that its
// record has them, too.
func (l *lab) wantRefused(op *lifecyclev1alpha1.Operation, err error, says ...string) {
	l.t.Helper()
	if err == nil {
		l.t.Fatal("it was not refused")
	}
	kept := l.kept(op.Name)
	if kept.Status.Phase != lifecyclev1alpha1.PhaseFailed {
		l.t.Errorf("the record is %s", kept.Status.Phase)
	}
	for _, want := range says {
		if !strings.Contains(err.Error(), want) {
			l.t.Errorf("the error lacks %q: %v", want, err)
		}
		if !strings.Contains(kept.Status.Message, want) {
			l.t.Errorf("the record's message lacks %q: %s", want, kept.Status.Message)
		}
	}
}

// TestRefusedByFacts creates a cluster with one unfit host. The message names it and what to do,
// and hosts are asked only for facts.
func TestRefusedByFacts(t *testing.T) {
	cases := map[string]struct {
		facts map[string]string // of host h-2
		clock time.Duration
		says  []string
	}{
		"ClockBehind":  {clock: -time.Minute, says: []string{"host h-2: the clock is", "behind of ours", "timedatectl set-ntp true"}},
		"ClockAhead":   {clock: time.Hour, says: []string{"host h-2: the clock is", "ahead of ours", "timedatectl set-ntp true"}},
		"ClocksOfEtcd": {clock: 1900 * time.Millisecond, says: []string{"host h-2: the clock is", "ahead of that of host h-1", "both run etcd", "timedatectl set-ntp true"}},
		"SameAddress": {
			facts: map[string]string{"address": "2: eth0    inet 10.77.0.2/16 scope global eth0\naddress\t2: eth0    inet 10.77.0.1/16 scope global secondary eth0"},
			says:  []string{"host h-1: host h-2 has the internal address 10.77.0.1 too", "an address of its own"},
		},
		"OtherAddress": {
			facts: map[string]string{"address": "2: eth0    inet 10.77.9.9/16 scope global eth0"},
			says:  []string{"host h-2: no link of the host has its internal address 10.77.0.2", "hosts[].internalAddress"},
		},
		"NoSpace": {
			facts: map[string]string{"df": "/dev/vda1 104857600 104755200 102400 100% /"},
			says:  []string{"host h-2: /var/lib has 100 MiB free", "free some"},
		},
		"NotRoot": {facts: map[string]string{"uid": "1000"}, says: []string{"host h-2: commands run as user 1000", "hosts[].sudoPassword"}},
		"Swap":    {facts: map[string]string{"swap": "/dev/vda2 partition 1048572 0 -2"}, says: []string{"host h-2: memory is swapped to /dev/vda2", "swapoff -a"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			l := newLab(t, 3, 3)
			l.fleet.Facts = map[string]map[string]string{"h-2": c.facts}
			l.fleet.Clock = map[string]time.Duration{"h-2": c.clock}
			op, err := l.run(lifecyclev1alpha1.ActionCreate, l.spec)
			l.wantRefused(op, err, c.says...)
			for _, h := range l.spec.Hosts {
				if d := cmp.Diff([]string{"facts"}, l.fleet.Commands(h.Name)); d != "" {
					t.Errorf("host %s: %s", h.Name, d)
				}
			}
		})
	}
}

// TestRefusedChanges asks for impossible changes of a cluster. Hosts are asked only for facts.
func TestRefusedChanges(t *testing.T) {
	l := newLab(t, 3, 1)
	if _, err := l.run(lifecyclev1alpha1.ActionCreate, l.spec); err != nil {
		t.Fatal(err)
	}
	gone := func(name string) func(string, string) error {
		return func(h, command string) error {
			if h != name || command != "dial" {
				return nil
			}
			return &host.Unreachable{Host: h, Address: "10.77.0.3:22", Err: errors.New("no answer")}
		}
	}
	without := func(name string) func(*clusterv1alpha1.Provision) {
		return func(p *clusterv1alpha1.Provision) {
			p.Hosts = slices.DeleteFunc(p.Hosts, func(h clusterv1alpha1.Host) bool { return h.Name == name })
			p.RoleGroups[clusterv1alpha1.RoleWorker] = clusterv1alpha1.HostNames{"h-2"}
		}
	}
	cases := map[string]struct {
		action lifecyclev1alpha1.Action
		spec   func(*clusterv1alpha1.Provision)
		hosts  []string
		fault  func(host, command string) error
		says   []string
	}{
		"Downgrade": {
			action: lifecyclev1alpha1.ActionApply,
			spec:   func(p *clusterv1alpha1.Provision) { p.Kubernetes.Version = "v1.35.4" },
			says:   []string{"spec.provision.kubernetes.version", "v1.35.4 is older than v1.36.3", "or newer"},
		},
		"MinorUpgrade": {
			action: lifecyclev1alpha1.ActionApply,
			spec:   func(p *clusterv1alpha1.Provision) { p.Kubernetes.Version = "v1.37.1" },
			says:   []string{"spec.provision.kubernetes.version", "v1.37.1", "a patch of v1.36"},
		},
		"Networks": {
			action: lifecyclev1alpha1.ActionApply,
			spec:   func(p *clusterv1alpha1.Provision) { p.Network.KubePodsCIDR = "10.200.0.0/16" },
			says:   []string{"spec.provision.network.kubePodsCIDR"},
		},
		"UnreachableToDelete": {
			action: lifecyclev1alpha1.ActionDeleteNode, spec: without("h-3"), hosts: []string{"h-3"}, fault: gone("h-3"),
			says: []string{"host h-3: unreachable", "--forget-unreachable"},
		},
		"UnreachableCluster": {
			action: lifecyclev1alpha1.ActionDelete, fault: gone("h-3"),
			says: []string{"host h-3: unreachable", "--forget-unreachable"},
		},
		"NoSuchHost": {
			action: lifecyclev1alpha1.ActionDeleteNode, hosts: []string{"h-4"}, says: []string{"host h-4", "cluster oak"},
		},
	}
	before := l.trees()
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			l.fleet.Forget()
			l.fleet.Fault = c.fault
			defer func() { l.fleet.Fault = nil }()
			spec := l.spec.DeepCopy()
			if c.spec != nil {
				c.spec(spec)
			}
			op, err := l.run(c.action, spec, hosts(c.hosts...))
			l.wantRefused(op, err, c.says...)
			for _, h := range l.spec.Hosts {
				if commands := l.fleet.Commands(h.Name); len(commands) > 1 || len(commands) == 1 && commands[0] != "facts" {
					t.Errorf("host %s: %v", h.Name, commands)
				}
			}
		})
	}
	if d := cmp.Diff(before, l.trees()); d != "" {
		t.Errorf("hosts were changed: %s", d)
	}
}

// TestUnreachableIsUnknown applies a change while a host does not answer. The host stays in the
// cluster, and is changed when it is back.
func TestUnreachableIsUnknown(t *testing.T) {
	l := newLab(t, 3, 1)
	if _, err := l.run(lifecyclev1alpha1.ActionCreate, l.spec); err != nil {
		t.Fatal(err)
	}
	l.fleet.Fault = func(name, command string) error {
		if name != "h-3" || command != "dial" {
			return nil
		}
		return &host.Unreachable{Host: name, Address: "10.77.0.3:22", Err: errors.New("no answer")}
	}
	before := l.tree("h-3")
	l.spec.Kubernetes.MaxPods = 42
	op, err := l.run(lifecyclev1alpha1.ActionApply, l.spec)
	l.wantRefused(op, err, "host h-3: unreachable", "orrery operation resume "+op.Name)
	if d := cmp.Diff(before, l.tree("h-3")); d != "" {
		t.Errorf("host h-3 was changed: %s", d)
	}
	if _, err := l.cs.CoreV1().Nodes().Get(t.Context(), "h-3", metav1.GetOptions{}); err != nil {
		t.Errorf("node h-3: %v", err)
	}
	l.fleet.Fault = nil
	if err := l.resume(op.Name); err != nil {
		t.Fatal(err)
	}
	for _, h := range l.spec.Hosts {
		if !strings.Contains(strings.Join(slices.Collect(maps.Values(l.tree(h.Name))), "\n"), "maxPods: 42") {
			t.Errorf("host %s does not have what was applied", h.Name)
		}
	}
}

// TestTwoRunsOnOneHost interrupts a run that holds leases. A run from a copy of the state, and one
// for another cluster, are refused with the name of the holder.
func TestTwoRunsOnOneHost(t *testing.T) {
	l := newLab(t, 1, 1)
	applies := 0
	l.fleet.Fault = func(name, command string) error {
		if command != "apply" && command != "release" {
			return nil
		}
		if applies++; applies < 2 {
			return nil
		}
		return &host.Unreachable{Host: name, Address: "10.77.0.1:22", Err: errors.New("cut")}
	}
	op, err := l.run(lifecyclev1alpha1.ActionCreate, l.spec)
	l.wantRefused(op, err, "host h-1: unreachable")
	l.fleet.Fault = nil
	before := l.tree("h-1")

	other := *l
	other.store = lifecycle.Files(t.TempDir())
	other.engine = l.elsewhere(other.store, "other")
	for _, piece := range []string{"state.json", "hosts/h-1.json"} {
		content, err := os.ReadFile(l.store.Path("oak", piece))
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(os.MkdirAll(other.store.Path("oak", "hosts"), 0o700), os.WriteFile(other.store.Path("oak", piece), content, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	earlier, err := other.run("Nothing", l.spec) // numbers of its Operations begin with 1 again
	other.wantRefused(earlier, err, "unknown action")
	second, err := other.run(lifecyclev1alpha1.ActionCreate, l.spec)
	other.wantRefused(second, err, "host h-1: operation oak-1, run by test, works on this host", "resume")

	if err := os.Remove(other.store.Path("oak", "state.json")); err != nil {
		t.Fatal(err)
	}
	third, err := other.run(lifecyclev1alpha1.ActionCreate, l.spec)
	other.wantRefused(third, err, "host h-1: the host belongs to another cluster, oak", "orrery cluster delete")
	if d := cmp.Diff(before, l.tree("h-1")); d != "" {
		t.Errorf("the host was changed: %s", d)
	}
	if err := l.resume(op.Name); err != nil {
		t.Errorf("the first run cannot be resumed: %v", err)
	}
}

// TestHalfWrittenFile truncates a file on a host, as a loss of power can. The plan shows it, and
// apply writes it again.
func TestHalfWrittenFile(t *testing.T) {
	l := newLab(t, 1, 1)
	if _, err := l.run(lifecyclev1alpha1.ActionCreate, l.spec); err != nil {
		t.Fatal(err)
	}
	before := l.tree("h-1")
	const file = "/etc/kubernetes/kubelet.yaml"
	if err := os.Truncate(filepath.Join(l.fleet.Root("h-1"), file), 7); err != nil {
		t.Fatal(err)
	}
	_, changes, err := l.engine.Plan(t.Context(), l.spec)
	if err != nil {
		t.Fatal(err)
	}
	if len(changes.Items) == 0 || changes.Items[0].Host != "h-1" || changes.Items[0].Target != file {
		t.Errorf("the plan does not show it: %+v", changes.Items)
	}
	if _, err := l.run(lifecyclev1alpha1.ActionApply, l.spec); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(before, l.tree("h-1")); d != "" {
		t.Errorf("the host is not as it was: %s", d)
	}
}
