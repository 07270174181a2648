package spine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/controller-runtime/pkg/client"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/testenv"
)

// What the attack allows.
const (
	attackSteps = 200
	attackSeeds = 3
	// converging is how long the fleet may take to be as the hub wants it once nothing harms it.
	converging = 2 * time.Minute
	// memory is for how long a decision may have been on its way when it is carried out.
	memory = 5 * time.Second
	// scaling is for how long after a user's scale-down replicas are not held to the release
	// rule, for that is no move.
	scaling = 30 * time.Second
)

// number reads a number from the environment.
func number(t *testing.T, variable string, otherwise int) int {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("%s=%s: want a number", variable, text)
	}
	return n
}

// TestRandom does STEPS things chosen by a seed, for SEEDS seeds from SEED on, and holds every
// write in a member to the invariants. At the end hub and members are compared object by object.
func TestRandom(t *testing.T) {
	first, count, n := number(t, "SEED", 1), number(t, "SEEDS", attackSeeds), number(t, "STEPS", attackSteps)
	for seed := first; seed < first+count; seed++ {
		t.Run(fmt.Sprintf("Seed%d", seed), func(t *testing.T) {
			a := newAttack(t)
			defer func() {
				if t.Failed() {
					t.Logf("again with: SEED=%d SEEDS=1 STEPS=%d go test -count 1 -run TestRandom ./test/spine\n%s", seed, n, strings.Join(a.did, "\n"))
				}
			}()
			a.run(steps(uint64(seed), n))
		})
	}
}

// attack is one run.
type attack struct {
	*world
	admin   *testenv.API // of the hub, while its server comes and goes
	history *history
	busy    map[string]*sync.Mutex // who joins or unjoins a member
	begun   sync.WaitGroup
	did     []string // the steps, and how they ended

	judging sync.Mutex // one write at a time is judged
	pending map[string]intended
	backup  string // directory

	mu      sync.Mutex
	deleted map[string]time.Time // KIND NAMESPACE/NAME of templates, by us
	scaled  map[string]time.Time // NAMESPACE/NAME of Deployments, down, by us
	theirs  map[string]stranger  // MEMBER KIND NAMESPACE/NAME of foreign objects
	faults  map[string]span
	wrong   []string
	// suspended is true from the restore of a backup to its confirmation; restored ever after.
	suspended, restored bool
}

// intended is the number of replicas that a write, which may be on its way still, sets.
type intended struct {
	at       time.Time
	replicas int64
}

// stranger is an object that no hub may touch.
type stranger struct {
	thing
	made time.Time
}

// span of a fault; the end is zero while it lasts.
type span struct{ begin, end time.Time }

func newAttack(t *testing.T) *attack {
	t.Helper()
	w := alone(t, attackNamespaces[0])
	w.others = attackNamespaces[1:]
	cfg, err := w.hub.Config()
	if err != nil {
		t.Fatal(err)
	}
	d, err := dynamic.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	a := &attack{
		world: w, history: &history{resource: d.Resource(bindingResource), bindings: map[types.UID]*past{}},
		busy: map[string]*sync.Mutex{}, pending: map[string]intended{},
		deleted: map[string]time.Time{}, scaled: map[string]time.Time{}, theirs: map[string]stranger{}, faults: map[string]span{},
	}
	if a.admin, err = testenv.NewAPI(cfg); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	followed := make(chan struct{})
	go func() { a.history.follow(ctx); close(followed) }()
	t.Cleanup(func() { cancel(); <-followed })
	for _, m := range members.List {
		a.busy[m.Name] = &sync.Mutex{}
		m.OnWrite(func(r testenv.Write) { a.judge(m, r) })
	}
	t.Cleanup(func() {
		if t.Failed() {
			a.explain()
		}
		a.hub.Kill()
		for _, ns := range attackNamespaces {
			for _, m := range members.List {
				_ = m.Delete(context.Background(), namespaceObject(ns))
			}
		}
		for _, ns := range attackNamespaces {
			for _, m := range members.List {
				testenv.Eventually(t, "namespace "+ns+" is gone from "+m.Name, patience, func() error {
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

// run does the steps, mends everything and compares.
func (a *attack) run(all []step) {
	begin := time.Now()
	for _, m := range members.List {
		m.Apply(a, "apiVersion: v1\nkind: Namespace\nmetadata: {name: "+existing+"}\n")
		for _, name := range []string{"c0", "c1"} {
			a.must(a.foreign(m, configMap(existing, name, "theirs")))
		}
	}
	a.must(a.namespaces())
	for i, s := range all {
		at := time.Since(begin)
		err := s.do(a)
		line := fmt.Sprintf("%3d %6.2fs %s", i, at.Seconds(), s.what)
		if err != nil {
			line += ": " + strings.SplitN(err.Error(), "\n", 2)[0]
		}
		a.did = append(a.did, line)
	}
	for _, m := range members.List {
		a.heal(m)
	}
	a.begun.Wait()
	if !a.hub.Running() {
		a.restart()
	}
	ended := time.Since(begin)
	a.converge("as the steps left the fleet")
	// Whoever is out of the fleet comes back: what it kept is the hub's again.
	for _, m := range members.List {
		if !a.hub.Joined(a, m) {
			a.must(a.hub.Join(m))
		}
	}
	a.converge("with every cluster joined")
	a.Logf("steps took %.1fs, all of it %.1fs", ended.Seconds(), time.Since(begin).Seconds())
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, w := range a.wrong {
		a.Error(w)
	}
}

// converge waits until hub and members agree, and goes on agreeing.
func (a *attack) converge(when string) {
	a.Helper()
	differ := pollFor(converging, func() error { return errors.Join(a.confirm(), a.compare()) })
	if differ == nil {
		a.quiet(2 * time.Second)
		differ = a.compare() // nothing was still on its way
	}
	if differ != nil {
		a.Errorf("hub and members differ, %s:\n%v", when, differ)
	}
}

// confirm says once more that the hub was restored, if it has found that out only now: what
// shows it may be in a cluster that was not in the fleet before.
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
		return errorf("the hub says that it was restored, and it was not: %v", o.Object["data"])
	}
	_, err = a.hub.Orrery(confirmRestore...)
	return err
}

func pollFor(d time.Duration, check func() error) error {
	for end := time.Now().Add(d); ; time.Sleep(300 * time.Millisecond) {
		if err := check(); err == nil || time.Now().After(end) {
			return err
		}
	}
}

// short bounds what a step asks, for what it asks may be down.
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
			errs = append(errs, a.apply(restPolicy(ns, clusterNames...)+
				policy(ns, "workloads", selected("apps/v1", "Deployment"), divided(map[string]int{"oak": 1, "pine": 1, "birch": 1}))))
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

// scales notes a scale-down before it is made.
func (a *attack) scales(ctx context.Context, to *unstructured.Unstructured) {
	now, err := a.admin.Find(ctx, "apps/v1", "Deployment", to.GetNamespace(), to.GetName())
	if err == nil && replicas(now) <= replicas(to) {
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

// membership joins or unjoins a member in the background, for it may take long.
func (a *attack) membership(m *testenv.Member, join bool) {
	busy := a.busy[m.Name]
	if !busy.TryLock() {
		return
	}
	a.begun.Go(func() {
		defer busy.Unlock()
		if join {
			_ = a.hub.Join(m, "--timeout=15s")
		} else {
			_ = a.hub.Unjoin(m, "--timeout=15s")
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

// kill ends a process of the hub and waits until the hub answers again.
func (a *attack) kill(process string) error {
	if err := a.hub.Signal(process, syscall.SIGKILL); err != nil {
		return err
	}
	return pollFor(30*time.Second, func() error {
		ctx, cancel := a.short()
		defer cancel()
		_, err := a.admin.Find(ctx, "v1", "Namespace", "", "kube-system")
		return err
	})
}

// damage removes or truncates the mirror's files while they are used.
func (a *attack) damage(truncate bool) error {
	files, err := filepath.Glob(filepath.Join(a.hub.Dir, "mirror", "*.db*"))
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

// backUp copies the hub's etcd away.
func (a *attack) backUp() error {
	a.backup = filepath.Join(a.TempDir(), "backup")
	return errors.Join(a.hub.Stop(), a.hub.Backup(a.backup), a.hub.Start())
}

// restore puts the backup back, looks for a while at what the hub does of itself, and confirms.
func (a *attack) restore() error {
	for _, m := range members.List {
		a.heal(m)
	}
	a.begun.Wait()
	if err := a.hub.Stop(); err != nil {
		return err
	}
	a.mu.Lock()
	a.suspended, a.restored = true, true
	a.mu.Unlock()
	if err := errors.Join(a.hub.Restore(a.backup), a.hub.Start()); err != nil {
		return err
	}
	suspected := pollFor(20*time.Second, func() error {
		ctx, cancel := a.short()
		defer cancel()
		_, err := a.admin.Find(ctx, "v1", "ConfigMap", "orrery-cluster", "hub-restore")
		return err
	})
	time.Sleep(3 * time.Second) // for whatever the hub would do
	a.mu.Lock()
	a.suspended = false
	for _, ns := range attackNamespaces {
		for i := range 4 { // what goes now is no move
			a.scaled[fmt.Sprintf("%s/d%d", ns, i)] = time.Now()
		}
	}
	a.mu.Unlock()
	_, err := a.hub.Orrery(confirmRestore...)
	return errors.Join(suspected, err)
}

func named(m *testenv.Member, kind, ns, name string) string {
	return m.Name + " " + kind + " " + ns + "/" + name
}

// foreign makes an object in a member that is not the hub's.
func (a *attack) foreign(m *testenv.Member, manifest string) error {
	ctx, cancel := context.WithTimeout(a.Context(), 20*time.Second)
	defer cancel()
	objects, err := testenv.Parse(manifest)
	if err != nil {
		return err
	}
	o := objects[0]
	// Nobody may delete its namespace between the creation and our note of it.
	a.judging.Lock()
	defer a.judging.Unlock()
	if err := m.Create(ctx, o); err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.theirs[named(m, o.GetKind(), o.GetNamespace(), o.GetName())] = stranger{thing: thing{UID: o.GetUID(), Contents: contents(o)}, made: time.Now()}
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
		// Whoever repairs it may take replicas away again.
		a.mu.Lock()
		a.scaled[ns+"/"+name] = time.Now()
		a.mu.Unlock()
	}
	if patch == "" {
		return m.Delete(ctx, o)
	}
	return m.Patch(ctx, o, client.RawPatch(types.MergePatchType, []byte(patch)))
}

// since is from when on a decision may be that is carried out now in a member: hung requests are
// performed when the member answers again.
func (a *attack) since(m *testenv.Member) time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	at := time.Now().Add(-memory)
	if f, ok := a.faults[m.Name]; ok && (f.end.IsZero() || f.end.After(at)) {
		return f.begin.Add(-memory)
	}
	return at
}

// judge looks at a write before it is passed on.
func (a *attack) judge(m *testenv.Member, r testenv.Write) {
	ns := cmp.Or(r.Namespace, r.Name)
	if !slices.Contains(attackNamespaces, ns) || r.DryRun || r.Impersonated != "" {
		return
	}
	a.judging.Lock()
	defer a.judging.Unlock()
	why := a.fault(m, r)
	if why == "" {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.wrong = append(a.wrong, fmt.Sprintf("%s: %s: %s", m.Name, r, why))
}

// fault says what is wrong with a write; "" when nothing is.
func (a *attack) fault(m *testenv.Member, r testenv.Write) string {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	a.mu.Lock()
	suspended := a.suspended
	a.mu.Unlock()
	if suspended && r.Verb == "delete" {
		return "the hub was restored, and nobody has confirmed it"
	}
	if r.Resource == "namespaces" {
		return a.namespaceFault(ctx, m, r)
	}
	k := kindOf(r.Resource)
	if k.kind == "" {
		return "nobody asked for it"
	}
	o, err := m.Find(ctx, k.apiVersion, k.kind, r.Namespace, r.Name)
	if err != nil {
		return "" // it creates something
	}
	a.mu.Lock()
	foreign, isForeign := a.theirs[named(m, k.kind, r.Namespace, r.Name)]
	a.mu.Unlock()
	if isForeign && foreign.UID == o.GetUID() && (r.Verb == "delete" || r.Force) {
		return "the object is not the hub's"
	}
	if uid := r.UID(); uid != "" && uid != o.GetUID() {
		return "" // it will be refused
	}
	copied := types.UID(o.GetLabels()[workv1alpha2.BindingLabel])
	if r.Verb == "delete" {
		if why := a.deletionFault(ctx, m, r, o, copied); why != "" {
			return why
		}
	}
	if k.kind == "Deployment" {
		return a.releaseFault(ctx, m, r, o, copied)
	}
	return ""
}

// namespaceFault: a namespace goes only with the hub's own, and with nothing foreign in it.
func (a *attack) namespaceFault(ctx context.Context, m *testenv.Member, r testenv.Write) string {
	if r.Verb != "delete" {
		return ""
	}
	a.mu.Lock()
	_, deleted := a.deleted["Namespace /"+r.Name]
	var inIt []string
	for name, s := range a.theirs {
		if member, rest, _ := strings.Cut(name, " "); member == m.Name && contains(rest, " "+r.Name+"/") && time.Since(s.made) > time.Second {
			inIt = append(inIt, rest)
		}
	}
	a.mu.Unlock()
	if !deleted {
		return "nobody deleted the hub's namespace"
	}
	for _, foreign := range inIt {
		kind, name, _ := strings.Cut(foreign, " ")
		i := slices.IndexFunc(kinds, func(k kindName) bool { return k.kind == kind })
		if _, err := m.Find(ctx, kinds[i].apiVersion, kind, r.Name, name[strings.Index(name, "/")+1:]); err == nil {
			return "in it is " + foreign
		}
	}
	return ""
}

// deletionFault: a copy of this join goes when its template was deleted, or was placed elsewhere.
func (a *attack) deletionFault(ctx context.Context, m *testenv.Member, r testenv.Write, o *unstructured.Unstructured, binding types.UID) string {
	if binding == "" {
		return "the object has no mark of a binding"
	}
	at := a.since(m)
	if c, err := a.admin.Find(ctx, "cluster.orrery.dev/v1alpha1", "Cluster", "", m.Name); err == nil && at.Add(2*memory).After(time.Now()) && ofAnotherJoin(o, c.GetUID()) {
		return "the object is of an earlier join"
	}
	_, err := a.history.list(ctx)
	p := a.history.since(binding, at)
	switch {
	case p == nil && err == nil:
		return "there never was its binding " + string(binding)
	case p == nil:
		return "" // nobody can say now
	case p.deleting:
		a.mu.Lock()
		defer a.mu.Unlock()
		_, one := a.deleted[o.GetKind()+" "+r.Namespace+"/"+r.Name]
		_, all := a.deleted["Namespace /"+r.Namespace]
		if !one && !all {
			return "nobody deleted its template, and its binding is gone"
		}
		return ""
	case err != nil:
		return "" // the binding may say what nobody can read now
	}
	for _, s := range p.said {
		if _, named := s.clusters[m.Name]; !named {
			return ""
		}
	}
	return "its binding names the cluster"
}

// releaseFault: replicas go only when as many are available as are wanted, or were available.
func (a *attack) releaseFault(ctx context.Context, m *testenv.Member, r testenv.Write, now *unstructured.Unstructured, binding types.UID) string {
	n, ok := r.Replicas()
	if r.Verb == "delete" {
		n, ok = 0, true
	}
	if !ok {
		return ""
	}
	key := r.Namespace + "/" + r.Name
	before := replicas(now)
	if p, ok := a.pending[m.Name+" "+key]; ok && time.Since(p.at) < 2*time.Second {
		before = min(before, p.replicas)
	}
	a.pending[m.Name+" "+key] = intended{time.Now(), n}
	if n >= before {
		return ""
	}
	a.mu.Lock()
	down := time.Since(a.scaled[key]) < scaling
	a.mu.Unlock()
	p := a.history.since(binding, a.since(m))
	if down || p == nil || p.deleting {
		return ""
	}
	wanted := int64(-1)
	for _, s := range p.said {
		sum := int64(0)
		for _, n := range s.clusters {
			sum += n
		}
		if wanted < 0 || sum < wanted {
			wanted = sum
		}
	}
	var available, left int64
	for _, other := range members.List {
		d, err := other.Find(ctx, "apps/v1", "Deployment", r.Namespace, r.Name)
		if err != nil {
			continue
		}
		can := min(availableReplicas(d), replicas(d))
		if p, ok := a.pending[other.Name+" "+key]; ok && time.Since(p.at) < 2*time.Second && other != m {
			can = min(can, p.replicas)
		}
		if other == m {
			available += min(can, before)
			left += min(can, n)
		} else {
			available += can
			left += can
		}
	}
	if left < min(wanted, available) {
		return fmt.Sprintf("it leaves %d available replicas of %d, and %d are wanted", left, available, wanted)
	}
	return ""
}

// compare says what differs between the hub and its members.
func (a *attack) compare() error {
	ctx, cancel := context.WithTimeout(a.Context(), 20*time.Second)
	defer cancel()
	joined := map[string]types.UID{}
	clusters, err := a.admin.ListKind(ctx, "cluster.orrery.dev/v1alpha1", "Cluster", "")
	if err != nil {
		return err
	}
	var errs []error
	for _, c := range clusters {
		joined[c.GetName()] = c.GetUID()
		if has := conditions(&c); !contains(has, "Ready=True/") {
			errs = append(errs, errorf("cluster %s: %s", c.GetName(), has))
		}
	}
	for _, ns := range attackNamespaces {
		errs = append(errs, a.compareNamespace(ctx, ns, joined))
	}
	return errors.Join(errs...)
}

func (a *attack) compareNamespace(ctx context.Context, ns string, joined map[string]types.UID) error {
	var errs []error
	differs := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }

	bindings, err := a.admin.ListKind(ctx, "work.orrery.dev/v1alpha2", "ResourceBinding", ns)
	if err != nil {
		return err
	}
	byUID, byTemplate := map[types.UID]*unstructured.Unstructured{}, map[string]*unstructured.Unstructured{}
	for i := range bindings {
		b := &bindings[i]
		kind, _, _ := unstructured.NestedString(b.Object, "spec", "resource", "kind")
		name, _, _ := unstructured.NestedString(b.Object, "spec", "resource", "name")
		byUID[b.GetUID()], byTemplate[kind+"/"+name] = b, b
	}
	policies := map[string][]string{} // the clusters of each that are joined
	for _, name := range []string{"rest", "workloads"} {
		p, err := a.admin.Find(ctx, "policy.orrery.dev/v1alpha1", "PropagationPolicy", ns, name)
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return err
		}
		names, _, _ := unstructured.NestedStringSlice(p.Object, "spec", "placement", "clusterAffinity", "clusterNames")
		policies[name] = slices.DeleteFunc(names, func(n string) bool { return joined[n] == "" })
		slices.Sort(policies[name])
	}
	where, value := a.override(ctx, ns)

	has := map[string]map[string]*unstructured.Unstructured{} // by member, then KIND/NAME
	for _, m := range members.List {
		has[m.Name] = map[string]*unstructured.Unstructured{}
		for _, k := range kinds {
			list, err := m.ListKind(ctx, k.apiVersion, k.kind, ns)
			if err != nil {
				return err
			}
			for i := range list {
				if !builtIn(&list[i]) {
					has[m.Name][k.kind+"/"+list[i].GetName()] = &list[i]
				}
			}
		}
	}

	// Every wanted copy is there, as rendered.
	templates := 0
	for _, k := range kinds {
		list, err := a.admin.ListKind(ctx, k.apiVersion, k.kind, ns)
		if err != nil {
			return err
		}
		for i := range list {
			t := &list[i]
			if t.GetLabels()["attack"] == "" {
				continue
			}
			templates++
			key := k.kind + "/" + t.GetName()
			b := byTemplate[key]
			if b == nil {
				differs("%s/%s has no binding", ns, key)
				continue
			}
			if uid, _, _ := unstructured.NestedString(b.Object, "spec", "resource", "uid"); uid != string(t.GetUID()) {
				differs("the binding of %s/%s is of another object of the name", ns, key)
			}
			targets := clustersOf(b)
			wanted, policy := policies["rest"], "rest"
			if k.kind == "Deployment" {
				wanted, policy = policies["workloads"], "workloads"
			}
			if names := slices.Sorted(maps.Keys(targets)); len(wanted) > 0 && !slices.Equal(names, wanted) &&
				(k.kind != "Deployment" || slices.ContainsFunc(names, func(n string) bool { return !slices.Contains(wanted, n) })) {
				differs("%s/%s is bound to %v, and policy %s names %v", ns, key, names, policy, wanted)
			}
			sum := int64(0)
			for cluster, n := range targets {
				sum += n
				o := has[cluster][key]
				if s, ok := a.stranger(cluster+" "+k.kind+" "+ns+"/"+t.GetName(), o); ok {
					_ = s
					continue // a conflict
				}
				switch {
				case joined[cluster] == "":
					differs("%s/%s is bound to %s, which is not joined", ns, key, cluster)
				case o == nil:
					differs("%s/%s is missing in %s", ns, key, cluster)
				case o.GetLabels()[workv1alpha2.BindingLabel] != string(b.GetUID()):
					differs("%s/%s in %s has the mark %q, want %s", ns, key, cluster, o.GetLabels()[workv1alpha2.BindingLabel], b.GetUID())
				default:
					if diff := unlike(t, o, n, cluster == where, value); diff != "" {
						differs("%s/%s in %s: %s", ns, key, cluster, diff)
					}
				}
			}
			if want := replicas(t); k.kind == "Deployment" && len(targets) > 0 && sum != want {
				differs("%s/%s: %d replicas are bound, want %d", ns, key, sum, want)
			}
		}
	}

	// Nothing else of ours is there, and all of theirs.
	for _, m := range members.List {
		for key, o := range has[m.Name] {
			kind, name, _ := strings.Cut(key, "/")
			if _, ok := a.stranger(m.Name+" "+kind+" "+ns+"/"+name, o); ok {
				if o.GetLabels()[workv1alpha2.BindingLabel] != "" {
					differs("%s: foreign %s/%s has our mark", m.Name, ns, key)
				}
				continue
			}
			label := types.UID(o.GetLabels()[workv1alpha2.BindingLabel])
			if b := byUID[label]; b != nil {
				if _, named := clustersOf(b)[m.Name]; named || ofAnotherJoin(o, joined[m.Name]) {
					continue
				}
				differs("%s: %s/%s is left, and its binding does not name the cluster", m.Name, ns, key)
				continue
			}
			// A restored hub does not know what it placed since its backup.
			if o.GetAnnotations()[workv1alpha2.OrphanAnnotation] != "" || a.restored && label != "" || label != "" && ofAnotherJoin(o, joined[m.Name]) {
				continue
			}
			differs("%s: %s/%s is nobody's: labels %v, annotations %v", m.Name, ns, key, o.GetLabels(), o.GetAnnotations())
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for name, s := range a.theirs {
		member, rest, _ := strings.Cut(name, " ")
		kind, path, _ := strings.Cut(rest, " ")
		object, in := strings.CutPrefix(path, ns+"/")
		if !in {
			continue
		}
		o := has[member][kind+"/"+object]
		switch {
		case o == nil:
			differs("%s: foreign %s is gone", member, rest)
		case o.GetUID() != s.UID:
			differs("%s: foreign %s was replaced", member, rest)
		case fmt.Sprint(withoutVolatile(contents(o))) != fmt.Sprint(withoutVolatile(s.Contents)):
			differs("%s: foreign %s was changed from %v to %v", member, rest, s.Contents, contents(o))
		}
	}
	return errors.Join(errs...)
}

// withoutVolatile drops what a claim's own controllers set.
func withoutVolatile(c any) any {
	m, _ := c.(map[string]any)
	if m["kind"] == "PersistentVolumeClaim" {
		return m["kind"]
	}
	return c
}

// stranger is what was made in a member under a name, if the object is that.
func (a *attack) stranger(name string, o *unstructured.Unstructured) (stranger, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	s, ok := a.theirs[name]
	return s, ok && o != nil && o.GetUID() == s.UID
}

// ofAnotherJoin is true for a copy of a cluster that was not joined as it is now: what carries
// the UID of another Cluster object in its source.
func ofAnotherJoin(o *unstructured.Unstructured, cluster types.UID) bool {
	if cluster == "" {
		return true // left in a cluster that is not in the fleet
	}
	source := o.GetAnnotations()[workv1alpha2.SourceAnnotation]
	return source != "" && !contains(source, string(cluster))
}

// override reads what the override of a namespace says now.
func (a *attack) override(ctx context.Context, ns string) (cluster, value string) {
	o, err := a.admin.Find(ctx, "policy.orrery.dev/v1alpha1", "OverridePolicy", ns, "where")
	if err != nil {
		return "", ""
	}
	rules, _, _ := unstructured.NestedSlice(o.Object, "spec", "overrideRules")
	rule, _ := rules[0].(map[string]any)
	names, _, _ := unstructured.NestedStringSlice(rule, "targetCluster", "clusterNames")
	text, _, _ := unstructured.NestedSlice(rule, "overriders", "plaintext")
	first, _ := text[0].(map[string]any)
	value, _ = first["value"].(string)
	return names[0], value
}

// unlike says how a copy differs from its template as it is rendered for a cluster.
func unlike(template, o *unstructured.Unstructured, share int64, overridden bool, value string) string {
	switch template.GetKind() {
	case "Deployment":
		if n := replicas(o); n != share {
			return fmt.Sprintf("%d replicas, want %d", n, share)
		}
		const path = "spec template metadata annotations edit"
		was, _, _ := unstructured.NestedString(template.Object, strings.Fields(path)...)
		if is, _, _ := unstructured.NestedString(o.Object, strings.Fields(path)...); is != was {
			return fmt.Sprintf("edit %q, want %q", is, was)
		}
	case "ConfigMap", "Secret":
		want, _, _ := unstructured.NestedStringMap(template.Object, "data")
		if overridden && template.GetKind() == "ConfigMap" {
			want["where"] = value
		}
		if got, _, _ := unstructured.NestedStringMap(o.Object, "data"); !maps.Equal(want, got) {
			return fmt.Sprintf("data %v, want %v", got, want)
		}
	}
	return ""
}

// kindOf is the kind of a resource that tests compare.
func kindOf(resource string) kindName {
	for _, k := range kinds {
		plural := strings.ToLower(k.kind) + "s"
		if plural == resource {
			return k
		}
	}
	return kindName{}
}
