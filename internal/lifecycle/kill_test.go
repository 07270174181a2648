package lifecycle_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/rest"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle"
	"orrery.dev/orrery/internal/lifecycle/host"
	"orrery.dev/orrery/internal/pki"
	"orrery.dev/orrery/internal/testenv"
)

// errKilled is the error of every call of a killed process.
var errKilled = errors.New("the process was killed")

// process is a process with the engine that can be killed. From then on it reaches no store, host
// or API server.
type process struct {
	killed atomic.Bool

	mu   sync.Mutex
	end  context.CancelFunc     // ends retries of the dead process
	when func(step string) bool // kills at the step for which it returns true
	hits []string
}

func (p *process) dead() error {
	if p.killed.Load() {
		return errKilled
	}
	return nil
}

// start begins a process that is killed at the start of the first step for which f returns true.
func (p *process) start(ctx context.Context, f func(step string) bool) context.Context {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.when = f
	p.killed.Store(false)
	ctx, p.end = context.WithCancel(ctx)
	return ctx
}

// progress receives the steps of the engine.
func (p *process) progress(_ lifecyclev1alpha1.Operation, s lifecyclev1alpha1.StepRecord) {
	p.mu.Lock()
	defer p.mu.Unlock()
	step := s.Host + " " + s.ID
	if s.State != lifecyclev1alpha1.StepRunning || p.when == nil || p.killed.Load() || !p.when(step) {
		return
	}
	p.killed.Store(true)
	p.end()
	p.hits = append(p.hits, step)
}

// mortal runs the engine of a lab in a process that can be killed.
func (l *lab) mortal() *process {
	p := &process{}
	l.env.Store = mortalStore{l.store, p}
	l.env.progress = p.progress
	cut := func(name, _ string) error {
		if p.killed.Load() {
			return &host.Unreachable{Host: name, Address: "127.0.0.1:22", Err: errKilled}
		}
		return nil
	}
	l.fleet.Fault, l.fleet.Broken = cut, cut
	// The agent ends with its connection.
	l.fleet.NodeFault = func(string, string) error { return p.dead() }
	connect := l.engine.Connect
	l.engine.Connect = func(c host.Conn, port int32, keys pki.Bundle) *rest.Config {
		cfg := rest.CopyConfig(connect(c, port, keys))
		cfg.Wrap(func(next http.RoundTripper) http.RoundTripper { return mortalTransport{next, p} })
		return cfg
	}
	return p
}

type mortalTransport struct {
	next http.RoundTripper
	p    *process
}

// RoundTrip implements http.RoundTripper.
func (m mortalTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := m.p.dead(); err != nil {
		return nil, err
	}
	return m.next.RoundTrip(r)
}

// mortalStore stores nothing for a killed process.
type mortalStore struct {
	lifecycle.Store

	p *process
}

func (s mortalStore) Save(ctx context.Context, state *lifecycle.State) error {
	if err := s.p.dead(); err != nil {
		return err
	}
	return s.Store.Save(ctx, state)
}

func (s mortalStore) Remove(ctx context.Context, state *lifecycle.State) error {
	if err := s.p.dead(); err != nil {
		return err
	}
	return s.Store.Remove(ctx, state)
}

func (s mortalStore) Record(ctx context.Context, op *lifecyclev1alpha1.Operation) error {
	if err := s.p.dead(); err != nil {
		return err
	}
	return s.Store.Record(ctx, op)
}

func (s mortalStore) Log(operation, host string) (io.WriteCloser, error) {
	if err := s.p.dead(); err != nil {
		return nil, err
	}
	return s.Store.Log(operation, host)
}

// TestKilledAtEveryStep kills the process at every step of a create, an add-node, a delete-node and
// a delete, and resumes in another process. In the end, the hosts are as after an undisturbed run.
// Without SOAK it kills at a third of the steps. The lab does the same at chosen steps with real
// processes.
func TestKilledAtEveryStep(t *testing.T) {
	undisturbed := newLab(t, 3, 1)
	small, large := undisturbed.sizes()
	acts := []struct {
		action lifecyclev1alpha1.Action
		spec   *clusterv1alpha1.Provision
		set    func(*lifecyclev1alpha1.OperationSpec)
	}{
		{lifecyclev1alpha1.ActionCreate, small, func(*lifecyclev1alpha1.OperationSpec) {}},
		{lifecyclev1alpha1.ActionAddNode, large, hosts("h-3")},
		{lifecyclev1alpha1.ActionDeleteNode, small, hosts("h-3")},
		{lifecyclev1alpha1.ActionDelete, small, func(*lifecyclev1alpha1.OperationSpec) {}},
	}
	for _, h := range large.Hosts {
		undisturbed.install(h.Name)
	}
	var steps [][]string
	var want []map[string]map[string]string
	for _, act := range acts {
		op := undisturbed.must(act.action, act.spec, act.set)
		var begun []string
		for _, s := range op.Status.Steps {
			begun = append(begun, s.Host+" "+s.ID)
		}
		steps, want = append(steps, begun), append(want, undisturbed.trees())
	}
	undisturbed.cleanCluster()

	l := newLab(t, 3, 1)
	l.spec.Source = undisturbed.spec.Source
	small, large = l.sizes()
	for _, h := range large.Hosts {
		l.install(h.Name)
	}
	specs := []*clusterv1alpha1.Provision{small, large, small, small}
	p := l.mortal()
	for i, act := range acts {
		chosen := testenv.Sample(t, 6, steps[i])
		left := slices.Clone(chosen)
		op := &lifecyclev1alpha1.Operation{Spec: lifecyclev1alpha1.OperationSpec{Cluster: "oak", Action: act.action, Attempts: 1}}
		act.set(&op.Spec)
		if err := l.store.Create(t.Context(), op); err != nil {
			t.Fatal(err)
		}
		spec := specs[i]
		var err error
		for {
			ctx := p.start(t.Context(), func(step string) bool {
				at := slices.Index(left, step)
				if at >= 0 {
					left = slices.Delete(left, at, at+1)
				}
				return at >= 0
			})
			err = l.engine.Run(ctx, op, spec)
			p.end()
			if !p.killed.Load() {
				break
			}
			if err == nil {
				t.Fatalf("%s: a run ended well after it was killed at %s", act.action, p.hits[len(p.hits)-1])
			}
			op, spec = l.kept(op.Name), nil
		}
		if err != nil {
			t.Fatalf("%s: resumed after %d kills, the last at %q: %v", act.action, len(p.hits), p.hits[len(p.hits)-1], err)
		}
		if phase := l.kept(op.Name).Status.Phase; phase != lifecyclev1alpha1.PhaseSucceeded {
			t.Errorf("%s: phase %s", act.action, phase)
		}
		for _, h := range large.Hosts {
			if d := cmp.Diff(paths(want[i][h.Name]), paths(l.tree(h.Name))); d != "" {
				t.Errorf("%s: host %s differs from that of an undisturbed run: %s", act.action, h.Name, d)
			}
		}
		// A step that a kill finds already done does not begin again.
		if len(left) > max(2, len(chosen)/10) {
			t.Errorf("%s: of %d steps these never began again, so nothing was killed there: %q", act.action, len(chosen), left)
		}
		t.Logf("%s: killed at %d of %d chosen steps", act.action, len(chosen)-len(left), len(chosen))
	}
}

// sizes returns specs of the same cluster with two and three hosts.
func (l *lab) sizes() (small, large *clusterv1alpha1.Provision) {
	large = l.spec
	small = large.DeepCopy()
	small.Hosts = small.Hosts[:2]
	small.RoleGroups[clusterv1alpha1.RoleWorker] = clusterv1alpha1.HostNames{"h-2"}
	return small, large
}
