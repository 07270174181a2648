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

// mutated returns the paths of the fields that a cluster changed or dropped right after it
// accepted the manifest. A webhook or an admission policy changes them, or the cluster's
// version of the API does not know them. added finds what the cluster added. Values are not
// returned: they may be secret.
func mutated(manifest, applied *unstructured.Unstructured) []string {
	var paths []string
	compareFields("", manifest.Object, applied.Object, func(path string, _, _ any) { paths = append(paths, path) })
	slices.Sort(paths)
	return paths
}

// mutation describes the paths in one sentence; "" if there are none.
func mutation(paths []string) string {
	if len(paths) == 0 {
		return ""
	}
	return fmt.Sprintf("the cluster changes what is applied: %s; a webhook or an admission policy there does, or its API does not know them", some(paths))
}

// takesMarks reports whether the applied object lost the label of the binding or the annotation
// of the digest. It would then be applied again and again.
func takesMarks(manifest, applied *unstructured.Unstructured) bool {
	return applied.GetLabels()[workv1alpha2.BindingLabel] != manifest.GetLabels()[workv1alpha2.BindingLabel] ||
		applied.GetAnnotations()[workv1alpha2.DigestAnnotation] != manifest.GetAnnotations()[workv1alpha2.DigestAnnotation]
}

// compareFields calls tell for each field of a wanted value that has another value in is.
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

// join appends the name of a field to a path.
func join(path, name string) string {
	if strings.ContainsAny(name, "./[]") {
		name = strconv.Quote(name)
	}
	if path == "" {
		return name
	}
	return path + "." + name
}

// counterpart returns the element of a list that corresponds to the i-th of a wanted list.
// Elements with a unique name are found by name, for others may insert elements before them.
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

// same compares two values as an API server may rewrite them: it leaves out empty values, and
// normalizes quantities.
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
