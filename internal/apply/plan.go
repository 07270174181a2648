package apply

import (
	"cmp"
	"fmt"
	"slices"
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

// Foreign is what may be done with an object that this hub did not create and that is where a
// copy is to be.
type Foreign int

// The values of Foreign.
const (
	Refuse   Foreign = iota // the object is left alone
	Adopt                   // the object becomes a copy if it is equal to the manifest
	TakeOver                // the object becomes a copy, and gets the manifest
)

// Wanted is what a binding wants of one cluster.
type Wanted struct {
	Intent Intent
	// Decided is false while the placement is for another generation of the template, or was
	// decided without knowing the Cluster. Nothing is done then.
	Decided bool
	// Reason and Message say why Manifest is nil. Reason is empty if there is a manifest.
	Reason, Message string
	// Object is where the manifest belongs, Digest its digest, and Source what it is rendered
	// from.
	Object   Object
	Manifest *unstructured.Unstructured
	Digest   string
	Source   mark.Source
	Foreign  Foreign
	// Security are the Pod Security labels of the hub's namespace.
	Security map[string]string
	// Keeps is true if the copies lose our marks, and are not deleted, once the binding does not
	// name the cluster any more. That is so for a PersistentVolumeClaim that is placed only as the
	// dependency of a workload: nobody asked to delete its data. It is also so where objects need
	// the copy whose template was deleted with propagation Orphan, so that they stayed in the
	// cluster.
	Keeps bool
	// Held is true if the copies have to stay for now in a cluster that the binding does not name
	// any more; see Release.
	Held bool
	// Suspended is the reason why the placement holds back all writes to the cluster, and
	// SuspendedMessage explains it; empty: writes are not held back. The deletion of a binding is
	// never held back.
	Suspended, SuspendedMessage string
	// Work is the work of a template that ends, such as a Job.
	Work Work
}

// Owner says which binding an object belongs to by its mark.
type Owner int

// The values of Owner.
const (
	Nobody  Owner = iota // no binding that the hub has
	Binding              // the binding that is planned for
	Another              // another binding
	Going                // another binding, which is being deleted
)

// Copy is an object in the cluster that carries a binding's mark.
type Copy struct {
	mirror.Object

	Owner Owner
	// Authentic is true if this hub made the mark, and ThisJoin if it did so since the cluster
	// joined. Newer is true if the copy was made from a state that the hub does not have (yet, or
	// any more).
	Authentic, ThisJoin, Newer bool
}

// Seen is what is known of the cluster for a binding.
type Seen struct {
	Reachable bool
	// Lost is true if the cluster is known not to answer. Right after a start it is false, for
	// that is not known yet.
	Lost bool
	// Listed is true if every copy that the cluster may have is known. Problem says why the
	// cluster cannot list the type; empty: the list works, or is being read.
	Listed  bool
	Problem string
	// At says whether an object is where the manifest belongs, and AtObject is that object.
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
	// Digest is that of the manifest that was applied last, and Fields the hash of the fields that
	// were ours then. A different hash later means that somebody took fields from us.
	Digest string
	Fields uint64
	// Drifted is true if others changed the copy since Digest was applied.
	Drifted bool
	// Applied is true if the cluster was seen to have Digest.
	Applied bool
	// Note says what the cluster changed of the manifest; empty: the cluster has the manifest as
	// it was applied.
	Note string
	// Refused is the digest of the manifest that the cluster rejected. It is not sent again before
	// RetryAt.
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
	// Restored is true while the hub seems to be restored from a backup and nobody confirmed that.
	Restored bool
	// Surveyed is true once this process has checked, in every cluster that answers, whether a
	// copy is newer than the hub.
	Surveyed bool
	// Fate is what is known of the copy that Wanted.Work.Mark describes, if that copy is not
	// there.
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

var verbs = [...]string{
	"Report", "Await", "Retry", "Forget", "Suspect", "Ask", "Compare", "Inspect", "Create", "Update", "Repair", "Judge", "Delete", "Unmark",
	"Begin", "Recall",
}

// writes reports whether the verb may change the cluster.
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
	// Copy is the object for Suspect, Compare, Inspect, Judge, Delete, Unmark, Update and Repair,
	// and for Begin the object that does the work already, without a UID if there is none. Create
	// and Ask use Wanted.Object.
	Copy mirror.Object
	// Reason and Message are those of Report. ReasonFullyApplied means that the manifest is
	// applied.
	Reason, Message string
	// After is the delay of Retry; 0: exponential backoff.
	After time.Duration
}

// surveyLook is the delay before a removal is planned again that waits for Known.Surveyed.
const surveyLook = 500 * time.Millisecond

// Plan returns what to do for a binding in one cluster. It is pure.
func Plan(w Wanted, s Seen, k Known) []Action {
	return untilSettled(planSuspended(w, s, k), k)
}

// planSuspended returns the actions at the pace at which a copy may be put back, without those
// that Wanted.Suspended holds back.
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

func report(reason, message string) []Action {
	return []Action{{Verb: Report, Reason: reason, Message: message}}
}

// planUnreachable reports on a cluster that does not answer. An applied manifest counts as
// applied until the cluster shows otherwise.
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

// planUnlisted reports on a cluster that answers but cannot list the type. An applied manifest
// counts as applied until the cluster shows otherwise.
func planUnlisted(w Wanted, s Seen, k Known) []Action {
	if k.Applied && k.Digest == w.Digest {
		return report(workv1alpha2.ReasonFullyApplied, k.note(w))
	}
	return report(workv1alpha2.ReasonListFails, fmt.Sprintf(
		"the cluster cannot list %s, so whether %s is there is not known; it is placed once the list succeeds: %s",
		w.Object.Resource.GroupResource(), w.Object, s.Problem))
}

// planPresent plans where an object is at the place of the manifest.
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
		// Our own apply was never answered, so somebody may have changed the object right after it.
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

// note returns what the cluster changed of the wanted manifest, as far as is known.
func (k *Known) note(w Wanted) string {
	if k.Digest != w.Digest {
		return ""
	}
	return k.Note
}

const restoredMessage = "the hub was restored from a backup, and the cluster has a newer version; " +
	"nothing is deleted or rolled back until that is confirmed: run orrery server confirm-restore"

// notPlaced says that an object exists that this hub did not place.
func notPlaced(w Wanted) string {
	return fmt.Sprintf("%s exists and was not placed by this hub", w.Object)
}

// wayOut ends a message about a conflict with an unmanaged object.
const wayOut = "; make the template equal (orrery promote does), set conflictResolution: Overwrite in its policy, or delete the object in the cluster"

// foreignMessage describes the conflict with an object without our mark, and how to end it.
func foreignMessage(w Wanted) string {
	if w.Foreign != Refuse {
		return notPlaced(w) + wayOut
	}
	return notPlaced(w) + fmt.Sprintf("; a PropagationPolicy takes objects only in namespaces that this hub made in the cluster, "+
		"or if namespace %s of the hub has the label %s=true", w.Object.Namespace, workv1alpha2.AllowTakeOverLabel)
}

func conflict(message string) []Action {
	return []Action{
		{Verb: Report, Reason: workv1alpha2.ReasonConflict, Message: message},
		// No event reports the end of the conflict, and planning again costs no request.
		{Verb: Retry},
	}
}

// send plans an apply of the manifest, or a wait if the cluster has just rejected that
// manifest.
func send(verb Verb, w Wanted, k Known, o mirror.Object) []Action {
	if k.Refused == w.Digest && k.Now.Before(k.RetryAt) {
		return []Action{{Verb: Retry, After: k.RetryAt.Sub(k.Now)}}
	}
	return []Action{{Verb: verb, Copy: o}}
}

// planForeign plans for an object that this hub did not place. The object has to be read, but
// not again before the object or the manifest changes.
func planForeign(w Wanted, o Copy, k Known) []Action {
	if k.Judged != "" && k.Judged == judgement(w, o.Object) {
		actions := conflict(cmp.Or(k.JudgedMessage, foreignMessage(w)))
		actions[0].Reason = cmp.Or(k.JudgedReason, actions[0].Reason)
		return actions
	}
	if k.Refused == w.Digest && k.Now.Before(k.RetryAt) {
		// It may be a copy that lost our marks.
		return []Action{{Verb: Retry, After: k.RetryAt.Sub(k.Now)}}
	}
	return []Action{{Verb: Judge, Copy: o.Object}}
}

// judgement identifies the object and the manifest for which the decision was made that the
// object may not become a copy. It is empty if the object is not known well enough.
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

// planLeftovers removes copies of the binding that are in the cluster under another kind or
// name.
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

// leaves reports whether unwanted copies lose our marks instead of being deleted.
func (w *Wanted) leaves() bool { return w.Intent == Leave || w.Intent != Place && w.Keeps }

// planRemoval removes all copies of a binding from the cluster: it deletes them or removes
// their marks.
func planRemoval(w Wanted, s Seen, k Known) []Action {
	switch {
	case !s.Reachable:
		return nil // everything is planned again when the cluster answers
	case w.Intent == Vacate && !w.Decided:
		return []Action{{Verb: Retry}}
	case w.Intent == Vacate && w.Held:
		return nil // the event that Held waits for starts another plan
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
		return actions // the mirror reports when they are gone
	case k.Unsure:
		return []Action{{Verb: Ask}}
	default:
		return []Action{{Verb: Forget}}
	}
}

// remove plans the removal of one copy. leave removes only the marks.
func remove(c Copy, leave bool, k Known) []Action {
	switch {
	case !c.ThisJoin || c.Deleting:
		return nil
	case k.Restored:
		return report(workv1alpha2.ReasonHubRestored, restoredMessage)
	case !k.Surveyed:
		return []Action{{Verb: Retry, After: surveyLook}}
	case c.Newer:
		return []Action{{Verb: Suspect, Copy: c.Object}}
	case leave || c.Origin != "":
		return []Action{{Verb: Unmark, Copy: c.Object}}
	default:
		return []Action{{Verb: Delete, Copy: c.Object}}
	}
}
