package lab

import (
	"context"
	"encoding/json"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
	"orrery.dev/orrery/internal/lab"
	"orrery.dev/orrery/internal/lifecycle/plan"
	"orrery.dev/orrery/internal/testenv"
	"orrery.dev/orrery/test/lab/site"
)

// TestKilledAtChosenSteps kills orrery with SIGKILL and resumes: during a create, an add-node
// whose hosts join etcd, a delete-node whose host leaves etcd, and a delete. It kills at each
// step of the cluster, and at one step of each component of each host, or without SOAK at a
// third of these. Tests on simulated hosts with the same agent cover all other steps.
func TestKilledAtChosenSteps(t *testing.T) {
	t.Parallel()
	s := newTestbed(t, 3)
	before := s.snapshots()
	small := func() string {
		return s.File(site.Layout{Hosts: s.Hosts()[:1], ControlPlanes: []string{"host-1"}, Worker: []string{"host-1"}})
	}
	large := func() string {
		names := []string{"host-1", "host-2", "host-3"}
		return s.File(site.Layout{Hosts: s.Hosts(), ControlPlanes: names, Worker: names})
	}
	all, missed := 0, []string{}
	for _, act := range []struct {
		args  func() []string
		nodes []string // that exist and are ready afterwards
	}{
		{func() []string { return []string{"cluster", "create", "-f", small()} }, []string{"host-1"}},
		{func() []string { return []string{"cluster", "add-node", "-f", large()} }, []string{"host-1", "host-2", "host-3"}},
		{func() []string { return []string{"cluster", "delete-node", "oak", "host-3"} }, []string{"host-1", "host-2"}},
		{func() []string { return []string{"cluster", "delete", "oak"} }, nil},
	} {
		args := act.args()
		chosen := testenv.Sample(t, 6, s.chosen(args...))
		left := s.disturb(chosen, append(args, "--yes", "-v")...)
		all, missed = all+len(chosen), append(missed, left...)
		t.Logf("%s: killed at %d of %d steps", args[1], len(chosen)-len(left), len(chosen))
		if act.nodes != nil {
			s.wantNodes(act.nodes...)
		}
	}
	s.wantAs(before)
	if len(missed) > max(2, all/4) {
		t.Errorf("at these of %d chosen steps nothing was killed: %q", all, missed)
	}
}

// chosen returns steps of a command, as the command prints them when they begin: all steps of
// the cluster, and for each component on a host the step that starts it, or else its first
// step. Removals are quick, and a host continues for a moment after orrery is killed. So chosen
// takes only every third component of them.
func (s *testbed) chosen(args ...string) []string {
	s.T.Helper()
	var changes plan.Changes
	out := s.Orrery(append(args, "--dry-run", "-o", "json")...)
	if err := json.Unmarshal([]byte(out), &changes); err != nil {
		s.T.Fatalf("%v: %s", err, out)
	}
	var steps []string
	at, components := map[string]int{}, map[string]int{}
	for _, item := range changes.Items {
		component, what, _ := strings.Cut(item.Step, "/")
		key := item.Host + " " + component
		i, known := at[key]
		switch {
		case !known && item.Op == plan.OpRemove && components[item.Host]%3 > 0:
			at[key] = -1
			components[item.Host]++
		case !known:
			components[item.Host]++
			at[key] = len(steps)
			steps = append(steps, item.Host+" "+item.Step)
		case what == "unit" && i >= 0:
			steps[i] = item.Host + " " + item.Step
		}
	}
	for _, step := range changes.Steps {
		steps = append(steps, "cluster "+step.ID)
	}
	return steps
}

// disturb runs a command, kills it as soon as it begins one of the steps, and resumes its
// Operation, until the Operation is done. It returns the steps at which it never killed the
// command.
func (s *testbed) disturb(steps []string, args ...string) (left []string) {
	s.T.Helper()
	left = slices.Clone(steps)
	for {
		step := s.killWhen(func(output string) string {
			for _, step := range left {
				if strings.Contains(output, step+" ") {
					return step
				}
			}
			return ""
		}, args...)
		if step == "" {
			return left
		}
		left = slices.DeleteFunc(left, func(other string) bool { return other == step })
		if op := s.newest(); op.Status.Phase != lifecyclev1alpha1.PhaseSucceeded {
			args = []string{"operation", "resume", op.Name, "-v"}
			continue
		}
		return left // killed at its very end
	}
}

// newest returns the latest Operation.
func (s *testbed) newest() *lifecyclev1alpha1.Operation {
	s.T.Helper()
	var list lifecyclev1alpha1.OperationList
	if err := yaml.Unmarshal([]byte(s.Orrery("operation", "list", "-o", "yaml")), &list); err != nil {
		s.T.Fatal(err)
	}
	if len(list.Items) == 0 {
		s.T.Fatal("there is no operation")
	}
	return &list.Items[len(list.Items)-1]
}

// wantAs waits until all hosts are as before. Killed processes end a moment later.
func (s *testbed) wantAs(before map[string]lab.Snapshot) {
	s.T.Helper()
	for name, snap := range before {
		s.Eventually("host "+name+" is as it was", func(context.Context) error {
			if d := lab.Diff(snap, s.snapshot(s.Host(name))); d != "" {
				return errors.New(d)
			}
			return nil
		})
	}
}

// TestInterrupted kills a create. Then another user tries to build a cluster on the same host
// and gets an error about the first cluster, and a second run beside the unfinished one is
// refused. The create is paused, resumed and completed. A downgrade is refused. A delete that
// is killed is canceled, and done again.
func TestInterrupted(t *testing.T) {
	t.Parallel()
	s := newTestbed(t, 1)
	file := s.File(site.Layout{Hosts: s.Hosts(), ControlPlanes: []string{"host-1"}, Worker: []string{"host-1"}})
	if !s.killWhenItSays("host-1 etcd/", "cluster", "create", "-f", file, "--yes", "-v") {
		t.Fatal("it was not killed")
	}
	other := *s.Site
	other.State = filepath.Join(s.Dir, "other")
	out, err := other.Try("cluster", "create", "-f", file, "--yes", "--attempts", "1")
	if err == nil || !strings.Contains(out, "oak") || !strings.Contains(out, "host-1") {
		t.Errorf("a second run on the same host: %v\n%s", err, out)
	}
	if out, err := s.Try("cluster", "create", "-f", file, "--yes"); err == nil || !strings.Contains(out, "operation resume oak-1") {
		t.Errorf("a run beside an unfinished one: %v\n%s", err, out)
	}
	s.Orrery("operation", "pause", "oak-1")
	if out := s.Orrery("operation", "list"); !strings.Contains(out, "oak-1") {
		t.Errorf("operation list:\n%s", out)
	}
	s.Orrery("operation", "resume", "oak-1")
	s.wantNodes("host-1")

	// A downgrade is refused before any request to the hosts.
	out, err = s.Try("cluster", "apply", "-f", s.replaced(file, "v1.36.3", "v1.35.4"), "--yes")
	if err == nil || !strings.Contains(out, "spec.provision.kubernetes.version") {
		t.Errorf("a downgrade: %v\n%s", err, out)
	}

	if !s.killWhenItSays("host-1 ", "cluster", "delete", "oak", "--yes", "-v") {
		t.Fatal("it was not killed")
	}
	killed := s.newest().Name
	s.Orrery("operation", "cancel", killed)
	if op := s.Operation(killed); op.Status.Phase != lifecyclev1alpha1.PhaseCanceled {
		t.Errorf("phase of a canceled run: %s", op.Status.Phase)
	}
	out = s.Orrery("cluster", "delete", "oak", "--yes")
	if strings.Contains(out, "error") {
		t.Errorf("delete after a canceled one:\n%s", out)
	}
}
