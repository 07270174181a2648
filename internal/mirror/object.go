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

// entry is an object from a cluster or from the store, reduced to the parts that the index in
// memory and the store need. So a long list does not stay in memory as it was received.
type entry struct {
	row      store.Row
	object   *Object // nil: the object is neither placed nor orphaned
	deleting bool
	happened time.Time // see the func happened
	measured any       // what counts in the capacity, see measure; nil: nothing
	version  uint64    // the resource version; 0: it is not a number
}

func (e *entry) key() key { return key{e.row.Namespace, e.row.Name} }

// entry converts an object from the cluster. It leaves out the data of a Secret unless the settings
// select that data. It is an error if the object cannot be encoded.
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
	e.version = number(e.row.ResourceVersion)
	e.object = newObject(t.cluster.name, gvr, o, e.row.Note)
	e.deleting = o.GetDeletionTimestamp() != nil
	t.measure(e, body)
	e.happened = happened(gvr.GroupResource(), body)
	return e, nil
}

// happened returns when the Event with the JSON body last happened; zero: a time in it is invalid,
// or gr is not a type of Events.
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
		return time.Time{} // with an invalid time, an Event stays mirrored as long as in the cluster
	}
	last := e.Metadata.CreationTimestamp
	for _, at := range []time.Time{e.EventTime, e.LastTimestamp, e.DeprecatedLastTimestamp, e.Series.LastObservedTime} {
		if at.After(last) {
			last = at
		}
	}
	return last
}

// recalledEntry converts an object from the store. Its result must give the index the same data as
// the entry of the original object, so the index must not depend on parts that strip removes. A row
// without a body gives an entry with only the row. It is an error if the body of a placed or
// orphaned object is not JSON.
func (t *table) recalledEntry(row store.Row) (*entry, error) {
	e := &entry{row: row, version: number(row.ResourceVersion)}
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

// strip returns an object without the parts that search does not need: most of managedFields, and
// two annotations. They are half of its size. It does not change the original.
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

// managers returns the entries of managedFields that are stored: those with the time of the last
// change, and those in another API version than the given one. It leaves out their fields, which
// are most of the size.
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

// owner returns the UID of the owner that controls an object, or else of its first owner; "": it
// has no owner.
func owner(o *unstructured.Unstructured) types.UID {
	if c := metav1.GetControllerOf(o); c != nil {
		return c.UID
	}
	if owners := o.GetOwnerReferences(); len(owners) > 0 {
		return owners[0].UID
	}
	return ""
}

// note returns the text that is stored beside a placed or orphaned object, for newObject; "" for
// all other objects. It is the hash of the fields that Orrery's server-side apply owns, because the
// store does not keep these fields.
//
// Other controllers copy labels and annotations to objects that they create, for example from a
// Service to its EndpointSlices. So an object with managedFields counts as placed or orphaned only
// if Orrery owns a field of it.
func note(o *unstructured.Unstructured) string {
	fields := OwnedFields(o)
	if o.GetLabels()[workv1alpha2.BindingLabel] == "" && o.GetAnnotations()[workv1alpha2.OrphanAnnotation] == "" ||
		fields == 0 && len(o.GetManagedFields()) > 0 {
		return ""
	}
	return strconv.FormatUint(fields, 10)
}

// newObject returns the index entry of an object of a cluster. note is the result of the func note
// for the object; for "", the result is nil.
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

// carry copies Ended, how the work of an object ended, from its earlier state before to its later
// state o, if o is being deleted. A pod that is being deleted no longer reports that it had ended.
// o and before may be nil, or of different objects: then it does nothing.
func (o *Object) carry(before *Object) {
	if o != nil && before != nil && o.UID == before.UID && o.Deleting && o.Ended == "" {
		o.Ended = before.Ended
	}
}

// OwnedFields returns a hash of the set of fields that Orrery's server-side apply owns in an
// object; 0: it owns none. Equal sets in one API server have equal hashes.
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
