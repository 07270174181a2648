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

// Intent is what a binding intends with one cluster.
type Intent int

// The values of Intent.
const (
	Place  Intent = iota // the binding names the cluster
	Vacate               // it does not: what it placed there before goes
	Remove               // it is deleted, and its copies with it
	Leave                // it is deleted, and its copies stay without our marks
)

// Foreign says what may become of an object that this hub did not make and that is where a copy
// is to be.
type Foreign int

// The values of Foreign.
const (
	Refuse   Foreign = iota // it is left alone
	Adopt                   // it becomes ours if it is equal to the manifest
	TakeOver                // it becomes what the manifest says
)

// Wanted is what a binding wants of one cluster.
type Wanted struct {
	Intent Intent
	// Decided is false while the placement is about another generation of the template, or was
	// decided without knowing the Cluster: nobody acts on it.
	Decided bool
	// Reason and Message say why there is no manifest.
	Reason, Message string
	// Object is the place of the manifest, Digest its digest, and Source what it is made from.
	Object   Object
	Manifest *unstructured.Unstructured
	Digest   string
	Source   mark.Source
	Foreign  Foreign
	// Security are the Pod Security labels of the hub's namespace.
	Security map[string]string
	// Keeps is true when copies lose our marks where the binding does not name the cluster any
	// more, and are not deleted: a PersistentVolumeClaim that only follows a workload has data
	// whose deletion nobody asked for, and what a template left in the cluster that was deleted
	// with propagation Orphan needs the copy.
	Keeps bool
	// Held is true of a cluster to be vacated in which the copies have to stay for now; see Release.
	Held bool
	// Suspended says why nothing is to be written to the cluster because of the placement, and
	// SuspendedMessage explains it. A deleted binding is not held up by that.
	Suspended, SuspendedMessage string
	// Work is that of a template that ends.
	Work Work
}

// Owner says whose mark is on an object.
type Owner int

// The values of Owner.
const (
	Nobody  Owner = iota // no binding's that the hub has
	Binding              // the binding's that is planned for
	Another              // another binding's
	Going                // another binding's that is being deleted
)

// Copy is an object in the cluster that carries a binding's mark.
type Copy struct {
	mirror.Object

	Owner Owner
	// Authentic is true when this hub marked it, ThisJoin when it did so for the cluster as it
	// is joined now, and Newer when it did so with what the hub does not have (yet, or any more).
	Authentic, ThisJoin, Newer bool
}

// Seen is what is known of the cluster.
type Seen struct {
	Reachable bool
	// Lost is true of a cluster that is known not to answer. Right after a start that is not known.
	Lost bool
	// Listed is true when every copy that the cluster may have is known. Problem is why the cluster
	// cannot list the type; empty: it can, or is at it.
	Listed  bool
	Problem string
	// At says what is at the place of the manifest.
	At       presence.Presence
	AtObject Copy
	// OurNamespace is true of a Namespace that this hub made in the cluster for other copies.
	OurNamespace bool
	// Copies are those of the binding in the cluster, the one at the place among them.
	Copies []Copy
}

// Known is what earlier acts in the cluster have shown. The zero value knows nothing.
type Known struct {
	Now time.Time
	// Digest of the manifest that was applied last, and the hash of the fields that were ours
	// then. Another hash later means that somebody took fields from us.
	Digest string
	Fields uint64
	// Drifted is true of a copy that was found to be changed by others since Digest was applied.
	Drifted bool
	// Applied is true when the cluster was seen to have Digest.
	Applied bool
	// Note says what the cluster made of it; empty: it has it as it was applied.
	Note string
	// Refused is the digest of the manifest that the cluster rejected; it is not sent again
	// before RetryAt.
	Refused string
	RetryAt time.Time
	// Judged is the object of others that was found not to be ours to take; see judgement.
	Judged                      string
	JudgedReason, JudgedMessage string
	// Inspected is true once it is known what of an object that was there before goes with the next change of its template.
	Inspected bool
	// PutBacks counts the writes in a row that put the copy back, and PutBack is the time of the last; see putsBack.
	PutBacks int
	PutBack  time.Time
	// Contested is true of a copy that is put back again and again.
	Contested bool
	// Unsure is true when a request was never answered, so that the cluster may have what was
	// not seen.
	Unsure bool
	// Restored is true while the hub was restored from a backup and nobody confirmed that.
	Restored bool
	// Surveyed is true once this process has looked at the copies in every cluster that answers for
	// one that is newer than the hub.
	Surveyed bool
	// Fate is what is known of the copy that Wanted.Work.Mark is about, if none is there.
	Fate Fate
}

// Verb is what an Action does.
type Verb int

// The values of Verb.
const (
	Report  Verb = iota // remember Reason and Message; calls nobody
	Await               // plan again when the types were listed; calls nobody
	Retry               // plan again after After, or with growing patience; calls nobody
	Forget              // remember that the cluster holds nothing of the binding; calls nobody
	Suspect             // find out whether the hub was restored from a backup
	Ask                 // read the object: what became of an earlier request is not known
	Compare             // read our copy: whether others changed it is not known
	Inspect             // read an object that was there before: what of it goes with the next change of its template is not known
	Create              // apply the manifest where nothing is
	Update              // apply the manifest to our copy
	Repair              // apply the manifest to our copy, which others changed
	Judge               // find out whether an object of others may become ours, and make it so
	Delete              // delete a copy
	Unmark              // take our marks off a copy
	Begin               // have the binding say that its work begins in the cluster, or that Copy does what was asked for
	Recall              // ask the cluster what became of a copy that is not there
)

var verbs = [...]string{
	"Report", "Await", "Retry", "Forget", "Suspect", "Ask", "Compare", "Inspect", "Create", "Update", "Repair", "Judge", "Delete", "Unmark",
	"Begin", "Recall",
}

// writes is true of what changes the cluster.
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

// Action is one thing to be done. Actions are done in order; one that fails ends the list.
type Action struct {
	Verb Verb
	// Copy is the object that Suspect, Compare, Judge, Delete and Unmark are about, and the one that
	// Update and Repair change. Create and Ask are about Wanted.Object.
	Copy mirror.Object
	// Reason and Message of Report; ReasonFullyApplied means applied.
	Reason, Message string
	// After of Retry; 0: with growing patience.
	After time.Duration
}

// surveyLook is when a removal is planned again that waits for the survey.
const surveyLook = 500 * time.Millisecond

// Plan says what is to be done for a binding in one cluster. It is pure.
func Plan(w Wanted, s Seen, k Known) []Action {
	return untilSettled(planSuspended(w, s, k), k)
}

// planSuspended says what is to be done at the pace of the copy, and what of it is held back.
func planSuspended(w Wanted, s Seen, k Known) []Action {
	actions := pace(plan(w, s, k), w, k)
	if w.Suspended == "" || w.Intent != Place && w.Intent != Vacate {
		return actions
	}
	// What would be written says that something is held back; without it nothing is, and what
	// was found is reported.
	if i := slices.IndexFunc(actions, func(a Action) bool { return a.Verb.writes() }); i >= 0 {
		before := slices.DeleteFunc(slices.Clone(actions[:i]), func(a Action) bool { return a.Verb == Report }) // there is one result
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
		return []Action{{Verb: Retry}} // a decision brings us back; this is for one that says nothing new
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

// planUnreachable reports on a cluster that does not answer: what was applied stays applied, as
// far as is known.
func planUnreachable(w Wanted, s Seen, k Known) []Action {
	switch {
	case k.Applied && k.Digest == w.Digest:
		return report(workv1alpha2.ReasonFullyApplied, k.note(w))
	case w.Work.rests() != "":
		return report(workv1alpha2.ReasonFullyApplied, w.Work.rests())
	case s.Lost:
		return report(workv1alpha2.ReasonClusterUnreachable, "the cluster cannot be reached")
	default:
		return []Action{{Verb: Retry}} // it was not asked yet
	}
}

// planUnlisted reports on a cluster that answers and cannot list the type: what was applied stays
// applied, as far as is known.
func planUnlisted(w Wanted, s Seen, k Known) []Action {
	if k.Applied && k.Digest == w.Digest {
		return report(workv1alpha2.ReasonFullyApplied, k.note(w))
	}
	return report(workv1alpha2.ReasonListFails, fmt.Sprintf(
		"the cluster cannot list %s, so whether %s is there is not known; it is placed once the list succeeds: %s",
		w.Object.Resource.GroupResource(), w.Object, s.Problem))
}

// planPresent plans for a place that is taken.
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
		// Our own apply was never answered: somebody may have changed the object right after it.
		return send(Update, w, k, o.Object)
	case k.Digest == "":
		// The digest says what was applied, not what is there: no record was kept, or it was lost.
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

// note is what is known of how the cluster has the manifest.
func (k *Known) note(w Wanted) string {
	if k.Digest != w.Digest {
		return ""
	}
	return k.Note
}

const restoredMessage = "the hub was restored from a backup, and the cluster has a newer version; " +
	"nothing is deleted or rolled back until that is confirmed: run orrery server confirm-restore"

// notPlaced says what is in the way.
func notPlaced(w Wanted) string {
	return fmt.Sprintf("%s exists and was not placed by this hub", w.Object)
}

// wayOut ends a message about an object of others that is in the way.
const wayOut = "; make the template equal (orrery promote does), set conflictResolution: Overwrite in its policy, or delete the object in the cluster"

// foreignMessage says so of an object without a mark, and the way out.
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
		{Verb: Retry}, // nobody tells when it goes away, but a look costs no call
	}
}

// send applies the manifest unless the cluster has just rejected it.
func send(verb Verb, w Wanted, k Known, o mirror.Object) []Action {
	if k.Refused == w.Digest && k.Now.Before(k.RetryAt) {
		return []Action{{Verb: Retry, After: k.RetryAt.Sub(k.Now)}}
	}
	return []Action{{Verb: verb, Copy: o}}
}

// planForeign plans for an object of others. What it is has to be read, but not again while
// neither it nor the manifest has changed.
func planForeign(w Wanted, o Copy, k Known) []Action {
	if k.Judged != "" && k.Judged == judgement(w, o.Object) {
		actions := conflict(cmp.Or(k.JudgedMessage, foreignMessage(w)))
		actions[0].Reason = cmp.Or(k.JudgedReason, actions[0].Reason)
		return actions
	}
	if k.Refused == w.Digest && k.Now.Before(k.RetryAt) {
		return []Action{{Verb: Retry, After: k.RetryAt.Sub(k.Now)}} // it may be ours, without our marks
	}
	return []Action{{Verb: Judge, Copy: o.Object}}
}

// judgement identifies what it was decided about that an object is not ours to take.
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

// planLeftovers removes what the binding placed in the cluster under another kind or name.
func planLeftovers(w Wanted, s Seen, k Known) []Action {
	var actions []Action
	for _, c := range s.Copies {
		same := c.Resource.GroupResource() == w.Object.Resource.GroupResource() &&
			c.Namespace == w.Object.Namespace && c.Name == w.Object.Name
		if same || c.UID == s.AtObject.UID { // the object itself, perhaps seen through another group
			continue
		}
		actions = append(actions, remove(c, false, k)...)
	}
	return actions
}

// leaves is true when copies that are not wanted lose our marks and are not deleted.
func (w *Wanted) leaves() bool { return w.Intent == Leave || w.Intent != Place && w.Keeps }

// planRemoval takes what a binding placed out of the cluster: deletes it, or only its marks.
func planRemoval(w Wanted, s Seen, k Known) []Action {
	switch {
	case !s.Reachable:
		return nil // everything is planned again when it answers
	case w.Intent == Vacate && !w.Decided:
		return []Action{{Verb: Retry}}
	case w.Intent == Vacate && w.Held:
		return nil // what it waits for brings us back
	}
	var actions []Action
	left := false
	for _, c := range s.Copies {
		if !c.ThisJoin {
			continue // of an earlier join: an orphan, which is removed on request only
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
		return actions // the mirror tells when they are gone
	case k.Unsure:
		return []Action{{Verb: Ask}}
	default:
		return []Action{{Verb: Forget}}
	}
}

// remove plans the end of one copy.
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
