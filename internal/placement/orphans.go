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

// A template that is deleted with propagation Orphan leaves in clusters what its copies own, such
// as pods. They need the dependencies of the template there. The bindings of the dependencies
// remember it until the template is placed there again. docs/design/0023-deletion-propagation.md.

const (
	// mostOrphans bounds the templates that a binding names in requiredByOrphans. One more entry
	// has the clusters of all others.
	mostOrphans = 20
	// waitPatience is the time after which the binding of a template reports that its deletion
	// waits for the bindings of its dependencies.
	waitPatience = 10 * time.Second
)

// requiredByOrphans returns the templates whose orphans need the template k: those that its binding
// b (nil: none) names, and those that are being deleted now.
func (c *Controller) requiredByOrphans(k binding.Template, required []Need, b *workv1alpha2.ResourceBinding) []workv1alpha2.OrphaningTemplate {
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
	if len(all) == 0 && !slices.ContainsFunc(required, func(n Need) bool { return orphans(n.Binding) }) {
		return nil
	}
	for _, by := range c.needs.everybody(k) {
		switch of := binding.TemplateOf(by); {
		case orphans(by):
			add(of, whereabouts(&by.Spec))
		case all[of] != nil && by.DeletionTimestamp.IsZero():
			// The template is placed there again, and has adopted its orphans.
			all[of].Delete(whereabouts(&by.Spec)...)
		}
	}
	return orphaningTemplates(all)
}

// orphans reports whether the template of a binding is deleted with propagation Orphan.
func orphans(b *workv1alpha2.ResourceBinding) bool {
	return b.Spec.DeletionPropagation == metav1.DeletePropagationOrphan
}

func orphaning(namespace string, o workv1alpha2.OrphaningTemplate) binding.Template {
	return binding.Template{GroupKind: schema.GroupKind{Group: o.Group, Kind: o.Kind}, Namespace: namespace, Name: o.Name}
}

// orphaningTemplates returns templates and their clusters as a binding stores them: sorted, and
// at most mostOrphans by name.
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

// inFleet returns the entries with only those clusters that are in the fleet, and without entries
// that have none.
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

// behind returns the dependencies of a template that is deleted with propagation Orphan whose
// bindings do not say yet that their copies stay with the orphans.
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

// staysWith reports whether the binding f of a dependency says that its copies stay where the
// template of b leaves orphans.
func staysWith(f, b *workv1alpha2.ResourceBinding) bool {
	if follower(f) && !f.Spec.PreserveResourcesOnDeletion {
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

// orphanWaits has the deletions that wait for the bindings of dependencies, and the errors of
// the writes of those bindings.
type orphanWaits struct {
	mu     sync.Mutex
	since  map[types.UID]time.Time
	says   map[types.UID]string
	failed map[binding.Template]string // the error of the last write of a binding
}

func newOrphanWaits() *orphanWaits {
	return &orphanWaits{since: map[types.UID]time.Time{}, says: map[types.UID]string{}, failed: map[binding.Template]string{}}
}

// wrote records the error of the last write of a template's binding; nil: it succeeded.
// Conflicts and objects that exist already or are gone are no errors here.
func (w *orphanWaits) wrote(k binding.Template, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err == nil || apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err) {
		delete(w.failed, k)
		return
	}
	w.failed[k] = err.Error()
}

// forget forgets a binding.
func (w *orphanWaits) forget(b *workv1alpha2.ResourceBinding) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.since, b.UID)
	delete(w.says, b.UID)
	delete(w.failed, binding.TemplateOf(b))
}

// wait records that the deletion of a binding waits for the bindings of the dependencies
// behind. If that takes longer than waitPatience, the binding reports it. wait returns the
// delay until the next check.
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
	text := fmt.Sprintf("%s was deleted with propagation Orphan, and its copies stay until the bindings of what follows it say that this stays, too; these do not: %s; "+
		"see why they cannot be written, or go on without them: delete the binding %s", binding.TemplateOf(b), some(reasons), b.Name)
	news := w.says[b.UID] != text
	w.says[b.UID] = text
	w.mu.Unlock()
	if news {
		c.publish(b)
	}
	return settledLook
}

// DeletionWait returns why the deletion of a binding waits although its template is gone; "" if
// it does not wait.
func (c *Controller) DeletionWait(uid types.UID) string {
	c.waits.mu.Lock()
	defer c.waits.mu.Unlock()
	return c.waits.says[uid]
}
