package apply

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// added names what a cluster puts into the lists and maps of a manifest as it takes it: keys and elements that nobody owns, which a webhook or an admission policy there
// adds. What an API server sets where a manifest says nothing is no addition.
func added(manifest, applied *unstructured.Unstructured) []string {
	var all fieldSet
	for _, entry := range applied.GetManagedFields() {
		if entry.APIVersion == manifest.GetAPIVersion() {
			all = merge(all, fieldsIn(entry))
		}
	}
	if len(all) == 0 {
		return nil // nobody knows
	}
	a := additions{own: clusterOwn(manifest)}
	a.compare("", "", manifest.Object, applied.Object, all, false)
	slices.Sort(a.paths)
	return slices.Compact(a.paths)
}

// additions is one run of added.
type additions struct {
	own   ownFields
	paths []string
}

// freeMaps are the maps whose keys are not fields of a kind.
var freeMaps = []string{"labels", "annotations", "data", "binaryData", "nodeSelector", "matchLabels", "limits"}

func (a *additions) add(path string, value any) {
	standard := a.own.pod && strings.Contains(path, "[node.kubernetes.io/") // the tolerations that every pod gets
	if !standard && !a.own.has(path, nil, value) {
		a.paths = append(a.paths, path)
	}
}

// compare looks for additions in a value of a manifest. owned are the fields in it that somebody owns, whole where it is owned as one.
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

// addition says so in one sentence; empty for none.
func addition(paths []string) string {
	if len(paths) == 0 {
		return ""
	}
	return "the cluster adds to what is applied: " + some(paths) + "; a webhook or an admission policy there does"
}
