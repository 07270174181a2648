package lifecycle_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
	"orrery.dev/orrery/internal/hosttest"
	"orrery.dev/orrery/internal/lifecycle"
	"orrery.dev/orrery/internal/lifecycle/host"
	"orrery.dev/orrery/internal/lifecycle/node"
	"orrery.dev/orrery/internal/lifecycle/plan"
)

// patience is how long a test waits for an expected event.
const patience = 3 * time.Minute

func jsonOf(t testing.TB, v any) string {
	t.Helper()
	content, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// filesIn returns the contents of the files below a directory, by path.
func filesIn(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	if err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		content, err := os.ReadFile(path)
		files[path] = string(content)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return files
}

// once calls do at the first request with a stage.
type once struct {
	sync.Once

	stage string // ID of a step in the stage
	do    func()
}

func (o *once) applied(req node.Request) {
	if slices.ContainsFunc(req.Steps, func(s plan.Step) bool { return s.ID == o.stage }) {
		o.Do(o.do)
	}
}

// midway calls do when a host has finished its first stage.
func (l *lab) midway(do func()) {
	o := &once{stage: "system/sysctls", do: do}
	l.fleet.Applied = func(name string, req node.Request) {
		l.register(name, req)
		o.applied(req)
	}
}

// asked is a store that reports when a run has noticed Paused or Canceled.
type asked struct {
	lifecycle.Files

	mu      sync.Mutex
	records int
	noticed chan struct{}
}

// Record implements Store. A run that records again has read the spec of the previous answer.
func (s *asked) Record(ctx context.Context, op *lifecyclev1alpha1.Operation) error {
	err := s.Files.Record(ctx, op)
	s.mu.Lock()
	defer s.mu.Unlock()
	if op.Spec.Paused || op.Spec.Canceled {
		if s.records++; s.records == 2 {
			close(s.noticed)
		}
	}
	return err
}

func await(t testing.TB, what string, done <-chan struct{}) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(patience):
		t.Errorf("%s: not after %s", what, patience)
	}
}

// TestStop pauses or cancels a run between two stages.
func TestStop(t *testing.T) {
	for name, tc := range map[string]struct {
		ask   func(*lifecyclev1alpha1.OperationSpec)
		err   error
		phase lifecyclev1alpha1.Phase
	}{
		"Pause":  {func(s *lifecyclev1alpha1.OperationSpec) { s.Paused = true }, lifecycle.ErrPaused, lifecyclev1alpha1.PhasePaused},
		"Cancel": {func(s *lifecyclev1alpha1.OperationSpec) { s.Canceled = true }, lifecycle.ErrCanceled, lifecyclev1alpha1.PhaseCanceled},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t, 1, 1)
			store := &asked{Files: l.store, noticed: make(chan struct{})}
			l.env.Store = store
			l.midway(func() {
				if err := l.store.Control(context.Background(), "oak-1", tc.ask); err != nil {
					t.Error(err)
				}
				await(t, "the run takes notice", store.noticed)
			})
			op, err := l.run(lifecyclev1alpha1.ActionCreate, l.spec)
			if !errors.Is(err, tc.err) {
				t.Fatalf("the run ended with %v", err)
			}
			kept := l.kept(op.Name)
			if kept.Status.Phase != tc.phase || kept.Status.Message == "" {
				t.Errorf("record: %s %q", kept.Status.Phase, kept.Status.Message)
			}
			if _, ok := l.tree("h-1")["/etc/kubernetes/kubelet.yaml"]; ok {
				t.Error("the run went on to the last stage")
			}
			if _, ok := l.tree("h-1")["/etc/sysctl.d/95-orrery.conf"]; !ok {
				t.Error("the first stage was not done")
			}
			// While the spec says so, another run does nothing either.
			commands := l.fleet.Commands("h-1")
			if err := l.resume(op.Name); !errors.Is(err, tc.err) {
				t.Errorf("resumed without being asked to: %v", err)
			}
			if d := cmp.Diff(commands, l.fleet.Commands("h-1")); d != "" {
				t.Errorf("it was done again: %s", d)
			}
			if got := l.kept(op.Name).Status.Phase; got != tc.phase {
				t.Errorf("phase %s", got)
			}
			if tc.phase == lifecyclev1alpha1.PhasePaused {
				_, err := l.run(lifecyclev1alpha1.ActionApply, l.spec)
				says(t, err, "oak-1", "Create", "unfinished", "orrery operation resume oak-1", "orrery operation cancel oak-1")
				if err := l.store.Control(t.Context(), op.Name, func(s *lifecyclev1alpha1.OperationSpec) { s.Paused = false }); err != nil {
					t.Fatal(err)
				}
				if err := l.resume(op.Name); err != nil {
					t.Fatal(err)
				}
			} else {
				l.must(lifecyclev1alpha1.ActionApply, l.spec)
			}
			if _, changes, err := l.engine.Plan(t.Context(), l.spec); err != nil || len(changes.Items) != 0 {
				t.Errorf("there is still something to do: %v %v", changes, err)
			}
		})
	}
}

// TestAbandoned: a run is interrupted, as with ctrl-c, and another process resumes it.
func TestAbandoned(t *testing.T) {
	l := newLab(t, 2, 1)
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	l.midway(interrupt)
	op := &lifecyclev1alpha1.Operation{Spec: lifecyclev1alpha1.OperationSpec{Cluster: "oak", Action: lifecyclev1alpha1.ActionCreate}}
	if err := l.store.Create(t.Context(), op); err != nil {
		t.Fatal(err)
	}
	if err := l.engine.Run(ctx, op, l.spec); !errors.Is(err, lifecycle.ErrPaused) {
		t.Fatalf("the interrupted run ended with %v", err)
	}
	first := l.kept(op.Name)
	if first.Status.Phase != lifecyclev1alpha1.PhasePaused {
		t.Errorf("phase %s", first.Status.Phase)
	}
	_, err := l.run(lifecyclev1alpha1.ActionApply, l.spec)
	says(t, err, op.Name, "unfinished")
	other := *l.engine
	other.Holder = "another"
	if err := other.Run(t.Context(), l.kept(op.Name), nil); err != nil {
		t.Fatal(err)
	}
	second := l.kept(op.Name)
	if second.Status.Phase != lifecyclev1alpha1.PhaseSucceeded || second.Status.Attempt != 2 || second.Status.Epoch <= first.Status.Epoch {
		t.Errorf("phase %s, attempt %d, epoch %d after %d", second.Status.Phase, second.Status.Attempt, second.Status.Epoch, first.Status.Epoch)
	}
}

// lease requests a lease from the agent of a host, as a run elsewhere would. It returns the output.
func (l *lab) lease(name string, lease plan.Lease) string {
	l.t.Helper()
	state, err := l.store.Load(l.t.Context(), "oak")
	if err != nil {
		l.t.Fatal(err)
	}
	var out bytes.Buffer
	request, err := json.Marshal(node.Request{Protocol: node.Protocol, Cluster: "oak", ClusterID: state.ID, Lease: lease})
	if err != nil {
		l.t.Fatal(err)
	}
	if err := hosttest.Rooted(l.fleet.Root(name)).Apply(l.t.Context(), bytes.NewReader(append(request, '\n')), &out); err != nil {
		l.t.Fatal(err)
	}
	return out.String()
}

// TestLease: two runs do not change a host at the same time.
func TestLease(t *testing.T) {
	l := built(t, 1, 1)
	before := l.trees()
	if said := l.lease("h-1", plan.Lease{Operation: "oak-9", Holder: "eve@elsewhere", Epoch: 7, Expires: time.Now().Add(time.Hour)}); strings.Contains(said, "Failed") {
		t.Fatal(said)
	}
	op, err := l.run(lifecyclev1alpha1.ActionApply, l.maxPods(40), func(s *lifecyclev1alpha1.OperationSpec) { s.Attempts = 5 })
	says(t, err, "host h-1", "oak-9", "eve@elsewhere", "wait for it")
	l.untouched(before, "h-1")
	if l.lease("h-1", plan.Lease{Operation: "oak-9", Holder: "eve@elsewhere", Epoch: 7, Expires: time.Now().Add(-time.Second)}); l.resume(op.Name) != nil {
		t.Error("the lease has expired, and the run cannot be resumed")
	}
	if epoch := l.kept(op.Name).Status.Epoch; epoch <= 7 {
		t.Errorf("epoch %d", epoch)
	}
	if said := l.lease("h-1", plan.Lease{Operation: "oak-9", Holder: "eve@elsewhere", Epoch: 7, Expires: time.Now().Add(time.Hour)}); !strings.Contains(said, "epoch 7 is over") {
		t.Errorf("a run that was overtaken: %s", said)
	}
}

// TestFenced: a run that was resumed elsewhere changes nothing any more.
func TestFenced(t *testing.T) {
	l := newLab(t, 1, 1)
	var before map[string]map[string]string
	l.midway(func() {
		elsewhere := lifecycle.Files(t.TempDir())
		if err := os.CopyFS(string(elsewhere), os.DirFS(string(l.store))); err != nil {
			t.Error(err)
		}
		other := l.elsewhere(elsewhere, "another")
		op, err := elsewhere.Operation(context.Background(), "oak-1")
		if err != nil {
			t.Error(err)
			return
		}
		if err := other.Run(context.Background(), op, nil); err != nil {
			t.Error(err)
		}
		before = l.trees()
		l.fleet.Forget()
	})
	_, err := l.run(lifecyclev1alpha1.ActionCreate, l.spec)
	says(t, err, "host h-1", "a later run", "epoch 2")
	l.untouched(before, "h-1")
}

// TestDrift: a manual change on a host is repaired, and nothing else is changed.
func TestDrift(t *testing.T) {
	l := built(t, 2, 1)
	before := l.trees()
	if err := os.WriteFile(filepath.Join(l.fleet.Root("h-2"), "/etc/kubernetes/kube-proxy.yaml"), []byte("mine: true\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, changes, err := l.engine.Plan(t.Context(), l.spec)
	if err != nil {
		t.Fatal(err)
	}
	if len(changes.Items) != 1 || changes.Items[0].Host != "h-2" || changes.Items[0].Op != plan.OpRepair || changes.Items[0].Step != "kube-proxy/config" {
		t.Errorf("the plan: %+v", changes.Items)
	}
	l.fleet.Forget()
	op := l.must(lifecyclev1alpha1.ActionApply, l.spec)
	l.untouched(before, "h-1", "h-2")
	// The lease of the control plane keeps other runs away. A run that takes long extends it.
	if d := cmp.Diff([]string{"facts", "lease", "release"}, slices.Compact(l.fleet.Commands("h-1"))); d != "" {
		t.Errorf("host h-1: %s", d)
	}
	var did []string
	for _, s := range op.Status.Steps {
		if s.State != lifecyclev1alpha1.StepUnchanged {
			did = append(did, s.Host+" "+s.ID)
		}
	}
	if d := cmp.Diff([]string{"h-2 kube-proxy/config"}, did); d != "" {
		t.Errorf("steps: %s", d)
	}
}

// rolling records how many hosts are changed at the same time.
type rolling struct {
	mu      sync.Mutex
	active  []string
	order   []string
	most    map[string]int // by kind of host
	pair    chan struct{}  // closed when two workers are changed at once
	paired  sync.Once
	workers []string
}

func (r *rolling) begin(name string) (alone bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.active = append(r.active, name)
	r.order = append(r.order, name)
	kind := "control-plane"
	if slices.Contains(r.workers, name) {
		kind = "worker"
	}
	r.most[kind] = max(r.most[kind], len(r.active))
	if kind == "worker" && len(r.active) == 2 {
		r.paired.Do(func() { close(r.pair) })
	}
	return kind == "control-plane"
}

func (r *rolling) end(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.active = slices.DeleteFunc(r.active, func(n string) bool { return n == name })
}

// TestRolling: restarts happen on one control plane after the other, and then on at most
// MaxUnavailable workers in parallel.
func TestRolling(t *testing.T) {
	l := built(t, 5, 2+1)
	l.spec.RoleGroups["worker"] = []string{"h-[4:5]"}
	seen := &rolling{most: map[string]int{}, pair: make(chan struct{}), workers: []string{"h-4", "h-5"}}
	l.fleet.Fault = func(name, command string) error {
		if command == "apply" && !seen.begin(name) {
			await(t, "two workers are changed at a time", seen.pair)
		}
		return nil
	}
	l.fleet.Applied = func(name string, _ node.Request) { seen.end(name) }
	l.must(lifecyclev1alpha1.ActionApply, l.maxPods(42), ordered(lifecyclev1alpha1.Rollout{MaxUnavailable: 2}))
	if d := cmp.Diff(map[string]int{"control-plane": 1, "worker": 2}, seen.most); d != "" {
		t.Errorf("at a time: %s", d)
	}
	if d := cmp.Diff([]string{"h-1", "h-2", "h-3"}, seen.order[:3]); d != "" {
		t.Errorf("order: %s", d)
	}
}

// hanging is a network in which some commands never end.
type hanging struct {
	host.Dialer

	does    func(argv []string) bool
	reached chan struct{}
	first   sync.Once
}

type hangingConn struct {
	host.Conn

	net *hanging
}

// Dial implements host.Dialer.
func (h *hanging) Dial(ctx context.Context, t host.Target) (host.Conn, error) {
	if h.does(nil) {
		return nil, h.hang(ctx)
	}
	c, err := h.Dialer.Dial(ctx, t)
	return &hangingConn{Conn: c, net: h}, err
}

// Run implements host.Conn.
func (c *hangingConn) Run(ctx context.Context, argv []string, stdin io.Reader, stdout io.Writer) error {
	if c.net.does(argv) {
		return c.net.hang(ctx)
	}
	return c.Conn.Run(ctx, argv, stdin, stdout)
}

func (h *hanging) hang(ctx context.Context) error {
	h.first.Do(func() { close(h.reached) })
	<-ctx.Done()
	return context.Cause(ctx)
}

// TestHang: an interrupted run ends, wherever it hangs, and can be resumed.
func TestHang(t *testing.T) {
	agent := func(verb string) func([]string) bool {
		return func(argv []string) bool { return len(argv) > 2 && argv[0] == node.AgentPath && argv[2] == verb }
	}
	for name, does := range map[string]func(argv []string) bool{
		"Dial":  func(argv []string) bool { return argv == nil },
		"Facts": func(argv []string) bool { return len(argv) == 1 },
		"Agent": func(argv []string) bool { return len(argv) > 2 && argv[0] == "sh" },
		"Serve": agent("serve"),
		"Check": agent("check"),
		"Apply": agent("apply"),
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t, 4, 1)
			l.spec.Network.Plugin = plan.NetworkNone
			network := &hanging{Dialer: l.fleet, does: does, reached: make(chan struct{})}
			l.engine.Dialer = network
			ctx, interrupt := context.WithCancel(t.Context())
			defer interrupt()
			op := &lifecyclev1alpha1.Operation{Spec: lifecyclev1alpha1.OperationSpec{Cluster: "oak", Action: lifecyclev1alpha1.ActionCreate}}
			if err := l.store.Create(t.Context(), op); err != nil {
				t.Fatal(err)
			}
			var err error
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				err = l.engine.Run(ctx, op, l.spec)
			}()
			await(t, "the run comes to what hangs", network.reached)
			interrupt()
			await(t, "the run ends", ended)
			if t.Failed() {
				return
			}
			if !errors.Is(err, lifecycle.ErrPaused) {
				t.Errorf("it ended with %v", err)
			}
			l.engine.Dialer = l.fleet
			if err := l.resume(op.Name); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestManySteps: a record does not grow without bound, and failed steps are not dropped.
func TestManySteps(t *testing.T) {
	l := newLab(t, 1, 1)
	l.spec.Network.Plugin = plan.NetworkNone
	op := &lifecyclev1alpha1.Operation{Spec: lifecyclev1alpha1.OperationSpec{Cluster: "oak", Action: lifecyclev1alpha1.ActionCreate}}
	if err := l.store.Create(t.Context(), op); err != nil {
		t.Fatal(err)
	}
	const most = 4000
	for i := range most {
		op.Status.Steps = append(op.Status.Steps, lifecyclev1alpha1.StepRecord{
			Host: fmt.Sprintf("old-%d", i), ID: "kubelet/config", State: lifecyclev1alpha1.StepChanged, Attempt: 1,
		})
	}
	op.Status.Steps[7].State = lifecyclev1alpha1.StepFailed
	if err := l.store.Record(t.Context(), op); err != nil {
		t.Fatal(err)
	}
	if err := l.engine.Run(t.Context(), op, l.spec); err != nil {
		t.Fatal(err)
	}
	steps := l.kept(op.Name).Status.Steps
	if len(steps) > most {
		t.Errorf("%d records", len(steps))
	}
	has := func(host, id string) bool {
		return slices.ContainsFunc(steps, func(s lifecyclev1alpha1.StepRecord) bool { return s.Host == host && s.ID == id })
	}
	if !has("old-7", "kubelet/config") || !has("h-1", "kubelet/config") || has("old-0", "kubelet/config") {
		t.Error("of the old records not those that succeeded are dropped first")
	}
}

// paths returns the paths of a tree.
func paths(tree map[string]string) []string { return slices.Sorted(maps.Keys(tree)) }
