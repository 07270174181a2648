package lifecycle_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle/host"
	"orrery.dev/orrery/internal/lifecycle/intent"
	"orrery.dev/orrery/internal/lifecycle/plan"
	"orrery.dev/orrery/internal/pki"
)

// fault is a way in which a host is not reached, with the command that fails.
type fault struct {
	command string
	err     func(name string) error
}

// The ways in which a host is unreachable or refused.
var (
	unreachable = []fault{
		{"dial", func(name string) error {
			return &host.Unreachable{Host: name, Address: "10.77.0.0:22", Err: syscall.EHOSTUNREACH}
		}},
		{"facts", func(name string) error { // after the login
			return &host.Unreachable{Host: name, Address: "10.77.0.0:22", Err: syscall.ECONNRESET}
		}},
	}
	refused = []fault{
		{"dial", func(name string) error {
			return &host.Unauthorized{Host: name, User: "root", Tried: []string{"the password"}, Err: errors.New("unable to authenticate")}
		}},
		{"dial", func(name string) error {
			return &host.HostKeyChanged{Host: name, Address: "10.77.0.3", File: "known_hosts", Line: 3, Want: "SHA256:a", Got: "SHA256:b"}
		}},
		{"facts", func(name string) error {
			return &host.SudoRefused{Host: name, User: "admin", Reason: host.WrongPassword}
		}},
	}
)

// fail makes a host fail in one of these ways.
func (l *lab) fail(name, command string, err error) {
	l.fleet.Fault = func(h, c string) error {
		if h == name && c == command {
			return err
		}
		return nil
	}
}

// onlyPassword lets hosts accept this password only.
func (l *lab) onlyPassword(password string, names ...string) {
	var mu sync.Mutex
	given := map[string]string{} // by host, at the last login
	l.env.target = func(h clusterv1alpha1.Host) host.Target {
		mu.Lock()
		defer mu.Unlock()
		given[h.Name] = h.Password
		return host.Target{Name: h.Name, Address: h.Address, Password: host.Secret(h.Password)}
	}
	l.fleet.Fault = func(name, command string) error {
		mu.Lock()
		defer mu.Unlock()
		if command == "dial" && slices.Contains(names, name) && given[name] != password {
			return &host.Unauthorized{Host: name, User: "root", Tried: []string{"the password"}, Err: errors.New("unable to authenticate")}
		}
		return nil
	}
}

// TestReachTable does what each row of the reach table is about, with an unreachable and a refused
// host, and checks that the engine treats the host as the row says.
func TestReachTable(t *testing.T) {
	for i, row := range intent.ReachTable {
		for _, fault := range []fault{unreachable[i%len(unreachable)], refused[i%len(refused)]} {
			err := fault.err("h-3")
			t.Run(fmt.Sprintf("%s/%s/%T", row.Action, row.Part, err), func(t *testing.T) {
				treatment := row.Unreachable
				if _, gone := errors.AsType[*host.Unreachable](err); !gone {
					treatment = row.Refused
				}
				tryReach(t, row, treatment, fault.command, err)
			})
		}
	}
}

// tryReach runs the action of a row while host h-3 fails.
func tryReach(t *testing.T, row intent.ReachRow, treatment intent.Treatment, command string, fault error) {
	t.Helper()
	const away = "h-3"
	var l *lab
	var spec *clusterv1alpha1.Provision
	var named []string
	switch {
	case row.Part != intent.Coming:
		l = built(t, 4, 1)
		spec = l.maxPods(70)
	case row.Action == lifecyclev1alpha1.ActionCreate:
		l = newLab(t, 3, 1)
		spec = l.spec
	default:
		l = built(t, 2, 1)
		spec, named = l.grown(), []string{away}
	}
	switch row.Action { //nolint:exhaustive // the others change no hosts
	case lifecyclev1alpha1.ActionAddNode:
		if row.Part == intent.Staying {
			spec, named = l.grown(), []string{"h-5"}
		}
	case lifecyclev1alpha1.ActionDeleteNode:
		rest, last := l.without()
		if row.Part == intent.Leaving {
			// The host that leaves is the one that fails.
			rest = l.spec.DeepCopy()
			rest.Hosts = slices.DeleteFunc(rest.Hosts, func(h clusterv1alpha1.Host) bool { return h.Name == away })
			rest.RoleGroups[clusterv1alpha1.RoleWorker] = clusterv1alpha1.HostNames{"h-2", "h-4"}
			last = away
		}
		spec, named = rest, []string{last}
	case lifecyclev1alpha1.ActionDelete:
		spec = l.spec
	case lifecyclev1alpha1.ActionRenewCertificates:
		spec = nil
		l.after(late)
	}
	all := *l
	if spec != nil && row.Action != lifecyclev1alpha1.ActionDeleteNode {
		all.spec = spec // it has the new hosts, too
	}
	for _, h := range all.spec.Hosts { // every host has this directory
		if err := os.MkdirAll(filepath.Join(l.fleet.Root(h.Name), "opt"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	l.fail(away, command, fault)
	before := all.trees()
	unchanged := func() {
		t.Helper()
		if d := cmp.Diff(before, all.trees()); d != "" {
			t.Errorf("hosts were changed: %s", d)
		}
	}
	saysWhy := func(text string) {
		t.Helper()
		if !strings.Contains(text, "host "+away+": ") {
			t.Errorf("%q does not name host %s", text, away)
		}
	}
	switch row.Action { //nolint:exhaustive // the others are runs
	case intent.ActionPreflight:
		findings, err := l.engine.Preflight(t.Context(), spec)
		if err != nil || !slices.ContainsFunc(findings, func(f plan.Finding) bool { return f.Host == away && f.Severity == plan.SeverityError }) {
			t.Errorf("findings %v, %v", findings, err)
		}
		return
	case intent.ActionPlan:
		_, _, err := l.engine.Plan(t.Context(), spec)
		says(t, err, "host "+away+": ")
		unchanged()
		return
	}
	op, err := l.run(row.Action, spec, hosts(named...))
	switch treatment {
	case intent.TreatStop:
		l.wantRefused(op, err, "host "+away+": ")
		unchanged()
	case intent.TreatLeave:
		l.wantRefused(op, err, "host "+away+": ", "orrery operation resume "+op.Name)
		l.untouched(before, away)
		if d := cmp.Diff(before["h-2"], l.tree("h-2")); d == "" {
			t.Error("host h-2 was left, too")
		}
		l.fleet.Fault = nil
		if err := l.resume(op.Name); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(before[away], l.tree(away)); d == "" {
			t.Errorf("host %s was not changed when it was back", away)
		}
	case intent.TreatSkip:
		if err != nil {
			t.Fatal(err)
		}
		saysWhy(l.kept(op.Name).Status.Message)
		l.untouched(before, away)
	case intent.TreatForget:
		l.wantRefused(op, err, "host "+away+": ", "--forget-unreachable")
		unchanged()
		l.must(row.Action, spec, hosts(named...), forget)
		l.untouched(before, away)
		if state := l.state(); row.Action == lifecyclev1alpha1.ActionDeleteNode && slices.ContainsFunc(state.Applied.Hosts, func(h clusterv1alpha1.Host) bool { return h.Name == away }) {
			t.Errorf("host %s is still part of the cluster", away)
		}
		if row.Action == lifecyclev1alpha1.ActionDelete && len(l.tree("h-2")) != 2 {
			t.Errorf("host h-2 after the delete: %v", paths(l.tree("h-2")))
		}
	case intent.TreatWork, intent.TreatReport:
		t.Errorf("treatment %s", treatment)
	}
}

// TestFactsThatCannotBeRead: a host that was reached and whose facts cannot be read stops a
// renewal. It is no host that refuses the login.
func TestFactsThatCannotBeRead(t *testing.T) {
	l := built(t, 3, 1)
	l.after(late)
	l.fail("h-3", "facts", &host.ExitError{Host: "h-3", Command: "sh", Code: 2, Stderr: "syntax error"})
	before := l.trees()
	op, err := l.run(lifecyclev1alpha1.ActionRenewCertificates, nil)
	l.wantRefused(op, err, "host h-3: sh: exit status 2")
	l.untouched(before, "h-1", "h-2", "h-3")
}

// TestRenewalSkipsRefused: a host with a changed password keeps its certificates, and all others
// are renewed. With its new password it is renewed, too, and the state keeps the password.
func TestRenewalSkipsRefused(t *testing.T) {
	l := newLab(t, 4, 3)
	for i := range l.spec.Hosts {
		l.spec.Hosts[i].Password = "old"
	}
	l.must(lifecyclev1alpha1.ActionCreate, l.spec)
	l.onlyPassword("new", "h-4")
	at := l.after(late)
	l.engine.Local = true
	op, err := l.run(lifecyclev1alpha1.ActionRenewCertificates, nil)
	l.wantRefused(op, err, "the certificates of all other hosts are renewed", "host h-4: login of root refused", "-f and a file")
	l.fresh(at, "h-1", "h-2", "h-3")
	if due := l.due(at); !slices.ContainsFunc(due, func(name string) bool { return strings.HasPrefix(name, "h-4/") }) {
		t.Errorf("due are %v, want those of h-4", due)
	}
	login := l.spec.Hosts[3]
	login.Password = "new"
	l.engine.Logins = []clusterv1alpha1.Host{login}
	l.must(lifecyclev1alpha1.ActionRenewCertificates, nil)
	l.fresh(at, "h-1", "h-2", "h-3", "h-4")
	l.engine.Logins = nil
	if got := l.state().Applied.Hosts[3].Password; got != "new" {
		t.Errorf("the state keeps the password %q", got)
	}
	if _, _, err := l.engine.Plan(t.Context(), l.state().Applied); err != nil {
		t.Errorf("a later plan: %v", err)
	}
}

// due returns the names of certificates that are due for renewal.
func (l *lab) due(at time.Time) []string {
	var names []string
	for _, e := range slices.DeleteFunc(l.state().Certificates(), func(e pki.Expiry) bool { return !e.Due(at) }) {
		names = append(names, e.Name)
	}
	return names
}

// TestRemovesWithNewLogins: hosts whose password has changed are removed and undone with the
// passwords of a file.
func TestRemovesWithNewLogins(t *testing.T) {
	l := newLab(t, 3, 1)
	for i := range l.spec.Hosts {
		l.spec.Hosts[i].Password = "old"
	}
	l.must(lifecyclev1alpha1.ActionCreate, l.spec)
	l.onlyPassword("new", "h-1", "h-2", "h-3")
	l.engine.Local = true
	rest, last := l.without()
	op, err := l.run(lifecyclev1alpha1.ActionDeleteNode, rest, hosts(last))
	l.wantRefused(op, err, "login of root refused", "present logins with -f", "--forget-unreachable")
	l.engine.Logins = slices.Clone(l.spec.Hosts)
	for i := range l.engine.Logins {
		l.engine.Logins[i].Password = "new"
	}
	state := l.state()
	state.Login(l.engine.Logins)
	rest, err = state.Without("oak", []string{last}, false)
	if err != nil {
		t.Fatal(err)
	}
	l.must(lifecyclev1alpha1.ActionDeleteNode, rest, hosts(last))
	if tree := l.tree(last); len(tree) != 2 {
		t.Errorf("host %s has %v", last, paths(tree))
	}
	l.engine.Logins = nil // the state has them
	l.must(lifecyclev1alpha1.ActionDelete, l.state().Everything())
	if tree := l.tree("h-1"); len(tree) != 2 {
		t.Errorf("host h-1 has %v", paths(tree))
	}
}
