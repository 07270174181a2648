package chart

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"orrery.dev/orrery/internal/manifest"
)

// Release is what the templates of a chart see of their Helm release and cluster. Kubernetes is the
// version of the cluster.
type Release struct{ Name, Namespace, Kubernetes string }

// Object is an object of a chart.
type Object struct {
	*unstructured.Unstructured
	// Stable is the JSON value of the object without its random parts, such as passwords; nil if each
	// rendering makes the same object.
	Stable any
}

// Render renders the objects of c with values. They are in the order of applying: pre-install
// hooks, the crds folder, other objects, and post-install hooks. Other hooks are left out. Render
// changes values, and removes the dependencies from c that values disable, so it is called once.
func (c *Chart) Render(values map[string]any, r Release) ([]Object, error) {
	if err := chartutil.ProcessDependenciesWithMerge(c.loaded, values); err != nil {
		return nil, fmt.Errorf("process dependencies of chart %s: %w", c.Name, err)
	}
	// Differences between two renderings are random.
	var both [2][]*unstructured.Unstructured
	for i := range both {
		var err error
		if both[i], err = render(c.loaded, values, r); err != nil {
			return nil, fmt.Errorf("render chart %s %s: %w", c.Name, c.Version, err)
		}
	}
	objects := make([]Object, len(both[0]))
	for i, o := range both[0] {
		objects[i].Unstructured = o
		if i < len(both[1]) && !reflect.DeepEqual(o.Object, both[1][i].Object) {
			objects[i].Stable = common(o.Object, both[1][i].Object)
		}
	}
	return objects, nil
}

// common returns the parts that are equal in two JSON values. Where the values differ, it has nil.
func common(a, b any) any {
	switch a := a.(type) {
	case map[string]any:
		b, _ := b.(map[string]any)
		both := make(map[string]any, len(a))
		for key := range a {
			both[key] = common(a[key], b[key])
		}
		return both
	case []any:
		b, _ := b.([]any)
		both := make([]any, len(a))
		for i := range a {
			if i < len(b) {
				both[i] = common(a[i], b[i])
			}
		}
		return both
	default:
		if reflect.DeepEqual(a, b) {
			return a
		}
		return nil
	}
}

// render renders the objects of a chart once, in the order of applying.
func render(c *chart.Chart, values map[string]any, r Release) ([]*unstructured.Unstructured, error) {
	version, err := chartutil.ParseKubeVersion(r.Kubernetes)
	if err != nil {
		return nil, fmt.Errorf("version of Kubernetes: %w", err)
	}
	capabilities := chartutil.DefaultCapabilities.Copy()
	capabilities.KubeVersion = *version
	all, err := chartutil.ToRenderValues(c, values,
		chartutil.ReleaseOptions{Name: r.Name, Namespace: r.Namespace, Revision: 1, IsInstall: true}, capabilities)
	if err != nil {
		return nil, fmt.Errorf("merge values: %w", err)
	}
	files, err := engine.Render(c, all)
	if err != nil {
		return nil, err
	}
	var found rendered
	for _, crd := range c.CRDObjects() {
		if err := found.add(crd.Filename, crd.File.Data); err != nil {
			return nil, err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if base := path.Base(name); base == "NOTES.txt" || strings.HasPrefix(base, "_") {
			continue
		}
		if err := found.add(name, []byte(files[name])); err != nil {
			return nil, err
		}
	}
	return found.objects(), nil
}

// rendered has the objects of a chart by the time at which they are applied: pre-install hooks,
// plain objects, and post-install hooks.
type rendered struct {
	before, main, after []*unstructured.Unstructured
}

const (
	// hookAnnotation has the hooks of Helm for which an object is, separated by commas.
	hookAnnotation = "helm.sh/hook"
	// hookWeightAnnotation has the weight of a hook, by which hooks are sorted.
	hookWeightAnnotation = "helm.sh/hook-weight"
)

// add adds the objects in the text of a rendered file to r. name is the name of the file, for
// errors.
func (r *rendered) add(name string, content []byte) error {
	// Many charts repeat a key. Helm takes the last value.
	found, err := manifest.Parse(content, yaml.YAMLToJSON)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	for _, o := range found {
		hooks := strings.Split(strings.ReplaceAll(o.GetAnnotations()[hookAnnotation], " ", ""), ",")
		switch {
		case hooks[0] == "":
			r.main = append(r.main, o)
		case slices.Contains(hooks, "pre-install"), slices.Contains(hooks, "crd-install"):
			r.before = append(r.before, o)
		case slices.Contains(hooks, "post-install"):
			r.after = append(r.after, o)
		}
	}
	return nil
}

// objects returns all objects in the order of applying. Hooks are sorted by weight.
func (r *rendered) objects() []*unstructured.Unstructured {
	byWeight := func(a, b *unstructured.Unstructured) int { return cmp.Compare(hookWeight(a), hookWeight(b)) }
	slices.SortStableFunc(r.before, byWeight)
	slices.SortStableFunc(r.after, byWeight)
	return slices.Concat(r.before, r.main, r.after)
}

// hookWeight returns the weight of a hook, by which hooks are sorted. As in Helm, a missing or
// invalid number is 0.
func hookWeight(o *unstructured.Unstructured) int {
	weight, err := strconv.Atoi(o.GetAnnotations()[hookWeightAnnotation])
	if err != nil {
		return 0
	}
	return weight
}
