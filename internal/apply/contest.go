package apply

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/mark"
)

// A write puts a copy back if its cluster had the same manifest before: somebody changed or
// deleted the copy since. A copy that is put back again and again is contested: the hub reports
// who changes it, and writes at growing intervals. All of this is decided from the memory of
// one process. After a restart the first writes are immediate again, and the status keeps a
// reported contest until this process has watched for PutBackMemory.

const (
	// PutBackMemory is the time for which a write that put a copy back counts in the decision whether
	// the copy is contested. A copy stops being contested once none of its writes counts any more.
	PutBackMemory = 15 * time.Minute
	// immediatePutBacks is the number of writes in a row that put a copy back without a pause. A pause
	// precedes each later write. The longest pause is less than a fifth of PutBackMemory. So
	// contestedAfter writes for one field still count if each write puts back only one of two fields,
	// in turn.
	immediatePutBacks = 3
	// firstPutBackPause is the first pause before a copy is put back; each later pause is twice as
	// long.
	firstPutBackPause = time.Second
	// longestPutBackPause bounds the pause before a copy is put back.
	longestPutBackPause = 150 * time.Second
	// contestedAfter is the number of counted writes that put back the same field, or the deleted
	// copy, after which the copy is contested.
	contestedAfter = 3
	// maxPutBacks bounds the writes that are remembered for a copy.
	maxPutBacks = 16
	// maxLosses bounds the fields that are remembered for each write.
	maxLosses = 16
)

// Contest describes a copy that is put back again and again. The zero value means that the copy
// is not contested.
type Contest struct {
	// Reason is a reason of ConditionContested. Message names the object, the fields and who
	// changes them.
	Reason, Message string
}

// loss is what a copy lost because of another client: a field, or the whole copy.
type loss struct {
	path    string // of the field; "" for the whole copy
	manager string // the current owner of the field; "" if managedFields names none
	hub     bool   // another hub of Orrery applied the object
}

// putBack is one write that put a copy back.
type putBack struct {
	time   time.Time
	losses []loss
}

// putsBack reports whether applying the manifest puts a copy back: the cluster had the manifest
// before, and nobody requested another run of its work.
func putsBack(w Wanted, k Known) bool {
	return k.Digest != "" && k.Digest == w.Digest && !w.Work.asked()
}

// pause returns the time until the copy may be put back again; 0: now.
func (k *Known) pause() time.Duration { return pauseAfter(k.PutBacks, k.PutBack, k.Now) }

// pauseAfter returns the time until a copy or the labels of a namespace may be put back again. n is
// the number of writes in a row that put it back, and last the time of the last one. It is 0 for
// the first immediatePutBacks writes and once PutBackMemory has passed since last.
func pauseAfter(n int, last, now time.Time) time.Duration {
	if n < immediatePutBacks || now.Sub(last) > PutBackMemory {
		return 0
	}
	pause := min(firstPutBackPause<<min(n-immediatePutBacks, 16), longestPutBackPause)
	return max(0, last.Add(pause).Sub(now))
}

// pace returns the actions, in which the first write is replaced by a Retry if it would put the
// copy back before the pause is over. The actions after it are left out. pace does not change its
// arguments.
func pace(actions []Action, w Wanted, k Known) []Action {
	if !putsBack(w, k) {
		return actions
	}
	i := slices.IndexFunc(actions, func(a Action) bool {
		switch a.Verb {
		case Create, Update, Repair, Judge, Begin:
			return true
		default:
			return false
		}
	})
	if wait := k.pause(); i >= 0 && wait > 0 {
		return append(slices.Clone(actions[:i]), Action{Verb: Retry, After: wait})
	}
	return actions
}

// untilSettled appends a Retry to the actions of a contested copy. The Retry comes when the copy
// stops being contested, if nothing else happens until then.
func untilSettled(actions []Action, k Known) []Action {
	if !k.Contested {
		return actions
	}
	return append(actions, Action{Verb: Retry, After: max(time.Second, k.PutBack.Add(PutBackMemory).Sub(k.Now)+time.Second)})
}

// stillCounting returns, in a new slice, the writes in row that are not older than PutBackMemory.
// row are the remembered writes that put a copy back. Only the returned writes show whether the
// copy is contested.
func stillCounting(row []putBack, now time.Time) []putBack {
	return slices.DeleteFunc(slices.Clone(row), func(p putBack) bool { return now.Sub(p.time) > PutBackMemory })
}

// contest decides whether a copy is contested, and by which clients. row are the remembered writes
// that put the copy back; those older than PutBackMemory are ignored. It returns the zero value if
// the copy is not contested.
func contest(object Object, row []putBack, now time.Time) Contest {
	type lost struct {
		path string
		hub  bool
	}
	times, last := map[lost]int{}, map[lost]string{}
	row = stillCounting(row, now)
	for _, p := range row {
		for _, l := range p.losses {
			key := lost{l.path, l.hub}
			times[key]++
			last[key] = l.manager
		}
	}
	byManager := map[string][]string{}
	deleted, hub := false, false
	for key, n := range times {
		switch {
		case n < contestedAfter:
		case key.hub:
			hub = true
		case key.path == "":
			deleted = true
		default:
			byManager[last[key]] = append(byManager[last[key]], key.path)
		}
	}
	switch {
	case hub:
		return Contest{workv1alpha2.ReasonOtherHub, fmt.Sprintf("another hub of Orrery applies %s as well", object)}
	case deleted:
		return Contest{workv1alpha2.ReasonCopyDeleted, fmt.Sprintf("something in the cluster deletes %s each time the hub creates it", object)}
	case len(byManager) == 0:
		return Contest{}
	}
	var said []string
	for manager, paths := range byManager {
		slices.Sort(paths)
		who := fmt.Sprintf("%q changes ", manager)
		if manager == "" {
			who = "a client that managedFields does not name removes "
		}
		said = append(said, who+some(paths))
	}
	slices.Sort(said)
	message := fmt.Sprintf("%s of %s each time the hub puts it back", some(said), object)
	if slices.ContainsFunc(slices.Concat(slices.Collect(maps.Values(byManager))...), func(path string) bool { return path == "spec.replicas" }) {
		message += " (the label " + workv1alpha2.RetainReplicasLabel + "=true on the template leaves replicas to the cluster)"
	}
	return Contest{workv1alpha2.ReasonFieldsChanged, message}
}

// afterEdit returns the remembered writes (row) that still count after another manifest was
// applied. ours are the fields that the hub still owns. Of the losses of each write, only the whole
// copy and fields in ours remain. Writes without such a loss are left out. afterEdit does not
// change row.
func afterEdit(row []putBack, ours fieldSet) []putBack {
	fields := ours.paths("")
	var left []putBack
	for _, p := range row {
		p.losses = slices.DeleteFunc(slices.Clone(p.losses), func(l loss) bool { return l.path != "" && !fields[l.path] })
		if len(p.losses) > 0 {
			left = append(left, p)
		}
	}
	return left
}

// paths returns the paths of all fields in the set, also of the maps and lists around other fields.
// path is the path of the value that the set describes; "" for the whole object.
func (s fieldSet) paths(path string) map[string]bool {
	all := map[string]bool{}
	for key, value := range s {
		if key == "." {
			continue
		}
		here := pathOf(path, key)
		all[here] = true
		part, _ := value.(map[string]any)
		for p := range fieldSet(part).paths(here) {
			all[p] = true
		}
	}
	return all
}

// isOtherHubs reports whether another hub placed an object: the object has a well-formed mark that
// was not made with key, the key of this hub. It is false for an object with the label of binding,
// a binding of this hub.
func isOtherHubs(live *unstructured.Unstructured, binding string, key mark.Key) bool {
	source := live.GetAnnotations()[workv1alpha2.SourceAnnotation]
	if source == "" || live.GetLabels()[workv1alpha2.BindingLabel] == binding {
		return false
	}
	if _, err := mark.Parse(source); err != nil {
		return false
	}
	_, err := key.Verify(source)
	return err != nil
}

// losses returns the fields that an apply of a manifest put back: before the apply they had other
// values and the hub did not own them. before is the copy before the apply, and applied the copy
// after it. The losses are sorted by path and name the former owner. There are at most maxLosses.
func losses(manifest, before, applied *unstructured.Unstructured) []loss {
	var others []owner
	for _, entry := range before.GetManagedFields() {
		if !isOurs(entry) && entry.Manager != workv1alpha2.ReplicasFieldManager {
			others = append(others, owner{manager: entry.Manager, fields: fieldsIn(entry)})
		}
	}
	version := manifest.GetAPIVersion()
	c := lossSearch{}
	c.compare("", manifest.Object, before.Object, ownSet(applied, version), ownSet(before, version), others)
	slices.SortFunc(c.found, func(a, b loss) int { return strings.Compare(a.path, b.path) })
	return c.found[:min(len(c.found), maxLosses)]
}

// owner is a field manager with its fields in a part of an object. whole is true if it owns all
// of the part.
type owner struct {
	manager string
	fields  fieldSet
	whole   bool
}

// lossSearch collects the result of one call of losses.
type lossSearch struct{ found []loss }

// compare looks for losses in a value. wanted is the value in the manifest, and is that in the copy
// before the apply. now are the fields in the value that the hub owns after the apply, and ours
// those before the apply. others are the fields of other managers before the apply.
func (c *lossSearch) compare(path string, wanted, is any, now, ours fieldSet, others []owner) {
	switch wanted := wanted.(type) {
	case map[string]any:
		fields, _ := is.(map[string]any)
		for name, value := range wanted {
			c.part(path, "f:"+name, value, fields[name], now, ours, others)
		}
	case []any:
		elements, _ := is.([]any)
		for i, value := range wanted {
			key, element := now.element(value, i), counterpart(wanted, elements, i)
			switch kind, _, _ := strings.Cut(key, ":"); kind {
			case "k":
				element = keyed(elements, key)
			case "v":
				if element = nil; slices.ContainsFunc(elements, func(e any) bool { return same(value, e) }) {
					element = value
				}
			}
			c.part(path, key, value, element, now, ours, others)
		}
	}
}

// part compares one field of a map, or one element of a list, with the arguments of compare. key is
// its key in the field sets. It adds a loss if the hub took a value that differs.
func (c *lossSearch) part(path, key string, wanted, is any, now, ours fieldSet, others []owner) {
	if now[key] == nil {
		return // the hub does not own the field after the apply either
	}
	nowPart, nowWhole := now.at(key)
	ourPart, ourWhole := ours.at(key)
	if ourWhole {
		return
	}
	var within []owner
	for _, o := range others {
		fields, whole := o.fields.at(key)
		if o.whole || fields != nil {
			within = append(within, owner{o.manager, fields, o.whole || whole})
		}
	}
	here := pathOf(path, key)
	if !nowWhole {
		c.compare(here, wanted, is, nowPart, ourPart, within)
		return
	}
	if !taken(wanted, is, nil, false) {
		return
	}
	l := loss{path: here}
	if len(within) > 0 {
		l.manager = within[0].manager
	}
	c.found = append(c.found, l)
}
