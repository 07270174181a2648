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

// errMoved is returned if the record of a run in the binding is not the one that was planned
// with.
var errMoved = errors.New("the binding says something else by now")

// runs records in bindings which work begins in which cluster, and holds what else this process
// knows of runs. Clusters that begin the work of one binding at the same time share one write.
type runs struct {
	hub      client.Client
	reader   client.Reader // not cached
	bindings *binding.Cache

	mu      sync.Mutex
	older   sets.Set[types.UID]                    // bindings that are older than this process
	latest  map[types.UID]written                  // runs that were written, until the cache has them
	batches map[types.UID]*batch                   // batches that wait to be written
	writing map[types.UID]*sync.Mutex              // held while a batch is written
	ends    map[types.UID]map[string]mirror.Object // last states of copies that are gone
	missing map[types.UID]map[string]types.UID     // copies that are gone, whose end is not known yet
}

// written is the runs of a binding at a resourceVersion.
type written struct {
	version uint64
	runs    []workv1alpha2.Run
}

// beginning is work that begins in a cluster.
type beginning struct {
	cluster  string
	template types.UID
	before   *workv1alpha2.Run // the mark that the plan used
	request  string
	since    string
	copied   mirror.Object // the object that does the work already; without a UID: none
	replaces types.UID     // the copy before, if the mark does not name it
	source   *unstructured.Unstructured
	id       string          // the ID of the cluster; see member.ID
	copies   []mirror.Object // the copies of the binding in all clusters
}

// batch is a set of beginnings that are written together.
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

// of returns the runs of a binding, including those that were just written and are not in the
// cache yet.
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

// started records the bindings that are older than this process.
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

// ended records the last state of a copy that is gone.
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

// observed records that a copy is gone, if its kind ends or its binding has runs. It ignores
// all other events.
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

// lastCopy returns the UID of the last copy of a binding in a cluster that is known to be gone;
// "" if there is none.
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

// begin records in a binding that work begins, and returns the new mark. It returns errMoved if
// the binding has another mark than the plan knew.
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

	writing.Lock() // calls that come while this one waits join its batch
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

// refuse records in a binding that a cluster did not accept a copy.
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

// write changes the runs of a binding on the hub. It reads the binding again after a conflict.
// change returns false if there is nothing to write.
func (r *runs) write(ctx context.Context, b *workv1alpha2.ResourceBinding, change func(*workv1alpha2.ResourceBinding) bool) error {
	live := b
	if cached, ok := r.bindings.Get(binding.Name(b)); ok {
		live = cached
	}
	if version(live.ResourceVersion) < r.version(b.UID) {
		live = nil // the cache is older than the last write
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

// wrote remembers the runs of a binding until the cache has them.
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

// mark returns the new mark of a binding for work that begins. It is nil if the binding has
// another mark than the plan knew, or another cluster has an unknown number of completions.
func (n *beginning) mark(b *workv1alpha2.ResourceBinding) *workv1alpha2.Run {
	old := binding.RunIn(b.Status.Runs, n.template, n.cluster)
	if (old == nil) != (n.before == nil) || old != nil && (old.Phase != n.before.Phase || markKey(old) != markKey(n.before)) {
		return nil
	}
	share := n.share(b)
	// The work runs already, and the request is for that run.
	if n.copied.UID != "" && old != nil && binding.RunsThere(old, n.id) {
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
