package placement

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/binding"
	"orrery.dev/orrery/internal/fleet"
)

// A template that is deleted with propagation Orphan leaves behind in clusters what its copies own,
// such as pods. These orphans need the dependencies of the template in the same clusters. So the
// binding of each dependency names the deleted template until the template is placed in these
// clusters again. See docs/design/0023-deletion-propagation.md.

const (
	// mostOrphans is the number of deleted templates that a binding names in requiredByOrphans at
	// most. One more entry, without a name, has the clusters of all others.
	mostOrphans = 20
	// waitPatience is how long a deletion waits for the bindings of the dependencies before
	// DeletionWait returns a message about it.
	waitPatience = 10 * time.Second
)

// requiredByOrphans returns the templates whose orphans in clusters need the template k, in the
// form in which a binding stores them; nil: none. These are the templates that the binding b of k
// (nil: none) names, those of the dependents in required that are being deleted now, and those
// whose copies an eviction with the purge mode Never leaves behind. A template that is placed in a
// cluster again has no orphans there.
func (c *Controller) requiredByOrphans(k binding.Template, required []Dependent, b *workv1alpha2.ResourceBinding) []workv1alpha2.OrphaningTemplate {
	all := map[binding.Template]sets.Set[string]{}
	add := func(of binding.Template, clusters []string) {
		if all[of] == nil {
			all[of] = sets.New[string]()
		}
		all[of].Insert(clusters...)
	}
	if b != nil {
		for _, o := range b.Spec.RequiredByOrphans {
			add(orphaning(k.Namespace, o), o.Clusters)
		}
	}
	if len(all) == 0 && !slices.ContainsFunc(required, func(n Dependent) bool { return orphans(n.Binding) || len(leftBehind(&n.Binding.Spec)) > 0 }) {
		return nil
	}
	for _, by := range c.dependencyIndex.everybody(k) {
		of, behind := binding.TemplateOf(by), leftBehind(&by.Spec)
		switch {
		case orphans(by):
			add(of, whereabouts(&by.Spec))
		case all[of] != nil && by.DeletionTimestamp.IsZero():
			// The template is placed in these clusters again, and has adopted its orphans there.
			all[of].Delete(whereabouts(&by.Spec)...)
		}
		if len(behind) > 0 {
			add(of, behind)
		}
	}
	return orphaningTemplates(all)
}

// orphans reports whether the template of a binding is deleted with propagation Orphan.
func orphans(b *workv1alpha2.ResourceBinding) bool {
	return b.Spec.DeletionPropagation == metav1.DeletePropagationOrphan
}

// orphaning returns the key of a deleted template that a binding in the namespace names in
// requiredByOrphans.
func orphaning(namespace string, o workv1alpha2.OrphaningTemplate) binding.Template {
	return binding.Template{GroupKind: schema.GroupKind{Group: o.Group, Kind: o.Kind}, Namespace: namespace, Name: o.Name}
}

// orphaningTemplates returns deleted templates and the clusters with their orphans in the form in
// which a binding stores them: sorted, and at most mostOrphans. One more entry without a kind has
// the clusters of all others.
func orphaningTemplates(all map[binding.Template]sets.Set[string]) []workv1alpha2.OrphaningTemplate {
	var named []workv1alpha2.OrphaningTemplate
	others := sets.New[string]()
	for of, clusters := range all {
		switch {
		case of.Kind == "":
			others = others.Union(clusters)
		case len(clusters) > 0:
			named = append(named, workv1alpha2.OrphaningTemplate{Group: of.Group, Kind: of.Kind, Name: of.Name, Clusters: sets.List(clusters)})
		}
	}
	slices.SortFunc(named, func(a, b workv1alpha2.OrphaningTemplate) int {
		return compareDependencies(
			workv1alpha2.DependencyReference{Group: a.Group, Kind: a.Kind, Name: a.Name}, workv1alpha2.DependencyReference{Group: b.Group, Kind: b.Kind, Name: b.Name},
		)
	})
	for len(named) > mostOrphans {
		others.Insert(named[len(named)-1].Clusters...)
		named = named[:len(named)-1]
	}
	if len(others) > 0 {
		named = append(named, workv1alpha2.OrphaningTemplate{Clusters: sets.List(others)})
	}
	return named
}

// inFleet returns copies of the entries of requiredByOrphans without clusters that are not in the
// fleet. Entries without clusters are left out.
func inFleet(s *fleet.Snapshot, all []workv1alpha2.OrphaningTemplate) []workv1alpha2.OrphaningTemplate {
	var left []workv1alpha2.OrphaningTemplate
	for _, o := range all {
		o.Clusters = slices.DeleteFunc(slices.Clone(o.Clusters), func(name string) bool {
			_, known := s.Cluster(name)
			return !known
		})
		if len(o.Clusters) > 0 {
			left = append(left, o)
		}
	}
	return left
}

// behind returns the dependencies for which the deletion of the binding b waits, sorted, and
// requeues them. The template of b is deleted with propagation Orphan, and the bindings of these
// dependencies do not say yet that their copies stay with the orphans.
func (c *Controller) behind(b *workv1alpha2.ResourceBinding) []binding.Template {
	var behind []binding.Template
	for t := range followed(b) {
		f, _ := c.bindings.Of(t)
		if f == nil || !f.DeletionTimestamp.IsZero() || staysWith(f, b) {
			continue
		}
		c.enqueue(t)
		behind = append(behind, t)
	}
	slices.SortFunc(behind, func(a, b binding.Template) int { return strings.Compare(a.String(), b.String()) })
	return behind
}

// staysWith reports whether the copies of a dependency stay in all clusters in which the template
// of b, which is being deleted, leaves orphans. f is the binding of the dependency, which says so.
func staysWith(f, b *workv1alpha2.ResourceBinding) bool {
	if dependencyOnly(f) && !f.Spec.PreserveResourcesOnDeletion {
		return false
	}
	kept := sets.New[string]()
	for _, o := range f.Spec.RequiredByOrphans {
		if o.Kind == "" || orphaning(b.Namespace, o) == binding.TemplateOf(b) {
			kept.Insert(o.Clusters...)
		}
	}
	here := sets.New(whereabouts(&f.Spec)...)
	return !slices.ContainsFunc(whereabouts(&b.Spec), func(cluster string) bool { return here.Has(cluster) && !kept.Has(cluster) })
}

// orphanWaits has the deletions with propagation Orphan that wait until the bindings of the
// dependencies are written, and the errors of such writes. It is safe for concurrent use.
type orphanWaits struct {
	mu     sync.Mutex
	since  map[types.UID]time.Time     // when the wait began, by UID of the deleted binding
	says   map[types.UID]string        // message for users, by UID of the deleted binding
	failed map[binding.Template]string // the error of the last write of a binding
}

func newOrphanWaits() *orphanWaits {
	return &orphanWaits{since: map[types.UID]time.Time{}, says: map[types.UID]string{}, failed: map[binding.Template]string{}}
}

// wrote records the error of the last write of a template's binding; nil: the write succeeded. The
// errors Conflict, AlreadyExists and NotFound count as success here.
func (w *orphanWaits) wrote(k binding.Template, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err == nil || apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err) {
		delete(w.failed, k)
		return
	}
	w.failed[k] = err.Error()
}

// forget removes what is recorded about a binding and its template.
func (w *orphanWaits) forget(b *workv1alpha2.ResourceBinding) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.since, b.UID)
	delete(w.says, b.UID)
	delete(w.failed, binding.TemplateOf(b))
}

// wait records that the deletion of the binding b waits for the bindings of the dependencies in
// behind. If that takes longer than c.waitPatience, DeletionWait returns a message for b, and the
// subscribers are notified of each new message. wait does not block: it returns the delay until the
// next check.
func (c *Controller) wait(b *workv1alpha2.ResourceBinding, behind []binding.Template) time.Duration {
	w := c.waits
	w.mu.Lock()
	if w.since[b.UID].IsZero() {
		w.since[b.UID] = time.Now()
	}
	if time.Since(w.since[b.UID]) < c.waitPatience {
		w.mu.Unlock()
		return staleLook
	}
	reasons := make([]string, 0, len(behind))
	for _, t := range behind {
		reason := t.String()
		if why := w.failed[t]; why != "" {
			reason += " (" + why + ")"
		}
		reasons = append(reasons, reason)
	}
	text := fmt.Sprintf("%s was deleted with propagation Orphan, and its copies are not released before its dependencies are marked to stay, too; not marked yet: %s; "+
		"find out why these bindings cannot be written, or continue without them: delete the binding %s", binding.TemplateOf(b), some(reasons), b.Name)
	news := w.says[b.UID] != text
	w.says[b.UID] = text
	w.mu.Unlock()
	if news {
		c.publish(b)
	}
	return settledLook
}

// DeletionWait returns a message for users if the deletion of the binding with this UID has waited
// longer than waitPatience. It waits if its template was deleted with propagation Orphan and the
// bindings of its dependencies are not written yet. Otherwise the result is "".
func (c *Controller) DeletionWait(uid types.UID) string {
	c.waits.mu.Lock()
	defer c.waits.mu.Unlock()
	return c.waits.says[uid]
}
