package failover

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
	"orrery.dev/orrery/internal/fleet"
	"orrery.dev/orrery/internal/hub"
)

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	os.Exit(m.Run())
}

// probed is a fleet.Cache whose clusters a test sets.
type probed struct {
	unsynced bool
	clusters []*fleet.Cluster
}

func (p *probed) Synced() bool              { return !p.unsynced }
func (p *probed) Snapshot() *fleet.Snapshot { return fleet.NewSnapshot(1, p.clusters...) }

// keeping is a Keeper with a hub, a fleet and a clock of its own. It records the writes to the hub,
// as VERB KIND NAME.
type keeping struct {
	*Keeper

	t       *testing.T
	hub     client.WithWatch // without record
	probed  *probed
	time    time.Time
	writes  []string
	fails   func(write string) error // the error of a write; nil: none
	stale   *clusterv1alpha1.Cluster // what the cache has, if it is not what the hub has
	events  *events.FakeRecorder
	requeue time.Duration // of the last reconcile
}

// newKeeping returns a keeper on a hub with these objects.
func newKeeping(t *testing.T, objects ...client.Object) *keeping {
	t.Helper()
	k := &keeping{
		t: t, probed: &probed{}, time: start, events: events.NewFakeRecorder(100),
		hub: fake.NewClientBuilder().WithScheme(hub.Scheme()).WithObjects(objects...).Build(),
	}
	k.restart()
	return k
}

// restart replaces the keeper, as another process on the same hub would.
func (k *keeping) restart() {
	try := func(verb string, o client.Object) error {
		kind := fmt.Sprintf("%T", o)
		kind = kind[strings.LastIndex(kind, ".")+1:]
		write := verb + " " + kind + " " + o.GetName()
		if k.fails != nil {
			if err := k.fails(write); err != nil {
				return err
			}
		}
		k.writes = append(k.writes, write)
		return nil
	}
	recording := interceptor.NewClient(k.hub, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
			if cluster, ok := o.(*clusterv1alpha1.Cluster); ok && k.stale != nil {
				k.stale.DeepCopyInto(cluster)
				return nil
			}
			return c.Get(ctx, key, o, options...)
		},
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.CreateOption) error {
			if err := try("create", o); err != nil {
				return err
			}
			return c.Create(ctx, o, options...)
		},
		Update: func(context.Context, client.WithWatch, client.Object, ...client.UpdateOption) error {
			return errors.New("the keeper must not update whole objects")
		},
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, patch client.Patch, options ...client.PatchOption) error {
			if err := try("patch", o); err != nil {
				return err
			}
			return c.Patch(ctx, o, patch, options...)
		},
	})
	queue := NewQueue(DefaultLimits, k.probed.Snapshot, func() time.Time { return k.time })
	k.Keeper = newKeeper(recording, k.probed, queue, k.events, func() time.Time { return k.time })
}

// state reconciles the ConfigMap.
func (k *keeping) state() error { return k.reconcile(stateName) }

// cluster reconciles a Cluster.
func (k *keeping) cluster(name string) error { return k.reconcile(types.NamespacedName{Name: name}) }

func (k *keeping) reconcile(name types.NamespacedName) error {
	k.t.Helper()
	result, err := k.Reconcile(k.t.Context(), reconcile.Request{NamespacedName: name})
	k.requeue = result.RequeueAfter
	return err
}

// must fails the test if there is an error, or if not exactly these writes were made since the last
// call.
func (k *keeping) must(err error, writes ...string) {
	k.t.Helper()
	if err != nil {
		k.t.Fatal(err)
	}
	if !slices.Equal(k.writes, writes) {
		k.t.Errorf("writes %q, want %q", k.writes, writes)
	}
	k.writes = nil
}

// taints returns the taints of a Cluster on the hub.
func (k *keeping) taints(name string) []corev1.Taint {
	k.t.Helper()
	c := &clusterv1alpha1.Cluster{}
	if err := k.hub.Get(k.t.Context(), types.NamespacedName{Name: name}, c); err != nil {
		k.t.Fatal(err)
	}
	return c.Spec.Taints
}

// set gives a Cluster on the hub other taints, as a user does.
func (k *keeping) set(name string, taints ...corev1.Taint) {
	k.t.Helper()
	c := &clusterv1alpha1.Cluster{}
	if err := k.hub.Get(k.t.Context(), types.NamespacedName{Name: name}, c); err != nil {
		k.t.Fatal(err)
	}
	c.Spec.Taints = taints
	if err := k.hub.Update(k.t.Context(), c); err != nil {
		k.t.Fatal(err)
	}
}

// stored returns the data of the ConfigMap on the hub.
func (k *keeping) stored() map[string]string {
	k.t.Helper()
	c := &corev1.ConfigMap{}
	if err := k.hub.Get(k.t.Context(), stateName, c); err != nil {
		k.t.Fatal(err)
	}
	return c.Data
}

// ready reports whether Prepared is closed.
func (k *keeping) ready() bool {
	select {
	case <-k.Prepared():
		return true
	default:
		return false
	}
}

// event returns the next event; "": there is none.
func (k *keeping) event() string {
	select {
	case e := <-k.events.Events:
		return e
	default:
		return ""
	}
}

// object returns a Cluster that joined, with taints.
func object(name string, taints ...corev1.Taint) *clusterv1alpha1.Cluster {
	return &clusterv1alpha1.Cluster{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)},
		Spec:       clusterv1alpha1.ClusterSpec{SyncMode: clusterv1alpha1.Push, Taints: taints},
		Status:     clusterv1alpha1.ClusterStatus{ID: "id-of-" + name},
	}
}

// config returns the ConfigMap with a state.
func config(s State) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: stateName.Namespace, Name: stateName.Name}, Data: s.Data()}
}

// own returns a taint that a user sets, with the effect NoExecute.
func own(at time.Time) corev1.Taint { return tainted("own", "", corev1.TaintEffectNoExecute, at) }

func wantTaints(t *testing.T, got []corev1.Taint, want ...corev1.Taint) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("taints (-want +got):\n%s", diff)
	}
}

// TestFirstStart: at the first start with failover no taint that exists already is confirmed, also
// those without a time.
func TestFirstStart(t *testing.T) {
	earlier := start.Add(-time.Hour)
	fir := object("fir") // it joins after the start
	fir.CreationTimestamp = metav1.NewTime(start.Add(time.Second))
	k := newKeeping(t, object("oak", own(time.Time{})), object("pine", own(earlier)), fir)
	k.probed.clusters = []*fleet.Cluster{answering("oak"), answering("pine"), answering("fir")}
	k.time = start.Add(700 * time.Millisecond)
	if k.ready() || k.Queue().State() != (State{}) {
		t.Error("it is prepared before its start")
	}
	k.must(k.cluster("oak")) // not before the ConfigMap is there
	k.must(k.state(), "patch Cluster oak", "create ConfigMap failover")
	want := State{Known: true, CountFrom: start}
	if diff := cmp.Diff(want, k.Queue().State()); diff != "" {
		t.Errorf("state (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(want.Data(), k.stored()); diff != "" {
		t.Errorf("ConfigMap (-want +got):\n%s", diff)
	}
	wantTaints(t, k.taints("oak"), own(start.Add(-time.Second)))
	wantTaints(t, k.taints("pine"), own(earlier))
	if !k.ready() || k.event() != "" || k.requeue != 0 {
		t.Errorf("prepared: %v; requeued after %s, or there is an event", k.ready(), k.requeue)
	}
	for _, name := range []string{"oak", "pine"} {
		if hold := DefaultLimits.Cluster(answering(name), &k.taints(name)[0], k.Queue().State(), k.time).Hold; hold != HoldUnconfirmed {
			t.Errorf("the taint of %s: %q, want it unconfirmed", name, hold)
		}
	}

	// Later taints count, and a later start writes nothing.
	k.set("fir", own(time.Time{}))
	for range 2 {
		k.time = start.Add(1100 * time.Millisecond)
		k.must(k.state())
		k.must(k.cluster("oak"))
		k.must(k.cluster("pine"))
		k.must(k.cluster("fir"), "patch Cluster fir")
		k.must(k.cluster("fir"))
		if hold := DefaultLimits.Cluster(answering("fir"), &k.taints("fir")[0], k.Queue().State(), k.time).Hold; hold != "" {
			t.Errorf("the taint of fir waits: %q", hold)
		}
		k.restart()
		k.set("fir", own(time.Time{}))
	}
}

// TestKilledAtTheFirstStart: a process that ends at any point of its first start leaves no taint
// that a later one takes for a new one.
func TestKilledAtTheFirstStart(t *testing.T) {
	for _, at := range []string{"patch Cluster oak", "patch Cluster pine", "create ConfigMap failover"} {
		t.Run(at, func(t *testing.T) {
			k := newKeeping(t, object("oak", own(time.Time{})), object("pine", own(time.Time{})))
			k.probed.clusters = []*fleet.Cluster{answering("oak"), answering("pine")}
			killed := errors.New("killed")
			k.fails = func(write string) error {
				if write == at {
					return killed
				}
				return nil
			}
			if err := k.state(); !errors.Is(err, killed) {
				t.Fatalf("error %v, want %v", err, killed)
			}
			if !k.ready() || k.Queue().State().Known {
				t.Errorf("prepared: %v; state %+v", k.ready(), k.Queue().State())
			}
			if err := k.cluster("oak"); err != nil {
				t.Error(err)
			}
			k.fails, k.time = nil, start.Add(time.Minute)
			k.restart()
			if err := k.state(); err != nil {
				t.Fatal(err)
			}
			for _, name := range []string{"oak", "pine"} {
				if err := k.cluster(name); err != nil {
					t.Error(err)
				}
				if hold := DefaultLimits.Cluster(answering(name), &k.taints(name)[0], k.Queue().State(), k.time).Hold; hold != HoldUnconfirmed {
					t.Errorf("the taint of %s: %q, want it unconfirmed", name, hold)
				}
			}
		})
	}
}

// TestNotSynced: nothing is read or written before the fleet cache is synced.
func TestNotSynced(t *testing.T) {
	k := newKeeping(t, object("oak", own(time.Time{})))
	k.probed.unsynced = true
	k.must(k.state())
	k.must(k.cluster("oak"))
	if k.ready() || k.Queue().State().Known {
		t.Errorf("prepared: %v; state %+v", k.ready(), k.Queue().State())
	}
	k.must(k.state())
	if k.requeue != syncedLook {
		t.Errorf("requeued after %s, want %s", k.requeue, syncedLook)
	}
	k.probed.unsynced = false
	k.must(k.state(), "patch Cluster oak", "create ConfigMap failover")
}

// TestState: the queue gets the state in the ConfigMap. An invalid one means paused. A ConfigMap
// that was deleted is created again, and no taint is confirmed.
func TestState(t *testing.T) {
	stored := config(State{Paused: true, By: "alice", CountFrom: start.Add(-time.Hour)})
	k := newKeeping(t, stored, object("oak", own(start.Add(-time.Minute))))
	k.must(k.state())
	if diff := cmp.Diff(State{Known: true, Paused: true, By: "alice", CountFrom: start.Add(-time.Hour)}, k.Queue().State()); diff != "" {
		t.Errorf("state (-want +got):\n%s", diff)
	}
	write := func(data map[string]string) {
		t.Helper()
		if err := k.hub.Get(t.Context(), stateName, stored); err != nil {
			t.Fatal(err)
		}
		stored.Data = data
		if err := k.hub.Update(t.Context(), stored); err != nil {
			t.Fatal(err)
		}
		k.must(k.state())
	}
	write(State{By: "bob"}.Data())
	if state := k.Queue().State(); state != (State{Known: true, By: "bob"}) {
		t.Errorf("state %+v", state)
	}
	write(map[string]string{"paused": "perhaps", "by": "mallory"})
	if state := k.Queue().State(); !state.Known || !state.Paused || !strings.Contains(state.pause(), "ConfigMap orrery-cluster/failover is invalid: paused") || strings.Contains(state.pause(), "mallory") {
		t.Errorf("state %+v", state)
	}

	if err := k.hub.Delete(t.Context(), stored); err != nil {
		t.Fatal(err)
	}
	k.fails = func(string) error { return errors.New("no") }
	if err := k.state(); err == nil || k.Queue().State().Known {
		t.Errorf("error %v, state %+v", err, k.Queue().State())
	}
	k.fails = nil
	k.must(k.state(), "create ConfigMap failover")
	if state := k.Queue().State(); !state.Known || !state.Paused || !state.CountFrom.Equal(start) || !strings.Contains(state.Why, "is invalid") {
		t.Errorf("state %+v", state)
	}
}

// TestStateLost: a pause outlives the ConfigMap while the process runs, and no taint is confirmed.
func TestStateLost(t *testing.T) {
	for name, s := range map[string]State{
		"Paused":  {Known: true, Paused: true, By: "alice", Why: "a test", At: start.Add(-time.Minute), CountFrom: start.Add(-time.Hour)},
		"Resumed": {Known: true, By: "bob", Why: "it is over", At: start.Add(-time.Minute)},
	} {
		t.Run(name, func(t *testing.T) {
			stored := config(s)
			k := newKeeping(t, stored)
			k.must(k.state())
			if err := k.hub.Delete(t.Context(), stored); err != nil {
				t.Fatal(err)
			}
			k.fails = func(string) error { return errors.New("no") }
			if err := k.state(); err == nil || k.Queue().State().Known {
				t.Errorf("error %v, state %+v", err, k.Queue().State())
			}
			k.fails = nil
			k.must(k.state(), "create ConfigMap failover")
			s.CountFrom = start
			if diff := cmp.Diff(s, k.Queue().State()); diff != "" {
				t.Errorf("state (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(s.Data(), k.stored()); diff != "" {
				t.Errorf("ConfigMap (-want +got):\n%s", diff)
			}
		})
	}
}

// TestConfigMapCreatedMeanwhile: a ConfigMap that the manager's cache does not have yet is no
// error, and is not overwritten.
func TestConfigMapCreatedMeanwhile(t *testing.T) {
	k := newKeeping(t)
	k.fails = func(write string) error {
		if strings.HasPrefix(write, "create ConfigMap") {
			return apierrors.NewAlreadyExists(schema.GroupResource{Resource: "configmaps"}, ConfigMapName)
		}
		return nil
	}
	k.must(k.state())
	if k.requeue != staleLook || k.Queue().State().Known {
		t.Errorf("requeued after %s; state %+v", k.requeue, k.Queue().State())
	}
}

// TestNamespaceMissing: the keeper creates the namespace of the ConfigMap if it is missing.
func TestNamespaceMissing(t *testing.T) {
	k := newKeeping(t)
	k.fails = func(write string) error {
		if write == "create ConfigMap failover" && !slices.Contains(k.writes, "create Namespace orrery-cluster") {
			return apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, stateName.Namespace)
		}
		return nil
	}
	k.must(k.state(), "create Namespace orrery-cluster", "create ConfigMap failover")
}

// TestRefusedStamp: a Cluster that the hub does not let the keeper stamp does not hold up the
// others.
func TestRefusedStamp(t *testing.T) {
	k := newKeeping(t, object("oak", own(time.Time{})), object("pine", own(time.Time{})))
	k.probed.clusters = []*fleet.Cluster{answering("oak"), answering("pine")}
	k.fails = func(write string) error {
		if write == "patch Cluster oak" {
			return apierrors.NewInvalid(schema.GroupKind{Kind: "Cluster"}, "oak", nil)
		}
		return nil
	}
	k.must(k.state(), "patch Cluster pine", "create ConfigMap failover")
	refused := func() {
		t.Helper()
		if err := k.cluster("oak"); !apierrors.IsInvalid(err) {
			t.Errorf("error %v, want that of the hub", err)
		}
	}
	refused()
	if e := k.event(); !strings.HasPrefix(e, "Warning TaintFailed the hub refuses the taints") || k.event() != "" {
		t.Errorf("event %q, want one", e)
	}
	fails := k.fails
	k.fails, k.time = nil, start.Add(time.Hour)
	k.must(k.cluster("oak"), "patch Cluster oak")
	wantTaints(t, k.taints("oak"), own(start.Add(-time.Second))) // still not confirmed

	k.set("oak", own(time.Time{}))
	k.fails = fails
	refused()
	refused()
	if e := k.event(); !strings.Contains(e, "TaintFailed") || k.event() != "" {
		t.Errorf("event %q, want another one", e)
	}
}

// TestLongNote: the API server refuses events with a note of more than 1 kB.
func TestLongNote(t *testing.T) {
	p := whileLost("p")
	p.Spec.Taints[0].Key = strings.Repeat("é", 1000)
	k := newKeeping(t, config(State{}), object("oak"), p)
	k.probed.clusters = []*fleet.Cluster{lostSince("oak", start)}
	k.must(k.state())
	k.must(k.cluster("oak"), "patch Cluster oak")
	note, ok := strings.CutPrefix(k.event(), "Warning Tainted ")
	if !ok || len(note) > 1024 || len(note) < 1000 || !strings.HasSuffix(note, "é…") {
		t.Errorf("note of %d bytes: %q", len(note), note)
	}
}

// TestPolicies: the keeper writes the taints of ClusterTaintPolicies once, by the probes alone.
func TestPolicies(t *testing.T) {
	oak := object("oak")
	oak.Status.Conditions = []metav1.Condition{
		{Type: clusterv1alpha1.ConditionReady, Status: metav1.ConditionFalse},
		{Type: clusterv1alpha1.ConditionMirrored, Status: metav1.ConditionFalse},
		{Type: clusterv1alpha1.ConditionReachable, Status: metav1.ConditionFalse},
	}
	k := newKeeping(t, config(State{}), oak, whileLost("p"))
	k.must(k.state())
	k.must(k.cluster("oak")) // the fleet does not have it yet

	unprobed := answering("oak")
	unprobed.Reachable = false
	for name, c := range map[string]*fleet.Cluster{
		"Answers": answering("oak"), "Unprobed": unprobed, "AnotherUID": {Name: "oak", UID: "another", Lost: true, Joined: true},
	} {
		k.probed.clusters = []*fleet.Cluster{c}
		if err := k.cluster("oak"); err != nil || len(k.writes) > 0 {
			t.Errorf("%s: error %v, writes %q", name, err, k.writes)
		}
	}

	k.probed.clusters = []*fleet.Cluster{lostSince("oak", start)}
	k.must(k.cluster("oak"), "patch Cluster oak")
	evicts := tainted(evicting.Key, "", evicting.Effect, start)
	wantTaints(t, k.taints("oak"), evicts)
	if e := k.event(); !strings.Contains(e, "Tainted") || !strings.Contains(e, evicts.ToString()) {
		t.Errorf("event %q", e)
	}
	k.time = start.Add(time.Hour)
	k.must(k.cluster("oak"))
	k.restart()
	k.must(k.state())
	k.must(k.cluster("oak"))

	k.probed.clusters = []*fleet.Cluster{answering("oak")}
	k.must(k.cluster("oak"), "patch Cluster oak")
	if taints := k.taints("oak"); len(taints) != 0 {
		t.Errorf("taints %v", taints)
	}
	if e := k.event(); !strings.Contains(e, "Untainted") || !strings.Contains(e, evicts.ToString()) || k.event() != "" {
		t.Errorf("event %q", e)
	}
	k.must(k.cluster("oak"))
	k.must(k.cluster("gone"))
	if m := k.memories["oak"]; len(k.memories) != 1 || m == nil || len(m.times) != 0 {
		t.Errorf("it remembers %v", k.memories)
	}

	// Each Cluster is reconciled after a change of a policy.
	k.probed.clusters = []*fleet.Cluster{answering("oak"), answering("pine")}
	requests := k.policyChanged(t.Context(), &policyv1alpha1.ClusterTaintPolicy{})
	if len(requests) != 2 || requests[0].Name != "oak" || requests[1].Name != "pine" || requests[0].Namespace != "" {
		t.Errorf("requests %v", requests)
	}
}

// TestPull: the condition Ready of a cluster with syncMode Pull is Unknown when it is lost.
func TestPull(t *testing.T) {
	oak, pine := object("oak"), object("pine")
	oak.Spec.SyncMode = clusterv1alpha1.Pull
	p := tainting("p", evicting, all(in("Ready", metav1.ConditionUnknown)), nil)
	k := newKeeping(t, config(State{}), oak, pine, p)
	k.probed.clusters = []*fleet.Cluster{lostSince("oak", start), lostSince("pine", start)}
	k.must(k.state())
	k.must(k.cluster("oak"), "patch Cluster oak")
	k.must(k.cluster("pine"))
}

// TestLabelsOfTheObject: a policy selects by the Cluster as it is stored, also if the snapshot of
// the fleet is older.
func TestLabelsOfTheObject(t *testing.T) {
	oak := object("oak")
	oak.Labels = map[string]string{"env": "test"}
	p := whileLost("p")
	p.Spec.TargetClusters = &policyv1alpha1.ClusterAffinity{LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"env": "test"}}}
	k := newKeeping(t, config(State{}), oak, p)
	k.probed.clusters = []*fleet.Cluster{lostSince("oak", start)}
	k.must(k.state())
	k.must(k.cluster("oak"), "patch Cluster oak")
}

// TestDroppedTime: a taint whose time is dropped, as by a manifest without it, gets that time
// again. Another value, and a taint that was removed in between, get a new time.
func TestDroppedTime(t *testing.T) {
	k := newKeeping(t, config(State{}), object("oak", own(time.Time{})))
	k.probed.clusters = []*fleet.Cluster{answering("oak")}
	k.must(k.state())
	k.must(k.cluster("oak"), "patch Cluster oak")
	wantTaints(t, k.taints("oak"), own(start))

	later := start.Add(time.Hour)
	k.time = later
	k.set("oak", own(time.Time{}))
	k.must(k.cluster("oak"), "patch Cluster oak")
	wantTaints(t, k.taints("oak"), own(start))

	valued := own(time.Time{})
	valued.Value = "x"
	k.set("oak", valued)
	k.must(k.cluster("oak"), "patch Cluster oak")
	valued.TimeAdded = new(metav1.NewTime(later))
	wantTaints(t, k.taints("oak"), valued)

	k.set("oak")
	k.must(k.cluster("oak"))
	k.time = later.Add(time.Hour)
	k.set("oak", own(time.Time{}))
	k.must(k.cluster("oak"), "patch Cluster oak")
	wantTaints(t, k.taints("oak"), own(k.time))

	// A Cluster with the same name and another UID is another one.
	if err := k.hub.Delete(t.Context(), object("oak")); err != nil {
		t.Fatal(err)
	}
	again := object("oak", own(time.Time{}))
	again.UID = "another"
	if err := k.hub.Create(t.Context(), again); err != nil {
		t.Fatal(err)
	}
	k.time = k.time.Add(time.Hour)
	k.must(k.cluster("oak"), "patch Cluster oak")
	wantTaints(t, k.taints("oak"), own(k.time))
}

// TestDroppedTaint: a taint that a policy demands, and that another client drops, comes back with
// its time. A taint that the policy removed in between gets a new time.
func TestDroppedTaint(t *testing.T) {
	k := newKeeping(t, config(State{}), object("oak"), whileLost("p"))
	lost := []*fleet.Cluster{lostSince("oak", start)}
	evicts := tainted(evicting.Key, "", evicting.Effect, start)
	k.probed.clusters = lost
	k.must(k.state())
	k.must(k.cluster("oak"), "patch Cluster oak")
	for range 2 {
		k.time = k.time.Add(time.Minute)
		k.set("oak", tainted("new", "", corev1.TaintEffectNoSchedule, time.Time{}))
		k.must(k.cluster("oak"), "patch Cluster oak")
		wantTaints(t, k.taints("oak"), tainted("new", "", corev1.TaintEffectNoSchedule, time.Time{}), evicts)
	}

	// It is dropped while the policy would remove it.
	k.set("oak")
	k.probed.clusters = []*fleet.Cluster{answering("oak")}
	k.must(k.cluster("oak"))
	k.probed.clusters, k.time = lost, k.time.Add(time.Minute)
	k.must(k.cluster("oak"), "patch Cluster oak")
	wantTaints(t, k.taints("oak"), tainted(evicting.Key, "", evicting.Effect, k.time))
}

// TestDroppedWhileDown: a taint without a time that a process finds at its start may be older than
// the first start with failover, so it is not confirmed. Later ones are.
func TestDroppedWhileDown(t *testing.T) {
	from := start.Add(-time.Hour)
	created := func(name string, at time.Time) *clusterv1alpha1.Cluster {
		c := object(name, own(time.Time{}))
		c.CreationTimestamp = metav1.NewTime(at)
		return c
	}
	k := newKeeping(t, config(State{CountFrom: from}), created("oak", from), created("fir", from.Add(-time.Hour)), created("pine", from.Add(time.Second)), whileLost("p"))
	k.probed.clusters = []*fleet.Cluster{answering("oak"), lostSince("fir", start), answering("pine")}
	k.must(k.state())
	k.must(k.cluster("oak"), "patch Cluster oak")
	wantTaints(t, k.taints("oak"), own(from.Add(-time.Second)))
	k.must(k.cluster("fir"), "patch Cluster fir")
	wantTaints(t, k.taints("fir"), own(from.Add(-time.Second)), tainted(evicting.Key, "", evicting.Effect, start))
	k.must(k.cluster("pine"), "patch Cluster pine")
	wantTaints(t, k.taints("pine"), own(start))

	// A taint that is added while the process runs counts.
	added := tainted("added", "", corev1.TaintEffectNoExecute, time.Time{})
	k.set("oak", own(time.Time{}), added)
	k.must(k.cluster("oak"), "patch Cluster oak")
	added.TimeAdded = new(metav1.NewTime(start))
	wantTaints(t, k.taints("oak"), own(from.Add(-time.Second)), added)

	// The first write fails, and the next process goes on.
	k.set("oak", own(time.Time{}))
	k.restart()
	k.must(k.state())
	k.fails = func(string) error { return errors.New("no") }
	if err := k.cluster("oak"); err == nil {
		t.Error("no error")
	}
	k.fails = nil
	k.set("oak", own(time.Time{}), tainted("late", "", corev1.TaintEffectNoExecute, time.Time{}))
	k.must(k.cluster("oak"), "patch Cluster oak")
	wantTaints(t, k.taints("oak"), own(from.Add(-time.Second)), tainted("late", "", corev1.TaintEffectNoExecute, from.Add(-time.Second)))

	// A Cluster that is gone is forgotten, also while the ConfigMap is missing.
	if err := k.hub.Delete(t.Context(), object("oak")); err != nil {
		t.Fatal(err)
	}
	k.known = false
	k.must(k.cluster("oak"))
	if len(k.memories) != 0 {
		t.Errorf("it remembers %v", k.memories)
	}
}

// TestStaleCluster: a write from a stale cache is a conflict, changes nothing, and is repeated.
func TestStaleCluster(t *testing.T) {
	k := newKeeping(t, config(State{}), object("oak"), whileLost("p"))
	k.probed.clusters = []*fleet.Cluster{lostSince("oak", start)}
	k.must(k.state())
	k.stale = &clusterv1alpha1.Cluster{}
	if err := k.hub.Get(t.Context(), types.NamespacedName{Name: "oak"}, k.stale); err != nil {
		t.Fatal(err)
	}
	k.set("oak", tainted("new", "", corev1.TaintEffectNoSchedule, time.Time{}))
	k.must(k.cluster("oak"), "patch Cluster oak")
	if k.requeue != staleLook {
		t.Errorf("requeued after %s, want %s", k.requeue, staleLook)
	}
	wantTaints(t, k.taints("oak"), tainted("new", "", corev1.TaintEffectNoSchedule, time.Time{}))
	k.stale, k.time = nil, start.Add(time.Minute)
	k.must(k.cluster("oak"), "patch Cluster oak")
	if taints := k.taints("oak"); len(taints) != 2 || taints[0].Key != "new" || taints[1].Key != evicting.Key {
		t.Errorf("taints %v", taints)
	}
}

// TestLeavingCluster: the taints of a Cluster that is being deleted stay as they are.
func TestLeavingCluster(t *testing.T) {
	oak := object("oak", own(time.Time{}))
	oak.Finalizers, oak.DeletionTimestamp = []string{clusterv1alpha1.Finalizer}, new(metav1.NewTime(start))
	k := newKeeping(t, oak, whileLost("p"))
	k.probed.clusters = []*fleet.Cluster{lostSince("oak", start)}
	k.must(k.state(), "create ConfigMap failover")
	k.must(k.cluster("oak"))
}

func TestIsState(t *testing.T) {
	for name, want := range map[string]bool{"orrery-cluster/failover": true, "orrery-cluster/hub-restore": false, "default/failover": false} {
		o := &corev1.ConfigMap{}
		o.Namespace, o.Name, _ = strings.Cut(name, "/")
		if got := isState(o); got != want {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
}
