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
	// PutBackMemory is the time for which a write that put a copy back counts. A copy stops being
	// contested once none of its writes counts any more.
	PutBackMemory = 15 * time.Minute
	// immediatePutBacks is the number of writes in a row that put a copy back without a pause. The
	// pause before the next write is firstPutBackPause, then twice as long each time, up to
	// longestPutBackPause. The longest pause must be so much shorter than PutBackMemory that
	// writes still count that put back a field only every other time.
	immediatePutBacks   = 3
	firstPutBackPause   = time.Second
	longestPutBackPause = 5 * time.Minute
	// contestedAfter is the number of counted writes that put back the same field, or the deleted
	// copy, after which the copy is contested.
	contestedAfter = 3
	// maxPutBacks bounds the writes that are remembered for a copy, and maxLosses the fields of
	// each write.
	maxPutBacks = 16
	maxLosses   = 16
)

// Contest describes a copy that is put back again and again. The zero value means that the copy
// is not contested.
type Contest struct {
	// Reason is a reason of ConditionContested. Message names the object, the fields and who
	// changes them.
	Reason, Message string
}

// loss is what a copy lost: a field, or the whole copy.
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

// pause returns the time until the copy may be put back again.
func (k *Known) pause() time.Duration { return pauseAfter(k.PutBacks, k.PutBack, k.Now) }

// pauseAfter returns the time until something may be put back again, after n writes in a row
// that put it back, the last of them at the time last.
func pauseAfter(n int, last, now time.Time) time.Duration {
	if n < immediatePutBacks || now.Sub(last) > PutBackMemory {
		return 0
	}
	pause := min(firstPutBackPause<<min(n-immediatePutBacks, 16), longestPutBackPause)
	return max(0, last.Add(pause).Sub(now))
}

// pace replaces the first write that puts a copy back too early by a Retry, and drops the
// actions after it.
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

// untilSettled plans again at the time at which a contested copy stops being contested if
// nothing else happens.
func untilSettled(actions []Action, k Known) []Action {
	if !k.Contested {
		return actions
	}
	return append(actions, Action{Verb: Retry, After: max(time.Second, k.PutBack.Add(PutBackMemory).Sub(k.Now)+time.Second)})
}

// stillCounting returns the writes that still count. row is in the order of time, and is not
// changed.
func stillCounting(row []putBack, now time.Time) []putBack {
	return slices.DeleteFunc(slices.Clone(row), func(p putBack) bool { return now.Sub(p.time) > PutBackMemory })
}

// contest decides from the writes that still count whether a copy is contested, and by whom.
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

// afterEdit returns the writes that put back fields which are still ours, or the whole copy,
// after another manifest was applied. A field that is no longer ours is not contested.
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

// paths returns the paths of all fields in the set, and of the values around them.
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

// isOtherHubs reports whether an object has the marks of another hub than the one with the key.
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

// losses returns the fields that the apply of a manifest put back: they had other values, and
// were not ours before the apply. The losses are sorted by path and name the former owner.
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

// compare looks for losses in a value of a manifest. now are our fields in it after the apply,
// ours those before it, and others the fields of other managers before it.
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

// part compares a field, or an element of a list, that has the key in the field sets.
func (c *lossSearch) part(path, key string, wanted, is any, now, ours fieldSet, others []owner) {
	if now[key] == nil {
		return // it is not ours after the apply either
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
