package intent_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle/intent"
)

// specOf returns a spec of hosts, each as NAME or NAME@ADDRESS.
func specOf(names ...string) *clusterv1alpha1.Provision {
	return &clusterv1alpha1.Provision{Hosts: hostsOf(names...)}
}

func hostsOf(names ...string) []clusterv1alpha1.Host {
	var list []clusterv1alpha1.Host
	for _, n := range names {
		name, address, _ := strings.Cut(n, "@")
		list = append(list, clusterv1alpha1.Host{Name: name, Address: address})
	}
	return list
}

// TestEverything: the spec for undoing has every host that was ever begun.
func TestEverything(t *testing.T) {
	for name, tc := range map[string]struct {
		specs *intent.Specs
		want  []string
	}{
		"Nothing":       {specs: &intent.Specs{}},
		"Wanted":        {specs: &intent.Specs{Wanted: specOf("a", "b")}, want: []string{"a@", "b@"}},
		"AppliedWanted": {specs: &intent.Specs{Applied: specOf("a", "b"), Wanted: specOf("a", "c")}, want: []string{"a@", "b@", "c@"}},
		"HalfAdded":     {specs: &intent.Specs{Applied: specOf("a"), Wanted: specOf("a"), Begun: hostsOf("b")}, want: []string{"a@", "b@"}},
		"HalfTakenOut":  {specs: &intent.Specs{Applied: specOf("a"), Wanted: specOf("a"), Leaving: hostsOf("b")}, want: []string{"a@", "b@"}},
		"BegunOnly":     {specs: &intent.Specs{Begun: hostsOf("b")}, want: []string{"b@"}},
		"Replaced":      {specs: &intent.Specs{Wanted: specOf("a", "d"), Begun: hostsOf("a", "c")}, want: []string{"a@", "c@", "d@"}},
		"AnotherMachine": {
			specs: &intent.Specs{Wanted: specOf("a@2"), Begun: hostsOf("a@1")}, want: []string{"a@1"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			if all := tc.specs.Everything(); all != nil {
				for _, h := range all.Hosts {
					got = append(got, h.Name+"@"+h.Address)
				}
			}
			if d := cmp.Diff(tc.want, got); d != "" {
				t.Errorf("-want +got:\n%s", d)
			}
		})
	}
}

// TestEverythingKnowsTheLatestLogin: a host is undone with the latest login.
func TestEverythingKnowsTheLatestLogin(t *testing.T) {
	specs := &intent.Specs{Applied: specOf("a@1"), Wanted: specOf("a@1")}
	specs.Wanted.Hosts[0].Password = "new"
	if h := specs.Everything().Hosts[0]; h.Password != "new" || specs.Applied.Hosts[0].Password != "" {
		t.Errorf("password %q, and %q in what was applied", h.Password, specs.Applied.Hosts[0].Password)
	}
}

// spec returns a spec with the given groups and hosts.
func spec(controlPlanes, workers []string, hosts ...string) *clusterv1alpha1.Provision {
	p := &clusterv1alpha1.Provision{RoleGroups: map[clusterv1alpha1.Role]clusterv1alpha1.HostNames{
		clusterv1alpha1.RoleControlPlane: controlPlanes, clusterv1alpha1.RoleWorker: workers,
	}}
	for _, h := range hosts {
		p.Hosts = append(p.Hosts, clusterv1alpha1.Host{Name: h})
	}
	return p
}

func TestWith(t *testing.T) {
	applied := spec([]string{"n1"}, []string{"n[1:2]"}, "n1", "n2")
	applied.Kubernetes.Version = "v1.36.1"
	file := spec([]string{"n[1:3]"}, []string{"n2", "n4"}, "n1", "n2", "n3", "n4")
	file.Kubernetes.Version = "v1.36.3"
	file.Hosts[0].Password, file.Hosts[0].Labels, file.Hosts[0].InternalAddress = "new", map[string]string{"disk": "ssd"}, "10.0.0.9"
	file.Hosts[1].Password, file.Hosts[1].Address = "of another machine", "10.0.0.2"
	for name, tc := range map[string]struct {
		names     []string
		want      *clusterv1alpha1.Provision
		wantAdded []string
		wantErr   string
	}{
		"All": {
			want:      spec([]string{"n1", "n3"}, []string{"n1", "n2", "n4"}, "n1", "n2", "n3", "n4"),
			wantAdded: []string{"n3", "n4"},
		},
		"Some": {
			names:     []string{"n4"},
			want:      spec([]string{"n1"}, []string{"n1", "n2", "n4"}, "n1", "n2", "n4"),
			wantAdded: []string{"n4"},
		},
		"ThereAlready": {names: []string{"n1"}, wantErr: "host n1 is part of the cluster already"},
		"NotInTheFile": {names: []string{"n9"}, wantErr: "the file has no host n9"},
	} {
		t.Run(name, func(t *testing.T) {
			got, added, err := (&intent.Specs{Applied: applied}).With(file, tc.names)
			if tc.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tc.wantErr) {
					t.Fatalf("error %v, want %q", err, tc.wantErr)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			// Only new hosts and the logins of existing hosts at the same address come from the file.
			tc.want.Kubernetes.Version, tc.want.Hosts[0].Password = "v1.36.1", "new"
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("spec (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.wantAdded, added); diff != "" {
				t.Errorf("added (-want +got):\n%s", diff)
			}
		})
	}
}

// TestWithARenamedHost: a host of the cluster that has another name in the file is not added a
// second time.
func TestWithARenamedHost(t *testing.T) {
	applied := spec([]string{"n1"}, []string{"n2"}, "n1", "n2")
	file := spec([]string{"n1"}, []string{"m2", "n3"}, "n1", "m2", "n3")
	for i := range 2 {
		applied.Hosts[i].Address = fmt.Sprintf("10.0.0.%d", i+1)
		file.Hosts[i].Address, file.Hosts[i].Port = applied.Hosts[i].Address, 22
	}
	specs := &intent.Specs{Applied: applied}
	_, _, err := specs.With(file, nil)
	if _, ok := errors.AsType[*intent.InvalidError](err); !ok || !strings.Contains(err.Error(), "host m2 is at 10.0.0.2, which is host n2 of the cluster") || !strings.Contains(err.Error(), "Call it n2") {
		t.Errorf("error %v", err)
	}
	if _, added, err := specs.With(file, []string{"n3"}); err != nil || len(added) != 1 {
		t.Errorf("another host alone: %v, %v", added, err)
	}
}

// TestCheckNamesHosts: a problem with a host names it, not its place in a spec that no file has.
func TestCheckNamesHosts(t *testing.T) {
	want := provision(1, 2)
	want.Hosts[1].Port = 70000
	err := (&intent.Specs{}).Check("oak", defaulted(want))
	if err == nil || !strings.Contains(err.Error(), "spec.provision.hosts[host-2].port: ") {
		t.Errorf("error %v", err)
	}
	want.Hosts[1].Name = "host-1"
	if err := (&intent.Specs{}).Check("oak", defaulted(want)); err == nil || !strings.Contains(err.Error(), "spec.provision.hosts[1].name: Duplicate value") {
		t.Errorf("error of a name that is there twice: %v", err)
	}
}

func TestWithout(t *testing.T) {
	applied := spec([]string{"n[1:2]"}, []string{"n[2:4]"}, "n1", "n2", "n3", "n4")
	for name, tc := range map[string]struct {
		names   []string
		goesOn  bool
		want    *clusterv1alpha1.Provision
		wantErr string
	}{
		"UndoneAlready":   {names: []string{"n3", "n9"}, goesOn: true, want: spec([]string{"n1", "n2"}, []string{"n2", "n4"}, "n1", "n2", "n4")},
		"Worker":          {names: []string{"n3"}, want: spec([]string{"n1", "n2"}, []string{"n2", "n4"}, "n1", "n2", "n4")},
		"BothRoles":       {names: []string{"n2"}, want: spec([]string{"n1"}, []string{"n3", "n4"}, "n1", "n3", "n4")},
		"NotThere":        {names: []string{"n9"}, wantErr: "host n9 is not part of cluster oak, which has n1, n2, n3, n4"},
		"NoControlPlanes": {names: []string{"n1", "n2"}, wantErr: "has no control plane"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := (&intent.Specs{Applied: applied}).Without("oak", tc.names, tc.goesOn)
			if tc.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tc.wantErr) {
					t.Fatalf("error %v, want %q", err, tc.wantErr)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("spec (-want +got):\n%s", diff)
			}
		})
	}
}
