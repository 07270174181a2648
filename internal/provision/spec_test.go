package provision

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle"
)

func TestDecide(t *testing.T) {
	with := func(change func(*clusterv1alpha1.Provision), hosts ...int) *clusterv1alpha1.Provision {
		spec := provision(hosts...)
		change(spec)
		return spec
	}
	pods := func(s *clusterv1alpha1.Provision) { s.Kubernetes.MaxPods = 50 }
	action := func(a lifecyclev1alpha1.Action, hosts ...string) *lifecyclev1alpha1.OperationSpec {
		return &lifecyclev1alpha1.OperationSpec{Cluster: "oak", Action: a, Hosts: hosts}
	}
	cases := map[string]struct {
		want            *clusterv1alpha1.Provision
		applied, wanted *clusterv1alpha1.Provision
		begun           []clusterv1alpha1.Host
		unbuilt         bool
		next            *lifecyclev1alpha1.OperationSpec
		invalid         string
	}{
		"New":               {want: provision(1), unbuilt: true, next: action(lifecyclev1alpha1.ActionCreate)},
		"BegunAndChanged":   {want: provision(1, 2), wanted: provision(1), unbuilt: true, next: action(lifecyclev1alpha1.ActionCreate)},
		"AsItIs":            {want: provision(1, 2), applied: provision(1, 2), wanted: provision(1, 2)},
		"BuiltFromAFile":    {want: provision(1), applied: provision(1), unbuilt: true, next: action(lifecyclev1alpha1.ActionApply)},
		"SameByRange":       {want: with(func(s *clusterv1alpha1.Provision) { s.RoleGroups["worker"] = clusterv1alpha1.HostNames{"host-[1:2]"} }, 1, 2), applied: provision(1, 2)},
		"PolicyIsNoChange":  {want: with(func(s *clusterv1alpha1.Provision) { s.DeletionPolicy = "Delete" }, 1), applied: provision(1)},
		"HostAdded":         {want: provision(1, 2, 3), applied: provision(1, 2), next: action(lifecyclev1alpha1.ActionAddNode, "host-3")},
		"HostAddedAndMore":  {want: with(pods, 1, 2, 3), applied: provision(1, 2), next: action(lifecyclev1alpha1.ActionApply)},
		"HostGone":          {want: provision(1), applied: provision(1, 2), next: action(lifecyclev1alpha1.ActionDeleteNode, "host-2")},
		"HostReplaced":      {want: provision(1, 3), applied: provision(1, 2), next: action(lifecyclev1alpha1.ActionDeleteNode, "host-2")},
		"Changed":           {want: with(pods, 1), applied: provision(1), next: action(lifecyclev1alpha1.ActionApply)},
		"ChangedBackMidway": {want: provision(1), applied: provision(1), wanted: with(pods, 1), next: action(lifecyclev1alpha1.ActionApply)},
		"Downgrade": {
			want: with(func(s *clusterv1alpha1.Provision) { s.Kubernetes.Version = "v1.35.0" }, 1), applied: provision(1), invalid: "spec.provision.kubernetes.version",
		},
		"BegunAndReplaced": {
			want: provision(1, 3), wanted: provision(1, 2), begun: provision(1, 2).Hosts, unbuilt: true, invalid: "host-2 missing",
		},
		"BegunAndOneMore": {
			want: provision(1, 2, 3), wanted: provision(1, 2), begun: provision(1, 2).Hosts, unbuilt: true, next: action(lifecyclev1alpha1.ActionCreate),
		},
		"HalfAddedAndGone": {
			want: provision(1), applied: provision(1), wanted: provision(1), begun: provision(2).Hosts, next: action(lifecyclev1alpha1.ActionDeleteNode, "host-2"),
		},
		"AnotherClustersHosts": {want: provision(1), applied: provision(1, 2), unbuilt: true, invalid: "host-2"},
		"NoSuchHost": {
			want:    with(func(s *clusterv1alpha1.Provision) { s.RoleGroups["worker"] = clusterv1alpha1.HostNames{"host-[1:3]"} }, 1, 2),
			invalid: "host-3",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			o := &clusterv1alpha1.Cluster{Spec: clusterv1alpha1.ClusterSpec{Provision: tc.want}}
			o.Name = "oak"
			if !tc.unbuilt {
				o.Spec.APIEndpoint = "https://10.0.0.1:6443"
			}
			state := &lifecycle.State{Begun: tc.begun}
			for _, s := range []struct{ from, to **clusterv1alpha1.Provision }{{&tc.applied, &state.Applied}, {&tc.wanted, &state.Wanted}} {
				if *s.from != nil {
					o := &clusterv1alpha1.Cluster{Spec: clusterv1alpha1.ClusterSpec{Provision: *s.from}}
					o.Name = "oak"
					*s.to = desired(o)
				}
			}
			next, err := decide(o, desired(o), state)
			invalid, _ := errors.AsType[*lifecycle.InvalidError](err)
			switch {
			case tc.invalid != "":
				if invalid == nil || !strings.Contains(invalid.Error(), tc.invalid) {
					t.Errorf("error %v, want an invalid spec with %q", err, tc.invalid)
				}
				return
			case err != nil:
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.next, next); diff != "" {
				t.Errorf("next (-want +got):\n%s", diff)
			}
		})
	}
}

// Failures are tried again less and less often.
func TestDue(t *testing.T) {
	finished := metav1.NewMicroTime(time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC))
	for attempt, want := range map[int32]time.Duration{
		0: time.Minute, 1: time.Minute, 2: 2 * time.Minute, 3: 4 * time.Minute, 4: 8 * time.Minute, 5: 15 * time.Minute, 100: 15 * time.Minute,
	} {
		op := &lifecyclev1alpha1.Operation{Status: lifecyclev1alpha1.OperationStatus{Attempt: attempt, Finished: &finished}}
		if got := due(op).Sub(finished.Time); got != want {
			t.Errorf("after attempt %d it is tried again after %s, want %s", attempt, got, want)
		}
	}
}
