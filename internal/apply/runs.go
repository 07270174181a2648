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

// errMoved means that the plan is outdated: the binding has another mark now, was replaced, or is
// being deleted. The caller plans again.
var errMoved = errors.New("the binding says something else by now")

// runs records in status.runs of a binding in which clusters the work of its template, such as a
// Job, has begun. Such a record is also named a mark. runs also holds what only this process knows
// about runs. Clusters that begin the work of one binding at the same time share one write.
type runs struct {
	hub      client.Client
	reader   client.Reader // not cached
	bindings *binding.Cache

	mu      sync.Mutex
	older   sets.Set[types.UID]                    // bindings that existed before this process
	latest  map[types.UID]written                  // runs that were written, until the cache has them
	batches map[types.UID]*batch                   // batches that wait to be written
	writing map[types.UID]*sync.Mutex              // held while a batch is written
	ends    map[types.UID]map[string]mirror.Object // last states of copies that are gone
	missing map[types.UID]map[string]types.UID     // copies that are gone, whose end is not known yet
}

// written has the runs of a binding that this process wrote, and the resourceVersion of that write.
type written struct {
	version uint64
	runs    []workv1alpha2.Run
}

// beginning describes work that begins in a cluster. task.begin makes it, for runs.begin. template
// is the UID of the template source. since is the resourceVersion of the cluster from which the
// history of the copy is read later; "" if it is unknown.
type beginning struct {
	cluster  string
	template types.UID
	before   *workv1alpha2.Run // the mark with which the plan was made; nil: there was none
	request  string            // the value of RerunAnnotation that is followed; "": none
	since    string
	copied   mirror.Object // the object that already does the work; without a UID: none
	replaces types.UID     // the earlier copy, if before does not name it; "": none
	source   *unstructured.Unstructured
	id       string          // the ID of the cluster; see member.ID
	copies   []mirror.Object // the copies of the binding in all clusters
}

// batch is a set of beginnings of one binding that are written together. marks has the new
// marks by cluster.
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

// of returns the runs of a binding. Runs that this process wrote are included even if the cache
// does not have them yet. The result is read-only.
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

// started records that the bindings in the cache existed before this process; see isOlder. The
// applier calls it once, when the cache is complete.
func (r *runs) started() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, b := range r.bindings.All() {
		r.older.Insert(b.UID)
	}
}

// isOlder reports whether the binding existed before this process started. Only for such a binding
// can a restored backup of the hub lack a run. Its next run waits until that is checked.
func (r *runs) isOlder(uid types.UID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.older.Has(uid)
}

// ended records o, the last state of a copy that is gone from a cluster, and replaces the state of
// an earlier copy. Copy o then no longer counts as missing.
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

// observed handles an event of the mirror. For a deleted copy of a binding it records the last
// state of the copy or, if the event has none, that the copy is missing. It ignores other events.
// It also ignores bindings that knows does not report, but only once the cache of bindings is
// complete: until then it records every deleted copy.
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

// lastCopy returns the UID of the last copy of a binding that is known to be gone from a cluster.
// How the copy ended may be unknown. "" means that no copy is known to be gone.
func (r *runs) lastCopy(b types.UID, cluster string) types.UID {
	r.mu.Lock()
	defer r.mu.Unlock()
	if uid, ok := r.missing[b][cluster]; ok {
		return uid
	}
	return r.ends[b][cluster].UID
}

// knows reports whether the cache has the binding, and its copies must be watched: the kind ends by
// itself, such as Job, or status.runs is not empty.
func (r *runs) knows(uid types.UID) bool {
	b, ok := r.bindings.ByUID(uid)
	return ok && (interpreter.Ends(binding.Kind(b).GroupKind()) || len(b.Status.Runs) > 0)
}

// end returns the last state of the copy of a binding that is gone from a cluster. It returns false
// if no such state is known.
func (r *runs) end(b types.UID, cluster string) (mirror.Object, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	o, ok := r.ends[b][cluster]
	return o, ok
}

// forget removes everything that this process holds for a binding.
func (r *runs) forget(b types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.older.Delete(b)
	delete(r.latest, b)
	delete(r.ends, b)
	delete(r.missing, b)
	delete(r.writing, b)
}

// begin records in a binding that work begins in a cluster, and returns the new mark. Concurrent
// calls for one binding share a write, with the ctx and the error of one of the calls. The error is
// errMoved if the binding has another mark than begins.before, or the completions in another
// cluster are unknown. Unless begins names a copied object, begin forgets the last state of the
// earlier copy in the cluster.
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

// refuse records in a binding, with phase RunRefused, that a cluster did not accept the copy of
// mark. It writes nothing if the binding has another mark now, or its mark already names a copy.
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

// write changes the runs of a binding on the hub. It starts from the cached binding. If the cache
// is older than the last write, or after a conflict, it reads the binding from the API server.
// change may modify its argument and may be called several times. It returns false if there is
// nothing to write. The error is errMoved if the binding was replaced or is being deleted.
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

// wrote remembers the runs of a binding until the cache has them. It ignores an older version
// than the one that it remembers.
func (r *runs) wrote(b *workv1alpha2.ResourceBinding) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if v := version(b.ResourceVersion); v > r.latest[b.UID].version {
		r.latest[b.UID] = written{v, slices.Clone(b.Status.Runs)}
	}
}

// version returns the resourceVersion of this process's last write of a binding, if the cache may
// not have it yet. Else it returns 0.
func (r *runs) version(uid types.UID) uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.latest[uid].version
}

// mark returns the mark to record in b for the work that begins. It is nil if b has another mark
// than n.before, or the completions in another cluster are unknown.
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
