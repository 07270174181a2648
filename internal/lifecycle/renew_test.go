package lifecycle_test

import (
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	clocktesting "k8s.io/utils/clock/testing"

	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle/node"
	"orrery.dev/orrery/internal/lifecycle/plan"
	"orrery.dev/orrery/internal/pki"
)

// soon is when certificates just issued are due for renewal. At late, they have expired.
const soon, late = pki.LeafLifetime - pki.RenewBefore + time.Hour, pki.LeafLifetime + 24*time.Hour

// after advances the clock of the engine by d and returns the new time.
func (l *lab) after(d time.Duration) time.Time {
	at := time.Now().Add(d)
	l.engine.Clock = clocktesting.NewFakePassiveClock(at)
	return at
}

// acts returns a function that lists the requests to agents from now on, in order.
func (l *lab) acts() func() []string {
	var mu sync.Mutex
	var acts []string
	l.fleet.Applied = func(name string, req node.Request) {
		l.register(name, req)
		mu.Lock()
		defer mu.Unlock()
		if act := actOf(req); act != "" {
			acts = append(acts, name+" "+act)
		}
	}
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(acts)
	}
}

// actOf describes a request: it writes certificates, restarts units, or runs a stage of a plan.
func actOf(req node.Request) string {
	var units []string
	others := 0
	for _, s := range req.Steps {
		switch {
		case s.Unit != nil:
			units = append(units, strings.TrimPrefix(s.Unit.Name, "orrery-"))
		case s.Probe == nil && s.File == nil:
			return "stage with " + req.Steps[0].ID
		case s.File != nil:
			others++
		}
	}
	switch {
	case len(units) > 0 && others > 0:
		return "stage with " + req.Steps[0].ID
	case len(units) > 0:
		return "restarts " + strings.Join(units, " ")
	case others > 0:
		return "certificates"
	case len(req.Steps) > 0:
		return "probes"
	}
	return ""
}

// renewal has what a renewal does on three control planes and a worker.
var renewal = struct{ files, restarts []string }{
	files: []string{"h-1 certificates", "h-2 certificates", "h-3 certificates", "h-4 certificates"},
	restarts: []string{
		"h-1 probes", "h-1 restarts kube-apiserver kube-controller-manager kube-scheduler", "h-1 restarts kubelet kube-proxy",
		"h-2 probes", "h-2 restarts kube-apiserver kube-controller-manager kube-scheduler", "h-2 restarts kubelet kube-proxy",
		"h-3 probes", "h-3 restarts kube-apiserver kube-controller-manager kube-scheduler", "h-3 restarts kubelet kube-proxy",
		"h-4 restarts kubelet kube-proxy",
	},
}

// renewedFirst checks that acts begins with a renewal, and returns the acts after it.
func renewedFirst(t *testing.T, acts []string) (then []string) {
	t.Helper()
	files, all := len(renewal.files), len(renewal.files)+len(renewal.restarts)
	if len(acts) < all {
		t.Fatalf("acts: %q", acts)
	}
	if d := cmp.Diff(renewal.files, slices.Sorted(slices.Values(acts[:files]))); d != "" {
		t.Errorf("first the files, on all hosts at once: %s", d)
	}
	if d := cmp.Diff(renewal.restarts, acts[files:all]); d != "" {
		t.Errorf("then one host after another: %s", d)
	}
	return acts[all:]
}

var embedded = regexp.MustCompile(`client-certificate-data: (\S+)`)

// leaves returns when the certificates on a host end, by file.
func (l *lab) leaves(name string) map[string]time.Time {
	l.t.Helper()
	ends := map[string]time.Time{}
	for path, content := range l.tree(name) {
		if m := embedded.FindStringSubmatch(content); m != nil {
			decoded, err := base64.StdEncoding.DecodeString(m[1])
			if err != nil {
				l.t.Error(err)
			}
			content = string(decoded)
		} else if filepath.Ext(path) != ".crt" {
			continue
		}
		at := strings.Index(content, "-----BEGIN CERTIFICATE")
		if at < 0 {
			continue
		}
		block, _ := pem.Decode([]byte(content[at:]))
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			l.t.Error(err)
		} else if !cert.IsCA {
			ends[path] = cert.NotAfter
		}
	}
	return ends
}

// fresh checks that no certificate is due, on the hosts or in the state.
func (l *lab) fresh(at time.Time, names ...string) {
	l.t.Helper()
	for _, name := range names {
		ends := l.leaves(name)
		if len(ends) < 3 {
			l.t.Errorf("host %s has only the certificates %v", name, ends)
		}
		for path, end := range ends {
			if !end.After(at.Add(pki.RenewBefore)) {
				l.t.Errorf("host %s: %s ends at %s", name, path, end)
			}
		}
	}
	for _, e := range l.state().Certificates() {
		if host, _, _ := strings.Cut(e.Name, "/"); e.Due(at) && (slices.Contains(names, host) || host == e.Name && len(names) == len(l.spec.Hosts)) {
			l.t.Errorf("%s is due: it ends at %s", e.Name, e.NotAfter)
		}
	}
}

// undrained checks that an operation drained no node.
func (l *lab) undrained(op *lifecyclev1alpha1.Operation) {
	l.t.Helper()
	for _, s := range op.Status.Steps {
		if strings.HasPrefix(s.ID, "drain/") || strings.HasPrefix(s.ID, "uncordon/") {
			l.t.Errorf("%s %s", s.ID, s.State)
		}
	}
}

// idle checks that a plan has no changes.
func (l *lab) idle() {
	l.t.Helper()
	if _, changes, err := l.engine.Plan(l.t.Context(), l.spec); err != nil || len(changes.Items) != 0 {
		l.t.Errorf("there is still something to do: %v %v", changes, err)
	}
}

// TestApplyRenews: an apply renews certificates that are due or expired, and only restarts units
// for this. Two plans of this are the same plan.
func TestApplyRenews(t *testing.T) {
	for name, passed := range map[string]time.Duration{"InTheWindow": soon, "AllHaveEnded": late} {
		t.Run(name, func(t *testing.T) {
			l := built(t, 4, 3)
			l.idle()
			at := l.after(passed)
			_, first, err := l.engine.Plan(t.Context(), l.spec)
			if err != nil {
				t.Fatal(err)
			}
			_, second, err := l.engine.Plan(t.Context(), l.spec)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(first, second); d != "" || len(first.Items) == 0 {
				t.Errorf("two plans of %d changes: %s", len(first.Items), d)
			}
			for _, i := range first.Items {
				if plan.Worse(i.Disruption, plan.DisruptionRestart) {
					t.Errorf("%s %s disturbs: %s", i.Host, i.Step, i.Disruption)
				}
			}
			acts := l.acts()
			op := l.must(lifecyclev1alpha1.ActionApply, l.spec, func(s *lifecyclev1alpha1.OperationSpec) { s.PlanHash = second.Hash })
			if then := renewedFirst(t, acts()); len(then) > 0 {
				t.Errorf("more was done: %q", then)
			}
			if op.Status.StepsDone != op.Status.StepsTotal || op.Status.StepsDone == 0 {
				t.Errorf("%d of %d steps", op.Status.StepsDone, op.Status.StepsTotal)
			}
			l.undrained(op)
			l.fresh(at, "h-1", "h-2", "h-3", "h-4")
			l.idle()
			if n := len(l.state().Renewed); n != 0 {
				t.Errorf("%d certificates wait to be used", n)
			}
		})
	}
}

// TestRenewalBeforeResume: a failed run renews certificates before it is resumed, and its other
// work is still done.
func TestRenewalBeforeResume(t *testing.T) {
	l := built(t, 4, 3)
	l.fleet.Fault = func(name, command string) error {
		if name == "h-2" && command == "apply" {
			return errors.New("lost")
		}
		return nil
	}
	op, err := l.run(lifecyclev1alpha1.ActionApply, l.maxPods(50))
	says(t, err, "lost")
	l.fleet.Fault = nil
	at, acts := l.after(late), l.acts()
	if err := l.resume(op.Name); err != nil {
		t.Fatal(err)
	}
	then := acts()
	if files := slices.Sorted(slices.Values(then[:4])); !slices.Equal(files, renewal.files) {
		t.Errorf("it began with %q, want the files with certificates", files)
	}
	// The kubelets of h-2 and later restart for their configuration anyway, so not twice.
	for _, host := range []string{"h-1", "h-2", "h-3", "h-4"} {
		kubelet := 0
		for _, act := range then {
			if strings.HasPrefix(act, host) && (strings.Contains(act, "restarts kubelet") || strings.Contains(act, "stage with")) {
				kubelet++
			}
		}
		if kubelet == 0 || kubelet > 2 {
			t.Errorf("%s: %d rounds of its node in %q", host, kubelet, then)
		}
	}
	l.undrained(l.kept(op.Name))
	l.fresh(at, "h-1", "h-2", "h-3", "h-4")
	l.spec = l.maxPods(50)
	l.idle()
}

// TestRenewCertificates: this action only renews certificates. A run that failed before it can be
// resumed after it.
func TestRenewCertificates(t *testing.T) {
	l := built(t, 4, 3)
	l.fleet.Fault = func(name, command string) error {
		if name == "h-2" && command == "apply" {
			return errors.New("lost")
		}
		return nil
	}
	failed, err := l.run(lifecyclev1alpha1.ActionApply, l.maxPods(50))
	says(t, err, "lost")
	l.fleet.Fault = nil
	l.env.built = nil
	before := l.trees()
	wanted := l.state().Wanted

	op := l.must(lifecyclev1alpha1.ActionRenewCertificates, nil)
	if d := cmp.Diff(before, l.trees()); d != "" || op.Status.StepsTotal != 0 {
		t.Errorf("nothing is due, and %d steps did: %s", op.Status.StepsTotal, d)
	}

	at := l.after(soon)
	op = l.must(lifecyclev1alpha1.ActionRenewCertificates, nil)
	if op.Status.StepsDone != op.Status.StepsTotal || op.Status.StepsDone == 0 {
		t.Errorf("%d of %d steps", op.Status.StepsDone, op.Status.StepsTotal)
	}
	l.undrained(op)
	l.fresh(at, "h-1", "h-2", "h-3", "h-4")
	if d := cmp.Diff(wanted, l.state().Wanted); d != "" {
		t.Errorf("the cluster is to be another now: %s", d)
	}
	if !strings.Contains(string(l.env.built), base64.StdEncoding.EncodeToString(l.state().Keys[plan.LeafAdmin].Cert)) {
		t.Errorf("the kubeconfig that was handed out has not the new certificate: %d bytes", len(l.env.built))
	}
	for name, tree := range l.trees() {
		if name == "h-1" {
			continue // the failed run had begun here
		}
		for path, content := range tree {
			certificate := strings.HasPrefix(path, "/etc/kubernetes/pki/") || strings.HasSuffix(path, ".conf") ||
				path == "/.recorded.json" // the units
			if content != before[name][path] && !certificate {
				t.Errorf("host %s: %s was changed", name, path)
			}
		}
	}
	if err := l.resume(failed.Name); err != nil {
		t.Errorf("the run that failed before: %v", err)
	}
	l.spec = l.maxPods(50)
	l.idle()
}

// TestRenewalOfUnreachable: a host that does not answer keeps its certificates. The error names it.
func TestRenewalOfUnreachable(t *testing.T) {
	l := built(t, 4, 3)
	l.unreachable("h-3")
	at := l.after(late)
	op, err := l.run(lifecyclev1alpha1.ActionRenewCertificates, nil)
	says(t, err, "h-3", "orrery operation resume "+op.Name)
	l.fresh(at, "h-1", "h-2", "h-4")
	due := 0
	for _, e := range l.state().Certificates() {
		if e.Due(at) {
			due++
			// The admin's kubeconfig is on h-3, too.
			if !strings.HasPrefix(e.Name, "h-3/") && e.Name != plan.LeafAdmin {
				t.Errorf("%s is due", e.Name)
			}
		}
	}
	if due < 3 {
		t.Errorf("%d certificates are due, want those of h-3", due)
	}
	l.fleet.Fault = nil
	acts := l.acts()
	if err := l.resume(op.Name); err != nil {
		t.Fatal(err)
	}
	for _, act := range acts() {
		if !strings.HasPrefix(act, "h-3 ") {
			t.Errorf("again: %s", act)
		}
	}
	l.fresh(at, "h-1", "h-2", "h-3", "h-4")
	l.idle()
}

// TestExpiredKubeletKeepsSafetyChecks: the certificates of the kubelets have expired, and those of
// the API servers are only due. The API servers restart between safety checks nevertheless.
func TestExpiredKubeletKeepsSafetyChecks(t *testing.T) {
	l := newLab(t, 3, 3)
	built := time.Now().Add(-pki.RenewBefore)
	l.engine.Clock = clocktesting.NewFakePassiveClock(built)
	l.must(lifecyclev1alpha1.ActionCreate, l.spec)
	l.engine.Clock = nil
	state := l.state()
	kept := pki.Bundle{}
	for name, pair := range state.Keys {
		if strings.HasSuffix(name, "/kubelet") {
			kept[name] = pair
		}
	}
	state.Keys, state.Renewed = kept, nil
	if err := state.Mint(time.Now(), state.Applied); err != nil {
		t.Fatal(err)
	}
	if err := l.store.Save(t.Context(), state); err != nil {
		t.Fatal(err)
	}
	l.must(lifecyclev1alpha1.ActionApply, l.spec)
	at := l.after(soon)
	op := l.must(lifecyclev1alpha1.ActionRenewCertificates, nil)
	var want []string
	for _, name := range []string{"h-1", "h-2", "h-3"} {
		want = append(want, "gate/"+name+"/before Unchanged", "gate/"+name+"/after Unchanged")
	}
	if d := cmp.Diff(want, l.safetyChecks(op.Name)); d != "" {
		t.Errorf("safety checks (-want +got):\n%s", d)
	}
	l.fresh(at, "h-1", "h-2", "h-3")
}

// TestDeleteNodeRenewsFirst: pods cannot be moved from a kubelet whose certificate has expired.
func TestDeleteNodeRenewsFirst(t *testing.T) {
	l := built(t, 4, 3)
	at := l.after(late)
	rest := l.spec.DeepCopy()
	rest.Hosts = rest.Hosts[:3]
	delete(rest.RoleGroups, "worker")
	op := l.must(lifecyclev1alpha1.ActionDeleteNode, rest, hosts("h-4"))
	steps := map[string]int{}
	for i, s := range op.Status.Steps {
		steps[s.Host+" "+s.ID] = i + 1
	}
	kubelet, drain := steps["h-4 kubelet/unit"], steps["cluster drain/h-4"]
	if kubelet == 0 || drain == 0 || kubelet > drain {
		t.Errorf("the kubelet is step %d and the drain step %d", kubelet, drain)
	}
	l.spec = rest
	l.fresh(at, "h-1", "h-2", "h-3")
	for name := range maps.Keys(l.state().Keys.With(l.state().Renewed)) {
		if strings.HasPrefix(name, "h-4/") {
			t.Errorf("the key of %s is left", name)
		}
	}
	l.idle()
}

// TestRenewalIsResumed kills a renewal at some of its requests. The next run uses the certificates
// that were issued.
func TestRenewalIsResumed(t *testing.T) {
	for _, n := range []int{1, 4, 5, 7, 11, 14} {
		l := built(t, 4, 3)
		at := l.after(late)
		kill := &nth{n: n}
		l.fleet.Broken = func(_, command string) error {
			if command == "apply" && kill.hits() {
				return errors.New("killed")
			}
			return nil
		}
		op, err := l.run(lifecyclev1alpha1.ActionRenewCertificates, nil)
		says(t, err, "killed")
		l.fleet.Broken = nil
		minted := l.state().Keys.With(l.state().Renewed)
		if err := l.resume(op.Name); err != nil {
			t.Fatal(err)
		}
		l.fresh(at, "h-1", "h-2", "h-3", "h-4")
		if !maps.EqualFunc(minted, l.state().Keys, pki.KeyPair.Equal) {
			t.Errorf("killed at %d: others were minted", n)
		}
		l.idle()
	}
}

// TestPreflightWarns: preflight warns of certificates that are due for renewal.
func TestPreflightWarns(t *testing.T) {
	l := built(t, 4, 3)
	warned := func() (names []string) {
		t.Helper()
		findings, err := l.engine.Preflight(t.Context(), l.spec)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range findings {
			if f.Check == plan.CheckCertificates {
				names = append(names, f.Host)
				if f.Severity != plan.SeverityWarning || !strings.Contains(f.Fix, "orrery cluster certs renew oak") {
					t.Errorf("%+v", f)
				}
			}
		}
		return names
	}
	if names := warned(); len(names) > 0 {
		t.Errorf("warnings for %v right after the cluster was built", names)
	}
	l.after(soon)
	if d := cmp.Diff([]string{"h-1", "h-2", "h-3", "h-4"}, warned()); d != "" {
		t.Errorf("warnings: %s", d)
	}
}
