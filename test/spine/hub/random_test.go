package hub

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/controller-runtime/pkg/client"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/testenv"
	"orrery.dev/orrery/test/spine"
)

// Time limits of the attack.
const (
	// converging is how long the fleet may take to reach the wanted state after the last fault.
	converging = 3 * spine.Patience
	// memory is the maximum age of a decision when it is carried out.
	memory = 5 * time.Second
	// scaling is how long after a user's scale-down the release rule is not checked, because a
	// scale-down is no move.
	scaling = 30 * time.Second
)

// TestRandom does STEPS steps chosen by a seed, for SEEDS seeds from SEED on, and checks every
// write in a member against the invariants. At the end it compares hub and members object by
// object.
func TestRandom(t *testing.T) {
	first, count, n := testenv.Seed(t), testenv.Count(t, "SEEDS", 1, 3), testenv.Count(t, "STEPS", 100, 200)
	for seed := first; seed < first+uint64(count); seed++ {
		t.Run(fmt.Sprintf("Seed%d", seed), func(t *testing.T) {
			a := newAttack(t)
			defer func() {
				if t.Failed() {
					t.Logf("again with: SEED=%d SEEDS=1 STEPS=%d go test -count 1 -run 'TestRandom$' ./test/spine/hub\n%s", seed, n, strings.Join(a.did, "\n"))
				}
			}()
			a.run(steps(seed, n))
		})
	}
}

// attack is one run of TestRandom.
type attack struct {
	*spine.World
	admin   *testenv.API // of the hub, usable across restarts of the server
	history *history
	busy    map[string]*sync.Mutex // by member, held during a join or unjoin
	begun   sync.WaitGroup
	did     []string // the steps, and their results

	judging sync.Mutex // serializes the checks of writes
	judged  int
	made    int // attempts to create foreign objects
	pending map[string]intended
	backup  string // directory

	mu      sync.Mutex
	deleted map[string]time.Time       // KIND NAMESPACE/NAME of templates that we deleted
	scaled  map[string]time.Time       // NAMESPACE/NAME of Deployments that we scaled down
	theirs  map[string]unmanagedObject // MEMBER KIND NAMESPACE/NAME of foreign objects
	faults  map[string]span
	wrong   []string
	// suspended is true from the restore of a backup to its confirmation. restored stays true.
	suspended, restored bool
	early               []string // deletions while suspended
}

// intended is the number of replicas that a write, which may not have ended, sets on the object
// with the UID.
type intended struct {
	at       time.Time
	uid      types.UID
	replicas int64
}

// concerns reports whether the write may still change o. If o has another UID, it was deleted and
// created again, so a deletion that was the write is done.
func (i intended) concerns(o *unstructured.Unstructured) bool {
	return i.uid == o.GetUID() && time.Since(i.at) < 2*time.Second
}

// unmanagedObject is an object in a member that the hub did not create and may not touch.
type unmanagedObject struct {
	spine.Object
	made time.Time
}

// span is the duration of a fault. The end is zero while the fault lasts.
type span struct{ begin, end time.Time }

func newAttack(t *testing.T) *attack {
	t.Helper()
	w := spine.Alone(t, attackNamespaces[0])
	w.Others = attackNamespaces[1:]
	cfg, err := w.Hub.Config()
	if err != nil {
		t.Fatal(err)
	}
	d, err := dynamic.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	a := &attack{
		World: w, history: &history{resource: d.Resource(bindingResource), bindings: map[types.UID]*past{}},
		busy: map[string]*sync.Mutex{}, pending: map[string]intended{},
		deleted: map[string]time.Time{}, scaled: map[string]time.Time{}, theirs: map[string]unmanagedObject{}, faults: map[string]span{},
	}
	if a.admin, err = testenv.NewAPI(cfg); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	followed := make(chan struct{})
	go func() { a.history.follow(ctx); close(followed) }()
	t.Cleanup(func() { cancel(); <-followed })
	for _, m := range spine.Members.List {
		a.busy[m.Name] = &sync.Mutex{}
		for _, ns := range attackNamespaces {
			m.OnWriteIn(ns, func(r testenv.Write) { a.judge(m, r) })
		}
	}
	t.Cleanup(func() {
		if t.Failed() {
			a.Explain()
		}
		a.Hub.Kill()
		for _, ns := range attackNamespaces {
			for _, m := range spine.Members.List {
				m.OnWriteIn(ns, nil)
				m.Remove(t, "v1", "Namespace", "", ns)
			}
		}
		for _, ns := range attackNamespaces {
			for _, m := range spine.Members.List {
				testenv.Eventually(t, "namespace "+ns+" is gone from "+m.Name, spine.Patience, func() error {
					_, err := m.Find(context.Background(), "v1", "Namespace", "", ns)
					if apierrors.IsNotFound(err) {
						return nil
					}
					return cmp.Or(err, errors.New("it is there"))
				})
			}
		}
	})
	return a
}

// run does the steps, ends all faults, and compares.
func (a *attack) run(all []step) {
	begin := time.Now()
	for _, m := range spine.Members.List {
		m.Apply(a, "apiVersion: v1\nkind: Namespace\nmetadata: {name: "+existing+"}\n")
		for _, name := range []string{"c0", "c1"} {
			a.Eventually("make "+name+" in "+m.Name, func() error { return a.foreign(m, spine.ConfigMap(existing, name, "theirs")) })
		}
	}
	a.Eventually("make the namespaces", a.namespaces)
	worked := 0
	for i, s := range all {
		at := time.Since(begin)
		err := s.do(a)
		line := fmt.Sprintf("%3d %6.2fs %s", i, at.Seconds(), s.what)
		if err != nil {
			line += ": " + strings.SplitN(err.Error(), "\n", 2)[0]
		} else {
			worked++
		}
		a.did = append(a.did, line)
	}
	for _, m := range spine.Members.List {
		a.heal(m)
	}
	a.begun.Wait()
	if !a.Hub.Running() {
		a.Restart()
	}
	ended := time.Since(begin)
	a.finishJoins()
	a.converge("as the steps left the fleet")
	// Unjoined clusters join again: the hub takes over the objects that they kept.
	for _, m := range spine.Members.List {
		if !a.Hub.Joined(a, m) {
			a.Join(m)
		}
	}
	a.converge("with every cluster joined")
	a.Logf("steps took %.1fs, all of it %.1fs", ended.Seconds(), time.Since(begin).Seconds())
	a.judging.Lock()
	judged := a.judged
	a.judging.Unlock()
	a.Logf("%d of %d steps worked, %d writes were judged", worked, len(all), judged)
	// The limits are far below the usual numbers: of 200 steps about 150 work, and 125 writes
	// or more are judged.
	if worked < len(all)/3 || judged < len(all)/8 {
		a.Errorf("of %d steps only %d worked, and only %d writes were judged: the hub was hardly attacked", len(all), worked, judged)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, w := range a.wrong {
		a.Error(w)
	}
}

// finishJoins repeats a join if the hub was killed between the Cluster and the Secret of the
// join, as a user who saw the join fail would do.
func (a *attack) finishJoins() {
	for _, m := range spine.Members.List {
		if !a.Hub.Joined(a, m) {
			continue
		}
		cut := false
		testenv.Eventually(a, "look for the credentials of "+m.Name, spine.Patience, func() error {
			ctx, cancel := a.short()
			defer cancel()
			c, err := a.admin.Find(ctx, "cluster.orrery.dev/v1alpha1", "Cluster", "", m.Name)
			if err != nil || c.GetDeletionTimestamp() != nil {
				return client.IgnoreNotFound(err)
			}
			_, err = a.admin.Find(ctx, "v1", "Secret", "orrery-cluster", m.Name)
			cut = apierrors.IsNotFound(err)
			return client.IgnoreNotFound(err)
		})
		if cut {
			a.Join(m)
		}
	}
}

// converge waits until hub and members agree, and checks once more after all writes have ended.
func (a *attack) converge(when string) {
	a.Helper()
	differ := pollFor(converging, func() error { return errors.Join(a.confirm(), a.admit(), a.compare()) })
	if differ == nil {
		a.Quiet(2 * time.Second)
		_ = pollFor(converging, func() error {
			differ = a.compare() // no write was pending
			if hasDifference(differ) {
				return nil
			}
			return differ
		})
	}
	if differ != nil {
		a.Errorf("hub and members differ, %s:\n%v", when, differ)
	}
}

// admit repeats the join of clusters that refuse the hub's credentials, as the condition asks
// for. After a restore the hub may list a cluster that was unjoined since the backup. The
// credentials were deleted in that cluster.
func (a *attack) admit() error {
	for _, m := range spine.Members.List {
		ctx, cancel := a.short()
		c, err := a.admin.Find(ctx, "cluster.orrery.dev/v1alpha1", "Cluster", "", m.Name)
		cancel()
		switch {
		case apierrors.IsNotFound(err):
			continue
		case err != nil:
			return err
		case c.GetDeletionTimestamp() != nil:
			continue
		}
		conditions, _, err := unstructured.NestedSlice(c.Object, "status", "conditions")
		if err != nil {
			return err
		}
		for _, one := range conditions {
			condition, _ := one.(map[string]any)
			if condition["type"] == "Joined" && condition["reason"] == "Unauthorized" {
				if err := a.Hub.Join(m); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// confirm confirms the restore again if the hub has noticed it only now: the objects that show
// it may be in a cluster that was not joined before.
func (a *attack) confirm() error {
	ctx, cancel := a.short()
	defer cancel()
	o, err := a.admin.Find(ctx, "v1", "ConfigMap", "orrery-cluster", "hub-restore")
	if err != nil {
		return client.IgnoreNotFound(err)
	}
	if state, _, _ := unstructured.NestedString(o.Object, "data", "state"); state != "Suspected" {
		return nil
	}
	if !a.restored {
		return fmt.Errorf("the hub says that it was restored, and it was not: %v", o.Object["data"])
	}
	_, err = a.Hub.Orrery(confirmRestore...)
	return err
}

func pollFor(d time.Duration, check func() error) error {
	for end := time.Now().Add(d); ; time.Sleep(300 * time.Millisecond) {
		if err := check(); err == nil || time.Now().After(end) {
			return err
		}
	}
}

// short returns a context for the requests of a step. It ends soon, because the API server may
// be down.
func (a *attack) short() (context.Context, context.CancelFunc) {
	return context.WithTimeout(a.Context(), 2*time.Second)
}

func (a *attack) namespaces() error {
	var errs []error
	for _, ns := range attackNamespaces {
		errs = append(errs, a.apply("apiVersion: v1\nkind: Namespace\nmetadata: {name: "+ns+"}\n"))
		ctx, cancel := a.short()
		_, err := a.admin.Find(ctx, "policy.orrery.dev/v1alpha1", "PropagationPolicy", ns, "rest")
		cancel()
		if apierrors.IsNotFound(err) {
			errs = append(errs, a.apply(restPolicy(ns, spine.ClusterNames...)+
				spine.Policy(ns, "workloads", selected("apps/v1", "Deployment"), spine.Divided(map[string]int{"oak": 1, "pine": 1, "birch": 1}))))
		}
	}
	return errors.Join(errs...)
}

func (a *attack) apply(manifest string) error {
	ctx, cancel := a.short()
	defer cancel()
	objects, err := testenv.Parse(manifest)
	if err != nil {
		return err
	}
	for _, o := range objects {
		if o.GetKind() == "Deployment" {
			a.scales(ctx, o)
		}
	}
	return a.admin.TryApply(ctx, manifest)
}

// scales records a scale-down before the request is sent.
func (a *attack) scales(ctx context.Context, to *unstructured.Unstructured) {
	now, err := a.admin.Find(ctx, "apps/v1", "Deployment", to.GetNamespace(), to.GetName())
	if err == nil && spine.Replicas(now) <= spine.Replicas(to) {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.scaled[to.GetNamespace()+"/"+to.GetName()] = time.Now()
}

func (a *attack) patch(api *testenv.API, apiVersion, kind, ns, name, patch string) error {
	ctx, cancel := a.short()
	defer cancel()
	o, err := api.Find(ctx, apiVersion, kind, ns, name)
	if err != nil {
		return err
	}
	return api.Patch(ctx, o, client.RawPatch(types.MergePatchType, []byte(patch)))
}

func (a *attack) delete(apiVersion, kind, ns, name string) error {
	ctx, cancel := a.short()
	defer cancel()
	o, err := a.admin.Find(ctx, apiVersion, kind, ns, name)
	if err != nil {
		return err
	}
	a.mu.Lock()
	a.deleted[kind+" "+ns+"/"+name] = time.Now()
	a.mu.Unlock()
	return a.admin.Delete(ctx, o)
}

// membership joins or unjoins a member in the background, because that may take long.
func (a *attack) membership(m *testenv.Member, join bool) {
	busy := a.busy[m.Name]
	if !busy.TryLock() {
		return
	}
	a.begun.Go(func() {
		defer busy.Unlock()
		if join {
			_ = a.Hub.Join(m, "--timeout=15s")
		} else {
			_ = a.Hub.Unjoin(m, "--timeout=15s")
		}
	})
}

func (a *attack) fail(m *testenv.Member, f testenv.Fault) {
	a.mu.Lock()
	a.faults[m.Name] = span{begin: time.Now()}
	a.mu.Unlock()
	m.Fail(f)
}

func (a *attack) heal(m *testenv.Member) {
	m.Heal()
	a.mu.Lock()
	defer a.mu.Unlock()
	if f := a.faults[m.Name]; f.end.IsZero() {
		f.end = time.Now()
		a.faults[m.Name] = f
	}
}

// kill kills a process of the hub and waits until the hub answers again.
func (a *attack) kill(process string) error {
	if err := a.Hub.Signal(process, syscall.SIGKILL); err != nil {
		return err
	}
	return pollFor(30*time.Second, func() error {
		ctx, cancel := a.short()
		defer cancel()
		_, err := a.admin.Find(ctx, "v1", "Namespace", "", "kube-system")
		return err
	})
}

// damage removes or truncates the mirror's files while the hub uses them.
func (a *attack) damage(truncate bool) error {
	files, err := filepath.Glob(filepath.Join(a.Hub.Dir, "mirror", "*.db*"))
	if err != nil {
		return err
	}
	for _, f := range files {
		if !truncate {
			err = errors.Join(err, os.Remove(f))
		} else if strings.HasSuffix(f, ".db") {
			err = errors.Join(err, os.Truncate(f, 4096))
		}
	}
	return err
}

// backUp stores a copy of the hub's etcd.
func (a *attack) backUp() error {
	a.backup = filepath.Join(a.TempDir(), "backup")
	return errors.Join(a.Hub.Stop(), a.Hub.Backup(a.backup), a.Hub.Start())
}

// restore restores the backup, waits a while for wrong deletions of the hub, and confirms the
// restore.
func (a *attack) restore() error {
	for _, m := range spine.Members.List {
		a.heal(m)
	}
	a.begun.Wait()
	if err := a.Hub.Stop(); err != nil {
		return err
	}
	a.mu.Lock()
	a.suspended, a.restored = true, true
	a.mu.Unlock()
	if err := errors.Join(a.Hub.Restore(a.backup), a.Hub.Start()); err != nil {
		return err
	}
	suspected := pollFor(20*time.Second, func() error {
		ctx, cancel := a.short()
		defer cancel()
		_, err := a.admin.Find(ctx, "v1", "ConfigMap", "orrery-cluster", "hub-restore")
		return err
	})
	time.Sleep(3 * time.Second) // time for writes that the hub must not make
	a.mu.Lock()
	a.suspended = false
	// If nothing is suspected, no object in any cluster is newer than the backup, and the hub
	// may go on.
	if suspected == nil {
		a.wrong = append(a.wrong, a.early...)
	}
	a.mu.Unlock()
	_, err := a.Hub.Orrery(confirmRestore...)
	return errors.Join(suspected, err)
}

func named(m *testenv.Member, kind, ns, name string) string {
	return m.Name + " " + kind + " " + ns + "/" + name
}

// foreign creates an object in a member that does not belong to the hub, and records it.
func (a *attack) foreign(m *testenv.Member, manifest string) error {
	ctx, cancel := context.WithTimeout(a.Context(), 20*time.Second)
	defer cancel()
	objects, err := testenv.Parse(manifest)
	if err != nil {
		return err
	}
	o := objects[0]
	// No write may be judged between the creation and the record, such as a deletion of its
	// namespace.
	a.judging.Lock()
	defer a.judging.Unlock()
	a.made++
	attempt := fmt.Sprint(a.made)
	o.SetAnnotations(map[string]string{"attempt": attempt})
	if err := m.Create(ctx, o); err != nil {
		if !spine.Unanswered(err) {
			return err
		}
		// The object may exist although there was no answer. If so, record the existing object.
		ask, end := context.WithTimeout(a.Context(), spine.Patience)
		defer end()
		if waited := wait.PollUntilContextCancel(ask, 100*time.Millisecond, true, func(ctx context.Context) (bool, error) {
			is, found := m.Find(ctx, o.GetAPIVersion(), o.GetKind(), o.GetNamespace(), o.GetName())
			if found == nil {
				o = is
			}
			return found == nil || apierrors.IsNotFound(found), nil
		}); waited != nil || o.GetUID() == "" || o.GetAnnotations()["attempt"] != attempt {
			return errors.Join(err, waited)
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.theirs[named(m, o.GetKind(), o.GetNamespace(), o.GetName())] = unmanagedObject{Object: spine.Object{UID: o.GetUID(), Contents: spine.Contents(o)}, made: time.Now()}
	return nil
}

// drift changes a copy in a member, or deletes it with an empty patch.
func (a *attack) drift(m *testenv.Member, apiVersion, kind, ns, name, patch string) error {
	ctx, cancel := a.short()
	defer cancel()
	o, err := m.Find(ctx, apiVersion, kind, ns, name)
	if err != nil {
		return err
	}
	if o.GetLabels()[workv1alpha2.BindingLabel] == "" {
		return errors.New("it is no copy")
	}
	if kind == "Deployment" {
		// The hub that repairs the drift may take replicas away again.
		a.mu.Lock()
		a.scaled[ns+"/"+name] = time.Now()
		a.mu.Unlock()
	}
	if patch == "" {
		return m.Delete(ctx, o)
	}
	return m.Patch(ctx, o, client.RawPatch(types.MergePatchType, []byte(patch)))
}
