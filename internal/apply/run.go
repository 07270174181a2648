package apply

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/binding"
	"orrery.dev/orrery/internal/interpreter"
	"orrery.dev/orrery/internal/manifest"
	"orrery.dev/orrery/internal/mirror"
	"orrery.dev/orrery/internal/queue"
)

// Work describes, for one cluster, the work of a template that ends, such as a Job. The zero
// value is for kinds that do not end.
type Work struct {
	// Ends is true for kinds that are known to end. No copy of them is created before the binding
	// records that it begins.
	Ends bool
	// Mark is the record in status.runs of the binding for the current template and the cluster; nil:
	// the work never began here. Former is the record of another cluster that had the same name
	// before; nil: there is none.
	Mark, Former *workv1alpha2.Run
	// Finished is how the work of the template ended as a whole; empty: it has not ended.
	Finished workv1alpha2.RunPhase
	// Request is the valid value of RerunAnnotation, a request to run again; empty: there is none.
	Request string
	// Completions is the number that the Job in the cluster gets, because it began with that number;
	// nil: render computes it from the cluster's share of the parallelism.
	Completions *int64
	// Uncounted names a cluster with an unknown number of completions of a divided Job; empty:
	// there is none.
	Uncounted string
	// Older is true if the binding existed before this process. A restored hub may then have lost the
	// record of a run.
	Older bool
}

// tracked reports whether a copy may be created only after the binding has recorded the run.
func (w *Work) tracked() bool { return w.Ends || w.Mark != nil || w.Finished != "" }

// asked reports whether there is a request to run again that the cluster has not followed yet.
func (w *Work) asked() bool { return w.Request != "" && w.Mark != nil && w.Mark.Rerun != w.Request }

// rests returns the reason, for a message, why the work does not run in the cluster now or later.
// It returns "" if the work is to run.
func (w *Work) rests() string {
	switch {
	case w.Mark == nil && w.Finished != "":
		return fmt.Sprintf("not run here: it was %s when the cluster was added", w.Finished)
	case w.Mark == nil || !w.Mark.Phase.Ended() || w.asked():
		return ""
	case w.Mark.Phase == workv1alpha2.RunSkipped:
		return "not run here: it had ended when the cluster was added"
	default:
		return fmt.Sprintf("it is %s here, and is not run again", w.Mark.Phase)
	}
}

// Fate is what is known of the copy of a recorded run (Work.Mark), while the cluster does not have
// that copy.
type Fate int

// The values of Fate.
const (
	FateUnknown    Fate = iota // whether there was a copy, or how it ended, was not asked yet
	FateNotMade                // no copy was created since the mark was written
	FateUnfinished             // the copy was deleted before it ended
	FateEnded                  // the copy ended; the binding will record that soon
	FateLost                   // the history of the cluster does not reach back
)

const (
	runUnknownMessage = "it was begun, and its copy is gone; whether it ended is not known, so it is not run again: orrery rerun runs it"
	runRestored       = "the hub was restored from a backup, and may not know that this has run; nothing is begun until that is confirmed: " +
		"run orrery server confirm-restore"
	runUncounted = "how many completions fell to cluster %s is not known, so none begin here: they begin when that cluster answers, or is taken out of the placement; " +
		"orrery rerun runs all of them anew"
	runAdopted = "the object was there before this hub, and is not deleted: delete it in the cluster, and it runs again"
)

// planAbsentWork returns the actions for a template whose work ends, such as a Job, in a cluster
// that has no copy of it. Work begins only after the binding has recorded that. A copy that may
// have run is not created again before its end is known.
func planAbsentWork(w Wanted, k Known) []Action {
	work := &w.Work
	if why := work.rests(); why != "" {
		return report(workv1alpha2.ReasonFullyApplied, why)
	}
	first := work.Mark == nil || work.Mark.Phase != workv1alpha2.RunBegan || work.Mark.Removed || work.asked()
	begins := first || k.Fate == FateUnfinished
	switch {
	case begins && k.Restored:
		return report(workv1alpha2.ReasonHubRestored, runRestored)
	case begins && work.Older && !k.RestoreChecked:
		// A copy in another cluster may show that the hub is older than its members.
		return []Action{{Verb: Retry, After: restoreCheckRetry}}
	// No event reports that the number becomes known, and planning again costs no request.
	case begins && work.Uncounted != "":
		return append(report(workv1alpha2.ReasonRunUnknown, fmt.Sprintf(runUncounted, work.Uncounted)), Action{Verb: Retry})
	case begins:
		return send(Begin, w, k, mirror.Object{})
	case k.Fate == FateNotMade:
		return send(Create, w, k, mirror.Object{})
	case k.Fate == FateEnded:
		return report(workv1alpha2.ReasonFullyApplied, "it has ended here")
	case k.Fate == FateLost:
		return report(workv1alpha2.ReasonRunUnknown, runUnknownMessage)
	default:
		return []Action{{Verb: Recall}}
	}
}

// planRerun returns the actions for our copy o while a request to run its work again is pending. A
// copy that still runs counts as the requested run. A copy that ended is removed, unless it was
// there before the hub.
func planRerun(w Wanted, o Copy, k Known) []Action {
	switch {
	// The copy shows the end of the work a moment before the record, so both are checked.
	case !w.Work.Mark.Phase.Ended() && o.Ended == "":
		return []Action{{Verb: Begin, Copy: o.Object}} // the running copy is what was requested
	case o.Origin != "":
		return report(workv1alpha2.ReasonConflict, runAdopted)
	default:
		return remove(o, false, k)
	}
}

// request returns the value of the template's RerunAnnotation, by which a user requests another
// run. It returns "" if there is none, or if it is for another binding or longer than 256 bytes.
func request(b *workv1alpha2.ResourceBinding, source *unstructured.Unstructured) string {
	asked := source.GetAnnotations()[workv1alpha2.RerunAnnotation]
	of, _, ok := strings.Cut(asked, "/")
	if !ok || types.UID(of) != b.UID || len(asked) > 256 {
		return ""
	}
	return asked
}

// work returns the Work of a binding in a cluster. source is the template; for nil the result is
// zero.
func (a *Applier) work(b *workv1alpha2.ResourceBinding, source *unstructured.Unstructured, cluster string) Work {
	if source == nil {
		return Work{}
	}
	w := Work{
		Ends: interpreter.Ends(binding.Kind(b).GroupKind()), Mark: binding.RunIn(a.runs.of(b), source.GetUID(), cluster),
		Finished: interpreter.RunPhase(source), Request: request(b, source), Older: a.runs.isOlder(b.UID),
	}
	id := ""
	if m, ok := a.registry.Member(cluster); ok {
		id = m.ID()
	}
	if w.Mark != nil && !binding.RunsThere(w.Mark, id) {
		w.Mark, w.Former = nil, w.Mark
	}
	a.count(&w, b, source, cluster, id)
	return w
}

// fate returns what this process knows of the copy of a recorded run in a cluster. It sends no
// request to the cluster. For a nil mark it returns FateUnknown.
func (a *Applier) fate(b *workv1alpha2.ResourceBinding, cluster string, mark *workv1alpha2.Run) Fate {
	if mark == nil {
		return FateUnknown
	}
	if end, ok := a.runs.end(b.UID, cluster); ok && isOf(mark, end.UID) {
		if end.Ended != "" {
			return FateEnded
		}
		return FateUnfinished
	}
	s, _ := a.results.get(b.UID, cluster)
	switch key := markKey(mark); {
	case s.run.unmade == key:
		return FateNotMade
	case s.run.lost == key:
		return FateLost
	}
	return FateUnknown
}

// isOf reports whether a recorded run is that of the copy with this UID. A record without the UID
// of its copy matches every copy except the earlier one that it replaced.
func isOf(mark *workv1alpha2.Run, uid types.UID) bool {
	if mark.CopyUID != "" {
		return uid == mark.CopyUID
	}
	return uid != mark.ReplacedUID
}

// Ended returns the last state of the copy of a binding in a cluster, for the status of the
// binding. It is false if the copy is not known to be gone, or this process did not see its end.
// When the work begins in the cluster again, that state is forgotten.
func (a *Applier) Ended(b types.UID, cluster string) (mirror.Object, bool) {
	return a.runs.end(b, cluster)
}

// runState is what this process knows of a run, in addition to the record in the binding. The
// values identify a run by markKey; "" means no run.
type runState struct {
	unmade string // no copy was created since this mark was written
	lost   string // the cluster does not know any more how the copy of this mark ended
}

// markKey returns a text that identifies the recorded run of a binding in a cluster. A new run has
// another key.
func markKey(r *workv1alpha2.Run) string {
	return fmt.Sprintf("%s/%s/%s/%d", r.TemplateUID, r.Rerun, r.ReplacedUID, r.Time.Unix())
}

// begin records in the binding that its work begins in the cluster, and sets t.wanted.Work.Mark to
// that record. It does not create the copy: after success again is true, and the next plan creates
// it; ok is always false. copied is the object that does the work already; without a UID the copy
// is still to be created. In a cluster that refused the copy before, begin first tries a dry run,
// and does not write the record if the cluster refuses the copy again. After a failed write of the
// record, the binding is planned again with backoff.
func (t *task) begin(ctx context.Context, copied mirror.Object) (next queue.Next, again, ok bool) {
	q, a, work := t.queue, t.queue.applier, &t.wanted.Work
	if work.Mark != nil && work.Mark.Phase == workv1alpha2.RunRefused && copied.UID == "" {
		if err := t.tryCreate(ctx); err != nil {
			return t.failed(ctx, err), false, false
		}
	}
	gr := t.wanted.Object.Resource.GroupResource()
	r := beginning{
		cluster: q.name(), template: t.source.GetUID(), before: cmp.Or(work.Mark, work.Former), request: work.Request,
		since: a.mirror.Version(q.name(), gr), copied: copied, source: t.source, id: q.member.ID(), copies: a.mirror.Placed(t.binding.UID),
	}
	if last := a.runs.lastCopy(t.binding.UID, q.name()); last != "" && work.Mark != nil && work.Mark.CopyUID == "" && isOf(work.Mark, last) {
		r.replaces = last // the record lacks the UID of the earlier copy
	}
	before := work.Mark
	mark, err := a.runs.begin(ctx, t.binding, r)
	if err != nil {
		t.log(ctx).V(1).Info("not begun", "error", err.Error())
		return queue.Next{Backoff: true}, false, false
	}
	t.wanted.Work.Mark = mark
	if copied.UID == "" {
		t.update(func(s *state) {
			s.run, s.acts.Unsure = runState{unmade: markKey(mark)}, false
			if work.Request != "" && (before == nil || before.Rerun != work.Request) {
				// The user requested the new copy, so creating it does not count as putting a copy back.
				s.acts.Digest = ""
			}
		})
	}
	return queue.Next{}, true, false
}

// tryCreate creates the copy by dry run in a cluster that refused it before, and returns nil if the
// cluster accepts it now. begin calls it before it records that the work begins, so that another
// refusal is not recorded. A missing namespace is really created.
func (t *task) tryCreate(ctx context.Context) error {
	if err := t.queue.ensureNamespace(ctx, t.wanted.Object.Namespace); err != nil {
		return err
	}
	_, _, err := t.queue.client.Apply(ctx, t.wanted.Object, t.marked("").Object, false, true)
	return err
}

// beginWith records the run of an existing object that is about to become a copy, or of a copy
// whose run was never recorded. ok is false if the record cannot be written; next then says when to
// plan again. Without force, and for work that is recorded or does not end, it does nothing and ok
// is true.
func (t *task) beginWith(ctx context.Context, force bool) (next queue.Next, ok bool) {
	if !force || !t.wanted.Work.Ends || t.wanted.Work.Mark != nil {
		return queue.Next{}, true
	}
	next, _, _ = t.begin(ctx, t.at)
	return next, t.wanted.Work.Mark != nil
}

// sends records that the cluster is about to get a request for a copy, so that a copy may exist
// from now on.
func (t *task) sends() {
	t.sent = true
	if t.wanted.Work.tracked() {
		t.update(func(s *state) { s.run.unmade = "" })
	}
}

// unsent records that the request of this task created no copy. It does nothing if the run may have
// had a copy before this request.
func (t *task) unsent() {
	if mark := t.wanted.Work.Mark; t.asksFirst(mark) {
		t.update(func(s *state) { s.run.unmade = markKey(mark) })
	}
}

// asksFirst reports whether this task sent the request for the first copy of a recorded run. It is
// false for a nil mark.
func (t *task) asksFirst(mark *workv1alpha2.Run) bool {
	return t.sent && mark != nil && mark.Phase == workv1alpha2.RunBegan && mark.CopyUID == "" && t.at.UID == ""
}

// refuse records in the binding that the cluster did not accept the first copy of its run. Another
// process then need not find out whether the copy ran. An error is only logged. It does nothing if
// the run may have had a copy before.
func (t *task) refuse(ctx context.Context) {
	mark := t.wanted.Work.Mark
	if !t.asksFirst(mark) {
		return
	}
	if err := t.queue.applier.runs.refuse(ctx, t.binding, mark); err != nil {
		t.log(ctx).V(1).Info("refusal not written down", "error", err.Error())
	}
}

// recall reads from the API server of the cluster the recent history of a copy that is missing but
// may have run. It records whether the copy was never created, has ended, or cannot be known, and
// again is true. If the copy exists, recall gives it to the mirror instead, and the binding is
// planned again with backoff.
func (t *task) recall(ctx context.Context) (next queue.Next, again, ok bool) {
	q, a, mark := t.queue, t.queue.applier, t.wanted.Work.Mark
	var last *pastCopy
	var ended workv1alpha2.RunPhase
	known := false
	if mark.Since != "" {
		past, remembered, err := q.client.History(ctx, t.wanted.Object, mark.Since)
		if err != nil {
			return t.failed(ctx, err), false, false
		}
		known = remembered
		last, ended = lastCopy(past, t.binding.UID, mark)
	}
	switch {
	case !known, last == nil && mark.CopyUID != "":
		t.log(ctx).Info("whether its work ended is not known: the cluster does not remember")
		t.update(func(s *state) { s.run.lost, s.acts.Unsure = markKey(mark), false })
	case last == nil:
		t.update(func(s *state) { s.run.unmade, s.acts.Unsure = markKey(mark), false })
	case last.gone:
		a.runs.ended(t.binding.UID, q.name(), mirror.Object{
			UID: last.object.GetUID(), Ended: ended, Status: interpreter.Reflect(last.object), Completions: interpreter.CompletionsOf(last.object),
		})
		t.update(func(s *state) { s.acts.Unsure = false })
		a.results.tell(binding.Name(t.binding))
	default:
		a.mirror.Observe(q.name(), t.wanted.Object.Resource, last.object)
		t.update(func(s *state) { s.acts.Unsure = false })
		return queue.Next{Backoff: true}, false, false // the copy exists: the mirror will see it soon
	}
	return queue.Next{}, true, false
}

// lastCopy returns the last state of the copy of a recorded run, and how its work ended; nil and ""
// if the history shows no such copy. past is the history, the oldest event first. An object with
// our mark stays our copy if somebody removes the mark. The first known end counts, because later
// states may lose it, as those of a pod that is being deleted.
func lastCopy(past []manifest.Past, binding types.UID, mark *workv1alpha2.Run) (last *pastCopy, ended workv1alpha2.RunPhase) {
	for _, p := range past {
		uid := p.Object.GetUID()
		marked := p.Object.GetLabels()[workv1alpha2.BindingLabel] == string(binding)
		known := mark.CopyUID != "" || last != nil && last.object.GetUID() == uid
		if !isOf(mark, uid) || !marked && !known {
			continue
		}
		if last != nil && last.object.GetUID() != uid {
			ended = ""
		}
		last = &pastCopy{p.Object, p.Type == watch.Deleted}
		ended = cmp.Or(ended, interpreter.RunPhase(p.Object))
	}
	return last, ended
}

// pastCopy is the last state of a copy in the history of a cluster. gone is true if the copy was
// deleted.
type pastCopy struct {
	object *unstructured.Unstructured
	gone   bool
}
