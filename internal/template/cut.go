package template

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/go-logr/logr"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"orrery.dev/orrery/internal/presence"
)

// A CustomResourceDefinition without a conversion may have versions that lack fields of other
// versions. An API server omits these fields from an object that is read in such a version. The
// cache also watches the other versions of such a kind, to see which templates lose fields.
// Kinds of Kubernetes and kinds with a conversion webhook lose nothing: their versions have the
// same content, perhaps under other names.

// openSchema is the OpenAPI schema of a version of a CustomResourceDefinition, or the schema of one
// field in it.
type openSchema map[string]any

// wider is another served version of a kind, with fields that the version of the kind lacks. other
// is the schema of the other version, and own that of the kind's version.
type wider struct {
	gvk        schema.GroupVersionKind
	other, own openSchema
}

// Cut returns a message for users if a template loses fields: they do not exist in the version
// in which the template is read. The message names the fields and the version that has them. It
// is "" if no field is lost. known is false until the versions are compared, and while the cache
// has the template in another version at another resourceVersion.
func (c *Cache) Cut(o *unstructured.Unstructured) (message string, known bool) {
	c.mu.RLock()
	k := c.kinds[o.GroupVersionKind()]
	c.mu.RUnlock()
	if k == nil {
		return "", false
	}
	k.mu.RLock()
	versions, compared := k.wider, k.compared
	k.mu.RUnlock()
	if !compared {
		return "", false
	}
	var said []string
	for _, w := range versions {
		other, state := c.Get(w.gvk, o.GetNamespace(), o.GetName())
		if state != presence.Present || other.GetUID() != o.GetUID() || other.GetResourceVersion() != o.GetResourceVersion() {
			return "", false
		}
		if paths := lost("", w.other, w.own, other.Object); len(paths) > 0 {
			slices.Sort(paths)
			said = append(said, fmt.Sprintf("%s, set in %s, does not exist in %s, in which the template is placed: no cluster gets it; name %s in the selector of the policy",
				strings.Join(paths, ", "), w.gvk.GroupVersion(), k.gvk.GroupVersion(), w.gvk.GroupVersion()))
		}
	}
	return strings.Join(said, "; "), true
}

// compareVersions records which versions of the kind have more fields than the kind's own version,
// and makes the cache watch them, so that Cut can report the fields that a template loses. It reads
// the CustomResourceDefinition. If the read fails, the last result stays. It is called whenever a
// watch of the kind begins, because a watch ends when the definition changes.
func (k *kind) compareVersions(ctx context.Context, c *Cache, resource schema.GroupVersionResource) {
	definition, err := c.dynamic.Resource(apiextensionsv1.SchemeGroupVersion.WithResource("customresourcedefinitions")).Get(
		ctx, resource.GroupResource().String(), metav1.GetOptions{})
	var versions []wider
	switch {
	case apierrors.IsNotFound(err): // a kind of Kubernetes, which has no definition
	case err != nil:
		logr.FromContextOrDiscard(ctx).V(1).Info("cannot read the definition", "kind", k.gvk.String(), "error", err.Error())
		return // the last result stays
	default:
		versions = widerVersions(definition, k.gvk)
	}
	k.mu.Lock()
	k.wider, k.compared = versions, true
	k.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, w := range versions {
		c.watched(w.gvk)
	}
}

// widerVersions returns the served versions of a CustomResourceDefinition with fields that the
// version in gvk lacks. It returns none if the definition has a conversion.
func widerVersions(definition *unstructured.Unstructured, gvk schema.GroupVersionKind) (found []wider) {
	if strategy, _, _ := unstructured.NestedString(definition.Object, "spec", "conversion", "strategy"); strategy != string(apiextensionsv1.NoneConverter) {
		return nil
	}
	list, _, _ := unstructured.NestedSlice(definition.Object, "spec", "versions")
	schemas := map[string]openSchema{}
	var served []string
	for _, v := range list {
		version, _ := v.(map[string]any)
		name, _ := version["name"].(string)
		of, _, _ := unstructured.NestedMap(version, "schema", "openAPIV3Schema")
		schemas[name] = of
		if is, _ := version["served"].(bool); is && name != gvk.Version {
			served = append(served, name)
		}
	}
	own, known := schemas[gvk.Version]
	for _, name := range served {
		if known && schemas[name].hasMore(own, "") {
			found = append(found, wider{gvk: gvk.GroupKind().WithVersion(name), other: schemas[name], own: own})
		}
	}
	return found
}

// part returns the schema of the field with a name. allowed is false if the schema has no such
// field, so that the API server drops it. A nil part with allowed means that the field may have any
// content.
func (s openSchema) part(name string) (part openSchema, allowed bool) {
	properties, _ := s["properties"].(map[string]any)
	if of, is := properties[name].(map[string]any); is {
		return of, true
	}
	if of, is := s["additionalProperties"].(map[string]any); is {
		return of, true
	}
	all, _ := s["additionalProperties"].(bool)
	return nil, all || s.keepsAll()
}

// keepsAll reports whether the API server keeps fields that the schema does not have.
func (s openSchema) keepsAll() bool {
	keeps, _ := s["x-kubernetes-preserve-unknown-fields"].(bool)
	return keeps
}

// notSpecific reports whether hasMore and lost skip a field: every object has the field, or the
// field is the status, which is not placed. name is the name of the field, and path that of the
// value with the field. Only fields of the whole object are skipped, whose path is "".
func notSpecific(path, name string) bool {
	return path == "" && slices.Contains([]string{"apiVersion", "kind", "metadata", "status"}, name)
}

// hasMore reports whether a schema keeps fields that another (own) drops. path is the path of
// the field that both schemas describe, "" for the whole object.
func (s openSchema) hasMore(own openSchema, path string) bool {
	if own.keepsAll() {
		return false
	}
	properties, _ := s["properties"].(map[string]any)
	for name, v := range properties {
		of, _ := v.(map[string]any)
		part, allowed := own.part(name)
		if !notSpecific(path, name) && (!allowed || part != nil && openSchema(of).hasMore(part, path+"."+name)) {
			return true
		}
	}
	for _, key := range []string{"items", "additionalProperties"} {
		of, more := s[key].(map[string]any)
		part, has := own[key].(map[string]any)
		if more && has && openSchema(of).hasMore(part, path+"."+key) {
			return true
		}
	}
	return s.keepsAll()
}

// lost returns the paths, in no order, of fields of a value that the schema other keeps and the
// schema own drops. path is the path of the value, "" for the whole object. Values that other
// sets by default do not count as lost, because the clusters set the same defaults.
func lost(path string, other, own openSchema, value any) (paths []string) {
	if own.keepsAll() {
		return nil
	}
	switch is := value.(type) {
	case map[string]any:
		for name, v := range is {
			if notSpecific(path, name) {
				continue
			}
			here := strings.TrimPrefix(path+"."+name, ".")
			part, _ := other.part(name)
			switch of, allowed := own.part(name); {
			case !allowed && !part.isDefault(v):
				paths = append(paths, here)
			case allowed && of != nil:
				paths = append(paths, lost(here, part, of, v)...)
			}
		}
	case []any:
		part, _ := other["items"].(map[string]any)
		of, has := own["items"].(map[string]any)
		for i, v := range is {
			if has {
				paths = append(paths, lost(fmt.Sprintf("%s[%d]", path, i), part, of, v)...)
			}
		}
	}
	return paths
}

// isDefault reports whether a value equals the default of the schema, or consists only of such
// values.
func (s openSchema) isDefault(value any) bool {
	if is, set := s["default"]; set && equality.Semantic.DeepEqual(is, value) {
		return true
	}
	fields, isMap := value.(map[string]any)
	for name, v := range fields {
		if part, _ := s.part(name); !part.isDefault(v) {
			return false
		}
	}
	return isMap
}
