package intent_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle/intent"
	"orrery.dev/orrery/internal/lifecycle/plan"
)

// provision returns a spec with numbered hosts. The first one is the control plane.
func provision(hosts ...int) *clusterv1alpha1.Provision {
	spec := &clusterv1alpha1.Provision{
		RoleGroups: map[clusterv1alpha1.Role]clusterv1alpha1.HostNames{clusterv1alpha1.RoleControlPlane: {"host-1"}},
		Kubernetes: clusterv1alpha1.Kubernetes{Version: "v1.36.3"},
	}
	for _, n := range hosts {
		h := clusterv1alpha1.Host{Name: fmt.Sprintf("host-%d", n), Address: fmt.Sprintf("10.0.0.%d", n)}
		spec.Hosts = append(spec.Hosts, h)
		spec.RoleGroups[clusterv1alpha1.RoleWorker] = append(spec.RoleGroups[clusterv1alpha1.RoleWorker], h.Name)
	}
	return spec
}

func defaulted(spec *clusterv1alpha1.Provision) *clusterv1alpha1.Provision {
	if spec = spec.DeepCopy(); spec != nil {
		plan.Default("oak", spec)
	}
	return spec
}

func TestNext(t *testing.T) {
	with := func(change func(*clusterv1alpha1.Provision), hosts ...int) *clusterv1alpha1.Provision {
		spec := provision(hosts...)
		change(spec)
		return spec
	}
	pods := func(s *clusterv1alpha1.Provision) { s.Kubernetes.MaxPods = 50 }
	action := func(a lifecyclev1alpha1.Action, hosts ...string) *intent.Change {
		return &intent.Change{Action: a, Hosts: hosts}
	}
	cases := map[string]struct {
		want            *clusterv1alpha1.Provision
		applied, wanted *clusterv1alpha1.Provision
		begun           []clusterv1alpha1.Host
		apart           bool
		next            *intent.Change
		invalid         string
	}{
		"New":               {want: provision(1), apart: true, next: action(lifecyclev1alpha1.ActionCreate)},
		"BegunAndChanged":   {want: provision(1, 2), wanted: provision(1), apart: true, next: action(lifecyclev1alpha1.ActionCreate)},
		"AsItIs":            {want: provision(1, 2), applied: provision(1, 2), wanted: provision(1, 2)},
		"BuiltFromAFile":    {want: provision(1), applied: provision(1), apart: true, next: action(lifecyclev1alpha1.ActionApply)},
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
			want: provision(1, 3), wanted: provision(1, 2), begun: provision(1, 2).Hosts, apart: true, invalid: "host-2 missing",
		},
		"BegunAndOneMore": {
			want: provision(1, 2, 3), wanted: provision(1, 2), begun: provision(1, 2).Hosts, apart: true, next: action(lifecyclev1alpha1.ActionCreate),
		},
		"HalfAddedAndGone": {
			want: provision(1), applied: provision(1), wanted: provision(1), begun: provision(2).Hosts, next: action(lifecyclev1alpha1.ActionDeleteNode, "host-2"),
		},
		"NoSuchHost": {
			want:    with(func(s *clusterv1alpha1.Provision) { s.RoleGroups["worker"] = clusterv1alpha1.HostNames{"host-[1:3]"} }, 1, 2),
			invalid: "host-3",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			specs := &intent.Specs{Begun: tc.begun, Applied: defaulted(tc.applied), Wanted: defaulted(tc.wanted)}
			next, err := specs.Next("oak", defaulted(tc.want), !tc.apart)
			invalid, _ := errors.AsType[*intent.InvalidError](err)
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

// TestTake: a resumed run uses the spec that it was started with, or fails.
func TestTake(t *testing.T) {
	one, two := defaulted(provision(1)), defaulted(provision(1, 2))
	hash, err := intent.Hash(one)
	if err != nil {
		t.Fatal(err)
	}
	cases := map[string]struct {
		specs   intent.Specs
		renew   bool
		attempt int32
		fixed   string // in the record
		given   *clusterv1alpha1.Provision
		want    *clusterv1alpha1.Provision
		refused string
	}{
		"First":               {specs: intent.Specs{Wanted: two, WantedBy: "oak-2"}, given: provision(1), want: one},
		"Kept":                {specs: intent.Specs{Wanted: one, WantedBy: "oak-2"}, attempt: 1, fixed: hash, want: one},
		"KeptWithoutHash":     {specs: intent.Specs{Wanted: one, WantedBy: "oak-2"}, attempt: 1, refused: "nothing is kept"},
		"KeptAndAnother":      {specs: intent.Specs{Wanted: one, WantedBy: "oak-2"}, attempt: 1, fixed: hash, given: two, want: one},
		"OfAnotherRun":        {specs: intent.Specs{Wanted: one, WantedBy: "oak-1"}, attempt: 1, fixed: hash, refused: "nothing is kept"},
		"OfOneThatHadTheName": {specs: intent.Specs{Wanted: two, WantedBy: "oak-2"}, attempt: 1, fixed: hash, refused: "nothing is kept"},
		"GivenAgain":          {attempt: 1, fixed: hash, given: provision(1), want: one},
		"AnotherGiven":        {attempt: 1, fixed: hash, given: two, refused: "is another now"},
		"Renewal":             {specs: intent.Specs{Applied: one, Wanted: two, WantedBy: "oak-1"}, renew: true, given: two, want: one},
		"RenewalOfNothing":    {specs: intent.Specs{Wanted: two, WantedBy: "oak-1"}, renew: true, refused: "not built yet"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			op := &lifecyclev1alpha1.Operation{Status: lifecyclev1alpha1.OperationStatus{Attempt: tc.attempt, SpecHash: tc.fixed}}
			if op.Name = "oak-2"; tc.renew {
				op.Spec.Action = lifecyclev1alpha1.ActionRenewCertificates
			}
			got, _, err := tc.specs.Take("oak", op, tc.given)
			if tc.refused != "" {
				if err == nil || !strings.Contains(err.Error(), tc.refused) {
					t.Errorf("error %v, want %q", err, tc.refused)
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
