package apply

import (
	"encoding/json"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
)

// fieldSet is a set of fields as managedFields writes it: "f:NAME" is a field of a map, "k:{KEYS}", "v:VALUE" or "i:INDEX" an element of a list, and "." the value
// itself. An empty set is the value with all that is in it.
type fieldSet map[string]any

// fieldsIn reads the set of an entry of managedFields; nil where there is none.
func fieldsIn(entry metav1.ManagedFieldsEntry) fieldSet {
	var s fieldSet
	if entry.FieldsV1 == nil || json.Unmarshal(entry.FieldsV1.GetRawBytes(), &s) != nil {
		return nil
	}
	return s
}

// isOurs reports whether an entry of managedFields is the one of our server-side apply.
func isOurs(entry metav1.ManagedFieldsEntry) bool {
	return entry.Manager == workv1alpha2.FieldManager && entry.Operation == metav1.ManagedFieldsOperationApply && entry.Subresource == ""
}

// ownSet returns the fields that our server-side apply owns, in the version of the API in which it wrote last; nil for none.
func ownSet(o *unstructured.Unstructured, version string) fieldSet {
	for _, entry := range o.GetManagedFields() {
		if isOurs(entry) && entry.APIVersion == version {
			return fieldsIn(entry)
		}
	}
	return nil
}

// at returns the part of a set at a key. whole is true where the set has all of it.
func (s fieldSet) at(key string) (part fieldSet, whole bool) {
	m, found := s[key].(map[string]any)
	return m, found && len(m) == 0
}

// element returns the key of a set under which it has the i-th element of a list; "" where it does not.
func (s fieldSet) element(value any, i int) string {
	for key := range s {
		kind, text, _ := strings.Cut(key, ":")
		var want any
		if json.Unmarshal([]byte(text), &want) != nil {
			continue
		}
		switch kind {
		case "k":
			keys, _ := want.(map[string]any)
			o, isMap := value.(map[string]any)
			matches := isMap && len(keys) > 0
			for name, v := range keys {
				is, set := o[name]
				matches = matches && (!set || sameText(v, is)) // a key that is left out has its default
			}
			if matches {
				return key
			}
		case "v":
			if sameText(want, value) {
				return key
			}
		case "i":
			if text == strconv.Itoa(i) {
				return key
			}
		}
	}
	return ""
}

// keyed returns the element of a list that a set has under a key; nil for none.
func keyed(elements []any, key string) any {
	for i, element := range elements {
		if (fieldSet{key: nil}).element(element, i) == key {
			return element
		}
	}
	return nil
}

// sameText compares two scalars as JSON.
func sameText(a, b any) bool {
	x, errX := json.Marshal(a)
	y, errY := json.Marshal(b)
	return errX == nil && errY == nil && string(x) == string(y)
}

// takenFromUs reports whether somebody changed our copy since it was applied: a field of the manifest has another value there, and is not ours any more. A field that is ours and
// has another value got it as it was applied, from a webhook or from an API server that does not know the field; to apply it again would change nothing.
func takenFromUs(manifest, live *unstructured.Unstructured) bool {
	return taken(retained(manifest, live).Object, live.Object, ownSet(live, manifest.GetAPIVersion()), false)
}

func taken(wanted, is any, ours fieldSet, whole bool) bool {
	if whole {
		return false
	}
	switch wanted := wanted.(type) {
	case map[string]any:
		fields, _ := is.(map[string]any)
		for name, value := range wanted {
			part, all := ours.at("f:" + name)
			if taken(value, fields[name], part, all) {
				return true
			}
		}
		return false
	case []any:
		elements, _ := is.([]any)
		for i, value := range wanted {
			key := ours.element(value, i)
			part, all := ours.at(key)
			is := counterpart(wanted, elements, i)
			if strings.HasPrefix(key, "k:") {
				is = keyed(elements, key)
			}
			if taken(value, is, part, all) {
				return true
			}
		}
		return false
	default:
		return !same(wanted, is)
	}
}
