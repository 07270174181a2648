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
	// Mark is the record in the binding of the run of the current template; nil: none. Former is
	// the record of another cluster that had the same name before.
	Mark, Former *workv1alpha2.Run
	// Finished is how the work of the template ended as a whole; empty: it has not ended.
	Finished workv1alpha2.RunPhase
	// Request is the request to run again that counts; empty: there is none.
	Request string
	// Completions are those of a Job that belong to the cluster; nil: those of its share.
	Completions *int64
	// Uncounted names a cluster with an unknown number of completions of a divided Job; empty:
	// there is none.
	Uncounted string
	// Older is true if the binding is older than this process.
	Older bool
}

// tracked reports whether the binding decides whether a copy may be created.
func (w *Work) tracked() bool { return w.Ends || w.Mark != nil || w.Finished != "" }

// asked reports whether the cluster has not yet followed a request to run again.
func (w *Work) asked() bool { return w.Request != "" && w.Mark != nil && w.Mark.Rerun != w.Request }

// rests says why nothing is to run in the cluster any more; "" if something is to run.
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

// Fate is what is known of a copy that is not in the cluster any more, or not yet.
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

// planAbsentWork plans for a template whose work ends, where no copy is.
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
	case begins && work.Older && !k.Surveyed:
		// A copy in another cluster may show that the hub is older than its members.
		return []Action{{Verb: Retry, After: surveyLook}}
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

// planRerun plans for our copy while there is a request to run its work again.
func planRerun(w Wanted, o Copy, k Known) []Action {
	switch {
	// The mark records the end of the work a moment after the copy, so both are checked.
	case !w.Work.Mark.Phase.Ended() && o.Ended == "":
		return []Action{{Verb: Begin, Copy: o.Object}} // the running copy is what was requested
	case o.Origin != "":
		return report(workv1alpha2.ReasonConflict, runAdopted)
	default:
		return remove(o, false, k)
	}
}

// request returns the request to run again of a template; "" if there is none, or it is for
// another binding.
func request(b *workv1alpha2.ResourceBinding, source *unstructured.Unstructured) string {
	asked := source.GetAnnotations()[workv1alpha2.RerunAnnotation]
	of, _, ok := strings.Cut(asked, "/")
	if !ok || types.UID(of) != b.UID || len(asked) > 256 {
		return ""
	}
	return asked
}

// work returns what a binding knows of the work of its template in a cluster.
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

// fate returns what this process knows of the copy that a mark describes.
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

// isOf reports whether a mark describes the copy with this UID.
func isOf(mark *workv1alpha2.Run, uid types.UID) bool {
	if mark.CopyUID != "" {
		return uid == mark.CopyUID
	}
	return uid != mark.ReplacedUID
}

// Ended returns the last state of the copy of a binding in a cluster; false if the copy is not
// known to be gone, or its end was not seen.
func (a *Applier) Ended(b types.UID, cluster string) (mirror.Object, bool) {
	return a.runs.end(b, cluster)
}

// runState is what this process knows of a run beside its mark. The values are keys of marks;
// see markKey.
type runState struct {
	unmade string // no copy was created since this mark was written
	lost   string // the cluster does not know any more how the copy of this mark ended
}

// markKey identifies a run of a binding in a cluster.
func markKey(r *workv1alpha2.Run) string {
	return fmt.Sprintf("%s/%s/%s/%d", r.TemplateUID, r.Rerun, r.ReplacedUID, r.Time.Unix())
}

// begin records in the binding that its work begins in the cluster. copied is the object that
// does the work already; without a UID the copy is still to be created.
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
		r.replaces = last // the mark does not say which copy it was
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
				// The request explains the new copy: this write does not put back a deleted copy.
				s.acts.Digest = ""
			}
		})
	}
	return queue.Next{}, true, false
}

// tryCreate asks, by dry run, whether a cluster that has refused the copy accepts it now. So
// nothing is recorded for another refusal.
func (t *task) tryCreate(ctx context.Context) error {
	if err := t.queue.ensureNamespace(ctx, t.wanted.Object.Namespace); err != nil {
		return err
	}
	_, _, err := t.queue.client.Apply(ctx, t.wanted.Object, t.marked("").Object, false, true)
	return err
}

// beginWith records the run of an object that is about to become a copy, or is a copy whose run
// was never recorded. ok is false if that failed.
func (t *task) beginWith(ctx context.Context, force bool) (next queue.Next, ok bool) {
	if !force || !t.wanted.Work.Ends || t.wanted.Work.Mark != nil {
		return queue.Next{}, true
	}
	next, _, _ = t.begin(ctx, t.at)
	return next, t.wanted.Work.Mark != nil
}

// sends records that the cluster gets a request for a copy; unsent records that the request
// created none.
func (t *task) sends() {
	t.sent = true
	if t.wanted.Work.tracked() {
		t.update(func(s *state) { s.run.unmade = "" })
	}
}

func (t *task) unsent() {
	if mark := t.wanted.Work.Mark; t.asksFirst(mark) {
		t.update(func(s *state) { s.run.unmade = markKey(mark) })
	}
}

// asksFirst reports whether the cluster got a request for the first copy of a mark.
func (t *task) asksFirst(mark *workv1alpha2.Run) bool {
	return t.sent && mark != nil && mark.Phase == workv1alpha2.RunBegan && mark.CopyUID == "" && t.at.UID == ""
}

// refuse records in the binding that the cluster did not accept the copy. Another process then
// need not find out whether the copy ran.
func (t *task) refuse(ctx context.Context) {
	mark := t.wanted.Work.Mark
	if !t.asksFirst(mark) {
		return
	}
	if err := t.queue.applier.runs.refuse(ctx, t.binding, mark); err != nil {
		t.log(ctx).V(1).Info("refusal not written down", "error", err.Error())
	}
}

// recall asks the cluster what became of a copy that was requested, or was there: a copy that
// is not there may have run.
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
		return queue.Next{Backoff: true}, false, false // it is there: the mirror will see it soon
	}
	return queue.Next{}, true, false
}

// lastCopy returns the last known state of the copy that a mark describes, and how its work
// ended; nil if there is none. An object with our mark stays our copy if somebody removes the
// mark. The first known end of its work stays: a pod that is being deleted does not show it any
// more.
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

// pastCopy is the last state of a copy that a cluster remembers.
type pastCopy struct {
	object *unstructured.Unstructured
	gone   bool
}
