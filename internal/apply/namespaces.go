package apply

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/mark"
	"orrery.dev/orrery/internal/member"
	"orrery.dev/orrery/internal/mirror"
	"orrery.dev/orrery/internal/podsecurity"
	"orrery.dev/orrery/internal/presence"
	"orrery.dev/orrery/internal/queue"
	"orrery.dev/orrery/internal/scheduler"
)

var (
	namespaceResource = schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
	crdResource       = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
)

func namespaceObject(name string) Object { return Object{Resource: namespaceResource, Name: name} }

// Spread says in which members the namespaces of the hub are created. It is the value of a
// flag; the zero value is SpreadNeeded.
type Spread string

// The values of Spread.
const (
	SpreadNeeded Spread = "Needed" // where something is placed in them
	SpreadAll    Spread = "All"    // in every member that they may use
)

// String implements pflag.Value.
func (s *Spread) String() string { return string(cmp.Or(*s, SpreadNeeded)) }

// Set implements pflag.Value.
func (s *Spread) Set(value string) error {
	if *s = Spread(value); *s != SpreadNeeded && *s != SpreadAll {
		return fmt.Errorf("%q is neither %s nor %s", value, SpreadNeeded, SpreadAll)
	}
	return nil
}

// Type implements pflag.Value.
func (*Spread) Type() string { return "Needed|All" }

// Fences says which clusters the hub's namespaces may use.
type Fences interface {
	// Allowed reports whether a namespace may use a cluster. It may return false before Synced.
	Allowed(namespace, cluster string) bool
	Synced() bool
	// SubscribeFences calls f with the namespaces whose allowed clusters changed.
	// SubscribeClusters calls f with a cluster whose allowed namespaces changed. f must not block.
	SubscribeFences(f func(namespaces sets.Set[string]))
	SubscribeClusters(f func(cluster string))
}

// everywhere holds the namespaces of the hub that are to be in every member. A nil everywhere,
// for SpreadNeeded, holds none.
type everywhere struct {
	fences Fences

	mu         sync.RWMutex
	namespaces sets.Set[string]
}

// follow records the state of a namespace of the hub; nil: it was deleted.
func (e *everywhere) follow(name string, n *metav1.PartialObjectMetadata) {
	if e == nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if n != nil && spreads(n) {
		e.namespaces.Insert(name)
	} else {
		e.namespaces.Delete(name)
	}
}

func (e *everywhere) all() []string {
	if e == nil {
		return nil
	}
	e.mu.RLock()
	defer e.mu.RUnlock()
	return e.namespaces.UnsortedList()
}

// in reports whether a namespace is to be in a cluster even if nothing is placed there.
func (e *everywhere) in(namespace, cluster string) bool {
	if e == nil {
		return false
	}
	e.mu.RLock()
	wanted := e.namespaces.Has(namespace)
	e.mu.RUnlock()
	return wanted && e.fences.Allowed(namespace, cluster)
}

// spreads reports whether SpreadAll includes a namespace of the hub. It excludes those of
// Kubernetes itself, those of Orrery, and those with the label to opt out.
func spreads(n *metav1.PartialObjectMetadata) bool {
	return n.DeletionTimestamp.IsZero() && n.Name != metav1.NamespaceDefault &&
		!strings.HasPrefix(n.Name, "kube-") && !strings.HasPrefix(n.Name, "orrery-") && n.Labels[workv1alpha2.SkipNamespaceLabel] != "true"
}

// followed returns the labels of a hub namespace that are copied to the namespaces which this
// hub created in members. The name is left out, as each API server sets it itself, and so are
// labels for Orrery.
func followed(labels map[string]string) map[string]string {
	out := make(map[string]string, len(labels))
	for key, value := range labels {
		domain, _, _ := strings.Cut(key, "/")
		if key != corev1.LabelMetadataName && !strings.HasSuffix(domain, ".orrery.dev") {
			out[key] = value
		}
	}
	return out
}

// ensureNamespace creates the namespace of a placed object if it is absent, with the labels of
// the hub's namespace and our mark. With the mark it is deleted once the hub's namespace is
// gone.
func (q *clusterQueue) ensureNamespace(ctx context.Context, name string) error {
	if name == "" || q.hasNamespace(name) {
		return nil
	}
	if spec := &q.member.Cluster().Spec; spec.Profile() != clusterv1alpha1.AgentProfileAll {
		return outOfBounds(namespaceResource.GroupResource(), name, fmt.Sprintf("there is no such namespace, and the profile %s of the agent lets the hub make none; make it in the cluster", spec.Profile()))
	}
	_, err, _ := q.creating.Do(name, func() (any, error) {
		if q.hasNamespace(name) {
			return nil, nil //nolint:nilnil // there is nothing to hand on
		}
		return nil, q.createNamespace(ctx, name)
	})
	return err
}

func (q *clusterQueue) createNamespace(ctx context.Context, name string) error {
	n, err := q.applier.hubNamespace(ctx, name)
	if err != nil {
		return err
	}
	labels := map[string]any{workv1alpha2.NamespaceLabel: q.applier.hubID}
	for key, value := range followed(n.Labels) {
		labels[key] = value
	}
	created, err := q.client.Create(ctx, namespaceObject(name), map[string]any{
		"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": name, "labels": labels},
	})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	if err != nil {
		return err
	}
	logr.FromContextOrDiscard(ctx).Info("created namespace", "namespace", name)
	q.applier.mirror.Observe(q.name(), namespaceResource, created)
	return nil
}

// outOfBounds returns the error for what the profile of a cluster's agent does not allow.
func outOfBounds(gr schema.GroupResource, name, why string) error {
	return apierrors.NewForbidden(gr, name, errors.New(why))
}

// bounds returns why the hub may not change objects in a namespace of the cluster; "" if it
// may. The namespace "" stands for objects without one.
func (q *clusterQueue) bounds(namespace string) string {
	spec := &q.member.Cluster().Spec
	if spec.MayPlace(namespace) {
		return ""
	}
	return (&scheduler.Bounds{Profile: string(spec.Profile()), Namespaces: spec.PlacementNamespaces()}).String()
}

func (q *clusterQueue) hasNamespace(name string) bool {
	is, _ := q.find(namespaceObject(name))
	return is == presence.Present
}

// reclaim makes an orphan a copy again in one write, so that it is never without an owner. It
// also marks its namespace again if this hub created that.
func (t *task) reclaim(ctx context.Context, live *unstructured.Unstructured, origin string) error {
	q, o := t.queue, t.wanted.Object
	if o.Namespace != "" {
		n, err := q.client.Get(ctx, namespaceObject(o.Namespace))
		if err != nil {
			return err
		}
		orphan, ok := mark.ParseOrphan(n.GetAnnotations()[workv1alpha2.OrphanAnnotation])
		if ok && orphan.Hub == q.applier.hubID && n.GetLabels()[workv1alpha2.NamespaceLabel] == "" {
			marked, err := q.client.Mark(ctx, namespaceObject(o.Namespace), n.GetUID(),
				map[string]any{workv1alpha2.NamespaceLabel: q.applier.hubID}, map[string]any{workv1alpha2.OrphanAnnotation: nil})
			if err != nil {
				return err
			}
			q.applier.mirror.Observe(q.name(), namespaceResource, marked)
		}
	}
	return t.remark(ctx, live, origin)
}

// reconcileNamespace keeps a namespace that this hub created in the member like the hub's own.
// It deletes the namespace once the hub's is gone, no binding names it there, and only objects
// of Kubernetes itself are left. A namespace with objects of others is kept, without our mark.
// A namespace that is to be in every member is created.
func (q *clusterQueue) reconcileNamespace(ctx context.Context, name string) queue.Next {
	a := q.applier
	marked, synced := a.mirror.Namespaces(q.name())
	ours := marked[name] == a.hubID
	if !q.member.Reachable() || !synced || !ours && (q.hasNamespace(name) || !a.everywhere.in(name, q.name())) {
		return queue.Next{}
	}
	if a.restore.Suspected() {
		return queue.Next{}
	}
	if spec := &q.member.Cluster().Spec; !spec.MayPlace(name) || !ours && spec.Profile() != clusterv1alpha1.AgentProfileAll {
		return queue.Next{} // the profile of the agent does not allow it
	}
	n, err := a.hubNamespace(ctx, name)
	switch {
	case err == nil && ours:
		wait, err := q.labelNamespace(ctx, n)
		return queue.Next{After: wait, Backoff: err != nil}
	case !ours && apierrors.IsNotFound(err):
		q.labelled.forget(name)
		return queue.Next{} // it has just been deleted
	case err == nil:
		if err = q.ensureNamespace(ctx, name); err != nil {
			logr.FromContextOrDiscard(ctx).Info("namespace not made yet", "namespace", name, "cause", err.Error())
		}
		return queue.Next{Backoff: err != nil}
	}
	if !apierrors.IsNotFound(err) {
		return queue.Next{Backoff: true}
	}
	for _, b := range a.bindings.In(q.name()) {
		if b.Namespace == name {
			return queue.Next{} // the deletion of the binding starts this again
		}
	}
	gone, err := q.deleteNamespace(ctx, name)
	if gone {
		q.labelled.forget(name)
	}
	if q.namespaceWaits(name, err); err != nil {
		logr.FromContextOrDiscard(ctx).Info("namespace not deleted yet", "namespace", name, "cause", err.Error())
	}
	return queue.Next{Backoff: err != nil || !gone}
}

// hubNamespace reads the metadata of a namespace of the hub.
func (a *Applier) hubNamespace(ctx context.Context, name string) (*metav1.PartialObjectMetadata, error) {
	n := hubNamespace()
	if err := a.hub.Get(ctx, client.ObjectKey{Name: name}, n); err != nil {
		return nil, fmt.Errorf("read namespace %s of the hub: %w", name, err)
	}
	return n, nil
}

// podSecurity returns the Pod Security labels of a namespace of the hub.
func (a *Applier) podSecurity(ctx context.Context, namespace string) (map[string]string, error) {
	n, err := a.hubNamespace(ctx, namespace)
	if err != nil {
		return nil, err
	}
	return podsecurity.Labels(n.Labels), nil
}

// labelNamespace copies the labels of the hub's namespace to a namespace that this hub created.
// Labels that the hub's namespace lacks are removed only if this hub set them: others may have
// set theirs, and a Pod Security label of others is stricter than none. A namespace that is
// placed has the labels of its template. wait is the time until labels that somebody keeps
// changing may be written again.
func (q *clusterQueue) labelNamespace(ctx context.Context, n *metav1.PartialObjectMetadata) (wait time.Duration, err error) {
	name, wanted := n.Name, followed(n.Labels)
	if _, o := q.find(namespaceObject(name)); o.Placed() || maps.Equal(followed(q.applier.mirror.NamespaceLabels(q.name(), name)), wanted) {
		return 0, nil
	}
	if wait := q.labelled.pause(name, wanted, q.applier.now()); wait > 0 {
		return wait, nil
	}
	found, err := q.client.Get(ctx, namespaceObject(name))
	if err != nil {
		return 0, client.IgnoreNotFound(err)
	}
	if found.GetLabels()[workv1alpha2.NamespaceLabel] != q.applier.hubID || found.GetDeletionTimestamp() != nil {
		return 0, nil
	}
	labels := labelChanges(found, wanted)
	if len(labels) == 0 {
		return 0, nil
	}
	labeled, err := q.client.Mark(ctx, namespaceObject(name), found.GetUID(), labels, nil)
	if err != nil {
		logr.FromContextOrDiscard(ctx).Info("namespace does not follow the hub's yet", "namespace", name, "cause", err.Error())
		return 0, client.IgnoreNotFound(err)
	}
	logr.FromContextOrDiscard(ctx).Info("namespace follows the hub's", "namespace", name, "labels", labels)
	q.applier.mirror.Observe(q.name(), namespaceResource, labeled)
	if q.labelled.wrote(name, wanted, q.applier.now()) {
		q.applier.recorder.Eventf(n, nil, corev1.EventTypeWarning, workv1alpha2.ReasonFieldsChanged, "Apply", "%s", labelContest(q.name(), found, labels))
	}
	return 0, nil
}

// labelChanges returns the labels to set on a namespace, and with the value nil those of ours
// to remove. It is pure.
func labelChanges(found *unstructured.Unstructured, wanted map[string]string) map[string]any {
	changes := map[string]any{}
	is := followed(found.GetLabels())
	for key, value := range wanted {
		if now, there := is[key]; !there || now != value {
			changes[key] = value
		}
	}
	for key := range is {
		if _, stays := wanted[key]; !stays && setByUs(found, key) {
			changes[key] = nil
		}
	}
	return changes
}

// setByUs reports whether this hub set the label last.
func setByUs(o *unstructured.Unstructured, label string) bool {
	return slices.ContainsFunc(o.GetManagedFields(), func(f metav1.ManagedFieldsEntry) bool {
		var fields map[string]any
		if f.Manager != workv1alpha2.FieldManager || f.FieldsV1 == nil || json.Unmarshal(f.FieldsV1.GetRawBytes(), &fields) != nil {
			return false
		}
		_, ours, err := unstructured.NestedFieldNoCopy(fields, "f:metadata", "f:labels", "f:"+label)
		return ours && err == nil
	})
}

// deleteNamespace deletes a namespace that this hub created. If it has objects of others, its
// mark is removed instead. done is false while objects in it will soon be gone.
func (q *clusterQueue) deleteNamespace(ctx context.Context, name string) (done bool, err error) {
	found, err := q.client.Get(ctx, namespaceObject(name))
	if apierrors.IsNotFound(err) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	if found.GetLabels()[workv1alpha2.NamespaceLabel] != q.applier.hubID || found.GetDeletionTimestamp() != nil {
		return true, nil
	}
	held, pending, err := q.contents(ctx, name)
	switch {
	case err != nil:
		return false, err // its contents are not known
	case len(held) > 0:
		return true, q.keepNamespace(ctx, found, held)
	case len(pending) > 0:
		return false, nil
	}
	_, err = q.client.Delete(ctx, namespaceObject(name), metav1.Preconditions{
		UID: new(found.GetUID()), ResourceVersion: new(found.GetResourceVersion()),
	}, metav1.DeletePropagationBackground)
	if err == nil {
		logr.FromContextOrDiscard(ctx).Info("deleted namespace", "namespace", name)
	}
	return err == nil || apierrors.IsNotFound(err), client.IgnoreNotFound(err)
}

// keepNamespace removes our mark from a namespace that has objects of others, and records an
// event.
func (q *clusterQueue) keepNamespace(ctx context.Context, found *unstructured.Unstructured, held []string) error {
	left, err := q.client.Mark(ctx, namespaceObject(found.GetName()), found.GetUID(), map[string]any{workv1alpha2.NamespaceLabel: nil}, nil)
	if err != nil {
		return client.IgnoreNotFound(err)
	}
	q.applier.mirror.Observe(q.name(), namespaceResource, left)
	note := fmt.Sprintf("namespace %s is kept in cluster %s, without our mark: it holds %s", found.GetName(), q.name(), some(held))
	logr.FromContextOrDiscard(ctx).Info("kept namespace", "namespace", found.GetName(), "holds", some(held))
	q.applier.recorder.Eventf(q.member.Cluster(), found, corev1.EventTypeWarning, "NamespaceKept", "Delete", "%s", note)
	return nil
}

// unmarkNamespace removes our mark from a namespace that this hub created. An annotation stays,
// by which the next join recognizes the namespace.
func (q *clusterQueue) unmarkNamespace(ctx context.Context, name string) error {
	if name == "" || q.applier.mirror.NamespaceMark(q.name(), name) != q.applier.hubID {
		return nil
	}
	found, err := q.client.Get(ctx, namespaceObject(name))
	if err != nil {
		return client.IgnoreNotFound(err)
	}
	left, err := q.client.Mark(ctx, namespaceObject(name), found.GetUID(), map[string]any{workv1alpha2.NamespaceLabel: nil},
		map[string]any{workv1alpha2.OrphanAnnotation: mark.Orphan{Hub: q.applier.hubID}.String()})
	if err == nil {
		q.applier.mirror.Observe(q.name(), namespaceResource, left)
	}
	return client.IgnoreNotFound(err)
}

// contents lists everything in a namespace of the member, from the member itself. held names
// the objects of others, and pending those that will soon be gone.
func (q *clusterQueue) contents(ctx context.Context, namespace string) (held, pending []string, err error) {
	apis := q.member.APIs()
	if unsure := apis.Unsure(inhabits); unsure != "" {
		return nil, nil, contentsUnknownError{fmt.Errorf("namespace %s: the cluster cannot list all of its types, because these do not answer: %s", namespace, unsure)}
	}
	var found []inhabitant
	for _, api := range apis.All() {
		if !api.Preferred || !inhabits(api) {
			continue
		}
		items, err := q.client.List(ctx, api.GroupVersionResource(), namespace)
		if apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err) {
			continue // the type has just gone
		}
		if err != nil {
			return nil, nil, unlisted("namespace "+namespace, api.GroupVersionResource().GroupResource(), err)
		}
		for i := range items {
			found = append(found, inhabitant{api, &items[i], q.ofThisJoin(&items[i])})
		}
	}
	held, pending = classify(found)
	return held, pending, nil
}

// inhabits reports whether objects of the type live in namespaces. A type that cannot be
// deleted, such as PodMetrics, is a view of other objects: an absent metrics server must not
// block a namespace.
func inhabits(api member.API) bool {
	return api.Namespaced && slices.Contains(api.Verbs, "list") && slices.Contains(api.Verbs, "delete")
}

// ofThisJoin reports whether this hub placed the object in the cluster since it joined, for a
// binding in the cache, which may just have been released, and the object was not there before.
func (q *clusterQueue) ofThisJoin(o *metav1.PartialObjectMetadata) bool {
	if o.Labels[workv1alpha2.BindingLabel] == "" || o.Annotations[workv1alpha2.OriginAnnotation] != "" {
		return false
	}
	from, err := q.applier.key().Verify(o.Annotations[workv1alpha2.SourceAnnotation])
	return err == nil && from.Cluster == q.uid && q.applier.knows(types.UID(o.Labels[workv1alpha2.BindingLabel]))
}

// inhabitant is an object in a namespace.
type inhabitant struct {
	api    member.API
	object *metav1.PartialObjectMetadata
	placed bool // by this hub, since the cluster joined
}

// classify separates the objects of others (held) from those that go with what this hub placed
// (pending). Objects that Kubernetes itself creates are in neither. It is pure.
func classify(found []inhabitant) (held, pending []string) {
	byUID := make(map[types.UID]inhabitant, len(found))
	for _, i := range found {
		byUID[i.object.UID] = i
	}
	// goes reports whether an object is placed, is being deleted, or has only owners that go or
	// are gone: the garbage collector then deletes it.
	var goes func(i inhabitant, depth int) bool
	goes = func(i inhabitant, depth int) bool {
		if i.placed || i.object.DeletionTimestamp != nil {
			return true
		}
		if claim(i.api) || len(i.object.OwnerReferences) == 0 || depth > 10 {
			return false
		}
		return !slices.ContainsFunc(i.object.OwnerReferences, func(r metav1.OwnerReference) bool {
			owner, present := byUID[r.UID]
			return present && !goes(owner, depth+1)
		})
	}
	for _, i := range found {
		name := Object{Resource: i.api.GroupVersionResource(), Namespace: i.object.Namespace, Name: i.object.Name}.String()
		switch {
		case kubernetesOwn(i):
		case goes(i, 0):
			pending = append(pending, name)
		default:
			held = append(held, name)
		}
	}
	return held, pending
}

func claim(api member.API) bool {
	return api.GroupVersionKind.GroupKind() == schema.GroupKind{Kind: "PersistentVolumeClaim"}
}

// kubernetesOwn reports whether every Kubernetes creates the object in a namespace by itself.
func kubernetesOwn(i inhabitant) bool {
	switch i.api.GroupVersionKind.GroupKind() {
	case schema.GroupKind{Kind: "ServiceAccount"}:
		return i.object.Name == "default"
	case schema.GroupKind{Kind: "ConfigMap"}:
		return i.object.Name == "kube-root-ca.crt"
	case schema.GroupKind{Kind: "Event"}, schema.GroupKind{Group: "events.k8s.io", Kind: "Event"},
		schema.GroupKind{Kind: "Endpoints"}, schema.GroupKind{Group: "discovery.k8s.io", Kind: "EndpointSlice"}:
		return true
	default:
		return false
	}
}

// some joins the first three names and counts the others.
func some(things []string) string {
	const most = 3
	if more := len(things) - most; more > 0 {
		things = append(slices.Clone(things[:most]), fmt.Sprintf("and %d more", more))
	}
	return strings.Join(things, ", ")
}

// others names the objects of others that would be deleted with a Namespace or a
// CustomResourceDefinition. pending names those that will soon be gone.
func (q *clusterQueue) others(ctx context.Context, o mirror.Object) (held, pending []string, err error) {
	switch o.Resource.GroupResource() {
	case namespaceResource.GroupResource():
		for _, name := range q.applier.bindings.In(q.name()) {
			if name.Namespace == o.Name {
				held = append(held, "the binding "+name.String())
			}
		}
		if len(held) > 0 {
			return held, nil, nil
		}
		return q.contents(ctx, o.Name)
	case crdResource.GroupResource():
		return q.instances(ctx, o.Name)
	default:
		return nil, nil, nil
	}
}

// instances lists the objects of a CustomResourceDefinition in the member, as contents does.
func (q *clusterQueue) instances(ctx context.Context, crd string) (held, pending []string, err error) {
	i := slices.IndexFunc(q.member.APIs().All(), func(a member.API) bool {
		return a.Resource+"."+a.GroupVersionKind.Group == crd && a.Preferred
	})
	if i < 0 {
		return nil, nil, nil
	}
	api := q.member.APIs().All()[i]
	items, err := q.client.List(ctx, api.GroupVersionResource(), "")
	if apierrors.IsNotFound(err) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, unlisted("definition "+crd, api.GroupVersionResource().GroupResource(), err)
	}
	found := make([]inhabitant, 0, len(items))
	for i := range items {
		found = append(found, inhabitant{api, &items[i], q.ofThisJoin(&items[i])})
	}
	held, pending = classify(found)
	return held, pending, nil
}
