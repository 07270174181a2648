package lab

import (
	"context"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
	"orrery.dev/orrery/internal/lab"
)

// TestKilledAtEveryStep kills orrery with SIGKILL at every step of a create, of an add-node and of a delete, and resumes
// each time. In the end everything is as after an undisturbed run.
func TestKilledAtEveryStep(t *testing.T) {
	s := newSite(t, 2)
	one, two := s.Host("host-1"), s.Host("host-2")
	before := s.snapshots()
	small := func() string {
		return s.file(layout{Hosts: []*lab.Host{one}, ControlPlanes: []string{"host-1"}, Worker: []string{"host-1"}})
	}
	large := func() string {
		return s.file(layout{Hosts: []*lab.Host{one, two}, ControlPlanes: []string{"host-1"}, Worker: []string{"host-1", "host-2"}})
	}

	// The undisturbed run says which steps there are, and what a host is like in the end.
	s.orrery("cluster", "create", "-f", small(), "--yes")
	created := s.steps("oak-1")
	end := ours(s.snapshot(one))
	s.orrery("cluster", "add-node", "-f", large(), "--yes")
	added := s.steps("oak-2")
	endTwo := ours(s.snapshot(two))
	s.orrery("cluster", "delete", "oak", "--yes")
	deleted := s.steps("oak-3")
	s.wantAs(before)

	kills := s.disturb("oak-4", created, "cluster", "create", "-f", small(), "--yes", "-v")
	if d := cmpLines(end, ours(s.snapshot(one))); d != "" {
		t.Errorf("the host differs from that of an undisturbed create:\n%s", d)
	}
	s.wantNodes("host-1")
	kills += s.disturb("oak-5", added, "cluster", "add-node", "-f", large(), "--yes", "-v")
	if d := cmpLines(endTwo, ours(s.snapshot(two))); d != "" {
		t.Errorf("the host differs from that of an undisturbed add-node:\n%s", d)
	}
	s.wantNodes("host-1", "host-2")
	kills += s.disturb("oak-6", deleted, "cluster", "delete", "oak", "--yes", "-v")
	s.wantAs(before)
	if least := len(created) / 2; kills < least {
		t.Errorf("orrery was killed %d times, want at least %d", kills, least)
	}
	t.Logf("orrery was killed %d times at %d steps", kills, len(created)+len(added)+len(deleted))
}

// steps of an Operation, in the order they were started.
func (s *site) steps(operation string) []string {
	s.t.Helper()
	var op lifecyclev1alpha1.Operation
	if err := yaml.Unmarshal([]byte(s.orrery("operation", "show", operation, "-o", "yaml")), &op); err != nil {
		s.t.Fatal(err)
	}
	if op.Status.Phase != lifecyclev1alpha1.PhaseSucceeded {
		s.t.Fatalf("operation %s: %s: %s", operation, op.Status.Phase, op.Status.Message)
	}
	steps := make([]string, 0, len(op.Status.Steps))
	for _, step := range op.Status.Steps {
		steps = append(steps, step.Host+" "+step.ID)
	}
	return steps
}

// disturb runs a command and kills it as soon as it begins the first step, resumes and kills at the second, and so on; the
// last resume is left alone. It returns how often it killed.
func (s *site) disturb(operation string, steps []string, args ...string) int {
	s.t.Helper()
	kills := 0
	for _, step := range steps {
		if s.killWhenItSays(step+" ", args...) {
			kills++
		}
		args = []string{"operation", "resume", operation, "-v"}
		if op := s.operation(operation); op.Status.Phase == lifecyclev1alpha1.PhaseSucceeded {
			return kills
		}
	}
	s.orrery(args...)
	return kills
}

func (s *site) operation(name string) *lifecyclev1alpha1.Operation {
	s.t.Helper()
	op := &lifecyclev1alpha1.Operation{}
	if err := yaml.Unmarshal([]byte(s.orrery("operation", "show", name, "-o", "yaml")), op); err != nil {
		s.t.Fatal(err)
	}
	return op
}

// wantAs waits until all hosts are as they were.
func (s *site) wantAs(before map[string]lab.Snapshot) {
	s.t.Helper()
	for name, snap := range before {
		if d := lab.Diff(snap, s.snapshot(s.Host(name))); d != "" {
			s.t.Errorf("host %s is not as it was:\n%s", name, d)
		}
	}
}

// ours lists what the steps made on a host, without the contents, which have keys.
func ours(snap lab.Snapshot) []string {
	var list []string
	for name := range snap {
		for _, dir := range []string{"/etc/", "/opt/", "/usr/", "/var/lib/orrery/node/units"} {
			if strings.HasPrefix(name, "file "+dir) {
				list = append(list, name)
				break
			}
		}
	}
	slices.Sort(list)
	return list
}

func cmpLines(want, got []string) string {
	var out []string
	for _, w := range want {
		if !slices.Contains(got, w) {
			out = append(out, "- "+w)
		}
	}
	for _, g := range got {
		if !slices.Contains(want, g) {
			out = append(out, "+ "+g)
		}
	}
	return strings.Join(out, "\n")
}

// TestPauseAndCancel pauses a create, resumes it, and cancels another run.
func TestPauseAndCancel(t *testing.T) {
	s := newSite(t, 1)
	file := s.file(layout{Hosts: s.Hosts(), ControlPlanes: []string{"host-1"}, Worker: []string{"host-1"}})
	if !s.killWhenItSays("host-1 ", "cluster", "create", "-f", file, "--yes", "-v") {
		t.Fatal("it was not killed")
	}
	if out, err := s.try("cluster", "create", "-f", file, "--yes"); err == nil || !strings.Contains(out, "operation resume oak-1") {
		t.Errorf("a run beside an unfinished one: %v\n%s", err, out)
	}
	s.orrery("operation", "pause", "oak-1")
	if out := s.orrery("operation", "list"); !strings.Contains(out, "oak-1") {
		t.Errorf("operation list:\n%s", out)
	}
	s.orrery("operation", "resume", "oak-1")
	s.eventually("the API server answers", func(ctx context.Context) error {
		_, err := s.client(nil).CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		return err
	})
	if !s.killWhenItSays("host-1 ", "cluster", "delete", "oak", "--yes", "-v") {
		t.Fatal("it was not killed")
	}
	s.orrery("operation", "cancel", "oak-2")
	if op := s.operation("oak-2"); op.Status.Phase != lifecyclev1alpha1.PhaseCanceled {
		t.Errorf("phase of a canceled run: %s", op.Status.Phase)
	}
	out := s.orrery("cluster", "delete", "oak", "--yes")
	if strings.Contains(out, "error") {
		t.Errorf("delete after a canceled one:\n%s", out)
	}
}
