package apply

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/binding"
	"orrery.dev/orrery/internal/interpreter"
	"orrery.dev/orrery/internal/mirror"
)

// errMoved is returned when a binding says something else of a run than what was planned on.
var errMoved = errors.New("the binding says something else by now")

// runs writes into bindings which work begins where, and holds what this process knows of runs beside that. Several clusters that begin the work
// of one binding at the same time share a write.
type runs struct {
	hub      client.Client
	reader   client.Reader // not cached
	bindings *binding.Cache

	mu      sync.Mutex
	older   sets.Set[types.UID]                    // bindings that were there before this process
	latest  map[types.UID]written                  // until the cache knows it
	batches map[types.UID]*batch                   // that wait to be written
	writing map[types.UID]*sync.Mutex              // held by who writes
	ends    map[types.UID]map[string]mirror.Object // copies that are gone, as they were in the end
	missing map[types.UID]map[string]types.UID     // copies that are gone, of which it is not known yet how they ended
}

// written is what a binding said of its runs at a resourceVersion.
type written struct {
	version uint64
	runs    []workv1alpha2.Run
}

// beginning is work that begins in a cluster.
type beginning struct {
	cluster  string
	template types.UID
	before   *workv1alpha2.Run // that the plan knew
	request  string
	since    string
	copied   mirror.Object // that does the work already; without a UID: none
	replaces types.UID     // the copy before, where the mark does not say which it was
	source   *unstructured.Unstructured
	id       string          // of the cluster; see member.ID
	copies   []mirror.Object // of the binding in all clusters
}

// batch is what is written in one go.
type batch struct {
	once   sync.Once
	begins []beginning
	marks  map[string]*workv1alpha2.Run
	err    error
}

func newRuns(hub client.Client, reader client.Reader, bindings *binding.Cache) *runs {
	return &runs{
		hub: hub, reader: reader, bindings: bindings, older: sets.Set[types.UID]{}, latest: map[types.UID]written{},
		batches: map[types.UID]*batch{}, writing: map[types.UID]*sync.Mutex{}, ends: map[types.UID]map[string]mirror.Object{},
		missing: map[types.UID]map[string]types.UID{},
	}
}

// of are the runs of a binding, as far as they are known: those that were just written may not have reached the cache yet.
func (r *runs) of(b *workv1alpha2.ResourceBinding) []workv1alpha2.Run {
	r.mu.Lock()
	defer r.mu.Unlock()
	w, ok := r.latest[b.UID]
	if !ok {
		return b.Status.Runs
	}
	if version(b.ResourceVersion) >= w.version {
		delete(r.latest, b.UID)
		return b.Status.Runs
	}
	return w.runs
}

// started takes note of the bindings that were there before this process.
func (r *runs) started() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, b := range r.bindings.All() {
		r.older.Insert(b.UID)
	}
}

func (r *runs) isOlder(uid types.UID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.older.Has(uid)
}

// ended takes note of a copy that is gone.
func (r *runs) ended(b types.UID, cluster string, o mirror.Object) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ends[b] == nil {
		r.ends[b] = map[string]mirror.Object{}
	}
	r.ends[b][cluster] = o
	if r.missing[b][cluster] == o.UID {
		delete(r.missing[b], cluster)
	}
}

// observed takes note of a copy that is gone, of a kind that ends.
func (r *runs) observed(e mirror.Event) {
	if e.Type != mirror.Deleted || e.Binding == "" || r.bindings.Synced() && !r.knows(e.Binding) {
		return
	}
	if e.Final != nil {
		r.ended(e.Binding, e.Cluster, *e.Final)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.missing[e.Binding] == nil {
		r.missing[e.Binding] = map[string]types.UID{}
	}
	r.missing[e.Binding][e.Cluster] = e.UID
}

// lastCopy returns the copy of a binding in a cluster that is known to be gone; "" for none.
func (r *runs) lastCopy(b types.UID, cluster string) types.UID {
	r.mu.Lock()
	defer r.mu.Unlock()
	if uid, ok := r.missing[b][cluster]; ok {
		return uid
	}
	return r.ends[b][cluster].UID
}

func (r *runs) knows(uid types.UID) bool {
	b, ok := r.bindings.ByUID(uid)
	return ok && (interpreter.Ends(binding.Kind(b).GroupKind()) || len(b.Status.Runs) > 0)
}

func (r *runs) end(b types.UID, cluster string) (mirror.Object, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	o, ok := r.ends[b][cluster]
	return o, ok
}

func (r *runs) forget(b types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.older.Delete(b)
	delete(r.latest, b)
	delete(r.ends, b)
	delete(r.missing, b)
	delete(r.writing, b)
}

// begin has a binding say that work begins, and returns what it says then.
func (r *runs) begin(ctx context.Context, b *workv1alpha2.ResourceBinding, begins beginning) (*workv1alpha2.Run, error) {
	r.mu.Lock()
	w := r.batches[b.UID]
	if w == nil {
		w = &batch{}
		r.batches[b.UID] = w
	}
	w.begins = append(w.begins, begins)
	if r.writing[b.UID] == nil {
		r.writing[b.UID] = &sync.Mutex{}
	}
	writing := r.writing[b.UID]
	r.mu.Unlock()

	writing.Lock() // who comes meanwhile joins the batch
	defer writing.Unlock()
	w.once.Do(func() {
		r.mu.Lock()
		delete(r.batches, b.UID)
		r.mu.Unlock()
		w.err = r.write(ctx, b, func(live *workv1alpha2.ResourceBinding) bool {
			w.marks = map[string]*workv1alpha2.Run{}
			for _, begins := range w.begins {
				if mark := begins.mark(live); mark != nil {
					w.marks[begins.cluster] = mark
					live.Status.Runs = binding.SetRun(live.Status.Runs, *mark)
				}
			}
			return len(w.marks) > 0
		})
	})
	switch mark := w.marks[begins.cluster]; {
	case w.err != nil:
		return nil, w.err
	case mark == nil:
		return nil, errMoved
	default:
		if begins.copied.UID == "" {
			r.mu.Lock()
			delete(r.ends[b.UID], begins.cluster)
			delete(r.missing[b.UID], begins.cluster)
			r.mu.Unlock()
		}
		return mark, nil
	}
}

// refuse has a binding say that a cluster did not take what was begun.
func (r *runs) refuse(ctx context.Context, b *workv1alpha2.ResourceBinding, mark *workv1alpha2.Run) error {
	return r.write(ctx, b, func(live *workv1alpha2.ResourceBinding) bool {
		now := binding.RunIn(live.Status.Runs, mark.TemplateUID, mark.ClusterName)
		if now == nil || markKey(now) != markKey(mark) || now.Phase != workv1alpha2.RunBegan || now.CopyUID != "" {
			return false
		}
		refused := *now
		refused.Phase = workv1alpha2.RunRefused
		live.Status.Runs = binding.SetRun(live.Status.Runs, refused)
		return true
	})
}

// write changes the runs of a binding as it is on the hub. change says whether there is anything to write.
func (r *runs) write(ctx context.Context, b *workv1alpha2.ResourceBinding, change func(*workv1alpha2.ResourceBinding) bool) error {
	live := b
	if cached, ok := r.bindings.Get(binding.Name(b)); ok {
		live = cached
	}
	if version(live.ResourceVersion) < r.version(b.UID) {
		live = nil // the cache is behind what was just written
	}
	for {
		if live == nil {
			read := binding.Object(&workv1alpha2.ResourceBinding{ObjectMeta: metav1.ObjectMeta{Namespace: b.Namespace, Name: b.Name}})
			if err := r.reader.Get(ctx, client.ObjectKeyFromObject(read), read); err != nil {
				return fmt.Errorf("get binding: %w", err)
			}
			live = binding.Of(read)
		}
		if live.UID != b.UID || !live.DeletionTimestamp.IsZero() {
			return errMoved
		}
		updated := live.DeepCopy()
		if !change(updated) {
			r.wrote(live)
			return nil
		}
		o := binding.Object(updated)
		before := client.MergeFromWithOptions(binding.Object(live.DeepCopy()), client.MergeFromWithOptimisticLock{})
		err := r.hub.Status().Patch(ctx, o, before)
		switch {
		case apierrors.IsConflict(err):
			live = nil
			continue
		case err != nil:
			return fmt.Errorf("update status: %w", err)
		}
		r.wrote(binding.Of(o))
		return nil
	}
}

// wrote takes note of what a binding says, until the cache knows it.
func (r *runs) wrote(b *workv1alpha2.ResourceBinding) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if v := version(b.ResourceVersion); v > r.latest[b.UID].version {
		r.latest[b.UID] = written{v, slices.Clone(b.Status.Runs)}
	}
}

func (r *runs) version(uid types.UID) uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.latest[uid].version
}

// mark is what a binding is to say of work that begins; nil: the plan did not know what the binding says by now.
func (n *beginning) mark(b *workv1alpha2.ResourceBinding) *workv1alpha2.Run {
	old := binding.RunIn(b.Status.Runs, n.template, n.cluster)
	if (old == nil) != (n.before == nil) || old != nil && (old.Phase != n.before.Phase || markKey(old) != markKey(n.before)) {
		return nil
	}
	share := n.share(b)
	if n.copied.UID != "" && old != nil && binding.RunsThere(old, n.id) { // it runs already, and the request is for that
		mark := *old
		mark.Rerun = n.request
		if share != nil && mark.Completions == nil {
			mark.Completions = n.copied.Completions
		}
		return &mark
	}
	mark := workv1alpha2.Run{
		ClusterName: n.cluster, TemplateUID: n.template, Phase: workv1alpha2.RunBegan, CopyUID: n.copied.UID, Since: n.since,
		ReplacedUID: n.replaces, ClusterID: n.id, Rerun: n.request, Time: metav1.NewTime(time.Now().Truncate(time.Second)),
	}
	if old != nil && mark.ReplacedUID == "" {
		mark.ReplacedUID = old.CopyUID
	}
	if n.copied.Ended != "" {
		mark.Phase = n.copied.Ended
	}
	switch {
	case share == nil:
	case n.copied.UID != "":
		mark.Completions, mark.SucceededBefore = n.copied.Completions, share.before
	case share.unknown != "":
		return nil
	default:
		mark.Completions, mark.SucceededBefore = &share.left, share.before
	}
	return &mark
}
