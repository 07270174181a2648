package mirror

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"maps"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/interpreter"
	"orrery.dev/orrery/internal/store"
)

// entry is an object on its way from the cluster, or from the store, to the index and the store:
// what they need of it, so that a long list is not held as it came.
type entry struct {
	row      store.Row
	object   *Object // when it is placed
	deleting bool
	happened time.Time // when an Event last did; zero: it does not say, or it is no Event
	node     *node
	pod      *pod
	quota    *quota
}

func (e *entry) key() key { return key{e.row.Namespace, e.row.Name} }

// entry reads an object from the cluster.
func (t *table) entry(obj runtime.Object) (*entry, error) {
	var o *unstructured.Unstructured
	switch obj := obj.(type) {
	case *unstructured.Unstructured:
		o = obj
	case *metav1.PartialObjectMetadata:
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
		if err != nil {
			return nil, fmt.Errorf("convert %s: %w", obj.Name, err)
		}
		o = &unstructured.Unstructured{Object: content}
		o.SetGroupVersionKind(t.api.GroupVersionKind)
	default:
		return nil, fmt.Errorf("mirror %s: unexpected %T", resourceOf(t.api), obj)
	}
	gvr := t.api.GroupVersionResource()
	if gvr.GroupResource() == secrets && (t.data == nil || !t.data.has(o.GetNamespace(), o.GetLabels())) {
		o = &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": o.Object["apiVersion"], "kind": o.Object["kind"], "metadata": o.Object["metadata"],
		}}
	}
	body, err := json.Marshal(strip(o.Object))
	if err != nil {
		return nil, fmt.Errorf("encode %s/%s: %w", o.GetNamespace(), o.GetName(), err)
	}
	e := &entry{
		row: store.Row{
			Cluster: t.cluster.name, Group: gvr.Group, Version: gvr.Version, Resource: gvr.Resource, Kind: t.api.GroupVersionKind.Kind,
			Namespace: o.GetNamespace(), Name: o.GetName(), UID: o.GetUID(), OwnerUID: owner(o), ResourceVersion: o.GetResourceVersion(),
			Created: o.GetCreationTimestamp().Time, Labels: o.GetLabels(), Body: body, Note: note(o),
		},
	}
	e.object = newObject(t.cluster.name, gvr, o, e.row.Note)
	e.deleting = o.GetDeletionTimestamp() != nil
	t.measure(e, body)
	e.happened = happened(gvr.GroupResource(), body)
	return e, nil
}

// happened says when an Event last did.
func happened(gr schema.GroupResource, body []byte) time.Time {
	if gr != coreEvents && gr != groupEvents {
		return time.Time{}
	}
	var e struct {
		Metadata struct {
			CreationTimestamp time.Time `json:"creationTimestamp"`
		} `json:"metadata"`
		EventTime               time.Time `json:"eventTime"`
		LastTimestamp           time.Time `json:"lastTimestamp"`
		DeprecatedLastTimestamp time.Time `json:"deprecatedLastTimestamp"`
		Series                  struct {
			LastObservedTime time.Time `json:"lastObservedTime"`
		} `json:"series"`
	}
	if err := json.Unmarshal(body, &e); err != nil {
		return time.Time{} // its times are no times: it stays as long as in the cluster
	}
	last := e.Metadata.CreationTimestamp
	for _, at := range []time.Time{e.EventTime, e.LastTimestamp, e.DeprecatedLastTimestamp, e.Series.LastObservedTime} {
		if at.After(last) {
			last = at
		}
	}
	return last
}

// recalledEntry reads an object from the store: the index takes from its entry what it would take from
// the one that entry made of it, which must not depend on what strip takes away. Only the bodies of
// objects that are ours, or count in the capacity, are read.
func (t *table) recalledEntry(row store.Row) (*entry, error) {
	e := &entry{row: row}
	e.row.Body = nil
	if row.Body == nil {
		return e, nil
	}
	t.measure(e, row.Body)
	e.happened = happened(resourceOf(t.api), row.Body)
	if row.Note == "" {
		return e, nil
	}
	o := &unstructured.Unstructured{}
	if err := utiljson.Unmarshal(row.Body, &o.Object); err != nil {
		return nil, fmt.Errorf("decode stored %s/%s: %w", row.Namespace, row.Name, err)
	}
	e.object = newObject(t.cluster.name, t.api.GroupVersionResource(), o, e.row.Note)
	e.deleting = o.GetDeletionTimestamp() != nil
	return e, nil
}

// measure reads what counts in the cluster's capacity of an object's body.
func (t *table) measure(e *entry, body []byte) {
	var err error
	switch resourceOf(t.api) {
	case nodes:
		e.node, err = newNode(body)
	case pods:
		e.pod, err = newPod(body)
	case quotas:
		e.quota, err = newQuota(e.row.Name, body)
	}
	if err != nil { // an error of entry would make a list look as if the object were gone
		t.cluster.mirror.log.Error(err, "Object does not count in the cluster's capacity", "cluster", t.cluster.name,
			"resource", resourceOf(t.api).String(), "namespace", e.row.Namespace, "name", e.row.Name)
	}
}

// strip returns the object without what is of no use in a search and half of its size. The
// original is not changed.
func strip(object map[string]any) map[string]any {
	meta, ok := object["metadata"].(map[string]any)
	if !ok {
		return object
	}
	meta = maps.Clone(meta)
	delete(meta, "managedFields")
	if entries, ok := object["metadata"].(map[string]any)["managedFields"].([]any); ok {
		version, _ := object["apiVersion"].(string)
		if kept := managers(entries, version); len(kept) > 0 {
			meta["managedFields"] = kept
		}
	}
	if annotations, ok := meta["annotations"].(map[string]any); ok {
		annotations = maps.Clone(annotations)
		delete(annotations, corev1.LastAppliedConfigAnnotation)
		delete(annotations, fleetv1alpha1.IncompleteAnnotation) // the store alone says it
		meta["annotations"] = annotations
		if len(annotations) == 0 {
			delete(meta, "annotations")
		}
	}
	object = maps.Clone(object)
	object["metadata"] = meta
	return object
}

// managers are the entries of managedFields that say who changed the object last, and who wrote it in another version of its API than the one that is
// mirrored; without the fields, which are most of their size.
func managers(entries []any, version string) (kept []any) {
	newest := ""
	each := func(f func(entry map[string]any, at string)) {
		for _, e := range entries {
			if entry, ok := e.(map[string]any); ok {
				at, _ := entry["time"].(string) // in UTC and to the second: as text they are in the order of time
				f(entry, at)
			}
		}
	}
	each(func(_ map[string]any, at string) { newest = max(newest, at) })
	each(func(entry map[string]any, at string) {
		if at == newest || entry["apiVersion"] != version {
			entry = maps.Clone(entry)
			delete(entry, "fieldsType")
			delete(entry, "fieldsV1")
			kept = append(kept, entry)
		}
	})
	return kept
}

// owner is the UID of the object's controller, or else of its first owner.
func owner(o *unstructured.Unstructured) types.UID {
	if c := metav1.GetControllerOf(o); c != nil {
		return c.UID
	}
	if owners := o.GetOwnerReferences(); len(owners) > 0 {
		return owners[0].UID
	}
	return ""
}

// note is what is stored beside an object that is placed or was orphaned: the hash of the fields
// that we own, for the fields of managedFields are not stored; "" for another. Controllers copy labels and
// annotations to what they make, such as a Service's to its EndpointSlices: a mark counts only
// where we own something.
func note(o *unstructured.Unstructured) string {
	fields := OwnedFields(o)
	if o.GetLabels()[workv1alpha2.BindingLabel] == "" && o.GetAnnotations()[workv1alpha2.OrphanAnnotation] == "" ||
		fields == 0 && len(o.GetManagedFields()) > 0 {
		return ""
	}
	return strconv.FormatUint(fields, 10)
}

// newObject is what is remembered of an object with a note; nil for one without.
func newObject(cluster string, gvr schema.GroupVersionResource, o *unstructured.Unstructured, note string) *Object {
	if note == "" {
		return nil
	}
	fields, _ := strconv.ParseUint(note, 10, 64) // as note wrote it; 0 is the hash of no fields
	binding := o.GetLabels()[workv1alpha2.BindingLabel]
	orphan := o.GetAnnotations()[workv1alpha2.OrphanAnnotation]
	if binding == "" {
		return &Object{
			Cluster: cluster, Resource: gvr, Namespace: o.GetNamespace(), Name: o.GetName(),
			UID: o.GetUID(), ResourceVersion: o.GetResourceVersion(), Generation: o.GetGeneration(),
			Orphan: orphan, Fields: fields, Deleting: o.GetDeletionTimestamp() != nil,
		}
	}
	replicas, available := interpreter.Availability(o)
	return &Object{
		Cluster: cluster, Resource: gvr, Namespace: o.GetNamespace(), Name: o.GetName(),
		UID: o.GetUID(), ResourceVersion: o.GetResourceVersion(), Generation: o.GetGeneration(),
		Binding: types.UID(binding), Digest: o.GetAnnotations()[workv1alpha2.DigestAnnotation], Fields: fields,
		Deleting: o.GetDeletionTimestamp() != nil,
		Source:   o.GetAnnotations()[workv1alpha2.SourceAnnotation], Origin: o.GetAnnotations()[workv1alpha2.OriginAnnotation],
		Orphan: orphan,
		Health: interpreter.Health(o), Status: interpreter.Reflect(o), Ended: interpreter.RunPhase(o),
		Replicas: replicas, Available: available, Pods: interpreter.Pods(o), Completions: interpreter.CompletionsOf(o),
	}
}

// carry takes over from the state before how the work of an object ended: a pod that is being deleted does not say any more
// that it had ended by itself. Either may be nil.
func (o *Object) carry(before *Object) {
	if o != nil && before != nil && o.UID == before.UID && o.Deleting && o.Ended == "" {
		o.Ended = before.Ended
	}
}

// OwnedFields hashes the set of fields that our server-side apply owns; 0: none.
func OwnedFields(o *unstructured.Unstructured) uint64 {
	for _, f := range o.GetManagedFields() {
		if f.Manager == workv1alpha2.FieldManager && f.Operation == metav1.ManagedFieldsOperationApply && f.Subresource == "" && f.FieldsV1 != nil {
			h := fnv.New64a()
			_, _ = h.Write(f.FieldsV1.GetRawBytes()) // a hash takes everything
			return h.Sum64()
		}
	}
	return 0
}
