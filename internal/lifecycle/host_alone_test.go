package lifecycle_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle"
	"orrery.dev/orrery/internal/lifecycle/host"
	"orrery.dev/orrery/internal/lifecycle/node"
)

// TestAnotherHostIsUnfit: what became of a host of the cluster prevents neither adding nor removing
// another host. It prevents changes of all hosts, and new hosts must be fit.
func TestAnotherHostIsUnfit(t *testing.T) {
	cases := map[string]struct {
		facts map[string]string
		clock time.Duration
		says  string
	}{
		"Clock": {clock: 90 * time.Second, says: "the clock is 1m30"},
		"Swap":  {facts: map[string]string{"swap": "/dev/vda2 partition 1048572 0 -2"}, says: "memory is swapped to /dev/vda2"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			l := built(t, 4, 1)
			unfit := func(name string) {
				l.fleet.Facts, l.fleet.Clock = map[string]map[string]string{name: c.facts}, map[string]time.Duration{name: c.clock}
			}
			unfit("h-3")
			op, err := l.run(lifecyclev1alpha1.ActionApply, l.maxPods(50))
			l.wantRefused(op, err, "host h-3: "+c.says)

			rest := l.spec.DeepCopy()
			rest.Hosts = rest.Hosts[:3]
			rest.RoleGroups[clusterv1alpha1.RoleWorker] = clusterv1alpha1.HostNames{"h-2", "h-3"}
			l.planFor(lifecyclev1alpha1.ActionDeleteNode, rest, hosts("h-4"))
			l.must(lifecyclev1alpha1.ActionDeleteNode, rest, hosts("h-4"))
			if tree := l.tree("h-4"); len(tree) != 2 {
				t.Errorf("host h-4 has %v", paths(tree))
			}
			l.must(lifecyclev1alpha1.ActionAddNode, l.spec, hosts("h-4"))

			l.must(lifecyclev1alpha1.ActionDeleteNode, rest, hosts("h-4"))
			unfit("h-4")
			op, err = l.run(lifecyclev1alpha1.ActionAddNode, l.spec, hosts("h-4"))
			l.wantRefused(op, err, "host h-4: "+c.says)
		})
	}
}

// TestPlanAfterHalfADelete: a deletion that ended half way may have deleted the cluster's data. An
// apply is refused then, because it would begin an empty cluster. Another deletion is not.
func TestPlanAfterHalfADelete(t *testing.T) {
	l := built(t, 2, 1)
	undone := make(chan struct{})
	l.fleet.Applied = func(name string, req node.Request) {
		l.register(name, req)
		if name == "h-1" && req.RemoveAll {
			close(undone)
		}
	}
	l.fleet.Fault = func(name, command string) error {
		if name == "h-2" && command == "apply" {
			await(t, "that host h-1 is undone", undone)
			return errors.New("broken")
		}
		return nil
	}
	_, err := l.run(lifecyclev1alpha1.ActionDelete, l.spec)
	says(t, err, "broken")
	if l.runs(t.Context(), "h-1", "orrery-kube-apiserver") {
		t.Fatal("the API server was not undone")
	}
	l.fleet.Fault, l.fleet.Applied = nil, l.register
	l.wantPlanRefused(t, l.spec, "host h-1: the data of its etcd are gone", `undo it with "orrery cluster delete oak"`)
	l.must(lifecyclev1alpha1.ActionDelete, l.spec)
}

// TestHostIsNamedOnce: a finding names its host beside its message, so the message does not.
func TestHostIsNamedOnce(t *testing.T) {
	l := newLab(t, 3, 1)
	l.fleet.Fault = func(name, command string) error {
		switch {
		case name == "h-1" && command == "dial":
			return &host.Unauthorized{Host: name, User: "root", Tried: []string{"password"}, Err: errors.New("denied")}
		case name == "h-2":
			return &host.Unreachable{Host: name, Address: "10.77.0.2:22", Err: errors.New("no route")}
		}
		return nil
	}
	findings, err := l.engine.Preflight(t.Context(), l.spec)
	if err != nil {
		t.Fatal(err)
	}
	var of []string
	for _, f := range findings {
		if strings.Contains(f.Message, f.Host) {
			t.Errorf("the finding of host %s says %q", f.Host, f.Message)
		}
		of = append(of, f.Host)
	}
	if !slices.Contains(of, "h-1") || !slices.Contains(of, "h-2") {
		t.Errorf("findings of %v", of)
	}
}

// TestCheck: what can be refused without hosts is refused before there is an Operation.
func TestCheck(t *testing.T) {
	l := built(t, 2, 1)
	lost := l.spec.DeepCopy()
	lost.Hosts = lost.Hosts[:1]
	delete(lost.RoleGroups, clusterv1alpha1.RoleWorker)
	invalid := l.spec.DeepCopy()
	invalid.Kubernetes.FeatureGates = map[string]bool{"TTLAfterFinished": true}
	for name, c := range map[string]struct {
		action lifecyclev1alpha1.Action
		spec   *clusterv1alpha1.Provision
		set    []func(*lifecyclev1alpha1.OperationSpec)
		says   string
	}{
		"Lost":    {action: lifecyclev1alpha1.ActionApply, spec: lost, says: "h-2 missing"},
		"Leaving": {action: lifecyclev1alpha1.ActionDeleteNode, spec: lost, set: []func(*lifecyclev1alpha1.OperationSpec){hosts("h-2")}},
		"Invalid": {action: lifecyclev1alpha1.ActionApply, spec: invalid, says: "featureGates[TTLAfterFinished]"},
		"Delete":  {action: lifecyclev1alpha1.ActionDelete, spec: invalid},
		"Renewal": {action: lifecyclev1alpha1.ActionRenewCertificates, spec: invalid},
		"Same":    {action: lifecyclev1alpha1.ActionApply, spec: l.spec},
	} {
		t.Run(name, func(t *testing.T) {
			op := &lifecyclev1alpha1.Operation{Spec: lifecyclev1alpha1.OperationSpec{Cluster: "oak", Action: c.action}}
			for _, set := range c.set {
				set(&op.Spec)
			}
			err := l.engine.Check(t.Context(), op, c.spec)
			if c.says == "" && err != nil || c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)) {
				t.Errorf("error %v, want %q", err, c.says)
			}
		})
	}
	ops, err := l.store.Operations(t.Context(), "oak")
	if err != nil || len(ops) != 1 || ops[0].Status.Phase != lifecyclev1alpha1.PhaseSucceeded || lifecycle.Unfinished(&ops[0]) {
		t.Errorf("operations %+v, %v", ops, err)
	}
	if commands := l.fleet.Commands("h-1"); len(commands) > 0 {
		t.Errorf("host h-1 was asked %v", commands)
	}
}
