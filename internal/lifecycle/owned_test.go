package lifecycle_test

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
	"orrery.dev/orrery/internal/hosttest"
	"orrery.dev/orrery/internal/lifecycle/node"
	"orrery.dev/orrery/internal/lifecycle/plan"
)

// TestUnmanagedFilesStay: files that others put on a host after a cluster was built stay when the
// cluster is deleted, and nothing else stays.
func TestUnmanagedFilesStay(t *testing.T) {
	for name, files := range map[string][]string{
		"NetworkNamespace": {"/run/netns/mine"},
		"CNIPlugin":        {"/opt/cni/bin/mine"},
		"CNIConfiguration": {"/etc/cni/net.d/99-mine.conflist"},
		"Containerd":       {"/etc/containerd/conf.d/mine.toml", "/etc/containerd/certs.d/mine.example.com/hosts.toml"},
		"Kubernetes":       {"/etc/kubernetes/audit.yaml", "/etc/kubernetes/pki/mine.crt"},
		"Opt":              {"/opt/orrery/mine", "/opt/orrery/bin/mine"},
		"All": {
			"/run/netns/mine", "/opt/cni/bin/mine", "/etc/cni/net.d/99-mine.conflist", "/etc/containerd/mine.toml",
			"/etc/kubernetes/mine", "/opt/orrery/mine", "/etc/sysctl.d/99-mine.conf", "/etc/modules-load.d/mine.conf",
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t, 1, 1)
			l.install("h-1")
			before := l.tree("h-1")
			l.must(lifecyclev1alpha1.ActionCreate, l.spec)
			// Files of the network plugin are removed.
			plugins := []string{"/etc/cni/net.d/10-flannel.conflist", "/opt/cni/bin/flannel", "/run/flannel/subnet.env"}
			for _, path := range append(plugins, files...) {
				at := filepath.Join(l.fleet.Root("h-1"), path)
				if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(at, []byte("mine"), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			l.must(lifecyclev1alpha1.ActionDelete, l.spec)
			want := map[string]bool{"/opt": true} // every host has it
			for path := range before {
				want[path] = true
			}
			for _, path := range files {
				for ; path != "/"; path = filepath.Dir(path) {
					want[path] = true
				}
			}
			if d := cmp.Diff(slices.Sorted(maps.Keys(want)), paths(l.tree("h-1"))); d != "" {
				t.Errorf("on the host (-want +got):\n%s", d)
			}
			for _, path := range files {
				if content, err := os.ReadFile(filepath.Join(l.fleet.Root("h-1"), path)); err != nil || string(content) != "mine" {
					t.Errorf("%s has %q, %v", path, content, err)
				}
			}
		})
	}
}

// TestSweepDrainsNobody: a release with a larger sweep disturbs no host.
func TestSweepDrainsNobody(t *testing.T) {
	l := built(t, 2, 1)
	for _, h := range l.spec.Hosts {
		l.olderSweep(h.Name)
	}
	_, changes, err := l.engine.Plan(t.Context(), l.spec)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range changes.Items {
		got = append(got, c.Host+" "+c.Step+" "+string(c.Disruption))
	}
	if d := cmp.Diff([]string{"h-1 sweep none", "h-2 sweep none"}, got); d != "" {
		t.Errorf("the plan (-want +got):\n%s", d)
	}
	l.must(lifecyclev1alpha1.ActionApply, l.spec)
}

// olderSweep applies the sweep of an earlier release to a host.
func (l *lab) olderSweep(name string) {
	l.t.Helper()
	request, err := json.Marshal(node.Request{
		Protocol: node.Protocol, Cluster: "oak", ClusterID: l.state().ID, Release: true,
		Lease: plan.Lease{Operation: "older", Epoch: 50, Expires: time.Now().Add(time.Minute)},
		Steps: []plan.Step{{ID: "sweep", Sweep: &plan.Sweep{Links: []string{"cni0"}}}},
	})
	if err != nil {
		l.t.Fatal(err)
	}
	var out bytes.Buffer
	if err := hosttest.Rooted(l.fleet.Root(name)).Apply(l.t.Context(), bytes.NewReader(append(request, '\n')), &out); err != nil {
		l.t.Fatal(err)
	}
	if strings.Contains(out.String(), string(lifecyclev1alpha1.StepFailed)) {
		l.t.Fatal(out.String())
	}
}
