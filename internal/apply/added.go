package apply

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// added returns the paths of list elements and map keys that the cluster added while it took a
// manifest: webhooks and admission policies add them, and no field manager owns them. Defaults
// of the API server for fields that the manifest leaves out are no additions. The result is nil
// if managedFields are missing.
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

// additions collects the result of one call of added.
type additions struct {
	own   ownFields
	paths []string
}

// freeMaps are the maps whose keys are chosen freely: they are not fields of a kind.
var freeMaps = []string{"labels", "annotations", "data", "binaryData", "nodeSelector", "matchLabels", "limits"}

func (a *additions) add(path string, value any) {
	// Every pod gets these tolerations.
	standard := a.own.pod && strings.Contains(path, "[node.kubernetes.io/")
	if !standard && !a.own.has(path, nil, value) {
		a.paths = append(a.paths, path)
	}
}

// compare collects the additions in a value of a manifest. owned are the fields in it that have
// an owner; whole is true if the value is owned as a whole.
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

// addition describes the paths in one sentence; "" if there are none.
func addition(paths []string) string {
	if len(paths) == 0 {
		return ""
	}
	return "the cluster adds to what is applied: " + some(paths) + "; a webhook or an admission policy there does"
}
