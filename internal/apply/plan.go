package apply

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/manifest"
	"orrery.dev/orrery/internal/mark"
	"orrery.dev/orrery/internal/mirror"
	"orrery.dev/orrery/internal/presence"
)

// Object names an object in a member.
type Object = manifest.Object

// objectOf returns the resource, namespace and name of an object of the mirror.
func objectOf(o mirror.Object) Object {
	return Object{Resource: o.Resource, Namespace: o.Namespace, Name: o.Name}
}

// Intent is what a binding wants in one cluster.
type Intent int

// The values of Intent.
const (
	Place  Intent = iota // the binding names the cluster: the copy is to be there
	Vacate               // the binding does not name the cluster: its copies are removed
	Remove               // the binding is deleted, and its copies with it
	Leave                // the binding is deleted, and its copies stay without our marks
)

// Foreign says what may be done with an unmanaged object that exists in the place of a copy. This
// hub did not create such an object.
type Foreign int

// The values of Foreign.
const (
	Refuse   Foreign = iota // the object is left alone
	Adopt                   // the object becomes a copy if it is equal to the manifest
	TakeOver                // the object becomes a copy, and gets the manifest
)

// Wanted is the state that a binding requires in one cluster.
type Wanted struct {
	Intent Intent
	// Decided is false while the placement is for another generation of the template, or was
	// decided without knowing the Cluster. Nothing is done then.
	Decided bool
	// PolicyUnread is true for Remove while it is unknown whether the policy says that copies stay.
	// Nothing is removed then.
	PolicyUnread bool
	// Reason and Message say why a copy that is to be placed has no Manifest. Without a Reason nothing
	// is reported: Decided is then false, because the namespace on the hub is unknown.
	Reason, Message string
	// Object names the object that Manifest describes. Digest is the digest of Manifest, and Source
	// describes the template from which it is rendered.
	Object   Object
	Manifest *unstructured.Unstructured
	Digest   string
	Source   mark.Source
	Foreign  Foreign
	// Security are the Pod Security labels of the hub's namespace.
	Security map[string]string
	// Keeps is true if the copies lose our marks, and are not deleted, once the binding does not
	// name the cluster any more. It is true for a PersistentVolumeClaim that is placed only as the
	// dependency of a workload, because no user has requested to delete its data. It is also true
	// for a dependency of objects that stayed in the cluster, because their template was deleted
	// with propagation Orphan.
	Keeps bool
	// Held is true if the copies have to stay for now in a cluster that the binding does not name
	// any more; see Release.
	Held bool
	// Suspended is the reason why the placement holds back all writes to the cluster, and
	// SuspendedMessage explains the reason. If Suspended is empty, writes are not held back. The
	// deletion of a binding is never held back.
	Suspended, SuspendedMessage string
	// Work is the work of a template that ends, such as a Job.
	Work Work
}

// Owner says which binding an object belongs to, according to the label on the object.
type Owner int

// The values of Owner.
const (
	Nobody  Owner = iota // no binding that the hub has
	Binding              // the binding that is planned for
	Another              // another binding
	Going                // another binding, which is being deleted
)

// Copy is an object in the cluster that carries a binding's mark, with the meaning of the mark. In
// Seen.AtObject the object may also be unmarked; then all other fields are zero.
type Copy struct {
	mirror.Object

	Owner Owner
	// Authentic is true if this hub made the mark. ThisJoin is true if the hub made the mark since
	// the cluster joined. Newer is true if the copy was made from a later state of the binding or
	// template than the hub has. Then the cache of the hub is late, or the hub was restored.
	Authentic, ThisJoin, Newer bool
}

// Seen is what is known of the cluster for a binding.
type Seen struct {
	Reachable bool
	// Lost is true if the cluster is known not to answer. Right after a start of this process it
	// is false, because the state of the cluster is not known yet.
	Lost bool
	// Listed is true if every copy that the cluster may have is known. Problem says why the
	// cluster cannot list the type. It is empty if the list works or is being read.
	Listed  bool
	Problem string
	// At says whether the cluster has the object that Wanted.Object names, and AtObject is that
	// object.
	At       presence.Presence
	AtObject Copy
	// OurNamespace is true for a Namespace that this hub created in the cluster for other copies.
	OurNamespace bool
	// Copies are the copies of the binding in the cluster, including one where the manifest
	// belongs.
	Copies []Copy
}

// Known is what earlier actions in the cluster have shown. The zero value knows nothing.
type Known struct {
	Now time.Time
	// Digest is the digest of the manifest that was applied last. Fields is the hash of the fields
	// that this hub managed after that apply. A different hash later means that another manager
	// has taken fields.
	Digest string
	Fields uint64
	// Drifted is true if others changed the copy since Digest was applied.
	Drifted bool
	// Applied is true if the cluster was seen to have Digest.
	Applied bool
	// Note says which fields of the manifest the cluster changed. It is empty if the cluster has
	// the manifest as it was applied.
	Note string
	// Refused is the digest of the manifest that the cluster rejected. The manifest is not sent
	// again before RetryAt.
	Refused string
	RetryAt time.Time
	// Judged identifies an unmanaged object that may not become a copy; see judgement.
	Judged                      string
	JudgedReason, JudgedMessage string
	// Inspected is true once it is known which fields of an object that was there before the hub
	// placed it are removed with the next change of its template.
	Inspected bool
	// PutBacks counts the writes in a row that put the copy back, and PutBack is the time of the
	// last one; see putsBack.
	PutBacks int
	PutBack  time.Time
	// Contested is true if the copy is put back again and again.
	Contested bool
	// Unsure is true if a request was never answered, so that the cluster may have a state that
	// was not seen.
	Unsure bool
	// Restored is true while the hub seems to be restored from a backup and no user has confirmed
	// the restore.
	Restored bool
	// RestoreChecked is true once this process has checked, in every cluster that answers, whether a
	// copy is newer than the hub.
	RestoreChecked bool
	// Fate is what is known of the copy that Wanted.Work.Mark describes, if that copy does not
	// exist in the cluster any more.
	Fate Fate
}

// Verb is the kind of an Action.
type Verb int

// The values of Verb.
const (
	Report  Verb = iota // remember Reason and Message; no request
	Await               // plan again once the types are listed; no request
	Retry               // plan again after After; no request
	Forget              // remember that the cluster holds nothing of the binding; no request
	Suspect             // find out whether the hub was restored from a backup
	Ask                 // read the object: the result of an earlier request is unknown
	Compare             // read our copy: whether others changed it is unknown
	// Inspect reads an object that was there before: which of its fields the next change of its
	// template removes is unknown.
	Inspect
	Create // apply the manifest where no object is
	Update // apply the manifest to our copy
	Repair // apply the manifest to our copy, which others changed
	Judge  // find out whether an unmanaged object may become a copy, and make it one
	Delete // delete a copy
	Unmark // remove our marks from a copy
	// Begin records in the binding that its work begins in the cluster, or that Copy does the work
	// that was requested.
	Begin
	Recall // ask the cluster for the history of a copy that is not there
)

// verbs has the name of each Verb, in the order of the constants.
var verbs = [...]string{
	"Report", "Await", "Retry", "Forget", "Suspect", "Ask", "Compare", "Inspect", "Create", "Update", "Repair", "Judge", "Delete", "Unmark",
	"Begin", "Recall",
}

// writes reports whether an action with the verb may change the cluster, or begins work there.
func (v Verb) writes() bool {
	switch v {
	case Create, Update, Repair, Judge, Delete, Unmark, Begin:
		return true
	default:
		return false
	}
}

// String implements fmt.Stringer.
func (v Verb) String() string { return verbs[v] }

// Action is one step. Actions are done in order; an action that fails ends the list.
type Action struct {
	Verb Verb
	// Copy is the object for Suspect, Compare, Inspect, Judge, Delete, Unmark, Update and Repair.
	// For Begin it is the object that does the work already. It has no UID if there is no such
	// object. Create and Ask use Wanted.Object.
	Copy mirror.Object
	// Reason and Message are the result that Report reports. ReasonFullyApplied means that the
	// manifest is applied.
	Reason, Message string
	// After is the delay of Retry; 0: exponential backoff.
	After time.Duration
}

// restoreCheckRetry is the delay before Plan is called again for a removal that waits for
// Known.RestoreChecked.
const restoreCheckRetry = 500 * time.Millisecond

// Plan returns the actions for a binding in one cluster, in order. Without actions, there is
// nothing to do, or an event will cause the next call. Plan is a pure function.
func Plan(w Wanted, s Seen, k Known) []Action {
	return untilSettled(planSuspended(w, s, k), k)
}

// planSuspended returns the actions of plan, after pace has replaced a write that would put a copy
// back too early. If Wanted.Suspended is set and an action writes, one report of that reason
// replaces this action, all later actions and all other reports. The plan of a deleted binding is
// not suspended.
func planSuspended(w Wanted, s Seen, k Known) []Action {
	actions := pace(plan(w, s, k), w, k)
	if w.Suspended == "" || w.Intent != Place && w.Intent != Vacate {
		return actions
	}
	// Only a planned write shows that something is held back. Without one the results are reported
	// as usual.
	if i := slices.IndexFunc(actions, func(a Action) bool { return a.Verb.writes() }); i >= 0 {
		// There is only one result: that of the suspension replaces the others.
		before := slices.DeleteFunc(slices.Clone(actions[:i]), func(a Action) bool { return a.Verb == Report })
		actions = slices.Concat(before, report(w.Suspended, w.SuspendedMessage))
	}
	return actions
}

// plan returns the actions without regard to suspension and to the pauses between writes that put a
// copy back.
func plan(w Wanted, s Seen, k Known) []Action {
	if w.Intent != Place {
		return planRemoval(w, s, k)
	}
	switch {
	case !w.Decided:
		// A new decision starts another plan. This Retry is for a decision that changes nothing.
		return []Action{{Verb: Retry}}
	case w.Reason != "":
		return report(w.Reason, w.Message)
	case !s.Reachable:
		return planUnreachable(w, s, k)
	case (!s.Listed || s.At == presence.Unknown) && s.Problem != "":
		return append(planUnlisted(w, s, k), Action{Verb: Await})
	case !s.Listed || s.At == presence.Unknown:
		return []Action{{Verb: Await}}
	case s.At == presence.Absent && w.Work.tracked():
		return planAbsentWork(w, k)
	case s.At == presence.Absent && k.Unsure:
		return []Action{{Verb: Ask}}
	case s.At == presence.Absent:
		return send(Create, w, k, mirror.Object{})
	default:
		return planPresent(w, s, k)
	}
}

// report returns one Report with a reason and a message.
func report(reason, message string) []Action {
	return []Action{{Verb: Report, Reason: reason, Message: message}}
}

// planUnreachable returns the actions for a cluster that does not answer: a report. An applied
// manifest counts as applied until the cluster shows otherwise. While it is unknown whether the
// cluster answers, the action is a Retry.
func planUnreachable(w Wanted, s Seen, k Known) []Action {
	switch {
	case k.Applied && k.Digest == w.Digest:
		return report(workv1alpha2.ReasonFullyApplied, k.note(w))
	case w.Work.rests() != "":
		return report(workv1alpha2.ReasonFullyApplied, w.Work.rests())
	case s.Lost:
		return report(workv1alpha2.ReasonClusterUnreachable, "the cluster cannot be reached")
	default:
		return []Action{{Verb: Retry}} // the cluster was not probed yet
	}
}

// planUnlisted returns the report for a cluster that answers but cannot list the type. An applied
// manifest counts as applied until the cluster shows otherwise.
func planUnlisted(w Wanted, s Seen, k Known) []Action {
	if k.Applied && k.Digest == w.Digest {
		return report(workv1alpha2.ReasonFullyApplied, k.note(w))
	}
	return report(workv1alpha2.ReasonListFails, fmt.Sprintf(
		"the cluster cannot list %s, so whether %s is there is not known; it is placed once the list succeeds: %s",
		w.Object.Resource.GroupResource(), w.Object, s.Problem))
}

// planPresent returns the actions for a cluster that has an object in the place of the copy:
// s.AtObject.
func planPresent(w Wanted, s Seen, k Known) []Action {
	o := s.AtObject
	switch {
	case !o.Placed() && s.OurNamespace:
		return send(Update, w, k, o.Object)
	case !o.Placed():
		return planForeign(w, o, k)
	case o.Owner == Going:
		return []Action{{Verb: Retry}}
	case o.Owner == Another:
		return conflict(notPlaced(w))
	case o.Owner == Nobody && !o.Authentic:
		return planForeign(w, o, k) // placed by another hub
	case o.Deleting:
		return report(workv1alpha2.ReasonApplying, fmt.Sprintf("%s is being deleted; it is placed again when it is gone", w.Object))
	case o.Newer && k.Restored:
		return report(workv1alpha2.ReasonHubRestored, restoredMessage)
	case o.Newer:
		return []Action{{Verb: Suspect, Copy: o.Object}}
	case o.Owner == Binding && o.ThisJoin && w.Work.asked():
		return planRerun(w, o, k)
	case o.Owner == Nobody, o.Digest != w.Digest, !o.ThisJoin:
		return send(Update, w, k, o.Object)
	case k.Digest != w.Digest && (k.Unsure || k.Digest != ""):
		// An apply was never answered, so another client may have changed the object right after it.
		return send(Update, w, k, o.Object)
	case k.Digest == "":
		// The digest shows what was applied, not what is there now. There is no record of the fields,
		// or it was lost.
		return []Action{{Verb: Compare, Copy: o.Object}}
	case k.Drifted, k.Fields != 0 && k.Fields != o.Fields:
		return []Action{{Verb: Repair, Copy: o.Object}}
	}
	actions := report(workv1alpha2.ReasonFullyApplied, k.note(w))
	if o.Origin != "" && !k.Inspected {
		actions = append(actions, Action{Verb: Inspect, Copy: o.Object})
	}
	return append(actions, planLeftovers(w, s, k)...)
}

// note returns what the cluster changed of the wanted manifest, as far as is known; "" if
// another manifest was applied last.
func (k *Known) note(w Wanted) string {
	if k.Digest != w.Digest {
		return ""
	}
	return k.Note
}

// restoredMessage is the message of results, events and errors while the hub seems to be restored.
const restoredMessage = "the hub was restored from a backup, and the cluster has a newer version; " +
	"nothing is deleted or rolled back until that is confirmed: run orrery server confirm-restore"

// notPlaced returns the beginning of a conflict message: the wanted object exists, and this hub did
// not place it.
func notPlaced(w Wanted) string {
	return fmt.Sprintf("%s exists and was not placed by this hub", w.Object)
}

// wayOut ends the message about a conflict with an unmanaged object: what the user can do.
const wayOut = "; make the template equal (orrery promote does), set conflictResolution: Overwrite in its policy, or delete the object in the cluster"

// foreignMessage describes the conflict with an object without our mark, and how to end it. fields
// are the fields of the manifest that others own, if they are known.
func foreignMessage(w Wanted, fields ...string) string {
	message := notPlaced(w)
	if len(fields) > 0 {
		message += "; there " + strings.Join(fields, " and ")
	}
	if w.Foreign != Refuse {
		return message + wayOut
	}
	return message + fmt.Sprintf("; a PropagationPolicy takes objects only in namespaces that this hub made in the cluster, "+
		"or if namespace %s of the hub has the label %s=true", w.Object.Namespace, workv1alpha2.AllowTakeOverLabel)
}

// conflict returns a report of ReasonConflict and a Retry.
func conflict(message string) []Action {
	return []Action{
		{Verb: Report, Reason: workv1alpha2.ReasonConflict, Message: message},
		// No event reports the end of the conflict, and planning again costs no request.
		{Verb: Retry},
	}
}

// send returns an action that applies the manifest: verb is Create, Update or Begin, and o is the
// existing copy, zero for none. If the cluster has rejected this manifest, send returns until
// k.RetryAt only a Retry at that time.
func send(verb Verb, w Wanted, k Known, o mirror.Object) []Action {
	if k.Refused == w.Digest && k.Now.Before(k.RetryAt) {
		return []Action{{Verb: Retry, After: k.RetryAt.Sub(k.Now)}}
	}
	return []Action{{Verb: verb, Copy: o}}
}

// planForeign returns the actions for an object in the place of the copy that this hub did not
// place: Judge, which reads the object and decides whether it may become a copy. After a refusal it
// only reports the conflict, until the object or the manifest changes.
func planForeign(w Wanted, o Copy, k Known) []Action {
	if k.Judged != "" && k.Judged == judgement(w, o.Object) {
		actions := conflict(cmp.Or(k.JudgedMessage, foreignMessage(w)))
		actions[0].Reason = cmp.Or(k.JudgedReason, actions[0].Reason)
		return actions
	}
	if k.Refused == w.Digest && k.Now.Before(k.RetryAt) {
		// The cluster may have removed our marks from a copy: see task.unmarked.
		return []Action{{Verb: Retry, After: k.RetryAt.Sub(k.Now)}}
	}
	return []Action{{Verb: Judge, Copy: o.Object}}
}

// judgement returns the value of Known.Judged for an object and a manifest. As long as the value is
// equal, a refusal holds and the object is not judged again. It is "" if the resourceVersion of the
// object is unknown.
func judgement(w Wanted, o mirror.Object) string {
	if o.ResourceVersion == "" {
		return ""
	}
	about := fmt.Sprintf("%s/%s/%s/%d", o.UID, o.ResourceVersion, w.Digest, w.Foreign)
	if len(w.Security) > 0 {
		about += fmt.Sprint("/", w.Security)
	}
	return about
}

// planLeftovers returns the actions that remove copies of the binding that are in the cluster under
// another kind, namespace or name than the wanted one.
func planLeftovers(w Wanted, s Seen, k Known) []Action {
	var actions []Action
	for _, c := range s.Copies {
		same := c.Resource.GroupResource() == w.Object.Resource.GroupResource() &&
			c.Namespace == w.Object.Namespace && c.Name == w.Object.Name
		if same || c.UID == s.AtObject.UID { // the object itself, perhaps listed by another API group
			continue
		}
		actions = append(actions, remove(c, false, k)...)
	}
	return actions
}

// leaves reports whether copies that are not wanted lose our marks and stay. Otherwise they are
// deleted.
func (w *Wanted) leaves() bool { return w.Intent == Leave || w.Intent != Place && w.Keeps }

// planRemoval returns the actions that remove all copies of a binding from the cluster: each is
// deleted or loses its marks. Copies from an earlier join stay. It returns nothing while the
// cluster does not answer or the copies are held, and Retry while it is not known what is wanted.
// Once no copy is left it returns Forget.
func planRemoval(w Wanted, s Seen, k Known) []Action {
	switch {
	case !s.Reachable:
		return nil // everything is planned again when the cluster answers
	case w.Intent == Vacate && !w.Decided, w.PolicyUnread:
		return []Action{{Verb: Retry}}
	case w.Intent == Vacate && w.Held:
		return nil // the event that ends the wait starts another plan
	}
	var actions []Action
	left := false
	for _, c := range s.Copies {
		if !c.ThisJoin {
			continue // from an earlier join: an orphan, which is removed on request only
		}
		left = true
		actions = append(actions, remove(c, w.leaves(), k)...)
	}
	switch {
	case !s.Listed && s.Problem != "" && !slices.ContainsFunc(actions, func(a Action) bool { return a.Verb == Report }):
		actions = append(actions, report(workv1alpha2.ReasonListFails,
			"whether a copy is left is not known, because the cluster cannot list the type: "+s.Problem)...)
		return append(actions, Action{Verb: Await})
	case !s.Listed:
		return append(actions, Action{Verb: Await})
	case left:
		return actions // when the copies are gone, the mirror reports that
	case k.Unsure:
		return []Action{{Verb: Ask}}
	default:
		return []Action{{Verb: Forget}}
	}
}

// remove returns the action for one unwanted copy: Delete, or Unmark if leave is true or the object
// was there before the hub. It returns nothing for a copy from an earlier join or one that is being
// deleted. It returns a report or a Retry while a restore is suspected or not ruled out, and
// Suspect for a copy newer than the hub.
func remove(c Copy, leave bool, k Known) []Action {
	switch {
	case !c.ThisJoin || c.Deleting:
		return nil
	case k.Restored:
		return report(workv1alpha2.ReasonHubRestored, restoredMessage)
	case !k.RestoreChecked:
		return []Action{{Verb: Retry, After: restoreCheckRetry}}
	case c.Newer:
		return []Action{{Verb: Suspect, Copy: c.Object}}
	case leave || c.Origin != "":
		return []Action{{Verb: Unmark, Copy: c.Object}}
	default:
		return []Action{{Verb: Delete, Copy: c.Object}}
	}
}
