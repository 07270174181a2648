package apply

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/binding"
	"orrery.dev/orrery/internal/mark"
	"orrery.dev/orrery/internal/mirror"
	"orrery.dev/orrery/internal/queue"
	"orrery.dev/orrery/internal/records"
	"orrery.dev/orrery/internal/template"
)

// task is one reconciliation of a binding in one cluster: the input of the plan, and the methods
// that do its actions. Methods with the results (queue.Next, bool, bool) return next, again and ok.
// next says when to plan again; again true: at once. If ok is false, the actions after this one are
// skipped. A task is used by one worker only.
type task struct {
	queue   *clusterQueue
	binding *workv1alpha2.ResourceBinding
	wanted  Wanted
	source  *unstructured.Unstructured // the template; nil if there is none
	version string                     // the version of the template, see template.Version
	at      mirror.Object              // what was seen at the place of the manifest
	changes int                        // the changes that the plan knew; see state
	// reachable is true if at is the current object, and not the one when the cluster last
	// answered.
	reachable bool
	sent      bool // the cluster got a request for a copy
	// edited is true while a change of the template is applied to a copy. owned is true once the
	// hub owns the fields that others owned of an object that it did not create.
	edited, owned bool
	// applied is true once the cluster has accepted the manifest.
	applied bool
}

// do does the actions in order, until one of them ends the list. next says when to plan again.
// If again is true, the caller plans again at once, and next is zero.
func (t *task) do(ctx context.Context, actions []Action) (next queue.Next, again bool) {
	for _, action := range actions {
		step, planAgain, ok := t.act(ctx, action)
		if planAgain {
			return queue.Next{}, true
		}
		next.Backoff = next.Backoff || step.Backoff
		if step.After > 0 && (next.After == 0 || step.After < next.After) {
			next.After = step.After
		}
		if !ok {
			return next, false
		}
	}
	return next, false
}

// boundsRetry is the delay before a removal is tried again that the profile of the cluster's agent
// did not allow.
const boundsRetry = time.Minute

// act does one action. next says when to plan again; if it is zero, an event starts the next
// plan. If again is true, the caller plans again at once and skips the other actions. If ok is
// false, the actions after it are skipped.
func (t *task) act(ctx context.Context, a Action) (next queue.Next, again, ok bool) {
	retry := queue.Next{Backoff: true}
	if a.Verb == Delete || a.Verb == Unmark {
		if why := t.queue.bounds(a.Copy.Namespace); why != "" {
			t.report(workv1alpha2.ReasonRejected, objectOf(a.Copy).String()+" stays: "+why)
			return queue.Next{After: boundsRetry}, false, false
		}
	}
	switch a.Verb {
	case Report, Await, Retry, Forget: // no request is sent, and nothing is logged
	default:
		log := logr.FromContextOrDiscard(ctx)
		ctx = logr.NewContext(ctx, log.WithValues("binding", binding.Name(t.binding).String()))
	}
	switch a.Verb {
	case Report:
		t.report(a.Reason, a.Message)
		return queue.Next{}, false, true
	case Await:
		if t.wanted.Object.Resource.Resource != "" {
			t.queue.await(t.wanted.Object.Resource.GroupResource(), item{binding: binding.Name(t.binding)})
		}
		return queue.Next{}, false, true
	case Retry:
		return queue.Next{After: a.After, Backoff: a.After == 0}, false, true
	case Forget:
		var gone bool // the copy was known to be gone before this action
		t.update(func(s *state) {
			gone = s.gone
			*s = state{cluster: t.queue.uid, gone: true, changes: s.changes, plans: s.plans}
		})
		// If released queued this binding each time, the binding would be planned without end.
		if gone {
			t.queue.applier.finalize(t.binding)
		} else {
			t.queue.applier.released(t.binding, t.queue.name())
		}
		return queue.Next{}, false, true
	case Suspect:
		return t.suspect(ctx, a.Copy)
	case Ask:
		return t.ask(ctx)
	case Compare:
		return t.compare(ctx, a.Copy)
	case Inspect:
		return t.inspect(ctx)
	case Create, Update, Repair:
		return t.apply(ctx, a)
	case Begin:
		return t.begin(ctx, a.Copy)
	case Recall:
		return t.recall(ctx)
	case Judge:
		return t.judge(ctx, a.Copy)
	case Delete:
		if err := t.remove(ctx, a.Copy); err != nil {
			return retry, false, true
		}
	case Unmark:
		err := t.queue.unmark(ctx, a.Copy, t.wanted.Source.Template, "")
		if err == nil && t.wanted.leaves() {
			// A preserved copy must outlive the hub's namespace.
			err = t.queue.unmarkNamespace(ctx, a.Copy.Namespace)
		}
		if t.unremoved(ctx, err); err != nil {
			return retry, false, true
		}
	}
	// The mirror knows from our request that a copy is gone, before its watch reports that. So
	// another plan may find that none is left.
	return queue.Next{}, t.wanted.Intent != Place && !t.left(), true
}

// left reports whether the mirror knows copies of the binding in the cluster that are not being
// deleted, also copies under another name than the template's.
func (t *task) left() bool {
	for _, o := range t.queue.applier.mirror.PlacedOf(t.binding.UID, t.queue.name()) {
		if !o.Deleting {
			return true
		}
	}
	return false
}

// log returns the logger of ctx with the name of the wanted object.
func (t *task) log(ctx context.Context) logr.Logger {
	return logr.FromContextOrDiscard(ctx).WithValues("object", t.wanted.Object.String())
}

// update changes the state of the binding in the cluster by the function change. It notifies the
// subscribers of the applier if the result, known, gone or the contest changed. A state of another
// Cluster with the same name is dropped first. change runs with a lock held. It is not called if
// another Cluster with the same name has a queue now, because the state is about that Cluster.
func (t *task) update(change func(*state)) {
	q := t.queue
	if now, open := q.applier.queue(q.name()); open && now != q {
		return
	}
	q.applier.results.update(binding.Name(t.binding), t.binding.UID, q.name(), func(s *state) {
		if s.cluster != "" && s.cluster != q.uid {
			*s = state{changes: s.changes}
		}
		s.cluster = q.uid
		change(s)
	})
}

// report stores the result for the cluster. It notifies the subscribers of the applier, and queues
// the result for the records if it changed. With ReasonFullyApplied and a copy that was seen with
// the wanted digest it also stores that the manifest is applied. A changed result reconciles the
// clusters that replicas of the binding move out of.
func (t *task) report(reason, message string) {
	r := Result{
		Applied: reason == workv1alpha2.ReasonFullyApplied, Reason: reason, Message: message,
		Generation: t.binding.Generation, Template: template.Recorded(t.source, t.version), Digest: t.wanted.Digest,
	}
	var before, after state
	t.update(func(s *state) {
		before = *s
		s.result, s.known, s.gone, s.about = r, true, false, t.changes
		if r.Applied && t.reachable && t.at.Digest == r.Digest {
			s.acts.Digest, s.acts.Fields, s.acts.Applied, s.acts.Drifted = r.Digest, t.at.Fields, true, false
			s.acts.Unsure, s.acts.Refused, s.acts.Judged, s.acts.Note = false, "", "", r.Message
		}
		after = *s
	})
	if before.result != after.result || before.acts.Digest != after.acts.Digest || before.acts.Fields != after.acts.Fields {
		digest := after.acts.Digest
		if after.acts.Drifted {
			digest = "" // so that a later process compares the copy again
		}
		t.queue.applier.records.Applied(records.Result{
			Binding: t.binding.UID, Cluster: t.queue.name(), ClusterUID: t.queue.uid,
			Applied: r.Applied, Reason: r.Reason, Message: r.Message,
			Generation: r.Generation, Template: r.Template, Digest: digest, Fields: after.acts.Fields, Time: time.Now(),
		})
	}
	// A report without news wakes no other task. Otherwise tasks that wait for each other, or for
	// themselves, would run without end.
	if before.current() != after.current() || before.known != after.known || before.gone != after.gone || before.acts != after.acts {
		t.queue.applier.progressed(t.binding)
	}
}

// suspect handles a copy that seems newer than the hub, which can be because the caches are behind.
// It reads the hub again. If the copy is newer than that, it reports a restored hub; otherwise the
// binding is planned again with backoff. ok is always false.
func (t *task) suspect(ctx context.Context, o mirror.Object) (queue.Next, bool, bool) {
	return t.suspected(ctx, func() (bool, error) { return t.queue.applier.restore.verify(ctx, t.binding, o) })
}

// suspected calls verify, which reads the hub, and reports a restored hub if verify returns true.
// Otherwise the binding is planned again with backoff, also after an error, which is only logged.
// ok is always false.
func (t *task) suspected(ctx context.Context, verify func() (bool, error)) (queue.Next, bool, bool) {
	restored, err := verify()
	if err != nil {
		t.log(ctx).Error(err, "cannot find out whether the hub was restored from a backup")
	}
	if !restored {
		return queue.Next{Backoff: true}, false, false
	}
	t.report(workv1alpha2.ReasonHubRestored, restoredMessage)
	return queue.Next{}, false, false
}

// ask reads the wanted object after a request that was never answered, and gives the object to the
// mirror. It records that the state is known, and again is true. A failed read is tried again with
// backoff.
func (t *task) ask(ctx context.Context) (queue.Next, bool, bool) {
	q := t.queue
	if t.wanted.Object.Resource.Resource != "" {
		found, err := q.client.Get(ctx, t.wanted.Object)
		switch {
		case apierrors.IsNotFound(err):
		case err != nil:
			return t.unread(ctx, err), false, false
		default:
			q.applier.mirror.Observe(q.name(), t.wanted.Object.Resource, found)
		}
	}
	t.update(func(s *state) { s.acts.Unsure = false })
	return queue.Next{}, true, false
}

// compare reads our copy and finds out whether others changed it since it was applied, if
// there is no record of that. It records the result and gives the copy, or its absence, to the
// mirror. again is true unless the copy could not be read.
func (t *task) compare(ctx context.Context, seen mirror.Object) (queue.Next, bool, bool) {
	q, o := t.queue, t.wanted.Object
	live, err := q.client.Get(ctx, o)
	if apierrors.IsNotFound(err) {
		q.applier.mirror.ObserveDeleted(q.name(), o.Resource.GroupResource(), o.Namespace, o.Name, seen.UID)
		return queue.Next{}, true, false
	}
	if err != nil {
		return t.unread(ctx, err), false, false
	}
	q.applier.mirror.Observe(q.name(), o.Resource, live)
	_, t.at = q.find(o)
	if t.at.UID != live.GetUID() || t.at.Digest != t.wanted.Digest || t.at.Binding != t.binding.UID {
		return queue.Next{}, true, false // the copy was changed or replaced since the plan
	}
	if takenFromUs(t.wanted.Manifest, live) {
		t.update(func(s *state) {
			s.acts.Digest, s.acts.Fields, s.acts.Drifted = t.wanted.Digest, mirror.OwnedFields(live), true
		})
		return queue.Next{}, true, false
	}
	t.at.Fields = mirror.OwnedFields(live)
	t.remember(t.noteOf(retained(t.wanted.Manifest, live), live))
	return queue.Next{}, true, false
}

// unread ends an action that could not read an object because of err. Such an object is unknown and
// not rejected, so the result is a retry with backoff. A missing permission is reported as
// ReasonListFails.
func (t *task) unread(ctx context.Context, err error) queue.Next {
	t.log(ctx).Info("cannot read what the cluster has", "error", err.Error())
	if apierrors.IsForbidden(err) {
		t.report(workv1alpha2.ReasonListFails, fmt.Sprintf(
			"the hub cannot read %s in the cluster, so the state there is not known; grant the hub's account in the cluster the verb get; the answer of the API server: %s", t.wanted.Object, err))
	}
	return queue.Next{Backoff: true}
}

// apply does the actions Create, Update and Repair: it applies the manifest where no object is, or
// to our copy. It sets t.edited to whether an Update applies a change of the template. ok is always
// false.
func (t *task) apply(ctx context.Context, a Action) (queue.Next, bool, bool) {
	if a.Verb == Repair {
		t.log(ctx).Info("repairing drift")
	}
	origin := a.Copy.Origin
	t.edited = a.Verb == Update && t.isEdited(a.Copy)
	if a.Verb == Create {
		return t.send(ctx, origin, false)
	}
	return t.send(ctx, origin, true)
}

// marked returns a copy of the manifest with the annotations that its digest does not cover: the
// signed source and, unless it is "", the origin. The origin says how an object that was there
// before the hub became a copy. The copy shares values with the manifest.
func (t *task) marked(origin string) *unstructured.Unstructured {
	o := &unstructured.Unstructured{Object: maps.Clone(t.wanted.Manifest.Object)}
	metadata, _ := o.Object["metadata"].(map[string]any)
	o.Object["metadata"] = maps.Clone(metadata)
	annotations := o.GetAnnotations() // GetAnnotations returns a copy
	annotations[workv1alpha2.SourceAnnotation] = t.queue.applier.key().Sign(t.wanted.Source)
	if origin != "" {
		annotations[workv1alpha2.OriginAnnotation] = origin
	}
	o.SetAnnotations(annotations)
	return o
}

// send applies the manifest, with the steps of transmit, and marks the state as busy meanwhile, so
// that events of the own write are ignored. origin is the value of OriginAnnotation; "" for a copy
// that the hub created. Without force the object is expected to be absent, and an object that
// exists stays as it was. ok is always false.
func (t *task) send(ctx context.Context, origin string, force bool) (queue.Next, bool, bool) {
	t.update(func(s *state) { s.busy = true })
	next, again := t.transmit(ctx, origin, force)
	t.update(func(s *state) { s.busy = false })
	return next, again, false
}

// transmit applies the manifest, for send. It creates the namespace, records that work begins,
// takes over fields, applies, and records the result. Without force, an object that others created
// since the plan stays as it is. again is true after success; otherwise next says when to plan
// again.
func (t *task) transmit(ctx context.Context, origin string, force bool) (next queue.Next, again bool) {
	q := t.queue
	if err := q.ensureNamespace(ctx, t.wanted.Object.Namespace); err != nil {
		return t.failed(ctx, err), false
	}
	if next, begun := t.beginWith(ctx, force); !begun {
		return next, false
	}
	manifest := t.marked(origin)
	if force {
		var err error
		if manifest, err = t.retain(ctx, manifest); err != nil {
			next, again, _ = t.disowned(ctx, err)
			return next, again
		}
		if t.wanted.Work.tracked() {
			manifest.SetUID(t.at.UID) // an object that was deleted meanwhile is not created again
		}
		t.signOwned(manifest)
	}
	prior := t.prior(ctx, force)
	t.sends()
	t.update(func(s *state) { s.acts.Unsure = true })
	sent, applied, created, err := t.applyOwned(ctx, manifest, force)
	if err != nil {
		next, again, _ = t.disowned(ctx, err)
		return next, again
	}
	verb := "updated"
	if created {
		verb = "created"
	}
	t.log(ctx).Info(verb, "digest", t.wanted.Digest)
	q.applier.mirror.Observe(q.name(), t.wanted.Object.Resource, applied)
	if takesMarks(sent, applied) {
		return t.unmarked(ctx, mutated(sent, applied)), false
	}
	t.update(func(s *state) { s.acts.Unsure, s.refusals = false, 0 })
	_, t.at = q.find(t.wanted.Object)
	// overtaken: the mirror shows that the object was changed or deleted since the apply.
	overtaken := t.at.Digest != t.wanted.Digest || t.at.Binding != t.binding.UID
	// The fields of this apply, and not those after a later change.
	t.at.Fields = mirror.OwnedFields(applied)
	t.wrote(prior, sent, applied)
	t.remember(t.noteOf(sent, applied))
	if overtaken {
		return queue.Next{Backoff: true}, false
	}
	// Another plan finds other actions, such as the removal of copies under other names.
	t.applied = true
	return queue.Next{}, true
}

// remember records in the state that the cluster has the manifest and which fields the hub owns in
// the copy (t.at.Fields). note describes what the cluster changed. It sends and reports nothing.
func (t *task) remember(note string) {
	t.update(func(s *state) {
		s.acts.Digest, s.acts.Fields, s.acts.Applied, s.acts.Refused, s.acts.Judged = t.wanted.Digest, t.at.Fields, true, "", ""
		s.acts.Drifted, s.acts.Inspected, s.acts.Note = false, true, note
	})
}

// unmarked reports a cluster that removes our marks from what is applied. changed are the paths of
// the changed fields. Without its marks the object looks as if it had never been applied. The apply
// counts as a refusal, and is tried again after the pause for a rejected manifest.
func (t *task) unmarked(ctx context.Context, changed []string) queue.Next {
	message := mutation(changed) + "; without our marks nobody knows that it is applied"
	var wait time.Duration
	t.update(func(s *state) {
		s.acts.Unsure = false
		s.refused(t.wanted.Digest, time.Now())
		wait = time.Until(s.acts.RetryAt)
	})
	t.log(ctx).Info("the cluster takes our marks off", "fields", changed)
	t.report(workv1alpha2.ReasonMutated, message)
	return queue.Next{After: wait}
}

// judge reads an unmanaged object in the place of the copy, and decides whether it becomes a copy.
// An orphan of this hub becomes its copy again, unless it shows that the hub was restored. An
// object with this hub's mark for the template is taken back. An object equal to the manifest is
// adopted. A different object is taken over if the policy allows that. Everything else is reported
// as a conflict. seen is the object in the mirror.
func (t *task) judge(ctx context.Context, seen mirror.Object) (queue.Next, bool, bool) {
	q, o := t.queue, t.wanted.Object
	live, err := q.client.Get(ctx, o)
	if apierrors.IsNotFound(err) {
		q.applier.mirror.ObserveDeleted(q.name(), o.Resource.GroupResource(), o.Namespace, o.Name, seen.UID)
		return queue.Next{Backoff: true}, false, false
	}
	if apierrors.IsForbidden(err) {
		t.report(workv1alpha2.ReasonConflict, notPlaced(t.wanted)+"; the cluster does not let the hub read it, so grant the hub's account there the verb get; the answer of the API server: "+err.Error())
		return queue.Next{Backoff: true}, false, false
	}
	if err != nil {
		return t.failed(ctx, err), false, false
	}
	if orphan, ok := mark.ParseOrphan(live.GetAnnotations()[workv1alpha2.OrphanAnnotation]); ok && orphan.Hub == q.applier.hubID && !isCopied(live) {
		from, err := q.applier.key().Verify(orphan.Source)
		if err == nil {
			// Taking the orphan back would remove the evidence that the hub was restored.
			left := mirror.Object{Cluster: q.name(), Resource: o.Resource, Namespace: o.Namespace, Name: o.Name, Source: orphan.Source}
			from.Placement = 0 // the binding may be another one by now
			if from.Newer(t.wanted.Source) {
				return t.suspected(ctx, func() (bool, error) { return q.applier.restore.verify(ctx, t.binding, left) })
			}
			if from.Cluster == q.uid && from.Epoch == t.wanted.Source.Epoch {
				return t.suspected(ctx, func() (bool, error) { return q.applier.restore.left(ctx, q.member.Cluster(), left, from) })
			}
		}
		if !isRecreated(live, err == nil) {
			return t.takeBackOrphan(ctx, live, orphan)
		}
	} else if from, err := q.applier.key().Verify(live.GetAnnotations()[workv1alpha2.SourceAnnotation]); err == nil && from.Template == t.wanted.Source.Template && !isCopied(live) {
		// A cluster that was rebuilt from manifests has our marks, but not our ownership of the
		// fields.
		t.log(ctx).Info("taking back what carries this hub's mark")
		return t.own(ctx, live, live.GetAnnotations()[workv1alpha2.OriginAnnotation], everybodys)
	}
	if t.wanted.Foreign != Refuse {
		return t.adopt(ctx, seen, live)
	}
	seen.UID, seen.ResourceVersion = live.GetUID(), live.GetResourceVersion()
	return t.judged(seen, workv1alpha2.ReasonConflict, foreignMessage(t.wanted))
}

// failed handles the error of a request, and returns when to try again. A missing answer is
// reported from the second attempt on. Conflicts, internal errors and a namespace that is being
// deleted are tried again with backoff. If the namespace or type is gone, the APIs of the cluster
// are also discovered again. Every other error counts as a refusal of the manifest. The refusal is
// recorded, and the manifest is sent again after a pause that grows with each refusal.
func (t *task) failed(ctx context.Context, err error) queue.Next {
	t.log(ctx).V(1).Info("not applied", "error", err.Error())
	q, retry := t.queue, queue.Next{Backoff: true}
	if unanswered(err) {
		// The first failure is not reported: the next attempt may succeed.
		if q.items.Retries(item{binding: binding.Name(t.binding)}) > 0 {
			t.report(workv1alpha2.ReasonClusterUnreachable, silence(err))
		}
		return retry
	}
	switch {
	case apierrors.HasStatusCause(err, metav1.CauseTypeFieldManagerConflict):
		t.report(workv1alpha2.ReasonConflict, foreignMessage(t.wanted, ownedByOthers(err)...))
		return retry
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause), apierrors.IsConflict(err), apierrors.IsInternalError(err):
		t.report(workv1alpha2.ReasonRejected, err.Error())
		return retry
	case apierrors.IsNotFound(err):
		// The namespace or the type was deleted meanwhile.
		q.applier.registry.Rediscover(q.name())
		t.report(workv1alpha2.ReasonRejected, err.Error())
		return retry
	}
	var wait time.Duration
	t.update(func(s *state) {
		s.refused(t.wanted.Digest, time.Now())
		wait = time.Until(s.acts.RetryAt)
	})
	t.log(ctx).Info("rejected", "error", err.Error())
	if refusesWrite(err) {
		t.refuse(ctx)
	}
	t.report(workv1alpha2.ReasonRejected, err.Error())
	return queue.Next{After: wait}
}

// ownedByOthers returns which field managers own which fields, by the causes of an error of
// server-side apply: one text for each manager, sorted, such as `"kubectl" owns
// spec.replicas`. It is nil if the error has no such causes.
func ownedByOthers(err error) []string {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Details == nil {
		return nil
	}
	fields := map[string][]string{}
	for _, cause := range status.Status().Details.Causes {
		if cause.Type != metav1.CauseTypeFieldManagerConflict {
			continue
		}
		// After the quoted manager the message has the API version and the time of the change.
		manager := strings.TrimPrefix(cause.Message, "conflict with ")
		if quoted, err := strconv.QuotedPrefix(manager); err == nil {
			manager = quoted
		}
		if field := strings.TrimPrefix(cause.Field, "."); !slices.Contains(fields[manager], field) {
			fields[manager] = append(fields[manager], field)
		}
	}
	var said []string
	for _, manager := range slices.Sorted(maps.Keys(fields)) {
		slices.Sort(fields[manager])
		said = append(said, manager+" owns "+some(fields[manager]))
	}
	return said
}

// unanswered reports whether an error says nothing about the request itself: there was no
// answer of an API server, or the answer was a timeout, 429, 503 or 401. err must not be nil.
func unanswered(err error) bool {
	var status apierrors.APIStatus
	return !errors.As(err, &status) || apierrors.IsTimeout(err) || apierrors.IsServerTimeout(err) ||
		apierrors.IsTooManyRequests(err) || apierrors.IsServiceUnavailable(err) || apierrors.IsUnauthorized(err)
}

// refusesWrite reports whether an error of a write says that the API server stored nothing: its
// answer was 4xx, but not 408 or 429. After any other error the write may still be stored: a server
// answers 500 also if it does not know whether etcd will commit the write, as while etcd elects a
// leader. err must not be nil.
func refusesWrite(err error) bool {
	var status apierrors.APIStatus
	if unanswered(err) || !errors.As(err, &status) {
		return false
	}
	code := status.Status().Code
	return code >= http.StatusBadRequest && code < http.StatusInternalServerError && code != http.StatusRequestTimeout
}

// silence returns a message about an unanswered request: the text of the API server, if it
// answered, or else a fixed text. Unlike the texts of network errors, the message is the same for
// each attempt.
func silence(err error) string {
	var status apierrors.APIStatus
	switch {
	case errors.As(err, &status):
		return err.Error()
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Sprintf("the API server did not answer within %s", callTimeout)
	default:
		return "the API server cannot be reached"
	}
}
