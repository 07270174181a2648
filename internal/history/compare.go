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

// State is a state of an object.
type State struct {
	object map[string]any
	data   map[string]any // data and stringData of a Secret, which are never shown
}

// Parse parses a state of an object of a type. It separates the data of a Secret from the
// object.
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

// Object returns the state as JSON; for a Secret, without its data.
func (s *State) Object() (json.RawMessage, error) { return json.Marshal(s.object) }

func (s *State) metadata() map[string]any {
	m, _ := s.object["metadata"].(map[string]any)
	return m
}

// noAnnotations are annotations without meaning for a history: they change together with other
// fields.
var noAnnotations = []string{
	corev1.LastAppliedConfigAnnotation, corev1.EndpointsLastChangeTriggerTime, "deployment.kubernetes.io/revision",
	"control-plane.alpha.kubernetes.io/leader", workv1alpha2.DigestAnnotation, workv1alpha2.SourceAnnotation,
}

// noMetadata are fields of metadata without meaning for a history: they change with every
// change, or are reported in another way.
var noMetadata = []string{"resourceVersion", "generation", "creationTimestamp", "uid", "selfLink"}

// quiet returns the object without managedFields, which By reports. Unless all is true, it also
// removes the fields that change without meaning.
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

// Differences returns the fields in which two states of an object differ, with their paths.
// Unless all is true, it ignores fields that change without meaning. A difference in the data of
// a Secret is reported without the data.
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

// absent is the value of a missing field. It differs from null.
type absent struct{}

func raw(value any) json.RawMessage {
	if value == (absent{}) {
		return nil
	}
	b, _ := json.Marshal(value) //nolint:errchkjson // it was JSON
	return b
}

// differ receives each field that differs.
type differ func(path string, before, after any)

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

// naming are the fields that identify elements of lists, the more specific ones first: several
// volumeMounts may have the same name.
var naming = []string{"mountPath", "name", "type", "key", "containerPort", "port", "ip", "uid", "topologyKey"}

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

// named returns the elements of a list by the field by, and the values of the field in order.
// false: the field does not identify all elements.
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

// By returns the managers that changed an object from before to after: those with the latest
// time that before did not have with that time. before may be nil; then these are the managers
// of the last change.
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

// changeCause is the annotation in which users and kubectl state the reason for a change.
const changeCause = "kubernetes.io/change-cause"

// Cause returns the reason for a change from before (may be nil) to after; "" if after states
// none, or the same as before.
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

// fresh is the maximum age of an object at its first known state for that state to be the
// creation.
const fresh = time.Minute

// First returns what the first known state of an object means, which began at a moment: the
// creation or, for an older object, only that it became visible.
func First(created, began time.Time) fleetv1alpha1.ChangeType {
	if began.IsZero() || created.IsZero() || began.Sub(created) > fresh {
		return fleetv1alpha1.ChangeSeen
	}
	return fleetv1alpha1.ChangeCreated
}
