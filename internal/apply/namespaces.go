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
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/manifest"
	"orrery.dev/orrery/internal/mark"
	"orrery.dev/orrery/internal/member"
	"orrery.dev/orrery/internal/mirror"
	"orrery.dev/orrery/internal/presence"
	"orrery.dev/orrery/internal/queue"
)

var (
	// namespaceResource and crdResource are the resources of objects that contain others.
	namespaceResource = schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
	crdResource       = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
)

// namespaceObject returns the Namespace with this name.
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

// Set implements pflag.Value. It accepts Needed and All. Any other value is an error, and is
// stored nevertheless.
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
	// Synced reports whether all inputs of Allowed were read once.
	Synced() bool
	// SubscribeFences calls f with the namespaces whose allowed clusters changed.
	// SubscribeClusters calls f with a cluster whose allowed namespaces changed. f must not block.
	SubscribeFences(f func(namespaces sets.Set[string]))
	SubscribeClusters(f func(cluster string))
}

// everywhere holds the namespaces of the hub that are to be in every member that they may use, for
// SpreadAll. A nil everywhere, for SpreadNeeded, holds none. The methods may be called by several
// goroutines.
type everywhere struct {
	fences Fences

	mu         sync.RWMutex
	namespaces sets.Set[string]
}

// follow adds a namespace of the hub if SpreadAll includes it, and otherwise removes it. n is nil
// if the namespace was deleted.
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

// all returns the namespaces that SpreadAll includes, in no order, for every member: some members
// may exclude some of them. It is nil for SpreadNeeded.
func (e *everywhere) all() []string {
	if e == nil {
		return nil
	}
	e.mu.RLock()
	defer e.mu.RUnlock()
	return e.namespaces.UnsortedList()
}

// in reports whether SpreadAll requires a namespace in a cluster even if nothing is placed there.
func (e *everywhere) in(namespace, cluster string) bool {
	if e == nil {
		return false
	}
	e.mu.RLock()
	wanted := e.namespaces.Has(namespace)
	e.mu.RUnlock()
	return wanted && e.fences.Allowed(namespace, cluster)
}

// spreads reports whether SpreadAll includes a namespace of the hub. It excludes default,
// those of Kubernetes itself (kube-), those of Orrery (orrery-), those with the label to opt
// out, and those that are being deleted.
func spreads(n *metav1.PartialObjectMetadata) bool {
	return n.DeletionTimestamp.IsZero() && n.Name != metav1.NamespaceDefault &&
		!strings.HasPrefix(n.Name, "kube-") && !strings.HasPrefix(n.Name, "orrery-") && n.Labels[workv1alpha2.SkipNamespaceLabel] != "true"
}

// followed returns the labels of a hub namespace that are copied to the namespaces which this hub
// created in members. It leaves out kubernetes.io/metadata.name, which each API server sets itself,
// and labels of Orrery.
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

// ensureNamespace creates the namespace of a placed object if it is absent, with the labels of the
// hub's namespace and our mark. Namespaces with the mark are deleted once the hub's namespace is
// gone. It does nothing for "". If the profile of the agent does not allow the hub to create
// namespaces, the error is Forbidden, without a request. While a worker checks whether the
// namespace is empty and deletes it, the error is a conflict, and the caller tries again; see
// empties.
func (q *clusterQueue) ensureNamespace(ctx context.Context, name string) error {
	if name == "" {
		return nil
	}
	if q.isEmptied(name) {
		return apierrors.NewConflict(namespaceResource.GroupResource(), name, errors.New("the hub checks whether the namespace is empty, to delete it; the hub tries again"))
	}
	if q.hasNamespace(name) {
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

// empties records, until the caller calls end, that a worker lists the objects of a namespace and
// deletes it if it is empty. Only after the lists does the worker check that no binding places
// something in the namespace. ensureNamespace reads in the other order: first the bindings have the
// binding of its caller, and then it reads the record. So either the worker finds the binding and
// keeps the namespace, or ensureNamespace finds the record and fails. Otherwise a copy could be
// written to the namespace after the lists, and be deleted with it.
func (q *clusterQueue) empties(name string) (end func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.emptied[name]++
	return func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		if q.emptied[name]--; q.emptied[name] == 0 {
			delete(q.emptied, name)
		}
	}
}

// isEmptied reports whether a worker may be deleting the namespace; see empties.
func (q *clusterQueue) isEmptied(name string) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.emptied[name] > 0
}

// entering returns, in no order, the bindings in a namespace that name the cluster, such as "the
// binding shop/web".
func (q *clusterQueue) entering(namespace string) (names []string) {
	for _, name := range q.applier.bindings.In(q.name()) {
		if name.Namespace == namespace {
			names = append(names, "the binding "+name.String())
		}
	}
	return names
}

// createNamespace creates a namespace with our mark and the labels of the hub's namespace,
// which must exist. A namespace that exists in the member is no error, and stays without our
// mark.
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

// outOfBounds returns the Forbidden error of an API server, for an object that the profile of a
// cluster's agent does not allow. why is the message.
func outOfBounds(gr schema.GroupResource, name, why string) error {
	return apierrors.NewForbidden(gr, name, errors.New(why))
}

// bounds returns why the profile of the cluster's agent forbids the hub to change objects in a
// namespace; "" if it does not. The namespace "" stands for objects without one.
func (q *clusterQueue) bounds(namespace string) string {
	return bounds(&q.member.Cluster().Spec, namespace)
}

// hasNamespace reports whether the mirror shows the namespace.
func (q *clusterQueue) hasNamespace(name string) bool {
	is, _ := q.find(namespaceObject(name))
	return is == presence.Present
}

// reclaim makes an orphan a copy again: it writes our marks and removes the annotation of the
// orphan in one write. Before that, it marks its namespace again if this hub created the namespace.
// origin is the value for OriginAnnotation; "" leaves it as it is.
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

// reconcileNamespace keeps a namespace that this hub created in the member like the hub's own
// namespace. It deletes the namespace once the hub's is gone, no binding in it names the cluster,
// and only objects of Kubernetes itself are left. A namespace with objects of others is kept,
// without our mark. A namespace that SpreadAll requires is created. It does nothing while the
// cluster is not reachable, while the hub seems to be restored, and where the profile of the agent
// forbids it.
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
		return queue.Next{} // the hub's namespace has just been deleted
	case err == nil:
		if err = q.ensureNamespace(ctx, name); err != nil {
			logr.FromContextOrDiscard(ctx).Info("namespace not made yet", "namespace", name, "cause", err.Error())
		}
		return queue.Next{Backoff: err != nil}
	}
	if !apierrors.IsNotFound(err) {
		return queue.Next{Backoff: true}
	}
	if len(q.entering(name)) > 0 {
		return queue.Next{} // the deletion of the binding queues the namespace again
	}
	defer q.empties(name)()
	gone, err := q.deleteNamespace(ctx, name, func() bool {
		_, err := a.hubNamespace(ctx, name)
		return !apierrors.IsNotFound(err) || len(q.entering(name)) > 0
	})
	if gone {
		q.labelled.forget(name)
	}
	if q.namespaceWaits(name, err); err != nil {
		logr.FromContextOrDiscard(ctx).Info("namespace not deleted yet", "namespace", name, "cause", err.Error())
	}
	return queue.Next{Backoff: err != nil || !gone}
}

// hubNamespace reads the metadata of a namespace of the hub. The error wraps NotFound if there
// is none.
func (a *Applier) hubNamespace(ctx context.Context, name string) (*metav1.PartialObjectMetadata, error) {
	n := hubNamespace()
	if err := a.hub.Get(ctx, client.ObjectKey{Name: name}, n); err != nil {
		return nil, fmt.Errorf("read namespace %s of the hub: %w", name, err)
	}
	return n, nil
}

// labelNamespace copies the labels of the hub's namespace n to the namespace in the member, if this
// hub created it and places no copy of it. Labels that n lacks are removed only if this hub set
// them: a Pod Security label that others set is stricter than none. wait is the time until labels
// that somebody keeps changing may be written again; 0: they are up to date. Such a contest is
// recorded once as an event of n. A namespace that is gone is no error.
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

// labelChanges returns the labels to change on the namespace found, so that it has those in wanted.
// The value nil removes a label, which this hub must have set. It is pure.
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

// setByUs reports whether the hub's field manager owns the label of an object.
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

// deleteNamespace deletes a namespace that this hub created. If it has objects of others, it loses
// our mark instead. done is true after that, and without a write if the namespace is gone, is being
// deleted, or does not have our mark. done is false while it has objects that will soon be gone. If
// its content is unknown, the error says why. If needed returns true after the objects are listed,
// the namespace stays as it is, and done is false.
func (q *clusterQueue) deleteNamespace(ctx context.Context, name string, needed func() bool) (done bool, err error) {
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
		return false, err // the objects in the namespace are not known
	case needed():
		return false, nil
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

// keepNamespace removes our mark from a namespace because it has objects of others (held). It
// records an event of the Cluster that names up to three of them. A namespace that is gone is no
// error.
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

// unmarkNamespace removes our mark from a namespace that this hub created, and writes
// OrphanAnnotation, by which the next join recognizes the namespace. It does nothing if the mirror
// does not show our mark, or the namespace is gone.
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

// contents lists all objects in a namespace of the member, from the member itself. held names the
// objects of others, and pending the objects that will soon be gone. If an API does not answer
// discovery or a list is refused, the error is a contentsUnknownError; another error of a list is
// temporary.
func (q *clusterQueue) contents(ctx context.Context, namespace string) (held, pending []string, err error) {
	apis := q.member.APIs()
	if unsure := apis.Unsure(inhabits); unsure != "" {
		return nil, nil, contentsUnknownError{fmt.Errorf("namespace %s: its contents are unknown, because these APIs of the cluster do not answer: %s; make them answer or delete their APIServices, and the hub tries again", namespace, unsure)}
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

// inhabits reports whether objects of the type live in namespaces, and can be listed and deleted.
// Types that cannot be deleted, such as PodMetrics, are views of other objects and do not count: an
// absent metrics server must not block the deletion of a namespace.
func inhabits(api member.API) bool {
	return api.Namespaced && slices.Contains(api.Verbs, "list") && slices.Contains(api.Verbs, "delete")
}

// ofThisJoin reports whether this hub placed the object since the cluster joined. The binding must
// be in the cache, though it may no longer name the cluster. An object that was there before the
// hub does not count.
func (q *clusterQueue) ofThisJoin(o *metav1.PartialObjectMetadata) bool {
	if o.Labels[workv1alpha2.BindingLabel] == "" || o.Annotations[workv1alpha2.OriginAnnotation] != "" {
		return false
	}
	from, err := q.applier.key().Verify(o.Annotations[workv1alpha2.SourceAnnotation])
	return err == nil && from.Cluster == q.uid && q.applier.knows(types.UID(o.Labels[workv1alpha2.BindingLabel]))
}

// inhabitant is an object in a member that would be deleted with its Namespace or with the
// CustomResourceDefinition of its kind.
type inhabitant struct {
	api    member.API
	object *metav1.PartialObjectMetadata
	placed bool // by this hub, since the cluster joined
}

// classify names the objects of others (held), and the objects that will soon be gone (pending). An
// object is pending if this hub placed it or its owner, or if it is being deleted. Objects that
// Kubernetes itself creates are in neither list. It is pure.
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

// claim reports whether a type is PersistentVolumeClaim.
func claim(api member.API) bool {
	return api.GroupVersionKind.GroupKind() == schema.GroupKind{Kind: "PersistentVolumeClaim"}
}

// kubernetesOwn reports whether every cluster creates the object in a namespace by itself,
// such as the ServiceAccount default, Events and Endpoints.
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

// some joins the first three names with commas and counts the others: "a, b, c, and 2 more".
func some(things []string) string {
	const most = 3
	if more := len(things) - most; more > 0 {
		things = append(slices.Clone(things[:most]), fmt.Sprintf("and %d more", more))
	}
	return strings.Join(things, ", ")
}

// others names the objects of others that would be deleted with object o, a Namespace or a
// CustomResourceDefinition (held). For a Namespace, held also names bindings that place objects in
// it. pending names those that will soon be gone. Both are nil for an object of another kind. If
// the content is unknown, the error says why.
func (q *clusterQueue) others(ctx context.Context, o mirror.Object) (held, pending []string, err error) {
	switch o.Resource.GroupResource() {
	case namespaceResource.GroupResource():
		if held = q.entering(o.Name); len(held) > 0 {
			return held, nil, nil
		}
		held, pending, err = q.contents(ctx, o.Name)
		if entering := q.entering(o.Name); err == nil && len(entering) > 0 {
			return entering, nil, nil // since the first check; see empties
		}
		return held, pending, err
	case crdResource.GroupResource():
		return q.instances(ctx, o.Name)
	default:
		return nil, nil, nil
	}
}

// instances lists the objects of a CustomResourceDefinition in the member. crd is the name of the
// definition. held names the objects of others, and pending those that will soon be gone. Both are
// nil if the definition is gone or the API server does not serve it yet.
//
// The API server deletes all objects with their definition. So instances reads the definition and
// the objects from the member itself: the API list of the member may lack the type, or prefer a
// version that is not served any more. A list that the member answers with an error, also with
// NotFound, is a contentsUnknownError. So is a definition without a served version: it may have
// objects that cannot be read, and somebody has to serve a version or delete the definition.
func (q *clusterQueue) instances(ctx context.Context, crd string) (held, pending []string, err error) {
	o, err := q.client.Get(ctx, manifest.Definition(crd))
	if apierrors.IsNotFound(err) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("read definition %s: %w", crd, err)
	}
	var d apiextensionsv1.CustomResourceDefinition
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &d); err != nil {
		return nil, nil, fmt.Errorf("read definition %s: %w", crd, err)
	}
	// The API server serves a definition once its names are accepted. Established is never withdrawn.
	if !slices.ContainsFunc(d.Status.Conditions, func(c apiextensionsv1.CustomResourceDefinitionCondition) bool {
		return (c.Type == apiextensionsv1.NamesAccepted || c.Type == apiextensionsv1.Established) && c.Status == apiextensionsv1.ConditionTrue
	}) {
		return nil, nil, nil // nobody could create an object, and delete fails once that changes
	}
	version := ""
	for _, v := range d.Spec.Versions {
		if v.Served && (version == "" || v.Storage) { // the stored version needs no conversion
			version = v.Name
		}
	}
	if version == "" {
		return nil, nil, contentsUnknownError{fmt.Errorf("definition %s: its objects are unknown, because it serves no version; serve one or delete the definition in the cluster", crd)}
	}
	api := member.API{
		GroupVersionKind: schema.GroupVersionKind{Group: d.Spec.Group, Version: version, Kind: d.Spec.Names.Kind},
		Resource:         d.Spec.Names.Plural,
	}
	items, err := q.client.List(ctx, api.GroupVersionResource(), "")
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
