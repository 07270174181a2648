package history

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
)

// State is one state of an object, parsed by Parse. The data of a Secret is separate, so that it is
// never shown. The functions of this package do not change a State.
type State struct {
	object map[string]any
	data   map[string]any // data and stringData of a Secret, which are never shown
}

// Parse parses the JSON of an object of the type gr. It separates the data of a Secret from the
// rest of the object. Invalid JSON is an error.
func Parse(gr schema.GroupResource, body []byte) (*State, error) {
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber()
	s := &State{}
	if err := d.Decode(&s.object); err != nil {
		return nil, fmt.Errorf("read a state of %s: %w", gr, err)
	}
	if gr == (schema.GroupResource{Resource: "secrets"}) {
		s.data = map[string]any{}
		for _, field := range []string{"data", "stringData"} {
			if value, ok := s.object[field]; ok {
				s.data[field] = value
			}
			delete(s.object, field)
		}
	}
	return s, nil
}

// Object returns the whole object as JSON. Of a Secret, the data and stringData are missing.
func (s *State) Object() (json.RawMessage, error) { return json.Marshal(s.object) }

func (s *State) metadata() map[string]any {
	m, _ := s.object["metadata"].(map[string]any)
	return m
}

// noAnnotations are annotations that Differences ignores: they change together with other fields,
// and have no meaning for a history.
var noAnnotations = []string{
	corev1.LastAppliedConfigAnnotation, corev1.EndpointsLastChangeTriggerTime, "deployment.kubernetes.io/revision",
	"control-plane.alpha.kubernetes.io/leader", workv1alpha2.DigestAnnotation, workv1alpha2.SourceAnnotation,
}

// noMetadata are fields of metadata that Differences ignores. They change with every change of the
// object, or never, or are shown elsewhere.
var noMetadata = []string{"resourceVersion", "generation", "creationTimestamp", "uid", "selfLink"}

// quiet returns a copy of an object without managedFields, which only By uses. If all is false, the
// copy also lacks the status, and the fields and annotations in noMetadata and noAnnotations. The
// object itself is not changed.
func quiet(object map[string]any, all bool) map[string]any {
	object = maps.Clone(object)
	if !all {
		delete(object, "status")
	}
	metadata, ok := object["metadata"].(map[string]any)
	if !ok {
		return object
	}
	metadata = maps.Clone(metadata)
	object["metadata"] = metadata
	delete(metadata, "managedFields")
	if all {
		return object
	}
	for _, field := range noMetadata {
		delete(metadata, field)
	}
	if annotations, ok := metadata["annotations"].(map[string]any); ok {
		annotations = maps.Clone(annotations)
		for _, name := range noAnnotations {
			delete(annotations, name)
		}
		metadata["annotations"] = annotations
		if len(annotations) == 0 {
			delete(metadata, "annotations")
		}
	}
	return object
}

// Differences returns the fields in which two states of an object differ, sorted by the names of
// fields. Examples of paths are metadata.labels.app and spec.containers[name=web].image. If one
// state lacks a field, its value there is nil. managedFields are always ignored. If all is false,
// the status is ignored, too, and fields that change without meaning, such as metadata.generation.
// A difference in the data of a Secret is the first one. It has the path data and no values.
func Differences(before, after *State, all bool) []fleetv1alpha1.FieldDifference {
	var out []fleetv1alpha1.FieldDifference
	if !reflect.DeepEqual(before.data, after.data) {
		out = append(out, fleetv1alpha1.FieldDifference{Path: "data", Hidden: true})
	}
	compareMaps("", quiet(before.object, all), quiet(after.object, all), func(path string, was, is any) {
		out = append(out, fleetv1alpha1.FieldDifference{Path: path, Before: raw(was), After: raw(is)})
	})
	return out
}

// absent is the value that compare reports for a field that one of the states lacks. It differs
// from null.
type absent struct{}

// raw returns a value as JSON, and nil for absent.
func raw(value any) json.RawMessage {
	if value == (absent{}) {
		return nil
	}
	b, _ := json.Marshal(value) //nolint:errchkjson // it was JSON
	return b
}

// differ is called with each field that differs: its path, and its values before and after. A value
// is absent if that state lacks the field.
type differ func(path string, before, after any)

// compare calls tell for each difference between the values a and b at a path. For two objects or
// two lists, these are the fields or elements below the path.
func compare(path string, a, b any, tell differ) {
	if as, ok := a.(map[string]any); ok {
		if bs, ok := b.(map[string]any); ok {
			compareMaps(path, as, bs, tell)
			return
		}
	}
	if as, ok := a.([]any); ok {
		if bs, ok := b.([]any); ok {
			compareLists(path, as, bs, tell)
			return
		}
	}
	if !reflect.DeepEqual(a, b) {
		tell(path, a, b)
	}
}

// field returns the value of a key in a map, and absent if the map lacks the key.
func field[K comparable](of map[K]any, key K) any {
	if value, ok := of[key]; ok {
		return value
	}
	return absent{}
}

func compareMaps(path string, a, b map[string]any, tell differ) {
	both := maps.Clone(a)
	maps.Copy(both, b)
	for _, key := range slices.Sorted(maps.Keys(both)) {
		step := "." + key
		switch {
		case strings.ContainsAny(key, "./'[]"):
			step = "['" + key + "']"
		case path == "":
			step = key
		}
		compare(path+step, field(a, key), field(b, key), tell)
	}
}

// naming are the fields that can identify the elements of a list, the more specific ones first. For
// example, several volumeMounts may have the same name, but not the same mountPath.
var naming = []string{"mountPath", "name", "type", "key", "containerPort", "port", "ip", "uid", "topologyKey"}

// compareLists calls tell for each difference between two lists. If a field of naming identifies
// all elements of both lists, it compares the elements with the same value of that field. Otherwise
// it compares elements with the same index. If only the order of such named elements differs, the
// difference has the names in both orders.
func compareLists(path string, a, b []any, tell differ) {
	for _, by := range naming {
		as, first, ok := named(a, by)
		if !ok {
			continue
		}
		bs, second, ok := named(b, by)
		if !ok {
			continue
		}
		same := true
		each := func(name string) {
			compare(path+"["+by+"="+name+"]", field(as, name), field(bs, name), func(path string, was, is any) {
				same = false
				tell(path, was, is)
			})
		}
		for _, name := range first {
			each(name)
		}
		for _, name := range second {
			if _, known := as[name]; !known {
				each(name)
			}
		}
		if same && !slices.Equal(first, second) {
			tell(path, first, second) // only the order differs
		}
		return
	}
	for i := range max(len(a), len(b)) {
		var was, is any = absent{}, absent{}
		if i < len(a) {
			was = a[i]
		}
		if i < len(b) {
			is = b[i]
		}
		compare(fmt.Sprintf("%s[%d]", path, i), was, is, tell)
	}
}

// named returns the elements of a list by the value of their field by, and these values in the
// order of the list. ok is false if an element lacks the field, or two have the same value.
func named(list []any, by string) (elements map[string]any, names []string, ok bool) {
	elements = make(map[string]any, len(list))
	for _, element := range list {
		object, _ := element.(map[string]any)
		var name string
		switch value := object[by].(type) {
		case string:
			name = value
		case json.Number:
			name = value.String()
		default:
			return nil, nil, false
		}
		if _, twice := elements[name]; twice {
			return nil, nil, false
		}
		elements[name], names = object, append(names, name)
	}
	return elements, names, true
}

// By returns the field managers that made the change from before to after, from managedFields. They
// are the managers with the latest time in after, without those that before has with the same time.
// If before is nil, they are the managers of the last change. The result is empty if the change has
// no manager.
func By(before, after *State) []fleetv1alpha1.FieldManager {
	was := map[fleetv1alpha1.FieldManager]bool{}
	if before != nil {
		for _, m := range before.managers() {
			was[m] = true
		}
	}
	is, newest := after.managers(), ""
	for _, m := range is {
		newest = max(newest, m.Time) // in UTC and with seconds, so texts sort by time
	}
	return slices.DeleteFunc(is, func(m fleetv1alpha1.FieldManager) bool { return was[m] || m.Time != newest })
}

func (s *State) managers() (out []fleetv1alpha1.FieldManager) {
	entries, _ := s.metadata()["managedFields"].([]any)
	for _, e := range entries {
		entry, _ := e.(map[string]any)
		text := func(field string) string {
			value, _ := entry[field].(string)
			return value
		}
		out = append(out, fleetv1alpha1.FieldManager{
			Manager: text("manager"), Operation: text("operation"), Subresource: text("subresource"), APIVersion: text("apiVersion"), Time: text("time"),
		})
	}
	return out
}

// changeCause is the annotation with which users and kubectl give the reason for a change of an
// object.
const changeCause = "kubernetes.io/change-cause"

// Cause returns the text of the annotation kubernetes.io/change-cause in after, as the reason for
// the change. It is "" if after has no such annotation, or before has the same text. before may be
// nil.
func Cause(before, after *State) string {
	cause := func(s *State) string {
		annotations, _ := s.metadata()["annotations"].(map[string]any)
		text, _ := annotations[changeCause].(string)
		return text
	}
	is := cause(after)
	if before != nil && cause(before) == is {
		return ""
	}
	return is
}

// fresh is the maximum age of an object at the beginning of its first known state. Up to this age,
// that state counts as the creation of the object.
const fresh = time.Minute

// First returns how a history shows the first known state of an object. created is the creation
// time of the object, and began the beginning of that state. If the object was new then (see
// fresh), the result is ChangeCreated. Otherwise it is ChangeSeen: the object existed before it was
// observed. The result is also ChangeSeen if one of the times is zero, which means unknown.
func First(created, began time.Time) fleetv1alpha1.ChangeType {
	if began.IsZero() || created.IsZero() || began.Sub(created) > fresh {
		return fleetv1alpha1.ChangeSeen
	}
	return fleetv1alpha1.ChangeCreated
}
