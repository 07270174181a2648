package apply

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// added returns the sorted paths of list elements and map keys that the cluster added while it
// accepted a manifest: webhooks and admission policies add them, and no field manager owns
// them. Defaults of the API server for fields that the manifest leaves out are no additions,
// nor are the fields that clusterOwn leaves to the cluster. The result is nil if managedFields
// are missing.
func added(manifest, applied *unstructured.Unstructured) []string {
	var all fieldSet
	for _, entry := range applied.GetManagedFields() {
		if entry.APIVersion == manifest.GetAPIVersion() {
			all = merge(all, fieldsIn(entry))
		}
	}
	if len(all) == 0 {
		return nil // without managedFields additions cannot be found
	}
	a := additions{own: clusterOwn(manifest)}
	a.compare("", "", manifest.Object, applied.Object, all, false)
	slices.Sort(a.paths)
	return slices.Compact(a.paths)
}

// additions collects the result of one call of added. own are the fields that the cluster sets
// itself, which are no additions; paths are the additions found so far.
type additions struct {
	own   ownFields
	paths []string
}

// freeMaps are the names of maps whose keys users choose freely. Only in these maps can a key be an
// addition: keys of other maps are fields of the kind.
var freeMaps = []string{"labels", "annotations", "data", "binaryData", "nodeSelector", "matchLabels", "limits"}

// add appends a path with its value to the additions, unless the cluster sets the field
// itself.
func (a *additions) add(path string, value any) {
	// Kubernetes adds these tolerations to every pod.
	standard := a.own.pod && strings.Contains(path, "[node.kubernetes.io/")
	if !standard && !a.own.has(path, nil, value) {
		a.paths = append(a.paths, path)
	}
}

// compare appends the additions in the value at path to a.paths. sent is the value in the manifest,
// and is that in the object. name is the last field of the path, "" for an element of a list. owned
// are the fields in the value that a field manager owns; whole is true if one owns all of the
// value.
func (a *additions) compare(path, name string, sent, is any, owned fieldSet, whole bool) {
	switch sent := sent.(type) {
	case map[string]any:
		fields, _ := is.(map[string]any)
		for key, value := range sent {
			part, all := owned.at("f:" + key)
			a.compare(join(path, key), key, value, fields[key], part, all)
		}
		if !slices.Contains(freeMaps, name) {
			return
		}
		for key, value := range fields {
			_, asked := sent[key]
			if _, theirs := owned["f:"+key]; !asked && (whole || !theirs) {
				a.add(join(path, key), value)
			}
		}
	case []any:
		elements, _ := is.([]any)
		names := elementNames(sent, elements)
		if names == nil {
			if whole && len(elements) > len(sent) {
				a.add(path, nil)
			}
			return
		}
		asked := map[string]any{}
		for _, v := range sent {
			asked[names(v)] = v
		}
		for i, v := range elements {
			of, found := asked[names(v)]
			key := owned.element(v, i)
			switch part, all := owned.at(key); {
			case found:
				a.compare(fmt.Sprintf("%s[%s]", path, names(v)), "", of, v, part, all || whole)
			case whole || key == "":
				a.add(fmt.Sprintf("%s[%s]", path, names(v)), v)
			}
		}
	}
}

// addition returns the text of a message about fields that the cluster added, at these paths. It
// names at most three of them; "" if there are none.
func addition(paths []string) string {
	if len(paths) == 0 {
		return ""
	}
	return "the cluster adds to what is applied: " + some(paths) + "; a webhook or an admission policy there does"
}
