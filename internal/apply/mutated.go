package apply

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
)

// mutated returns the sorted paths of the fields of a manifest that a cluster changed or dropped
// while it accepted the manifest. A webhook or an admission policy changes them, or the cluster's
// version of the API does not know them. added finds what the cluster added. Values are not
// returned: they may be secret.
func mutated(manifest, applied *unstructured.Unstructured) []string {
	var paths []string
	compareFields("", manifest.Object, applied.Object, func(path string, _, _ any) { paths = append(paths, path) })
	slices.Sort(paths)
	return paths
}

// mutation returns the text of a message about fields that the cluster changed, at these paths. It
// names at most three of them; "" if there are none.
func mutation(paths []string) string {
	if len(paths) == 0 {
		return ""
	}
	return fmt.Sprintf("the cluster changes what is applied: %s; a webhook or an admission policy there does, or its API does not know them", some(paths))
}

// takesMarks reports whether the cluster removed or changed the label of the binding or the
// annotation of the digest while it accepted the manifest. The hub would then apply the manifest
// again and again.
func takesMarks(manifest, applied *unstructured.Unstructured) bool {
	return applied.GetLabels()[workv1alpha2.BindingLabel] != manifest.GetLabels()[workv1alpha2.BindingLabel] ||
		applied.GetAnnotations()[workv1alpha2.DigestAnnotation] != manifest.GetAnnotations()[workv1alpha2.DigestAnnotation]
}

// compareFields calls tell for each scalar in a wanted value that is missing in the value is or
// differs there. Values that an API server may write differently count as equal. Fields that only
// is has are not reported. path is the path of both values; "" for whole objects. The calls come in
// no order.
func compareFields(path string, wanted, is any, tell func(path string, wanted, is any)) {
	switch wanted := wanted.(type) {
	case map[string]any:
		fields, _ := is.(map[string]any)
		for name, value := range wanted {
			compareFields(join(path, name), value, fields[name], tell)
		}
	case []any:
		elements, _ := is.([]any)
		for i, value := range wanted {
			compareFields(fmt.Sprintf("%s[%d]", path, i), value, counterpart(wanted, elements, i), tell)
		}
	default:
		if !same(wanted, is) {
			tell(path, wanted, is)
		}
	}
}

// join appends the name of a field to a path with a dot. A name with one of "./[]" is quoted.
func join(path, name string) string {
	if strings.ContainsAny(name, "./[]") {
		name = strconv.Quote(name)
	}
	if path == "" {
		return name
	}
	return path + "." + name
}

// counterpart returns the element of a list that corresponds to the i-th element of a wanted list;
// nil if there is none. An element whose field name is unique corresponds to the element with that
// name, because others may insert elements before it. Other elements correspond by index.
func counterpart(wanted, elements []any, i int) any {
	name := func(v any) string {
		o, _ := v.(map[string]any)
		s, _ := o["name"].(string)
		return s
	}
	named := func(list []any, n string) (at, count int) {
		for i, v := range list {
			if name(v) == n {
				at, count = i, count+1
			}
		}
		return at, count
	}
	if n := name(wanted[i]); n != "" {
		_, asked := named(wanted, n)
		switch at, count := named(elements, n); {
		case asked == 1 && count == 0:
			return nil
		case asked == 1 && count == 1:
			return elements[at]
		}
	}
	if i < len(elements) {
		return elements[i]
	}
	return nil
}

// same reports whether a value in an object (is) equals a wanted value. It accepts what an API
// server may rewrite: empty values are left out, and quantities normalized. A wanted nil equals
// every value.
func same(wanted, is any) bool {
	switch wanted := wanted.(type) {
	case nil:
		return true
	case string:
		s, isText := is.(string)
		if wanted == s {
			return true
		}
		a, errA := resource.ParseQuantity(wanted)
		if !isText {
			s = fmt.Sprint(is) // a quantity may be written as a number
		}
		b, errB := resource.ParseQuantity(s)
		return errA == nil && errB == nil && a.Cmp(b) == 0
	case bool:
		b, _ := is.(bool)
		return wanted == b
	default:
		if is == nil {
			is = 0
		}
		return fmt.Sprint(wanted) == fmt.Sprint(is) || same(fmt.Sprint(wanted), fmt.Sprint(is))
	}
}
