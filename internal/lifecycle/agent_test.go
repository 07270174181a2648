package lifecycle_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle/node"
)

// upgrade replaces the local file of the agent by another version.
func (l *lab) upgrade() {
	l.t.Helper()
	path := l.env.agent
	if err := os.WriteFile(path, []byte("the agent of another version"), 0o755); err != nil {
		l.t.Fatal(err)
	}
}

// TestAgentFirst: every request goes to the agent of this version.
func TestAgentFirst(t *testing.T) {
	rest := func(l *lab) *clusterv1alpha1.Provision {
		spec := l.spec.DeepCopy()
		spec.Hosts = spec.Hosts[:1]
		delete(spec.RoleGroups, clusterv1alpha1.RoleWorker)
		return spec
	}
	for name, tc := range map[string]struct {
		do func(*lab)
		// protocol of the agents on the hosts.
		protocol int
	}{
		"Apply":                   {do: func(l *lab) { l.must(lifecyclev1alpha1.ActionApply, l.spec) }, protocol: node.Protocol},
		"Delete":                  {do: func(l *lab) { l.must(lifecyclev1alpha1.ActionDelete, l.spec) }, protocol: node.Protocol},
		"DeleteNode":              {do: func(l *lab) { l.must(lifecyclev1alpha1.ActionDeleteNode, rest(l), hosts("h-2")) }, protocol: node.Protocol},
		"ApplyOlderProtocol":      {do: func(l *lab) { l.must(lifecyclev1alpha1.ActionApply, l.spec) }},
		"DeleteOlderProtocol":     {do: func(l *lab) { l.must(lifecyclev1alpha1.ActionDelete, l.spec) }},
		"DeleteNodeOlderProtocol": {do: func(l *lab) { l.must(lifecyclev1alpha1.ActionDeleteNode, rest(l), hosts("h-2")) }},
	} {
		t.Run(name, func(t *testing.T) {
			l := built(t, 2, 1)
			l.upgrade()
			if tc.protocol != node.Protocol {
				l.fleet.Protocol = map[string]int{"h-1": tc.protocol, "h-2": tc.protocol}
			}
			tc.do(l)
			for _, h := range []string{"h-1", "h-2"} {
				commands := l.fleet.Commands(h)
				brought, asked := slices.Index(commands, "agent"), slices.Index(commands, "apply")
				if brought < 0 || asked < brought {
					t.Errorf("host %s: %v", h, commands)
				}
			}
		})
	}
}

// TestAgentOfNewerOrrery: an older orrery does not change a host whose agent is newer.
func TestAgentOfNewerOrrery(t *testing.T) {
	l := built(t, 2, 1)
	before := l.trees()
	l.fleet.Protocol = map[string]int{"h-2": node.Protocol + 1}
	_, _, err := l.engine.Plan(t.Context(), l.spec)
	if err == nil || !strings.Contains(err.Error(), "host h-2: its agent speaks protocol 2, and this orrery 1") {
		t.Errorf("plan: %v", err)
	}
	for _, action := range []lifecyclev1alpha1.Action{lifecyclev1alpha1.ActionApply, lifecyclev1alpha1.ActionDelete} {
		op, err := l.run(action, l.spec)
		l.wantRefused(op, err, "host h-2", "speaks protocol", "use that, or one as new")
	}
	l.untouched(before, "h-1", "h-2")
}

// TestAgentUpgraded: after an upgrade of the agent, all load balancers restart with it. The plan
// shows this, and nothing else is disturbed.
func TestAgentUpgraded(t *testing.T) {
	l := built(t, 2, 1)
	restarts := func() []string {
		_, changes, err := l.engine.Plan(t.Context(), l.spec)
		if err != nil {
			t.Fatal(err)
		}
		var found []string
		for _, c := range changes.Items {
			found = append(found, strings.Join([]string{c.Host, c.Step, string(c.Op), string(c.Disruption)}, " "))
		}
		return found
	}
	if found := restarts(); len(found) > 0 {
		t.Errorf("with the same agent: %v", found)
	}
	l.upgrade()
	want := []string{"h-1 loadbalancer/unit change restart", "h-2 loadbalancer/unit change restart"}
	if found := restarts(); !slices.Equal(found, want) {
		t.Errorf("with another agent: %v, want %v", found, want)
	}
	l.must(lifecyclev1alpha1.ActionApply, l.spec)
	for _, h := range l.spec.Hosts {
		content, err := os.ReadFile(filepath.Join(l.fleet.Root(h.Name), node.AgentPath))
		if err != nil || string(content) != "the agent of another version" {
			t.Errorf("host %s has %q, %v", h.Name, content, err)
		}
	}
	if found := restarts(); len(found) > 0 {
		t.Errorf("after the apply: %v", found)
	}
}

// TestNoAgent: a missing file of the agent is reported before any change.
func TestNoAgent(t *testing.T) {
	l := built(t, 1, 1)
	path := l.env.agent
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	before := l.trees()
	if _, _, err := l.engine.Plan(t.Context(), l.spec); err == nil || !strings.Contains(err.Error(), "read the agent") {
		t.Errorf("plan: %v", err)
	}
	op, err := l.run(lifecyclev1alpha1.ActionApply, l.spec)
	l.wantRefused(op, err, path)
	l.untouched(before, "h-1")
}
