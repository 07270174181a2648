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

// entry is an object from the cluster or the store, reduced to the parts that the index and the
// store need. So a long list does not stay in memory as received.
type entry struct {
	row      store.Row
	object   *Object // if it is placed
	deleting bool
	happened time.Time // when an Event last happened; zero: it has no time, or is not an Event
	node     *node
	pod      *pod
	quota    *quota
}

func (e *entry) key() key { return key{e.row.Namespace, e.row.Name} }

// entry converts an object from the cluster.
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

// happened returns the time at which an Event last happened; zero: it has no valid time, or is
// not an Event.
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
		return time.Time{} // an invalid time: the Event stays as long as in the cluster
	}
	last := e.Metadata.CreationTimestamp
	for _, at := range []time.Time{e.EventTime, e.LastTimestamp, e.DeprecatedLastTimestamp, e.Series.LastObservedTime} {
		if at.After(last) {
			last = at
		}
	}
	return last
}

// recalledEntry converts an object from the store. The index must get the same data from it as
// from the original entry. So the index must not depend on parts that strip removes. Only the
// bodies of objects that Orrery placed or that count in the capacity are parsed.
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

// measure parses the parts of an object's body that count in the cluster's capacity.
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
	if err != nil { // if entry returned this error, a list would look as if the object were deleted
		t.cluster.mirror.log.Error(err, "Object does not count in the cluster's capacity", "cluster", t.cluster.name,
			"resource", resourceOf(t.api).String(), "namespace", e.row.Namespace, "name", e.row.Name)
	}
}

// strip returns the object without the parts that search does not need, which are half of its
// size. It does not change the original.
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
		delete(annotations, fleetv1alpha1.IncompleteAnnotation) // only the store sets it
		meta["annotations"] = annotations
		if len(annotations) == 0 {
			delete(meta, "annotations")
		}
	}
	object = maps.Clone(object)
	object["metadata"] = meta
	return object
}

// managers returns two kinds of entries of managedFields: those of the last change, and those in
// another API version than the mirrored one. They lack the fields, which are most of their size.
func managers(entries []any, version string) (kept []any) {
	newest := ""
	each := func(f func(entry map[string]any, at string)) {
		for _, e := range entries {
			if entry, ok := e.(map[string]any); ok {
				at, _ := entry["time"].(string) // a time in UTC, in seconds; such texts sort by time
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

// owner returns the UID of the object's controller, or else of its first owner; "": none.
func owner(o *unstructured.Unstructured) types.UID {
	if c := metav1.GetControllerOf(o); c != nil {
		return c.UID
	}
	if owners := o.GetOwnerReferences(); len(owners) > 0 {
		return owners[0].UID
	}
	return ""
}

// note returns the text that is stored beside a placed or orphaned object: the hash of the fields
// that Orrery owns, because the store does not keep the fields of managedFields. It is "" for
// other objects. Controllers copy labels and annotations to objects that they create, for example
// from a Service to its EndpointSlices. So a mark counts only if Orrery owns a field.
func note(o *unstructured.Unstructured) string {
	fields := OwnedFields(o)
	if o.GetLabels()[workv1alpha2.BindingLabel] == "" && o.GetAnnotations()[workv1alpha2.OrphanAnnotation] == "" ||
		fields == 0 && len(o.GetManagedFields()) > 0 {
		return ""
	}
	return strconv.FormatUint(fields, 10)
}

// newObject returns the index entry of an object with a note; nil without a note.
func newObject(cluster string, gvr schema.GroupVersionResource, o *unstructured.Unstructured, note string) *Object {
	if note == "" {
		return nil
	}
	fields, _ := strconv.ParseUint(note, 10, 64) // written by note; 0 is the hash of no fields
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

// carry copies how the work ended from the state before, because a pod that is being deleted no
// longer reports that it had ended. Either state may be nil.
func (o *Object) carry(before *Object) {
	if o != nil && before != nil && o.UID == before.UID && o.Deleting && o.Ended == "" {
		o.Ended = before.Ended
	}
}

// OwnedFields returns a hash of the fields that Orrery's server-side apply owns; 0: none.
func OwnedFields(o *unstructured.Unstructured) uint64 {
	for _, f := range o.GetManagedFields() {
		if f.Manager == workv1alpha2.FieldManager && f.Operation == metav1.ManagedFieldsOperationApply && f.Subresource == "" && f.FieldsV1 != nil {
			h := fnv.New64a()
			_, _ = h.Write(f.FieldsV1.GetRawBytes()) // a hash never fails
			return h.Sum64()
		}
	}
	return 0
}
