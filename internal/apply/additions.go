package apply

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
	"orrery.dev/orrery/internal/interpreter"
	"orrery.dev/orrery/internal/render"
)

// note says what a cluster made of a manifest: what it changed, and what it added. It is empty for nothing.
func note(manifest, applied *unstructured.Unstructured) string {
	said := []string{mutation(mutated(manifest, applied)), addition(added(manifest, applied))}
	return strings.Join(slices.DeleteFunc(said, func(s string) bool { return s == "" }), "; ")
}

// addition says in one sentence what a cluster added; empty for nothing.
func addition(paths []string) string {
	if len(paths) == 0 {
		return ""
	}
	return fmt.Sprintf("the cluster adds to what is applied: %s; a webhook or an admission policy there does, or its API has other defaults", some(paths))
}

// added names the fields and the elements of lists that an object has beside its manifest and nobody owns: admission in the cluster put them there, for what a
// user or a controller wrote has an owner. It leaves out what each cluster makes for itself. A template has the defaults of the hub's API server.
func added(manifest, applied *unstructured.Unstructured) []string {
	stripped, err := render.Template(applied)
	if err != nil {
		return nil // it has no name or kind: nothing that was applied
	}
	var others []fieldSet
	for _, entry := range applied.GetManagedFields() {
		if s := fieldsIn(entry); s != nil && entry.Manager != workv1alpha2.FieldManager {
			others = append(others, s)
		}
	}
	own := clustersOwn(manifest)
	var paths []string
	addedFields("", manifest.Object, stripped.Object, others, func(path string) {
		if !own(path) {
			paths = append(paths, path)
		}
	})
	slices.Sort(paths)
	return paths
}

// clustersOwn returns whether a path is of a field that each cluster sets for itself where a manifest does not, beside those that render.Template drops.
func clustersOwn(manifest *unstructured.Unstructured) func(path string) bool {
	fields := map[string][]string{
		"PersistentVolume":      {"spec.claimRef"},
		"PersistentVolumeClaim": {"spec.volumeName", "spec.storageClassName"},
		"Namespace":             {`metadata.labels."kubernetes.io/metadata.name"`},
		"Service":               {"spec.ipFamilies", "spec.ipFamilyPolicy", "spec.healthCheckNodePort"},
	}[manifest.GroupVersionKind().GroupKind().String()]
	if interpreter.KeepsReplicas(manifest) {
		fields = append(slices.Clone(fields), strings.Join(interpreter.ReplicasField(manifest), "."))
	}
	service := manifest.GetKind() == "Service"
	return func(path string) bool {
		return slices.Contains(fields, path) || service && strings.HasPrefix(path, "spec.ports[") && strings.HasSuffix(path, "].nodePort")
	}
}

// addedFields tells of each field or element that a value has beside a wanted one, and that is in none of some sets.
func addedFields(path string, wanted, is any, others []fieldSet, tell func(path string)) {
	switch is := is.(type) {
	case map[string]any:
		wanted, isMap := wanted.(map[string]any)
		if !isMap {
			return // it was changed, not added to
		}
		for name, value := range is {
			at := join(path, name)
			parts, taken := within(others, "f:"+name)
			switch w, has := wanted[name]; {
			case taken || empty(value):
			case !has && len(parts) == 0:
				tell(at)
			case has && w != nil:
				addedFields(at, w, value, parts, tell)
			}
		}
	case []any:
		wanted, isList := wanted.([]any)
		if !isList {
			return
		}
		addedElements(path, wanted, is, others, tell)
	}
}

// addedElements is addedFields of lists.
func addedElements(path string, wanted, is []any, others []fieldSet, tell func(path string)) {
	asked := make([]bool, len(is)) // the elements that a wanted one became
	for i, w := range wanted {
		became := partner(wanted, is, i, asked)
		if became < 0 {
			continue
		}
		asked[became] = true
		parts, taken := elementWithin(others, is[became], became)
		if !taken {
			addedFields(fmt.Sprintf("%s[%d]", path, became), w, is[became], parts, tell)
		}
	}
	for i, element := range is {
		if asked[i] || len(is) <= len(wanted) {
			continue
		}
		if parts, taken := elementWithin(others, element, i); !taken && len(parts) == 0 {
			tell(fmt.Sprintf("%s[%d]", path, i))
		}
	}
}

// partner returns the index of the element of a list that the i-th of a wanted list became; below 0 if there is none. An element that is equal comes first, then
// the counterpart.
func partner(wanted, is []any, i int, asked []bool) int {
	for at, element := range is {
		if !asked[at] && contains(element, wanted[i]) {
			return at
		}
	}
	if became := counterpart(wanted, is, i); became != nil {
		return slices.IndexFunc(is, func(element any) bool { return sameText(element, became) })
	}
	return -1
}

// contains reports whether a value has all of a wanted one.
func contains(is, wanted any) bool {
	differs := false
	compareFields("", wanted, is, func(string, any, any) { differs = true })
	return !differs
}

// within returns the parts of some sets at a key. taken is true where one of them has all of it.
func within(sets []fieldSet, key string) (parts []fieldSet, taken bool) {
	for _, s := range sets {
		part, whole := s.at(key)
		if whole {
			return nil, true
		}
		if part != nil {
			parts = append(parts, part)
		}
	}
	return parts, false
}

// elementWithin is within of the i-th element of a list.
func elementWithin(sets []fieldSet, element any, i int) (parts []fieldSet, taken bool) {
	for _, s := range sets {
		part, whole := s.at(s.element(element, i))
		if whole {
			return nil, true
		}
		if part != nil {
			parts = append(parts, part)
		}
	}
	return parts, false
}

// empty reports whether a value is one that an API server may leave out.
func empty(v any) bool {
	switch v := v.(type) {
	case map[string]any:
		for _, value := range v {
			if !empty(value) {
				return false
			}
		}
		return true
	case []any:
		return len(v) == 0
	default:
		return same(v, nil)
	}
}
